"""Models as users meet them: generation, and padding."""

import pytest
import torch
from refusals import refusing
from small_models import CAUSAL_MIXERS, random_tokens, small_model
from torch import nn

from asterism.errors import ConfigurationError
from asterism.layers.rows.padding import Packing
from asterism.models import AsterismConfig, AsterismForCausalLM
from asterism.models.cache.cache import PatternCache

# --- generation ------------------------------------------------------------------------------------------------------

MODES = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True, "temperature": 1.3, "top_k": 12},
    "beam": {"do_sample": False, "num_beams": 3},
    "beam sampling": {"do_sample": True, "num_beams": 2, "num_return_sequences": 2},
}


def generate(model: AsterismForCausalLM, tokens: torch.Tensor, **options) -> torch.Tensor:
    torch.manual_seed(7)
    return model.generate(tokens, max_new_tokens=24, **options)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "mixers",
    ["fixed(stride=8, summary=2)", "window(left=5)", "strided(stride=6)", CAUSAL_MIXERS[-2], CAUSAL_MIXERS[-1]],
)
def test_generation_with_cache_equals_generation_without(mixers: str, mode: str) -> None:
    model, tokens = small_model(mixers), random_tokens(2, 13)
    cached = generate(model, tokens, **MODES[mode])
    assert torch.equal(cached, generate(model, tokens, use_cache=False, **MODES[mode]))
    assert torch.equal(cached[::2][:, :13] if len(cached) == 4 else cached[:, :13], tokens)
    assert len(set(cached[0, 13:].tolist())) > 2


def test_generation_returns_and_continues_a_pattern_cache() -> None:
    model, tokens = small_model(), random_tokens(1, 10)
    first = model.generate(tokens, max_new_tokens=8, do_sample=False, return_dict_in_generate=True)
    assert first.past_key_values.get_seq_length() == 17
    more = model.generate(first.sequences, past_key_values=first.past_key_values, max_new_tokens=8, do_sample=False)
    assert torch.equal(more, model.generate(tokens, max_new_tokens=16, do_sample=False))
    own = PatternCache(model.config)
    assert torch.equal(more, model.generate(tokens, max_new_tokens=16, do_sample=False, past_key_values=own))
    assert own.get_seq_length() == 25


def test_generation_prefills_in_chunks_and_from_embeddings() -> None:
    model, tokens = small_model(), random_tokens(2, 21)
    expected = generate(model, tokens, do_sample=False)
    assert torch.equal(generate(model, tokens, do_sample=False, prefill_chunk_size=8), expected)
    embeddings = model.get_input_embeddings()(tokens)
    generated = model.generate(inputs_embeds=embeddings, max_new_tokens=24, do_sample=False)
    assert torch.equal(generated, expected[:, 21:])


def test_generation_refuses_caches_it_would_have_to_ignore() -> None:
    model, tokens = small_model(), random_tokens(1, 10)
    for implementation in ("static", "offloaded"):
        with refusing(ConfigurationError, "foreign-cache"):
            generate(model, tokens, cache_implementation=implementation)


