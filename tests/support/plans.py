"""Plans decoded by hand, and compared with the pictures of their patterns; how much memory a process has taken."""

import sys

import numpy as np
import pytest

from asterism import compile_pattern


def decode(plan) -> np.ndarray:
    """How often a plan makes each pair attend: int [heads, n_queries, n_keys]."""
    counts = np.zeros((plan.heads, plan.n_queries, plan.n_keys), dtype=np.int64)
    for part in plan.passes:
        queries, keys = tokens(part.query_index, plan.n_queries), tokens(part.key_index, plan.n_keys)
        for number, i, j, kind in entries(part):
            rows, columns = tile_of(queries, i, plan.tile), tile_of(keys, j, plan.tile)
            cells = unpacked(plan, kind)[: len(rows), : len(columns)]
            for head in part.heads if len(part.row_offsets) == 1 else part.heads[number : number + 1]:
                counts[head][np.ix_(rows, columns)] += cells
    return counts


def tokens(index: np.ndarray | None, count: int) -> np.ndarray:
    return np.arange(count) if index is None else index


def tile_of(order: np.ndarray, number: int, tile: int) -> np.ndarray:
    return order[number * tile : (number + 1) * tile]


def entries(part):
    """(list, query tile, key tile, kind) of each tile kept."""
    for number, offsets in enumerate(part.row_offsets):
        for i, (start, stop) in enumerate(zip(offsets[:-1], offsets[1:], strict=True)):
            for j, kind in zip(part.columns[start:stop], part.kinds[start:stop], strict=True):
                yield number, i, int(j), int(kind)


def unpacked(plan, kind: int) -> np.ndarray:
    """The bool [tile, tile] of a kind: 0 is full, m > 0 the m-th mask, bit b of word w being key 64 w + b."""
    if kind == 0:
        return np.ones((plan.tile, plan.tile), dtype=bool)
    words = np.ascontiguousarray(plan.masks[kind - 1]).astype("<u8")
    return np.unpackbits(words.view(np.uint8), axis=-1, bitorder="little")[:, : plan.tile].astype(bool)


def assert_plan_is(pattern, *lengths, query_offset=None, tile=None):
    plan = compile_pattern(pattern, *lengths, query_offset=query_offset, tile=tile)
    expected = pattern.dense(*lengths, query_offset=query_offset)
    np.testing.assert_array_equal(plan.to_dense(), expected)
    np.testing.assert_array_equal(decode(plan), expected.astype(np.int64))
    assert_well_formed(plan, expected)
    return plan


def assert_well_formed(plan, expected):
    assert plan.heads == len(expected)
    assert (plan.n_queries, plan.n_keys) == expected.shape[1:]
    assert plan.pairs == expected.sum()
    assert plan.density == pytest.approx(expected.mean() if expected.size else 0.0)
    copies = [len(part.heads) // len(part.row_offsets) for part in plan.passes]
    assert plan.tiles == sum(len(part.columns) * copy for part, copy in zip(plan.passes, copies, strict=True))
    if plan.pairs:
        assert plan.packing == pytest.approx(plan.tiles * plan.tile**2 / plan.pairs)
        assert plan.packing >= 1
    assert plan.masks.dtype == np.uint64
    assert plan.masks.shape[1:] == (plan.tile, -(-plan.tile // 64))
    assert len({mask.tobytes() for mask in plan.masks}) == len(plan.masks)
    for number in range(len(plan.masks)):
        cells = unpacked(plan, number + 1)
        assert cells.any() and not cells.all()
    for part in plan.passes:
        assert_pass_is_well_formed(part, plan)
    used = {kind for part in plan.passes for *_, kind in entries(part)}
    assert used - {0} == set(range(1, len(plan.masks) + 1))


def assert_pass_is_well_formed(part, plan):
    query_tiles = -(-len(tokens(part.query_index, plan.n_queries)) // plan.tile)
    key_tiles = -(-len(tokens(part.key_index, plan.n_keys)) // plan.tile)
    for index, count in ((part.query_index, plan.n_queries), (part.key_index, plan.n_keys)):
        if index is not None:
            assert index.dtype == np.int32
            assert ((index >= 0) & (index < count)).all()
            assert len(np.unique(index)) == len(index)
    assert isinstance(part.layout, str) and part.layout
    assert isinstance(part.heads, tuple) and set(part.heads) <= set(range(plan.heads))
    assert len(set(part.heads)) == len(part.heads)
    offsets, columns, kinds = part.row_offsets, part.columns, part.kinds
    assert offsets.dtype == np.int64 and columns.dtype == kinds.dtype == np.int32
    assert len(offsets) in (1, len(part.heads))
    assert offsets.shape[1] == query_tiles + 1
    assert (np.diff(offsets.ravel()) >= 0).all()
    assert (offsets[1:, 0] == offsets[:-1, -1]).all()
    assert len(columns) == len(kinds) == (offsets[-1, -1] if offsets.size else 0)
    assert ((columns >= 0) & (columns < key_tiles)).all()
    assert ((kinds >= 0) & (kinds <= len(plan.masks))).all()
    listed = sorted(entries(part))
    assert len({entry[:3] for entry in listed}) == len(listed)
    for _, i, j, kind in listed:
        rows = tile_of(tokens(part.query_index, plan.n_queries), i, plan.tile)
        columns = tile_of(tokens(part.key_index, plan.n_keys), j, plan.tile)
        assert unpacked(plan, kind)[: len(rows), : len(columns)].any(), "a tile is kept that holds no pair"


PEAK = """
def peak():
    # Mebibytes. Not getrusage: what that tells a child of a large process is the size of its parent.
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024
"""
needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
