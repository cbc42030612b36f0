"""Exact attention: every implementation against float64 formulas, under the conventions for what may not be read.

The tolerance is derived: against the float64 oracle an implementation may be at most twice (outputs) or three times
(gradients) as wrong as plain dense arithmetic in the same dtype, plus the rounding of the result and a floor.
Uninitialised memory holds NaN in all tests but those that compile.
"""

import math
import subprocess
import sys
from dataclasses import dataclass, replace

import numpy as np
import oracle
import pytest
import strategies
import torch
from hypothesis import assume
from hypothesis import strategies as st
from oracle import Rule, rule
from strategies import build, hold, tiers
from test_compiler import PEAK, needs_proc
from torch.utils._python_dispatch import TorchDispatchMode

from asterism import attend, patterns
from asterism.compiler.liveness import last_reader
from asterism.errors import AsterismError, KernelError, PatternError
from asterism.kernels import decode
from asterism.kernels.reference import reference

OUTPUT_FACTOR, OUTPUT_FLOOR = 2, 1e-5
GRADIENT_FACTOR, GRADIENT_FLOOR = 3, 2e-4
DOUBLE_FLOOR = 1e-9
LARGE_BATCH = 8
"""With few digits or sharp weights the error of plain arithmetic on a few numbers is luck; on many it is a measure."""
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
IMPLEMENTATIONS = ("eager", "dense", "reference", "auto")
GRADIENTS = ("dq", "dk", "dv")


@pytest.fixture(autouse=True)
def poison(monkeypatch):
    """Memory that nobody wrote holds NaN."""

    def poisoned(allocate):
        def allocate_and_poison(*arguments, **keywords):
            fresh = allocate(*arguments, **keywords)
            return fresh.fill_(math.nan) if fresh.is_floating_point() else fresh

        return allocate_and_poison

    for owner, name in (
        (torch, "empty"),
        (torch, "empty_like"),
        (torch, "empty_strided"),
        (torch.Tensor, "new_empty"),
    ):
        monkeypatch.setattr(owner, name, poisoned(getattr(owner, name)))


def test_poison_is_on():
    assert torch.empty(3).isnan().all()
    assert torch.ones(3).new_empty((2, 2)).isnan().all()
    assert torch.empty_like(torch.ones(2, dtype=torch.bfloat16)).isnan().all()


# ---------------------------------------------------------------------------------------------------------------------
# Cases.


@dataclass(frozen=True)
class Case:
    """What to attend to, with which shapes, and how the tensors lie in memory."""

    rule: Rule
    heads: int = 1
    kv_heads: int = 1
    n_queries: int = 8
    n_keys: int = 8
    offset: int | None = None
    batch: int = 2
    width: int = 4
    value_width: int = 4
    dtype: torch.dtype = torch.float64
    scale: float | None = None
    padding: bool = False
    segments: bool = False
    memory: str = "contiguous"
    magnitude: float = 1.0
    seed: int = 0

    @property
    def start(self) -> int:
        return self.n_keys - self.n_queries if self.offset is None else self.offset

    @property
    def factor(self) -> float:
        return 1 / math.sqrt(self.width) if self.scale is None else self.scale


