"""Whatever holds a pattern in a file holds every argument of it: a default that becomes another changes no saved model.

Texts that were written before, without arguments at their defaults, mean what they mean by the defaults of today; so
these are written down here, and may not change.
"""

import inspect
import json
from functools import wraps

import pytest
from known_patterns import ALL, named
from strategies import build

from asterism import patterns
from asterism.errors import ConfigurationError
from asterism.patterns import in_full, text
from asterism.training import RunConfig
from asterism.training.pipeline import _refuse_other_settings
from asterism.training.settings.configuration import config_from_dict, config_to_dict

DEFAULTS = {
    "window": {"left": 0, "right": 0, "dilation": 1},
    "blocks": {"left": 0, "right": 0},
    "columns": {"first": 0, "count": 1},
    "grid": {"dilation": 1, "channels": 1},
    "global_keys": {"block": 1},
    "global_queries": {"block": 1},
    "global_tokens": {"block": 1},
    "random_blocks": {"seed": 0, "heads": 1, "earlier": False, "window_blocks": 0, "avoid": ()},
    "explicit": {"size": None},
    "tree": {"size": None, "pattern": None},
    "selected": {"topk": None, "score": "mean", "query_block": 1, "first": 1, "local": 1, "mass": None},
    "across": {"step": 1},
    "fixed": {"summary": 1, "heads": 1},
    "bigbird": {"block": 64, "window_blocks": 3, "random": 3, "globals": (0, -1), "seed": 0, "heads": 1},
    "bigbird_etc": {"block": 84, "window_blocks": 3, "random": 0, "globals": 256, "seed": 0, "heads": 1},
    "bigbird_causal": {"block": 64, "window_blocks": 3, "random": 3, "globals": (0,), "seed": 0, "heads": 1},
    "longformer": {"window": 512, "dilation": 1, "globals": (0,)},
    "sinks": {"first": 4, "window": 1024},
    "yun_random": {"seed": 0},
}
"""The arguments that files of earlier versions leave out, and what they meant by it."""

LEAST = {
    "stride": "5",
    "blocks": "4",
    "columns": "4",
    "grid": "4, 1",
    "global_keys": "(0,)",
    "global_queries": "(0,)",
    "global_tokens": "(0,)",
    "random_blocks": "4, 1",
    "explicit": "'0:0;1:0-1'",
    "per_head": "[window(2), sinks()]",
    "shifted": "longformer(), 3",
    "documents": "bigbird(), 5, -2, 70",
    "tree": "(-1, 0, 1, 0)",
    "selected": "16, 2",
    "across": "window(3)",
    "part": "fixed(8), 16, '0:8', '0:16'",
    "strided": "8",
    "fixed": "8",
    "yun_strided": "4",
    "yun_fixed": "4",
    "yun_window": "4",
    "yun_random": "2",
    "merge": "window(3), sinks()",
    "split_heads": "window(3), sinks(), heads=4",
}
"""The arguments that have no default, of each name that has such."""


def least(name: str) -> str:
    return f"{name}({LEAST.get(name, '')})"


@pytest.fixture
def without_defaults(monkeypatch):
    """Nothing that a text calls has a default any more: what is left out is missing."""

    def strict(name, function):
        known = inspect.signature(function).parameters.values()
        needed = {one.name for one in known if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}

        @wraps(function)
        def call(*positional, **given):
            taken = {one.name for one, _ in zip(known, positional, strict=False)}
            assert needed <= taken | given.keys(), f"{name} lacks {needed - given.keys() - taken}"
            return function(*positional, **given)

        return call

    def begin():
        patterns.parse.cache_clear()
        for name, function in list(text.VOCABULARY.items()):
            monkeypatch.setitem(text.VOCABULARY, name, strict(name, function))

    yield begin
    patterns.parse.cache_clear()


@pytest.fixture
def other_sinks(monkeypatch):
    """Has sinks() read one first token in place of four, as a later version might."""

    def begin():
        patterns.parse.cache_clear()

        def sinks(first: int = 1, window: int = 8):
            return patterns.sinks(first, window)

        monkeypatch.setitem(text.VOCABULARY, "sinks", sinks)

    yield begin
    patterns.parse.cache_clear()


