"""selected(...) against its definition in loops, against MoBA and MSA as their papers have them, its laws, refusals."""

from functools import partial

import numpy as np
import pytest
import torch
from refusals import refusing
from selected_cases import EACH, assert_near, blocks_of, differentiated, draw_case
from selected_oracle import Case, attention, choose, pairs
from slow_cases import slow_except
from torch import Tensor

from asterism import AsterismError, Choice, attend, decode, select
from asterism.errors import PatternError
from asterism.patterns import parse

pytestmark = pytest.mark.usefixtures("poison")

SEEDS, CASES = 25, 20
KINDS = ("reference", "eager", "cpu")
WANTED = ("3, first=0", "3, first=2, local=2", "3, first=0, local=0", "mass=0.6")
CHOSEN = "selected(16, 2) & causal()"


def numbers_of(opened: Tensor) -> list[list[list[list[int]]]]:
    """The same of bool [B, H, rows, blocks]."""
    return [[[row.nonzero()[:, 0].tolist() for row in head] for head in one] for one in opened]


def assert_equal(found: tuple[Tensor, ...], told: tuple[Tensor, ...]) -> None:
    assert [torch.equal(*both) for both in zip(found, told, strict=True)] == [True] * len(told)


def check_choice(case: Case, whole: bool, why: str) -> Choice:
    options = {"key_mask": case.key_mask, "query_offset": case.query_offset, "scores": case.scores}
    choice = select(case.q, case.k, case.text, **options)
    assert (choice.block, choice.query_block) == (case.block, case.query_block)
    assert choice.counts.shape == (len(case.q), case.k.shape[1], len(case.groups)), why
    found = blocks_of(choice)
    for b, h, g in np.ndindex(choice.counts.shape):
        told = choose(case, b, h, g)
        if not told.close or told.tied and whole:
            assert found[b][h][g] == told.blocks, f"{why}: batch {b}, head {h}, row {g}"
    return choice


def check_case(case: Case, whole: bool, why: str, half: str) -> None:
    choice = check_choice(case, whole, why)
    defined = partial(attention, pairs(case, blocks_of(choice)), scale=case.scale)
    shared = {"pattern": case.text, "scale": case.scale, "return_lse": True}
    shared |= {"key_mask": case.key_mask, "query_offset": case.query_offset}
    wide = case.q, case.k, case.v
    rounded = tuple(one.bfloat16() for one in wide)
    told = differentiated(defined, *wide)
    for kind, given, expected, times in (
        ("reference", wide, told, 1e-9),
        ("eager", wide, told, 1e-9),
        ("cpu", tuple(one.float() for one in wide), told, 2e-5),
        (half, rounded, differentiated(defined, *(one.double() for one in rounded)), 4e-2),
    ):
        found = differentiated(partial(attend, choice=choice, implementation=kind, **shared), *given)
        assert_near(found, expected, times, f"{why}, {kind}")
    if case.scores is None:
        found = differentiated(partial(attend, implementation="auto", **shared), *wide)
        assert_near(found, told, 1e-9, f"{why}, without a choice")


@pytest.mark.parametrize("seed", slow_except(range(SEEDS), *range(10)))
def test_generated_cases_agree_with_the_definition(seed):
    rng = np.random.default_rng(seed)
    for number in range(CASES):
        case, whole = draw_case(rng)
        check_case(case, whole, f"seed {seed}, case {number}: {case.text}", ("cpu", "eager")[number % 2])


