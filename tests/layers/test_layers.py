"""Layers against their formulas: attention, positions, the residual block, and the initialisation."""

import math
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from refusals import refusing
from torch import nn

from asterism import kernels, patterns
from asterism.errors import ConfigurationError, PatternError
from asterism.kernels.reference import reference
from asterism.layers import (
    FactorisedPositions,
    FeedForward,
    GatedFeedForward,
    LearnedPositions,
    PostNormBlock,
    PreNormBlock,
    ResidualLinear,
    Rotary,
    SparseAttention,
    initialise,
    rows_of,
)
from asterism.layers.block import ACTIVATIONS


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_layers_need_no_transformers() -> None:
    code = "import sys, asterism.layers; sys.exit('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- attention -------------------------------------------------------------------------------------------------------


def by_hand(layer: SparseAttention, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    def heads(projection: nn.Linear, count: int) -> torch.Tensor:
        return torch.stack(projection(hidden).chunk(count, dim=-1), dim=1)

    q = heads(layer.query, layer.num_heads)
    k, v = heads(layer.key, layer.num_key_value_heads), heads(layer.value, layer.num_key_value_heads)
    if layer.rotary is not None:
        places = torch.arange(hidden.shape[1])[None]
        q, k = layer.rotary(q, places), layer.rotary(k, places)
    out, _ = reference(q, k, v, mask)
    return layer.output(torch.cat(out.unbind(dim=1), dim=-1))


@pytest.mark.parametrize("implementation", ["auto", "eager", "dense"])
@pytest.mark.parametrize("tokens", [1, 37])
@pytest.mark.parametrize(
    ("pattern", "options"),
    [
        ("fixed(stride=8, summary=2)", {}),
        ("fixed(stride=8, summary=2, heads=4)", {"num_key_value_heads": 2}),
        ("strided(stride=6)", {"query_key_dim": 16}),
        ("strided(stride=6)", {"query_key_dim": 16, "rotary": Rotary(theta=100.0)}),
        ("split_heads(window(left=3), dense(), heads=4)", {"num_key_value_heads": 1, "query_key_dim": 8}),
    ],
)
def test_attention_is_its_formula(pattern: str, options: dict, tokens: int, implementation: str) -> None:
    layer = SparseAttention(32, 4, pattern, implementation=implementation, **options).double()
    hidden = random(2, tokens, 32)
    mask = torch.from_numpy(patterns.parse(pattern).dense(tokens))[None]
    torch.testing.assert_close(layer(hidden), by_hand(layer, hidden, mask), atol=1e-12, rtol=0)


def test_attention_reads_no_masked_key_and_no_other_segment() -> None:
    layer = SparseAttention(32, 4, patterns.window(left=9, right=2)).double()
    hidden = random(2, 20, 32)
    mask = torch.from_numpy(layer.pattern.dense(20))[None]
    key_mask = torch.rand(2, 20, generator=torch.Generator().manual_seed(3)) < 0.7
    expected = by_hand(layer, hidden, mask & key_mask[:, None, None, :])
    torch.testing.assert_close(layer(hidden, rows=rows_of(hidden, key_mask=key_mask)), expected, atol=1e-12, rtol=0)
    segments = torch.arange(20)[None].expand(2, -1) // 6
    expected = by_hand(layer, hidden, mask & (segments[:, None, :, None] == segments[:, None, None, :]))
    torch.testing.assert_close(layer(hidden, rows=rows_of(hidden, segments=segments)), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("text", ["star_transformer()", "bigbird(block=3)", "window(left=2, right=2)"])
def test_rows_with_lengths_follow_the_pattern_at_their_own_length(text: str) -> None:
    layer = SparseAttention(32, 4, text, num_key_value_heads=2, global_projections=[1, 17]).double()
    hidden, lengths = random(5, 20, 32), [13, 20, 1, 0, 13]
    mixed = layer(hidden, rows=rows_of(hidden, lengths=lengths))
    segments = torch.zeros(5, 20, dtype=torch.int64)
    ordinary = SparseAttention(32, 4, text, num_key_value_heads=2).double()
    ordinary.load_state_dict(layer.state_dict(), strict=False)
    by_segment = ordinary(hidden, rows=rows_of(hidden, lengths=lengths, segments=segments))
    for row, length in enumerate(lengths):
        alone = hidden[row : row + 1, :length]
        if length:
            torch.testing.assert_close(mixed[row, :length], layer(alone)[0], atol=1e-12, rtol=0)
            torch.testing.assert_close(by_segment[row, :length], ordinary(alone)[0], atol=1e-12, rtol=0)


def test_rows_of_many_lengths_are_one_plan_and_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing has to be copied: the heads of a projection lie side by side, so rows are laid end to end as they
    are."""
    calls = []
    original = kernels.attend
    monkeypatch.setattr(kernels, "attend", lambda *x, **options: calls.append(x) or original(*x, **options))
    layer = SparseAttention(32, 4, "bigbird(block=3)", num_key_value_heads=2)
    hidden = random(5, 20, 32).float()
    layer(hidden, rows=rows_of(hidden, lengths=[13, 20, 1, 0, 7]))
    ((q, k, _, pattern),) = calls
    assert q.shape == (1, 4, 100, 8) and k.shape == (1, 2, 100, 8)
    assert pattern.text.endswith(", 13, -7, 20, 0, 1, -19, 0, -20, 7, -13)")
    assert q._base is not None, "a view of what was projected"


def test_global_projections_answer_with_every_key() -> None:
    layer = SparseAttention(32, 4, "window(left=2) | global_keys(7)", global_projections=[7, 0, 30]).double()
    hidden, mask = (
        random(2, 20, 32),
        torch.from_numpy(patterns.parse("window(left=2) | global_keys(7)").dense(20))[None],
    )
    key_mask = torch.rand(2, 20, generator=torch.Generator().manual_seed(3)) < 0.7
    expected = by_hand(layer, hidden, mask & key_mask[:, None, None, :])
    others = SparseAttention(32, 4, "dense()").double()
    others.query, others.key, others.value = layer.global_query, layer.global_key, layer.global_value
    others.output = layer.output
    answers = by_hand(others, hidden, torch.ones(1, 1, 20, 20, dtype=torch.bool) & key_mask[:, None, None, :])
    expected = torch.where(torch.isin(torch.arange(20), torch.tensor([0, 7]))[:, None], answers, expected)
    torch.testing.assert_close(layer(hidden, rows=rows_of(hidden, key_mask=key_mask)), expected, atol=1e-12, rtol=0)
    short = hidden[:, :5]
    away = SparseAttention(32, 4, "window(left=2)", global_projections=[9]).double()
    torch.testing.assert_close(away(short), by_hand(away, short, torch.from_numpy(away.pattern.dense(5))[None]))
    with refusing(ConfigurationError, "global-projections-segments"):
        layer(hidden, rows=rows_of(hidden, segments=torch.zeros(2, 20, dtype=torch.int64)))


def test_projections_without_bias() -> None:
    layer = SparseAttention(32, 4, "causal()", bias=False, global_projections=[0])
    assert {name.rsplit(".")[-1] for name, _ in layer.named_parameters()} == {"weight"}


def test_half_size_queries_and_keys_have_half_the_parameters() -> None:
    layer = SparseAttention(64, 2, "causal()", query_key_dim=32)
    assert [layer.query.out_features, layer.key.out_features, layer.value.out_features] == [32, 32, 64]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((30, 4, "causal()"), ConfigurationError, "hidden_size 30 cannot be divided evenly over 4 attention heads"),
        (
            (32, 4, "fixed(stride=8, heads=2)"),
            PatternError,
            "fixed(stride=8, heads=2) is for 2 heads, but the attention has 4: make them equal",
        ),
        (
            (32, 4, "across(dense(), step=2)"),
            PatternError,
            "across(dense(), step=2) cannot be used by self-attention: across(...) is for cross attention, where the"
            " queries are tokens of another sequence than the keys; use the pattern inside it",
        ),
    ],
)
def test_attention_refuses(arguments: tuple, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        SparseAttention(*arguments)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"query_key_dim": 18}, "query_key_dim 18 cannot be divided evenly over 4 attention heads"),
        ({"num_key_value_heads": 3}, "4 attention heads cannot share 3 key and value heads evenly"),
        (
            {"query_key_dim": 12, "rotary": Rotary()},
            "rotary positions turn pairs of features, but query heads are 3 wide",
        ),
        (
            {"global_projections": []},
            "global_projections must be distinct positions, counted from 0, got []",
        ),
        (
            {"global_projections": [2, 2]},
            "global_projections must be distinct positions, counted from 0, got [2, 2]",
        ),
    ],
)
def test_attention_refuses_options(options: dict, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        SparseAttention(32, 4, "causal()", **options)
    assert str(caught.value) == message


# --- positions -------------------------------------------------------------------------------------------------------


def test_learned_positions_look_up_one_row() -> None:
    table = LearnedPositions(50, 8)
    places = torch.tensor([[0, 7, 49]])
    torch.testing.assert_close(table(places), table.weight[places])


@pytest.mark.parametrize("shape", [(5,), (4, 6), (3, 4, 5)])
def test_factorised_positions_add_one_row_per_axis(shape: tuple[int, ...]) -> None:
    table = FactorisedPositions(shape, 8)
    assert table.capacity == math.prod(shape)
    places = torch.arange(table.capacity)
    rows = table.weight.split(shape)
    expected = sum(
        axis[torch.from_numpy(index)] for axis, index in zip(rows, np.unravel_index(places.numpy(), shape), strict=True)
    )
    torch.testing.assert_close(table(places.view(1, -1)), expected[None])


@pytest.mark.parametrize("shape", [(), (3, 0)])
def test_factorised_positions_refuse_an_empty_axis(shape: tuple[int, ...]) -> None:
    with refusing(ConfigurationError, "position-shape"):
        FactorisedPositions(shape, 8)


def test_rotary_scores_depend_on_distance_only() -> None:
    rotary = Rotary()
    q, k = random(1, 1, 1, 16), random(1, 1, 1, 16, seed=1)

    def score(query: int, key: int) -> torch.Tensor:
        return (rotary(q, torch.tensor([[query]])) * rotary(k, torch.tensor([[key]]))).sum()

    torch.testing.assert_close(score(9, 4), score(1009, 1004))
    assert abs(score(9, 4) - score(9, 5)) > 1e-3
    torch.testing.assert_close(rotary(q, torch.zeros(1, 1, dtype=torch.int64)), q)


def test_rotary_turns_pairs_by_their_angles() -> None:
    heads = random(2, 3, 5, 6)
    places = torch.tensor([[4, 0, 1, 100, 7]])
    pairs = torch.complex(heads[..., :3], heads[..., 3:])
    angles = places[:, None, :, None] * torch.tensor([50.0 ** (-2 * j / 6) for j in range(3)], dtype=torch.float64)
    turned = pairs * torch.polar(torch.ones_like(angles), angles)
    torch.testing.assert_close(Rotary(theta=50.0)(heads, places), torch.cat([turned.real, turned.imag], dim=-1))
    assert Rotary()(heads.bfloat16(), places).dtype == torch.bfloat16


def turned_by_definition(heads: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    cosine, sine = Rotary().turns(places, heads.shape[-1], heads.dtype)
    first, second = heads.to(cosine.dtype).chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1).to(heads.dtype)


def quick_gelu_by_definition(x: torch.Tensor) -> torch.Tensor:
    return nn.functional.silu(1.702 * x) / 1.702


PLACES = torch.tensor([[4, 0, 1, 100, 7], [0, 1, 2, 3, 4]])
WRITTEN_OUT = {
    "rotary": (lambda x: Rotary()(x, PLACES), lambda x: turned_by_definition(x, PLACES)),
    "quick_gelu": (ACTIVATIONS["quick_gelu"], quick_gelu_by_definition),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch.func.jvp's own first use
@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_derivatives_that_are_written_out(name: str) -> None:
    """First and second, forward mode, mapped and compiled: what PyTorch derives from the definition."""
    function, definition = WRITTEN_OUT[name]
    x, tangent = random(2, 3, 5, 6).requires_grad_(), random(2, 3, 5, 6, seed=1)
    assert torch.autograd.gradcheck(function, x, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, x)
    expected = torch.func.jvp(definition, (x,), (tangent,))
    torch.testing.assert_close(torch.func.jvp(function, (x,), (tangent,)), expected)
    stacked = torch.stack([x.detach(), tangent])
    torch.testing.assert_close(torch.func.vmap(function)(stacked), torch.stack([definition(one) for one in stacked]))
    mapped = torch.func.vmap(torch.func.grad(lambda one: function(one).square().sum()))(stacked)
    torch.testing.assert_close(mapped[1], torch.func.grad(lambda one: definition(one).square().sum())(tangent))
    torch.compiler.reset()
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), definition(x))


@pytest.mark.parametrize("name", WRITTEN_OUT)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_written_out_derivatives_round_no_more_than_those_of_pytorch(name: str, dtype: torch.dtype) -> None:
    """Output and gradient are as near to those in float64 as what PyTorch makes of the definition in the same dtype."""
    function, definition = WRITTEN_OUT[name]
    x, gradient = (random(2, 3, 5, 64, seed=seed).to(dtype) for seed in (0, 1))
    exact = _with_gradient(definition, x.double(), gradient.double())
    ours, theirs = (_with_gradient(one, x, gradient) for one in (function, definition))
    for found, plain, wanted in zip(ours, theirs, exact, strict=True):
        assert found.dtype == dtype
        assert (found - wanted).norm() <= 1.3 * (plain - wanted).norm() + 1e-7 * wanted.norm()


def _with_gradient(
    function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, gradient: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    leaf = x.clone().requires_grad_()
    out = function(leaf)
    out.backward(gradient)
    assert leaf.grad is not None
    return out.detach(), leaf.grad


def test_no_projection_casts_for_itself_under_autocast() -> None:
    """Queries, keys and values read one tensor in bfloat16, and its gradient is summed once."""
    seen = []
    layer = SparseAttention(16, 2, "causal()")
    for projection in (layer.query, layer.key, layer.value):
        projection.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.autocast("cpu", torch.bfloat16):
        layer(torch.randn(1, 6, 16))
    assert seen[0].dtype == torch.bfloat16 and all(one is seen[0] for one in seen)


# --- the block -------------------------------------------------------------------------------------------------------


def test_block_is_the_formula_of_the_paper() -> None:
    block = PreNormBlock(SparseAttention(16, 2, "causal()"), 16, 24).double().eval()
    hidden = random(2, 9, 16)
    a = block.mixer(block.mixer_norm(hidden))
    x = block.feed_forward.up_proj(block.feed_forward_norm(hidden + a))
    b = block.feed_forward.down_proj(x * torch.sigmoid(1.702 * x))
    torch.testing.assert_close(block(hidden), hidden + a + b, atol=1e-12, rtol=0)


@pytest.mark.parametrize("activation", ["gelu", "gelu_new"])
def test_block_with_the_norm_last_is_that_of_bert(activation: str) -> None:
    feed_forward = FeedForward(16, 24, activation)
    block = PostNormBlock(SparseAttention(16, 2, "dense()"), 16, feed_forward).double().eval()
    for norm in (block.mixer_norm, block.feed_forward_norm):
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    hidden = random(2, 9, 16)
    h = block.mixer_norm(hidden + block.mixer(hidden))
    x = block.feed_forward.up_proj(h)
    curve = torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)) if activation == "gelu_new" else None
    x = 0.5 * x * (1 + (torch.erf(x / math.sqrt(2)) if curve is None else curve))
    expected = block.feed_forward_norm(h + block.feed_forward.down_proj(x))
    torch.testing.assert_close(block(hidden), expected, atol=1e-12, rtol=0)


def test_dropout_is_at_the_end_of_each_branch_and_in_training_only() -> None:
    block = PreNormBlock(SparseAttention(16, 2, "causal()"), 16, 64, dropout=0.9)
    places = [name for name, module in block.named_modules() if isinstance(module, nn.Dropout)]
    assert places == ["dropout"]
    hidden = random(4, 30, 16).float()
    torch.manual_seed(0)
    # A token passes untouched only where both branches are dropped: 0.9 * 0.9 of the features.
    untouched = (block(hidden) == hidden).double().mean().item()
    assert untouched == pytest.approx(0.81, abs=0.03)
    assert torch.equal(block.eval()(hidden), block(hidden))


@pytest.mark.parametrize("kind", [PreNormBlock, PostNormBlock])
def test_a_block_has_no_feed_forward_layer_only_where_that_is_said(kind: type[PreNormBlock]) -> None:
    with pytest.raises(TypeError, match="feed_forward"):
        kind(SparseAttention(16, 2, "causal()"), 16)  # type: ignore[call-arg]
    assert kind(SparseAttention(16, 2, "causal()"), 16, None).feed_forward is None


def test_quick_gelu_is_x_sigmoid_of_1702_x() -> None:
    x = torch.linspace(-20, 20, 401, dtype=torch.float64)
    torch.testing.assert_close(ACTIVATIONS["quick_gelu"](x), x * torch.sigmoid(1.702 * x), atol=1e-14, rtol=1e-12)


def test_unknown_activation_names_the_nearest() -> None:
    with pytest.raises(ConfigurationError) as caught:
        FeedForward(8, 8, "quickgelu")
    assert str(caught.value) == (
        "unknown activation 'quickgelu'; known are quick_gelu, gelu, gelu_new, relu, silu. Did you mean 'quick_gelu'?"
    )


def test_a_gated_feed_forward_layer_is_its_formula() -> None:
    layer = GatedFeedForward(16, 24, "gelu_new", bias=False).double()
    assert not [name for name, _ in layer.named_parameters() if "bias" in name]
    x = random(2, 9, 16).requires_grad_()
    gate = nn.functional.gelu(x @ layer.gate_proj.weight.T, approximate="tanh")
    expected = (gate * (x @ layer.up_proj.weight.T)) @ layer.down_proj.weight.T
    found = layer(x)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
    weights = random(2, 9, 16)
    inputs = (x, *layer.parameters())
    for ours, theirs in zip(
        torch.autograd.grad((found * weights).sum(), inputs),
        torch.autograd.grad((expected * weights).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)


def test_a_block_with_rms_norms() -> None:
    block = PreNormBlock(SparseAttention(16, 2, "causal()"), 16, 24, norm="rms", layer_norm_eps=1e-3).double()
    assert [name for name, _ in block.named_parameters() if "norm" in name] == [
        "mixer_norm.weight",
        "feed_forward_norm.weight",
    ]
    hidden = random(2, 9, 16)
    scaled = hidden / (hidden.square().mean(-1, keepdim=True) + 1e-3).sqrt() * block.mixer_norm.weight
    torch.testing.assert_close(block.mixer_norm(hidden), scaled, atol=1e-12, rtol=0)


# --- initialisation --------------------------------------------------------------------------------------------------


def test_initialisation_of_section_5_3() -> None:
    torch.manual_seed(0)
    width, inside, depth, gain = 256, 512, 8, 0.125
    block = PreNormBlock(SparseAttention(width, 4, "causal()"), width, inside)
    embedding, positions = nn.Embedding(300, width), FactorisedPositions((40, 50), width)
    model = nn.ModuleList([block, embedding, positions])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(7.0)
    model.apply(lambda module: initialise(module, gain=gain, branches=2 * depth))

    branch = 1 / math.sqrt(2 * depth)
    spreads = {
        block.mixer.query.weight: gain / math.sqrt(width),
        block.mixer.key.weight: gain / math.sqrt(width),
        block.mixer.value.weight: gain / math.sqrt(width),
        block.mixer.output.weight: branch * gain / math.sqrt(width),
        block.feed_forward.up_proj.weight: gain / math.sqrt(width),
        block.feed_forward.down_proj.weight: branch * gain / math.sqrt(inside),
        embedding.weight: gain / math.sqrt(width),
        positions.weight: gain / math.sqrt(width * 2),
    }
    for weight, spread in spreads.items():
        assert weight.std().item() == pytest.approx(spread, rel=0.02)
        assert abs(weight.mean().item()) < 4 * spread / math.sqrt(weight.numel())
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.LayerNorm):
            assert not module.bias.any()
        if isinstance(module, nn.LayerNorm):
            assert (module.weight == 1).all()
    assert sum(isinstance(module, ResidualLinear) for module in model.modules()) == 2

    model.apply(lambda module: initialise(module, gain=gain, branches=2 * depth, spread=0.02))
    for weight in spreads:
        assert weight.std().item() == pytest.approx(0.02, rel=0.02)


def test_a_block_keeps_no_activations_of_its_feed_forward_part():
    """Of features times tokens: 1 + 1 around the norm, q, k, v and out 4, once more out in token order, 1 + 1, 4."""
    block = PreNormBlock(SparseAttention(32, 4, "window(left=3)", implementation="cpu"), 32, 128)
    hidden, kept = torch.randn(2, 50, 32, requires_grad=True), {}
    own = {parameter.data_ptr() for parameter in block.parameters()}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = block(hidden)
    assert sum(kept.values()) < 14 * hidden.numel() * 4
    (gradient,) = torch.autograd.grad(out.sum(), hidden)
    feed_forward = block.feed_forward
    middle = hidden + block.mixer(block.mixer_norm(hidden))
    plain = middle + feed_forward.down_proj(
        feed_forward.activation(feed_forward.up_proj(block.feed_forward_norm(middle)))
    )
    (expected,) = torch.autograd.grad(plain.sum(), hidden)
    torch.testing.assert_close(out, plain)
    torch.testing.assert_close(gradient, expected)
