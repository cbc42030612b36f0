"""Packed sequences: `cu_seqlens`, and documents in every implementation, against separate rows and the oracle."""

from dataclasses import replace
from itertools import accumulate

import oracle
import pytest
import strategies
import torch
from hypothesis import strategies as st
from kernel_cases import Case, check, check_unread, implementations
from refusals import refusing
from strategies import build, hold, tiers

from asterism import attend, patterns
from asterism.errors import AsterismError, KernelError
from asterism.kernels import Alibi, Buckets, Dropout, Terms
from asterism.kernels.packed import _READ, _read_once, one_after_another

pytestmark = pytest.mark.usefixtures("poison")

INNER = ("bigbird(block=8, heads=2)", "strided(5) | global_tokens(-1)", "fixed(8, summary=2)", "star_transformer()")
IN_FLOAT64 = implementations(torch.float64)


def cut(lengths):
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)


def packed_tensors(total, heads=4, kv_heads=2, batch=1, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((heads, 6), (kv_heads, 6), (kv_heads, 5))
    return [torch.randn(batch, h, total, d, generator=generator, dtype=torch.float64).to(dtype) for h, d in shapes]


def with_gradients(compute, tensors):
    leaves = [x.detach().requires_grad_() for x in tensors]
    results = compute(*leaves)
    weights = [torch.linspace(-1, 2, x.numel(), dtype=x.dtype).reshape(x.shape) for x in results]
    weights = [w.masked_fill(x == -torch.inf, 0) for x, w in zip(results, weights, strict=True)]
    return [*results, *torch.autograd.grad(results, leaves, weights)]


def one_by_one(pattern, lengths, implementation, **masks):
    """Each document attended to by itself, and the results laid side by side."""

    def compute(q, k, v):
        results = []
        for start, past in zip(cut(lengths).tolist(), cut(lengths).tolist()[1:], strict=False):
            own = {name: x[:, start:past] if torch.is_tensor(x) else x for name, x in masks.items()}
            some = (x[:, :, start:past] for x in (q, k, v))
            results.append(attend(*some, pattern, return_lse=True, implementation=implementation, **own))
        return [torch.cat(parts, dim=2) for parts in zip(*results, strict=True)]

    return compute


def all_at_once(pattern, lengths, implementation, **masks):
    def compute(q, k, v):
        options = {"cu_seqlens": cut(lengths), "implementation": implementation, **masks}
        return attend(q, k, v, pattern, return_lse=True, **options)

    return compute


@st.composite
def _batches(draw):
    drawn = draw(strategies.rules(70, heads=4, depth=3))
    lengths = draw(st.lists(st.sampled_from((0, 1, 2, 7, 16, 17, 32, 64, 70)), min_size=1, max_size=6))
    return (
        drawn,
        lengths,
        draw(st.sampled_from(("eager", "reference"))),
        draw(st.booleans()),
        draw(st.booleans()) and "across" not in drawn.names,
    )


@pytest.mark.parametrize("count", tiers(13, 500))
def test_packed_documents_equal_separate_rows(count):
    """Within 1e-12 in float64, forward and gradients, with padding and segments."""

    def law(case):
        drawn, lengths, implementation, padded, segmented = case
        total = sum(lengths)
        masks = {"key_mask": torch.arange(total)[None] % 5 > 0} if padded else {}
        masks |= {"segments": torch.arange(total)[None] // 9 % 2} if segmented else {}
        question = build(drawn), lengths, implementation
        tensors = packed_tensors(total)
        found = with_gradients(all_at_once(*question, **masks), tensors)
        expected = with_gradients(one_by_one(*question, **masks), tensors)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, atol=1e-12, rtol=0)

    hold(law, _batches(), count)


@pytest.mark.parametrize("implementation", IN_FLOAT64)
@pytest.mark.parametrize("text", INNER)
def test_rows_that_are_cut_alike(text, implementation):
    """A batch of 3; "dense" has no log-sum-exp."""
    lengths, heads = (20, 0, 33, 1, 16), {"heads": 2, "kv_heads": 1} if "heads=2" in text else {}
    tensors = packed_tensors(70, batch=3, **heads)
    out = attend(*tensors, text, cu_seqlens=cut(lengths).long(), implementation=implementation)
    expected = one_by_one(text, lengths, "reference")(*tensors)[0]
    torch.testing.assert_close(out, expected, atol=1e-12, rtol=0)


TERMS = {
    "alibi": lambda: Terms(bias=Alibi(torch.tensor([0.5, 0.25, 0.1, 0.0], dtype=torch.float64))),
    "buckets": lambda: Terms(bias=Buckets(torch.linspace(-1, 1, 64, dtype=torch.float64).view(16, 4))),
    "relative": lambda: Terms(relative=torch.linspace(-1, 1, 60, dtype=torch.float64).view(10, 6)),
    "softcap and sinks": lambda: Terms(softcap=2.0, sinks=torch.linspace(-1, 2, 4, dtype=torch.float64)),
}


@pytest.mark.parametrize("implementation", ("eager", "reference"))
@pytest.mark.parametrize("name", TERMS)
def test_distances_are_those_inside_a_document(name, implementation):
    """Also for a learned table that is shorter than the packed row, of which the pattern reads no more."""
    terms, lengths, tensors = TERMS[name](), (20, 1, 0, 33, 16), packed_tensors(70)
    options = ("window(left=9)" if name == "relative" else "bigbird(block=8)"), lengths, implementation
    found, expected = (with_gradients(way(*options, terms=terms), tensors) for way in (all_at_once, one_by_one))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=0)


