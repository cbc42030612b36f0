"""Models of transformers that follow a pattern generate, forget, and are saved with it."""

import copy
import json

import pytest
import torch
from followed_models import CAUSAL, COLUMNS, GROUPED, SIDES, assert_close, batch, build, real_logits
from refusals import refusing
from transformers import (
    AttentionInterface,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
)

from asterism import patterns
from asterism.errors import ConfigurationError, PatternError
from asterism.models import drop_pattern, use_pattern
from asterism.models.cache.cache import PatternCache
from asterism.models.cache.layer import PatternCacheLayer
from asterism.models.cache.naming import CACHE

pytestmark = pytest.mark.model

# --- the cache -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", CAUSAL)
@torch.no_grad()
def test_logits_with_the_cache_equal_logits_without(name: str, side: str) -> None:
    text = "interleave(fixed(stride=6, summary=1), window(left=4), sinks(first=1, window=3))"
    model, inputs = use_pattern(build(name), text, native_window="replace"), batch(side)
    expected = real_logits(model, inputs, use_cache=False)
    cache, parts = DynamicCache(config=model.config), []
    for start, stop in ((0, 9), (9, 10), (10, 16), *((i, i + 1) for i in range(16, COLUMNS))):
        part = model(
            input_ids=inputs["input_ids"][:, start:stop],
            attention_mask=inputs["attention_mask"][:, :stop],
            position_ids=torch.arange(start, stop)[None],
            **{CACHE: cache},
        )
        assert part.past_key_values is cache
        parts.append(part.logits)
    assert_close(torch.cat(parts, dim=1)[inputs["attention_mask"].bool()], expected)
    for layer, limit in zip(cache.layers, (6 + 3, 4, 3), strict=True):
        assert all(len(layer.kept(row)[0]) <= limit for row in range(len(layer.lengths)))


@pytest.mark.parametrize("name", ["llama", "qwen3", "mistral, own window", "gpt2"])
@pytest.mark.parametrize(
    "how", [{}, {"num_beams": 3}, {"do_sample": True}, {"num_beams": 2, "num_return_sequences": 2}, {"min_p": 0.0}]
)
def test_generate_with_the_cache_equals_generate_without(name: str, how: dict) -> None:
    text = "interleave(fixed(stride=6, summary=1), window(left=4))"
    model, inputs = use_pattern(build(name), text, native_window="replace"), batch("left")
    outputs = []
    for use_cache in (True, False):
        with torch.random.fork_rng():
            torch.manual_seed(5)
            outputs.append(
                model.generate(**inputs, **how, max_new_tokens=24, use_cache=use_cache, return_dict_in_generate=True)
            )
    assert torch.equal(outputs[0].sequences, outputs[1].sequences)
    assert outputs[0].sequences.shape[1] == COLUMNS + 24
    kept = [max(map(len, layer.kept().values())) for layer in outputs[0].past_key_values.layers]
    assert all(isinstance(layer, PatternCacheLayer) for layer in outputs[0].past_key_values.layers)
    assert kept[1] == 4 and kept[0] <= 6 + (COLUMNS + 24) // 6


