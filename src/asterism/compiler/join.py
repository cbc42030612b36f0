"""The plan of documents, joined from the plans of one document each: their tiles, moved to where the tokens stand.

A document's own tiles stay as they are, in a grid that begins where the document does; so what is a full tile of it
remains one, and nothing is compiled but lengths that were never seen. The tokens that do not fill a tile, its tail,
share one with the padding behind them, if there is enough; the other tails follow the whole tiles of all documents,
side by side, many to a tile. Masks keep them apart.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from asterism.compiler.plan import Indices, Integers, Pass, Plan, Words
from asterism.compiler.tables import BitMasks, all_ones, moved_masks, offsets
from asterism.patterns.documents import Documents
from asterism.patterns.intervals import within

_Key = tuple[str, tuple[int, ...]]


def join(pattern: Documents, length: int, tile: int, plans: Sequence[Plan], which: Integers) -> Plan:
    """The plan of `pattern` for a sequence of `length` tokens.

    `plans` are those of the inner pattern at each length that occurs, all of that tile size; `which` is int64
    [documents]: document number d has plans[which[d]].
    """
    first_mask = np.cumsum([0, *(len(plan.masks) for plan in plans)])
    source = np.concatenate([all_ones(1, tile), *(plan.masks for plan in plans)])
    keys = dict.fromkeys((part.layout, part.heads) for plan in plans for part in plan.passes)
    masks = BitMasks(tile)
    passes = []
    # The natural order first: its results are written, later ones merged into them.
    for key in sorted(keys, key=lambda key: key[0] != "natural"):
        own = [next((part for part in plan.passes if (part.layout, part.heads) == key), None) for plan in plans]
        documents = np.flatnonzero(np.array([part is not None for part in own])[which])
        starts = pattern.bounds[0][documents]
        entries = _Entries.of(own, which[documents], first_mask)
        sides = [
            _Side.of([_order(part, of_queries) for part in own], which[documents], starts, tile, length)
            for of_queries in (True, False)
        ]
        passes.append(_joined(key, entries, sides[0], sides[1], source, masks))
    inner = pattern.pattern
    stacked = masks.stacked()
    return Plan(pattern.text, length, length, 0, inner.heads, tile, tuple(passes), stacked, pattern.is_causal)


# --- where tokens go -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Order:
    """Tokens of one document in the order of a pass: how many, and which (None: as they come)."""

    count: int
    index: Indices | None


def _order(part: Pass | None, of_queries: bool) -> _Order | None:
    if part is None:
        return None
    return _Order(part.n_queries, part.query_index) if of_queries else _Order(part.n_keys, part.key_index)


@dataclass(frozen=True)
class _Side:
    """The queries, or the keys, of all documents in one order: first their whole tiles, then their tails side by side.

    order        int64 [count]: which token stands where, over all documents; None for all tokens as they come
    count        how many tokens have a place in the order
    tile         tokens of a tile
    first        int64 [documents]: the tile that the first one of each document becomes
    whole        int64 [documents]: how many of its tiles stay whole
    tail_tile    int64 [documents]: the tile in which its tail begins,
    tail_shift   int64 [documents]: at which place in it,
    tail_extent  int64 [documents]: and of how many tokens the tail is; `tile` where nothing shares its tile

    Documents of 6, 9 and 3 tokens in tiles of 4 have 1, 2 and 0 whole tiles, numbers 0, 1 2 and none, and tails of 2, 1
    and 3 tokens, which begin at places 0, 2 and 3 behind them: in tile 3 at 0, 2 and 3. The last one goes on in tile 4.
    """

    order: Integers | None
    count: int
    tile: int
    first: Integers
    whole: Integers
    tail_tile: Integers
    tail_shift: Integers
    tail_extent: Integers

    @classmethod
    def of(cls, orders: Sequence[_Order | None], which: Integers, starts: Integers, tile: int, length: int) -> "_Side":
        counts = np.array([0 if order is None else order.count for order in orders], np.int64)[which]
        natural = all(order is None or order.index is None for order in orders)
        whole, extent = counts // tile, counts % tile
        if natural and not (starts % tile).any():  # the sequence's own grid is that of every document
            first = starts // tile
            at_end = starts + counts == length
            extent = np.where(at_end & (extent > 0), tile, extent)
            return cls(None, length, tile, first, whole, first + whole, np.zeros_like(first), extent)
        # Documents of 5 and 6 tokens in tiles of 4: tiles 0 and 1 are their whole ones, and their tails, of 1 and 2
        # tokens, share tile 2, where they begin at places 0 and 1. Were 3 tokens of no document to follow the first,
        # its tail would fill tile 1 with them instead. `first` counts the tiles, and `before` the tokens of tails.
        gap, room = np.append(starts[1:], length) - starts - counts, -extent % tile
        is_filled = natural & (extent > 0) & (gap >= room)
        shared = np.where(is_filled, 0, extent)
        first, before = _exclusive_sum(whole + is_filled), _exclusive_sum(shared)
        filled = counts + np.where(is_filled, room, 0)
        positions, is_whole = _positions(orders, which, starts, filled, (whole + is_filled) * tile)
        rest = np.zeros(0, np.int64)
        if natural:  # with the tokens of no document a pass has all of them, so that it can write its results at once
            is_left = np.ones(length, bool)
            is_left[positions] = False
            rest = np.flatnonzero(is_left)
        is_last = (before + shared == shared.sum()) & (before % tile == 0) & (shared > 0) & (len(rest) == 0)
        return cls(
            np.concatenate([positions[is_whole], positions[~is_whole], rest]),
            len(positions) + len(rest),
            tile,
            first,
            whole,
            np.where(is_filled, first + whole, (whole + is_filled).sum() + before // tile),
            np.where(is_filled, 0, before % tile),
            np.where(is_last, tile, extent),
        )

    @property
    def tiles(self) -> int:
        return -(-self.count // self.tile)

    def index(self, length: int) -> Indices | None:
        """The order for a Pass, of a sequence of `length` tokens."""
        if self.order is None or (len(self.order) == length and bool((self.order == np.arange(length)).all())):
            return None
        return self.order.astype(np.int32)

    def move(self, document: Integers, number: Integers) -> tuple[Integers, Integers, Integers]:
        """Where tiles go, given by document and number in it, int64 [n] each: the tile, the place in it, and how many
        tokens there are theirs (all: the whole tile), int64 [n] each.

        A tail that reaches beyond its tile goes on in the next one.
        """
        is_tail = number == self.whole[document]
        tile = np.where(is_tail, self.tail_tile[document], self.first[document] + number)
        shift = np.where(is_tail, self.tail_shift[document], 0)
        return tile, shift, np.where(is_tail, self.tail_extent[document], self.tile)


def _positions(
    orders: Sequence[_Order | None], which: Integers, starts: Integers, counts: Integers, whole: Integers
) -> tuple[Integers, np.ndarray]:
    """Positions of `counts` tokens of each document in its order, one document after another, and whether each is in a
    whole tile. In natural order the tokens that follow a document may be among them."""
    place = within(counts)
    inside = place
    if any(order is not None and order.index is not None for order in orders):
        each = [
            np.zeros(0, np.int64) if x is None else np.arange(x.count) if x.index is None else x.index for x in orders
        ]
        inside = np.concatenate([np.zeros(0, np.int64), *(each[number] for number in which.tolist())])
    return inside + np.repeat(starts, counts), place < np.repeat(whole, counts)


def _exclusive_sum(counts: Integers) -> Integers:
    total: Integers = np.cumsum(counts)
    return total - counts


# --- tiles -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Entries:
    """The tiles of a pass of all documents, int64 [tiles] each: whose it is, in which of so many `lists`, in which row
    and column of the document's own grid, and of which kind."""

    document: Integers
    list: Integers
    row: Integers
    column: Integers
    kind: Integers
    lists: int

    @classmethod
    def of(cls, parts: Sequence[Pass | None], which: Integers, first_mask: Integers) -> "_Entries":
        """Kinds are counted over the masks of all plans, one after another: those of plan p begin at first_mask[p].

        `which` is int64 [documents], and `first_mask` int64 [plans + 1].
        """
        lists = max((part.lists for part in parts if part is not None), default=1)
        told = [None if part is None else _tiles_of(part, lists) for part in parts]
        chosen = [told[number] for number in which.tolist()]
        some = [x for x in chosen if x is not None]
        counts, columns, kinds = (np.concatenate([np.zeros(0, np.int64), *(x[i] for x in some)]) for i in range(3))
        rows = np.array([len(x[0]) // lists for x in some], np.int64)
        # `counts` has an entry for every row of every list of every document: for two documents of 2 rows and 1 row
        # and two lists, document 0 0 0 0 1 1, place 0 1 2 3 0 1, and so list 0 0 1 1 0 1 and row 0 1 0 1 0 0.
        document = np.repeat(np.arange(len(some)), rows * lists)
        place = within(rows * lists)
        counts = counts.astype(np.int64)
        own = np.repeat(document, counts)
        height = np.repeat(rows, rows * lists)
        kinds = np.where(kinds > 0, kinds + first_mask[which[own]], 0)
        return cls(
            own,
            np.repeat(place // np.maximum(height, 1), counts),
            np.repeat(place % np.maximum(height, 1), counts),
            columns.astype(np.int64),
            kinds,
            lists,
        )


def _tiles_of(part: Pass, lists: int) -> tuple[Integers, Indices, Indices]:
    """How many tiles each row of each list has, and their columns and kinds; a list for all heads is repeated."""
    counts = np.diff(part.row_offsets, axis=1).ravel()
    if lists == part.lists:
        return counts, part.columns, part.kinds
    return np.tile(counts, lists), np.tile(part.columns, lists), np.tile(part.kinds, lists)


def _joined(key: _Key, entries: _Entries, queries: _Side, keys: _Side, source: Words, masks: BitMasks) -> Pass:
    """The pass of all documents. Kinds of the entries count the masks in `source`, whose first is all ones."""
    row, row_shift, row_extent = queries.move(entries.document, entries.row)
    column, column_shift, column_extent = keys.move(entries.document, entries.column)
    is_tail = (row_extent < queries.tile) | (column_extent < keys.tile)
    # What is no tail may be the last tile, which kernels cut off where tokens end: a mask of it must end there, too.
    row_extent = np.minimum(row_extent, queries.count - queries.tile * row - row_shift)
    column_extent = np.minimum(column_extent, keys.count - keys.tile * column - column_shift)
    table = np.stack([entries.list, row, column, entries.kind, row_shift, row_extent, column_shift, column_extent])
    plain, moved = table[:4, ~is_tail], _cut_tails(table[:, is_tail], queries.tile, queries.tiles, keys.tiles, source)
    used, kind = np.unique(plain[3], return_inverse=True)
    numbers = np.concatenate([np.zeros(int(0 in used), np.int32), masks.add_words(source[used[used > 0]])])
    places = np.concatenate([plain[:3], moved[0]], axis=1)
    kinds = np.concatenate([numbers[kind], masks.add_words(moved[1])]).astype(np.int32)
    which, row, column = places
    by_row = np.argsort((which * queries.tiles + row) * keys.tiles + column, kind="stable")
    which, row, column, kinds = which[by_row], row[by_row], column[by_row], kinds[by_row]
    length = max(queries.count, keys.count)
    return Pass(
        layout=key[0],
        heads=key[1],
        n_queries=queries.count,
        n_keys=keys.count,
        query_index=queries.index(length),
        key_index=keys.index(length),
        row_offsets=offsets(which, row, entries.lists, queries.tiles),
        columns=column.astype(np.int32),
        kinds=kinds,
    )


def _cut_tails(table: Integers, tile: int, n_rows: int, n_columns: int, source: Words) -> tuple[Integers, Words]:
    """Tiles with a tail as those that they become: list, row and column [3, n], and masks.

    Rows of `table`: list, row, column, kind, then for queries and keys where the tile's tokens stand in it and how many
    they are. Tails of several documents in one tile become one mask.
    """
    # A tail that reaches beyond its tile is there twice: in tiles of 4, 3 tokens from place 3 on are one token at place
    # 3 of a tile, and from place -1 of the next on two more; its first token is cut off there.
    for place, (shift, extent) in ((1, (4, 5)), (2, (6, 7))):
        beyond = table[:, (table[extent] < tile) & (table[shift] + table[extent] > tile)]
        beyond[place] += 1
        beyond[shift] -= tile
        table = np.concatenate([table, beyond], axis=1)
    # One number for kind, shifts and extents together: each distinct mask is moved once. A shift is above -tile, an
    # extent at most tile, so that plus tile - 1 each is a digit of a number to the base 2 * tile.
    # Equal kinds, shifts and extents make equal masks, each of which is made once. Shifts go from 1 - tile on.
    code = table[3]
    for number in (4, 5, 6, 7):
        code = code * (2 * tile) + table[number] + tile - 1
    _, first, mask = np.unique(code, return_index=True, return_inverse=True)
    words = moved_masks(source, *table[3:, first])
    target = (table[0] * n_rows + table[1]) * n_columns + table[2]
    some = np.logical_or.reduce(words, axis=(1, 2))[mask]
    # Sorted by their tile, those of one stand together and begin where `opens` says: of targets [3, 3, 7] at 0 and 2.
    order = np.flatnonzero(some)[np.argsort(target[some], kind="stable")]
    opens = np.flatnonzero(np.diff(target[order], prepend=-1) != 0)
    if len(opens) == len(order):
        return table[:3, order], words[mask[order]]
    return table[:3, order[opens]], np.bitwise_or.reduceat(words[mask[order]], opens, axis=0)
