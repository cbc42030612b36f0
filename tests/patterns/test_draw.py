"""Pictures and counts agree with the dense mask, and stay small at any length."""

import sys
import tracemalloc
import xml.etree.ElementTree

import numpy as np
import pytest
from refusals import refusing

from asterism import patterns
from asterism.errors import AsterismError, PatternError
from asterism.patterns import draw as drawing
from asterism.patterns.draw import degrees, density, draw, draw_image

RULES = [
    "dense()",
    "causal()",
    "~causal()",
    "window(left=3, right=1)",
    "window(left=2, dilation=3)",
    "stride(period=7)",
    "stride(period=4) & ~stride(period=2)",
    "blocks(size=10) & ~blocks(size=10)",
    "columns(period=16, first=14, count=2)",
    "grid(7, radius=2, channels=3)",
    "grid(5, radius=(30, 1), dilation=2) & causal()",
    "global_tokens((0, -1))",
    "random_blocks(block=1, count=3)",
    "random_blocks(block=8, count=2, earlier=True)",
    "explicit('0:0-3,7;99:5-8,98')",
    "strided(stride=12)",
    "fixed(stride=16, summary=3)",
    "bigbird(block=8)",
    "bigbird_etc(block=8, globals=5)",
    "longformer(window=6, dilation=2)",
    "star_transformer()",
    "yun_star()",
    "shifted(causal(), by=33)",
]
ACROSS = {
    "across(window(left=3, right=1), step=4)": 25,
    "across(bigbird(block=8) | columns(10), step='3/2')": 67,
    "across(strided(12), step='1/2')": 200,
    "dense()": 100,
}
"""Patterns that take any query, and how many of them stand among 100 keys."""


def glyphs_of(text: str) -> list[str]:
    return text.splitlines()[1:-1]


def expected_glyphs(mask: np.ndarray, tile: int) -> list[str]:
    """The picture from the dense mask, tile by tile."""
    rows, columns = (range(0, size, tile) for size in mask.shape)
    blocks = [[mask[q : q + tile, k : k + tile] for k in columns] for q in rows]
    return ["".join("█" if b.all() else "▒" if b.any() else "·" for b in row) for row in blocks]


def test_a_picture_of_tokens():
    assert draw(patterns.fixed(stride=4, summary=1), 8) == "\n".join(
        [
            "fixed(stride=4), 8 tokens",
            "█·······",
            "██······",
            "███·····",
            "████····",
            "···██···",
            "···███··",
            "···████·",
            "···█████",
            "rows: queries, columns: keys; █ may attend, · may not",
        ]
    )


def test_a_picture_of_tiles():
    assert draw(patterns.window(left=4), 16, cells=4) == "\n".join(
        [
            "window(left=4), 16 tokens",
            "▒···",
            "▒▒··",
            "·▒▒·",
            "··▒▒",
            "rows: queries, columns: keys, one cell: 4 x 4 pairs; █ all may attend, ▒ some, · none",
        ]
    )