@dataclass(frozen=True)
class Inputs:
    """The tensors of a case. `mask` bool [B, H, N, M] says it all at once, for the oracle."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    d_out: torch.Tensor
    d_lse: torch.Tensor
    mask: torch.Tensor
    keywords: dict

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [self.q, self.k, self.v]


MEMORIES = ("contiguous", "tokens first", "every other", "expanded", "one head for all")


def laid_out(shape, memory, dtype, generator, magnitude=1.0):
    """A tensor of random numbers [B, H, N, D] that lies in memory in the way named."""
    batch, heads, tokens, width = shape
    stored = {
        "contiguous": shape,
        "tokens first": (batch, tokens, heads, width),
        "every other": (batch, heads, tokens, 2 * width),
        "expanded": (1, heads, tokens, width),
        "one head for all": (batch, 1, tokens, width),
    }[memory]
    numbers = (torch.randn(stored, generator=generator, dtype=torch.float64) * magnitude).to(dtype)
    if memory == "tokens first":
        return numbers.transpose(1, 2)
    return numbers[..., ::2] if memory == "every other" else numbers.expand(shape)


def inputs_of(case: Case) -> Inputs:
    generator = torch.Generator().manual_seed(case.seed)
    queries = (case.batch, case.heads, case.n_queries, case.width)
    keys = (case.batch, case.kv_heads, case.n_keys, case.width)
    values = (*keys[:3], case.value_width)
    q = laid_out(queries, case.memory, case.dtype, generator, case.magnitude)
    k = laid_out(keys, case.memory, case.dtype, generator, case.magnitude)
    v = laid_out(values, case.memory, case.dtype, generator)
    d_out = torch.randn((*queries[:3], case.value_width), generator=generator, dtype=torch.float64).to(case.dtype)
    lse_dtype = torch.float64 if case.dtype == torch.float64 else torch.float32
    d_lse = torch.randn(queries[:3], generator=generator, dtype=lse_dtype)
    mask = torch.from_numpy(build(case.rule).dense(case.n_queries, case.n_keys, case.offset))
    mask = mask.expand(case.batch, case.heads, -1, -1).clone()
    keywords = {"query_offset": case.offset, "scale": case.scale}
    if case.padding:
        keywords["key_mask"] = torch.rand((case.batch, case.n_keys), generator=generator) < 0.7
        mask &= keywords["key_mask"][:, None, None, :]
    if case.segments:
        keywords["segments"] = torch.randint(0, 3, (case.batch, case.n_keys), generator=generator).sort(1).values
        segments = keywords["segments"]
        own = segments[:, case.start : case.start + case.n_queries]
        mask &= (own[:, :, None] == segments[:, None, :])[:, None]
    return Inputs(q, k, v, d_out, d_lse, mask, keywords)


@st.composite
def cases(draw, dtypes=DTYPES) -> Case:
    n_keys = draw(st.sampled_from((0, 1, 2, 3, 7, 13, 16, 17, 31, 33, 64, 65, 70)))
    n_queries = draw(st.one_of(st.just(n_keys), st.integers(0, n_keys)))
    offset = draw(st.one_of(st.none(), st.integers(0, n_keys - n_queries)))
    kv_heads = draw(st.sampled_from((1, 2)))
    heads = kv_heads * draw(st.sampled_from((1, 2, 3)))
    dtype = draw(st.sampled_from(dtypes))
    magnitude = draw(st.sampled_from((1.0, 5.0))) if dtype in (torch.float64, torch.float32) else 1.0
    luck = magnitude > 1 or dtype in (torch.bfloat16, torch.float16)
    return Case(
        rule=draw(strategies.rules(70, heads=heads, depth=4)),
        heads=heads,
        kv_heads=kv_heads,
        n_queries=n_queries,
        n_keys=n_keys,
        offset=offset,
        batch=LARGE_BATCH if luck else draw(st.sampled_from((1, 2))),
        width=draw(st.sampled_from((1, 3, 4, 8))),
        value_width=draw(st.sampled_from((1, 4, 5))),
        dtype=dtype,
        scale=draw(st.sampled_from((None, None, 0.0, 0.5, 2.0))),
        padding=draw(st.booleans()),
        segments=draw(st.booleans()),
        memory=draw(st.sampled_from(MEMORIES)),
        magnitude=magnitude,
        seed=draw(st.integers(0, 100)),
    )


# ---------------------------------------------------------------------------------------------------------------------
# Comparison.


Results = dict[str, torch.Tensor]


def differentiated(compute, inputs: Inputs) -> Results:
    """out, lse, dq, dk and dv of `compute(q, k, v) -> (out, lse or None)`, for the case's d_out and d_lse."""
    leaves = [x.detach().requires_grad_() for x in inputs.tensors]
    out, lse = compute(*leaves)
    results = {"out": out} if lse is None else {"out": out, "lse": lse}
    weights = [inputs.d_out, inputs.d_lse][: len(results)]
    gradients = torch.autograd.grad(list(results.values()), leaves, weights)
    return {name: x.detach() for name, x in (results | dict(zip(GRADIENTS, gradients, strict=True))).items()}


def exact(inputs: Inputs, scale: float, with_lse: bool = True) -> dict[str, np.ndarray]:
    arrays = [x.detach().double().numpy() for x in (*inputs.tensors, inputs.d_out, inputs.d_lse * with_lse)]
    mask = inputs.mask.numpy()
    out, lse = oracle.attention(*arrays[:3], mask, scale)
    gradients = oracle.attention_gradients(*arrays[:3], mask, scale, *arrays[3:])
    return {"out": out, **({"lse": lse} if with_lse else {}), **dict(zip(GRADIENTS, gradients, strict=True))}


def plain(inputs: Inputs, scale: float, with_lse: bool = True) -> Results:
    """Textbook dense attention in the dtype of the inputs."""

    def compute(q, k, v):
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
        some = inputs.mask.any(-1, keepdim=True)
        scores = (q @ k.transpose(-1, -2) * scale).masked_fill(~inputs.mask & some, -math.inf)
        lse = scores.logsumexp(-1) if scores.shape[-1] else scores.sum(-1)
        lse = lse.to(inputs.d_lse.dtype).masked_fill(~some[..., 0], -math.inf)
        return scores.softmax(-1) @ v * some, lse if with_lse else None

    return differentiated(compute, inputs)


def assert_as_good(name, found, expected, compared, dtype, rounding):
    """`found` is at most so many times as far from `expected` as `compared` is, plus the rounding and a floor."""
    factor, floor = (GRADIENT_FACTOR, GRADIENT_FLOOR) if name in GRADIENTS else (OUTPUT_FACTOR, OUTPUT_FLOOR)
    floor = DOUBLE_FLOOR if dtype == torch.float64 else floor
    found, compared = found.double().numpy(), compared.double().numpy()
    assert found.shape == expected.shape, f"{name}: shape {found.shape}, expected {expected.shape}"
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(found[~finite], expected[~finite], err_msg=name)
    assert np.isfinite(found[finite]).all(), f"{name} is not finite"
    error = np.abs(found[finite] - expected[finite]).max(initial=0)
    allowed = factor * np.abs(compared[finite] - expected[finite]).max(initial=0) + floor
    allowed += rounding
    assert error <= allowed, f"{name}: error {error:.3g}, allowed {allowed:.3g}"


