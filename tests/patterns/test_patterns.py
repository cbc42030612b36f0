"""Patterns as values: what they allow, how they compose, what they prove about themselves, and what they refuse."""

import inspect
import pickle
import time

import numpy as np
import oracle
import pytest
from known_patterns import ALL, CAUSAL, NOT_CAUSAL, PUBLISHED, STABLE, UNSTABLE, named
from oracle import per_head, rule
from refusals import refusing
from strategies import build

from asterism import patterns
from asterism.errors import PatternError

LENGTHS = (1, 2, 7, 63, 64, 65, 100, 257)


RANDOM_BLOCKS = [
    dict(block=1, count=1),
    dict(block=8, count=3),
    dict(block=8, count=2, window_blocks=3, avoid=(0, -1)),
    dict(block=10, count=4, earlier=True),
    dict(block=5, count=2, earlier=True, window_blocks=5, avoid=(0, 1)),
    dict(block=64, count=3, window_blocks=1, heads=4, seed=7),
]


# ---------------------------------------------------------------------------------------------------------------------
# The rule itself.


@pytest.mark.parametrize("drawn", ALL, ids=named)
def test_dense_is_the_predicate(drawn):
    pattern = build(drawn)
    for length in LENGTHS:
        assert pattern.dense(length).dtype == np.bool_
        np.testing.assert_array_equal(pattern.dense(length), oracle.picture(drawn, length), err_msg=f"{length=}")


@pytest.mark.parametrize("drawn", ALL, ids=named)
def test_fewer_queries_than_keys(drawn):
    pattern = build(drawn)
    for n_queries, n_keys, offset in ((1, 64, None), (7, 65, None), (0, 5, None), (3, 65, 60), (10, 100, 0)):
        expected = oracle.picture(drawn, n_queries, n_keys, offset)
        np.testing.assert_array_equal(pattern.dense(n_queries, n_keys, offset), expected)


@pytest.mark.parametrize("drawn", ALL, ids=named)
def test_allows_broadcasts(drawn):
    pattern = build(drawn)
    queries, keys = np.arange(20, 40), np.arange(0, 64, 3)
    for head in range(pattern.heads):
        grid = pattern.allows(queries[:, None], keys[None, :], 64, head=head)
        np.testing.assert_array_equal(grid, oracle.picture(drawn, 64)[head][20:40, ::3])
        assert bool(pattern.allows(np.int64(30), np.int64(3), 64, head=head)) == oracle.allowed(drawn, 30, 3, 64, head)


def test_no_tokens():
    assert patterns.bigbird(block=4).dense(0).shape == (1, 0, 0)


def test_more_queries_than_keys_is_refused():
    with refusing(PatternError, "queries-beyond-positions", "5", "4", "0"):
        patterns.causal().dense(5, 4)


# ---------------------------------------------------------------------------------------------------------------------
# Randomness: what a draw must obey.


@pytest.mark.parametrize("arguments", RANDOM_BLOCKS, ids=named)
@pytest.mark.parametrize("length", (1, 7, 64, 100))
def test_random_blocks_obey_their_arguments(arguments, length):
    pattern = patterns.random_blocks(**arguments)
    assert pattern.heads == arguments.get("heads", 1)
    constraint = {"earlier": False, "window_blocks": 0, "avoid": ()} | arguments
    for chosen in oracle.block_picture(pattern.dense(length), arguments["block"]):
        for row, cells in enumerate(chosen):
            told = (constraint[name] for name in ("earlier", "window_blocks", "avoid"))
            candidates, count = oracle.random_choices(row, arguments["count"], len(chosen), *told)
            assert set(np.flatnonzero(cells)) <= candidates
            assert cells.sum() == count


@pytest.mark.parametrize("drawn", (rule("bigbird"), rule("bigbird_causal"), rule("bigbird_etc")), ids=named)
@pytest.mark.parametrize("window", (1, 3, 5))
def test_bigbird_adds_exactly_its_random_blocks(drawn, window):
    block, blocks, random, seed = 4, 40, 3, 2
    first = 8 if drawn.name == "bigbird_etc" else 0
    arguments = {"block": block, "window_blocks": window, "seed": seed, "heads": 2}
    if first:
        arguments["globals"] = first
    length = first + block * blocks
    certain = oracle.picture(rule(drawn.name, **arguments), length)
    full = getattr(patterns, drawn.name)(random=random, **arguments).dense(length)
    assert full.shape[0] == 2
    assert (full >= certain).all()
    extra = oracle.block_picture((full & ~certain)[:, first:, first:], block)
    counts = extra.sum(-1)
    if drawn.name == "bigbird_causal":
        far = window // 2 + 1 + random + 1
        assert (counts[:, far:] == random).all()
        assert (counts <= random).all()
        assert not np.triu(extra).any()
    else:
        ends = 0 if first else 1
        assert (counts[:, ends : blocks - ends] == random).all()


