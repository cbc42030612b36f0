"""Parts of sequences: some queries and some keys, compared with the rows and columns of the whole."""

import time
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import strategies
import torch
from hypothesis import strategies as st
from kernel_cases import DTYPES_OF, Case, cases, check, check_unread, implementations
from laws import check_spans, check_verdict
from oracle import Rule, rule
from plans import assert_plan_is
from refusals import refusing
from strategies import LENGTHS, TILES, build, hold, tiers

from asterism import Alibi, Terms, attend, compile_pattern, patterns
from asterism.compiler.devices.needs import needed_keys
from asterism.errors import KernelError, PatternError
from asterism.patterns.pattern import Ranges, Verdict
from asterism.patterns.runs import Runs

ALL = implementations(torch.float32)


# --- sets of positions -----------------------------------------------------------------------------------------------


def positions(runs) -> np.ndarray:
    parts = [np.arange(*run) for run in runs]
    return np.concatenate([np.zeros(0, np.int64), *parts])


@st.composite
def sets(draw, length: int):
    """Ascending runs: none, a stretch, a token, a progression, residues, or stretches and progressions."""
    kind = draw(st.sampled_from(("none", "range", "token", "progression", "residues", "many", "many")))
    if kind == "none":
        return ()
    first = draw(st.integers(0, length - 1))
    match kind:
        case "token":
            return ((first, first + 1),)
        case "progression":
            return ((first, length, draw(st.integers(1, 9))),)
        case "residues":
            period = draw(st.integers(1, 17))
            residue = draw(st.integers(0, min(period, length) - 1))
            past = draw(st.integers(residue + 1, period))
            return tuple((at + residue, min(at + past, length)) for at in range(0, length - residue, period))
        case "many":
            cuts = draw(st.lists(st.integers(0, length), min_size=2, max_size=12, unique=True).map(sorted))
            return tuple(
                (a, b, draw(st.sampled_from((1, 1, 2, 3)))) for a, b in zip(cuts[::2], cuts[1::2], strict=False)
            )
    return ((first, draw(st.integers(first + 1, length))),)


@st.composite
def parts(draw, heads: int = 2, depth: int = 3) -> Rule:
    length = draw(st.sampled_from(LENGTHS))
    inner = draw(strategies.rules(length, heads=heads, depth=depth))
    queries = draw(sets(length))
    keys = draw(st.one_of(st.just(queries), sets(length)))
    return Rule("part", (("length", length), ("queries", queries), ("keys", keys)), (inner,))


def sizes(drawn: Rule) -> tuple[int, int]:
    given = dict(drawn.arguments)
    return len(positions(given["queries"])), len(positions(given["keys"]))


def rows_of_whole(drawn: Rule) -> np.ndarray:
    """bool [heads, queries, keys]: what the inner pattern says of the whole sequence."""
    given = dict(drawn.arguments)
    whole = build(drawn.parts[0]).dense(given["length"], given["length"], 0)
    return whole[:, positions(given["queries"])][:, :, positions(given["keys"])]


# --- the rule --------------------------------------------------------------------------------------------------------


def test_tokens_stand_at_their_places():
    part = patterns.part(patterns.window(left=2), 10, ((2, 4), (8, 10)), ((0, 9, 3), (9, 10)))
    keys = [np.flatnonzero(row).tolist() for row in part.dense(4, 4)[0]]  # keys 0, 3, 6, 9
    assert keys == [[0], [1], [2], [3]]
    assert str(part) == "part(window(left=2), 10, '2:4,8:10', '0:7:3,9')"
    assert not part.is_causal
    assert patterns.part(patterns.causal(), 10, ((2, 9, 3),), ((2, 9, 3),)).is_causal


