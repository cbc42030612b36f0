"""Neighbours in rows and columns: pictures of them, plans that gather them, attention over them, life in a cache.

The definition in plain loops is `oracle.grid`; here are pictures of what one value reads, sizes that pictures have, and
layouts that only they take.
"""

import re
import time

import numpy as np
import oracle
import pytest
import torch
from hypothesis import strategies as st
from kernel_cases import Case, check, implementations
from oracle import rule
from plans import assert_plan_is
from repository import docs_page
from strategies import build, hold, radii, tiers

from asterism import compile_pattern, patterns
from asterism.compiler.liveness import last_reader, most_living
from asterism.patterns import Verdict
from asterism.patterns.pattern import Ranges

PAGE = docs_page("patterns.md").read_text()

WIDTH, CHANNELS = 9, 3

AROUND = """
.........
.........
..#####..
..#####..
..##O##..
..#####..
..#####..
.........
"""

AT_THE_END_OF_A_ROW = """
.........
......###
......###
......##O
......###
......###
.........
"""

BEFORE_AND_THE_COLUMN_ABOVE = """
....#....
....#....
..#####..
..#####..
..##O....
.........
"""

EVERY_SECOND_PIXEL = """
.........
#.#.#....
.........
#.O.#....
.........
#.#.#....
"""

DRAWINGS = {
    "grid(9, radius=2, channels=3)": (AROUND, "all"),
    "grid(9, radius=2, channels=3) ": (AT_THE_END_OF_A_ROW, "all"),
    "(grid(9, radius=2, channels=3) | grid(9, radius=(99, 0), channels=3)) & causal()": (
        BEFORE_AND_THE_COLUMN_ABOVE,
        "past",
    ),
    "grid(9, radius=1, dilation=2, channels=3)": (EVERY_SECOND_PIXEL, "all"),
}


@pytest.mark.parametrize("text", DRAWINGS)
def test_the_pixels_that_a_value_reads(text):
    """Each channel of the pixel marked O reads all channels of those marked #, and of its own those up to itself."""
    drawing, which = DRAWINGS[text]
    cells = np.array([list(line) for line in drawing.split()])
    (row,), (column,) = np.nonzero(cells == "O")
    pixel = row * WIDTH + column
    (picture,) = patterns.parse(text).dense(cells.size * CHANNELS)
    for channel in range(CHANNELS):
        expected = np.repeat((cells != ".").ravel(), CHANNELS)
        if which == "past":
            expected[pixel * CHANNELS + channel + 1 :] = False
        np.testing.assert_array_equal(picture[pixel * CHANNELS + channel], expected)


def pixels_read(text: str, rows: int, columns: int) -> list[str]:
    """What the pixel in the middle of the picture reads, drawn as on the page."""
    (picture,) = patterns.parse(text).dense(rows * columns * CHANNELS)
    middle = rows // 2 * columns + columns // 2
    cells = picture[middle * CHANNELS + CHANNELS - 1, ::CHANNELS]
    drawn = np.where(cells, "#", ".")
    drawn[middle] = "O"
    return [" ".join(line) for line in drawn.reshape(rows, columns)]


def test_the_pictures_on_the_page():
    around, apart, column, past = (
        pixels_read("grid(7, radius=2, channels=3)", 7, 7),
        pixels_read("grid(9, radius=2, dilation=2, channels=3)", 9, 9)[1:-1],
        pixels_read("grid(5, radius=(2, 0), channels=3)", 7, 5),
        pixels_read("grid(7, radius=2, channels=3) & causal()", 7, 7),
    )
    lines = [f"{a:<26}{b:<21}{c:<14}{d}" for a, b, c, d in zip(around, apart, column, past, strict=True)]
    assert "\n".join(" " * 8 + line for line in lines) in PAGE


def test_one_number_is_both_radii():
    assert patterns.grid(8, radius=(2, 2)) == patterns.grid(8, radius=[2, 2]) == patterns.grid(width=8, radius=2)
    assert str(patterns.grid(8, 2)) == "grid(width=8, radius=2)"
    assert str(patterns.grid(8, np.array([1, 2]), 3, 4)) == "grid(width=8, radius=(1, 2), dilation=3, channels=4)"
    assert patterns.grid(8, (1, 2)) != patterns.grid(8, (2, 1))


# --- what is cheap ---------------------------------------------------------------------------------------------------