def assert_all_as_good(found, expected, compared, dtype):
    """Each result is as good as plain arithmetic, up to one rounding; gradients are rounded at their common scale."""
    assert found.keys() == expected.keys() == compared.keys()
    scale = {name: np.abs(x[np.isfinite(x)]).max(initial=0) for name, x in expected.items()}
    scale |= dict.fromkeys(GRADIENTS, max(scale[name] for name in GRADIENTS))
    for name in found:
        rounding = torch.finfo(found[name].dtype).eps / 2 * scale[name]
        assert_as_good(name, found[name], expected[name], compared[name], dtype, rounding)


def assert_equal_bits(one: Results, two: Results):
    assert one.keys() == two.keys()
    for name in one:
        assert torch.equal(one[name], two[name]), name


def gives_lse(implementation: str) -> bool:
    """PyTorch's own attention does not return the log-sum-exp, and `dense` says so."""
    return implementation != "dense"


def attending(case: Case, inputs: Inputs, implementation: str, return_lse: bool = True):
    def compute(q, k, v):
        keywords = inputs.keywords | {"implementation": implementation}
        if return_lse and gives_lse(implementation):
            return attend(q, k, v, build(case.rule), **keywords, return_lse=True)
        return attend(q, k, v, build(case.rule), **keywords), None

    return compute


def check(case: Case, implementation: str, return_lse: bool = True):
    inputs = inputs_of(case)
    found = differentiated(attending(case, inputs, implementation, return_lse), inputs)
    with_lse = "lse" in found
    assert_all_as_good(found, exact(inputs, case.factor, with_lse), plain(inputs, case.factor, with_lse), case.dtype)
    assert all(found[name].dtype == case.dtype for name in ("out", *GRADIENTS))
    empty, unread = ~inputs.mask.any(-1), unread_keys(inputs)
    zeros = [found["out"][empty], found["dq"][empty], found["dk"][unread], found["dv"][unread]]
    assert not any(x.any() for x in zeros)
    if with_lse:
        assert found["lse"].dtype == inputs.d_lse.dtype
        assert (found["lse"][empty] == -math.inf).all()


