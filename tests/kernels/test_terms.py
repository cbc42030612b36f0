"""Terms of the score: what each of them is, which are refused, and what the operators make of them."""

import math
from itertools import pairwise

import pytest
import torch
from kernel_cases import has_compiler, tensors
from strategies import build, hold, questions, tiers

from asterism import Alibi, Buckets, DistanceTable, Dropout, SoftSpan, Terms, attend, patterns
from asterism.compiler import compile_pattern
from asterism.errors import KernelError
from asterism.kernels.terms.philox import philox

pytestmark = pytest.mark.usefixtures("poison")


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def operands(heads=4, kv_heads=2, n=9, batch=2, dtype=torch.float64):
    return [normal(batch, h, n, 4, seed=seed, dtype=dtype) for seed, h in ((1, heads), (2, kv_heads), (3, kv_heads))]


# --- what the terms are ----------------------------------------------------------------------------------------------


RANDOM123 = (
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
)


@pytest.mark.parametrize(("counter", "key", "words"), RANDOM123)
def test_philox_gives_the_known_answers_of_random123(counter, key, words):
    counter, key, words = ([int(word, 16) for word in text.split()] for text in (counter, key, words))
    found = philox(tuple(torch.tensor(word) for word in counter), tuple(key))
    assert [int(word) for word in found] == words


def test_alibi_by_hand():
    table = Alibi(torch.tensor([0.5, 0.25])).table(-2, 3)
    assert table.tolist() == [[-1.0, -0.5, 0.0, -0.5, -1.0], [-0.5, -0.25, 0.0, -0.25, -0.5]]


def test_buckets_by_hand():
    """16 buckets up to 128: 8 for one distance each, then ranges that grow by the square root of 2."""
    borders = [*range(9), 12, 16, 23, 32, 46, 64, 91, 1000]
    expected = [bucket for bucket, (first, past) in enumerate(pairwise(borders)) for _ in range(first, past)]
    one_way, both_ways = (Buckets(torch.zeros(16 * ways, 1), ways == 2, max_distance=128) for ways in (1, 2))
    past, future = torch.arange(1000), -torch.arange(1, 1000)
    assert one_way.buckets(past).tolist() == both_ways.buckets(past).tolist() == expected
    assert not one_way.buckets(future).any()
    assert both_ways.buckets(future).tolist() == [16 + bucket for bucket in expected[1:]]


@pytest.mark.slow
@pytest.mark.parametrize("bidirectional", (True, False))
def test_buckets_are_those_of_t5(bidirectional):
    t5 = pytest.importorskip("transformers").models.t5.modeling_t5.T5Attention
    distances = torch.arange(-700, 700)
    buckets = Buckets(torch.zeros(32, 1), bidirectional, max_distance=128).buckets(distances)
    expected = t5._relative_position_bucket(-distances, bidirectional, num_buckets=32, max_distance=128)
    assert torch.equal(buckets, expected)


def test_buckets_have_a_row_per_head():
    table = Buckets(torch.arange(24.0).view(8, 3), bidirectional=False, max_distance=10).table(-1, 3)
    assert table.tolist() == [[0.0, 0.0, 3.0, 6.0], [1.0, 1.0, 4.0, 7.0], [2.0, 2.0, 5.0, 8.0]]


def test_a_soft_span_is_the_logarithm_of_its_ramp_and_differentiable():
    reach = torch.tensor([1.5, 3.5], dtype=torch.float64, requires_grad=True)
    table = SoftSpan(reach, ramp=2).table(0, 8)
    weights = [[1, 1, 1, 0.75, 0.25, 0, 0, 0], [1, 1, 1, 1, 1, 0.75, 0.25, 0]]
    torch.testing.assert_close(table.exp(), torch.tensor(weights, dtype=torch.float64))
    table.masked_fill(table == -math.inf, 0).sum().backward()
    torch.testing.assert_close(reach.grad, torch.full((2,), 0.5 / 0.75 + 0.5 / 0.25, dtype=torch.float64))


