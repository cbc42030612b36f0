"""Token orders that make a sparse rule block-dense.

`stride(128)` in natural order touches every tile; with the tokens sorted by residue modulo 128 it is block-diagonal.
The summary cells of `fixed`, gathered, turn its second half into a staircase of full tiles; neighbours in a picture are
near each other where a few rows of pixels are walked column by column (bands.py). A layout says in which order queries
and keys stand, which part of a rule it implies, and which tiles a rule can touch in that order.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, cast

import numpy as np

from asterism.memo import Derives
from asterism.patterns.explicit import Explicit
from asterism.patterns.intervals import Integers, Intervals
from asterism.patterns.pattern import Booleans, Moved, Pattern, Ranges
from asterism.patterns.primitives import Dense, OneSided
from asterism.patterns.tree import Tree


@dataclass(frozen=True, eq=False)
class Tiles:
    """An order of tokens cut into tiles.

    positions  int64 [tokens]: which token stands where in the order
    tile       tokens of a tile; the last one may have fewer
    step       how far apart neighbours in the order mostly are; 0 where nobody knows
    first      int64 [tiles]: the smallest position in each tile
    last       int64 [tiles]: the greatest
    count      int64 [tiles]: how many tokens
    regular    bool [tiles]: whether the positions are first, first + step, first + 2 * step, ...
    shape      int64 [tiles]: tiles of equal numbers have equal positions relative to their first
    """

    positions: Integers
    tile: int
    step: int
    first: Integers
    last: Integers
    count: Integers
    regular: Booleans
    shape: Integers

    @classmethod
    def cut(cls, positions: Integers, tile: int, step: int) -> "Tiles":
        """Tiles of `tile` tokens, the last one perhaps of fewer, of positions int64 [tokens] in the order of a layout.

        `step` is the distance between neighbours within a tile; 0 where none is known.
        """
        n_tiles = -(-len(positions) // tile)
        starts = np.arange(n_tiles) * tile
        count = np.minimum(tile, len(positions) - starts)
        # An order need not ascend inside a tile, so the first token is the smallest. reduceat wants a place to start.
        first = np.minimum.reduceat(positions, starts) if n_tiles else starts
        last = np.maximum.reduceat(positions, starts) if n_tiles else starts
        padded = np.full(n_tiles * tile, -1)
        padded[: len(positions)] = positions
        relative = np.where(padded.reshape(n_tiles, tile) < 0, -1, padded.reshape(n_tiles, tile) - first[:, None])
        # Where residues meet in a tile, or the tokens are a gathered set, a rule must not be told of a step.
        progression = np.where(np.arange(tile) < count[:, None], np.arange(tile) * step, -1)
        regular = (relative == progression).all(axis=1) & (step > 0)
        return cls(positions, tile, step, first, last, count, regular, _shapes(relative, regular & (count == tile)))

    def __len__(self) -> int:
        return len(self.first)

    def ranges(self, chosen: Integers, regular: bool) -> Ranges:
        """The chosen tiles, int64 [n], as n ranges, all regular or treated as if none were."""
        return Ranges(self.first[chosen], self.last[chosen], self.step if regular else 0)

    def places(self, chosen: Integers) -> tuple[Integers, Booleans]:
        """Positions of the chosen tiles [n, tile], and which of them exist."""
        place = chosen[:, None] * self.tile + np.arange(self.tile)
        return self.positions[np.minimum(place, len(self.positions) - 1)], place < len(self.positions)

    def each_token(self, chosen: Integers) -> tuple[Integers, Integers]:
        """Positions of the tokens of ascending tiles int64 [n], and which of the n tiles each is in: int64 [tokens]
        each."""
        place = (chosen[:, None] * self.tile + np.arange(self.tile)).ravel()
        place = place[place < len(self.positions)]
        return self.positions[place], np.searchsorted(chosen, place // self.tile)


def _shapes(relative: Integers, alike: Booleans) -> Integers:
    """A number for each distinct row of `relative` [tiles, tile]; those `alike` are known to be equal, as most are."""
    others = np.flatnonzero(~alike)
    compared = np.append(others, np.flatnonzero(alike)[:1])
    # A row as a single value of bytes, so that np.unique compares whole rows at once.
    rows = relative[compared].view(np.dtype((np.void, relative.shape[1] * 8))).ravel()
    _, numbers = np.unique(rows, return_inverse=True)
    shapes = np.full(len(relative), numbers[-1] if len(numbers) else 0)
    shapes[others] = numbers[: len(others)]
    return shapes


class Layout(Derives, ABC):
    """An order of queries and keys. Layouts are values: equal layouts share a pass."""

    @property
    @abstractmethod
    def text(self) -> str:
        """The layout's name, for people."""

    @abstractmethod
    def orders(self, query_offset: int, n_queries: int, n_keys: int, tile: int) -> tuple[Tiles, Tiles]:
        """The tiles of queries and keys in this order, by position."""

    @abstractmethod
    def candidates(
        self, rule: Pattern, queries: Tiles, keys: Tiles, rows: Integers, length: int, head: int
    ) -> tuple[Integers, Integers]:
        """Pairs of tiles that can hold a pair of the rule, sorted: row numbers within `rows`, and key tiles, int64
        [pairs] each.

        `rows` are numbers of query tiles, int64 [rows].
        """

    def within(self, rule: Pattern) -> Pattern:
        """The rule with what the layout implies left out."""
        return rule


