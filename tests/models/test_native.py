"""The patterns that models have by themselves: equal to eager attention of transformers, read from configurations."""

import native_models
import pytest
import torch
import transformers
import zoo
from refusals import refusing
from transformers import (
    AutoModelForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Llama4ForCausalLM,
    Llama4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

from asterism.errors import ConfigurationError
from asterism.models import native_patterns, use_pattern
from asterism.models.cache.naming import CACHE

pytestmark = pytest.mark.model

FEW = ["gemma3_text", "gpt_oss", "llama4_text", "mistral", "modernbert", "qwen2"]
VERSION, TABLE = native_models.read_table()
TINY = dict(vocab_size=40, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, head_dim=8)


def check(family: str) -> None:
    found = native_models.tell(family)
    if transformers.__version__ == VERSION:
        row = None if found is None else found.row
        # What is rounded to float32 inside may be rounded alike on another processor.
        assert TABLE.get(family) in (row, row and row.replace("| exact |", "| float32 |"))


@pytest.mark.parametrize("family", FEW)
def test_a_family_computes_its_own_pattern(family: str) -> None:
    assert native_models.tell(family) is not None
    check(family)


@pytest.mark.slow
@pytest.mark.parametrize("family", [family for family in zoo.families() if family not in FEW])
def test_every_family_with_windows_computes_its_own_pattern(family: str) -> None:
    check(family)


def test_the_table_is_of_many_families() -> None:
    assert set(FEW) <= set(TABLE) and len(TABLE) >= 45


def mistral(**more) -> MistralForCausalLM:
    torch.manual_seed(0)
    return (
        MistralForCausalLM(MistralConfig(**TINY, num_key_value_heads=2, **{"sliding_window": 5} | more)).double().eval()
    )


def tokens(length: int = 24) -> torch.Tensor:
    return torch.randint(3, 40, (2, length), generator=torch.Generator().manual_seed(1))


def test_it_is_the_pattern_of_a_model_that_was_given_none() -> None:
    model = use_pattern(mistral())
    assert model.config.asterism_pattern == [pattern.text for pattern in native_patterns(model)]
    expected = use_pattern(mistral(), "window(left=4)", native_window="replace")
    assert torch.equal(model(tokens()).logits, expected(tokens()).logits)


def test_what_is_added_to_it_is_read_in_every_layer() -> None:
    model = use_pattern(mistral(), "native | sinks(first=2, window=1)")
    expected = use_pattern(mistral(), "window(left=4) | sinks(first=2, window=1)", native_window="replace")
    assert torch.equal(model(tokens()).logits, expected(tokens()).logits)
    alone = use_pattern(mistral(), "native()")
    assert not torch.allclose(model(tokens()).logits, alone(tokens()).logits)


def test_schedules_and_lists_take_it() -> None:
    own, both = "window(left=4, right=0, dilation=1)", "window(left=4, right=0, dilation=1) & causal()"
    assert use_pattern(mistral(), "interleave(native, native & causal())").config.asterism_pattern == [own, both]
    assert use_pattern(mistral(), ["native & causal()", "native"]).config.asterism_pattern == [both, own]


def test_it_is_saved_with_the_model(tmp_path) -> None:
    model = use_pattern(mistral())
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64)
    assert again.config.asterism_pattern == model.config.asterism_pattern
    assert torch.equal(again(tokens()).logits, model(tokens()).logits)


def test_a_compiled_model_computes_it() -> None:
    model = use_pattern(mistral())
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(tokens(), use_cache=False).logits, model(tokens()).logits)


def test_chunks_begin_with_the_first_real_token() -> None:
    config = Llama4TextConfig(**TINY, attention_chunk_size=8, intermediate_size_mlp=48, num_local_experts=2)
    model = use_pattern(Llama4ForCausalLM(config))
    assert "blocks(size=8, left=0, right=0)" in model.config.asterism_pattern[0]


