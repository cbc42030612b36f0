"""Generation by encoder-decoders: what the caches give is what is given without them, in any batch."""

from typing import Any

import pytest
import torch
from refusals import refusing
from small_models import CAUSAL_MIXERS, VOCABULARY, random_tokens, small_seq2seq
from transformers import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from asterism.errors import ConfigurationError
from asterism.models import AsterismForConditionalGeneration
from asterism.models.cache.cache import PatternCache
from asterism.models.cache.source import EncoderDecoderPatternCache

pytestmark = pytest.mark.model

MODES: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True, "temperature": 1.3, "top_k": 12},
    "beams": {"do_sample": False, "num_beams": 3, "length_penalty": 2.0, "early_stopping": True},
    "beams, no repeated n-grams": {"do_sample": False, "num_beams": 4, "no_repeat_ngram_size": 2},
    "beam sampling": {"do_sample": True, "num_beams": 2, "num_return_sequences": 2},
}


def generate(model: AsterismForConditionalGeneration, tokens: torch.Tensor | None, **options: Any) -> torch.Tensor:
    torch.manual_seed(7)
    made = model.generate(tokens, **({"max_new_tokens": 14} | options))
    assert isinstance(made, torch.Tensor)
    return made


STACKS: list[dict[str, Any]] = [
    {"decoder_mixers": "window(left=5)", "block": "post_norm"},
    {"decoder_mixers": "fixed(stride=8, summary=2)", "position_type": "rotary"},
    {"decoder_mixers": CAUSAL_MIXERS[-2], "position_type": "buckets", "norm": "rms", "attention_scale": 1.0},
    {"mixers": ["fourier()", "bigbird(block=4)"], "position_type": "sinusoidal", "num_key_value_heads": 2},
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("stacks", STACKS, ids=str)
def test_generation_with_caches_equals_generation_without(stacks: dict[str, Any], mode: str) -> None:
    model, tokens = small_seq2seq(**stacks), random_tokens(2, 25)
    cached = generate(model, tokens, **MODES[mode])
    assert torch.equal(cached, generate(model, tokens, use_cache=False, **MODES[mode]))
    assert (cached[:, 0] == model.config.decoder_start_token_id).all()
    assert len(set(cached[0, 1:].tolist())) > 1


@pytest.mark.parametrize("mode", ["greedy", "beams"])
def test_no_n_gram_comes_twice(mode: str) -> None:
    model, tokens = small_seq2seq(), random_tokens(1, 13)
    made = generate(model, tokens, **MODES[mode], no_repeat_ngram_size=2, min_new_tokens=14)[0].tolist()
    assert len(set(pairs := list(zip(made, made[1:], strict=False)))) == len(pairs) == 14


def test_length_penalty_and_beams_find_likelier_texts() -> None:
    """The best of several beams is at least as likely as the greedy text of the same length."""
    model, tokens = small_seq2seq(), random_tokens(1, 13)
    fixed = {"min_new_tokens": 6, "max_new_tokens": 6}
    greedy, best = (generate(model, tokens, do_sample=False, num_beams=beams, **fixed) for beams in (1, 8))
    likelihood = [-model(tokens, decoder_input_ids=x[:, :-1], labels=x[:, 1:]).loss.item() for x in (greedy, best)]
    assert likelihood[1] >= likelihood[0] and greedy.tolist() != best.tolist()


@pytest.mark.parametrize(("side", "mode"), [("left", "greedy"), ("right", "greedy"), ("both", "beams")])
@pytest.mark.parametrize("stacks", STACKS, ids=str)
def test_a_padded_source_gives_what_it_gives_alone(stacks: dict[str, Any], mode: str, side: str) -> None:
    model, rows = small_seq2seq(**stacks), [random_tokens(n, seed=n) for n in (4, 9, 13)]
    before = {"left": lambda gap: gap, "right": lambda gap: 0, "both": lambda gap: gap // 2}[side]
    tokens, mask = torch.zeros(3, 13, dtype=torch.int64), torch.zeros(3, 13, dtype=torch.int64)
    for number, row in enumerate(rows):
        first = before(13 - len(row))
        tokens[number, first : first + len(row)] = row
        mask[number, first : first + len(row)] = 1
    together = generate(model, tokens, attention_mask=mask, **MODES[mode])
    for number, row in enumerate(rows):
        alone = generate(model, row[None], **MODES[mode])[0]
        assert together[number, : len(alone)].tolist() == alone.tolist()
        assert set(together[number, len(alone) :].tolist()) <= {0, 2}, "transformers fills rows of beams with the end"


def test_padded_beginnings_of_the_target() -> None:
    """Prompts of the decoder of different lengths, padded on the left as for other causal models."""
    model, tokens = small_seq2seq(), random_tokens(2, 25)
    prompts = [torch.cat([torch.ones(1, dtype=torch.int64), random_tokens(n, seed=n)]) for n in (2, 6)]
    padded, mask = torch.zeros(2, 7, dtype=torch.int64), torch.zeros(2, 7, dtype=torch.int64)
    for row, prompt in enumerate(prompts):
        padded[row, -len(prompt) :], mask[row, -len(prompt) :] = prompt, 1
    for options in ({}, {"use_cache": False}):
        parts = []
        cache = None if options else EncoderDecoderPatternCache(model.config)
        decoded = padded
        for _ in range(5):
            new = decoded if cache is None or not parts else decoded[:, -1:]
            logits = model(
                tokens, decoder_input_ids=new, decoder_attention_mask=mask, past_key_values=cache, logits_to_keep=1
            ).logits
            parts.append(logits.argmax(-1))
            decoded = torch.cat([decoded, parts[-1]], dim=1)
            mask = torch.cat([mask, torch.ones_like(parts[-1])], dim=1)
        mask = mask[:, :7]
        for row, prompt in enumerate(prompts):
            made = generate(model, tokens[row : row + 1], decoder_input_ids=prompt[None], max_new_tokens=5,
                            do_sample=False, eos_token_id=None)  # fmt: skip
            assert made[0, len(prompt) :].tolist() == decoded[row, 7:].tolist()


def test_the_encoder_runs_once_and_the_keys_of_the_source_are_computed_once() -> None:
    model, tokens = small_seq2seq(), random_tokens(2, 9)
    runs, keys = [], []
    model.model.encoder.register_forward_hook(lambda *_: runs.append(1))
    model.model.decoder.layers[0].cross_attention.key.register_forward_hook(lambda *_: keys.append(1))
    made = generate(model, tokens, num_beams=2, min_new_tokens=14, do_sample=False)
    assert made.shape[1] == 15 and runs == [1] and keys == [1]
    encoded = model.model.encoder(tokens)
    again = generate(model, None, encoder_outputs=encoded, num_beams=2, min_new_tokens=14, do_sample=False)
    assert torch.equal(made, again) and runs == [1, 1]


def test_the_cache_of_the_target_forgets_and_that_of_the_source_stays() -> None:
    model, tokens = small_seq2seq(decoder_mixers="window(left=3)"), random_tokens(2, 9)
    cache = EncoderDecoderPatternCache(model.config, restorable=2)
    sizes = []
    with torch.no_grad():
        for token in random_tokens(2, 30, seed=3).split(1, dim=1):
            model(tokens, decoder_input_ids=token, past_key_values=cache)
            sizes.append(sum(layer.nbytes for layer in cache.self_attention_cache.layers))
    assert cache.get_seq_length() == 30 and cache.cross_attention_cache.get_seq_length() == 9
    assert sizes[-1] == sizes[10] and cache.self_attention_cache.layers[0].kept() == dict.fromkeys(
        range(4), [27, 28, 29]
    )


def test_beams_of_one_source_leave_its_keys_where_they_are() -> None:
    model = small_seq2seq()
    cache = EncoderDecoderPatternCache(model.config, beams=2)
    model(random_tokens(4, 9), decoder_input_ids=random_tokens(4, 3), past_key_values=cache)
    layer = cache.cross_attention_cache.layers[0]
    before = layer.keys
    cache.reorder_cache(torch.tensor([1, 1, 2, 3]))
    assert layer.keys is before
    cache.reorder_cache(torch.tensor([2, 1, 0, 3]))
    assert torch.equal(layer.keys, before[[2, 1, 0, 3]])


@torch.no_grad()
def test_rows_of_a_cache_are_repeated_and_chosen() -> None:
    """Copies stand next to each other, as transformers expands rows; what is read of the source goes with its row."""
    model, source, target = small_seq2seq(), random_tokens(2, 9), random_tokens(2, 8, seed=2)
    expected, cache = model(source, decoder_input_ids=target).logits, EncoderDecoderPatternCache(model.config)
    model(source, decoder_input_ids=target[:, :6], past_key_values=cache)
    cache.batch_repeat_interleave(2)
    rows = torch.tensor([0, 0, 1, 1])
    for column in (6, 7):
        logits = model(decoder_input_ids=target[rows, column, None], past_key_values=cache).logits[:, 0]
        torch.testing.assert_close(logits, expected[rows, column], atol=1e-10, rtol=0)
        if column == 6:
            cache.batch_select_indices(torch.tensor([3, 0]))
            rows = rows[[3, 0]]


def test_the_caches_that_transformers_makes_are_filled_in_place() -> None:
    model, tokens = small_seq2seq(), random_tokens(2, 9)
    given = EncoderDecoderCache(DynamicCache(), DynamicCache())
    target = random_tokens(2, 6, seed=2)
    with torch.no_grad():
        whole = model(tokens, decoder_input_ids=target).logits
        first = model(tokens, decoder_input_ids=target[:, :4], past_key_values=given)
        rest = model(decoder_input_ids=target[:, 4:], past_key_values=given)
    assert first.past_key_values is given and given.get_seq_length() == 6
    torch.testing.assert_close(torch.cat([first.logits, rest.logits], dim=1), whole, atol=1e-12, rtol=1e-9)


def test_caches_that_have_no_place_for_a_source_are_refused() -> None:
    model, tokens = small_seq2seq(), random_tokens(1, 9)
    for cache in (DynamicCache(), PatternCache(model.config.decoder_config())):
        with refusing(ConfigurationError, "foreign-cache"):
            model(tokens, decoder_input_ids=tokens, past_key_values=cache)
    filled = EncoderDecoderCache(DynamicCache(), DynamicCache())
    for cache in (filled.self_attention_cache, filled.cross_attention_cache):
        cache.update(torch.zeros(1, 4, 9, 8), torch.zeros(1, 4, 9, 8), 0)
    with refusing(ConfigurationError, "source-not-filled"):
        model(tokens, decoder_input_ids=tokens, past_key_values=filled)
    for implementation in ("static", "offloaded"):
        with refusing(ConfigurationError, "source-not-filled"):
            generate(model, tokens, cache_implementation=implementation)


def test_assisted_generation_takes_wrong_guesses_back() -> None:
    model, assistant = small_seq2seq(), small_seq2seq()
    for parameter in assistant.parameters():
        parameter.data.add_(0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    tokens = random_tokens(1, 9)
    expected = generate(model, tokens, do_sample=False)
    calls: list[int] = []
    model.register_forward_hook(lambda *_: calls.append(1))
    assert torch.equal(generate(model, tokens, do_sample=False, assistant_model=assistant), expected)
    assert 1 < len(calls) < expected.shape[1]


def test_a_target_that_needs_more_positions_is_refused_before_it_starts() -> None:
    model = small_seq2seq(decoder_max_position_embeddings=8)
    runs = []
    model.model.decoder.register_forward_hook(lambda *_: runs.append(1))
    assert generate(model, random_tokens(1, 40), max_new_tokens=8, min_new_tokens=8).shape == (1, 9)
    runs.clear()
    with pytest.raises(ConfigurationError, match="9 tokens are more than the 8 positions of this model"):
        generate(model, random_tokens(1, 40), max_new_tokens=9)
    assert not runs


def test_one_batch_or_many() -> None:
    """What a row gives is the same beside any other rows, logits included."""
    model = small_seq2seq(decoder_mixers="fixed(stride=8, summary=2)", mixers="bigbird(block=4)")
    tokens, target = random_tokens(3, 11), random_tokens(3, 6, seed=2)
    mask = torch.ones(3, 11, dtype=torch.int64)
    mask[1, 6:] = 0
    together = model(tokens, mask, decoder_input_ids=target).logits
    for row in range(3):
        real = mask[row].bool()
        alone = model(tokens[row : row + 1, real], decoder_input_ids=target[row : row + 1]).logits
        torch.testing.assert_close(together[row : row + 1], alone, atol=1e-11, rtol=1e-9)


def test_states_of_an_encoder_of_any_kind_are_read() -> None:
    model, tokens = small_seq2seq(), random_tokens(2, 9)
    states = model.model.encoder(tokens).last_hidden_state
    expected = model(tokens, decoder_input_ids=tokens).logits
    for outputs in (BaseModelOutput(last_hidden_state=states), (states,)):
        assert torch.equal(model(encoder_outputs=outputs, decoder_input_ids=tokens).logits, expected)
    assert expected.shape[-1] == VOCABULARY