def unread_keys(inputs: Inputs) -> torch.Tensor:
    """bool [B, key heads, M]: the keys that no query of their group may read."""
    batch, kv_heads, n_keys, _ = inputs.k.shape
    read = inputs.mask.any(2).reshape(batch, kv_heads, inputs.mask.shape[1] // kv_heads, n_keys)
    return ~read.any(2)


# ---------------------------------------------------------------------------------------------------------------------
# The oracle and the comparison themselves.


def test_the_oracle_by_hand():
    """Scores 0 and log 3 make weights 1/4 and 3/4; the third key may not be read, the second query reads nothing."""
    q = np.array([[[[1.0], [1.0]]]])
    k = np.array([[[[0.0], [math.log(3)], [100.0]]]])
    v = np.array([[[[4.0], [8.0], [1000.0]]]])
    mask = np.array([[[[True, True, False], [False, False, False]]]])
    out, lse = oracle.attention(q, k, v, mask, 1.0)
    np.testing.assert_allclose(out[0, 0], [[7.0], [0.0]])
    np.testing.assert_allclose(lse[0, 0], [math.log(4), -math.inf])
    d_q, d_k, d_v = oracle.attention_gradients(q, k, v, mask, 1.0, np.ones((1, 1, 2, 1)), np.zeros((1, 1, 2)))
    np.testing.assert_allclose(d_v[0, 0], [[0.25], [0.75], [0.0]])
    np.testing.assert_allclose(d_k[0, 0], [[-0.75], [0.75], [0.0]])
    np.testing.assert_allclose(d_q[0, 0], [[0.75 * math.log(3)], [0.0]])


def test_the_oracle_differentiates_itself():
    """The gradients by formula against central differences."""
    case = Case(rule("window", left=2), heads=2, n_queries=5, n_keys=5, width=3)
    inputs = inputs_of(case)
    q, k, v, d_out, d_lse = (x.numpy() for x in (*inputs.tensors, inputs.d_out, inputs.d_lse))

    def loss(*arrays):
        out, lse = oracle.attention(*arrays, inputs.mask.numpy(), 0.5)
        return (out * d_out).sum() + (lse * d_lse).sum()

    gradients = oracle.attention_gradients(q, k, v, inputs.mask.numpy(), 0.5, d_out, d_lse)
    direction = np.random.Generator(np.random.Philox(1))
    for place, gradient in enumerate(gradients):
        step = direction.standard_normal(gradient.shape)
        arrays = [[x.copy() for x in (q, k, v)] for _ in range(2)]
        arrays[0][place] += 1e-5 * step
        arrays[1][place] -= 1e-5 * step
        slope = (loss(*arrays[0]) - loss(*arrays[1])) / 2e-5
        assert slope == pytest.approx((gradient * step).sum(), rel=1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ("out", "lse", *GRADIENTS))
@pytest.mark.parametrize("damage", ("shift", "nan", "swap", "cut", "infinity"))
def test_a_planted_error_is_found(dtype, name, damage):
    inputs = inputs_of(Case(rule("strided", stride=3), n_queries=20, n_keys=20, dtype=dtype))
    expected, compared = exact(inputs, 0.5), plain(inputs, 0.5)
    assert_all_as_good(compared, expected, compared, dtype)
    found = {key: x.clone() for key, x in compared.items()}
    wrong = found[name]
    if damage == "shift":
        wrong[0, 0, 7] += 1e-7 if dtype == torch.float64 else 0.3
    elif damage == "nan":
        wrong[0, 0, 7] = math.nan
    elif damage == "infinity":
        wrong[0, 0, 7] = -math.inf
    elif damage == "swap":
        wrong[:, :, [3, 7]] = wrong[:, :, [7, 3]]
    else:
        found[name] = wrong[:, :, 1:]
    with pytest.raises(AssertionError):
        assert_all_as_good(found, expected, compared, dtype)


def test_a_wrong_pattern_is_found():
    case = Case(rule("window", left=5), n_queries=30, n_keys=30)
    inputs = inputs_of(replace(case, rule=rule("window", left=6)))
    found = differentiated(attending(case, inputs, "eager"), inputs)
    with pytest.raises(AssertionError):
        assert_all_as_good(found, exact(inputs, case.factor), plain(inputs, case.factor), case.dtype)


# ---------------------------------------------------------------------------------------------------------------------
# Generated cases.


@pytest.mark.parametrize("count", tiers(60, 1000))
def test_eager(count):
    hold(lambda case: check(case, "eager"), cases(), count)


@pytest.mark.parametrize("count", tiers(25, 300))
@pytest.mark.parametrize("implementation", ("dense", "auto", "reference"))
def test_other_implementations(implementation, count):
    hold(lambda case: check(case, implementation), cases(), count)


@pytest.mark.parametrize("count", tiers(25, 300))
@pytest.mark.parametrize("implementation", ("eager", "auto"))
def test_output_alone(implementation, count):
    """Without `return_lse` the same output and the same gradients come back."""
    hold(lambda case: check(case, implementation, return_lse=False), cases(), count)


@pytest.mark.parametrize("count", tiers(25, 300))
def test_reference(count):
    """The library's oracle against the one of the tests."""

    def law(case):
        inputs = inputs_of(case)
        found = differentiated(lambda q, k, v: reference(q, k, v, inputs.mask, case.scale), inputs)
        assert_all_as_good(found, exact(inputs, case.factor), plain(inputs, case.factor), case.dtype)

    hold(law, cases(), count)


@pytest.mark.parametrize("count", tiers(25, 300))
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_what_nobody_reads_changes_no_bit(implementation, count):
    def law(case):
        inputs = inputs_of(case)
        unread = unread_keys(inputs)
        assume(unread.any())
        bad = torch.tensor([math.nan, math.inf, -math.inf], dtype=case.dtype)
        k, v = inputs.k.clone(), inputs.v.clone()
        for x in (k, v):
            x[unread] = bad[torch.arange(unread.sum() * x.shape[-1]) % 3].reshape(-1, x.shape[-1])
        clean = replace(inputs, k=inputs.k.clone(), v=inputs.v.clone())
        poisoned = replace(inputs, k=k, v=v)
        before, after = (differentiated(attending(case, x, implementation), x) for x in (clean, poisoned))
        assert_equal_bits(before, after)

    sparse = cases().map(lambda case: replace(case, rule=case.rule & rule("columns", period=3, count=2)))
    hold(law, sparse, count)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    "text", ("fixed(8, summary=2)", "bigbird_causal(block=4)", "strided(8)", "longformer(window=6)")
)
def test_published_patterns(text, implementation):
    """Longer than a tile, in float32, with grouped queries, by its text."""
    pattern = patterns.parse(text)
    n = 150
    inputs = inputs_of(Case(rule("dense"), heads=4, kv_heads=2, n_queries=n, n_keys=n, width=16, dtype=torch.float32))
    inputs.mask[:] = torch.from_numpy(pattern.dense(n))
    found = differentiated(lambda *x: (attend(*x, text, implementation=implementation), None), inputs)
    assert_all_as_good(found, exact(inputs, 0.25, False), plain(inputs, 0.25, False), torch.float32)


def test_dense_refuses_the_log_sum_exp_with_the_reason():
    q = torch.zeros(1, 1, 4, 2)
    with pytest.raises(KernelError, match="dense.*log-sum-exp"):
        attend(q, q, q, "causal()", return_lse=True, implementation="dense")


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("shape", ((2, 0, 0), (2, 0, 5), (2, 1, 1), (0, 4, 4)))
def test_none_and_one(shape, implementation):
    batch, n_queries, n_keys = shape
    for text in ("causal()", "fixed(4)", "~dense()", "bigbird(block=4)"):
        q, k, v = (torch.randn(batch, 2, n, 3, requires_grad=True) for n in (n_queries, n_keys, n_keys))
        out = attend(q, k, v, text, implementation=implementation)
        assert out.shape == (batch, 2, n_queries, 3)
        if gives_lse(implementation):
            _, lse = attend(q, k, v, text, return_lse=True, implementation=implementation)
            assert lse.shape == (batch, 2, n_queries)
        out.sum().backward()
        assert q.grad.shape == q.shape and k.grad.shape == k.shape
        assert not any(x.isnan().any() for x in (out, q.grad, k.grad, v.grad))
        if n_keys == 1:
            assert torch.equal(out, torch.zeros_like(v) if text == "~dense()" else v.detach())


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_scale_of_zero_is_not_the_default(implementation):
    q, k, v = (torch.randn(1, 1, 9, 4, dtype=torch.float64) for _ in range(3))
    out = attend(q, k, v, "causal()", scale=0.0, implementation=implementation)
    means = v.cumsum(2) / torch.arange(1, 10)[:, None]
    torch.testing.assert_close(out, means)