class SortedKeys(Layout):
    """A layout whose keys stand in ascending order, so that a span of keys is a span of places."""

    def candidates(
        self, rule: Pattern, queries: Tiles, keys: Tiles, rows: Integers, length: int, head: int
    ) -> tuple[Integers, Integers]:
        regular = bool(queries.regular[rows].all())
        row, start, stop = rule.find_spans(queries.ranges(rows, regular), length, head).triples()
        # Keys may be a subset, so a span of positions is looked up: the places of the keys that stand in it. Of keys 3,
        # 7, 11, 15 in tiles of 2, those in the span from 5 to before 12 stand at places 1 and 2, in tiles 0 and 1.
        first = np.searchsorted(keys.positions, start) // keys.tile
        past = -(-np.searchsorted(keys.positions, stop) // keys.tile)
        return Intervals.build(row, first, past, len(rows), len(keys)).points()


@dataclass(frozen=True)
class Natural(SortedKeys):
    """Tokens as they come."""

    @property
    def text(self) -> str:
        return "natural"

    def orders(self, query_offset: int, n_queries: int, n_keys: int, tile: int) -> tuple[Tiles, Tiles]:
        queries = np.arange(query_offset, query_offset + n_queries)
        return Tiles.cut(queries, tile, 1), Tiles.cut(np.arange(n_keys), tile, 1)


@dataclass(frozen=True)
class Subset(SortedKeys):
    """Only the tokens that a one-sided part of the rule names, gathered on its side."""

    members: OneSided
    side: ClassVar[str]

    @property
    def text(self) -> str:
        return f"{self.side} {self.members}"

    def within(self, rule: Pattern) -> Pattern:
        return _replace(rule, self.members)


class KeySubset(Subset):
    side = "keys"

    def orders(self, query_offset: int, n_queries: int, n_keys: int, tile: int) -> tuple[Tiles, Tiles]:
        queries = np.arange(query_offset, query_offset + n_queries)
        return Tiles.cut(queries, tile, 1), Tiles.cut(self.members.members(n_keys), tile, 0)


class QuerySubset(Subset):
    side = "queries"

    def orders(self, query_offset: int, n_queries: int, n_keys: int, tile: int) -> tuple[Tiles, Tiles]:
        members = self.members.members(n_keys)
        asked = members[(members >= query_offset) & (members < query_offset + n_queries)]
        return Tiles.cut(asked, tile, 0), Tiles.cut(np.arange(n_keys), tile, 1)


class Sorted(Layout):
    """Tokens sorted by a number that each of them has, and those of equal numbers as they come."""

    @abstractmethod
    def sorted_by(self, positions: Integers, length: int, are_keys: bool) -> Integers:
        """int64 [n]: the numbers by which tokens at positions [n] are sorted, in a sequence of `length` tokens."""

    @property
    def steps(self) -> tuple[int, int]:
        """How far apart neighbours in this order mostly are, among queries and among keys; 0 where nobody knows."""
        return 0, 0

    def orders(self, query_offset: int, n_queries: int, n_keys: int, tile: int) -> tuple[Tiles, Tiles]:
        queries, keys = np.arange(query_offset, query_offset + n_queries), np.arange(n_keys)
        queries = queries[np.argsort(self.sorted_by(queries, n_keys, False), kind="stable")]
        keys = keys[np.argsort(self.sorted_by(keys, n_keys, True), kind="stable")]
        return Tiles.cut(queries, tile, self.steps[0]), Tiles.cut(keys, tile, self.steps[1])


class Classes(Sorted):
    """Tokens sorted by class, for rules whose pairs are all of tokens of one class."""

    @property
    def step_in_class(self) -> int:
        """How far apart the queries of a class are wherever they stand; 0 where that depends."""
        return self.steps[0]

    def candidates(
        self, rule: Pattern, queries: Tiles, keys: Tiles, rows: Integers, length: int, head: int
    ) -> tuple[Integers, Integers]:
        position, row = queries.each_token(rows)
        of_query = self.sorted_by(position, length, False)
        opens, closes = stretches(of_query, row)
        pieces = Ranges(position[opens], position[closes], self.step_in_class)
        piece, start, stop = rule.find_spans(pieces, length, head).triples()
        # Classes one after another, each by position: modulo 4, keys 0 4 8 1 5 9 2 6 3 7. Of those from 3 to 6, class 1
        # has the keys from place 4 on (1 is before 3) to before place 5 (1 and 5 are before 7).
        codes = _by_class(self.sorted_by(keys.positions, length, True), keys.positions, length)
        own = of_query[opens][piece]
        first = np.searchsorted(codes, _by_class(own, start, length))
        past = np.searchsorted(codes, _by_class(own, stop, length))
        some = first < past  # a span may hold no token of the class
        first, past = first[some] // keys.tile, -(-past[some] // keys.tile)
        return Intervals.build(row[opens][piece[some]], first, past, len(rows), len(keys)).points()


@dataclass(frozen=True)
class Residues(Classes):
    """Tokens sorted by residue modulo a period; only for rules that imply stride(period).

    Queries of another sequence are sorted by the residue of where they stand among the keys, `step` apart.
    """

    period: int
    step: Fraction = Fraction(1)

    @property
    def text(self) -> str:
        return f"residues modulo {self.period}" + ("" if self.step == 1 else f", queries {self.step} apart")

    def sorted_by(self, positions: Integers, length: int, are_keys: bool) -> Integers:
        if are_keys:
            return positions % self.period
        return positions * self.step.numerator // self.step.denominator % self.period

    @property
    def steps(self) -> tuple[int, int]:
        # Queries of one residue are a progression where whole tokens are between them.
        apart = self.period // math.gcd(self.period, self.step.numerator) if self.step.denominator == 1 else 0
        return apart, self.period


@dataclass(frozen=True)
class Reordered(Sorted):
    """Tokens in an order that gathers the edges of an explicit pattern (reverse Cuthill-McKee)."""

    edges_of: Explicit

    @property
    def text(self) -> str:
        return "reordered by reverse Cuthill-McKee"

    def sorted_by(self, positions: Integers, length: int, are_keys: bool) -> Integers:
        places = np.empty(length, np.int64)
        places[self.derived(Reordered._order, length)] = np.arange(length)
        return places[positions]

    def _order(self, n_keys: int) -> Integers:
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import reverse_cuthill_mckee

        queries, keys = self._edges(n_keys)
        if not len(queries):
            return np.arange(n_keys)
        graph = coo_array((np.ones(len(queries)), (queries, keys)), shape=(n_keys, n_keys)).tocsr()
        return cast(Integers, reverse_cuthill_mckee(graph).astype(np.int64))

    def _edges(self, n_keys: int) -> tuple[Integers, Integers]:
        queries, keys = self.edges_of.edges()
        inside = (queries < n_keys) & (keys < n_keys)
        return queries[inside], keys[inside]

    def candidates(
        self, rule: Pattern, queries: Tiles, keys: Tiles, rows: Integers, length: int, head: int
    ) -> tuple[Integers, Integers]:
        asked, read = self._edges(length)
        # The edges themselves say which tiles hold a pair; spans of a scattered order would be nearly everything.
        # Queries outside of `rows`, and those without a tile (-1), are left out.
        tile_of_query = _tile_of_position(queries, length)[asked]
        row = np.searchsorted(rows, tile_of_query)
        known = (tile_of_query >= 0) & (rows[np.minimum(row, len(rows) - 1)] == tile_of_query)
        codes = np.unique(row[known] * len(keys) + _tile_of_position(keys, length)[read[known]])
        return codes // len(keys), codes % len(keys)


@dataclass(frozen=True)
class DepthFirst(Sorted):
    """Tokens in an order in which each subtree of a tree is a run of tokens."""

    tree: Tree

    @property
    def text(self) -> str:
        return "depth first"

    def sorted_by(self, positions: Integers, length: int, are_keys: bool) -> Integers:
        return self.tree.forest.number(positions)

    def candidates(
        self, rule: Pattern, queries: Tiles, keys: Tiles, rows: Integers, length: int, head: int
    ) -> tuple[Integers, Integers]:
        # Numbers in this order ascend from tile to tile, among queries and among keys, so that the same tree over these
        # numbers says where the ancestors of a tile stand.
        numbers, key_numbers = (self.tree.forest.number(x.positions) for x in (queries, keys))
        last = np.minimum((rows + 1) * queries.tile, len(numbers)) - 1
        renumbered = Tree(self.tree.forest.renumbered, self.tree.pattern)
        asked = Ranges(numbers[rows * queries.tile], numbers[last], 1)
        row, start, stop = renumbered.find_spans(asked, self.tree.size, head).triples()
        first = np.searchsorted(key_numbers, start) // keys.tile
        past = -(-np.searchsorted(key_numbers, stop) // keys.tile)
        some = np.searchsorted(key_numbers, start) < np.searchsorted(key_numbers, stop)
        return Intervals.build(row[some], first[some], past[some], len(rows), len(keys)).points()


def stretches(*numbers: Integers) -> tuple[Integers, Integers]:
    """The first and the last place of every stretch in which none of these numbers, int64 [n] each, changes.

    A tile may hold the end of one class and the start of the next, and each is asked about by itself: of classes 0 0 1
    1 1 in tiles 0 0 0 1 1 the stretches are 0 to 1, 2 to 2, and 3 to 4.
    """
    opens = np.flatnonzero(np.logical_or.reduce([np.diff(each, prepend=-1) != 0 for each in numbers]))
    return opens, np.append(opens[1:], len(numbers[0]))[: len(opens)] - 1


def _by_class(classes: Integers, positions: Integers, length: int) -> Integers:
    """Numbers that ascend with the class, and in it with the position, which is at most `length`."""
    return classes * (length + 1) + positions


def _tile_of_position(tiles: Tiles, length: int) -> Integers:
    where = np.full(length, -1)
    where[tiles.positions] = np.arange(len(tiles.positions)) // tiles.tile
    return where


def _replace(rule: Pattern, implied: Pattern) -> Pattern:
    """The rule with `implied` taken as true; not inside a shift or a document, where equal names mean other tokens."""
    if rule == implied:
        return Dense()
    if isinstance(rule, Moved):
        return rule  # inside, a position counts from another place: keys named 0 there are others
    return rule.rebuild(tuple(_replace(child, implied) for child in rule.children)) if rule.children else rule