def test_the_default_bigbird_has_the_published_degree():
    """3 window + 2 global + 3 random blocks of 64 in a middle row."""
    degrees = patterns.bigbird().dense(64 * 16)[0].sum(-1)
    assert degrees[64 * 8] == 8 * 64


def test_random_blocks_differ_by_head_and_seed_and_only_by_them():
    def draw(**arguments):
        return patterns.random_blocks(block=2, count=2, **arguments).dense(100)

    one, two, three = draw(heads=3)
    assert not np.array_equal(one, two)
    assert not np.array_equal(two, three)
    assert not np.array_equal(draw(seed=0), draw(seed=1))
    np.testing.assert_array_equal(draw(seed=5, heads=2), draw(seed=5, heads=2))
    np.testing.assert_array_equal(draw(heads=2)[0], draw(heads=3)[0])


@pytest.mark.parametrize("text", ("random_blocks(4, 2, heads=2)", "bigbird(block=4)", "yun_random(3)"))
def test_the_global_generator_is_neither_read_nor_moved(text):
    pictures = []
    for seed in (0, 1):
        np.random.seed(seed)
        before = np.random.get_state()[1].copy()
        pictures.append(patterns.parse(text).dense(90))
        np.testing.assert_array_equal(np.random.get_state()[1], before)
    np.testing.assert_array_equal(*pictures)


def test_rows_of_a_draw_are_not_all_alike():
    for picture in (patterns.random_blocks(1, 3).dense(50)[0], patterns.yun_random(3).dense(50)[0]):
        assert len(np.unique(picture, axis=0)) > 40


@pytest.mark.parametrize("count", (1, 3, 9))
def test_yun_random_reads_itself_and_count_others(count):
    for length in LENGTHS:
        (picture,) = patterns.yun_random(count, seed=1).dense(length)
        assert picture.diagonal().all()
        degrees = picture.sum(-1)
        assert (degrees >= min(count, length)).all()
        assert (degrees <= count + 1).all()
    assert not np.array_equal(picture, patterns.yun_random(count, seed=2).dense(length)[0])


# ---------------------------------------------------------------------------------------------------------------------
# Parts of published patterns.


@pytest.mark.parametrize("drawn", PUBLISHED, ids=named)
def test_body_is_the_same_pattern(drawn):
    pattern = build(drawn)
    np.testing.assert_array_equal(pattern.body.dense(100), pattern.dense(100))


@pytest.mark.parametrize(
    ("whole", "parts"),
    [
        (
            rule("strided", stride=5),
            (rule("window", left=5) & rule("causal"), rule("stride", period=5) & rule("causal")),
        ),
        (
            rule("fixed", stride=6, summary=2),
            (
                rule("blocks", size=6) & rule("causal"),
                rule("columns", period=6, first=4, count=2) & rule("causal"),
            ),
        ),
        (rule("yun_strided", w=4), (rule("yun_window", w=4), rule("stride", period=4))),
    ],
    ids=named,
)
def test_factors(whole, parts):
    found = build(whole).parts
    assert len(found) == len(parts)
    for part, expected in zip(found, parts, strict=True):
        np.testing.assert_array_equal(part.dense(65), oracle.picture(expected, 65))


def test_factors_of_yun_fixed():
    first, second = patterns.yun_fixed(w=4).parts
    np.testing.assert_array_equal(first.dense(65), oracle.picture(rule("blocks", size=4), 65))
    summary = oracle.picture(rule("columns", period=4, first=3) | rule("window"), 65)
    np.testing.assert_array_equal(second.dense(65), summary)


def test_factors_with_heads_have_as_many_heads():
    local, summary = patterns.fixed(stride=8, summary=2, heads=3).parts
    union = local.dense(64) | summary.dense(64)
    np.testing.assert_array_equal(union, oracle.picture(rule("fixed", stride=8, summary=2, heads=3), 64))


