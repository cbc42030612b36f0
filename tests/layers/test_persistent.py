"""The all-attention layer against its formulas, written densely, one head at a time, in float64."""

import math
import subprocess
import sys

import pytest
import torch
from oracle import Rule, picture, rule
from plans import PEAK, needs_proc
from refusals import refusing
from torch import nn

from asterism.errors import ConfigurationError, KernelError
from asterism.layers import (
    AdaptiveSpan,
    AllAttentionBlock,
    PersistentAttention,
    RelativePositions,
    SparseAttention,
    initialise,
    rows_of,
)
from asterism.layers.rows.here import RowsHere
from asterism.models.cache.layer import PatternCacheLayer
from asterism.patterns import Pattern

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
    found = layer(hidden, rows=rows_of(hidden, **masks), **arguments)
    expected = formula(layer, hidden, allowed, **arguments)
    torch.testing.assert_close(found, expected, atol=1e-11, rtol=0)
    d_out = random(*found.shape, seed=5)
    gradients = [torch.autograd.grad(out, list(learned.values()), d_out) for out in (found, expected)]
    for name, one, other in zip(learned, *gradients, strict=True):
        assert other.abs().max() > 1e-3, name
        torch.testing.assert_close(one, other, atol=1e-10, rtol=0, msg=lambda text, name=name: f"{name}: {text}")


def dense(pattern: Rule, tokens: int = TOKENS) -> torch.Tensor:
    return torch.from_numpy(picture(pattern, tokens))[None]


@pytest.mark.parametrize("pattern", RULES, ids=str)
def test_one_softmax_over_context_and_persistent_vectors(pattern: Rule) -> None:
    check(layer_of(pattern), dense(pattern))


@pytest.mark.parametrize("vectors", [1, 2, 7, 200])
@pytest.mark.parametrize("widths", [{"query_key_dim": 12}, {"num_key_value_heads": 2}])
def test_any_number_of_vectors_and_widths(vectors: int, widths: dict) -> None:
    pattern = rule("window", left=3)
    check(layer_of(pattern, vectors, **widths), dense(pattern))


@pytest.mark.parametrize("pattern", CAUSAL, ids=str)
@pytest.mark.parametrize(
    "options",
    [{"relative_positions": True}, {"adaptive_span_ramp": 3}, {"relative_positions": True, "adaptive_span_ramp": 4}],
    ids=("relative", "adaptive", "both"),
)
def test_scores_by_distance(pattern: Rule, options: dict) -> None:
    check(layer_of(pattern, span=9, **options), dense(pattern))


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
    together = layer(hidden, rows=rows_of(hidden, lengths=lengths), **arguments)
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
    clean = layer(hidden, rows=rows_of(hidden, key_mask=key_mask), **arguments)[:, :15]
    hidden[:, 15:] = math.nan
    assert torch.equal(layer(hidden, rows=rows_of(hidden, key_mask=key_mask), **arguments)[:, :15], clean)


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
        assert all(len(kept) <= options["span"] for kept in cache.kept().values())


def test_a_cache_without_the_span_is_refused() -> None:
    layer = layer_of(rule("causal"), span=9)
    with refusing(ConfigurationError, "cache-of-other-pattern"):
        layer(random(1, 2, HIDDEN), cache=PatternCacheLayer(SparseAttention(HIDDEN, HEADS, "causal()").pattern))


# --- the adaptive span, the initialisation, the block ----------------------------------------------------------------


def test_weights_of_the_adaptive_span_by_hand() -> None:
    """A reach of 3 with a ramp of 2: the authors' mask is 1 up to distance 4, then 1/2, then 0."""
    span = AdaptiveSpan(1, 6, 2)
    span.shares.data.fill_(0.5)
    weights = span().weights(torch.arange(8)[None, None])
    torch.testing.assert_close(weights, torch.tensor([1, 1, 1, 1, 1, 0.5, 0, 0])[None, None])


def test_shares_are_projected_after_an_update_and_the_penalty_is_the_mean_span() -> None:
    layer = layer_of(rule("causal"), span=10, adaptive_span_ramp=4)
    shares = layer.adaptive_span.shares
    shares.data = torch.tensor([-0.5, 0.25, 0.75, 1.5]).double()
    layer(random(1, 3, HIDDEN)).sum().backward()
    torch.testing.assert_close(shares.data, torch.tensor([0, 0.25, 0.75, 1]).double())
    assert layer.adaptive_span.penalty().item() == 10 * 0.5
    (gradient,) = torch.autograd.grad(layer.adaptive_span.penalty(), shares)
    torch.testing.assert_close(gradient, torch.full((4,), 10 / 4, dtype=torch.float64))


