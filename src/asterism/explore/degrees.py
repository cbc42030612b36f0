"""How many keys the queries read: least, mean, most, and a histogram."""

import time

import numpy as np

from asterism.patterns import Pattern
from asterism.patterns.draw import check_queries, keys_read, spread
from asterism.patterns.intervals import Integers

_BARS = 24
_ROUNDS = (8, 8, 64, 512, 4096, 32768)
"""How many queries are counted: every round is of evenly spread queries, and tells what the next will take.
The first is repeated, since it may make what later ones find made."""

_SECONDS = 0.35
"""A round that would take longer is not begun."""


def count_degrees(pattern: Pattern, n: int, head: int) -> dict[str, object]:
    """Keys per query, of all queries or, where that would take too long, of some that are evenly spread.

    `counted` of `queries` were counted; `bars` are (least, most, queries), both counts included.
    """
    queries = check_queries(pattern, n, None)
    counts = _counts(pattern, n, head, queries)
    if not counts.size:
        return {"queries": queries, "counted": 0, "minimum": 0, "mean": 0.0, "maximum": 0, "bars": []}
    least, most = int(counts.min()), int(counts.max())
    step = -(-(most - least + 1) // _BARS)
    found = np.bincount((counts - least) // step).tolist()
    bars = [(least + i * step, min(least + (i + 1) * step - 1, most), members) for i, members in enumerate(found)]
    return {
        "queries": queries,
        "counted": int(counts.size),
        "minimum": least,
        "mean": float(counts.mean()),
        "maximum": most,
        "bars": bars,
    }


def _counts(pattern: Pattern, n: int, head: int, queries: int) -> Integers:
    counts, took = np.zeros(0, np.int64), 0.0
    for number in _ROUNDS:
        if counts.size == queries or (counts.size and took * number / counts.size > _SECONDS):
            break
        begun = time.perf_counter()
        counts = keys_read(pattern, spread(queries, number), n, head)
        took = time.perf_counter() - begun
    return counts