@pytest.mark.parametrize("implementation", list(filter(gives_lse, IMPLEMENTATIONS)))
def test_every_pair_counts_once(implementation):
    """A union whose parts overlap everywhere: lse counts the keys."""
    q, k, v = (torch.zeros(1, 1, 70, 2, dtype=torch.float64) for _ in range(3))
    text = "window(left=9) | stride(3) & causal() | global_keys(0) & causal() | blocks(16) & causal()"
    _, lse = attend(q, k, v, text, return_lse=True, implementation=implementation)
    np.testing.assert_allclose(lse[0, 0].exp(), patterns.parse(text).dense(70)[0].sum(-1))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_huge_scores(implementation):
    """float32 scores of 1e4 and -1e4 overflow a naive exponential."""
    q = torch.full((1, 1, 40, 1), 100.0)
    k = torch.linspace(-100, 100, 40).reshape(1, 1, 40, 1)
    v = torch.arange(40.0).reshape(1, 1, 40, 1)
    torch.testing.assert_close(attend(q, k, v, "strided(4)", scale=1.0, implementation=implementation), v)
    if gives_lse(implementation):
        _, lse = attend(q, k, v, "strided(4)", scale=1.0, return_lse=True, implementation=implementation)
        torch.testing.assert_close(lse[0, 0], 100 * k[0, 0, :, 0])


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_inputs_and_gradients_given_are_left_alone(implementation):
    case = Case(rule("strided", stride=4), n_queries=30, n_keys=30, padding=True, segments=True)
    inputs = inputs_of(case)
    tensors = [*inputs.tensors, inputs.d_out, inputs.d_lse, inputs.keywords["key_mask"], inputs.keywords["segments"]]
    before = [x.clone() for x in tensors]
    differentiated(attending(case, inputs, implementation), inputs)
    assert all(torch.equal(x, y) for x, y in zip(tensors, before, strict=True))


@pytest.mark.parametrize("implementation", ("eager", "reference"))
def test_the_gradient_of_an_empty_row_is_zero_whatever_comes_from_above(implementation):
    """Merging two empty results differentiates -inf - -inf: NaN arrives, and must end there."""
    case = Case(rule("fixed", stride=4) & ~rule("global_queries", positions=(3, 4)), n_queries=9, n_keys=9)
    inputs = inputs_of(case)
    for d_empty in (0.0, math.nan, math.inf):
        d_lse = inputs.d_lse.masked_fill(~inputs.mask.any(-1), d_empty)
        found = differentiated(attending(case, inputs, implementation), replace(inputs, d_lse=d_lse))
        assert_all_as_good(found, exact(inputs, case.factor), plain(inputs, case.factor), case.dtype)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_the_same_twice(implementation):
    inputs = inputs_of(case := Case(rule("bigbird", block=4), n_queries=50, n_keys=50, dtype=torch.float32))
    assert_equal_bits(*(differentiated(attending(case, inputs, implementation), inputs) for _ in range(2)))


def test_segments_are_separate_sequences_of_the_same_positions():
    """Two documents in one row: nothing crosses the boundary, positions go on counting."""
    n, cut = 40, 17
    q, k, v = (torch.randn(1, 2, n, 4, dtype=torch.float64) for _ in range(3))
    segments = (torch.arange(n) >= cut).long()[None]
    out = attend(q, k, v, "window(left=9)", segments=segments, implementation="eager")
    alone = [x[:, :, cut:] for x in (q, k, v)]
    torch.testing.assert_close(out[:, :, :cut], attend(*(x[:, :, :cut] for x in (q, k, v)), "window(left=9)"))
    torch.testing.assert_close(out[:, :, cut:], attend(*alone, "window(left=9)"))


@pytest.mark.parametrize("dtype", (torch.int32, torch.int64, torch.uint8), ids=str)
def test_segments_of_any_integer_type(dtype):
    q, k, v = (torch.randn(1, 1, 6, 4) for _ in range(3))
    segments = torch.tensor([[0, 0, 1, 1, 1, 2]])
    expected = attend(q, k, v, "causal()", segments=segments)
    assert torch.equal(attend(q, k, v, "causal()", segments=segments.to(dtype)), expected)


# ---------------------------------------------------------------------------------------------------------------------
# Autograd and the operator.