@pytest.mark.parametrize("mixers", ["fixed(stride=8, summary=2)", "sinks(first=2, window=6)", *CAUSAL_MIXERS[-2:]])
def test_assisted_generation_equals_plain_generation(mixers: str) -> None:
    """Guesses are taken back where they were wrong: some of the prompt's repetitions, and some of an assistant."""
    model, assistant = small_model(mixers), small_model(mixers)
    for parameter in assistant.parameters():
        parameter.data.add_(0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    tokens = random_tokens(1, 6).repeat(1, 4)
    expected = generate(model, tokens, do_sample=False)
    assert torch.equal(generate(model, tokens, do_sample=False, prompt_lookup_num_tokens=5), expected)
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    assert torch.equal(generate(model, tokens, do_sample=False, assistant_model=assistant), expected)
    assert 1 < len(calls) < expected.shape[1] - tokens.shape[1]


def test_generation_that_needs_more_positions_is_refused_before_it_starts() -> None:
    model, tokens = small_model(), random_tokens(2, 40)
    calls = []
    model.register_forward_pre_hook(lambda *_: calls.append(1))
    with pytest.raises(ConfigurationError) as caught:
        model.generate(tokens, max_new_tokens=26, do_sample=False)
    assert str(caught.value) == (
        "65 tokens are more than the 64 positions of this model (max_position_embeddings, position_type 'learned');"
        " shorten the input or what is to be generated"
    )
    assert not calls
    assert model.generate(tokens, max_new_tokens=25, do_sample=False).shape == (2, 65)
    with pytest.warns(UserWarning, match="model-agnostic default `max_length`"):
        assert model.generate(random_tokens(2, 60), do_sample=False).shape == (2, 64), "by default it stops at the end"
    mask = torch.ones_like(tokens)
    mask[:, :6] = 0
    assert model.generate(tokens, attention_mask=mask, max_new_tokens=31, do_sample=False).shape == (2, 71)
    with pytest.raises(ConfigurationError, match="65 tokens are more than the 64 positions"):
        model.generate(tokens, attention_mask=mask, max_new_tokens=32, do_sample=False)


def test_input_longer_than_the_positions_is_refused() -> None:
    model = small_model(position_type="factorised", position_shape=[8, 8])
    with pytest.raises(ConfigurationError, match=r"70 tokens are more than the 64 positions .* 'factorised'"):
        model(random_tokens(1, 70))
    mask = torch.ones(1, 70, dtype=torch.int64)
    mask[:, 10:16] = 0
    assert model(random_tokens(1, 70), attention_mask=mask).logits.isfinite().all()
    cache = model(random_tokens(1, 60), use_cache=True).past_key_values
    with pytest.raises(ConfigurationError, match="65 tokens are more than the 64 positions"):
        model(random_tokens(1, 5), past_key_values=cache)


def test_rotary_positions_do_not_end() -> None:
    model = small_model("sinks(first=2, window=6)", position_type="rotary")
    assert not any("positions" in name for name, _ in model.named_parameters())
    tokens = random_tokens(1, 80)
    grown = model.generate(tokens, max_new_tokens=30, do_sample=False, return_dict_in_generate=True)
    assert grown.sequences.shape == (1, 110)
    assert max(len(layer.kept()[0]) for layer in grown.past_key_values.layers) == 2 + 5


@pytest.mark.slow
def test_two_thousand_bytes_with_a_bounded_cache() -> None:
    config = AsterismConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=2048,
        mixers="fixed(stride=64, summary=4)",
    )
    torch.manual_seed(0)
    model = AsterismForCausalLM(config).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.25)
    prompt, cache, counts = torch.arange(40)[None], PatternCache(config), []
    model.register_forward_hook(lambda *_: counts.append([len(layer.kept()[0]) for layer in cache.layers]))
    options = {"max_new_tokens": 2000, "do_sample": True, "top_k": 50}
    torch.manual_seed(1)
    cached = model.generate(prompt, past_key_values=cache, **options)
    for step, layers in enumerate(counts):
        assert max(layers) <= 64 + 4 * ((40 + step) // 64)
    torch.manual_seed(1)
    assert torch.equal(cached, model.generate(prompt, use_cache=False, **options))
    assert cached.shape == (1, 2040) and len(set(cached[0].tolist())) > 50


# --- padding ---------------------------------------------------------------------------------------------------------

LENGTHS = (19, 7, 12)


def padded(side: str) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """A batch padded with a token that also occurs as text, its mask, and its rows alone."""
    rows = [random_tokens(length, seed=length) for length in LENGTHS]
    mask = torch.zeros(3, 22, dtype=torch.int64)
    for number, length in enumerate(LENGTHS):
        if side == "left":
            mask[number, -length:] = 1
        elif side == "right":
            mask[number, :length] = 1
        else:
            places = torch.randperm(22, generator=torch.Generator().manual_seed(number))[:length]
            mask[number, places] = 1
    tokens = torch.full((3, 22), 3)
    tokens[mask.bool()] = torch.cat(rows)
    return tokens, mask, rows


@pytest.mark.parametrize("side", ["left", "right", "holes"])
@pytest.mark.parametrize("text", ["fixed(stride=8, summary=2)", "sinks(first=2, window=6)", CAUSAL_MIXERS[-1]])
@pytest.mark.parametrize("position_type", ["learned", "rotary"])
def test_padding_changes_no_real_token(text: str, side: str, position_type: str) -> None:
    model = small_model(text, position_type=position_type)
    tokens, mask, rows = padded(side)
    with torch.no_grad():
        logits = model(tokens, attention_mask=mask).logits
        for number, row in enumerate(rows):
            alone = model(row[None]).logits[0]
            torch.testing.assert_close(logits[number][mask[number].bool()], alone, atol=1e-11, rtol=0)


@pytest.mark.parametrize("side", ["left", "right", "holes"])
@pytest.mark.parametrize("mode", ["greedy", "beam"])
@pytest.mark.parametrize("use_cache", [True, False])
def test_a_padded_batch_generates_what_each_row_generates_alone(side: str, mode: str, use_cache: bool) -> None:
    model = small_model("fixed(stride=8, summary=2)")
    tokens, mask, rows = padded(side)
    together = generate(model, tokens, attention_mask=mask, use_cache=use_cache, **MODES[mode])
    for number, row in enumerate(rows):
        alone = generate(model, row[None], **MODES[mode])
        assert torch.equal(together[number, 22:], alone[0, len(row) :])


@pytest.mark.parametrize("side", ["left", "right", "holes"])
def test_padding_changes_no_gradient(side: str) -> None:
    model = small_model()
    tokens, mask, rows = padded(side)
    # The sum of the losses, as transformers has it: in float32, for whatever precision the logits have.
    summed = {"num_items_in_batch": 1}
    model(tokens, attention_mask=mask, labels=tokens.masked_fill(mask == 0, -100), **summed).loss.backward()
    together = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    for row in rows:
        model(row[None], labels=row[None], **summed).loss.backward()
    if side == "holes":
        # A token behind a hole is predicted by the hole, which repeats the token before it.
        assert (mask[:, 1:] > mask[:, :-1]).any()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(together[name], parameter.grad, atol=1e-5, rtol=1e-5)


def test_packing_moves_real_tokens_to_the_front_and_back() -> None:
    mask = torch.tensor([[0, 1, 1, 0, 1], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0]]).bool()
    columns = torch.arange(15.0).view(3, 5, 1)
    packing = Packing.of(mask)
    packed = packing.pack(columns)
    assert packed[0, :3, 0].tolist() == [1, 2, 4] and packed[1, :2, 0].tolist() == [5, 6]
    assert packing.real.tolist() == [[True] * 3 + [False] * 2, [True] * 2 + [False] * 3, [False] * 5]
    assert packing.unpack(packed)[..., 0].tolist() == [[0, 1, 2, 2, 4], [5, 6, 6, 6, 6], [0, 0, 0, 0, 0]]


def test_a_mask_of_another_shape_is_refused() -> None:
    model = small_model()
    with pytest.raises(ConfigurationError) as caught:
        model(random_tokens(2, 5), attention_mask=torch.ones(2, 6))
    assert str(caught.value) == (
        "attention_mask has shape [2, 6]; 5 new tokens after 0 columns need [2, 5], 1 for tokens and 0 for padding"
    )
