"""A model's own pattern under other configurations than the table's: equal to eager attention, or refused."""

import inspect

import native_models
import pytest
import torch
import transformers
import zoo
from native_models import softmax_in_float64
from refusals import refusing
from transformers import MimiEncoderConfig, MimiEncoderModel

from asterism.errors import ConfigurationError
from asterism.models import native_patterns, use_pattern

pytestmark = pytest.mark.model

TOKENS = 20
MIXED = ["full_attention", *["sliding_attention"] * 2, "full_attention", "full_attention", "sliding_attention"]
SIZES = {
    "one key": {"sliding_window": 1, "local_attention": 2, "attention_chunk_size": 1},
    "odd": {"sliding_window": 7, "local_attention": 7, "attention_chunk_size": 7},
    "the row": {"sliding_window": TOKENS, "local_attention": 2 * TOKENS, "attention_chunk_size": TOKENS},
    "more than the row": {"sliding_window": 64, "local_attention": 128, "attention_chunk_size": 64},
}
FAMILIES = ["cohere2", "exaone4", "gemma3_text", "ministral", "modernbert", "olmo3", "phi3", "qwen2"]
"""Those that compute in float64 whatever the shape of a batch; Llama 4 rotates in float32, so its pieces differ."""


def build(family: str, **fields) -> transformers.PreTrainedModel:
    part = native_models.PARTS.get(family)
    more = native_models.SWITCHED | native_models.OWN.get(family, {}) | fields
    model = zoo.build(family, more, getattr(transformers, part) if part else None)
    assert model is not None
    return model


def logits(model, ids: torch.Tensor, implementation: str, **more) -> torch.Tensor:
    model.set_attn_implementation(implementation)
    with torch.no_grad(), softmax_in_float64():
        result = model(input_ids=ids, **more)
    return result.logits if hasattr(result, "logits") else result.last_hidden_state


def rows() -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(3, zoo.VOCABULARY, (2, TOKENS), generator=torch.Generator().manual_seed(4))
    mask = torch.ones_like(ids)
    mask[0, :7] = 0
    return ids, mask


def check(model) -> None:
    """At once, padded on either side, and with a cache in pieces."""
    ids, left = rows()
    check_at_once(model, ids, left)
    if "past_key_values" in inspect.signature(model.forward).parameters:
        _check_cache(model, ids, left)


def check_at_once(model, ids: torch.Tensor, left: torch.Tensor) -> None:
    for mask in (torch.ones_like(ids), left, left.flip(1)):
        expected, found = (
            logits(model, ids, one, attention_mask=mask, **zoo._without_cache(model)) for one in ("eager", "asterism")
        )
        real = mask.bool()
        torch.testing.assert_close(found[real], expected[real], rtol=0, atol=1e-10 * expected[real].abs().max().item())


def _check_cache(model, ids: torch.Tensor, mask: torch.Tensor) -> None:
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    expected = logits(model, ids, "eager", attention_mask=mask, position_ids=positions, use_cache=False)
    model.set_attn_implementation("asterism")
    cache, found = None, []
    for begin, end in ((0, 9), (9, 10), (10, 11), (11, 15), (15, 16), (16, TOKENS)):
        told = {"attention_mask": mask[:, :end], "position_ids": positions[:, begin:end], "past_key_values": cache}
        with torch.no_grad():
            result = model(input_ids=ids[:, begin:end], use_cache=True, **told)
        cache = result.past_key_values
        found.append(result.logits)
    real = mask.bool()
    largest = expected[real].abs().max().item()
    torch.testing.assert_close(torch.cat(found, dim=1)[real], expected[real], rtol=0, atol=1e-10 * largest)


@pytest.mark.parametrize("family", ["gemma3_text", "modernbert"])
@pytest.mark.parametrize("size", list(SIZES))
def test_windows_of_any_size(family: str, size: str) -> None:
    check(use_pattern(build(family, **SIZES[size])))


@pytest.mark.parametrize("size", list(SIZES))
def test_chunks_of_any_size(size: str) -> None:
    check_at_once(use_pattern(build("llama4_text", **SIZES[size])), *rows())


@pytest.mark.slow
@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in ("gemma3_text", "modernbert")])
@pytest.mark.parametrize("size", list(SIZES))
def test_windows_of_any_size_in_every_kind_of_family(family: str, size: str) -> None:
    check(use_pattern(build(family, **SIZES[size])))


@pytest.mark.parametrize("family", ["cohere2", "qwen2"])
def test_layers_take_turns_as_their_types_say(family: str) -> None:
    model = use_pattern(build(family, layer_types=MIXED))
    assert ["window" in one for one in model.config.asterism_pattern] == ["sliding" in kind for kind in MIXED]
    check(model)


@pytest.mark.parametrize("fields", [{"use_sliding_window": False}, {"max_window_layers": 6}, {"sliding_window": None}])
def test_windows_that_are_switched_off_are_not_read(fields: dict) -> None:
    with refusing(ConfigurationError, "no-native-pattern"):
        use_pattern(build("qwen2", **fields))


def test_windows_of_all_layers_but_the_first() -> None:
    model = use_pattern(build("qwen2", max_window_layers=1))
    assert ["window" in one for one in model.config.asterism_pattern] == [False] + [True] * 5
    check(model)


@pytest.mark.parametrize("family", list(native_models.PARTS))
def test_parts_of_larger_models(family: str) -> None:
    """Step 3.7 has other numbers of heads in layers with windows."""
    found = native_models.tell(family)
    assert found is not None and found.row == native_models.read_table()[1][family]


def test_a_window_is_found_in_a_part_that_is_no_model() -> None:
    with torch.device("meta"):
        model = MimiEncoderModel(MimiEncoderConfig(num_hidden_layers=2, sliding_window=5))
    assert [one.text for one in native_patterns(model)] == ["window(left=4, right=0, dilation=1)"] * 2