def test_verdicts_inside_rows_are_exact():
    """Tiles that lie in single rows are settled without looking at a pair."""
    pattern, length = patterns.grid(12, radius=(2, 3), dilation=2, channels=2), 240
    (picture,) = pattern.dense(length)
    random = np.random.Generator(np.random.Philox(0))
    seen = set()
    for _ in range(400):
        ranges = []
        for row in random.integers(0, 10, 2) * 24:
            first = random.integers(24)
            last = min(first + random.choice([0, 1, 4, 12]), 23)
            ranges.append((int(row + first), int(row + last) + 1))
        cells = picture[slice(*ranges[0]), slice(*ranges[1])]
        truth = Verdict.FULL if cells.all() else Verdict.MIXED if cells.any() else Verdict.EMPTY
        assert pattern.verdict(*ranges, length) == truth, ranges
        seen.add(truth)
    assert seen == {Verdict.FULL, Verdict.MIXED, Verdict.EMPTY}


def test_spans_are_what_a_row_reads():
    """The 5 x 5 pixels around four pixels of a row: five spans of eight pixels, and no more."""
    pattern = patterns.grid(64, radius=2, channels=3)
    start = (10 * 64 + 20) * 3
    spans = pattern.spans((start, start + 12), 12_288)
    assert spans.tolist() == [[(row * 64 + 18) * 3, (row * 64 + 26) * 3] for row in range(8, 13)]
    column = patterns.grid(64, radius=(2**40, 0), channels=3).spans((start, start + 3), 12_288)
    assert column.tolist() == [[(row * 64 + 20) * 3, (row * 64 + 21) * 3] for row in range(64)]


@st.composite
def _grids(draw):
    """A grid, a length that need not fill its last row, and two ranges of its tokens."""
    width, channels = draw(st.integers(1, 12)), draw(st.integers(1, 4))
    length = draw(st.integers(1, 150))
    drawn = rule("grid", width=width, radius=draw(radii), dilation=draw(st.integers(1, 5)), channels=channels)
    bounds = st.tuples(st.integers(0, length - 1), st.integers(0, length - 1)).map(lambda two: (min(two), max(two) + 1))
    return drawn, length, draw(bounds), draw(bounds)


@pytest.mark.parametrize("count", tiers(30, 3000))
def test_picture_spans_and_verdicts_of_any_grid(count):
    from laws import check_spans, check_verdict

    def law(case):
        drawn, length, queries, keys = case
        pattern = build(drawn)
        (picture,) = pattern.dense(length)
        np.testing.assert_array_equal(picture[None], oracle.picture(drawn, length))
        check_spans(pattern, picture, queries, length, 0)
        check_verdict(pattern, picture, queries, keys, length, 0)
        readers = np.where(picture, np.arange(length)[:, None], -1).max(0)
        assert (last_reader(pattern, np.arange(length)) >= readers).all()

    hold(law, _grids(), count)


@pytest.mark.parametrize("text", ("grid(24, radius=2)", "grid(24, radius=(1, 3), dilation=2)", "grid(2, radius=2)"))
@pytest.mark.parametrize("step", (0, 1, 2, 3, 5))
def test_verdicts_on_progressions(text, step):
    """Tiles of other layouts hold every step-th token of a range, or (0) nobody says which."""
    pattern, length = patterns.parse(text), 96
    (picture,) = pattern.dense(length)
    for first in range(0, 40):
        for other in range(first % 3, length, 3):
            queries, keys = (
                np.arange(start, min(start + 7 * (step or 2), length), step or 2) for start in (first, other)
            )
            asked = [Ranges(tokens[:1], tokens[-1:], step) for tokens in (queries, keys)]
            verdict = Verdict(int(pattern.judge(*asked, length, 0)[0]))
            cells = picture[np.ix_(queries, keys)]
            truth = {Verdict.EMPTY: not cells.any(), Verdict.FULL: cells.all(), Verdict.UNKNOWN: True}
            assert truth.get(verdict, cells.any() and not cells.all()), (queries, keys, verdict)


# --- plans -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", tiers(30, 1500))
def test_plans_of_any_grid(count):
    def law(case):
        drawn, length, (start, stop), _ = case
        for rule_ in (drawn, drawn & rule("causal"), drawn | rule("window", left=3)):
            assert_plan_is(build(rule_), stop - start, length, query_offset=start, tile=16)

    hold(law, _grids(), count)


WITHIN_TWICE = [(r, d, causal) for causal in (False, True) for r in range(1, 6) for d in range(1, 5)]


def is_within_twice(radius: int, dilation: int, causal: bool) -> bool:
    """Which neighbourhoods are large enough for tiles of 16.

    16 values lie in at least 6 pixels; with radius 1 these read 20 pixels or more, 4 tiles, where 27 values are allowed
    to each: 2.4 times as many, in whatever order. Every third pixel of 64 gives rows of 21 and 22, which no tile fills.
    """
    if dilation == 3:
        return radius >= 3 and not causal
    return radius >= (4 if causal else 2)


