"""Until which query a key can still be read: what a cache may forget.

For a causal pattern the answer follows from the rule. A window forgets a key after `left` steps; the own block of
`fixed` forgets at the end of the block, while its summary cells live for ever. Unions keep the longest life, and
intersections the shortest. The answer is an upper bound: it may be later than the last reader, never earlier.
"""

import numpy as np
from numpy.typing import ArrayLike

from asterism.patterns.documents import Documents
from asterism.patterns.explicit import Explicit
from asterism.patterns.intervals import Integers
from asterism.patterns.pattern import And, Named, Not, Or, Pattern, PerHead, Shifted
from asterism.patterns.primitives import Blocks, GlobalKeys, GlobalQueries, KeySet, Window

FOREVER = 2**62
"""The last reader of a key that is never forgotten."""

NEVER = -1
"""The last reader of a key that nobody reads."""


def last_reader(pattern: Pattern, keys: ArrayLike) -> Integers:
    """The last query position that may read each key, over all heads: int64 of the shape of `keys`.

    `pattern` must be prefix-stable (`require_causal`); for others the bound can be too small.
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
        case Window(left=left):
            return keys + left
        case Blocks(size=size, left=left):
            return (keys // size + left + 1) * size - 1
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


def _last_explicit_reader(pattern: Explicit, keys: Integers) -> Integers:
    queries, read = pattern.edges()
    last = np.full(pattern.size + 1, NEVER)
    np.maximum.at(last, read, queries)
    return last[np.minimum(keys, pattern.size)]
