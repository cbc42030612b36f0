"""The all-attention layer against its formulas, written densely, one head at a time, in float64."""

import math

import pytest
import torch
from oracle import Rule, picture, rule
from torch import nn

from asterism.errors import ConfigurationError
from asterism.layers import (
    PersistentAttention,
    SparseAttention,
)
from asterism.layers import distance as distance_module
from asterism.layers.cache import PatternCacheLayer

HIDDEN, HEADS, VECTORS, TOKENS = 24, 4, 5, 23
PAST = rule("window", left=4) & ~rule("window")
"""The authors' context: earlier tokens only, so that the first token reads no key."""
RULES = [
    rule("causal"),
    rule("dense"),
    rule("window", left=3),
    rule("window", left=2, right=3),
    rule("fixed", stride=6, summary=2, heads=4),
    rule("strided", stride=5),
    PAST,
    rule("explicit", source="3:0-2;7:7;9:1,20", size=TOKENS),
]
CAUSAL = [RULES[0], RULES[2], RULES[4], RULES[5], PAST]


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def layer_of(pattern: Rule, persistent_vectors: int = VECTORS, **options) -> PersistentAttention:
    """With parameters large enough that each matters, and spans from short to long."""
    layer = PersistentAttention(HIDDEN, HEADS, pattern.text, persistent_vectors, **options).double()
    generator = torch.Generator().manual_seed(7)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.4, generator=generator)
    if layer.adaptive_span is not None:
        layer.adaptive_span.shares.data = torch.tensor([0.03, 0.31, 0.66, 0.97]).double()
    return layer


def heads_of(projection: nn.Linear, hidden: torch.Tensor, head: int, heads: int) -> torch.Tensor:
    """[B, N, D] of one head."""
    rows = projection.weight.shape[0] // heads
    return hidden @ projection.weight[head * rows : (head + 1) * rows].T


