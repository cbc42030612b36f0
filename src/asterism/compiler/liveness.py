"""Finds the last query that can read a key, after which a cache may forget it.

For a causal pattern the answer follows from the rule. A window forgets a key after `left` steps; the own block of
`fixed` forgets at the end of the block, while its summary cells live for ever. Unions keep the longest life, and
intersections the shortest. The answer is an upper bound: it may be later than the last reader, never earlier.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from asterism.patterns.across import Across
from asterism.patterns.documents import Documents
from asterism.patterns.explicit import Explicit
from asterism.patterns.grid import Grid
from asterism.patterns.intervals import Integers
from asterism.patterns.pattern import And, Named, Not, Or, Pattern, PerHead, Shifted
from asterism.patterns.primitives import Blocks, GlobalKeys, GlobalQueries, KeySet, Window
from asterism.patterns.tree import Tree

FOREVER = 2**62
"""The last reader of a key that is never forgotten."""

_FAR = 2**40
"""A reader at or after this position stands for one that comes at any time: no sequence is as long."""

NEVER = -1
"""The last reader of a key that nobody reads."""


def last_reader(pattern: Pattern, keys: ArrayLike) -> Integers:
    """int64, of the shape [...] of `keys`: the last query position that may read each key, over all heads.

    `pattern` must be prefix-stable (`require_prefix_stable`); for others the bound can be too small. Of a pattern that
    goes across, the keys are those of the source and the readers tokens of the decoder.
    """
    return _last_reader(pattern, np.asarray(keys, np.int64))


def _last_reader(pattern: Pattern, keys: Integers) -> Integers:
    match pattern:
        case Or(parts=parts) | PerHead(patterns=parts):
            return np.maximum.reduce([_last_reader(part, keys) for part in parts])
        case And(parts=parts):
            return np.minimum.reduce([_last_reader(part, keys) for part in parts])
        case Named(body=body):
            return _last_reader(body, keys)
        case Not(part=Not(part=part)):
            return _last_reader(part, keys)
        case Shifted(pattern=inner, by=by):
            shifted = _last_reader(inner, np.maximum(keys - by, 0))
            return np.where(keys < by, NEVER, np.where(shifted == FOREVER, FOREVER, shifted + by))
        case Documents():
            return _last_reader_of_document(pattern, keys)
        case Across(inner=inner):
            known = not inner.depends_on_length
            return _last_reader_across(pattern, _last_reader(inner, keys) if known else np.full(keys.shape, FOREVER))
        case Window(left=left):
            return keys + left
        case Blocks(size=size, left=left):
            return (keys // size + left + 1) * size - 1
        case Grid() | Tree():
            return pattern.last_reader(keys)
        case GlobalQueries(positions=positions, block=block):
            return np.full(keys.shape, (max(positions, default=-1) + 1) * block - 1)
        case GlobalKeys(positions=positions) if min(positions, default=0) < 0:
            return np.full(keys.shape, FOREVER)
        case GlobalKeys(positions=positions, block=block):
            return np.where(np.isin(keys // block, positions), FOREVER, NEVER)
        case KeySet():
            return np.where(pattern.contains(keys, 0), FOREVER, NEVER)
        case Explicit():
            return _last_explicit_reader(pattern, keys)
        case _:
            return np.full(keys.shape, FOREVER)


def _last_reader_of_document(pattern: Documents, keys: Integers) -> Integers:
    """At most the document's last token; nobody, for a key of no document."""
    starts, stops = pattern.bounds
    document = np.searchsorted(stops, keys, side="right")
    start, stop = np.append(starts, FOREVER)[document], np.append(stops, 0)[document]
    inner = pattern.pattern
    own = np.full(keys.shape, FOREVER) if inner.depends_on_length else _last_reader(inner, np.maximum(keys - start, 0))
    last = np.minimum(np.minimum(own, stop) + start, stop - 1)
    return np.where((keys < start) | (own == NEVER), NEVER, last)


def _last_reader_across(pattern: Across, places: Integers) -> Integers:
    """The last query that stands at one of the places up to these, or before."""
    known = places < _FAR
    queries = pattern.first_query_from(np.where(known, places, 0) + 1) - 1
    return np.where(known, queries, FOREVER)


class _Bound(NamedTuple):
    """No key outside the `lasting` intervals is read by a query more than `life` positions after it."""

    lasting: tuple[tuple[int, int], ...]
    life: int

    @property
    def most_living(self) -> int:
        count, end = 0, 0
        for start, stop in sorted(self.lasting):
            count, end = count + max(stop - max(start, end), 0), max(stop, end)
        return count + self.life + 1


def most_living(pattern: Pattern) -> int | None:
    """The most keys that are alive at a time, the present token's included; None if their number grows without bound.

    An upper bound, from the rule: of `window(left=3)` four, and of `fixed(8, summary=2)` None, as summaries stay.
    """
    bound = _bound(pattern)
    return None if bound is None else bound.most_living


def _bound(pattern: Pattern) -> _Bound | None:
    match pattern:
        case Or(parts=parts) | PerHead(patterns=parts):
            known = [bound for bound in map(_bound, parts) if bound is not None]
            if len(known) < len(parts):
                return None
            return _Bound(sum((bound.lasting for bound in known), ()), max(bound.life for bound in known))
        case And(parts=parts):
            known = [bound for bound in map(_bound, parts) if bound is not None]
            return min(known, key=lambda bound: bound.most_living, default=None)
        case Named(body=body) | Not(part=Not(part=body)):
            return _bound(body)
        case Shifted(pattern=inner, by=by):
            bound = _bound(inner)
            return bound and bound._replace(lasting=tuple((start + by, stop + by) for start, stop in bound.lasting))
        case Window(left=left):
            return _Bound((), max(left, 0))
        case Blocks(size=size, left=left):
            return _Bound((), (left + 1) * size - 1)
        case Grid(life=life):
            return _Bound((), life)
        case GlobalQueries(positions=positions, block=block) if min(positions, default=0) >= 0:
            return _Bound((), (max(positions, default=-1) + 1) * block)
        case GlobalKeys(positions=positions, block=block) if min(positions, default=0) >= 0:
            return _Bound(tuple((position * block, (position + 1) * block) for position in positions), 0)
        case Explicit(size=size) | Tree(size=size):
            return _Bound((), size)
        case _:
            return None


def _last_explicit_reader(pattern: Explicit, keys: Integers) -> Integers:
    queries, read = pattern.edges()
    last = np.full(pattern.size + 1, NEVER)
    np.maximum.at(last, read, queries)
    return last[np.minimum(keys, pattern.size)]