@pytest.mark.parametrize(("radius", "dilation", "causal"), WITHIN_TWICE)
def test_plans_of_a_64_by_64_picture(radius, dilation, causal):
    """12,288 values: which plans compute at most twice the pairs that are allowed."""
    text = f"grid(64, radius={radius}, dilation={dilation}, channels=3)" + " & causal()" * causal
    plan = compile_pattern(text, 12_288, tile=16)
    assert (plan.packing <= 2) == is_within_twice(radius, dilation, causal), plan.packing
    assert plan.packing < 5.7


def test_the_packing_on_the_page():
    for name, causal in (("all around", ""), ("`& causal()`", " & causal()")):
        (row,) = re.findall(rf"^\| {re.escape(name)} \| (.*) \|$", PAGE, re.MULTILINE)
        for radius, told in enumerate(row.split(" | "), start=1):
            plan = compile_pattern(f"grid(64, radius={radius}, channels=3){causal}", 12_288, tile=16)
            assert f"{plan.packing:.1f}" == told


def test_the_column_above_is_dense():
    """A column of pixels in one band: a tile of queries reads the tiles above, and nothing else."""
    plan = compile_pattern("grid(64, radius=(63, 0), channels=3) & causal()", 12_288, tile=32)
    assert [part.layout for part in plan.passes] == ["bands of 64 rows of 64 pixels"]
    assert plan.packing < 1.2 and len(plan.masks) == 1


def test_around_and_the_column_above_are_two_passes():
    text = "(grid(64, radius=2, channels=3) | grid(64, radius=(63, 0), channels=3)) & causal()"
    plan = compile_pattern(text, 12_288)
    assert [part.layout for part in plan.passes] == ["bands of 2 rows of 64 pixels", "bands of 64 rows of 64 pixels"]
    assert plan.packing < 2.5
    own_row, rows_above = 2 * 3 + 2, 2 * 5 * 3  # of a value in the middle: its row to its left, and two above
    assert plan.pairs < 12_288 * (own_row + rows_above + 64 * 3 / 2)


def test_a_large_picture_is_compiled_in_seconds():
    started = time.process_time()
    plan = compile_pattern("grid(256, radius=2, channels=3) & causal()", 256 * 256 * 3)
    assert time.process_time() - started < 5
    assert plan.bytes < 2**24


@pytest.mark.parametrize("radius", (1, 2, (6, 0), (0, 3), (2, 40), (2**40, 1)), ids=str)
@pytest.mark.parametrize("dilation", (1, 2, 5, 2**10))
def test_bands_of_partial_pictures(radius, dilation):
    """Rows and columns that bands and residues do not divide, and a last row that is not whole."""
    pattern = patterns.grid(11, radius=radius, dilation=dilation, channels=3)
    for length in (1, 32, 33, 400):
        assert_plan_is(pattern, length, tile=16)
        assert_plan_is(pattern & patterns.causal(), length, tile=16)


# --- attention and caches --------------------------------------------------------------------------------------------

IN_BANDS = (
    rule("grid", width=24, radius=3, channels=3),
    rule("grid", width=24, radius=2, dilation=2, channels=3) & rule("causal"),
    (rule("grid", width=24, radius=2, channels=3) | rule("grid", width=24, radius=(11, 0), channels=3))
    & rule("causal"),
)


@pytest.mark.parametrize("drawn", IN_BANDS, ids=lambda drawn: drawn.text)
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64), ids=str)
def test_attention_over_bands(drawn, dtype):
    """A picture of 9 rows and a bit, forward and backward against float64, by a plan that is not in natural order."""
    tokens = 24 * 9 * 3 + 7
    assert any(part.layout.startswith("bands") for part in compile_pattern(build(drawn), tokens).passes)
    for implementation in set(implementations(dtype)) & {"eager", "cpu"}:
        check(Case(drawn, heads=2, n_queries=tokens, n_keys=tokens, width=8, dtype=dtype), implementation)


def test_a_cache_keeps_the_rows_that_are_read():
    """Two rows and a bit of a picture that is 64 wide, however high it grows."""
    pattern = patterns.grid(64, radius=2, channels=3) & patterns.causal()
    life = (2 * 64 + 2) * 3 + 2
    assert most_living(pattern) == life + 1
    keys = np.arange(64 * 3 * 10)
    assert (last_reader(pattern, keys) - keys).max() == life
    assert most_living(pattern | patterns.grid(64, (9, 0), channels=3) & patterns.causal()) == 9 * 64 * 3 + 3
