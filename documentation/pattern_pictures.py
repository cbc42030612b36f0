"""The gallery of patterns: for each name of the text form an example, its picture, and where its docstring stands.

Pictures are SVG files drawn from `asterism.patterns.draw`, so that they show the rule itself.
"""

import re

from asterism.patterns import parse
from asterism.patterns.draw import draw

TOKENS = 32
_FEWER = {"explicit": 8, "part": 24}
_QUERIES = {"part": 16}

GROUPS: dict[str, dict[str, str]] = {
    "Primitives": {
        "dense": "dense()",
        "causal": "causal()",
        "window": "window(left=5, right=2)",
        "stride": "stride(period=8)",
        "blocks": "blocks(size=8, left=1)",
        "columns": "columns(period=8, first=6, count=2)",
        "grid": "grid(8, radius=1)",
        "global_tokens": "global_tokens((0, -1))",
        "global_keys": "global_keys(0, block=3)",
        "global_queries": "global_queries(0, block=3)",
        "random_blocks": "random_blocks(block=4, count=2)",
        "explicit": 'explicit("0:0;1:0-1;2:0,2;3:0,2-3;4:0,4;5:0,4-5;6:0,4,6;7:0,4,6-7")',
    },
    "Made of other patterns": {
        "per_head": "per_head((window(left=5), stride(period=8)))",
        "shifted": "shifted(blocks(size=8), by=5)",
        "across": "across(window(left=4, right=4), step=4)",
        "part": 'part(window(left=4), length=32, queries="16:32", keys="8:32")',
        "documents": "documents(causal(), 10, 6, 16)",
        "tree": 'tree("13:8;18:8;21:19;25:19", size=32)',
    },
    "Sparse Transformer (Child 2019)": {"strided": "strided(stride=6)", "fixed": "fixed(stride=8, summary=2)"},
    "BigBird (Zaheer 2020)": {
        "bigbird": "bigbird(block=2, random=2)",
        "bigbird_etc": "bigbird_etc(block=4, globals=3)",
        "bigbird_causal": "bigbird_causal(block=4, random=1)",
    },
    "Longformer, StreamingLLM": {
        "longformer": "longformer(window=8)",
        "sinks": "sinks(first=3, window=6)",
    },
    "Stars": {"star": "star()", "star_transformer": "star_transformer()"},
    "As Yun 2020 writes them": {
        "yun_strided": "yun_strided(w=6)",
        "yun_fixed": "yun_fixed(w=6)",
        "yun_star": "yun_star()",
        "yun_window": "yun_window(w=6)",
        "yun_random": "yun_random(count=3)",
    },
}
"""Headings, and under each the names with an example that `TOKENS` tokens show well."""


_SIDE = 160


def picture(name: str, text: str) -> str:
    """The pattern over a few tokens as SVG: a square is a pair that may attend; rows are queries, columns keys."""
    tokens = _FEWER.get(name, TOKENS)
    rows = draw(parse(text), tokens, queries=_QUERIES.get(name), cells=TOKENS).splitlines()[1:-1]
    columns = len(rows[0])
    cell = _SIDE / columns
    height = cell * len(rows)
    runs = "".join(
        f"M{run.start() * cell:g} {row * cell:g}h{(run.end() - run.start()) * cell:g}v{cell:g}H{run.start() * cell:g}z"
        for row, line in enumerate(rows)
        for run in re.finditer("█+", line)
    )
    upright = "".join(f"M{column * cell:g} 0V{height:g}" for column in range(1, columns))
    level = "".join(f"M0 {row * cell:g}H{_SIDE}" for row in range(1, len(rows)))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-4 -4 {_SIDE + 8} {height + 8:g}" width="{_SIDE + 8}">'
        f'<rect x="-4" y="-4" width="{_SIDE + 8}" height="{height + 8:g}" fill="#fff"/>'
        f'<rect width="{_SIDE}" height="{height:g}" fill="#dfe2f2"/><path d="{runs}" fill="#303f9f"/>'
        f'<path d="{upright}{level}" stroke="#fff" stroke-width=".7"/></svg>\n'
    )


def gallery() -> str:
    """The page of the gallery."""
    lines = [
        "# Gallery of patterns\n",
        "Every pattern of the text form, drawn over a few tokens: rows are queries, columns are keys, and a filled"
        " square is a pair that may attend. Select a picture to read what the pattern means.",
        "[Patterns](patterns.md) explains how they combine. `asterism show PATTERN -n N` draws any of them.\n",
        "This page is written by `make reference`.\n",
        '<div class="gallery" markdown>\n',
    ]
    every = {name: text for group in GROUPS.values() for name, text in group.items()}
    lines += [
        f"[![{text}](pictures/{name}.svg)<br>`{name}`](#asterism.patterns.{name})" for name, text in every.items()
    ]
    lines.append("\n</div>\n")
    for title, group in GROUPS.items():
        lines.append(f"## {title}\n")
        for name, text in group.items():
            lines += [
                f"![{text}](pictures/{name}.svg)\n",
                f"::: asterism.patterns.{name}\n",
                f"In the picture: `{text}`\n",
            ]
    return "\n".join(lines)


def pictures() -> dict[str, str]:
    """The SVG of every pattern by its name."""
    return {name: picture(name, text) for group in GROUPS.values() for name, text in group.items()}
