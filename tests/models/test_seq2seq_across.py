"""Encoder-decoders whose cross attention has a pattern: what a token of the decoder reads follows from its number."""

from typing import Any

import numpy as np
import pytest
import torch
from small_models import random_tokens, seq2seq_config, small_seq2seq

from asterism import patterns
from asterism.errors import PatternError
from asterism.layers import rows_of
from asterism.layers.cross import CrossAttention
from asterism.models import AsterismForConditionalGeneration
from asterism.models.cache.source import SourceLayer

pytestmark = pytest.mark.model

CROSS: list[dict[str, Any]] = [
    {"cross_mixers": "across(window(left=3, right=2), step=2)"},
    {"cross_mixers": "interleave(across(window(left=2) | columns(5), step='3/2'), dense())"},
    {"cross_mixers": "per_head([dense(), columns(3), across(causal(), step=3), across(blocks(4), step=1)])"},
    {"cross_mixers": "across(window(left=3, right=3), step=2) | global_keys(0)", "num_key_value_heads": 2},
]


def generate(model: AsterismForConditionalGeneration, tokens: torch.Tensor, **options: Any) -> torch.Tensor:
    made = model.generate(tokens, **({"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False} | options))
    assert isinstance(made, torch.Tensor)
    return made


@pytest.mark.parametrize("fields", CROSS, ids=str)
def test_a_token_reads_what_the_pattern_says(fields: dict[str, Any]) -> None:
    """In one layer, which outputs a token of the source changes is the picture of the pattern."""
    pattern = patterns.parse_schedule(fields["cross_mixers"]).patterns[0]
    layer = CrossAttention(16, 4, pattern).double()
    hidden, source = torch.randn(2, 1, 9, 16, dtype=torch.float64).unbind()
    source = torch.cat([source, source * 0.7], dim=1)[:, :14].requires_grad_()
    out = layer(hidden, source)
    for query in range(9):
        (gradient,) = torch.autograd.grad(out[0, query].sum(), source, retain_graph=True)
        np.testing.assert_array_equal(gradient[0].any(-1), pattern.dense(9, 14, 0).any(0)[query])


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("fields", CROSS, ids=str)
def test_caches_change_nothing(fields: dict[str, Any], beams: int) -> None:
    model, tokens = small_seq2seq(**fields), random_tokens(2, 25)
    cached = generate(model, tokens, num_beams=beams)
    assert torch.equal(cached, generate(model, tokens, num_beams=beams, use_cache=False))


@pytest.mark.parametrize("fields", CROSS, ids=str)
def test_tokens_in_any_portions_give_the_same(fields: dict[str, Any]) -> None:
    """Training reads all tokens at once, generation one by one, and either may go on from where the other stopped."""
    model, source, target = small_seq2seq(**fields), random_tokens(2, 21), random_tokens(2, 13, seed=3)
    mask = torch.ones_like(source)
    mask[1, 15:] = 0
    expected = model(source, mask, decoder_input_ids=target).logits
    for portions in ([1] * 13, [5, 1, 4, 3], [12, 1]):
        cache, found, start = None, [], 0
        for count in portions:
            part = target[:, start : start + count]
            outputs = model(source, mask, decoder_input_ids=part, past_key_values=cache, use_cache=True)
            cache, start = outputs.past_key_values, start + count
            found.append(outputs.logits)
        torch.testing.assert_close(torch.cat(found, dim=1), expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("fields", CROSS, ids=str)
def test_padding_of_the_source_changes_nothing(fields: dict[str, Any], side: str) -> None:
    model, row, target = small_seq2seq(**fields), random_tokens(1, 9), random_tokens(2, 7, seed=3)
    first = 5 if side == "left" else 0
    tokens, mask = torch.zeros(2, 14, dtype=torch.int64), torch.zeros(2, 14, dtype=torch.int64)
    tokens[0], mask[0] = random_tokens(1, 14, seed=5)[0], 1
    tokens[1, first : first + 9], mask[1, first : first + 9] = row[0], 1
    together = model(tokens, mask, decoder_input_ids=target).logits[1:]
    torch.testing.assert_close(together, model(row, decoder_input_ids=target[1:]).logits, atol=1e-10, rtol=0)
    made = generate(model, tokens, attention_mask=mask)[1:]
    assert torch.equal(made, generate(model, row))


def test_a_source_that_comes_after_some_tokens() -> None:
    """The first call that a cache of the source sees may be about later tokens."""
    layer = CrossAttention(16, 4, "across(window(left=3), step=2)").double()
    hidden, source = torch.randn(1, 9, 16, dtype=torch.float64), torch.randn(1, 20, 16, dtype=torch.float64)
    found = layer(
        hidden[:, 5:], source, rows=rows_of(hidden[:, 5:], positions=torch.arange(5, 9)[None]), kept=SourceLayer()
    )
    torch.testing.assert_close(found, layer(hidden, source)[:, 5:])


def test_padding_of_the_target_changes_nothing() -> None:
    model, source, target = small_seq2seq(**CROSS[0]), random_tokens(1, 21), random_tokens(1, 6, seed=3)
    padded, mask = torch.zeros(1, 10, dtype=torch.int64), torch.zeros(1, 10, dtype=torch.int64)
    padded[:, 4:], mask[:, 4:] = target, 1
    found = model(source, decoder_input_ids=padded, decoder_attention_mask=mask).logits[:, 4:]
    torch.testing.assert_close(found, model(source, decoder_input_ids=target).logits, atol=1e-10, rtol=0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"cross_mixers": "window(left=3)"}, r"window\(left=3\) cannot be used by cross attention.*write across"),
        ({"cross_mixers": "across(bigbird(block=4), step=2)"}, r"is not prefix-stable.*use bigbird_causal"),
        ({"mixers": "across(dense(), step=2)"}, r"cannot be used by self-attention"),
        ({"decoder_mixers": "across(causal())"}, r"cannot be used by (a causal model|self-attention)"),
    ],
)
def test_patterns_in_the_wrong_place(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(PatternError, match=message):
        AsterismForConditionalGeneration(seq2seq_config(**fields))
