"""Terms of the score in the Triton kernels: on a GPU where there is one, else under Triton's interpreter."""

import math
from dataclasses import fields, is_dataclass, replace

import numpy as np
import pytest
import term_cases
import torch
from hypothesis import strategies as st
from kernel_cases import assert_equal_bits
from oracle import rule
from strategies import build, hold, rules, steps_are_one, tiers
from term_cases import TermCase, check_terms, check_unread, computed, term_inputs_of
from test_dropout import assert_the_pairs_of_the_oracle_are_dropped
from test_terms import RANDOM123
from test_triton import DEVICE, WIDTHS, Case, Moved, short_pieces, whole_tiles  # noqa: F401

from asterism import Alibi, DistanceTable, Dropout, Terms, attend, compile_pattern
from asterism.errors import KernelError
from asterism.kernels.operands import Operands
from asterism.kernels.triton import distances, kernel, tables
from asterism.kernels.triton.terms import _tanh, _words
from asterism.patterns import Pattern

triton = pytest.importorskip("triton")
tl = triton.language

pytestmark = [
    pytest.mark.usefixtures("poison"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton"),  # numpy's, where a GPU would make inf or NaN
]


def moved(value):
    """Terms, or whatever else, with their tensors on the device under test; patterns have none."""
    if isinstance(value, torch.Tensor):
        return Moved.apply(value)
    if not is_dataclass(value) or isinstance(value, Pattern):
        return value
    return replace(value, **{field.name: moved(getattr(value, field.name)) for field in fields(value)})


@pytest.fixture(autouse=True)
def on_the_device(monkeypatch):
    def attend_there(*tensors, terms, **keywords):
        tensors, keywords = [moved(x) for x in tensors], {name: moved(x) for name, x in keywords.items()}
        found = attend(*tensors, terms=moved(terms), **keywords)
        return tuple(x.cpu() for x in found) if isinstance(found, tuple) else found.cpu()

    if DEVICE.type == "cuda":
        monkeypatch.setattr(term_cases, "attend", attend_there)


@st.composite
def cases(draw) -> TermCase:
    """Widths that are no power of 2 besides, and small batches: an interpreter is slow."""
    chosen = draw(term_cases.term_cases("triton"))
    width, value_width = draw(st.sampled_from(WIDTHS)), draw(st.sampled_from(WIDTHS))
    case = replace(chosen.case, batch=min(chosen.case.batch, 3), width=width, value_width=value_width)
    return replace(chosen, case=case)


# --- against the oracle ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", tiers(4, 400))
def test_terms_agree_with_the_oracle(count):
    hold(lambda chosen: check_terms(chosen, "triton"), cases(), count)


ALL = {"shared": False, "softcap": 1.5, "sinks": True, "dropout": 0.5}


@pytest.mark.parametrize("bias", ("table", pytest.param("span", marks=pytest.mark.slow)))
@pytest.mark.parametrize("dtype", (torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)), ids=str)
def test_all_terms_in_several_passes_and_in_pieces(bias, dtype, short_pieces, monkeypatch):  # noqa: F811
    """Sinks count once however often a row is put together, and sums of tiles need little memory at a time."""
    monkeypatch.setattr(kernel, "_SCRATCH", 2 * 2 * 32**2)
    shape = rule("columns", period=6) | rule("window", left=5)
    case = Case(shape, heads=2, n_queries=96, n_keys=106, offset=6, batch=1, width=8, dtype=dtype, padding=True)
    program = tables.tabulate(compile_pattern(build(shape), 96, 106, query_offset=6), torch.device("cpu"), 2, 1)
    assert len(program.parts) > 1 and any(part.rows.slots for part in program.parts)
    check_terms(TermCase(case, bias=bias, **ALL), "triton")


@pytest.mark.parametrize("shared", (pytest.param(True, marks=pytest.mark.slow), False))
def test_heads_with_patterns_of_their_own_have_biases_of_their_own(shared):
    parts = (rule("strided", stride=5), rule("window", left=9, right=2), rule("dense"), rule("stride", period=3))
    case = Case(
        replace(rule("per_head"), parts=parts),
        heads=4,
        kv_heads=2,
        n_queries=20,
        n_keys=27,
        batch=1,
        dtype=torch.float32,
    )
    check_terms(TermCase(case, bias="table", shared=shared), "triton")


