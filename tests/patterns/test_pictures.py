"""Hand-drawn pictures: every primitive and every published pattern as a person would draw it.

Rows are queries, columns are keys, `1` may attend. A picture wider than it is high asks for fewer queries than keys.
"""

import numpy as np
import oracle
import pytest

from asterism import patterns

FULL = "111 111 111"

SQUARE = {
    "dense()": FULL,
    "causal()": "1.. 11. 111",
    "window()": "1.. .1. ..1",
    "window(left=1)": "1... 11.. .11. ..11",
    "window(right=1)": "11.. .11. ..11 ...1",
    "window(left=2, right=1)": "11... 111.. 1111. .1111 ..111",
    "window(left=2, right=1, dilation=2)": "1.1.... .1.1... 1.1.1.. .1.1.1. 1.1.1.1 .1.1.1. ..1.1.1",
    "stride(1)": FULL,
    "stride(3)": "1..1..1 .1..1.. ..1..1. 1..1..1 .1..1.. ..1..1. 1..1..1",
    "stride(9)": "1.. .1. ..1",
    "blocks(2)": "11... 11... ..11. ..11. ....1",
    "blocks(2, left=1)": "11... 11... 1111. 1111. ..111",
    "blocks(2, right=1)": "1111. 1111. ..111 ..111 ....1",
    "columns(3)": "1..1. 1..1. 1..1. 1..1. 1..1.",
    "columns(3, first=1, count=2)": ".11.1 .11.1 .11.1 .11.1 .11.1",
    "grid(3, radius=1)": ("11.11.... 111111... .11.11... 11.11.11. 111111111 .11.11.11 ...11.11. ...111111 ....11.11"),
    "grid(3, radius=(0, 1))": "11... 111.. .11.. ...11 ...11",
    "grid(3, radius=(1, 0))": "1..1.. .1..1. ..1..1 1..1.. .1..1. ..1..1",
    "grid(2, radius=(1, 0), channels=2)": "11..11. 11..11. ..11..1 ..11..1 11..11. 11..11. ..11..1",
    "grid(3, radius=1, dilation=2)": "1.1...1 .1..... 1.1...1 ...1.1. ....1.. ...1.1. 1.1...1",
    "global_keys(1)": ".1. .1. .1.",
    "global_keys((0, -1))": "1..1 1..1 1..1 1..1",
    "global_keys(-1, block=2)": "....1 ....1 ....1 ....1 ....1",
    "global_keys((3, -4))": "... ... ...",
    "global_queries(1)": "... 111 ...",
    "global_queries(-2, block=2)": "..... ..... 11111 11111 .....",
    "global_tokens(1)": ".1. 111 .1.",
    "global_tokens(0, block=2)": "1111 1111 11.. 11..",
    # Draws with one possible outcome.
    "random_blocks(2, 1, window_blocks=1)": "..11 ..11 11.. 11..",
    "random_blocks(2, 1, earlier=True)": ".... .... 11.. 11..",
    "random_blocks(2, 1, avoid=(0,))": "..11 ..11 ..11 ..11",
    "random_blocks(1, 9)": FULL,
    "random_blocks(1, 3, window_blocks=1, avoid=(-1,))": ".11. 1.1. 11.. 111.",
    'explicit("0:0-2,4;2:1", size=5)': "111.1 ..... .1... ..... .....",
    'explicit("0:0;3:0-3", size=5)': "1.. ... ...",
    "shifted(causal(), by=2)": "..... ..... ..1.. ..11. ..111",
    "shifted(global_keys(-1), by=1)": ".... ...1 ...1 ...1",
    "shifted(dense(), by=3)": "... ... ...",
    "tree((-1, 0, 1, 0, 3, -1))": "1..... 11.... 111... 1..1.. 1..11. .....1",
    "tree('3:0;5:-1', size=6)": "1..... 11.... 111... 1..1.. 1..11. .....1",
    "tree((-1, 0, 0, 1, 2))": "1.... 11... 1.1.. 11.1. 1.1.1",
    "tree((-1, 0, 1, 0, 3), pattern=window(left=1))": "1.... 11... .11.. 1..1. ...11",
    "documents(causal(), 2, 3)": "1.... 11... ..1.. ..11. ..111",
    "across(window(left=1), step=2)": "1.... .11.. ...11 ..... .....",
    "across(window(), step='3/2')": "1..... .1.... ...1.. ....1. ...... ......",
    "across(causal(), step='1/2')": "1... 1... 11.. 11..",
    "documents(global_keys(-1), 2, 0, -1, 1, 2)": ".1.... .1.... ...... ...1.. .....1 .....1",
    "~causal()": ".11 ..1 ...",
    "window(left=1) | columns(4)": "1... 11.. 111. 1.11",
    "window(left=2) & stride(2)": "1... .1.. 1.1. .1.1",
    "causal() & ~window(left=1)": ".... .... 1... 11..",
    "strided(2)": "1..... 11.... 111... .111.. 1.111. .1.111",
    "strided(3)": "1....... 11...... 111..... 1111.... .1111... ..1111.. 1..1111. .1..1111",
    "fixed(3)": "1....... 11...... 111..... ..11.... ..111... ..1111.. ..1..11. ..1..111",
    "fixed(4, summary=2)": "1...... 11..... 111.... 1111... ..111.. ..1111. ..11111",
    "bigbird(block=1, random=0)": "111111 111..1 1111.1 1.1111 1..111 111111",
    "bigbird(block=2, window_blocks=1, random=0)": "1111111 1111111 1111..1 1111..1 11..111 11..111 1111111",
    "bigbird(block=1, random=1, globals=())": FULL,
    "bigbird_etc(block=1, window_blocks=1, globals=2)": "11111 11111 111.. 11.1. 11..1",
    "bigbird_etc(block=2, window_blocks=3, globals=1)": (
        "11111111 11111... 11111... 1111111. 1111111. 1..11111 1..11111 1....111"
    ),
    "bigbird_causal(block=2, window_blocks=1, random=0)": "1..... 11.... 111... 1111.. 11..1. 11..11",
    "longformer(window=2)": "11111 111.. 1111. 1.111 1..11",
    "longformer(window=2, dilation=2, globals=(-1,))": "1.1.1 .1.11 1.1.1 .1.11 11111",
    "star()": "1111 11.. 1.1. 1..1",
    "star_transformer()": "11111 111.1 1111. 1.111 11.11",
    "yun_strided(3)": "11.1.. 111.1. 1111.1 11111. .11111 ..1111",
    "yun_fixed(3)": "111..1. 111..1. 111..1. ..1111. ..1111. ..1111. ..1..11",
    "yun_star()": "11..1 111.1 .11.1 1.111 11111",
    "yun_window(3)": "11... 111.. 1111. .1111 ..111",
    "yun_window(2)": "11... 111.. .111. ..111 ...11",
    "yun_random(9)": FULL,
    "sinks(first=1, window=2)": "1.... 11... 111.. 1.11. 1..11",
    "merge(window(left=1), columns(4))": "1... 11.. 111. 1.11",
}