def test_dropout_counts_positions_in_the_packed_row():
    """So two documents that are equal do not lose the same pairs; and every implementation drops the same."""
    tensors = [x.repeat(1, 1, 2, 1) for x in packed_tensors(30)]
    options = {"cu_seqlens": [0, 30, 60], "terms": Terms(dropout=Dropout(0.4, 5))}
    out = attend(*tensors, "causal()", implementation="reference", **options)
    assert not torch.isclose(out[:, :, 15:30], out[:, :, 45:]).all(dim=-1).any()
    torch.testing.assert_close(attend(*tensors, "causal()", implementation="eager", **options), out)


@pytest.mark.parametrize("implementation", implementations(torch.float32))
@pytest.mark.parametrize("sizes", ((), (1,) * 1000, (300,), (100, -28, 128, 5, -59), (20, 7, 64, 1, -5, 100, 60)))
def test_documents_against_the_oracle(sizes, implementation):
    """Forward, gradients, and what nobody reads, padding between documents too."""
    total = max(sum(map(abs, sizes)), 5)
    rule = oracle.documents(oracle.rule("window", left=4, right=1) | oracle.rule("global_keys", positions=-1), *sizes)
    case = Case(rule, heads=2, kv_heads=1, n_queries=total, n_keys=total, dtype=torch.float32, padding=True, batch=1)
    check(case, implementation)
    if total < 1000:
        sparser = replace(case, segments=True, rule=rule & ~oracle.rule("columns", period=9))
        hold(lambda case: check_unread(case, implementation), st.just(sparser), 1)


def test_half_precision():
    for implementation in implementations(torch.bfloat16):
        rule = oracle.documents(oracle.rule("strided", stride=6), 30, 70, 64, 1)
        check(Case(rule, heads=2, n_queries=165, n_keys=165, dtype=torch.bfloat16, batch=8), implementation)


def test_nothing_is_in_the_batch():
    for lengths in ((), (0, 0)):
        out = attend(*packed_tensors(0), "causal()", cu_seqlens=cut(lengths))
        assert out.shape == (1, 4, 0, 5)


