"""Exact attention: every implementation against float64 formulas, under the conventions for what may not be read."""

import math
from dataclasses import replace

import pytest
import torch
from kernel_cases import (
    DTYPES_OF,
    Case,
    assert_all_as_good,
    assert_equal_bits,
    attending,
    cases,
    check,
    check_unread,
    differentiated,
    exact,
    gives_lse,
    implementations,
    inputs_of,
    plain,
)
from oracle import rule
from strategies import hold, tiers

from asterism import attend, patterns
from asterism.kernels.reference import reference

pytestmark = pytest.mark.usefixtures("poison")

ALL = implementations(torch.float32)
TILED = tuple(name for name in ALL if name not in ("dense", "reference"))


def finest(implementation):
    """The dtype with the most digits that an implementation takes."""
    return DTYPES_OF[implementation][0]


@pytest.mark.parametrize("count", tiers(30, 1000))
def test_eager(count):
    hold(lambda case: check(case, "eager"), cases(), count)


@pytest.mark.parametrize("count", tiers(13, 300))
@pytest.mark.parametrize("implementation", ("dense", "auto", "reference"))
def test_other_implementations(implementation, count):
    hold(lambda case: check(case, implementation), cases(), count)


@pytest.mark.parametrize("count", tiers(13, 300))
@pytest.mark.parametrize("implementation", TILED)
def test_output_alone(implementation, count):
    """Without `return_lse` the same output and the same gradients come back."""
    hold(lambda case: check(case, implementation, return_lse=False), cases(DTYPES_OF[implementation]), count)


@pytest.mark.parametrize("count", tiers(13, 300))
def test_reference(count):
    """The library's oracle against the one of the tests."""

    def law(case):
        inputs = inputs_of(case)
        found = differentiated(lambda q, k, v: reference(q, k, v, inputs.mask, case.scale), inputs)
        assert_all_as_good(found, exact(inputs, case.factor), plain(inputs, case.factor), case.dtype)

    hold(law, cases(), count)


@pytest.mark.parametrize("count", tiers(13, 300))
@pytest.mark.parametrize("implementation", ALL)
def test_what_nobody_reads_changes_no_bit(implementation, count):
    sparse = cases(DTYPES_OF[implementation])
    sparse = sparse.map(lambda case: replace(case, rule=case.rule & rule("columns", period=3, count=2)))
    hold(lambda case: check_unread(case, implementation), sparse, count)


@pytest.mark.parametrize("implementation", ALL)
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


@pytest.mark.parametrize("implementation", ALL)
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


@pytest.mark.parametrize("implementation", ALL)
def test_a_scale_of_zero_is_not_the_default(implementation):
    q, k, v = (torch.randn(1, 1, 9, 4, dtype=finest(implementation)) for _ in range(3))
    out = attend(q, k, v, "causal()", scale=0.0, implementation=implementation)
    means = v.cumsum(2) / torch.arange(1, 10)[:, None]
    torch.testing.assert_close(out, means)


@pytest.mark.parametrize("implementation", list(filter(gives_lse, ALL)))
def test_every_pair_counts_once(implementation):
    """A union whose parts overlap everywhere: lse counts the keys."""
    q, k, v = (torch.zeros(1, 1, 70, 2, dtype=finest(implementation)) for _ in range(3))
    text = "window(left=9) | stride(3) & causal() | global_keys(0) & causal() | blocks(16) & causal()"
    _, lse = attend(q, k, v, text, return_lse=True, implementation=implementation)
    counts = torch.from_numpy(patterns.parse(text).dense(70)[0].sum(-1))
    torch.testing.assert_close(lse[0, 0].exp(), counts.to(lse.dtype))


@pytest.mark.parametrize("implementation", ALL)
def test_huge_scores(implementation):
    """float32 scores of 1e4 and -1e4 overflow a naive exponential."""
    q = torch.full((1, 1, 40, 1), 100.0)
    k = torch.linspace(-100, 100, 40).reshape(1, 1, 40, 1)
    v = torch.arange(40.0).reshape(1, 1, 40, 1)
    torch.testing.assert_close(attend(q, k, v, "strided(4)", scale=1.0, implementation=implementation), v)
    if gives_lse(implementation):
        _, lse = attend(q, k, v, "strided(4)", scale=1.0, return_lse=True, implementation=implementation)
        torch.testing.assert_close(lse[0, 0], 100 * k[0, 0, :, 0])


@pytest.mark.parametrize("implementation", ALL)
def test_inputs_and_gradients_given_are_left_alone(implementation):
    case = Case(rule("strided", stride=4), n_queries=30, n_keys=30, padding=True, segments=True)
    case = replace(case, dtype=finest(implementation))
    inputs = inputs_of(case)
    tensors = [*inputs.tensors, inputs.d_out, inputs.d_lse, inputs.keywords["key_mask"], inputs.keywords["segments"]]
    before = [x.clone() for x in tensors]
    differentiated(attending(case, inputs, implementation), inputs)
    assert all(torch.equal(x, y) for x, y in zip(tensors, before, strict=True))