# ---------------------------------------------------------------------------------------------------------------------
# Values.


@pytest.mark.parametrize("drawn", ALL, ids=named)
def test_equal_by_value(drawn):
    one, other = build(drawn), build(drawn)
    assert one == other
    assert hash(one) == hash(other)
    assert {one: 1}[other] == 1
    assert one != patterns.window(left=77)
    assert one != one.text


def test_unequal_where_an_argument_differs():
    assert patterns.window(left=1) != patterns.window(left=2)
    assert patterns.stride(3) != patterns.blocks(3)
    assert patterns.random_blocks(2, 1, seed=1) != patterns.random_blocks(2, 1, seed=2)
    assert patterns.explicit("0:0", size=2) != patterns.explicit("0:1", size=2)
    assert patterns.fixed(8) != patterns.fixed(8, heads=2)


def test_arguments_by_position_and_by_name_are_one_value():
    assert patterns.window(3, 1) == patterns.window(left=3, right=1)
    assert patterns.global_tokens(0) == patterns.global_tokens((0,)) == patterns.global_tokens([0])
    assert patterns.bigbird(16) == patterns.bigbird(block=16)


@pytest.mark.parametrize("drawn", ALL, ids=named)
def test_frozen(drawn):
    pattern = build(drawn)
    with pytest.raises((AttributeError, TypeError)):
        pattern.something = 1
    for field in getattr(pattern, "__dataclass_fields__", {}):
        with pytest.raises(AttributeError):
            setattr(pattern, field, None)


def test_a_matrix_given_to_explicit_may_change_later():
    matrix = np.eye(4, dtype=bool)
    pattern = patterns.explicit(matrix)
    before = hash(pattern)
    matrix[:] = True
    assert pattern.dense(4).sum() == 4
    assert hash(pattern) == before


@pytest.mark.parametrize("drawn", ALL, ids=named)
def test_pickles(drawn):
    """Data loaders and multiprocessing move patterns between processes."""
    pattern = build(drawn)
    assert pickle.loads(pickle.dumps(pattern)) == pattern


def test_heads():
    assert patterns.causal().heads == 1
    assert patterns.fixed(8, summary=2, heads=4).heads == 4
    assert patterns.bigbird(block=4, heads=3).heads == 3
    assert patterns.per_head([patterns.causal(), patterns.dense()]).heads == 2
    two = patterns.per_head([patterns.stride(2), patterns.stride(3)])
    assert (two & patterns.causal()).heads == 2
    assert (~two).heads == 2
    assert patterns.shifted(two, 3).heads == 2


def test_different_numbers_of_heads_do_not_combine():
    two = patterns.per_head([patterns.causal()] * 2)
    three = patterns.per_head([patterns.causal()] * 3)
    for combine in (lambda: two | three, lambda: two & three):
        with refusing(PatternError, "heads-differ", "2", "3"):
            combine()


@pytest.mark.parametrize(
    ("misuse", "operator"),
    [
        (lambda p, q: p and q, "&"),
        (lambda p, q: p or q, "|"),
        (lambda p, q: not p, "~"),
        (lambda p, q: bool(p), "&"),
        (lambda p, q: 1 if p else 0, "|"),
        (lambda p, q: bool(p | q), "~"),
    ],
)
def test_and_or_not_name_the_operator_meant(misuse, operator):
    with pytest.raises(PatternError) as refused:
        misuse(patterns.causal(), patterns.star())
    assert operator in str(refused.value)


@pytest.mark.parametrize("other", (1, True, "causal()", None, np.eye(3, dtype=bool)))
def test_operators_take_patterns_only(other):
    for combine in (lambda: patterns.causal() | other, lambda: patterns.causal() & other):
        with pytest.raises((TypeError, PatternError)):
            combine()


def test_more_random_blocks_than_there_are_take_all_at_once():
    """4,096 blocks of a sequence that has two: what is left of the draw costs nothing (it took 38 seconds)."""
    started = time.process_time()
    assert patterns.random_blocks(block=50, count=4096).dense(100).all()
    assert time.process_time() - started < 5


# ---------------------------------------------------------------------------------------------------------------------
# explicit().


