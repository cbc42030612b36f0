"""Finds intervals that hold all keys that some queries can read, from spans.

A rule is looked at term by term and block of queries by block, since the spans of a small block are tight. Keys that a
term names by themselves, such as the summary cells of `fixed`, are all that it needs, whatever its spans say.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import NamedTuple

import numpy as np

from asterism.compiler.terms import concrete, terms_of
from asterism.errors import PatternError
from asterism.patterns.documents import Documents
from asterism.patterns.intervals import Integers, Intervals, covered_below, within
from asterism.patterns.pattern import And, Booleans, Not, Or, Pattern, PerHead, Ranges, Shifted
from asterism.patterns.primitives import Columns, Dense, KeySet, OneSided, Stride
from asterism.patterns.text import parse

_MOST_BLOCKS = 2**13
"""How many blocks all queries together are cut into, at most: of so few, each may be a single query."""


class Term(NamedTuple):
    """A conjunction in the rule of some heads.

    rule   the conjunction
    heads  the heads whose rule has it; spans are asked of the first, and equal for all
    """

    rule: Pattern
    heads: tuple[int, ...]


def terms(pattern: Pattern, extent: int) -> tuple[Term, ...]:
    """The conjunctions whose union is the pattern, of all heads; all positions are below `extent`."""
    serves: dict[tuple[Pattern, int], list[int]] = {}
    for head in range(pattern.heads):
        for term in terms_of(_spread(concrete(pattern, head, max(extent, 1)))):
            serves.setdefault((term, head if term.heads > 1 else 0), []).append(head)
    return tuple(Term(rule, tuple(heads)) for (rule, _), heads in serves.items())


def _spread(rule: Pattern) -> Pattern:
    """The same rule, with unions and intersections brought out of shifts and documents: then they are terms."""
    rule = rule.rebuild(tuple(_spread(child) for child in rule.children)) if rule.children else rule
    match rule:
        case Shifted(pattern=Or() | And() as inner, by=by):
            return inner.rebuild(tuple(_spread(Shifted(part, by)) for part in inner.parts))
        case Documents(pattern=Or() | And() as inner, sizes=sizes):
            return inner.rebuild(tuple(_spread(Documents(part, sizes)) for part in inner.parts))
        case _:
            return rule


@dataclass(frozen=True, eq=False)
class QueryRuns:
    """Runs of queries, by position.

    start, stop  int64 [runs] each: a run is the positions start[i] .. stop[i] - 1
    group        int64 [runs]: which of so many `groups`, such as devices, each belongs to
    """

    start: Integers
    stop: Integers
    group: Integers
    groups: int

    @classmethod
    def cut(cls, start: Integers, stop: Integers, group: Integers, groups: int) -> "QueryRuns":
        """Blocks of equal size from any runs, int64 [n] each, as small as _MOST_BLOCKS allows; empty runs give none.

        In blocks of 4, the runs 0 .. 9 and 20 .. 24 become 0 .. 3, 4 .. 7, 8 .. 9, 20 .. 23 and 24.
        """
        size = max(1, -(-int((stop - start).sum()) // _MOST_BLOCKS))
        counts = np.maximum(-(-(stop - start) // size), 0)
        first = np.repeat(start, counts) + within(counts) * size
        return cls(first, np.minimum(first + size, np.repeat(stop, counts)), np.repeat(group, counts), groups)

    def __len__(self) -> int:
        return len(self.start)

    @property
    def sizes(self) -> Integers:
        return self.stop - self.start

    def singles(self, chosen: Booleans) -> "QueryRuns":
        """Each query of the chosen blocks by itself."""
        sizes = self.sizes[chosen]
        at = np.repeat(self.start[chosen], sizes) + within(sizes)
        return QueryRuns(at, at + 1, np.repeat(self.group[chosen], sizes), self.groups)

    @property
    def ranges(self) -> Ranges:
        return Ranges(self.start, self.stop - 1, 1)


def needed(found: Sequence[Term], blocks: QueryRuns, length: int) -> Intervals:
    """Per group of blocks, intervals that hold every key that its queries can read."""
    nothing = Intervals.nothing(blocks.groups, length)
    if not len(blocks) or not length:
        return nothing
    return reduce(or_, (_needed_by_term(term, blocks, length) for term in found), nothing)


def _needed_by_term(term: Term, blocks: QueryRuns, length: int) -> Intervals:
    row, start, stop = term.rule.find_spans(blocks.ranges, length, term.heads[0]).triples()
    reached = Intervals.build(blocks.group[row], start, stop, blocks.groups, length)
    for starts, stops in named_keys(term.rule, length):
        reached = restricted(reached, starts, stops)
    return reached


def readable(found: Sequence[Term], blocks: QueryRuns, length: int) -> Integers:
    """int64 [blocks]: at least as many keys as the queries of each block can read, and at most all."""
    count = np.zeros(len(blocks), np.int64)
    for term in found if len(blocks) and length else ():
        row, start, stop = term.rule.find_spans(blocks.ranges, length, term.heads[0]).triples()
        read = stop - start
        for starts, stops in named_keys(term.rule, length):
            read = np.minimum(read, covered_below(starts, stops, stop) - covered_below(starts, stops, start))
        np.add.at(count, row, read)
    return np.minimum(count, length)


def strides(term: Pattern) -> set[int]:
    """The periods of a conjunction all of whose pairs have equal residues."""
    literals = term.parts if isinstance(term, And) else (term,)
    return {literal.period for literal in literals if isinstance(literal, Stride) and literal.period > 1}


def union(found: Sequence[Term], heads: int) -> Pattern | None:
    """The rule of these terms for so many heads; None where there are none."""
    if not found:
        return None
    own = [[term.rule for term in found if head in term.heads] for head in range(heads)]
    rules = [reduce(or_, parts) if parts else ~Dense() for parts in own]
    return rules[0] if len(set(rules)) == 1 else PerHead(tuple(rules))


def restricted(intervals: Intervals, starts: Integers, stops: Integers) -> Intervals:
    """The intervals within the same runs of keys in every row; starts and stops are int64 [runs], ascending."""
    rows = np.unique(intervals.triples()[0])  # runs are many, and few rows may have anything
    row = np.repeat(rows, len(starts))
    runs = np.tile(starts, len(rows)), np.tile(stops, len(rows))
    return intervals & Intervals.build(row, *runs, intervals.rows, intervals.width)


def named_keys(term: Pattern, length: int) -> Iterator[tuple[Integers, Integers]]:
    """For every part of a conjunction that looks at keys alone, the runs of keys that it allows: starts and stops,
    int64 [runs] each, ascending."""
    for literal in term.parts if isinstance(term, And) else (term,):
        if (found := _runs_of(literal, length)) is not None:
            yield found


def _runs_of(literal: Pattern, length: int) -> tuple[Integers, Integers] | None:
    match literal:
        case Columns(period=period, first=first, count=count):  # the most runs that there are, without their members
            starts = np.arange(first, length, period)
            return starts, np.minimum(starts + count, length)
        case KeySet():
            return runs(literal.members(length))
        case Not(part=KeySet() as part):  # of 10 keys, what is not in 2 .. 3 and 7: 0 .. 1, 4 .. 6 and 8 .. 9
            allowed = _runs_of(part, length)
            return None if allowed is None else (np.append(0, allowed[1]), np.append(allowed[0], length))
        case Shifted(pattern=inner, by=by) if length > by:
            moved = _runs_of(inner, length - by)
            return None if moved is None else (moved[0] + by, moved[1] + by)
        case Documents(pattern=OneSided() | Not() as inner):
            return _runs_in_documents(literal, inner)
        case _:
            return None


def _runs_in_documents(around: Documents, inner: Pattern) -> tuple[Integers, Integers] | None:
    starts, stops = around.bounds
    begins, ends = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for size in np.unique(stops - starts):
        own = _runs_of(inner, int(size))
        if own is None:
            return None
        at = starts[stops - starts == size][:, None]
        begins.append((at + own[0]).ravel())
        ends.append((at + own[1]).ravel())
    begin, end = np.concatenate(begins), np.concatenate(ends)
    order = np.argsort(begin, kind="stable")
    return begin[order], end[order]


def runs(members: Integers) -> tuple[Integers, Integers]:
    """Starts and stops, int64 [runs] each, of the runs in ascending positions: [2, 3, 7] -> [2, 7], [4, 8]."""
    if not len(members):
        return members, members
    opens = np.flatnonzero(np.diff(members, prepend=members[0] - 2) > 1)
    closes = np.append(opens[1:], len(members)) - 1
    return members[opens], members[closes] + 1


def needed_keys(pattern: Pattern | str, query_range: tuple[int, int], length: int) -> Integers:
    """Key intervals int64 [m, 2], half-open, sorted and disjoint, that hold every key which the queries at positions
    query_range[0] .. query_range[1] - 1 may read in a sequence of `length` keys, whatever the head.

    A superset of what the rule allows, from spans of small blocks of queries: tight where spans are. Raises
    PatternError for a range that does not lie among the positions of queries.
    """
    pattern = parse(pattern) if isinstance(pattern, str) else pattern
    start, stop = query_range
    if not 0 <= start <= stop or (stop > length and not pattern.takes_any_query):
        raise PatternError(
            "query-range",
            f"needed_keys: query_range must ascend from at least 0 to at most the length, {length:,}, got"
            f" {tuple(query_range)}",
        )
    blocks = QueryRuns.cut(np.array([start]), np.array([stop]), np.zeros(1, np.int64), 1)
    _, starts, stops = needed(terms(pattern, max(length, stop)), blocks, length).triples()
    return np.stack([starts, stops], axis=1)