@pytest.mark.parametrize("implementation", list(filter(gives_lse, ALL)))
def test_the_gradient_of_an_empty_row_is_zero_whatever_comes_from_above(implementation):
    """Merging two empty results differentiates -inf - -inf: NaN arrives, and must end there."""
    case = Case(rule("fixed", stride=4) & ~rule("global_queries", positions=(3, 4)), n_queries=9, n_keys=9)
    case = replace(case, dtype=finest(implementation))
    inputs = inputs_of(case)
    for d_empty in (0.0, math.nan, math.inf):
        d_lse = inputs.d_lse.masked_fill(~inputs.mask.any(-1), d_empty)
        found = differentiated(attending(case, inputs, implementation), replace(inputs, d_lse=d_lse))
        assert_all_as_good(found, exact(inputs, case.factor), plain(inputs, case.factor), case.dtype)


@pytest.mark.parametrize("implementation", ALL)
def test_the_same_twice(implementation):
    inputs = inputs_of(case := Case(rule("bigbird", block=4), n_queries=50, n_keys=50, dtype=torch.float32))
    assert_equal_bits(*(differentiated(attending(case, inputs, implementation), inputs) for _ in range(2)))


@pytest.mark.parametrize("implementation", TILED)
def test_segments_are_separate_sequences_of_the_same_positions(implementation):
    """Two documents in one row: nothing crosses the boundary, positions go on counting."""
    n, cut = 40, 17
    q, k, v = (torch.randn(1, 2, n, 4, dtype=finest(implementation)) for _ in range(3))
    segments = (torch.arange(n) >= cut).long()[None]
    out = attend(q, k, v, "window(left=9)", segments=segments, implementation=implementation)
    alone = [x[:, :, cut:] for x in (q, k, v)]
    torch.testing.assert_close(out[:, :, :cut], attend(*(x[:, :, :cut] for x in (q, k, v)), "window(left=9)"))
    torch.testing.assert_close(out[:, :, cut:], attend(*alone, "window(left=9)"))


@pytest.mark.parametrize("implementation", ALL)
@pytest.mark.parametrize("dtype", (torch.int32, torch.int64, torch.uint8, torch.int8), ids=str)
def test_segments_of_any_integer_type(dtype, implementation):
    q, k, v = (torch.randn(1, 1, 6, 4) for _ in range(3))
    segments = torch.tensor([[0, 0, 1, 1, 1, 2]])
    expected = attend(q, k, v, "causal()", segments=segments, implementation=implementation)
    found = attend(q, k, v, "causal()", segments=segments.to(dtype), implementation=implementation)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("implementation", ALL)
def test_segments_that_are_far_apart(implementation):
    """Numbers that agree in their lower 32 bits, or are negative, are segments of their own."""
    q, k, v = (torch.randn(1, 1, 6, 4) for _ in range(3))
    segments = torch.tensor([[0, 0, 1, 1, 2, 2]])
    expected = attend(q, k, v, "causal()", segments=segments, implementation=implementation)
    far = torch.tensor([5, 5 + 2**32, -1])[segments]
    assert torch.equal(attend(q, k, v, "causal()", segments=far, implementation=implementation), expected)


@pytest.mark.parametrize("implementation", ALL)
def test_masks_and_gradients_that_lie_oddly_in_memory(implementation):
    """A key_mask that is one row for all, segments that are every other number, a gradient that is one number."""
    q, k, v = (torch.randn(3, 2, 40, 4, requires_grad=True) for _ in range(3))
    key_mask = (torch.arange(40) % 5 > 0).expand(3, 40)
    segments = torch.arange(80).div(30, rounding_mode="floor")[None].repeat(3, 1)[:, ::2]
    found = []
    for given in ((key_mask, segments), (key_mask.contiguous(), segments.contiguous())):
        keywords = dict(zip(("key_mask", "segments"), given, strict=True))
        out = attend(q, k, v, "strided(6)", **keywords, implementation=implementation)
        gradient = torch.ones(()).expand(out.shape)
        gradient = gradient if not found else gradient.contiguous()
        found.append(dict(enumerate((out.detach(), *torch.autograd.grad(out, (q, k, v), gradient)))))
    assert_equal_bits(*found)


@pytest.mark.parametrize("implementation", ALL)
@pytest.mark.parametrize("step", (0, 1, 2, 8))
def test_tokens_that_overlap_in_memory(step, implementation):
    """Token n is a window of a signal, `step` numbers after token n - 1. PyTorch errs for step 1."""
    signal = torch.randn(500)
    q, k, v = (signal[start:].as_strided((1, 2, 40, 64), (8, 3, step, 1)) for start in (0, 10, 20))
    apart = [x.contiguous() for x in (q, k, v)]
    for text in ("dense()", "causal()", "window(left=5)"):
        expected = attend(*apart, text, implementation="reference")
        torch.testing.assert_close(attend(q, k, v, text, implementation=implementation), expected)