@pytest.mark.parametrize("text", ("window(left=3)", "causal()", "fixed(5) | stride(3)", "window(1, 2) & ~blocks(4)"))
@pytest.mark.parametrize("lengths", ((90, 90), (40, 90), (600, 600)))
def test_a_plan_knows_the_distances_that_it_reads(text, lengths):
    assert_distances(compile_pattern(text, *lengths, tile=16))


def test_the_least_distance_need_not_be_in_the_nearest_tile():
    """A tile on the diagonal reads at distance 5, one below it at distance 1, where the corners are 16 apart."""
    plan = compile_pattern("explicit(source='40:35;16:15', size=90)", 90, tile=16)
    assert_distances(plan)
    assert plan.distances == (1, 5)


@pytest.mark.parametrize("count", tiers(20, 1000))
def test_a_plan_of_any_pattern_knows_its_distances(count):
    hold(lambda drawn: assert_distances(compile_pattern(build(drawn[0]), drawn[1], tile=16)), questions(), count)


def assert_distances(plan):
    _, queries, keys = plan.to_dense().nonzero()
    distances = queries + plan.query_offset - keys
    assert plan.distances == ((distances.min(), distances.max()) if len(distances) else None)


def test_a_plan_that_reads_nothing_has_no_distances():
    assert compile_pattern("~dense()", 40).distances is None


# --- the formula -----------------------------------------------------------------------------------------------------


def test_the_formula_by_hand():
    """One query at position 1 of two keys, softcap 2, p(1) = 1, bias 0.5 at distance 1, a sink of 0."""
    q, k, v = (torch.tensor(x, dtype=torch.float64).view(1, 1, -1, 1) for x in ([3.0], [1.0, 0.5], [10.0, 20.0]))
    relative = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    terms = Terms(bias=DistanceTable(torch.tensor([[0.0, 0.5]])), relative=relative, softcap=2.0, sinks=torch.zeros(1))
    out, lse = attend(q, k, v, "causal()", scale=1.0, terms=terms, return_lse=True, implementation="reference")
    scores = [2 * math.tanh(3 * 2 / 2) + 0.5, 2 * math.tanh(1.5 / 2)]
    total = math.exp(scores[0]) + math.exp(scores[1]) + 1
    assert lse.item() == pytest.approx(math.log(total))
    assert out.item() == pytest.approx((10 * math.exp(scores[0]) + 20 * math.exp(scores[1])) / total)


def test_a_query_that_reads_nothing_has_the_sink_alone():
    q, k, v = operands()
    sinks = torch.tensor([-1.0, 0.0, 1.0, -math.inf], dtype=torch.float64)
    for implementation in ("reference", "eager"):
        out, lse = attend(q, k, v, "~dense()", terms=Terms(sinks=sinks), return_lse=True, implementation=implementation)
        assert not out.any()
        assert torch.equal(lse, sinks[None, :, None].expand(lse.shape))


