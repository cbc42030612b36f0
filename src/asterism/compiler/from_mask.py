"""A plan from the pairs themselves, for queries and keys that are no stretch of a sequence: those of a cache."""

import numpy as np

from asterism.compiler.plan import Booleans, Pass, Plan
from asterism.compiler.tables import Masks, offsets

TILES = (16, 32, 64, 128)


def compile_mask(allowed: Booleans, tile: int | None = None) -> Plan:
    """The plan that allows exactly the pairs of `allowed` [heads, n_queries, n_keys]; 1 head stands for all.

    By default the smallest tile that holds all queries, since queries are few. Every pair is looked at.
    """
    heads, n_queries, n_keys = allowed.shape
    tile = tile or next((size for size in TILES if size >= n_queries), TILES[-1])
    rows, columns = -(-n_queries // tile), -(-n_keys // tile)
    tiles = _tiles(allowed, tile, beyond=False)
    which, row, column = np.nonzero(tiles.any(axis=(3, 4)))
    full = _tiles(allowed, tile, beyond=True)[which, row, column].all(axis=(1, 2))
    masks, kinds = Masks(tile), np.zeros(len(column), np.int32)
    kinds[~full] = masks.add(tiles[which, row, column][~full])
    by_column = np.lexsort((row, column, which))
    only = Pass(
        layout="natural",
        heads=tuple(range(heads)),
        n_queries=n_queries,
        n_keys=n_keys,
        query_index=None,
        key_index=None,
        row_offsets=offsets(which, row, heads, rows),
        columns=column.astype(np.int32),
        kinds=kinds,
        column_offsets=offsets(which[by_column], column[by_column], heads, columns),
        rows=row[by_column].astype(np.int32),
        row_kinds=kinds[by_column],
    )
    passes = (only,) if len(column) else ()
    return Plan("", n_queries, n_keys, 0, heads, tile, passes, masks.stacked(), is_causal=False)


def _tiles(allowed: Booleans, tile: int, *, beyond: bool) -> Booleans:
    """[heads, rows, columns, tile, tile], with `beyond` in the places of the last tiles that hold no pair."""
    heads, *lengths = allowed.shape
    padding = [(0, 0), *((0, -length % tile) for length in lengths)]
    padded = np.pad(allowed, padding, constant_values=beyond)
    return padded.reshape(heads, -(-lengths[0] // tile), tile, -(-lengths[1] // tile), tile).swapaxes(2, 3)