def test_explicit_from_matrix_edges_sparse_and_text():
    edges = np.array([[0, 0], [0, 1], [2, 1], [3, 3], [0, 1]])
    matrix = np.zeros((4, 4), dtype=bool)
    matrix[edges[:, 0], edges[:, 1]] = True
    scipy_sparse = pytest.importorskip("scipy.sparse")
    sources = [
        patterns.explicit(matrix),
        patterns.explicit(edges, size=4),
        patterns.explicit(scipy_sparse.csr_matrix(matrix)),
        patterns.explicit(scipy_sparse.coo_array(matrix)),
        patterns.explicit("0:0-1;2:1;3:3", size=4),
    ]
    for pattern in sources:
        assert pattern == sources[0]
        np.testing.assert_array_equal(pattern.dense(4)[0], matrix)
        np.testing.assert_array_equal(pattern.dense(3)[0], matrix[:3, :3])


def test_edges_alone_say_the_size():
    assert patterns.explicit(np.array([[0, 2], [1, 1]])).dense(3).sum() == 2


def test_explicit_ignores_stored_zeros():
    scipy_sparse = pytest.importorskip("scipy.sparse")
    stored = scipy_sparse.csr_matrix((np.array([1, 0]), (np.array([0, 1]), np.array([1, 0]))), shape=(2, 2))
    np.testing.assert_array_equal(patterns.explicit(stored).dense(2)[0], [[False, True], [False, False]])


def test_explicit_refuses_a_longer_sequence():
    with refusing(PatternError, "explicit-length", "4", "5"):
        patterns.explicit(np.eye(4, dtype=bool)).dense(5)


@pytest.mark.parametrize(
    ("source", "size"),
    [
        (np.zeros((2, 3), dtype=bool), None),
        (np.zeros((2, 2, 2), dtype=bool), None),
        (np.array([[0, 5]]), 4),
        (np.array([[-1, 0]]), 4),
        (np.array([[0.5, 1.0]]), 4),
        ("0:0;0:x", 4),
        ("0:3-1", 4),
        ("0:7", 4),
        ("zebra", 4),
        ("0:0", 0),
        ("0:0", -2),
        ("0:0", 2**60),
        ("4000000000:4000000000", None),
        ("0:99999999999999999999", None),
        ("-99999999999999999999:0", None),
        (((0, 4_000_000_000),), None),
        (((1, 2), (3,)), None),
    ],
    ids=str,
)
def test_explicit_refuses_a_bad_source(source, size):
    with pytest.raises(PatternError) as refused:
        patterns.explicit(source, size=size)
    assert "\n" not in str(refused.value)


def test_explicit_at_its_longest():
    """The code of a pair, query * size + key, stays within 64 bits."""
    pattern = patterns.explicit(((0, 0), (5, 3), (2**31 - 1, 2**31 - 1)), size=2**31)
    assert np.argwhere(pattern.dense(8)[0]).tolist() == [[0, 0], [5, 3]]
    assert bool(pattern.allows(2**31 - 1, 2**31 - 1, 2**31))


def test_a_number_of_thousands_of_digits_is_refused_in_a_line():
    with refusing(
        PatternError, "out-of-range", "left", "0", "1,152,921,504,606,846,976", "a number of 33220 bits"
    ) as refused:
        patterns.window(left=10**10_000)
    assert "\n" not in str(refused.value)


# ---------------------------------------------------------------------------------------------------------------------
# What a pattern proves about itself.


@pytest.mark.parametrize("text", CAUSAL)
def test_causal(text):
    pattern = patterns.parse(text)
    assert pattern.is_causal is True
    assert not np.triu(pattern.dense(40), 1).any()


@pytest.mark.parametrize("text", NOT_CAUSAL)
def test_not_causal(text):
    pattern = patterns.parse(text)
    assert pattern.is_causal is False
    assert np.triu(pattern.dense(40), 1).any()


def pictures(pattern):
    return [pattern.dense(length) for length in (*range(1, 24), 40, 41, 64)]


@pytest.mark.parametrize("text", STABLE)
def test_prefix_stable(text):
    pattern = patterns.parse(text)
    assert pattern.unstable_part() is None
    assert oracle.is_prefix_stable(pictures(pattern))


@pytest.mark.parametrize("text", UNSTABLE)
def test_not_prefix_stable(text):
    pattern = patterns.parse(text)
    part = pattern.unstable_part()
    assert part is not None
    assert not oracle.is_prefix_stable(pictures(pattern))
    assert not oracle.is_prefix_stable(pictures(part))