@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral, own window"])
def test_guesses_of_assistants_and_caches_of_fixed_size_change_no_token(name: str) -> None:
    text = "interleave(fixed(stride=6, summary=1), window(left=4), sinks(first=2, window=6))"
    model = use_pattern(build(name), text, native_window="replace")
    tokens, length = batch("none")["input_ids"][:1], {"max_new_tokens": 24, "do_sample": False}
    expected = model.generate(tokens, **length)
    for how in (
        {"prompt_lookup_num_tokens": 4},
        {"assistant_model": use_pattern(build(name), "window(left=3)", native_window="replace")},
        {"assistant_model": build(name)},
        {CACHE: PatternCache(max_tokens=COLUMNS + 24)},
    ):
        assert torch.equal(model.generate(tokens, **length, **how), expected)
    for kind, message in (
        ("static", "^a static or sliding cache cannot forget by a pattern; leave out"),
        ("offloaded", "the cache, of type offloaded DynamicCache, cannot"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            model.generate(tokens, **length, cache_implementation=kind, disable_compile=True)


def test_generate_makes_of_a_padded_row_what_it_makes_of_it_alone() -> None:
    model, inputs = use_pattern(build("llama"), "strided(stride=5)"), batch("left")
    together = model.generate(**inputs, max_new_tokens=12)
    for row, real in enumerate(SIDES["left"]):
        alone = model.generate(inputs["input_ids"][row : row + 1, list(real)], max_new_tokens=12)
        assert torch.equal(together[row, list(real)[0] :], alone[0])


@torch.no_grad()
def test_a_mask_may_be_left_out_once_the_cache_knows_the_padding() -> None:
    model, inputs = use_pattern(build("gpt2"), "strided(stride=4)"), batch("left")
    first = {key: value[:, :-1] for key, value in inputs.items()}
    last, position = inputs["input_ids"][:, -1:], torch.tensor([[COLUMNS - 1]])
    expected = model(**inputs).logits[:, -1:]
    cache = model(**first, use_cache=True).past_key_values
    assert_close(model(last, **{CACHE: cache}, position_ids=position).logits, expected)


# --- saved and restored ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "auto", "pattern"),
    [
        ("llama", AutoModelForCausalLM, patterns.parse_schedule("interleave(window(left=4), fixed(stride=6))")),
        ("modernbert", AutoModelForMaskedLM, [patterns.window(2, 2), "dense()", "stride(period=3)"]),
    ],
)
@torch.no_grad()
def test_a_saved_model_keeps_its_pattern(tmp_path, monkeypatch, name: str, auto, pattern) -> None:
    model, inputs = use_pattern(build(name), pattern, native_window="replace"), batch("left")
    expected = real_logits(model, inputs)
    for folder in ("first", "second"):  # saved again after it was loaded
        model.save_pretrained(tmp_path / folder)
        model = auto.from_pretrained(tmp_path / folder, dtype=torch.float64).eval()
        assert model.config._attn_implementation == "asterism"
        assert_close(real_logits(model, inputs), expected)
    written = json.loads((tmp_path / "second" / "config.json").read_text())
    assert written["asterism_pattern"] == model.config.asterism_pattern
    assert_close(real_logits(use_pattern(model), inputs), expected)
    assert_close(real_logits(copy.deepcopy(model), inputs), expected)
    # Without asterism, transformers knows no attention of this name.
    monkeypatch.delitem(AttentionInterface._global_mapping, "asterism")
    monkeypatch.delattr(PreTrainedConfig, "asterism_pattern")
    with pytest.raises(ValueError, match="asterism"):
        auto.from_pretrained(tmp_path / "second")


@torch.no_grad()
@pytest.mark.parametrize("name", ["llama", "mistral, own window"])
def test_a_loaded_model_generates_the_same_and_forgets(tmp_path, name: str) -> None:
    model, inputs = use_pattern(build(name), "fixed(stride=6, summary=1)", native_window="replace"), batch("left")
    expected = model.generate(**inputs, max_new_tokens=12)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64).eval()
    assert torch.equal(loaded.generate(**inputs, max_new_tokens=12), expected)
    assert type(loaded(**inputs, use_cache=True).past_key_values.layers[0]) is PatternCacheLayer
    built = AutoModelForCausalLM.from_config(loaded.config)
    assert type(built(**inputs, use_cache=True).past_key_values.layers[0]) is PatternCacheLayer


def test_a_configuration_whose_pattern_does_not_fit_builds_no_model() -> None:
    config = LlamaConfig(**GROUPED, asterism_pattern="window(1, 1)")
    with refusing(PatternError, "reads-future"):
        LlamaForCausalLM(config)


@torch.no_grad()
def test_a_pattern_can_be_changed_set_aside_and_dropped(tmp_path) -> None:
    model, inputs = build("llama"), batch("right")
    dense = real_logits(model, inputs)
    fresh = model.config.to_dict()
    narrow = real_logits(use_pattern(model, "window(left=2)"), inputs)
    wide = real_logits(use_pattern(model, patterns.window(left=4)), inputs)
    assert not torch.allclose(narrow, wide) and not torch.allclose(narrow, dense)
    model.set_attn_implementation("sdpa")
    assert_close(real_logits(model, inputs), dense)
    assert_close(real_logits(use_pattern(model), inputs), wide)
    assert_close(real_logits(drop_pattern(model), inputs), dense)
    assert model.config.to_dict() == fresh and model.config._attn_implementation == "sdpa"
    use_pattern(model, "window(left=2)", native_window="intersect")
    assert_close(real_logits(use_pattern(model, None), inputs), dense)
    assert model.config.to_dict() == fresh and model.config._attn_implementation == "sdpa"
    assert model.generate(**inputs, max_new_tokens=3).shape == (3, COLUMNS + 3)
    with refusing(ConfigurationError, "no-native-pattern"):
        use_pattern(model)


@torch.no_grad()
def test_another_attention_may_be_asked_for_and_is_what_is_saved(tmp_path, caplog) -> None:
    model, inputs = build("llama"), batch("right")
    dense = real_logits(model, inputs)
    narrow = real_logits(use_pattern(model, "window(left=2)"), inputs)
    model.save_pretrained(tmp_path / "narrow")
    for kind in (AutoModelForCausalLM, LlamaForCausalLM):
        loaded = kind.from_pretrained(tmp_path / "narrow", attn_implementation="sdpa", dtype=torch.float64)
        assert_close(real_logits(loaded, inputs), dense)
        assert_close(real_logits(use_pattern(loaded), inputs), narrow)
    assert AutoConfig.from_pretrained(tmp_path / "narrow", attn_implementation="eager")._attn_implementation == "eager"
    assert not caplog.records
    model.set_attn_implementation("sdpa")
    assert "the pattern window(left=2) is set aside and will not be saved" in caplog.text
    model.save_pretrained(tmp_path / "dense")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "dense", dtype=torch.float64)
    assert again.config.asterism_pattern is None
    assert_close(real_logits(again, inputs), dense)
    assert_close(real_logits(use_pattern(model), inputs), narrow)
    assert model.config.to_dict()["asterism_pattern"] == "window(left=2, right=0, dilation=1)"