def test_queries_are_scaled_by_their_positions_with_a_cache_too() -> None:
    """Llama 4 asks its cache, in layers without rotations, how many tokens came before."""
    scaled = {"attn_temperature_tuning": True, "floor_scale": 4, "attn_scale": 0.5, "no_rope_layers": [1, 0]}
    sizes = {"attention_chunk_size": 8, "intermediate_size_mlp": 48, "num_local_experts": 2, "num_key_value_heads": 2}
    config = Llama4TextConfig(**TINY, **scaled, **sizes)
    torch.manual_seed(0)
    model, options = Llama4ForCausalLM(config).eval(), {"do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    options |= {"max_new_tokens": 8, "output_scores": True, "return_dict_in_generate": True}
    found = []
    use_pattern(model)
    for implementation in ("eager", "asterism"):
        model.set_attn_implementation(implementation)
        found.append(torch.stack(model.generate(tokens(), **options).scores))
    torch.testing.assert_close(found[1], found[0])


def test_a_model_without_a_window_is_refused() -> None:
    llama = LlamaForCausalLM(LlamaConfig(**TINY))
    for given in ([], ["native"], ["native | window(left=3)"]):
        with refusing(ConfigurationError, "no-native-pattern"):
            use_pattern(llama, *given)
    assert llama.config.asterism_pattern is None and llama.config._attn_implementation != "asterism"


def test_what_contradicts_itself_is_refused() -> None:
    with refusing(ConfigurationError, "native-window-size"):
        use_pattern(mistral(sliding_window=0))
    both = mistral()
    both.config.attention_chunk_size = 8
    with refusing(ConfigurationError, "window-and-chunks"):
        use_pattern(both)
    gemma = Gemma3ForCausalLM(Gemma3TextConfig(**TINY, sliding_window=5))
    gemma.config.layer_types = ["sliding_attention"]
    with refusing(ConfigurationError, "layer-types-number"):
        use_pattern(gemma)
    with refusing(ConfigurationError, "native-twice"):
        use_pattern(mistral(), "native", native_window="intersect")
    with refusing(ConfigurationError, "patterns-per-layer"):
        use_pattern(mistral(), ["native"])
    with refusing(ConfigurationError, "schedule-too-long"):  # the last would never be used
        use_pattern(mistral(), "interleave(native, causal(), native & causal())")


def test_a_model_that_asks_for_another_window_is_refused() -> None:
    model = use_pattern(mistral())
    model.config.sliding_window = 7  # after the pattern was made
    with refusing(ConfigurationError, "native-not-followed"):
        model(tokens())
    model.config.sliding_window = None
    with refusing(ConfigurationError, "native-not-followed"):
        model(tokens())


def test_a_configuration_that_changed_since_is_refused(tmp_path) -> None:
    """Before the first call, whether it was changed in memory, in a file, or on the way from it."""
    model = use_pattern(mistral(), "native | sinks(first=2, window=1)")
    model.save_pretrained(tmp_path)
    model.config.sliding_window = 7
    with refusing(ConfigurationError, "native-changed"):
        use_pattern(model)
    for size in (7, None):
        with refusing(ConfigurationError, "native-changed"):
            MistralForCausalLM.from_pretrained(tmp_path, sliding_window=size)
    use_pattern(model, "native")
    assert model.config.asterism_pattern == ["window(left=6, right=0, dilation=1)"] * 2
    model(tokens())
    model.config.sliding_window = 8
    use_pattern(model, "window(left=3)", native_window="replace")
    assert not any(name.startswith("asterism_native_p") for name in model.config.to_dict())


def test_a_model_that_shows_the_future_since_is_refused() -> None:
    model = use_pattern(mistral())
    model.config.is_causal = False
    with refusing(ConfigurationError, "native-not-followed"):
        model(tokens(), use_cache=False)
    with refusing(ConfigurationError, "native-changed"):
        use_pattern(model)


@pytest.mark.parametrize("pattern", ["native", "native | sinks(first=2, window=1)"])
def test_padding_amid_a_row_is_refused(pattern: str) -> None:
    """Eager attention counts it in its windows; patterns count tokens."""
    model, ids = use_pattern(mistral(), pattern), tokens()
    mask = torch.ones_like(ids)
    mask[1, 8:12] = 0
    with refusing(ConfigurationError, "native-hole"):
        model(ids, attention_mask=mask)
    cache = model(ids[:, :12], attention_mask=mask[:, :12]).past_key_values
    with refusing(ConfigurationError, "native-hole"):
        model(ids[:, 12:], attention_mask=mask, **{CACHE: cache})
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    with pytest.raises(RuntimeError, match="padding between the tokens of a row"):
        compiled(ids, attention_mask=mask, use_cache=False)
    mask[1, :12], mask[0, 20:] = 0, 0
    model(ids, attention_mask=mask)
    use_pattern(model, "window(left=4)", native_window="replace")
    mask[1, 3] = 1
    model(ids, attention_mask=mask)


def test_router_logits_are_returned_with_a_pattern() -> None:
    model = native_models.build("gpt_oss")
    assert model is not None
    tokens = torch.arange(12)[None] % model.config.vocab_size
    expected = model.eval()(tokens, output_router_logits=True)
    given = use_pattern(model)(tokens, output_router_logits=True)
    torch.testing.assert_close(given.router_logits, expected.router_logits)
    torch.testing.assert_close(given.aux_loss, expected.aux_loss)