@pytest.mark.parametrize("implementation", ("eager",))
def test_sinks_are_joined_and_differentiated(implementation):
    q, k, v = operands()
    sinks = normal(4, seed=9)
    key_mask = torch.arange(9)[None].expand(2, 9) > 1

    def results(implementation):
        leaves = [x.clone().requires_grad_() for x in (q, k, v, sinks)]
        terms = Terms(sinks=leaves[3])
        options = {"key_mask": key_mask, "terms": terms, "return_lse": True, "implementation": implementation}
        out, lse = attend(*leaves[:3], "window(left=3) & causal()", **options)
        gradients = torch.autograd.grad((out * normal(*out.shape)).sum() + (lse * normal(*lse.shape)).sum(), leaves)
        return out, lse, *gradients

    torch.testing.assert_close(results(implementation), results("reference"), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("implementation", ("eager", *(("cpu",) if has_compiler() else ())))
@pytest.mark.parametrize("value", (math.nan, math.inf, -math.inf))
@pytest.mark.parametrize("text", ("window(left=3)", "stride(2) & causal()"))
def test_what_no_pair_reads_of_a_table_changes_nothing(implementation, value, text):
    n, far = 90, torch.arange(90)
    unread = far > 3 if text == "window(left=3)" else far % 2 == 1

    def results(value):
        relative, bias = normal(n, 4, dtype=torch.float32), normal(4, n, dtype=torch.float32, seed=1)
        relative[unread], bias[:, unread] = value, value
        leaves = [x.requires_grad_() for x in (*operands(n=n, dtype=torch.float32), relative, bias)]
        terms = Terms(relative=relative, bias=DistanceTable(bias), softcap=3.0)
        out, lse = attend(*leaves[:3], text, terms=terms, return_lse=True, implementation=implementation)
        return out, lse, *torch.autograd.grad(out.square().sum() + lse.sum(), leaves)

    torch.testing.assert_close(results(value), results(0.0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("implementation", ("eager", "reference", *(("cpu",) if has_compiler() else ())))
@pytest.mark.parametrize("term", ("bias", "sinks"))
def test_no_number_is_not_hidden(implementation, term):
    """A bias or sink of NaN shows in what reads it: only -inf says that a key is not read."""
    spoilt = torch.tensor([0.0, math.nan, 0.0, 0.0])
    terms = Terms(sinks=spoilt) if term == "sinks" else Terms(bias=Alibi(spoilt))
    out = attend(*operands(dtype=torch.float32), "causal()", terms=terms, implementation=implementation)
    assert out[:, 1].isnan().all()
    assert out[:, [0, 2, 3]].isfinite().all()


# --- refusals --------------------------------------------------------------------------------------------------------

ones = torch.ones
REFUSED = {
    "slopes of other heads": (lambda: Terms(bias=Alibi(ones(6))), ("Alibi", "6", "4")),
    "slopes of two dimensions": (lambda: Terms(bias=Alibi(ones(4, 1))), ("Alibi", "heads", "4, 1")),
    "slopes in a list": (lambda: Terms(bias=Alibi([1.0] * 4)), ("Alibi", "list")),
    "buckets of other heads": (lambda: Terms(bias=Buckets(ones(32, 3))), ("Buckets", "3", "4")),
    "too few buckets": (lambda: Terms(bias=Buckets(ones(3, 4))), ("Buckets", "4", "3")),
    "a reach of other heads": (lambda: Terms(bias=SoftSpan(ones(2), 3)), ("SoftSpan", "2", "4")),
    "no ramp": (lambda: Terms(bias=SoftSpan(ones(4), 0)), ("SoftSpan", "ramp", "0")),
    "a bias that is a tensor": (lambda: Terms(bias=ones(4)), ("bias", "Tensor", "Alibi")),
    "a table of another length": (lambda: Terms(bias=Wrong()), ("Wrong", "11", "3")),
    "a short table": (lambda: Terms(bias=DistanceTable(ones(1, 3))), ("0 to 2", "distance 5", "left=2")),
    "a table without the future": (lambda: (Terms(bias=DistanceTable(ones(4, 6))), "dense()"), ("-5", "causal()")),
    "relative positions of another width": (lambda: Terms(relative=ones(6, 7)), ("relative", "7", "8")),
    "relative positions of three dimensions": (lambda: Terms(relative=ones(6, 4, 8)), ("relative", "6, 4, 8")),
    "too few relative positions": (lambda: Terms(relative=ones(5, 8)), ("0 to 4", "distance 5", "left=4")),
    "relative positions of the future": (lambda: (Terms(relative=ones(9, 8)), "dense()"), ("-5", "causal()")),
    "sinks of other heads": (lambda: Terms(sinks=ones(2)), ("sinks", "2", "4")),
    "sinks of two dimensions": (lambda: Terms(sinks=ones(4, 1)), ("sinks", "4, 1")),
    "sinks elsewhere": (lambda: Terms(sinks=ones(4, device="meta")), ("sinks", "meta", "cpu")),
    "a softcap of 0": (lambda: Terms(softcap=0.0), ("softcap", "0")),
    "a negative softcap": (lambda: Terms(softcap=-1.0), ("softcap", "-1")),
    "a softcap that is a text": (lambda: Terms(softcap="50"), ("softcap", "50")),
    "a softcap that float32 has not": (lambda: Terms(softcap=1e-300), ("softcap", "1e-300", "1e-30")),
    "a softcap of many digits": (lambda: Terms(softcap=10**400), ("softcap", "bits")),
    "a ramp of many digits": (lambda: Terms(bias=SoftSpan(ones(4), 10**400)), ("ramp", "bits")),
    "a table that begins nowhere": (lambda: Terms(bias=DistanceTable(ones(4, 9), 0.5)), ("first", "0.5")),
    "a table that begins too far": (lambda: Terms(bias=DistanceTable(ones(4, 9), 2**70)), ("first", "2^62")),
    "buckets up to a text": (lambda: Terms(bias=Buckets(ones(32, 4), max_distance="a")), ("max_distance", "'a'")),
    "buckets up to no number": (lambda: Terms(bias=Buckets(ones(32, 4), max_distance=math.nan)), ("nan",)),
    "buckets up to too many digits": (lambda: Terms(bias=Buckets(ones(32, 4), max_distance=10**400)), ("bits",)),
    "a class as a bias": (lambda: Terms(bias=Alibi), ("bias", "class Alibi")),
    "sparse sinks": (lambda: Terms(sinks=ones(4).to_sparse()), ("sinks", "strided")),
    "sparse slopes": (lambda: Terms(bias=Alibi(ones(4).to_sparse())), ("Alibi", "strided")),
    "slopes of 8 bits": (lambda: Terms(bias=Alibi(ones(4).to(torch.float8_e4m3fn))), ("Alibi", "float8")),
    "a sparse table": (lambda: Terms(bias=Given(ones(4, 11).to_sparse())), ("Given", "strided")),
    "a complex table": (lambda: Terms(bias=Given(ones(4, 11) + 1j)), ("Given", "complex64")),
    "a rate of 1": (lambda: Terms(dropout=Dropout(1.0, 0)), ("rate", "1.0")),
    "a negative rate": (lambda: Terms(dropout=Dropout(-0.1, 0)), ("rate", "-0.1")),
    "a rate that is no number": (lambda: Terms(dropout=Dropout(None, 0)), ("rate", "None")),
    "a negative seed": (lambda: Terms(dropout=Dropout(0.1, -1)), ("seed", "-1")),
    "a seed of 65 bits": (lambda: Terms(dropout=Dropout(0.1, 2**64)), ("seed", str(2**64))),
    "a broken seed": (lambda: Terms(dropout=Dropout(0.1, 0.5)), ("seed", "0.5")),
    "a rate alone": (lambda: Terms(dropout=0.1), ("dropout", "0.1", "Dropout")),
    "no terms": (lambda: {"softcap": 1.0}, ("terms", "dict")),
}


class Given:
    def __init__(self, values):
        self.values = values

    def table(self, first, past):
        return self.values


class Wrong:
    def table(self, first, past):
        return ones(1, 3)


@pytest.mark.parametrize("implementation", ("eager", "reference", *(("cpu",) if has_compiler() else ())))
@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_what_was_asked_and_seen(name, implementation):
    make, parts = REFUSED[name]
    with pytest.raises(KernelError) as refused:
        made = make()
        terms, text = made if isinstance(made, tuple) else (made, "causal()")
        attend(*tensors(), text, terms=terms, implementation=implementation)
    (line,) = str(refused.value).splitlines()
    for part in parts:
        assert part in line


def test_an_implementation_refuses_the_terms_that_it_cannot_compute():
    terms = Terms(relative=torch.ones(6, 8), dropout=Dropout(0.5, 1))
    with pytest.raises(KernelError, match='"dense" cannot compute relative, dropout of terms: use'):
        attend(*tensors(), patterns.causal(), terms=terms, implementation="dense")


def test_dense_refuses_to_round_a_bias():
    with pytest.raises(KernelError, match='"dense" rounds bias and sinks to the dtype of q, torch.bfloat16: use'):
        terms = Terms(sinks=torch.zeros(4))
        attend(*tensors(dtype=torch.bfloat16), "causal()", terms=terms, implementation="dense")