@pytest.mark.parametrize("softcap", (0.5, pytest.param(30.0, marks=pytest.mark.slow)))
def test_blocks_smaller_than_tiles(softcap, monkeypatch):
    monkeypatch.setattr(kernel, "_BLOCKS", dict.fromkeys(kernel._BLOCKS, kernel._Blocks(16, 32, 4, 1)))
    case = Case(rule("stride", period=2), n_queries=50, n_keys=50, batch=1, dtype=torch.float32)
    assert compile_pattern("stride(2)", 50).tile >= 32
    check_terms(TermCase(case, bias="buckets", **ALL | {"softcap": softcap}), "triton")


@pytest.mark.parametrize("count", tiers(1, 100))
def test_what_unread_keys_hold_changes_nothing(count):
    """Also where a bias of -inf is the reason."""
    sparse = rule("columns", period=3, count=2)
    by_ones = cases().filter(lambda x: steps_are_one(x.case.rule))
    spans = by_ones.map(lambda x: replace(x, bias="span", case=replace(x.case, rule=x.case.rule & sparse)))
    hold(lambda chosen: check_unread(chosen, "triton"), spans, count)


@pytest.mark.parametrize("full", (True, False), ids=("full tiles", "mixed tiles"))
def test_keys_that_a_bias_keeps_from_being_read_may_hold_anything(full):
    """A bias of -inf at all distances but 0 and 1, so that the last 20 of 64 keys have no reader among 40 queries."""
    text = "dense()" if full else "dense() & ~columns(9)"
    table = torch.full((1, 103), -math.inf)
    table[0, 63:65] = 0.5
    found = []
    for bad in (0.0, math.nan):
        k, v = torch.randn(2, 1, 1, 64, 8, generator=torch.Generator().manual_seed(0))
        k[:, :, 44:], v[:, :, 44:] = bad, bad
        leaves = [x.to(DEVICE).requires_grad_() for x in (k[:, :, :40].clone(), k, v, table)]
        terms = Terms(bias=DistanceTable(leaves[3], first=-63))
        out, lse = attend(*leaves[:3], text, query_offset=0, terms=terms, return_lse=True, implementation="triton")
        gradients = torch.autograd.grad(out.sum() + lse[lse.isfinite()].sum(), leaves)
        found.append(dict(enumerate(x.detach().cpu() for x in (out, lse, *gradients))))
        assert not any(x.isnan().any() for x in found[-1].values())
    assert_equal_bits(*found)


@pytest.mark.parametrize("repeats", (2, pytest.param(10, marks=pytest.mark.slow)))
def test_equal_bits(repeats, short_pieces):  # noqa: F811
    shape = rule("strided", stride=8) | rule("global_tokens", positions=(0, 50))
    case = Case(shape, batch=1, heads=1, n_queries=60, n_keys=60, dtype=torch.bfloat16, width=16)
    chosen = TermCase(case, bias="alibi", **ALL)
    first = computed(chosen, term_inputs_of(chosen), "triton")
    for _ in range(repeats - 1):
        assert_equal_bits(first, computed(chosen, term_inputs_of(chosen), "triton"))


@pytest.mark.parametrize("shape", ((0, 0), (0, 5), (1, 1)))
def test_none_and_one(shape):
    n_queries, n_keys = shape
    q, k, v = (torch.randn(1, 2, n, 3, device=DEVICE, requires_grad=True) for n in (n_queries, n_keys, n_keys))
    slopes, sinks = (torch.ones(2, device=DEVICE, requires_grad=True) for _ in range(2))
    terms = Terms(Alibi(slopes), softcap=2.0, sinks=sinks, dropout=Dropout(0.5, 1))
    out, lse = attend(q, k, v, "causal()", terms=terms, return_lse=True, implementation="triton")
    (out.sum() + lse.sum()).backward()
    assert out.shape == (1, 2, n_queries, 3) and lse.shape == (1, 2, n_queries)
    assert not any(x.isnan().any() for x in (out, lse, q.grad, slopes.grad, sinks.grad))