def formula(layer: PersistentAttention, hidden, allowed, relative=None) -> torch.Tensor:
    """Softmax over [context, persistent], times the soft mask, normalised again (Sukhbaatar et al. 2019 and code)."""
    tokens = hidden.shape[1]
    distances = torch.arange(tokens)[:, None] - torch.arange(tokens)
    allowed = allowed.expand(hidden.shape[0], HEADS, tokens, tokens)
    if layer.span is not None:
        allowed = allowed & (distances <= layer.span)
    shared = HEADS // layer.num_key_value_heads
    outs = []
    for head in range(HEADS):
        q = heads_of(layer.query, hidden, head, HEADS)
        k = heads_of(layer.key, hidden, head // shared, layer.num_key_value_heads)
        v = heads_of(layer.value, hidden, head // shared, layer.num_key_value_heads)
        keys, values = layer.persistent.keys[head], layer.persistent.values[head]
        context = q @ k.transpose(1, 2)
        if relative is not None:
            near = distances.clamp(0, layer.span)
            context = context + torch.einsum("bnd,nmd->bnm", q, relative[near])
        context = context.masked_fill(~allowed[:, head], -math.inf)
        scores = torch.cat([context, q @ (keys * math.sqrt(q.shape[-1])).T], dim=-1) / math.sqrt(q.shape[-1])
        weights = scores.softmax(-1)
        if layer.adaptive_span is not None:
            reach = layer.adaptive_span.shares[head] * layer.span
            soft = ((1 - distances + reach) / layer.adaptive_span.ramp + 1).clamp(0, 1)
            weights = torch.cat([weights[..., :tokens] * soft, weights[..., tokens:]], dim=-1)
            weights = weights / weights.sum(-1, keepdim=True)
        outs.append(weights[..., :tokens] @ v + weights[..., tokens:] @ values * math.sqrt(len(values)))
    return torch.cat(outs, dim=-1) @ layer.output.weight.T


def check(layer: PersistentAttention, allowed: torch.Tensor, *, tokens: int = TOKENS, **masks) -> None:
    """The output and the gradients of everything that is learned."""
    hidden = random(2, tokens, HIDDEN).requires_grad_()
    learned = {"hidden": hidden, **dict(layer.named_parameters())}
    arguments = {}
    if layer.relative_positions:
        head_dim = layer.query.out_features // HEADS
        arguments["relative"] = learned["relative"] = random(layer.span + 1, head_dim, seed=3).requires_grad_()
    found = layer(hidden, **masks, **arguments)
    expected = formula(layer, hidden, allowed, **arguments)
    torch.testing.assert_close(found, expected, atol=1e-11, rtol=0)
    d_out = random(*found.shape, seed=5)
    gradients = [torch.autograd.grad(out, list(learned.values()), d_out) for out in (found, expected)]
    for name, one, other in zip(learned, *gradients, strict=True):
        assert other.abs().max() > 1e-3, name
        torch.testing.assert_close(one, other, atol=1e-10, rtol=0, msg=lambda text, name=name: f"{name}: {text}")


def dense(pattern: Rule, tokens: int = TOKENS) -> torch.Tensor:
    return torch.from_numpy(picture(pattern, tokens))[None]


@pytest.fixture(params=["one block", "small blocks"])
def blocks(request, monkeypatch) -> None:
    """Where distance changes the scores: all queries at once, or a few."""
    if request.param == "small blocks":
        monkeypatch.setattr(distance_module, "_MOST_QUERIES", 6)
        monkeypatch.setattr(distance_module, "_FEWEST_QUERIES", 1)


@pytest.mark.parametrize("pattern", RULES, ids=str)
def test_one_softmax_over_context_and_persistent_vectors(pattern: Rule) -> None:
    check(layer_of(pattern), dense(pattern))


@pytest.mark.parametrize("vectors", [1, 2, 7, 200])
@pytest.mark.parametrize("widths", [{"query_key_dim": 12}, {"num_key_value_heads": 2}])
def test_any_number_of_vectors_and_widths(vectors: int, widths: dict) -> None:
    pattern = rule("window", left=3)
    check(layer_of(pattern, vectors, **widths), dense(pattern))


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("pattern", CAUSAL, ids=str)
@pytest.mark.parametrize(
    "options",
    [{"relative_positions": True}, {"adaptive_span_ramp": 3}, {"relative_positions": True, "adaptive_span_ramp": 4}],
    ids=("relative", "adaptive", "both"),
)
def test_scores_by_distance(pattern: Rule, options: dict) -> None:
    check(layer_of(pattern, span=9, **options), dense(pattern))


@pytest.mark.usefixtures("blocks")
def test_scores_by_distance_with_shared_heads_and_narrow_queries_beyond_the_sequence() -> None:
    pattern = rule("strided", stride=5)
    layer = layer_of(
        pattern, span=50, relative_positions=True, adaptive_span_ramp=8, num_key_value_heads=2, query_key_dim=12
    )
    check(layer, dense(pattern))


def test_a_span_alone_limits_the_reach() -> None:
    check(layer_of(rule("causal"), span=4), dense(rule("causal")))


OPTIONS = [{}, {"span": 9, "relative_positions": True, "adaptive_span_ramp": 4}]


@pytest.mark.parametrize("options", OPTIONS, ids=("plain", "by distance"))
@pytest.mark.usefixtures("blocks")
def test_padding_and_segments(options: dict) -> None:
    pattern = rule("causal")
    key_mask = torch.rand((2, TOKENS), generator=torch.Generator().manual_seed(1)) < 0.7
    segments = torch.arange(TOKENS).expand(2, -1) // torch.tensor([[7], [4]])
    check(layer_of(pattern, **options), dense(pattern) & key_mask[:, None, None, :], key_mask=key_mask)
    own = (segments[:, :, None] == segments[:, None, :])[:, None]
    check(layer_of(pattern, **options), dense(pattern) & own, segments=segments)


@pytest.mark.parametrize("options", OPTIONS, ids=("plain", "by distance"))
def test_rows_of_their_own_length(options: dict) -> None:
    layer = layer_of(rule("causal"), **options)
    arguments = {"relative": random(10, HIDDEN // HEADS)} if options else {}
    hidden = random(3, TOKENS, HIDDEN)
    lengths = [11, TOKENS, 11]
    together = layer(hidden, lengths=lengths, **arguments)
    for row, length in enumerate(lengths):
        alone = layer(hidden[row : row + 1, :length], **arguments)
        torch.testing.assert_close(together[row : row + 1, :length], alone, atol=1e-12, rtol=0)


@pytest.mark.parametrize("options", OPTIONS, ids=("plain", "by distance"))
def test_what_unread_keys_hold_changes_nothing(options: dict) -> None:
    layer = layer_of(rule("causal"), **options)
    arguments = {"relative": random(10, HIDDEN // HEADS)} if options else {}
    key_mask = torch.ones(1, TOKENS, dtype=torch.bool)
    key_mask[:, 15:] = False
    hidden = random(1, TOKENS, HIDDEN)
    clean = layer(hidden, key_mask=key_mask, **arguments)[:, :15]
    hidden[:, 15:] = math.nan
    assert torch.equal(layer(hidden, key_mask=key_mask, **arguments)[:, :15], clean)


@pytest.mark.parametrize("chunk", [1, 5])
@pytest.mark.parametrize("options", OPTIONS, ids=("plain", "by distance"))
@pytest.mark.parametrize("pattern", CAUSAL, ids=str)
def test_step_by_step_equals_all_at_once(pattern: Rule, options: dict, chunk: int) -> None:
    layer = layer_of(pattern, **options).requires_grad_(False)
    arguments = {"relative": random(10, HIDDEN // HEADS)} if options else {}
    hidden = random(2, TOKENS, HIDDEN)
    cache = PatternCacheLayer(layer.pattern)
    steps = [layer(part, cache=cache, **arguments) for part in hidden.split(chunk, dim=1)]
    torch.testing.assert_close(torch.cat(steps, dim=1), layer(hidden, **arguments), atol=1e-12, rtol=0)
    if options:
        assert cache.keys.shape[2] <= options["span"]


def test_a_cache_without_the_span_is_refused() -> None:
    layer = layer_of(rule("causal"), span=9)
    with pytest.raises(ConfigurationError, match="the cache forgets by"):
        layer(random(1, 2, HIDDEN), cache=PatternCacheLayer(SparseAttention(HIDDEN, HEADS, "causal()").pattern))