@pytest.mark.parametrize("count", tiers(20, 2000))
def test_rows_and_columns_of_the_whole(count):
    """The rule, its text, its plans of every tile size, and what verdicts and spans say of ranges."""

    def law(case):
        drawn, tile, data = case
        part, expected, (n_queries, n_keys) = build(drawn), rows_of_whole(drawn), sizes(drawn)
        assert patterns.parse(str(part)) == part and patterns.parse(str(part)).inner == part.inner
        np.testing.assert_array_equal(part.dense(n_queries, n_keys), expected)
        assert_plan_is(part, n_queries, n_keys, tile=tile)
        if n_queries and n_keys:
            queries, keys = data(strategies.ranges(n_queries)), data(strategies.ranges(n_keys))
            for head, picture in enumerate(expected):
                check_verdict(part, picture, queries, keys, n_keys, head)
                for rule, own in ((part, picture), (~part, ~picture)):
                    check_spans(rule, own, queries, n_keys, head)

    @st.composite
    def questions(draw):
        return draw(parts()), draw(st.sampled_from((*TILES, 128, None))), draw

    hold(law, questions(), count)


SMALL = ("causal()", "window(left=2, right=1)", "stride(3)", "grid(4, 1)")
SMALL_SETS = ("0:3,5:7,8:11", "1:11:3", "1,4:11:2")


@pytest.mark.parametrize("queries", SMALL_SETS)
@pytest.mark.parametrize("text", SMALL)
def test_every_rectangle(text, queries):
    """What is said of every progression of queries and keys, and of pairs of them with who knows what between."""
    for keys in SMALL_SETS:
        part = patterns.part(patterns.parse(text), 11, queries, keys)
        (picture,) = part.dense(len(part.queries), len(part.keys))
        for q_step, k_step in product((0, 1, 2, 3), (0, 1, 2, 3)):
            pairs = list(product(progressions(len(picture), q_step), progressions(picture.shape[1], k_step)))
            ends = np.array([(q[0], q[-1], k[0], k[-1]) for q, k in pairs]).T
            found = part.judge(Ranges(*ends[:2], q_step), Ranges(*ends[2:], k_step), picture.shape[1], 0)
            cells = [picture[np.ix_(q, k)] for q, k in pairs]
            some, every = (np.array([getattr(cell, name)() for cell in cells]) for name in ("any", "all"))
            assert not some[found == Verdict.EMPTY].any() and every[found == Verdict.FULL].all()
            assert (some & ~every)[found == Verdict.MIXED].all()


def progressions(count: int, step: int) -> list[list[int]]:
    """All of so many numbers; for step 0, a first and a last one."""
    if step == 0:
        return [[a, b] for a in range(count) for b in range(a, count)]
    return [list(range(a, b + 1, step)) for a in range(count) for b in range(a, count, step)]


def test_a_stride_comes_round_among_few_tokens():
    """Five tokens that a period sets apart read each other, whatever their numbers are."""
    part = patterns.part(patterns.stride(6), 600, ((0, 30, 6),), ((300, 330, 6),))
    assert part.dense(5, 5).all()
    assert_plan_is(part, 5, 5)


@pytest.mark.parametrize(
    "text", ("window(left=9, right=4)", "causal()", "stride(6) & window(left=9, right=20)", "columns(7) & causal()")
)
def test_tiles_that_runs_cut(text):
    """Tiles across runs, whose masks are no others'; progressions that meet their rule now and then, or never."""
    cuts = np.random.Generator(np.random.Philox(5)).choice(600, 60, replace=False)
    many = np.sort(cuts).reshape(-1, 2)
    sets = (
        many,
        ((0, 600, 4),),
        ((2, 600, 4),),
        ((5, 590, 3),),
        ((100, 400),),
        [(at + 2, at + 5) for at in range(0, 594, 6)],
    )
    for queries, keys in product(sets, sets):
        part = patterns.part(patterns.parse(text), 600, queries, keys)
        assert_plan_is(part, len(part.queries), len(part.keys), tile=16)


@pytest.mark.parametrize("count", tiers(10, 500))
def test_some_of_the_queries(count):
    """Rows from an offset on are those of all."""

    def law(case):
        drawn, first = case
        n_queries, n_keys = sizes(drawn)
        first = min(first, n_queries)
        assert_plan_is(build(drawn), n_queries - first, n_keys, query_offset=first)
        some = build(drawn).dense(n_queries - first, n_keys, first)
        np.testing.assert_array_equal(some, rows_of_whole(drawn)[:, first:])

    hold(law, st.tuples(parts(), st.integers(0, 50)), count)