# --- dropout ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "text"),
    [
        (13, "fixed(6, 2) | stride(7)"),
        *(
            pytest.param(offset, text, marks=pytest.mark.slow)
            for offset in (0, 13)
            for text in ("dense()", "strided(5)", "bigbird(block=8)")
        ),
    ],
)
def test_equal_pairs_are_dropped(offset, text):
    assert_the_pairs_of_the_oracle_are_dropped("triton", offset, text, DEVICE)


@pytest.mark.parametrize("rate", (1e-11, 1 - 1e-11))
def test_rates_that_32_bits_cannot_tell_from_none_and_all(rate):
    q = torch.randn(1, 1, 20, 8, device=DEVICE)
    terms = Terms(dropout=Dropout(rate, 1))
    found = attend(q, q, q, "causal()", terms=terms, implementation="triton")
    plain = attend(q, q, q, "causal()", implementation="triton")
    assert torch.equal(found, plain if rate < 0.5 else torch.zeros_like(q))


@triton.jit
def words_of(counter, key, found):
    same = tl.zeros([16], tl.int64)
    queries, quads = (same + tl.load(counter)).to(tl.uint32), (same + tl.load(counter + 1)).to(tl.uint32)
    head, row = tl.load(counter + 2), tl.load(counter + 3)
    low, high = tl.load(key).to(tl.int32), tl.load(key + 1).to(tl.int32)
    one, two, three, four = _words(queries, quads, head, row, low, high)
    tl.store(found, tl.max(tl.max(one.to(tl.int64), 1), 0))
    tl.store(found + 1, tl.max(tl.max(two.to(tl.int64), 1), 0))
    tl.store(found + 2, tl.max(tl.max(three.to(tl.int64), 1), 0))
    tl.store(found + 3, tl.max(tl.max(four.to(tl.int64), 1), 0))


@pytest.mark.parametrize(("counter", "key", "words"), RANDOM123)
def test_philox_gives_the_known_answers_of_random123(counter, key, words):
    counter, key, words = ([int(word, 16) for word in text.split()] for text in (counter, key, words))
    found = torch.zeros(4, dtype=torch.int64, device=DEVICE)
    words_of[(1,)](torch.tensor(counter, device=DEVICE), torch.tensor(key, device=DEVICE), found)
    assert found.tolist() == words


# --- the soft cap ----------------------------------------------------------------------------------------------------


@triton.jit
def tanh_of(x, found, N: tl.constexpr):
    places = tl.arange(0, N)
    tl.store(found + places, _tanh(tl.load(x + places)))


def test_tanh_has_the_digits_of_float32():
    """Relative to the result: near 0 a formula of exponentials alone would have none left."""
    ends = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-40, 3e38, -3e38]
    around = [0.625, 0.6249999, -0.625, -0.6249999, 9.0, -9.0, 20.0, 1e-8]
    x = np.concatenate([ends, around, np.geomspace(1e-12, 1e3, 1000), -np.geomspace(1e-6, 30, 1032)]).astype(np.float32)
    given = torch.from_numpy(x).to(DEVICE)
    found = torch.empty_like(given)
    tanh_of[(1,)](given, found, len(x))
    np.testing.assert_allclose(found.cpu().double().numpy(), np.tanh(x.astype(np.float64)), rtol=4e-7, atol=1e-44)