PER_HEAD = {
    "per_head([causal(), window(right=1)])": ("1.. 11. 111", "11. .11 ..1"),
    "fixed(4, summary=1, heads=2)": (
        "1..... 11.... 111... 1111.. ...11. ...111",
        "1..... 11.... 111... 1111.. ..1.1. ..1.11",
    ),
    "fixed(2, summary=1, heads=3)": ("1... 11.. .11. .111", "1... 11.. 1.1. 1.11", "1... 11.. .11. .111"),
    "split_heads(causal(), dense(), heads=4)": ("1. 11", "1. 11", "11 11", "11 11"),
}

UNIT_EMPTY = {
    "columns(3, first=1)",
    "columns(3, first=1, count=2)",
    "global_keys(1)",
    "global_keys((3, -4))",
    "global_queries(1)",
    "global_queries(-2, block=2)",
    "global_tokens(1)",
    "random_blocks(2, 1, window_blocks=1)",
    "random_blocks(2, 1, earlier=True)",
    "random_blocks(2, 1, avoid=(0,))",
    "random_blocks(1, 3, window_blocks=1, avoid=(-1,))",
    "shifted(causal(), by=2)",
    "shifted(global_keys(-1), by=1)",
    "shifted(dense(), by=3)",
    "documents(global_keys(-1), 2, 0, -1, 1, 2)",
    "~causal()",
    "causal() & ~window(left=1)",
}