@pytest.mark.parametrize("text", ("fixed(4, summary=2)", "bigbird(block=2)", "strided(3)", "window(left=2) | star()"))
@pytest.mark.parametrize("implementation", ("eager", "auto", "reference"))
def test_gradcheck(text, implementation):
    generator = torch.Generator().manual_seed(1)
    q, k, v = (
        torch.randn(1, heads, 11, 3, dtype=torch.float64, generator=generator, requires_grad=True)
        for heads in (2, 1, 1)
    )
    key_mask = torch.ones(1, 11, dtype=torch.bool)
    key_mask[0, 5] = False

    def compute(q, k, v):
        return attend(q, k, v, text, key_mask=key_mask, return_lse=True, implementation=implementation)

    finite = compute(q, k, v)[1].isfinite().all()
    assert torch.autograd.gradcheck(compute if finite else lambda *x: compute(*x)[0], (q, k, v))


@pytest.mark.parametrize("needed", ((True, False, False), (False, True, False), (False, False, True)))
def test_gradients_of_some_inputs_only(needed):
    inputs = inputs_of(case := Case(rule("strided", stride=4), n_queries=30, n_keys=30))
    leaves = [x.detach().requires_grad_(need) for x, need in zip(inputs.tensors, needed, strict=True)]
    attending(case, inputs, "eager")(*leaves)[0].backward(inputs.d_out)
    expected = exact(inputs, case.factor, with_lse=False)
    for leaf, need, name in zip(leaves, needed, GRADIENTS, strict=True):
        assert (leaf.grad is not None) == need
        if need:
            np.testing.assert_allclose(leaf.grad, expected[name], atol=DOUBLE_FLOOR)


class Recorder(TorchDispatchMode):
    """Remembers the calls of the library's own operators."""

    def __init__(self):
        super().__init__()
        self.calls: list[tuple] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "asterism":
            self.calls.append((function, args, kwargs or {}))
        return function(*args, **(kwargs or {}))


def test_opcheck():
    """torch's own checks of schema, fake tensors, autograd and AOT dispatch on every operator that `attend` uses."""
    case = Case(rule("fixed", stride=4), heads=2, n_queries=20, n_keys=20, dtype=torch.float32, padding=True)
    case = replace(case, segments=True)
    inputs = inputs_of(case)
    names = set()
    with Recorder() as recorder:
        differentiated(attending(case, inputs, "eager"), inputs)
        inputs_without = inputs_of(replace(case, padding=False, segments=False, offset=0))
        attending(case, inputs_without, "eager")(*inputs_without.tensors)
    assert recorder.calls, "attend uses no operator of torch.ops.asterism"
    for function, args, kwargs in recorder.calls:
        names.add(str(function))
        fresh = [x.detach().clone() if isinstance(x, torch.Tensor) else x for x in args]
        # The backward operator is not differentiated again: only the forward one gets inputs that require gradients.
        if "backward" not in str(function):
            fresh = [x.requires_grad_() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in fresh]
        torch.library.opcheck(function, tuple(fresh), kwargs)
    assert any("backward" in name for name in names) and len(names) >= 2


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
class TestCompiled:
    """torch.compile with the whole call in one graph."""

    @pytest.fixture(autouse=True)
    def poison(self):
        """The compiler's own buffers are left alone."""
        torch.compiler.reset()
        yield
        torch.compiler.reset()

    @pytest.mark.parametrize("as_text", (True, False))
    @pytest.mark.parametrize("backend", ("aot_eager", pytest.param("inductor", marks=pytest.mark.slow)))
    @pytest.mark.parametrize("implementation", ("eager", "auto"))
    def test_fullgraph(self, implementation, backend, as_text):
        case = Case(rule("fixed", stride=5), heads=2, n_queries=40, n_keys=40, dtype=torch.float32, padding=True)
        inputs = inputs_of(case)
        pattern = build(case.rule).text if as_text else build(case.rule)

        def compute(q, k, v):
            out, lse = attend(2 * q, k, v, pattern, **inputs.keywords, return_lse=True, implementation=implementation)
            return out, lse + 0

        compiled = torch.compile(compute, fullgraph=True, backend=backend)
        scaled = replace(inputs, q=2 * inputs.q)
        found = differentiated(compiled, inputs)
        found["dq"] /= 2
        expected, compared = exact(scaled, case.factor), plain(scaled, case.factor)
        assert_all_as_good(found, expected, compared, case.dtype)

    def test_another_length_after_the_first(self):
        compiled = torch.compile(lambda q: attend(q, q, q, "strided(4)"), fullgraph=True, backend="aot_eager")
        for n in (12, 30, 31):
            q = torch.randn(1, 1, n, 4)
            torch.testing.assert_close(compiled(q), attend(q, q, q, "strided(4)"))

    def test_patterns_as_arguments(self):
        def compute(q, pattern):
            return attend(q, q, q, pattern)

        compiled = torch.compile(compute, fullgraph=True, backend="aot_eager")
        q = torch.randn(1, 1, 20, 4)
        for pattern in (patterns.strided(4), patterns.fixed(5), "star()"):
            torch.testing.assert_close(compiled(q, pattern), compute(q, pattern))


MEASURE = f"""{PEAK}
import sys, torch
from asterism import attend
torch.set_num_threads(1)

def work(n):
    q, k, v = (torch.randn(1, 1, n, 16, requires_grad=True) for _ in range(3))
    attend(q, k, v, sys.argv[1], implementation=sys.argv[2]).sum().backward()

work(512)
before = peak()
for n in (8192, 32768):
    work(n)
    print(peak() - before)
"""