def tensors(*shape: int, seed: int = 0, count: int = 3) -> Tensor:
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def check_paper(gates: Tensor, block: int, topk: int, pattern: str, choice: Choice, *qkv: Tensor) -> None:
    """Of gates [B, H, N, blocks] the best are open, unless they are -inf; what they open is read causally."""
    best = gates.topk(min(topk, gates.shape[3]), 3)
    opened = torch.zeros_like(gates, dtype=torch.bool).scatter(3, best.indices, best.values > -torch.inf)
    assert blocks_of(choice) == numbers_of(opened)
    n = gates.shape[2]
    read = opened.repeat_interleave(block, 3)[..., :n] & torch.ones(n, n).tril().bool()
    told = differentiated(partial(attention, read.repeat_interleave(qkv[0].shape[1] // read.shape[1], 1)), *qkv)
    attending = partial(attend, pattern=pattern, choice=choice, return_lse=True, implementation="eager")
    assert_near(differentiated(attending, *qkv), told, 1e-12, pattern)


SIZES = [(1, 16, 2), (50, 16, 1), (96, 16, 3), (150, 32, 3), (129, 16, 5)]


@pytest.mark.parametrize("n, block, topk", SIZES)
def test_moba_as_in_its_paper(n, block, topk):
    """arXiv 2502.13189: gates by the mean key of a block; the query's own block is open, and causal within."""
    q, k, v = tensors(2, 3, n, 8, seed=n)
    gates = torch.full((2, 3, n, -(-n // block)), -torch.inf, dtype=torch.float64)
    for i in range(n):
        for j in range(i // block):
            gates[:, :, i, j] = (q[:, :, i] * k[:, :, j * block : (j + 1) * block].mean(2)).sum(2)
        gates[:, :, i, i // block] = torch.inf
    pattern = f"selected(block={block}, topk={topk}, score='mean', first=0, local=1) & causal()"
    check_paper(gates, block, topk, pattern, select(q, k, pattern), q, k, v)


@pytest.mark.parametrize("n, block, topk", SIZES)
def test_msa_as_in_its_paper(n, block, topk):
    """arXiv 2606.13392: an index branch, whose best token scores its block; the local block is read for sure."""
    index_q, index_k = tensors(2, 2, n, 6, seed=n, count=2)
    q, k, v = tensors(2, 6, n, 8, seed=n + 1)
    tokens = (index_q @ index_k.transpose(2, 3)).masked_fill(~torch.ones(n, n).tril().bool(), -torch.inf)
    scores = torch.stack([part.amax(3) for part in tokens.split(block, 3)], 3)
    for i in range(n):
        scores[:, :, i, i // block] = torch.inf
    pattern = f"selected({block}, {topk}, score='max', first=0, local=1) & causal()"
    check_paper(scores, block, topk, pattern, select(index_q, index_k, pattern), q, k[:, :2], v[:, :2])


@pytest.mark.parametrize("mass", (0.5, 0.9))
def test_xattention(mass):
    """Strided slices of queries, backwards, and of keys, side by side; a softmax over groups; sums by block; the fewest
    blocks that hold the share (arXiv 2503.16428, section 3 and its code)."""
    size, stride, length, width = 32, 8, 256, 16
    q, k = 2 * tensors(1, 2, length, width, count=2)
    keys = torch.cat([k[:, :, at::stride] for at in range(stride)], dim=-1)
    queries = torch.cat([q[:, :, stride - 1 - at :: stride] for at in range(stride)], dim=-1)
    logits = queries @ keys.transpose(2, 3) / (stride * width**0.5)
    block = torch.arange(length // stride) // (size // stride)
    weights = logits.masked_fill(block >= block[:, None], -torch.inf).softmax(dim=-1).nan_to_num(nan=0.0)
    held = weights.unflatten(3, (-1, size // stride)).sum(4).unflatten(2, (-1, size // stride)).sum(3)
    choice = select(
        q, k, f"selected({size}, mass={mass}, score='antidiagonal', query_block={size}, first=0) & causal()"
    )
    for head, row in np.ndindex(2, length // size):
        wanted, total, told = mass * float(held[0, head, row].sum()), 0.0, [row]
        for j in held[0, head, row, :row].sort(descending=True, stable=True).indices.tolist():
            if total >= wanted:
                break
            told, total = [*told, j], total + float(held[0, head, row, j])
        assert blocks_of(choice)[0][head][row] == sorted(told)


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        ("16", "selected-budget"),
        ("16, 3, mass=0.5", "selected-budget"),
        ("16, mass=0.0", "selected-mass"),
        ("16, mass=1.0", "selected-mass"),
        ("16, mass=1", "selected-mass"),
        ("16, mass=-0.5", "selected-mass"),
        ("16, mass='0.5'", "selected-mass"),
        ("16, 3, 'antidiagonal'", "selected-antidiagonal"),
        ("16, 3, 'antidiagonal', query_block=12", "selected-antidiagonal"),
    ],
)
def test_budgets_that_say_nothing(wanted, code):
    with refusing(PatternError, code):
        parse(f"selected({wanted})")


@pytest.mark.parametrize("score", EACH)
def test_short_rows_are_causal_attention(score):
    qkv = tensors(2, 2, 90, 8)
    for kind in ("reference", "eager"):
        attending = partial(attend, return_lse=True, implementation=kind)
        found = differentiated(partial(attending, pattern=f"selected(16, 6, '{score}') & causal()"), *qkv)
        assert_near(found, differentiated(partial(attending, pattern="causal()"), *qkv), 1e-12, kind)


@pytest.mark.parametrize("score", EACH)
@pytest.mark.parametrize("wanted", slow_except(WANTED, "3, first=2, local=2", "mass=0.6"))
def test_one_query_at_a_time_is_the_whole(score, wanted):
    q, k, v = tensors(1, 2, 100, 8)
    pattern = f"(selected(16, {wanted}, score='{score}') | window(2)) & causal()"
    chosen = blocks_of(select(q, k, pattern))[0]
    out = attend(q, k, v, pattern, implementation="eager")
    for i in range(100):
        step = q[:, :, i : i + 1]
        assert blocks_of(select(step, k, pattern, query_offset=i))[0] == [[head[i]] for head in chosen]
        found = attend(step, k, v, pattern, implementation="eager", query_offset=i)
        torch.testing.assert_close(found, out[:, :, i : i + 1], rtol=0, atol=1e-12)
        found = attend(step, k[:, :, : i + 1], v[:, :, : i + 1], pattern, implementation="eager")  # as with a cache
        torch.testing.assert_close(found, out[:, :, i : i + 1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("score", EACH)
def test_later_tokens_change_nothing_before_them(score):
    qkv, later = tensors(1, 2, 120, 8), 9 * tensors(1, 2, 120, 8, seed=1)
    pattern = f"(selected(16, 3, '{score}') | stride(9)) & causal()"
    out, chosen = attend(*qkv, pattern, implementation="eager"), select(*qkv[:2], pattern).indices.tolist()[0]
    for n in (1, 15, 16, 17, 63, 64, 100, 119):
        before = qkv[:, :, :, :n]
        for changed in (before, torch.cat([before, later[:, :, :, n:]], 3)):
            found = blocks_of(select(*changed[:2], pattern))[0]
            assert [head[:n] for head in found] == [[[j for j in row if j >= 0] for row in x[:n]] for x in chosen]
            some = attend(*changed, pattern, implementation="eager")[:, :, :n]
            torch.testing.assert_close(some, out[:, :, :n], rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", (torch.float64, torch.float32, torch.bfloat16))
@pytest.mark.parametrize("score", (*EACH, "given"))
def test_of_equal_scores_the_lower_block_is_chosen(score, dtype):
    q, k = tensors(1, 1, 100, 8, count=2).round().to(dtype)
    k = k[:, :, :1].expand(-1, -1, 100, -1)
    scores = torch.ones(1, 1, 100, 7) if score == "given" else None
    choice = select(q, k, f"selected(16, 3, '{score}', first=0) & causal()", scores=scores)
    assert blocks_of(choice)[0][0] == [sorted({0, min(1, i // 16), i // 16}) for i in range(100)]


@pytest.mark.parametrize("score", EACH)
@pytest.mark.parametrize("query_block", (1, 24))
def test_nan_in_masked_keys_changes_nothing(score, query_block):
    key_mask = torch.rand(2, 100, generator=torch.Generator().manual_seed(2)) < 0.6
    key_mask[0, 32:48] = False
    pattern = f"(selected(16, 3, '{score}', query_block={query_block}) | window(3)) & causal()"
    for kind in KINDS:
        q, k, v = tensors(2, 2, 100, 8).to(torch.float32 if kind == "cpu" else torch.float64)
        bad_k, bad_v = (one.masked_fill(~key_mask[:, None, :, None], torch.nan) for one in (k, v))
        assert torch.equal(*(select(q, keys, pattern, key_mask=key_mask).indices for keys in (k, bad_k)))
        options = {"key_mask": key_mask, "return_lse": True, "implementation": kind}
        attending = partial(attend, pattern=pattern, **options)
        assert_equal(differentiated(attending, q, bad_k, bad_v), differentiated(attending, q, k, v))


@pytest.mark.parametrize("kind", KINDS)
def test_nan_in_blocks_that_are_not_chosen_changes_nothing(kind):
    q, k, v = tensors(1, 2, 128, 8).float()
    q, pattern = q[:, :, -1:], "selected(16, 3) & causal()"
    choice = select(q, k[:, :1], pattern)
    unread = torch.ones(8, dtype=torch.bool).index_fill(0, choice.indices.flatten().long(), False).repeat_interleave(16)
    assert unread.sum() == 5 * 16
    bad_k, bad_v = (one.masked_fill(unread[:, None], torch.nan) for one in (k, v))
    attending = partial(attend, pattern=pattern, choice=choice, return_lse=True, implementation=kind)
    assert_equal(differentiated(attending, q, bad_k, bad_v), differentiated(attending, q, k, v))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("score", ("mean", "given"))
def test_no_gradient_goes_through_the_choice(score, kind):
    index_q, index_k, scores = tensors(1, 2, 100, 7).float().requires_grad_().unbind()
    q, k, v = tensors(1, 2, 100, 8, seed=1).float()
    pattern, v = f"selected(16, 2, '{score}') & causal()", v.requires_grad_()
    choice = select(index_q, index_k, pattern, scores=scores if score == "given" else None)
    assert not choice.indices.requires_grad and not choice.counts.requires_grad
    out = attend(q, k, v, pattern, choice=choice, implementation=kind)
    gradients = torch.autograd.grad(out.sum(), (v, index_q, index_k, scores), allow_unused=True)
    assert gradients[0].any() and gradients[1:] == (None, None, None)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("heads", (1, 2, 4))
def test_a_choice_has_one_head_or_those_of_keys_or_queries(heads, kind):
    """Entries without a block and duplicates are ignored."""
    q, k, v = tensors(1, 4, 96, 8)
    case = Case("{S} & causal()", q, k[:, :2], v[:, :2], query_block=16)
    rows = torch.tensor([[-1, 0, -1, -1], [0, -1, 0, 0], [2, 1, 1, 0], [-1] * 4, [3, 3, 2, -1], [0, 5, 0, 1]])
    indices = torch.stack([rows.roll(head, 0) for head in range(heads)])[None]
    choice = Choice(indices.int(), torch.full((1, heads, 6), 4, dtype=torch.int32), 16, 16)
    told = differentiated(partial(attention, pairs(case, indices.tolist())), case.q, case.k, case.v)
    attending = partial(attend, pattern=case.text, choice=choice, return_lse=True, implementation=kind)
    given = (one.float() if kind == "cpu" else one for one in (case.q, case.k, case.v))
    assert_near(differentiated(attending, *given), told, 2e-5 if kind == "cpu" else 1e-12, kind)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_the_number_of_threads_changes_no_bit(dtype):
    q, k, v = tensors(2, 4, 500, 32).to(dtype)
    attending = partial(attend, pattern="selected(16, 6) & causal()", return_lse=True, implementation="cpu")
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            indices = select(q, k[:, :2], "selected(16, 6) & causal()").indices
            found.append((indices, *differentiated(attending, q, k[:, :2], v[:, :2])))
    finally:
        torch.set_num_threads(before)
    assert_equal(*found)


def assert_refused(refused, *arguments, **options) -> AsterismError:
    with pytest.raises(AsterismError) as caught:
        refused(*arguments, **options)
    assert str(caught.value) and "\n" not in str(caught.value)
    return caught.value


WRONG_PATTERNS = """
selected(16, 0) & causal()
selected(24, 2) & causal()
selected(0, 2) & causal()
selected(16, 2, score='least') & causal()
selected(16, 2, query_block=0) & causal()
selected(16, 2, first=-1) & causal()
selected(16, 2, local=-1) & causal()
~selected(16, 2) & causal()
~(selected(16, 2) & causal())
(selected(16, 2) | selected(16, 3)) & causal()
selected(16, 2) & causal() | selected(32, 2) & window(9)
per_head([selected(16, 2) & causal(), causal()])
""".strip().splitlines()


@pytest.mark.parametrize("pattern", WRONG_PATTERNS)
def test_patterns_that_are_refused(pattern):
    q, k, v = tensors(1, 2, 64, 8)
    choice = select(q, k, CHOSEN)
    for options in ({}, {"choice": choice}):
        assert isinstance(assert_refused(attend, q, k, v, pattern, **options), PatternError)
    assert isinstance(assert_refused(select, q, k, pattern), PatternError)


WRONG_CHOICES = {
    "fewer rows": lambda i, c: (i[:, :, 1:], c[:, :, 1:]),
    "another batch": lambda i, c: (i.repeat(2, 1, 1, 1), c.repeat(2, 1, 1)),
    "three heads": lambda i, c: (i[:, :1].repeat(1, 3, 1, 1), c[:, :1].repeat(1, 3, 1)),
    "one axis less": lambda i, c: (i[:, 0], c[:, 0]),
    "int64": lambda i, c: (i.long(), c),
    "floats": lambda i, c: (i.float(), c),
    "another block": lambda i, c: (i, c, 32),
    "another query_block": lambda i, c: (i, c, 16, 16),
    "beyond the blocks": lambda i, c: (torch.where(torch.arange(i.shape[3]) == 0, 4, i), c),
}


@pytest.mark.parametrize("name", WRONG_CHOICES)
def test_choices_that_are_refused(name):
    q, k, v = tensors(1, 4, 64, 8).float()
    k, v = k[:, :2], v[:, :2]
    choice = select(q, k, CHOSEN)
    made = WRONG_CHOICES[name](choice.indices, choice.counts)

    def attending(kind):
        attend(q, k, v, CHOSEN, choice=Choice(*made, *(16, 1)[len(made) - 2 :]), implementation=kind)

    for kind in (*KINDS, "auto"):
        assert_refused(attending, kind)


def test_what_else_is_refused():
    q, k, v = tensors(1, 2, 64, 8)
    given, scores = "selected(16, 2, score='given') & causal()", torch.zeros(1, 2, 64, 4)
    assert_refused(select, q, k, given)
    assert_refused(attend, q, k, v, given)
    assert_refused(select, q, k, CHOSEN, scores=scores)
    for wrong in (scores[..., :3], scores[:, :1], scores[:, :, 1:], scores[0]):
        assert_refused(select, q, k, given, scores=wrong)
    assert_refused(select, q, k, "causal()")
    assert_refused(attend, q, k, v, "causal()", choice=select(q, k, given, scores=scores))
    positions = torch.arange(64)[None]
    assert_refused(decode, q[:, :, -1:], k, v, CHOSEN, positions[:, -1:], positions)


@pytest.mark.parametrize("implementation", ("cpu", "eager"))
def test_a_gap_in_a_choice_hides_no_block(implementation):
    q, k, v = tensors(1, 1, 70, 8).float()
    pattern = "selected(16, 2, first=0, local=0)"
    for listed in ([-1, 3], [2, -1, 3], [1, -1, 0, 1], [3, 2, 1]):
        indices = torch.tensor(listed, dtype=torch.int32).expand(1, 1, 70, -1)
        choice = Choice(indices, torch.zeros(1, 1, 70, dtype=torch.int32), 16)
        found = attend(q, k, v, pattern, choice=choice, implementation=implementation)
        told = attend(q, k, v, pattern, choice=choice, implementation="reference")
        torch.testing.assert_close(found, told, rtol=0, atol=1e-5)


@pytest.mark.parametrize("implementation", ("cpu", "eager"))
def test_second_derivatives_are_refused(implementation):
    qkv = [x.requires_grad_() for x in tensors(1, 1, 40, 8).float().unbind()]
    for power in (1, 2):
        out = attend(*qkv, "selected(16, 2) & causal()", implementation=implementation)
        first = torch.autograd.grad((out**power).sum(), qkv, create_graph=True)
        with pytest.raises((AsterismError, RuntimeError), match="second derivatives|twice"):
            sum(x.square().sum() for x in first).backward()


def test_tensors_without_numbers_are_refused():
    from torch._subclasses.fake_tensor import FakeTensorMode

    pattern = "selected(16, 2) & causal()"
    with pytest.raises(AsterismError, match="numbers"):
        attend(*torch.empty(3, 1, 1, 40, 8, device="meta"), pattern)
    with FakeTensorMode(), pytest.raises(AsterismError, match="numbers"):
        attend(*torch.empty(3, 1, 1, 40, 8), pattern)


def test_a_block_longer_than_the_sequence_costs_no_more():
    q, k, v = tensors(1, 1, 70, 8)
    for implementation in ("eager", "reference"):
        found = attend(q, k, v, f"selected({2**40}, 2) & causal()", implementation=implementation)
        torch.testing.assert_close(found, attend(q, k, v, "causal()", implementation=implementation))
    found = attend(q.float(), k.float(), v.float(), f"selected({2**40}, 2) & causal()", implementation="cpu")
    torch.testing.assert_close(found.double(), attend(q, k, v, "causal()"), rtol=0, atol=1e-5)


def test_patterns_with_heads_are_refused():
    with pytest.raises(AsterismError, match="alike for all heads"):
        select(*tensors(1, 2, 40, 8, count=2), "selected(16, 2) & per_head([causal(), window(3)])")