def test_runs_are_written_in_one_way():
    """Runs that touch are one, empty ones none, stops are one past the last member."""
    given = ((0, 3), (3, 5), (7, 7), (8, 9, 5), (10, 19, 4))
    runs = Runs.read("part", "keys", given)
    assert runs.text == "0:5,8,10:19:4" and len(runs) == 9
    rows = np.array([(*run, 1)[:3] for run in given])
    assert Runs.read("part", "keys", runs.text) == runs == Runs.read("part", "keys", rows)
    assert Runs.read("part", "keys", ((10, 21, 4),)).text == "10:19:4"
    assert Runs.read("part", "keys", "").text == "" == Runs.read("part", "keys", ()).text
    every = positions(((0, 5), (8, 9), (10, 19, 4)))
    np.testing.assert_array_equal(runs.places(np.arange(9)), every)
    np.testing.assert_array_equal(runs.count_below(np.arange(25)), [(every < p).sum() for p in range(25)])


def test_thousands_of_runs():
    """Random blocks of a long sequence: the text is read, written and compiled in little time."""
    random = np.random.Generator(np.random.Philox(1))
    blocks = np.sort(random.choice(16384, 4000, replace=False)) * 64
    keys = np.stack([blocks, blocks + 64], axis=1)
    start = time.process_time()
    part = patterns.part(patterns.parse("bigbird(block=64, random=3)"), 2**20, ((2**19, 2**19 + 4096),), keys)
    assert patterns.parse(str(part)) == part
    compile_pattern(part, 4096, 4000 * 64)
    assert time.process_time() - start < 3