@pytest.mark.parametrize("text", [*STABLE, *NOT_CAUSAL, *UNSTABLE, "bigbird(block=4, random=0, globals=(0,))"])
def test_depends_on_length(text):
    """Of the published patterns, exactly those depend on the length whose pictures, whole ones, change with it."""
    pattern = patterns.parse(text)
    assert pattern.depends_on_length == (not oracle.is_stable(pictures(pattern)))


def test_a_draw_among_earlier_blocks_never_changes():
    for pattern in (patterns.random_blocks(4, 2, earlier=True, heads=2), patterns.bigbird_causal(block=4, heads=2)):
        assert oracle.is_prefix_stable(pictures(pattern))


@pytest.mark.parametrize("text", CAUSAL)
def test_require_causal_accepts(text):
    assert patterns.require_causal(patterns.parse(text)) is None


@pytest.mark.parametrize("text", NOT_CAUSAL)
def test_require_causal_refuses_the_future(text):
    with pytest.raises(PatternError) as refused:
        patterns.require_causal(patterns.parse(text))
    message = str(refused.value)
    assert text.partition("(")[0].lstrip("~") in message
    assert "causal" in message


@pytest.mark.parametrize("text", UNSTABLE)
def test_require_causal_refuses_the_unstable_and_names_the_part(text):
    with pytest.raises(PatternError) as refused:
        patterns.require_causal(patterns.parse(text))
    assert UNSTABLE[text] in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ("bigbird(block=4)", "bigbird(block=4) & causal()", "bigbird() & causal()"))
def test_require_causal_names_the_stable_relative(text):
    with refusing(PatternError, "not-prefix-stable", "bigbird_causal"):
        patterns.require_causal(patterns.parse(text))


# ---------------------------------------------------------------------------------------------------------------------
# Arguments that mean nothing.

BAD = {
    "window": [dict(left=-1), dict(right=-1), dict(dilation=0), dict(dilation=-2), dict(left=1.5), dict(left="3")],
    "stride": [dict(period=0), dict(period=-4), dict(period=2.0), dict(period=None)],
    "blocks": [dict(size=0), dict(size=-1), dict(size=4, left=-1), dict(size=4, right=-1)],
    "columns": [dict(period=0), dict(period=-2), dict(period=4, first=-1), dict(period=4, count=0)],
    "grid": [
        dict(width=0, radius=1),
        dict(width=-5, radius=1),
        dict(width=4, radius=-1),
        dict(width=4, radius=1.5),
        dict(width=4, radius="12"),
        dict(width=4, radius=()),
        dict(width=4, radius=(1, 2, 3)),
        dict(width=4, radius=(1, -2)),
        dict(width=4, radius=(True, 2)),
        dict(width=4, radius=None),
        dict(width=4, radius=1, dilation=0),
        dict(width=4, radius=1, channels=0),
        dict(width=2**31, radius=1),
        dict(width=2**20, radius=1, channels=2**11),
        dict(width=2**29, radius=2**30, dilation=4),
        dict(width=1, radius=(0, 2**40), dilation=2**40),
    ],
    "global_keys": [dict(positions="0"), dict(positions=0.5), dict(positions=0, block=0)],
    "global_queries": [dict(positions=(1, 2.5)), dict(positions=0, block=-3)],
    "global_tokens": [dict(positions=None), dict(positions=0, block=0)],
    "random_blocks": [
        dict(block=0, count=1),
        dict(block=4, count=-1),
        dict(block=4, count=1, heads=0),
        dict(block=4, count=1, seed=-1),
        dict(block=4, count=1, seed=0.5),
        dict(block=4, count=1, window_blocks=2),
        dict(block=4, count=1, window_blocks=-1),
    ],
    "shifted": [dict(pattern=None, by=1), dict(pattern=3, by=1)],
    "documents": [dict(pattern=None), dict(pattern="causal()")],
    "per_head": [dict(patterns=[]), dict(patterns=[1, 2])],
    "strided": [dict(stride=0), dict(stride=-1)],
    "fixed": [
        dict(stride=0),
        dict(stride=8, summary=0),
        dict(stride=8, summary=-1),
        dict(stride=8, summary=9),
        dict(stride=8, heads=0),
    ],
    "bigbird": [
        dict(block=0),
        dict(block=-64),
        dict(window_blocks=2),
        dict(window_blocks=-1),
        dict(window_blocks=0),
        dict(random=-1),
        dict(heads=0),
    ],
    "bigbird_etc": [dict(globals=-1), dict(block=0), dict(window_blocks=4)],
    "bigbird_causal": [dict(globals=(-1,)), dict(globals=(0, -2)), dict(block=0), dict(window_blocks=2)],
    "longformer": [dict(window=-2), dict(dilation=0)],
    "yun_strided": [dict(w=0), dict(w=-1)],
    "yun_fixed": [dict(w=0)],
    "yun_window": [dict(w=0)],
    "yun_random": [dict(count=-1)],
    "sinks": [dict(first=-1), dict(window=0), dict(window=-5)],
}


