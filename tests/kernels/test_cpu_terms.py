"""Terms of the score in the fused kernel: what its own ways through tiles could get wrong.

What holds for every implementation is in test_terms_generated.py and test_dropout.py, and runs there for this one too.
"""

import math
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from kernel_cases import DTYPES_OF, Case, assert_equal_bits, has_compiler, inputs_of
from oracle import rule
from strategies import build, hold, tiers
from term_cases import ALL, TermCase, check_terms, computed, term_cases, term_inputs_of, terms_of

from asterism import DistanceTable, SoftSpan, Terms, attend, compile_pattern
from asterism.kernels.cpu.schedule import schedule
from asterism.kernels.operands import Operands

pytestmark = [
    pytest.mark.usefixtures("poison", "native_poison"),
    pytest.mark.skipif(not has_compiler(), reason="no C++ compiler on this machine"),
]

EVERY = TermCase(Case(rule("causal")), bias="table", relative=True, softcap=3.0, sinks=True, dropout=0.3)
LONGEST = 64
"""Tiles; rows of more are cut (kShortestPart in forward.hpp)."""
ORDERS = (
    rule("window", left=70),
    rule("strided", stride=20),
    rule("fixed", stride=32, summary=3),
    rule("bigbird_causal", block=32, random=1, seed=1),
    rule("causal"),
)
"""Queries and keys in natural order, both in another, keys alone in another, tiles that are no neighbours, and all."""

each_dtype = pytest.mark.parametrize("dtype", DTYPES_OF["cpu"], ids=str)


@contextmanager
def threads(count: int):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# --- orders, widths, long rows, threads ------------------------------------------------------------------------------


@pytest.mark.parametrize("count", tiers(10, 500))
def test_any_number_of_threads(count):
    def law(chosen):
        with threads(2 + chosen.case.seed % 3):
            check_terms(chosen, "cpu")

    hold(law, term_cases("cpu"), count)


@each_dtype
@pytest.mark.parametrize("drawn", ORDERS, ids=str)
@pytest.mark.parametrize("terms", (*((name,) for name in ALL), ALL), ids=lambda names: "+".join(names))
def test_each_term_in_each_order_of_tokens(terms, drawn, dtype):
    case = Case(drawn, heads=2, kv_heads=1, n_queries=300, n_keys=300, width=24, value_width=20, dtype=dtype)
    chosen = replace(EVERY, case=case).of(terms)
    check_terms(chosen, "cpu")
    rectangle = replace(case, n_queries=151, offset=100, padding=True, segments=True)
    check_terms(replace(chosen, case=rectangle, shared=True), "cpu")


@each_dtype
@pytest.mark.parametrize("width", (1, 15, 64, 65, 256))
def test_widths_of_relative_positions(width, dtype):
    case = Case(ORDERS[2], n_queries=80, n_keys=80, width=width, value_width=8, batch=8, dtype=dtype)
    check_terms(TermCase(case, relative=True), "cpu")


@each_dtype
def test_long_rows_and_several_passes(dtype):
    """Rows that are cut, where the sink must be read once, and several passes, which go on from one another."""
    long = Case(rule("global_queries", positions=(7,)) | rule("window", left=3), n_queries=70, n_keys=4500, offset=0)
    plan = compile_pattern(build(long.rule), 70, 4500, query_offset=0)
    assert max(np.diff(part.row_offsets).max() for part in plan.passes) > LONGEST
    several = Case(rule("strided", stride=20), n_queries=500, n_keys=500)
    assert len(compile_pattern(build(several.rule), 500).passes) > 1
    for case in (long, several):
        chosen = replace(EVERY, case=replace(case, width=8, value_width=8, batch=1, dtype=dtype))
        with threads(3):
            check_terms(chosen.of(("bias", "softcap", "sinks")), "cpu")


@each_dtype
def test_twenty_times_the_same_bits(dtype):
    case = Case(ORDERS[1], heads=4, kv_heads=2, n_queries=400, n_keys=400, width=24, value_width=40, dtype=dtype)
    chosen = replace(EVERY, case=case)
    given = term_inputs_of(chosen)
    with threads(3):
        first = computed(chosen, given, "cpu")
        for _ in range(19):
            assert_equal_bits(computed(chosen, given, "cpu"), first)


