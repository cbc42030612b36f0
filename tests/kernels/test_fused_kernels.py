"""The fused kernel against float64 formulas: generated cases, every length and width, repeats, threads, long rows.

What holds for every implementation is in test_kernels_contract.py, and runs there for this one as well. Memory that
nobody wrote holds NaN, whether Python, compiled code or the kernel's own scratch space asked for it.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import strategies
import torch
from hypothesis import strategies as st
from kernel_cases import (
    DTYPES_OF,
    GRADIENTS,
    LARGE_BATCH,
    MEMORIES,
    Case,
    assert_all_as_good,
    assert_equal_bits,
    attending,
    check,
    check_unread,
    differentiated,
    exact,
    has_compiler,
    inputs_of,
    plain,
)
from oracle import per_head, rule
from strategies import build, hold, tiers

from asterism import attend, compile_pattern, kernels
from asterism.kernels.cpu import instruction_set

KERNEL = "cpu"
DTYPES = DTYPES_OF[KERNEL]
WIDEST = 256

pytestmark = [
    pytest.mark.usefixtures("poison", "native_poison"),
    pytest.mark.skipif(not has_compiler(), reason="no C++ compiler on this machine"),
]

each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def test_poison_reaches_compiled_code():
    """`at::empty` gives NaN, and the kernel asks for the variable that conftest.py sets."""
    assert torch.ops.aten.empty.memory_format([3], dtype=torch.float32).isnan().all()
    sources = [file.read_text() for file in (Path(kernels.__file__).parent / KERNEL).glob("*.py")]
    assert any("ASTERISM_POISON" in source for source in sources)


# ---------------------------------------------------------------------------------------------------------------------
# Generated cases.

EDGES = (0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 95, 96, 97, 127, 128, 129, 191, 192, 193, 200)
WIDTHS = st.one_of(st.integers(1, 40), st.sampled_from((8, 16, 32, 64)), st.integers(1, WIDEST))


@st.composite
def fused_cases(draw) -> Case:
    n_keys = draw(st.one_of(st.sampled_from(EDGES), st.integers(0, 200)))
    n_queries = draw(st.one_of(st.just(n_keys), st.integers(0, n_keys)))
    kv_heads = draw(st.sampled_from((1, 2)))
    heads = kv_heads * draw(st.sampled_from((1, 2, 3)))
    dtype = draw(st.sampled_from(DTYPES))
    magnitudes = (1.0, 1e-3, 5.0) if n_queries > 30 else (1.0, 1e-3)
    magnitude = draw(st.sampled_from(magnitudes)) if dtype == torch.float32 else 1.0
    luck = magnitude > 1 or dtype != torch.float32
    memories = tuple(name for name in MEMORIES if name != "expanded" or not luck or n_queries > LARGE_BATCH)
    width = draw(WIDTHS)
    rule = draw(strategies.rules(max(n_keys, 1), heads=heads, depth=4))
    return Case(
        rule=rule,
        heads=heads,
        kv_heads=kv_heads,
        n_queries=n_queries,
        n_keys=n_keys,
        offset=draw(st.one_of(st.none(), st.integers(0, n_keys - n_queries))),
        batch=(LARGE_BATCH if n_queries <= 70 else 3) if luck else draw(st.sampled_from((1, 2))),
        width=width,
        value_width=draw(st.one_of(st.just(width), WIDTHS)),
        dtype=dtype,
        scale=draw(st.sampled_from((None, None, None, 0.0, 0.5, -0.5))),
        padding=draw(st.booleans()),
        segments=draw(st.booleans()) and "across" not in rule.names,
        memory=draw(st.sampled_from(memories)),
        magnitude=magnitude,
        seed=draw(st.integers(0, 100)),
    )


@pytest.mark.parametrize("count", tiers(30, 3000))
def test_output_log_sum_exp_and_gradients(count):
    hold(lambda case: check(case, KERNEL), fused_cases(), count)


@pytest.mark.parametrize("count", tiers(10, 300))
def test_output_alone(count):
    hold(lambda case: check(case, KERNEL, return_lse=False), fused_cases(), count)


@pytest.mark.parametrize("count", tiers(10, 300))
def test_what_nobody_reads_changes_no_bit(count):
    sparse = fused_cases().map(lambda case: replace(case, rule=case.rule & rule("columns", period=3, count=2)))
    hold(lambda case: check_unread(case, KERNEL), sparse, count)


# ---------------------------------------------------------------------------------------------------------------------
# Every length and every width.

VARIED = (
    rule("window", left=20, right=3),
    rule("strided", stride=12),
    rule("fixed", stride=16, summary=3),
    rule("bigbird", block=16, random=1, seed=1),
    rule("causal"),
    rule("longformer", window=16, globals=(0, -1)),
    rule("dense"),
)
"""In turn, so that each length meets one of them and each of them meets many lengths; 7 is no divisor of a tile."""


def varied(number: int, n: int, width: int, value_width: int, dtype: torch.dtype) -> Case:
    batch = LARGE_BATCH if n <= 32 else 2
    sizes = {"n_queries": n, "n_keys": n, "width": width, "value_width": value_width, "batch": batch}
    return Case(VARIED[number % len(VARIED)], heads=2, dtype=dtype, **sizes)


@pytest.mark.parametrize("n", range(1, 201))
def test_every_length(n):
    for dtype in DTYPES:
        check(varied(n, n, 12, 20, dtype), KERNEL)


@pytest.mark.parametrize("width", range(8, WIDEST + 1, 8))
def test_every_width(width):
    """Also where values are narrower or wider than keys."""
    for dtype in DTYPES:
        check(varied(width // 8, 75, width, width, dtype), KERNEL)
        check(varied(width // 8 + 1, 75, width, WIDEST + 8 - width, dtype), KERNEL)


@each_dtype
@pytest.mark.parametrize("width", (1, 3, 31, 33, 63, 65, 127, 255, 256))
def test_odd_widths(width, dtype):
    check(replace(varied(width, 90, width, width, dtype), memory="part of more", padding=True), KERNEL)


# ---------------------------------------------------------------------------------------------------------------------
# Several passes, long rows, offsets.

ONE_PASS = (rule("window", left=127), rule("bigbird", block=64, random=1), rule("blocks", size=100))
SEVERAL_PASSES = (
    rule("strided", stride=50),
    rule("fixed", stride=50, summary=4),
    rule("strided", stride=40) | rule("columns", period=70) & rule("causal"),
)


@each_dtype
@pytest.mark.parametrize("drawn", (*ONE_PASS, *SEVERAL_PASSES), ids=str)
def test_a_thousand_tokens(drawn, dtype):
    case = Case(drawn, heads=2, kv_heads=1, n_queries=1000, n_keys=1000, batch=1, width=32, value_width=32, dtype=dtype)
    assert (len(compile_pattern(build(drawn), 1000).passes) > 1) == (drawn in SEVERAL_PASSES)
    check(case, KERNEL)
    check(replace(case, n_queries=777, offset=100, padding=True, segments=True), KERNEL)


@each_dtype
@pytest.mark.parametrize(
    "drawn",
    [
        rule("global_tokens", positions=(0, 1500)) | rule("window", left=31, right=31),
        rule("global_queries", positions=(2999,)) | rule("window"),
        per_head(rule("global_tokens", positions=(7,)), rule("window")),
    ],
    ids=("tokens", "a query", "one head"),
)
def test_a_few_long_rows_among_short_ones(drawn, dtype):
    n = 3000
    case = Case(drawn, heads=drawn.heads, n_queries=n, n_keys=n, batch=1, width=8, value_width=8, dtype=dtype)
    with threads(3):
        check(case, KERNEL)


@pytest.mark.slow
def test_offsets_beyond_the_32_bits():
    """Heads that lie 2^31 numbers apart, in memory of which only the pages used exist."""
    apart, shape = 2**31, (1, 2, 40, 16)
    span = torch.from_numpy(np.zeros(apart + 40 * 16, np.int16)).view(torch.bfloat16)
    sizes = {"n_queries": 40, "n_keys": 40, "width": 16, "value_width": 16, "batch": 1}
    inputs = inputs_of(case := Case(VARIED[1], heads=2, kv_heads=2, dtype=torch.bfloat16, **sizes))
    expected = differentiated(attending(case, inputs, KERNEL), inputs)
    for name in ("q", "k", "v"):
        far = span.as_strided(shape, (apart, apart, 16, 1))
        far.copy_(getattr(inputs, name))
        moved = replace(inputs, **{name: far})
        assert_equal_bits(differentiated(attending(case, moved, KERNEL), moved), expected)


# ---------------------------------------------------------------------------------------------------------------------
# The same bits, whoever computes.


@contextmanager
def threads(count: int):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


REPEATED = (VARIED[1], VARIED[3], rule("global_tokens", positions=(0, 200)) | rule("window", left=9, right=9))


def repeated(drawn, dtype) -> Case:
    sizes = {"n_queries": 400, "n_keys": 400, "width": 24, "value_width": 40}
    return Case(drawn, heads=4, kv_heads=2, dtype=dtype, padding=True, **sizes)


@each_dtype
@pytest.mark.parametrize("drawn", REPEATED, ids=str)
def test_twenty_times_the_same_bits(drawn, dtype):
    """With other work in between, which leaves other numbers in memory."""
    case, other = repeated(drawn, dtype), varied(3, 130, 64, 64, dtype)
    inputs, others = inputs_of(case), inputs_of(other)
    with threads(3):
        first = differentiated(attending(case, inputs, KERNEL), inputs)
        for _ in range(19):
            differentiated(attending(other, others, KERNEL), others)
            assert_equal_bits(differentiated(attending(case, inputs, KERNEL), inputs), first)


@each_dtype
@pytest.mark.parametrize("count", (1, 2, 3, 5))
def test_any_number_of_threads(count, dtype):
    """More threads than tile rows, too."""
    with threads(count):
        for drawn in REPEATED:
            check(repeated(drawn, dtype), KERNEL)
        check(varied(1, 3, 8, 8, dtype), KERNEL)


@each_dtype
def test_calls_from_several_threads_at_once(dtype):
    """They share no scratch space."""
    cases = [repeated(drawn, dtype) for drawn in REPEATED]
    given = [inputs_of(case) for case in cases]

    def compute(number):
        return differentiated(attending(cases[number], given[number], KERNEL), given[number])

    expected = [compute(number) for number in range(len(cases))]
    with ThreadPoolExecutor(len(cases)) as pool:
        numbers = list(range(len(cases))) * 5
        for number, found in zip(numbers, pool.map(compute, numbers), strict=True):
            assert_equal_bits(found, expected[number])


@each_dtype
def test_without_gradients_the_same_bits(dtype):
    inputs = inputs_of(case := repeated(VARIED[1], dtype))
    leaves = [x.detach().requires_grad_() for x in inputs.tensors]
    out, lse = attending(case, inputs, KERNEL)(*leaves)
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            found = attending(case, inputs, KERNEL)(*inputs.tensors)
        assert torch.equal(found[0], out) and torch.equal(found[1], lse)


# ---------------------------------------------------------------------------------------------------------------------
# Rows and gradients that are missing.


@each_dtype
def test_rows_with_nothing_to_read(dtype):
    """By the rule, by the key_mask, and by segments that a query shares with nobody."""
    empty = VARIED[0] & ~rule("global_queries", positions=tuple(range(60, 140)))
    case = Case(empty, heads=2, n_queries=200, n_keys=200, dtype=dtype, width=16, value_width=16)
    check(case, KERNEL)
    check(replace(case, padding=True, segments=True), KERNEL)
    inputs = inputs_of(case)
    nothing = {"key_mask": torch.zeros(2, 200, dtype=torch.bool)}
    out, lse = attend(*inputs.tensors, build(empty), return_lse=True, implementation=KERNEL, **nothing)
    assert not out.any() and (lse == -torch.inf).all()


@each_dtype
def test_the_gradient_of_the_log_sum_exp_alone(dtype):
    inputs = inputs_of(case := repeated(VARIED[2], dtype))
    inputs = replace(inputs, d_out=torch.zeros_like(inputs.d_out))
    leaves = [x.detach().requires_grad_() for x in inputs.tensors]
    out, lse = attending(case, inputs, KERNEL)(*leaves)
    gradients = torch.autograd.grad(lse, leaves, inputs.d_lse, materialize_grads=True)
    found = {"out": out.detach(), "lse": lse.detach(), **dict(zip(GRADIENTS, gradients, strict=True))}
    assert_all_as_good(found, exact(inputs, case.factor), plain(inputs, case.factor), dtype)
    assert not found["dv"].any()


@each_dtype
@pytest.mark.parametrize("needed", [(True, True, False), (True, False, True), (False, True, True)])
def test_gradients_of_two_inputs(needed, dtype):
    inputs = inputs_of(case := repeated(VARIED[1], dtype))
    every = differentiated(attending(case, inputs, KERNEL), inputs)
    leaves = [x.detach().requires_grad_(need) for x, need in zip(inputs.tensors, needed, strict=True)]
    torch.autograd.backward(attending(case, inputs, KERNEL)(*leaves), [inputs.d_out, inputs.d_lse])
    for leaf, need, name in zip(leaves, needed, GRADIENTS, strict=True):
        assert torch.equal(leaf.grad, every[name]) if need else leaf.grad is None


@each_dtype
@pytest.mark.parametrize("shape", [(0, 2, 5, 3), (2, 2, 0, 3), (2, 2, 5, 0)], ids=str)
def test_empty_shapes(shape, dtype):
    """No sequence, no token, no feature of values."""
    batch, heads, n, width = shape
    q = torch.ones(batch, heads, n, 4, dtype=dtype, requires_grad=True)
    k = torch.ones(batch, 1, n, 4, dtype=dtype, requires_grad=True)
    v = torch.ones(batch, 1, n, width, dtype=dtype, requires_grad=True)
    for text in ("causal()", "fixed(4)"):
        out, lse = attend(q, k, v, text, return_lse=True, implementation=KERNEL)
        assert out.shape == shape and lse.shape == shape[:3]
        (out.sum() + lse.sum()).backward()
        assert all(x.grad.shape == x.shape and x.grad.isfinite().all() for x in (q, k, v))


@each_dtype
def test_huge_scores_have_gradients(dtype):
    """Scores of 1e4 and -1e4: each query reads one key, the last of those it may read or the first.

    The gradients of such scores are 0, but for AMX, which multiplies weights in bfloat16 and divides by their sum in
    float32: there they are values, grad_out and keys or queries times half a unit in the last place.
    """
    is_rounded = dtype == torch.bfloat16 and instruction_set().startswith("amx")
    most = 39 * 100 * 2**-9 if is_rounded else 0.0
    k = torch.linspace(-96, 96, 40).to(dtype).reshape(1, 1, 40, 1).requires_grad_()
    v = torch.arange(40.0).to(dtype).reshape(1, 1, 40, 1).requires_grad_()
    own = torch.arange(40)
    for value, read in ((100.0, own), (-100.0, torch.where(own < 4, 0, own % 4))):
        q = torch.full((1, 1, 40, 1), value, dtype=dtype, requires_grad=True)
        out = attend(q, k, v, "strided(4)", scale=1.0, implementation=KERNEL)
        d_q, d_k, d_v = torch.autograd.grad(out.sum(), (q, k, v))
        assert torch.equal(out.flatten(), read.to(dtype))
        assert torch.equal(d_v.flatten(), read.bincount(minlength=40).to(dtype))
        assert d_q.abs().max() <= most and d_k.abs().max() <= most * read.bincount().max()