@pytest.mark.parametrize(
    ("name", "arguments"), [(name, arguments) for name, cases in BAD.items() for arguments in cases], ids=str
)
def test_bad_arguments_get_one_clear_line(name, arguments):
    with pytest.raises(PatternError) as refused:
        getattr(patterns, name)(**arguments)
    message = str(refused.value)
    assert "\n" not in message
    assert name in message or any(argument in message for argument in arguments)


def test_a_negative_shift_is_refused():
    with refusing(PatternError, "below-minimum", "-1"):
        patterns.shifted(patterns.causal(), by=-1)


@pytest.mark.parametrize(
    ("length", "message"),
    ((1.5, "whole numbers, got 1.5"), ("3", "whole numbers, got '3'"), (True, "got True"), (2**61, "at most")),
)
def test_documents_of_no_length_are_refused(length, message):
    with pytest.raises(PatternError, match=message):
        patterns.documents(patterns.causal(), 4, length)


def test_a_hundred_thousand_documents_are_read_and_judged_quickly():
    """Nothing in the rule, its text or its spans recurses, or looks at documents one by one."""
    started = time.process_time()
    pattern = patterns.parse(patterns.documents(patterns.strided(3), *[5, 1, 0, -1] * 25_000).text)
    assert pattern.spans((174_990, 175_000), 175_000).tolist() == [[174_986, 174_992], [174_993, 174_999]]
    assert pattern.allows([6, 7, 11], [6, 5, 8], 175_000).tolist() == [False, False, True]
    assert pattern.verdict((0, 5), (5, 175_000), 175_000) == patterns.Verdict.EMPTY
    assert time.process_time() - started < 5


def test_numpy_integers_are_integers():
    assert patterns.window(left=np.int64(3)) == patterns.window(left=3)
    assert patterns.window(left=np.int64(3)).text == patterns.window(left=3).text


# ---------------------------------------------------------------------------------------------------------------------
# Schedules.


def test_interleave_cycles():
    schedule = patterns.interleave(patterns.causal(), patterns.strided(4), patterns.fixed(4))
    assert schedule.period == 3
    assert [schedule.layer(i) for i in range(5)] == [schedule.layer(i % 3) for i in range(5)]
    assert schedule.layer(4) == patterns.strided(4)


def test_merge_is_the_union():
    merged = patterns.merge(patterns.window(left=2), patterns.stride(5), patterns.star())
    expected = rule("window", left=2) | rule("stride", period=5) | rule("star")
    np.testing.assert_array_equal(merged.dense(30), oracle.picture(expected, 30))


def test_split_heads_gives_contiguous_equal_groups():
    pattern = patterns.split_heads(patterns.causal(), patterns.star(), patterns.dense(), heads=6)
    expected = per_head(*(rule(name) for name in ("causal", "causal", "star", "star", "dense", "dense")))
    assert pattern.heads == 6
    np.testing.assert_array_equal(pattern.dense(9), oracle.picture(expected, 9))


def test_split_heads_refuses_a_remainder():
    with refusing(PatternError, "split-heads-unevenly", "5", "2"):
        patterns.split_heads(patterns.causal(), patterns.dense(), heads=5)


@pytest.mark.parametrize("make", (patterns.interleave, patterns.merge, lambda: patterns.Schedule(())))
def test_nothing_makes_no_schedule(make):
    with pytest.raises(PatternError):
        make()


def test_signatures_of_published_patterns_say_what_they_return():
    """A Named pattern, which has parts: they said Sequence, and `strided(32).parts` needed a cast."""
    for published in (patterns.strided, patterns.bigbird, patterns.longformer, patterns.yun_star):
        assert inspect.signature(published).return_annotation is patterns.Named
    assert [str(part) for part in patterns.strided(32).parts] == ["window(left=32)", "stride(period=32) & causal()"]