# --- tiles by distance -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", tiers(15, 500))
def test_tiles_are_put_together_by_distance(count, short_pieces):  # noqa: F811
    """Every pair is there once, and those of one place in a piece have the distance that `_distances` says."""

    def law(drawn):
        text, heads, n_queries, n_keys, tile = drawn
        plan = compile_pattern(build(text), n_queries, n_keys, tile=tile)
        device, counts = torch.device("cpu"), np.zeros((heads, n_queries, n_keys), int)
        program = tables.tabulate(plan, device, heads, heads)
        bits = np.unpackbits(program.masks[:, 0].numpy().view(np.uint8), axis=-1, bitorder="little")[..., :tile]
        for part, lists in zip(program.parts, distances.tabulate_by_distance(plan, device, heads), strict=True):
            expected = distances._distances(part, lists, lists.pieces, tile).numpy() - (n_keys - 1)
            orders = [
                np.arange(n) if index is None else index.numpy()
                for n, index in ((part.n_queries, part.query_index), (part.n_keys, part.key_index))
            ]
            for (which, _, first, full, number, _), places in zip(lists.pieces.tolist(), expected, strict=True):
                for place, (column, kind, row) in enumerate(lists.entries[first : first + number].tolist()):
                    assert (kind == 0) == (place < full)
                    queries, keys = (o[t * tile : (t + 1) * tile] for o, t in zip(orders, (row, column), strict=True))
                    there = bits[kind, : len(queries), : len(keys)] != 0
                    pairs = queries[:, None] - keys
                    assert (pairs == places[: len(queries), : len(keys)])[there].all()
                    for shared in range(lists.shared):
                        counts[lists.heads[which + shared]][np.ix_(queries, keys)] += there
        np.testing.assert_array_equal(counts, np.broadcast_to(plan.to_dense(), counts.shape))

    lengths = st.sampled_from(((1, 1), (15, 40), (64, 64), (97, 97), (60, 130)))
    drawn = st.sampled_from((1, 2, 3)).flatmap(
        lambda heads: st.tuples(
            rules(130, heads=heads, depth=4), st.just(heads), lengths, st.sampled_from((16, 32, 64))
        )
    )
    hold(law, drawn.map(lambda x: (x[0], x[1], *x[2], x[3])), count)


@pytest.mark.parametrize(
    ("text", "kinds"),
    [("causal()", 32), ("window(left=31)", 3), ("stride(64)", 1), ("columns(64) & blocks(64)", 4)],
)
def test_tiles_of_equal_distances_are_few(text, kinds):
    """Of 512 tokens in tiles of 16: diagonals, and in an order by residue all tiles alike."""
    plan = compile_pattern(text, 512, tile=16)
    found = distances.tabulate_by_distance(plan, torch.device("cpu"), 1)
    assert sum(len(lists.pieces) for lists in found) <= kinds


# --- the operator and what is refused --------------------------------------------------------------------------------


def test_opcheck():
    q, k, v, bias = (torch.randn(*shape, device=DEVICE) for shape in ((1, 2, 20, 8),) * 3 + ((2, 20),))
    sinks = torch.zeros(2, device=DEVICE)
    leaves = [x.requires_grad_() for x in (q, k, v, bias, sinks)]
    arguments = (*leaves[:3], None, None, bias, None, sinks, "fixed(4)", 0, 0.5, 0, 2.0, 0.3, 5)
    torch.library.opcheck(torch.ops.asterism.triton.default, arguments)


def test_only_wanted_gradients():
    """The gradient of a bias alone, and all but it."""
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(shape, generator=generator).to(DEVICE) for shape in ((1, 2, 20, 8),) * 3 + ((2, 20),)]

    def gradients(wanted):
        leaves = [x.clone().requires_grad_(place in wanted) for place, x in enumerate(given)]
        terms = Terms(bias=DistanceTable(leaves[3]))
        attend(*leaves[:3], "causal()", terms=terms, implementation="triton").square().sum().backward()
        return [x.grad for x in leaves]

    every = gradients(range(4))
    for wanted in ((3,), (0, 1, 2)):
        for place, (found, expected) in enumerate(zip(gradients(wanted), every, strict=True)):
            assert torch.equal(found, expected) if place in wanted else found is None


def test_relative_positions_are_refused():
    q = torch.zeros(1, 1, 4, 8, device=DEVICE)
    with pytest.raises(KernelError, match='"triton" cannot compute relative of terms: use "eager" or "auto"$'):
        attend(q, q, q, "causal()", terms=Terms(relative=torch.zeros(4, 8, device=DEVICE)), implementation="triton")


def test_decoding_refuses_terms():
    q = torch.zeros(1, 1, 1, 8, device=DEVICE)
    allowed = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=DEVICE)
    operands = Operands(q, q, q, None, None, allowed, "", 0, 1.0, softcap=2.0, dropout=0.1)
    assert kernel.DECODING.refusal(operands) == (
        'implementation="triton" cannot compute softcap, dropout of terms: use "auto"'
    )