@pytest.mark.parametrize(
    ("change", "message"),
    (
        (dict(cu_seqlens=torch.tensor([0, 5, 9])), "from 0 to the number of tokens, 10; got 0 to 9"),
        (dict(cu_seqlens=torch.tensor([0, 5, 11])), "got 0 to 11"),
        (dict(cu_seqlens=torch.tensor([5, 10])), "got 5 to 10"),
        (dict(cu_seqlens=[]), "got nothing"),
        (dict(cu_seqlens=torch.tensor([0, 7, 5, 10])), "must not decrease, got 7 and then 5 at 2"),
        (dict(cu_seqlens=torch.tensor([0.0, 10.0])), r"int32 or int64, got \[2\] of torch.float32"),
        (dict(cu_seqlens=torch.tensor([0, 10], dtype=torch.uint8)), "got .* of torch.uint8"),
        (dict(cu_seqlens=torch.tensor([[0, 10]])), r"got \[1, 2\] of"),
        (dict(cu_seqlens=[0, 4.5, 10]), "must be whole numbers"),
        (dict(cu_seqlens=7), "must be whole numbers"),
        (dict(cu_seqlens=torch.zeros(3, dtype=torch.int32, device="meta")), "on the CPU or on cpu as q is, got meta"),
        (dict(cu_seqlens=torch.tensor([0, 10]).to_sparse()), "ordinary .strided. tensor"),
        (dict(cu_seqlens=[0, 10], query_offset=torch.tensor([0, 0])), "query_offset tensor"),
        (dict(cu_seqlens=torch.tensor([0, 10]), query_offset=3), "query_offset 3"),
        (
            dict(cu_seqlens=torch.tensor([0, 10]), pattern="explicit('0:0-4', size=5)"),
            "got 10 positions, but the pattern covers 5",
        ),
    ),
)
def test_lengths_that_do_not_fit_get_one_clear_line(change, message):
    options = {"pattern": "causal()", **change}
    with pytest.raises(AsterismError, match=message) as refused:
        attend(*packed_tensors(10), **options)
    assert "\n" not in str(refused.value)


def test_fewer_queries_are_refused():
    q, k, v = packed_tensors(10)
    with refusing(KernelError, "cu-seqlens-across", "4", "10"):
        attend(q[:, :, :4], k, v, "causal()", cu_seqlens=[0, 10])


def test_equal_cuts_are_one_pattern():
    """Whatever they are written in, so that plans and graphs are found again."""
    q, k, v = packed_tensors(30)
    one_after_another.cache_clear()
    for given in (cut((10, 20)), cut((10, 20)).long(), [0, 10, 30], torch.tensor([0, 10, 30])):
        attend(q, k, v, patterns.causal(), cu_seqlens=given)
    assert one_after_another.cache_info().misses == 1


def test_a_tensor_is_read_again_only_after_it_was_written_to(monkeypatch):
    reads = []
    tolist = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda x: reads.append(x) or tolist(x))
    given = cut((3, 4))
    assert [_read_once(given) for _ in range(3)] == [(0, 3, 7)] * 3 and len(reads) == 1
    given[1] = 5
    assert _read_once(given) == (0, 5, 7)
    twin = given.clone()
    assert _read_once(twin) == (0, 5, 7) and len(reads) == 3
    before = len(_READ)
    reads.clear()
    del given, twin
    assert len(_READ) == before - 2


@pytest.mark.filterwarnings("ignore:.*compile_threads.*")
def test_lengths_that_are_known_compile_without_a_break():
    q, k, v = (x.requires_grad_() for x in packed_tensors(96, dtype=torch.float32))

    def packed(q, k, v):
        return attend(q, k, v, "bigbird(block=8)", cu_seqlens=[0, 30, 96])

    compiled = torch.compile(packed, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q, k, v), packed(q, k, v))
    torch.autograd.grad(compiled(q, k, v).sum(), (q, k, v))
    with pytest.raises(Exception, match="lengths of documents must be constants"):
        torch.compile(lambda c: attend(q, k, v, "causal()", cu_seqlens=c), fullgraph=True, backend="eager")(cut((96,)))