def test_a_short_span_reads_fewer_keys(monkeypatch) -> None:
    """Tiles that no head gives weight to are not computed."""
    layer = layer_of(rule("causal"), span=2000, adaptive_span_ramp=2)
    patterns_read = []
    attend = RowsHere.attend
    monkeypatch.setattr(RowsHere, "attend", lambda *x, **y: patterns_read.append(x[4]) or attend(*x, **y))
    for share in (0.1, 0.9):
        layer.adaptive_span.shares.data.fill_(share)
        layer(random(1, 3, HIDDEN))
    reached = [str(pattern) for pattern in patterns_read if isinstance(pattern, Pattern)]
    assert [text.rpartition("&")[2] for text in reached] == [" window(left=224)", " window(left=1824)"]


def test_initialisation_is_that_of_the_authors() -> None:
    torch.manual_seed(0)
    heads, vectors, width = 4, 300, 128
    layer = PersistentAttention(width, heads, "causal()", vectors, span=50, adaptive_span_ramp=8)
    table = RelativePositions(200, 32)
    model = nn.ModuleList([layer, table])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.7)
    model.apply(lambda module: initialise(module, gain=1 / math.sqrt(3), branches=100))
    spreads = {
        layer.persistent.keys: 1 / math.sqrt(width // heads),
        layer.persistent.values: 1 / math.sqrt(vectors),
        table.weight: 1.0,
        layer.query.weight: 1 / math.sqrt(3 * width),
        layer.output.weight: 1 / math.sqrt(3 * width),
    }
    for weight, spread in spreads.items():
        assert weight.std().item() == pytest.approx(spread, rel=0.02)
    assert not layer.adaptive_span.shares.any()
    assert not [name for name, _ in layer.named_parameters() if name.endswith("bias")]


def test_parameters_are_those_of_the_paper() -> None:
    """Section 5 of the paper and its scripts: 4 d^2 + 2 N d in a layer, and a norm."""
    with torch.device("meta"):
        layer = PersistentAttention(512, 8, "causal()", 2048, span=8192, adaptive_span_ramp=32)
        block = AllAttentionBlock(layer, 512)
    assert sum(x.numel() for x in block.parameters()) == 4 * 512**2 + 2 * 2048 * 512 + 2 * 512 + 8


def test_the_block_is_one_norm_over_a_sum() -> None:
    block = AllAttentionBlock(layer_of(rule("causal")), HIDDEN).double()
    hidden = random(2, 9, HIDDEN)
    summed = hidden + block.mixer(hidden)
    expected = (summed - summed.mean(-1, keepdim=True)) / (summed.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(block(hidden), expected, atol=1e-12, rtol=0)


def test_dropout_of_the_block_falls_on_the_mixer() -> None:
    block = AllAttentionBlock(layer_of(rule("causal")), HIDDEN, dropout=1.0).double()
    hidden = random(2, 9, HIDDEN)
    torch.testing.assert_close(block(hidden), block.mixer_norm(hidden))
    assert not torch.equal(block.eval()(hidden), block.mixer_norm(hidden))


# --- dtypes, memory, refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["weights", "autocast"])
@pytest.mark.parametrize("options", OPTIONS, ids=("plain", "by distance"))
def test_bfloat16(options: dict, how: str) -> None:
    """With weights of that type, and by autocast of a float32 layer: close to float64, forward and backward."""
    layer = layer_of(rule("causal"), **options)
    arguments = {"relative": random(10, HIDDEN // HEADS)} if options else {}
    hidden = random(1, TOKENS, HIDDEN)
    expected = layer(hidden, **arguments)
    expected_gradient = torch.autograd.grad(expected.sum(), layer.persistent.keys)[0]
    dtype = torch.bfloat16 if how == "weights" else torch.float32
    layer.to(dtype)
    arguments = {name: x.to(dtype) for name, x in arguments.items()}
    with torch.autocast("cpu", torch.bfloat16, enabled=how == "autocast"):
        found = layer(hidden.to(dtype), **arguments)
    gradient = torch.autograd.grad(found.sum(), layer.persistent.keys)[0]
    assert found.dtype == torch.bfloat16 and gradient.dtype == dtype
    for one, other in ((found, expected), (gradient, expected_gradient)):
        torch.testing.assert_close(one.double(), other, atol=0.03 * other.abs().max().item(), rtol=0)


MEASURE = f"""{PEAK}
import sys, torch
from asterism.layers import PersistentAttention
torch.set_num_threads(1)
options = {{"span": 128, "relative_positions": True, "adaptive_span_ramp": 32}} if sys.argv[1] == "distance" else {{}}
layer = PersistentAttention(16, 1, "window(left=128)", 64, implementation="eager", **options)
arguments = {{"relative": torch.randn(129, 16)}} if options else {{}}

def work(n):
    layer(torch.randn(1, n, 16), **arguments).sum().backward()

work(512)
before = peak()
for n in (8192, 32768):
    work(n)
    print(peak() - before)
"""


@needs_proc
@pytest.mark.parametrize("way", ["plain", "distance"])
def test_memory_grows_with_the_length(way: str) -> None:
    """At 32,768 tokens a square of booleans alone is 1 GiB. Forward and backward, in a process of their own."""
    command = [sys.executable, "-c", MEASURE, way]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    short, long = map(float, output.split())
    assert long < 300
    assert long < 4 * short * 1.5 + 64


@pytest.mark.parametrize(
    ("pattern", "options", "message"),
    [
        ("causal()", {"persistent_vectors": 0}, "persistent_vectors must be at least 1, got 0"),
        ("causal()", {"span": 0}, "span must be at least 1, got 0"),
        ("causal()", {"span": 4, "adaptive_span_ramp": 0}, "adaptive_span_ramp must be at least 1, got 0"),
        (
            "causal()",
            {"relative_positions": True},
            "relative positions need a span, the largest distance that is read",
        ),
        ("causal()", {"adaptive_span_ramp": 4}, "an adaptive span needs a span, the largest distance that is read"),
        (
            "window(left=3, right=1)",
            {"span": 4},
            "a span of 4 tokens is for causal patterns, but window(left=3, right=1) may read the future;"
            " write (window(left=3, right=1)) & causal(), or leave the span out",
        ),
    ],
)
def test_refusals_when_built(pattern: str, options: dict, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        PersistentAttention(HIDDEN, HEADS, pattern, **{"persistent_vectors": VECTORS, **options})
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("options", "table", "message"),
    [
        ({}, (10, 6), "this layer has no relative positions, but was given a table [10, 6]"),
        ({"span": 9, "relative_positions": True}, None, "relative positions need a table [10, 6], got none"),
        ({"span": 9, "relative_positions": True}, (9, 6), "relative positions need a table [10, 6], got [9, 6]"),
    ],
)
def test_refusals_of_tables(options: dict, table: tuple[int, int] | None, message: str) -> None:
    layer = layer_of(rule("causal"), **options)
    with pytest.raises(ConfigurationError) as caught:
        layer(random(1, 2, HIDDEN), relative=None if table is None else random(*table))
    assert str(caught.value) == message


def test_attention_by_distance_keeps_the_conventions_of_attend() -> None:
    """It says what it cannot differentiate, and goes through the transforms of torch.func."""
    layer = PersistentAttention(16, 2, "causal()", 3, span=5, adaptive_span_ramp=2).double()
    hidden = torch.randn(1, 7, 16, dtype=torch.float64, requires_grad=True)
    out = layer(hidden)
    (first,) = torch.autograd.grad(out.sum(), hidden, create_graph=True)
    with refusing(KernelError, "no-second-derivative"):
        torch.autograd.grad(first.square().sum(), hidden)
    layer = layer_of(rule("causal"), span=9, relative_positions=True)
    hidden, table = random(2, 7, HIDDEN), random(10, HIDDEN // HEADS)
    leaf = hidden.clone().requires_grad_()
    (expected,) = torch.autograd.grad(layer(leaf, relative=table).square().sum(), leaf)
    found = torch.func.grad(lambda x: layer(x, relative=table).square().sum())(hidden)
    torch.testing.assert_close(found, expected)