def test_the_defaults_that_files_rely_on_are_those_of_before():
    now = {
        name: {p.name: p.default for p in inspect.signature(function).parameters.values() if p.default is not p.empty}
        for name, function in text.VOCABULARY.items()
    }
    assert {name: defaults for name, defaults in now.items() if defaults} == DEFAULTS


@pytest.mark.parametrize("name", text.VOCABULARY)
def test_every_pattern_is_saved_with_every_argument(name, without_defaults):
    pattern = patterns.parse(least(name))
    saved = pattern.text
    assert in_full(least(name)) == in_full(pattern) == in_full(saved) == saved
    without_defaults()
    again = patterns.parse(saved)
    assert again == pattern and again.text == saved


@pytest.mark.parametrize("drawn", ALL, ids=named)
def test_compositions_are_saved_with_every_argument(drawn, without_defaults):
    pattern = build(drawn)
    without_defaults()
    assert patterns.parse(pattern.text) == pattern


def test_schedules_are_saved_with_every_argument_and_what_cannot_be_read_as_it_is():
    assert in_full("interleave(sinks(window=32), ~window(3) & causal(), fourier())") == (
        "interleave(sinks(first=4, window=32), ~window(left=3, right=0, dilation=1) & causal(), fourier())"
    )
    assert in_full(("sinks()", "dense()")) == ["sinks(first=4, window=1024)", "dense()"]
    for damaged in ("sinks(", "snks()", "sinks(wide=3)", 5, None, ["window(", 3]):
        assert in_full(damaged) == damaged


def test_people_read_the_short_form():
    pattern = patterns.sinks(window=32) | patterns.window(3)
    assert str(pattern) == repr(pattern) == "sinks(window=32) | window(left=3)"
    assert pattern.text == "sinks(first=4, window=32) | window(left=3, right=0, dilation=1)"


@pytest.mark.parametrize("given", ["sinks(window=32)", patterns.sinks(window=32), ["sinks(window=32)", "sinks()"]])
def test_a_model_that_was_saved_keeps_its_pattern_where_a_default_changes(given, other_sinks, tmp_path):
    from small_models import small_model

    model = small_model(given, num_hidden_layers=2)
    before = model.config.layer_mixers()
    model.save_pretrained(tmp_path)
    other_sinks()
    again = type(model).from_pretrained(tmp_path)
    assert again.config.layer_mixers() == before
    assert again.config.to_dict()["mixers"] == json.loads((tmp_path / "config.json").read_text())["mixers"]


def test_use_pattern_saves_every_argument(other_sinks, tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM

    from asterism.models import use_pattern
    from asterism.models.drop_in.field import read_patterns

    config = LlamaConfig(
        vocab_size=11, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    use_pattern(LlamaForCausalLM(config), "sinks(window=32)").save_pretrained(tmp_path)
    other_sinks()
    again = LlamaForCausalLM.from_pretrained(tmp_path)
    assert read_patterns(again.config.asterism_pattern, 1) == (patterns.sinks(4, 32),)


def test_an_exported_program_holds_every_argument():
    import torch
    from small_models import small_model

    model = small_model("sinks(window=32)", num_hidden_layers=1, implementation="eager")
    graph = str(torch.export.export(model, (torch.zeros(1, 8, dtype=torch.long),), {"use_cache": False}).graph)
    assert "sinks(first=4, window=32)" in graph and "sinks(window=32)" not in graph


def run_of(rule: str, **settings) -> RunConfig:
    return config_from_dict("train", {"model": {"mixers": rule, **settings}})


def test_a_run_records_every_argument_and_one_without_goes_on():
    now, before = run_of("sinks(window=32)", decoder_mixers="sinks()"), run_of("sinks(window=32)")
    assert config_to_dict(now)["model"]["mixers"] == "sinks(first=4, window=32)"
    assert config_to_dict(now)["model"]["decoder_mixers"] == "sinks(first=4, window=1024)"
    recorded = config_from_dict("train", json.loads(json.dumps(config_to_dict(before))))
    for old in (before, recorded):  # run.json of earlier versions, and of this one
        for same in ("sinks(window=32)", "sinks(4, 32)", "sinks(first=4, window=32)"):
            _refuse_other_settings(old, run_of(same), None)
        with pytest.raises(ConfigurationError, match="resume: got model .*, but the run began with"):
            _refuse_other_settings(old, run_of("sinks(first=5, window=32)"), None)