@needs_proc
@pytest.mark.parametrize(
    ("text", "implementation"),
    [
        ("bigbird(block=64)", "eager"),
        ("window(left=127)", "auto"),
        pytest.param("window(left=127)", "eager", marks=pytest.mark.slow),
        pytest.param("bigbird(block=64)", "auto", marks=pytest.mark.slow),
    ],
)
def test_memory_grows_with_the_tiles_kept(text, implementation):
    """At 32,768 tokens a square of booleans alone is 1 GiB. Forward and backward, in a process of their own."""
    command = [sys.executable, "-c", MEASURE, text, implementation]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    short, long = map(float, output.split())
    assert long < 400
    assert long < 4 * short * 1.5 + 64


# ---------------------------------------------------------------------------------------------------------------------
# Refusals.


def tensors(q=(2, 4, 6, 8), k=(2, 2, 6, 8), v=(2, 2, 6, 8), dtype=torch.float32):
    return [torch.zeros(shape, dtype=dtype) for shape in (q, k, v)]


REFUSED = {
    "q of three dimensions": (lambda: attend(*tensors(q=(2, 6, 8)), "causal()"), KernelError, ("q", "2, 6, 8")),
    "k of five dimensions": (
        lambda: attend(*tensors(k=(1, 2, 2, 6, 8)), "causal()"),
        KernelError,
        ("k", "1, 2, 2, 6, 8"),
    ),
    "batches": (lambda: attend(*tensors(k=(3, 2, 6, 8)), "causal()"), KernelError, ("batch", "2", "3")),
    "keys and values": (lambda: attend(*tensors(v=(2, 2, 5, 8)), "causal()"), KernelError, ("6", "5")),
    "key and value heads": (lambda: attend(*tensors(v=(2, 1, 6, 8)), "causal()"), KernelError, ("head", "2", "1")),
    "widths": (lambda: attend(*tensors(k=(2, 2, 6, 9)), "causal()"), KernelError, ("8", "9")),
    "grouped heads": (lambda: attend(*tensors(q=(2, 3, 6, 8)), "causal()"), KernelError, ("head", "3", "2")),
    "more queries than keys": (lambda: attend(*tensors(q=(2, 4, 7, 8)), "causal()"), AsterismError, ("7", "6")),
    "mixed dtypes": (
        lambda: attend(torch.zeros(2, 4, 6, 8, dtype=torch.float64), *tensors()[1:], "causal()"),
        KernelError,
        ("float64", "float32"),
    ),
    "integers": (lambda: attend(*tensors(dtype=torch.int64), "causal()"), KernelError, ("int64",)),
    "float8": (lambda: attend(*tensors(dtype=torch.float8_e4m3fn), "causal()"), KernelError, ("float8_e4m3fn",)),
    "no width": (lambda: attend(*tensors(q=(2, 4, 6, 0), k=(2, 2, 6, 0)), "causal()"), KernelError, ("2, 4, 6, 0",)),
    "a schedule": (
        lambda: attend(*tensors(), patterns.interleave(patterns.causal())),
        AsterismError,
        ("Schedule",),
    ),
    "complex": (lambda: attend(*tensors(dtype=torch.complex64), "causal()"), KernelError, ("complex64",)),
    "devices": (
        lambda: attend(torch.zeros(2, 4, 6, 8, device="meta"), *tensors()[1:], "causal()"),
        KernelError,
        ("meta", "cpu"),
    ),
    "pattern heads": (
        lambda: attend(*tensors(), patterns.per_head([patterns.causal()] * 3)),
        PatternError,
        ("3", "4"),
    ),
    "pattern text": (lambda: attend(*tensors(), "causl()"), PatternError, ("causl", "causal")),
    "pattern code": (lambda: attend(*tensors(), "__import__('os')"), PatternError, ()),
    "short explicit pattern": (
        lambda: attend(*tensors(), patterns.explicit(np.eye(4, dtype=bool))),
        PatternError,
        ("4", "6"),
    ),
    "implementation": (
        lambda: attend(*tensors(), "causal()", implementation="eagr"),
        KernelError,
        ("eagr", "eager"),
    ),
    "key mask shape": (
        lambda: attend(*tensors(), "causal()", key_mask=torch.ones(2, 5, dtype=torch.bool)),
        KernelError,
        ("key_mask", "2, 5", "2, 6"),
    ),
    "key mask dtype": (
        lambda: attend(*tensors(), "causal()", key_mask=torch.ones(2, 6)),
        KernelError,
        ("key_mask", "bool", "float32"),
    ),
    "segments shape": (
        lambda: attend(*tensors(), "causal()", segments=torch.zeros(6, dtype=torch.long)),
        KernelError,
        ("segments", "6"),
    ),
    "segments dtype": (
        lambda: attend(*tensors(), "causal()", segments=torch.zeros(2, 6)),
        KernelError,
        ("segments", "float32"),
    ),
    "offset behind the end": (
        lambda: attend(*tensors(q=(2, 4, 3, 8)), "causal()", query_offset=4),
        AsterismError,
        ("4", "3", "6"),
    ),
    "negative offset": (
        lambda: attend(*tensors(q=(2, 4, 3, 8)), "causal()", query_offset=-1),
        AsterismError,
        ("-1",),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_what_was_asked_and_seen(name):
    call, error, parts = REFUSED[name]
    with pytest.raises(error) as refused:
        call()
    first_line = str(refused.value).splitlines()[0]
    for part in parts:
        assert part in first_line


# ---------------------------------------------------------------------------------------------------------------------
# Decoding.

DECODED = (
    "causal()",
    "window(left=9)",
    "strided(5)",
    "fixed(6, summary=2)",
    "fixed(6, summary=2, heads=4)",
    "bigbird_causal(block=4, heads=4)",
    "sinks(2, 7)",
    "window(left=3) | stride(7) & causal()",
    "shifted(strided(4), by=3)",
)


@pytest.mark.parametrize("text", DECODED)
def test_decode_is_the_last_rows_of_the_whole(text):
    """With slots in any order, empty slots that hold NaN, and keys forgotten that nobody reads any more."""
    pattern = patterns.parse(text)
    n, new = 50, 3
    inputs = inputs_of(Case(rule("dense"), heads=4, kv_heads=2, n_queries=n, n_keys=n, value_width=5))
    whole = attend(*inputs.tensors, pattern, implementation="eager")
    alive = np.flatnonzero(last_reader(pattern, np.arange(n)) >= n - new)
    slots = torch.from_numpy(np.random.Generator(np.random.Philox(0)).permutation(alive))
    k, v = (torch.cat([x[:, :, slots], torch.full_like(x[:, :, :2], math.nan)], dim=2) for x in inputs.tensors[1:])
    found = decode(
        inputs.q[:, :, -new:],
        k,
        v,
        pattern if pattern.heads == 1 else text,
        torch.arange(n - new, n)[None],
        torch.cat([slots, torch.tensor([-1, -1])])[None],
    )
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, whole[:, :, -new:], rtol=0, atol=DOUBLE_FLOOR)


@pytest.mark.parametrize("text", DECODED)
def test_decode_rows_of_different_lengths(text):
    n = 40
    inputs = inputs_of(Case(rule("dense"), heads=4, kv_heads=1, n_queries=n, n_keys=n, dtype=torch.float32))
    lengths = (40, 23)
    keys = torch.stack([torch.where(torch.arange(n) < length, torch.arange(n), -1) for length in lengths])
    queries = torch.tensor([[length - 1] for length in lengths])
    q = torch.stack([inputs.q[row, :, length - 1 : length] for row, length in enumerate(lengths)])
    found = decode(q, inputs.k, inputs.v, text, queries, keys, scale=0.7)
    for row, length in enumerate(lengths):
        alone = [x[row : row + 1, :, :length] for x in inputs.tensors]
        expected = attend(*alone, text, scale=0.7, implementation="reference")[:, :, -1:]
        torch.testing.assert_close(found[row : row + 1], expected)


def test_decode_with_nothing_to_read_is_zero():
    q, k, v = tensors(q=(1, 2, 1, 8), k=(1, 1, 3, 8), v=(1, 1, 3, 8))
    v += 1
    empty = decode(q, k, v, "window(left=1)", torch.tensor([[9]]), torch.tensor([[-1, 2, 3]]))
    assert torch.equal(empty, torch.zeros_like(q))


def test_decode_far_away():
    """Positions beyond 2^31 cost nothing and lose nothing."""
    q, k, v = tensors(q=(1, 1, 1, 8), k=(1, 1, 2, 8), v=(1, 1, 2, 8))
    v[0, 0, 1] = 3
    far = 2**40
    out = decode(q, k, v, "strided(4)", torch.tensor([[far]]), torch.tensor([[far - 7, far - 8]]))
    assert (out == 3).all()


@pytest.mark.parametrize("text", ("bigbird(block=4)", "global_keys(-1) & causal()", "yun_star()"))
def test_decode_refuses_what_changes_with_the_length(text):
    q, k, v = tensors(q=(1, 2, 1, 8), k=(1, 1, 3, 8), v=(1, 1, 3, 8))
    with pytest.raises(PatternError):
        decode(q, k, v, text, torch.tensor([[2]]), torch.arange(3)[None])


@pytest.mark.parametrize(
    ("query_positions", "key_positions"),
    [
        (torch.tensor([[1, 2]]), torch.arange(3)[None]),
        (torch.tensor([2]), torch.arange(3)[None]),
        (torch.tensor([[2]]), torch.arange(4)[None]),
        (torch.tensor([[2]]), torch.arange(3)),
        (torch.tensor([[2], [2], [2]]), torch.arange(3)[None]),
        (torch.tensor([[2.0]]), torch.arange(3)[None]),
    ],
    ids=("queries", "one dimension", "keys", "keys of one dimension", "batch", "floats"),
)
def test_decode_refuses_positions_that_do_not_fit(query_positions, key_positions):
    q, k, v = tensors(q=(2, 2, 1, 8), k=(2, 1, 3, 8), v=(2, 1, 3, 8))
    with pytest.raises(KernelError, match="positions"):
        decode(q, k, v, "causal()", query_positions, key_positions)
