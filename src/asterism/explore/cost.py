"""Time and memory of attention against length: the pattern by tiles, and dense attention.

Dense attention is the one without a pattern: over all pairs, or over those of the past for a causal pattern. Times are
estimates at the prices by which `auto` chooses (`machine.py`), for heads 64 wide. The lengths are powers of two and
ascend until the time for an answer is used up, since a long plan takes a second to compile.
"""

import time
from math import log
from typing import Any

from asterism.compiler import Plan, compile_pattern
from asterism.compiler.cost import Curve, Setting, dense_cost
from asterism.patterns import Pattern
from asterism.patterns.draw import check_queries

HEAD_DIM = 64
"""Features of a head, for which there are prices."""

_SHORTEST, _LONGEST = 2**6, 2**20
_SECONDS = 0.45
"""After so long no further length is begun: the next may take twice as long as all before it."""

_BYTES = {"float32": 4, "bfloat16": 2}


def cost_by_length(pattern: Pattern, heads: int, dtype: str, prices: dict[str, Any], tiles: str) -> dict[str, object]:
    """A row for every length, and the crossing: tokens from which on tiles are cheaper than dense attention.

    `prices` holds {"points", "pair"} for each way. Times are in seconds, memory in bytes: q, k, v and the output, with
    the plan by tiles, and with a mask where dense attention gives the same numbers as the pattern. The crossing is None
    where there is none among the lengths that were reached. Raises PatternError for heads that do not fit.
    """
    pattern.check_heads(heads)
    curves = {way: Curve(tuple((x, y) for x, y in told["points"]), told["pair"]) for way, told in prices.items()}
    setting = Setting(heads, curves)
    begun, rows, n = time.perf_counter(), [], _SHORTEST
    while n <= _LONGEST and time.perf_counter() - begun < _SECONDS:
        queries = check_queries(pattern, n, None)
        if queries:
            plan = compile_pattern(pattern, queries, n, query_offset=0)
            rows.append(_row(plan, pattern, tiles, setting, dtype))
        n *= 2
    return {"rows": rows, "crossing": _crossing(rows), "complete": n > _LONGEST, "next": n, "head_dim": HEAD_DIM}


def _row(plan: Plan, pattern: Pattern, tiles: str, setting: Setting, dtype: str) -> dict[str, Any]:
    square = plan.n_queries * plan.n_keys
    kind = "causal" if pattern.is_causal and plan.n_queries == plan.n_keys else "full"
    operands = setting.heads * HEAD_DIM * _BYTES[dtype] * 2 * (plan.n_queries + plan.n_keys)
    return {
        "length": plan.n_keys,
        "pairs": plan.pairs,
        "density": plan.density,
        "tiles": plan.sparse_cost(tiles, setting) / 1e9,
        "dense": dense_cost(kind, square, setting) / 1e9,
        "dense_kind": kind,
        "tiles_bytes": operands + plan.bytes,
        "mask_bytes": operands + (0 if plan.dense_kind != "sparse" else plan.heads * square),
    }


def _crossing(rows: list[dict[str, Any]]) -> float | None:
    """Where the two times are equal, on straight lines in logarithms; the first length if tiles win from the start.

    The last crossing counts: from there on tiles stay cheaper as far as was looked.
    """
    wins = [row["tiles"] < row["dense"] for row in rows]
    if not wins or not wins[-1]:
        return None
    if all(wins):
        return float(rows[0]["length"])
    last = max(number for number, won in enumerate(wins) if not won)
    before, after = rows[last], rows[last + 1]
    lost, won = log(before["tiles"] / before["dense"]), log(after["dense"] / after["tiles"])
    return float(before["length"] * (after["length"] / before["length"]) ** (lost / (lost + won)))