WIDE = {
    "causal()": (2, None, "1111. 11111"),
    "window(left=1, right=1)": (2, None, "..111 ...11"),
    "window(left=1)": (2, 0, "1.... 11..."),
    "stride(2)": (1, None, "1.1.1"),
    "blocks(2)": (3, None, "..11. ..11. ....1"),
    "columns(2)": (2, 1, "1.1.1 1.1.1"),
    "global_queries(-1)": (2, None, "..... 11111"),
    "global_keys(-1)": (2, 1, "....1 ....1"),
    "shifted(causal(), by=3)": (3, None, "..... ...1. ...11"),
    "across(window(), step=2)": (3, None, "1.... ..1.. ....1"),
    "across(window(left=1, right=1), step=2)": (2, 1, ".111. ...11"),
    "grid(2, radius=1)": (2, None, "11111 ..111"),
    "fixed(2)": (2, None, ".111. .1.11"),
    "strided(2)": (1, 3, ".111."),
    "bigbird(block=1, window_blocks=1, random=0)": (2, 2, "1.1.1 1..11"),
    "star()": (2, None, "1..1. 1...1"),
    'explicit("0:0-4;3:0,4;4:1", size=5)': (2, None, "1...1 .1..."),
}


def show(picture: np.ndarray) -> str:
    return " ".join("".join("1" if cell else "." for cell in row) for row in picture)


@pytest.mark.parametrize("text", SQUARE)
def test_square(text):
    size = len(SQUARE[text].split())
    (picture,) = patterns.parse(text).dense(size)
    assert show(picture) == SQUARE[text]


@pytest.mark.parametrize("text", SQUARE)
def test_one_token(text):
    (picture,) = patterns.parse(text).dense(1)
    assert show(picture) == ("." if text in UNIT_EMPTY else "1")


@pytest.mark.parametrize("text", PER_HEAD)
def test_one_picture_per_head(text):
    drawings = PER_HEAD[text]
    pictures = patterns.parse(text).dense(len(drawings[0].split()))
    assert tuple(map(show, pictures)) == drawings


@pytest.mark.parametrize("text", WIDE)
def test_fewer_queries_than_keys(text):
    n_queries, offset, drawing = WIDE[text]
    (picture,) = patterns.parse(text).dense(n_queries, 5, offset)
    assert show(picture) == drawing


def test_every_picture_is_rectangular():
    """A slip of the pen in the tables above must not pass for a pattern."""
    drawings = [*SQUARE.values(), *sum(PER_HEAD.values(), ())]
    assert all({len(row) for row in drawing.split()} == {len(drawing.split())} for drawing in drawings)
    assert all({len(row) for row in drawing.split()} == {5} for _, _, drawing in WIDE.values())


def test_the_oracle_draws_the_same_by_hand():
    """The oracle of the generated tests against three of the drawings."""
    for text, name, arguments in (
        ("window(left=2, right=1, dilation=2)", "window", {"left": 2, "right": 1, "dilation": 2}),
        ("fixed(3)", "fixed", {"stride": 3}),
        ("yun_fixed(3)", "yun_fixed", {"w": 3}),
    ):
        (picture,) = oracle.picture(oracle.rule(name, **arguments), len(SQUARE[text].split()))
        assert show(picture) == SQUARE[text]