@pytest.mark.parametrize("text", RULES)
@pytest.mark.parametrize(("n", "cells"), [(1, 64), (100, 100), (100, 33), (100, 7), (100, 1)])
def test_every_cell_agrees_with_the_dense_mask(text: str, n: int, cells: int):
    pattern = patterns.parse(text)
    assert glyphs_of(draw(pattern, n, cells=cells)) == expected_glyphs(pattern.dense(n)[0], -(-n // cells))


def test_each_head_has_its_own_picture():
    pattern = patterns.fixed(stride=8, summary=2, heads=4)
    for head in range(4):
        text = draw(pattern, 32, head=head)
        assert text.startswith(f"{pattern}, 32 tokens, head {head} of 4\n")
        assert glyphs_of(text) == expected_glyphs(pattern.dense(32)[head], 1)


@pytest.mark.parametrize(
    ("text", "n"),
    [(text, 2**16) for text in RULES if "explicit" not in text] + [("bigbird_causal(block=64)", 2**18)],
)
def test_long_sequences_need_little_memory(text: str, n: int, monkeypatch: pytest.MonkeyPatch):
    pattern = patterns.parse(text)
    monkeypatch.setattr(drawing, "_MANY_PAIRS", 2**20)
    tracemalloc.start()
    rows, read = glyphs_of(draw(pattern, n, cells=16)), degrees(pattern, n)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [len(row) for row in rows] == [16] * 16
    assert 0 <= read.minimum <= read.mean <= read.maximum <= n
    assert peak < 300e6  # the dense mask alone would take n * n bytes, 4 GB at the least


def test_a_cell_that_takes_too_long_is_called_not_known(monkeypatch: pytest.MonkeyPatch):
    pattern = patterns.parse("stride(period=4) & ~stride(period=2)")
    monkeypatch.setattr(drawing, "_MANY_PAIRS", 1)
    text = draw(pattern, 1024, cells=2)
    assert glyphs_of(text) == ["▒▒", "▒▒"]
    assert "▒ some or not known" in text


@pytest.mark.parametrize("text", RULES)
@pytest.mark.parametrize("n", [1, 2, 63, 100])
def test_degrees_count_the_dense_mask(text: str, n: int):
    pattern = patterns.parse(text)
    counts = pattern.dense(n)[0].sum(axis=1)
    read = degrees(pattern, n)
    assert (read.minimum, read.maximum, read.queries) == (counts.min(), counts.max(), n)
    assert read.mean == pytest.approx(counts.mean())
    assert density(pattern, n) == pytest.approx(pattern.dense(n).mean())


def test_degrees_of_some_queries_are_those_of_the_dense_mask(monkeypatch: pytest.MonkeyPatch):
    pattern = patterns.parse("stride(period=5) & causal()")
    monkeypatch.setattr(drawing, "_MANY_PAIRS", 2**16)
    read = degrees(pattern, 1000)
    queries = np.linspace(0, 999, read.queries).astype(int)
    counts = pattern.dense(1000)[0].sum(axis=1)[queries]
    assert 64 <= read.queries < 1000
    assert (read.minimum, read.maximum) == (counts.min(), counts.max())
    assert read.mean == pytest.approx(counts.mean())


@pytest.mark.parametrize("queries", (None, 1, 30, 333))
@pytest.mark.parametrize("text", ACROSS)
def test_queries_of_another_sequence(text: str, queries: int | None):
    pattern, count = patterns.parse(text), queries or ACROSS[text]
    (mask,) = pattern.dense(count, 100, 0)
    for cells in (17, 400):
        tile = max(-(-max(count, 100) // cells), 1)
        picture = draw(pattern, 100, queries=queries, cells=cells)
        assert glyphs_of(picture) == expected_glyphs(mask, tile)
    lengths = f"{count:,} quer{'ies' if count > 1 else 'y'} of 100 tokens" if count != 100 else "100 tokens"
    assert picture.splitlines()[0] == f"{pattern}, {lengths}"
    read = degrees(pattern, 100, queries=queries)
    counts = mask.sum(axis=1)
    assert read == drawing.Degrees(counts.min(), pytest.approx(counts.mean()), counts.max(), count)


def test_the_first_queries_of_a_sequence():
    assert glyphs_of(draw(patterns.causal(), 4, queries=2)) == ["█···", "██··"]
    with refusing(PatternError, "queries-beyond-positions", "5", "4"):
        draw(patterns.causal(), 4, queries=5)


def test_degrees_of_one_head():
    pattern = patterns.per_head([patterns.window(left=2), patterns.dense()])
    assert degrees(pattern, 10, head=0).maximum == 3
    assert degrees(pattern, 10, head=1).minimum == 10


def test_no_tokens():
    assert glyphs_of(draw(patterns.dense(), 0)) == []
    assert degrees(patterns.dense(), 0) == drawing.Degrees(0, 0.0, 0, 0)
    assert density(patterns.dense(), 0) == 0


@pytest.mark.parametrize("n", [5, 1000])
def test_images(n: int, tmp_path):
    pattern = patterns.bigbird(block=2)
    draw_image(pattern, n, tmp_path / "picture.png")
    draw_image(pattern, n, str(tmp_path / "picture.SVG"))
    draw_image([pattern, patterns.across(pattern, step=4)], n, tmp_path / "two.png")
    assert (tmp_path / "two.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert xml.etree.ElementTree.parse(tmp_path / "picture.SVG").getroot().tag.endswith("svg")


def test_images_without_matplotlib(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with refusing(AsterismError, "package-missing"):
        draw_image(patterns.dense(), 4, tmp_path / "picture.png")


def test_refusals(tmp_path):
    with refusing(PatternError, "below-minimum", "n", "0", "-1"):
        draw(patterns.dense(), -1)
    with refusing(PatternError, "below-minimum", "cells", "1", "0"):
        draw(patterns.dense(), 4, cells=0)
    with refusing(PatternError, "no-such-head", "1"):
        degrees(patterns.dense(), 4, head=1)
    with refusing(PatternError, "picture-suffix", "'picture.jpeg'"):
        draw_image(patterns.dense(), 4, "picture.jpeg")