REFUSED = {
    "no pattern": (lambda: patterns.part(3, 10, (), ()), "pattern"),
    "length": (lambda: patterns.part(patterns.dense(), -1, (), ()), "length"),
    "keys beyond": (lambda: patterns.part(patterns.dense(), 10, (), ((5, 11),)), "keys must be below position 10"),
    "queries beyond": (lambda: patterns.part(patterns.causal(), 10, ((5, 11),), ()), "queries must be below"),
    "not ascending": (lambda: patterns.part(patterns.dense(), 10, ((5, 8), (2, 4)), ()), "ascend.* 2 follows 7"),
    "overlap": (lambda: patterns.part(patterns.dense(), 10, (), ((0, 5), (4, 8))), "ascend"),
    "negative": (lambda: patterns.part(patterns.dense(), 10, (), ((-3, 5),)), "at least 0"),
    "step": (lambda: patterns.part(patterns.dense(), 10, (), ((0, 5, 0),)), "steps of at least 1"),
    "no runs": (lambda: patterns.part(patterns.dense(), 10, 5, ()), "runs"),
    "numbers": (lambda: patterns.part(patterns.dense(), 10, (1, 2), ()), "runs"),
    "fractions": (lambda: patterns.part(patterns.dense(), 10, ((0.5, 2),), ()), "runs"),
    "floats": (lambda: patterns.part(patterns.dense(), 10, np.zeros((2, 2)), ()), "runs"),
    "text": (lambda: patterns.parse("part(dense(), 10, '0:a', '')"), "start:stop:step"),
    "long text": (lambda: patterns.parse("part(dense(), 10, '1:2:3:4', '')"), "start:stop:step"),
    "large": (lambda: patterns.parse(f"part(dense(), 10, '{10**18 * 9}', '')"), "at most"),
    "across": (lambda: patterns.across(patterns.part(patterns.dense(), 9, (), ())), "across"),
    "more queries": (lambda: patterns.part(patterns.causal(), 9, ((0, 3),), ((0, 5),)).dense(4, 5), "3 queries"),
    "other keys": (lambda: patterns.part(patterns.causal(), 9, ((0, 3),), ((0, 5),)).dense(3, 6), "5 keys"),
    "in documents": (lambda: patterns.parse("documents(part(causal(), 9, '0:3', '0:5'), 4)").dense(3, 4, 0), "5 keys"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    ask, words = REFUSED[name]
    with pytest.raises(PatternError, match=words) as refused:
        ask()
    assert "\n" not in str(refused.value)


# --- attention -------------------------------------------------------------------------------------------------------


@st.composite
def part_cases(draw, dtypes) -> Case:
    case = draw(cases(dtypes))
    drawn = draw(parts(heads=case.heads))
    n_queries, n_keys = sizes(drawn)
    memory = "contiguous" if case.memory == "expanded" else case.memory
    changes = dict(rule=drawn, n_queries=n_queries, n_keys=n_keys, offset=None, segments=False, memory=memory)
    return replace(case, **changes)


@pytest.mark.usefixtures("poison")
class TestAttention:
    @pytest.mark.parametrize("count", tiers(10, 1000))
    @pytest.mark.parametrize("implementation", ALL)
    def test_generated_cases(self, implementation, count):
        hold(lambda case: check(case, implementation), part_cases(DTYPES_OF[implementation][:2]), count)

    @pytest.mark.parametrize("count", tiers(4, 200))
    @pytest.mark.parametrize("implementation", ALL)
    def test_what_nobody_reads_changes_no_bit(self, implementation, count):
        sparse = part_cases(DTYPES_OF[implementation][:2]).map(
            lambda case: replace(case, rule=case.rule & rule("columns", period=3, count=2))
        )
        hold(lambda case: check_unread(case, implementation), sparse, count)


# --- terms by distance -----------------------------------------------------------------------------------------------


def qkv(n_queries, n_keys, heads=2):
    generator = torch.Generator().manual_seed(7)
    shapes = (1, heads, n_queries, 8), (1, heads, n_keys, 8), (1, heads, n_keys, 8)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


@pytest.mark.parametrize("implementation", ("eager", "dense", "reference"))
@pytest.mark.parametrize(("queries", "keys"), [((40, 60), (25, 70)), ((40, 60), (40, 60)), ((12, 13), (0, 90))])
def test_distances_of_neighbours_are_those_of_the_whole(implementation, queries, keys):
    """A part whose queries begin with its keys has, from a query_offset on, the rows of the whole, biases included."""
    q, k, v = qkv(90, 90)
    inner, terms = patterns.parse("window(left=15, right=10) | blocks(16)"), Terms(bias=Alibi(torch.tensor([0.1, 0.5])))
    inside = torch.zeros(1, 90, dtype=torch.bool)
    inside[:, slice(*keys)] = True
    whole = attend(q, k, v, inner, terms=terms, key_mask=inside, implementation="reference")
    pattern, offset = patterns.part(inner, 90, ((keys[0], queries[1]),), (keys,)), queries[0] - keys[0]
    own = q[:, :, slice(*queries)], k[:, :, slice(*keys)], v[:, :, slice(*keys)]
    found = attend(*own, pattern, terms=terms, query_offset=offset, implementation=implementation)
    torch.testing.assert_close(found, whole[:, :, slice(*queries)])


@pytest.mark.parametrize(
    ("queries", "keys"), [("40:60", "0:5,30:70"), ("40:60:2", "30:70"), ("10:20", "12:40"), ("3,7", "3:9")]
)
def test_distances_that_numbers_do_not_have(queries, keys):
    """Terms by distance are refused where numbers are not as far apart as positions."""
    pattern = patterns.part(patterns.dense(), 90, queries, keys)
    tensors = qkv(len(pattern.queries), len(pattern.keys))
    with refusing(KernelError, "terms-across") as refused:
        attend(*tensors, pattern, terms=Terms(bias=Alibi(torch.ones(2))))
    assert "\n" not in str(refused.value)
    attend(*tensors, pattern, terms=Terms(softcap=2.0))


def test_a_shifted_part_is_refused_too():
    """Queries 5 positions after the keys: with query_offset 0 the distances would be wrong by 5."""
    pattern = patterns.part(patterns.dense(), 90, ((10, 20),), ((5, 20),))
    with refusing(KernelError, "terms-across"):
        attend(*qkv(10, 15), pattern, terms=Terms(bias=Alibi(torch.ones(2))))


# --- plans as good as those of the whole -----------------------------------------------------------------------------

LONG, SHARD = 2**16, 2**12

SHARDED = {
    "window": "window(left=255)",
    "both sides": "window(left=250, right=250)",
    "bigbird": "bigbird(block=64, random=3)",
    "strided": "strided(128)",
    "fixed": "fixed(128, summary=8)",
    "sinks": "sinks(4, 1024)",
    "dilated": "window(left=254, dilation=3)",
    "dilated, both sides": "longformer(512, dilation=3)",
    "heads": "per_head([window(left=255), fixed(128, summary=8)])",
    "pictures": "grid(256, 5)",
    "documents": "documents(window(left=255), 10000, 30000, 25536)",
    "documents, strided": "documents(strided(128), 10000, 30000, 25536)",
    "documents, fixed": "documents(fixed(128, summary=8), 5120, 8960, 21888, 29568)",
}


def computed(plan) -> float:
    """Pairs that a head computes."""
    return plan.tiles * plan.tile**2 / plan.heads


def computed_for(plan, first: int, past: int) -> float:
    """Those of the queries from `first` to `past`: a tile row counts by how many of its queries are there."""
    total = 0.0
    for part in plan.passes:
        queries = np.arange(part.n_queries) if part.query_index is None else part.query_index
        inside = np.zeros(-(-len(queries) // plan.tile) * plan.tile)
        inside[: len(queries)] = (first <= queries) & (queries < past)
        shares = inside.reshape(-1, plan.tile).mean(axis=1)
        total += shares[part.entries()[1]].sum() * (part.tiles / max(1, len(part.columns)))
    return total * plan.tile**2 / plan.heads


def of_a_shard(pattern, first: int):
    """The parts that a device computes: its queries on its own keys, and those that read others on the others'."""
    past = first + SHARD
    own = patterns.part(pattern, LONG, ((first, past),), ((first, past),))
    needed = needed_keys(pattern, (first, past), LONG)
    left, right = np.minimum(needed, [[first, first]]), np.maximum(needed, [[past, past]])
    others = np.concatenate([left[left[:, 0] < left[:, 1]], right[right[:, 0] < right[:, 1]]])
    blocks = [(at, at + 64) for at in range(first, past, 64)]
    reaching = [block for block in blocks if not inside(needed_keys(pattern, block, LONG), first, past)]
    return own, patterns.part(pattern, LONG, reaching, others)


def inside(intervals, first: int, past: int) -> bool:
    return bool((intervals[:, 0] >= first).all() and (intervals[:, 1] <= past).all())


@pytest.mark.parametrize("first", (0, 5 * SHARD, LONG - SHARD))
@pytest.mark.parametrize("name", SHARDED)
def test_a_shard_computes_no_more_than_its_rows_of_the_whole(name, first):
    """And its plans are found in little time, whatever the length of the whole."""
    pattern = patterns.parse(SHARDED[name])
    of_whole = computed_for(compile_pattern(pattern, LONG), first, first + SHARD)
    own, border = of_a_shard(pattern, first)
    start = time.process_time()
    plans = [compile_pattern(part, len(part.queries), len(part.keys)) for part in (own, border)]
    seconds = time.process_time() - start
    assert sum(map(computed, plans)) <= 1.1 * of_whole
    assert seconds < 2


@pytest.mark.parametrize(
    "text", ("stride(128) & causal()", "stride(100)", "stride(128) & causal() & ~window(left=128)")
)
@pytest.mark.parametrize("rank", (0, 3, 6))
def test_residues_are_block_diagonal(text, rank):
    """A device that computes some residues of all tokens sorts them by residue, as the whole does."""
    pattern, length, ranks = patterns.parse(text), 2**14, 7
    period = pattern.parts[0].period if pattern.children else pattern.period
    first, past = rank * period // ranks, (rank + 1) * period // ranks
    runs = [(at + first, min(at + past, length)) for at in range(0, length - first, period)]
    part = patterns.part(pattern, length, runs, runs)
    whole = compile_pattern(pattern, length)
    plan = compile_pattern(part, len(part.queries), len(part.keys), tile=whole.tile)
    assert computed(plan) <= 1.1 * computed(whole) * (past - first) / period
    assert len(plan.masks) < 600
    assert plan.pairs == sum(
        pattern.allows(np.arange(at, length, period)[:, None], np.arange(at, length, period), length).sum()
        for at in range(first, past)
    )
