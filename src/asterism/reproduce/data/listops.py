"""ListOps (Nangia 2018), as in Long Range Arena: nested operations on digits, each expression with its result.

An expression is an operation of 2 to 10 arguments, each a digit or, with probability 1/4, another expression; the
nesting ends at depth 10. Operations are the minimum, the maximum, the median (rounded down) and the sum modulo 10.
Every symbol is one byte: an operation and its opening bracket are one letter. `d82)` is the median of 8 and 2, 5.

Invariant: the expressions depend on seed, count and lengths alone.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

OPERATIONS = {"MIN": "n", "MAX": "x", "MED": "d", "SM": "s"}
"""The byte of each operation and its opening bracket."""
NAMES, CLOSE = tuple(OPERATIONS), ")"
DEEPEST, MOST_ARGUMENTS, NESTED = 10, 10, 0.25

_PURPOSE = 1804_06028


def expressions(count: int, shortest: int, longest: int, seed: int) -> Iterator[tuple[str, int]]:
    """Yield `count` expressions of `shortest` to `longest` bytes, each with its result."""
    draw = _draws(np.random.Generator(np.random.Philox(key=[seed, _PURPOSE]))).__next__
    made = 0
    while made < count:
        symbols: list[str] = []
        result = _operation(draw, 1, symbols, longest)
        if result is not None and len(symbols) >= shortest:
            made += 1
            yield "".join(symbols), result


def write_expressions(path: Path, count: int, shortest: int, longest: int, seed: int) -> None:
    """Write expressions as JSONL with the fields `text` and `label`."""
    with open(path, "w", encoding="utf-8") as file:
        for text, result in expressions(count, shortest, longest, seed):
            file.write(json.dumps({"text": text, "label": str(result)}) + "\n")


def _draws(random: np.random.Generator) -> Iterator[float]:
    """Numbers in [0, 1), drawn many at a time: one call for each would take most of the time."""
    while True:
        yield from random.random(2**14).tolist()


def _operation(draw: Callable[[], float], depth: int, symbols: list[str], longest: int) -> int | None:
    """Append an operation to `symbols` and return its result; None if the text is longer than `longest`."""
    name = NAMES[int(draw() * len(NAMES))]
    symbols.append(OPERATIONS[name])
    arguments: list[int] = []
    for _ in range(2 + int(draw() * (MOST_ARGUMENTS - 1))):
        if depth < DEEPEST and draw() < NESTED:
            found = _operation(draw, depth + 1, symbols, longest)
            if found is None:
                return None
            arguments.append(found)
        else:
            arguments.append(int(draw() * 10))
            symbols.append(str(arguments[-1]))
    symbols.append(CLOSE)
    return _result(name, sorted(arguments)) if len(symbols) <= longest else None


def _result(name: str, ordered: list[int]) -> int:
    if name == "MED":
        return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) // 2
    return {"MIN": ordered[0], "MAX": ordered[-1], "SM": sum(ordered) % 10}[name]