@each_dtype
@pytest.mark.parametrize("name", ("q", "k", "v", "bias", "relative", "sinks"))
def test_one_gradient_alone_has_the_same_bits(name, dtype):
    case = Case(ORDERS[3], heads=4, kv_heads=2, n_queries=200, n_keys=200, width=16, value_width=16, dtype=dtype)
    chosen = replace(EVERY, case=case)
    given = term_inputs_of(chosen)
    every = computed(chosen, given, "cpu")
    leaves = dict(zip("qkv", given.inputs.tensors, strict=True)) | given.parameters
    leaves = {key: x.detach().requires_grad_(key == name) for key, x in leaves.items()}
    terms = terms_of(chosen, given, leaves)
    results = attend(
        *(leaves[key] for key in "qkv"), build(case.rule), terms=terms, return_lse=True, implementation="cpu"
    )
    (found,) = torch.autograd.grad(results, [leaves[name]], [given.inputs.d_out, given.inputs.d_lse])
    assert torch.equal(found, every[f"d{name}"])


# --- one term at a time ----------------------------------------------------------------------------------------------


def test_the_cap_is_good_to_a_few_units_in_the_last_place():
    """One key: the log-sum-exp is the score, through powers of two, as all scores go."""
    scores = torch.cat([torch.logspace(-6, 2, 20000), torch.linspace(0.3, 1.2, 20000)])
    scores = torch.cat([scores, -scores]).float()
    q, key = scores.view(1, 1, -1, 1), torch.ones(1, 1, len(scores), 1)
    options = {"scale": 1.0, "terms": Terms(softcap=1.0), "return_lse": True, "implementation": "cpu"}
    _, lse = attend(q, key, key, "window(left=0)", **options)
    exact = scores.double().tanh()
    assert ((lse.flatten().double() - exact).abs() / exact.abs()).max() < 5 * 2**-24


def results_of(tensors, text, terms=None):
    """out, lse and the gradients of q, k and v."""
    leaves = [x.detach().clone().requires_grad_() for x in tensors]
    out, lse = attend(*leaves, text, terms=terms, return_lse=True, implementation="cpu")
    waves = [torch.arange(x.numel()).view(x.shape).sin().to(x.dtype) for x in (out, lse)]
    gradients = torch.autograd.grad([out, lse], leaves, waves)
    return dict(zip(("out", "lse", "dq", "dk", "dv"), (out.detach(), lse.detach(), *gradients), strict=True))


@each_dtype
@pytest.mark.parametrize("text", ("window(left=40)", "strided(12)", "fixed(16, summary=2)", "causal()"))
def test_distances_that_a_bias_forbids_are_those_of_another_pattern(text, dtype):
    """A bias of 0 at every third distance and of -inf at the others."""
    tensors = inputs_of(Case(rule("causal"), 4, 2, 150, 150, width=16, value_width=16, dtype=dtype)).tensors
    bias = torch.where(torch.arange(-149, 150) % 3 == 0, 0.0, -math.inf).expand(4, -1)
    found = results_of(tensors, text, Terms(bias=DistanceTable(bias, -149)))
    expected = results_of(tensors, f"({text}) & stride(3)")
    tolerance = 1e-5 if dtype == torch.float32 else 0.02
    for name in found:
        torch.testing.assert_close(found[name], expected[name], rtol=tolerance, atol=tolerance)


@each_dtype
@pytest.mark.parametrize("text", ("window(left=99)", "strided(12)", "fixed(16, summary=2)", "causal()"))
def test_keys_that_no_head_has_in_its_span_are_not_read(text, dtype):
    """Heads that read nothing, little, and up to 40 tokens: what lies beyond may be NaN and changes no bit."""
    case = Case(rule("causal"), 4, 2, n_queries=30, n_keys=150, width=16, value_width=16, dtype=dtype)
    q, k, v = inputs_of(case).tensors
    terms = Terms(bias=SoftSpan(torch.tensor([-30.0, 2.5, 10.0, 20.0]), ramp=19))
    clean = results_of((q, k, v), text, terms)
    assert not clean["out"][:, 0].any() and (clean["lse"][:, 0] == -math.inf).all()
    k, v = k.clone(), v.clone()
    k[:, :, :80], v[:, :, :80] = math.nan, math.inf
    assert_equal_bits(results_of((q, k, v), text, terms), clean)


@pytest.mark.parametrize("backward", (False, True))
def test_a_schedule_lists_calls_with_terms(backward):
    q = torch.empty(1, 2, 500, 16)
    terms = {"bias": torch.empty(2, 999), "first_distance": -499, "relative": torch.empty(500, 16), "softcap": 2.0}
    plain, termed = (
        schedule(Operands(q, q, q, None, None, None, "causal()", 0, 1.0, **given), 2, backward) for given in ({}, terms)
    )
    assert termed[:, 1].sum() == plain[:, 1].sum() > 0
    assert (len(termed) > len(plain)) == backward
