"""Arranges keys so that their indices give the distances of terms, and segments.

Tables by distance count tokens between a query and a key, so both must be numbered as they stand: keys are laid in
stretches, with gaps that nobody reads. Segments are told by the numbers of keys, so the queries' own numbers are among
them, read or not.
"""

from dataclasses import dataclass

import numpy as np

from asterism.compiler.devices.needs import runs
from asterism.parallel.indices import TokenIndices
from asterism.parallel.local import Local, as_runs
from asterism.patterns import Pattern, part
from asterism.patterns.intervals import Integers

_GAP = 64
"""Keys farther apart than this, and than an eighth of their number, lie in stretches of their own."""


@dataclass(frozen=True, eq=False)
class Stretch:
    """Some of the keys of a `Local`, laid with gaps for what is not there.

    rule    the pattern between the block's queries and what is laid
    offset  the number of the first query; the others follow
    size    how many numbers are laid
    chosen  int64 [keys]: which of the keys these are, neighbours
    at      int64 [keys]: the numbers that they get, ascending
    """

    rule: Pattern
    offset: int
    size: int
    chosen: TokenIndices
    at: TokenIndices


@dataclass(frozen=True, eq=False)
class Renumbered:
    """Some neighbouring queries of a `Local`, at indices `queries` int64 [queries], and all its keys in stretches."""

    queries: TokenIndices
    stretches: tuple[Stretch, ...]


def renumbered(local: Local, by_distance: bool, with_segments: bool) -> tuple[Renumbered, ...]:
    """What is computed instead of `local`: the same pairs, each once.

    Queries 10 and 11 read keys 2, 3, 9 and 10. By distance, one stretch is laid, and 2 gets number 0: at = [0, 1, 7, 8]
    of size 9, offset = 8, so that query 10 counts 8 tokens from key 2, as it should. With segments besides, query 11
    has its own number: size 10. With segments alone, numbers need only ascend, [2, 3, 9, 10, 11] become 0 to 4:
    at = [0, 1, 2, 3] of size 5, offset = 3.
    """
    return tuple(
        Renumbered(
            TokenIndices(np.arange(start, stop)), tuple(_stretches(local, start, stop, by_distance, with_segments))
        )
        for start, stop in _blocks(local, by_distance)
    )


def _blocks(local: Local, by_distance: bool) -> list[tuple[int, int]]:
    """[start, stop) of indices of queries that are neighbours in the sequence, or among keys and queries, which is
    enough where distances do not count.

    Of queries 4, 5 and 9 and keys 3 and 8 by distance [(0, 2), (2, 3)], since 5 and 9 are not neighbours; nor are they
    among [3, 4, 5, 8, 9]. Without key 8 they would be: then [(0, 3)], unless distances count.
    """
    if not by_distance:
        numbers = np.searchsorted(np.union1d(local.keys, local.queries), local.queries)
        if numbers[-1] - numbers[0] == len(numbers) - 1:
            return [(0, len(numbers))]
    starts, stops = runs(local.queries)
    ends = np.cumsum(stops - starts)
    return list(zip((ends - (stops - starts)).tolist(), ends.tolist(), strict=True))


def _stretches(local: Local, start: int, stop: int, by_distance: bool, with_segments: bool) -> list[Stretch]:
    queries, found = local.queries[start:stop], []
    first, past = int(queries[0]), int(queries[-1]) + 1
    cuts = [0, len(local.keys)]
    if by_distance:
        far = np.flatnonzero(np.diff(local.keys) > max(_GAP, len(local.keys) // 8)) + 1
        cuts = [0, *far.tolist(), len(local.keys)]
    for begin, end in zip(cuts, cuts[1:], strict=False):
        keys = local.keys[begin:end]
        if by_distance:
            low, high = min(int(keys[0]), first), int(keys[-1]) + 1
            low = low if with_segments or first < keys[0] else int(keys[0])
            numbers = np.arange(low, max(high, past) if with_segments else high)
            asked = numbers if with_segments else np.arange(low, past)
        else:
            numbers = asked = np.union1d(keys, queries)
        found.append(
            Stretch(
                rule=part(local.pattern, local.length, as_runs(asked), as_runs(numbers)),
                offset=_place(numbers, first) if with_segments else first - int(numbers[0]),
                size=len(numbers),
                chosen=TokenIndices(np.arange(begin, end)),
                at=TokenIndices(np.searchsorted(numbers, keys)),
            )
        )
    return found


def _place(numbers: Integers, position: int) -> int:
    return int(np.searchsorted(numbers, position))
