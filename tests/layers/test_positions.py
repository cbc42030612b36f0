"""Positions of published encoder-decoders, against the code that published them."""

import math

import pytest
import torch
from transformers.models.pegasus.modeling_pegasus import PegasusSinusoidalPositionalEmbedding
from transformers.models.t5.modeling_t5 import T5Attention

from asterism.layers import BucketedPositions, SinusoidalPositions, SparseAttention, rows_of
from asterism.patterns import parse

pytestmark = pytest.mark.model


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("width", [8, 7])
def test_sinusoidal_positions_are_those_of_pegasus(width: int) -> None:
    table = PegasusSinusoidalPositionalEmbedding(50, width).create_weight()
    found = SinusoidalPositions(width)(torch.arange(50))
    torch.testing.assert_close(found, table, atol=6e-8, rtol=0)  # one rounding to float32
    far = SinusoidalPositions(width)(torch.tensor([10**6]))
    assert far[0, 0].item() == pytest.approx(math.sin(10**6), abs=1e-6)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("pattern", ["causal()", "split_heads(window(left=9), causal(), heads=4)"])
def test_attention_with_buckets_and_a_scale_is_that_of_t5(pattern: str, bidirectional: bool) -> None:
    """The bias of T5's own code, for values of another width than the hidden states."""
    layer = SparseAttention(24, 4, pattern, query_key_dim=16, value_dim=32, scale=1.0, bias=False).double()
    table = BucketedPositions(8, 4, max_distance=20, bidirectional=bidirectional).double()
    hidden, tokens = random(2, 30, 24), torch.arange(30)
    relative = tokens[None, :] - tokens[:, None]
    buckets = T5Attention._relative_position_bucket(relative, bidirectional, 8, 20)
    q, k, v = (part(hidden).unflatten(-1, (4, -1)).transpose(1, 2) for part in (layer.query, layer.key, layer.value))
    allowed = torch.from_numpy(parse(pattern).dense(30))
    scores = q @ k.mT + table.weight[buckets].permute(2, 0, 1)
    mixed = scores.masked_fill(~allowed, -math.inf).softmax(-1) @ v
    expected = layer.output(mixed.transpose(1, 2).flatten(2))
    torch.testing.assert_close(layer(hidden, bias=table()), expected, atol=1e-11, rtol=0)
    lengths = [30, 21]  # rows under their own lengths, laid end to end
    padded = layer(hidden, bias=table(), rows=rows_of(hidden, lengths=lengths))
    torch.testing.assert_close(padded[1:, :21], layer(hidden[1:, :21], bias=table()), atol=1e-11, rtol=0)
