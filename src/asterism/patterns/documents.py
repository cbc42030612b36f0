"""Several sequences one after another, each with its own pattern: packed batches, and rows laid end to end.

Every document follows the inner pattern at its own length and from its own position 0; nothing crosses a border. The
lengths are part of the pattern, so its answer for a pair of tokens never depends on the sequence around them: it is
prefix-stable even if the inner pattern is not.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from asterism.errors import PatternError, shown
from asterism.memo import cached_property
from asterism.patterns.intervals import Integers, Intervals, once
from asterism.patterns.pattern import (
    GREATEST,
    Booleans,
    Moved,
    Pattern,
    Ranges,
    Verdict,
    Verdicts,
    check_pattern,
    write_part,
)


@dataclass(frozen=True, eq=False, repr=False)
class Documents(Moved):
    keyword: ClassVar[str] = "documents"
    pattern: Pattern
    sizes: tuple[int, ...]
    """Lengths of documents, in order; -n stands for n tokens that belong to none."""

    @cached_property
    def bounds(self) -> tuple[Integers, Integers]:
        """Starts and stops of the documents that have tokens, ascending: int64 [documents] each."""
        sizes = np.array(self.sizes, np.int64)
        stops = np.cumsum(np.abs(sizes))
        return stops[sizes > 0] - sizes[sizes > 0], stops[sizes > 0]

    @property
    def end(self) -> int:
        """One past the last token of the last document."""
        return int(self.bounds[1].max(initial=0))

    def _allows(self, q: Integers, k: Integers, length: int, head: int) -> Booleans:
        # Queries and keys come repeated against each other; each is looked up once.
        document = np.broadcast_to(self._document_of(once(q)), q.shape)
        inside = np.flatnonzero((document >= 0) & (document == self._document_of(once(k))))
        result = np.zeros(q.shape, bool)
        q, k, document = q.ravel()[inside], k.ravel()[inside], document.ravel()[inside]
        for chosen, own_length, start in self._by_length(document):
            allowed = self.pattern._allows(q[chosen] - start, k[chosen] - start, own_length, head)
            result.flat[inside[chosen]] = allowed
        return result

    def judge(self, q: Ranges, k: Ranges, length: int, head: int) -> Verdicts:
        q_first, q_last, k_first, k_last = np.broadcast_arrays(q.first, q.last, k.first, k.last)
        (q_from, q_to), (k_from, k_to) = self._met(q_first, q_last), self._met(k_first, k_last)
        lone = np.maximum(q_from, k_from)
        apart = lone > np.minimum(q_to, k_to)
        result = np.where(apart, np.int8(Verdict.EMPTY), np.int8(Verdict.UNKNOWN))
        starts, stops = self._with_sentinel()
        in_one = ~apart & (np.minimum(q_from, k_from) == np.maximum(q_to, k_to))
        first, last = np.minimum(q_first, k_first), np.maximum(q_last, k_last)
        within = np.flatnonzero(in_one & (first >= starts[lone]) & (last < stops[lone]))
        for chosen, own_length, start in self._by_length(lone.flat[within]):
            at = within[chosen]
            queries = Ranges(q_first.flat[at] - start, q_last.flat[at] - start, q.step)
            keys = Ranges(k_first.flat[at] - start, k_last.flat[at] - start, k.step)
            result.flat[at] = self.pattern.judge(queries, keys, own_length, head)
        return result

    def find_spans(self, q: Ranges, length: int, head: int) -> Intervals:
        met_from, met_to = self._met(q.first, q.last)
        row, document = Intervals.one_each(met_from, met_to + 1, len(self.bounds[0])).points()
        starts, stops = self.bounds
        first, last = np.maximum(q.first[row], starts[document]), np.minimum(q.last[row], stops[document] - 1)
        # A set that a border cuts is a progression no more: its first member behind the border is not known.
        is_cut = bool((first > q.first[row]).any() or (last < q.last[row]).any())
        step = q.step if q.step == 1 or not is_cut else 0
        rows, begins, ends = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for chosen, own_length, start in self._by_length(document):
            inner = self.pattern.find_spans(Ranges(first[chosen] - start, last[chosen] - start, step), own_length, head)
            which, begin, end = inner.triples()
            own = document[chosen][which]
            rows.append(row[chosen][which])
            begins.append(begin + starts[own])
            ends.append(np.minimum(end + starts[own], stops[own]))
        return Intervals.build(np.concatenate(rows), np.concatenate(begins), np.concatenate(ends), len(q.first), length)

    def _document_of(self, tokens: Integers) -> Integers:
        """The document of each token, -1 for none."""
        starts, stops = self._with_sentinel()
        document = np.searchsorted(starts[:-1], tokens, side="right") - 1
        return np.where(tokens < stops[document], document, -1)

    def _met(self, first: Integers, last: Integers) -> tuple[Integers, Integers]:
        """The first and the last document that each range of tokens meets; last < first if it meets none."""
        starts, stops = self.bounds
        return np.searchsorted(stops, first, side="right"), np.searchsorted(starts, last, side="right") - 1

    def _with_sentinel(self) -> tuple[Integers, Integers]:
        """The bounds, with an empty document behind them, which place -1 and one past the end both name."""
        starts, stops = self.bounds
        return np.append(starts, self.end), np.append(stops, -1)

    def _by_length(self, document: Integers) -> Iterator[tuple[Integers, int, Integers]]:
        """The places in `document` whose documents may be asked about together: places, their length, their starts."""
        starts, stops = self.bounds
        lengths = (stops - starts)[document]
        if not self.pattern.depends_on_length:  # then a longer sequence gives the same answers
            lengths = np.full(len(document), lengths.max(initial=0))
        order = np.argsort(lengths, kind="stable")
        for places in np.split(order, np.flatnonzero(np.diff(lengths[order])) + 1):
            if len(places):
                yield places, int(lengths[places[0]]), starts[document[places]]

    @property
    def children(self) -> tuple[Pattern, ...]:
        return (self.pattern,)

    def rebuild(self, children: tuple[Pattern, ...]) -> Pattern:
        return Documents(children[0], self.sizes)

    @property
    def is_causal(self) -> bool:
        return self.pattern.is_causal

    def unstable_part(self) -> Pattern | None:
        return None

    def _write(self, in_full: bool) -> str:
        return f"{self.keyword}({', '.join((write_part(self.pattern, in_full), *map(str, self.sizes)))})"


def documents(pattern: Pattern, *lengths: int) -> Pattern:
    """Apply `pattern` to documents of these lengths, one after another, each at its own length from its own position 0.

    A negative number -n means n tokens that belong to no document, such as padding: they neither read nor are read. The
    same holds for tokens after the last document. Empty documents are allowed. Raises PatternError for anything but a
    pattern, lengths that are not whole numbers, and more than 2**60 tokens in all.
    """
    check_pattern("documents", "pattern", pattern)
    wrong = next((x for x in lengths if isinstance(x, (bool, np.bool_)) or not hasattr(x, "__index__")), None)
    if wrong is not None:
        raise PatternError("documents-lengths", f"documents: lengths must be whole numbers, got {shown(wrong)}")
    sizes = tuple(map(int, lengths))
    if (total := sum(map(abs, sizes))) > GREATEST:
        raise PatternError(
            "documents-too-long", f"documents: the lengths must add up to at most {GREATEST:,}, got {shown(total)}"
        )
    return Documents(pattern, sizes)
