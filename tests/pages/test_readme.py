"""The README is true: its Python runs, its commands and files exist, its figures and pictures show the results."""

import html
import json
import re
import shlex
import tomllib
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from repository import ROOT, docs_page

import asterism

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
COMMANDS = [
    line for kind, text in BLOCKS if kind == "sh" for line in (raw.split(" #")[0].strip() for raw in text.splitlines())
]
LINES = (ROOT / "constraints.txt").read_text().splitlines()
PINNED = dict(line.split("==") for line in LINES if not line.startswith("#"))
COLUMNS = ("Asterism", "FlexAttention", "flash-attn", "xformers", "NATTEN", "Hugging Face", "x-transformers")
ROWS = (
    "CPU forward",
    "CPU backward",
    "GPU timed",
    "any mask",
    "pattern algebra",
    "cache that forgets",
    "learned sinks on CPU",
    "drop-in for transformers",
    "sequence parallel that moves a halo",
    "certificate of what is reached",
)


@pytest.fixture
def readme(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """benchmarks/readme.py."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return import_module("readme")


def test_every_block_is_of_a_known_kind():
    assert {kind for kind, _ in BLOCKS} == {"python", "sh"}


def test_the_python_runs_and_the_cache_keeps_what_the_page_says():
    names: dict[str, Any] = {}
    for kind, text in BLOCKS:
        if kind == "python":
            exec(compile(text, "README.md", "exec"), names)
    options = dict(do_sample=False, eos_token_id=None, pad_token_id=0, return_dict_in_generate=True)
    out = names["llama"].generate(names["tokens"], max_new_tokens=20, **options)
    kept = {len(layer.kept()[0]) for layer in out.past_key_values.layers}
    assert f"This Llama's cache keeps {kept.pop()} tokens" in README and not kept


def test_the_blocks_are_as_short_as_they_can_be():
    attention, drop_in = ([line for line in text.splitlines() if line] for kind, text in BLOCKS if kind == "python")
    assert (len(attention), len(drop_in)) <= (10, 6)


def test_the_commands_are_there():
    assert COMMANDS == ['pip install ".[train]"', "make train", "make test"]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert "train" in extras
    for command in COMMANDS[1:]:
        assert re.search(rf"^{shlex.split(command)[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_it_is_read_in_one_sitting():
    assert len(README.splitlines()) <= 110


def test_the_links_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+)\)", README) + re.findall(r'src="([^"]+)"', README)
    assert len(links) > 10
    assert [link for link in links if not link.startswith("http") and not (ROOT / link).exists()] == []


# --- figures and pictures: `python benchmarks/readme.py` makes them anew ----------------------------------------------


def test_the_figures_are_those_of_the_results(readme: ModuleType):
    assert readme.with_figures(README) == README


def test_a_figure_that_drifted_is_seen(readme: ModuleType):
    assert readme.with_figures(README.replace("149 ms", "148 ms")) == README != README.replace("149 ms", "148 ms")


def test_a_page_without_its_markers_is_refused(readme: ModuleType):
    with pytest.raises(SystemExit, match="<!-- end of claims -->"):
        readme.with_figures(README.replace("<!-- end of claims -->", ""))


def test_the_plot_shows_the_results(readme: ModuleType):
    picture = (ROOT / "docs/images/speed.svg").read_text()
    (described,) = re.findall(r"<dc:description>(.*?)</dc:description>", picture, re.DOTALL)
    assert json.loads(html.unescape(described)) == json.loads(json.dumps(readme.panels()))


def test_the_plot_can_be_drawn_again(readme: ModuleType, tmp_path: Path):
    for name in ("one", "two"):
        readme.draw_speed(tmp_path / f"{name}.svg")
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_the_gallery_is_drawn_by_the_library_of_today(readme: ModuleType):
    assert readme.gallery() == (ROOT / "docs/images/gallery.svg").read_text()
    assert len(readme.GALLERY) == 12


def test_the_gallery_is_dark_where_a_query_reads(readme: ModuleType):
    """Of `window(left=1)`: a run of one key in the first row, runs of two in the others."""
    (path,) = re.findall(r' d="([^"]*)"', readme.gallery(["window(left=1)"]))
    runs = re.findall(r"M([\d.]+) ([\d.]+)h([\d.]+)", path)
    cells = [tuple(round(float(number) / readme.CELL) for number in run) for run in runs]
    assert cells == [(max(query - 1, 0), query, min(query + 1, 2)) for query in range(readme.TOKENS)]


# --- other libraries, and the versions that the page names ------------------------------------------------------------


def test_the_table_of_peers_has_its_rows_and_columns():
    (table,) = re.findall(r"^\| \| Asterism \|.*?\n\n", README, re.MULTILINE | re.DOTALL)
    lines = [re.split(r"(?<!\\)\|", line)[1:-1] for line in table.splitlines() if line]
    heading, _, *rows = [[cell.strip() for cell in line] for line in lines]
    assert tuple(heading[1:]) == COLUMNS
    assert tuple(row[0] for row in rows) == ROWS
    assert all(len(row) == len(heading) and all(row) for row in rows)


def test_versions_are_those_of_today():
    torch, transformers, accelerate = (PINNED[package] for package in ("torch", "transformers", "accelerate"))
    assert f": torch {torch}, transformers {transformers} with accelerate {accelerate}, flash-attn" in README
    assert f"Python 3.11, torch {torch},\n" in README
    makefile = (ROOT / "Makefile").read_text()
    (lowest,), (newest,) = (re.findall(rf"^{name} := (.*)$", makefile, re.MULTILINE) for name in ("LOWEST", "NEWEST"))
    assert f"transformers {lowest}, {transformers} and {newest}, several processes over gloo" in README
    assert f"version {asterism.__version__}:" in README


def test_families_are_counted_in_the_table():
    zoo, native = (docs_page(page).read_text() for page in ("zoo.md", "native.md"))
    ((families, working),) = re.findall(r"^(\d+) families of transformers [\d.]+: (\d+) work", zoo, re.MULTILINE)
    (own,) = re.findall(r"^(\d+) families of transformers", native, re.MULTILINE)
    assert f"[{own} families](docs/reference/native.md)" in README
    assert f"[{working} of {families} families]" in README


def test_flex_attention_is_as_the_table_says():
    import torch
    from torch.nn.attention.flex_attention import and_masks, flex_attention, or_masks

    q = torch.randn(1, 1, 16, 16, requires_grad=True)
    with pytest.raises(NotImplementedError, match="does not support backward on CPU"):
        flex_attention(q, q, q)
    assert callable(and_masks) and callable(or_masks)


@pytest.mark.model
def test_hugging_face_is_as_the_table_says():
    from accelerate.big_modeling import _attach_context_parallel_hooks as attach
    from transformers import MistralConfig, MistralForCausalLM
    from transformers.cache_utils import DynamicSlidingWindowLayer
    from transformers.masking_utils import and_masks, or_masks

    sizes = dict(vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    model = MistralForCausalLM(MistralConfig(**sizes, num_key_value_heads=1, sliding_window=4))
    with pytest.raises(ValueError, match="does not support attention layers of type"):
        attach(model)
    assert callable(and_masks) and callable(or_masks) and DynamicSlidingWindowLayer.is_sliding
