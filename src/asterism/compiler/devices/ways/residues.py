"""All tokens go where their residue lives: for strides, whose pairs all have equal residues."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from asterism.compiler.devices.communication import Communication, TokenPlace, Way
from asterism.compiler.devices.needs import Term, strides, union
from asterism.compiler.devices.shards import Shards
from asterism.compiler.devices.traffic import Collective, RowShape
from asterism.compiler.devices.ways.rows import ByRows
from asterism.patterns.intervals import Integers
from asterism.patterns.pattern import Pattern

_CELLS = 2**22
"""Pairs of devices counted at a time."""

_MOST_PERIODS = 4
"""How many periods of strides are weighed."""


@dataclass(frozen=True)
class ByResidues:
    """Tokens go where their residue lives, and results go back: device d computes the positions whose residue modulo
    `period` is in Shards.even(period, devices).range(d), in ascending order of position."""

    pattern: Pattern
    period: int
    ignores_the_pattern: ClassVar[bool] = False

    @classmethod
    def offers(cls, place: TokenPlace, pattern: Pattern, found: Sequence[Term]) -> Iterator[tuple[Way, ...]]:
        """For each period, terms with such a stride go where their residues live, and the others by rows."""
        if place.queries != place.keys or place.query_offset:
            return
        periods = sorted({period for term in found for period in strides(term.rule)})
        for period in periods[:_MOST_PERIODS]:
            strided = [term for term in found if any(own % period == 0 for own in strides(term.rule))]
            others = [term for term in found if term not in strided]
            rest = union(others, pattern.heads)
            if rest is None:
                yield (cls(pattern, period),)
            elif (own := union(strided, pattern.heads)) is not None:
                offered = ByRows.offers(place, rest, others)
                yield *min(offered, key=lambda rows: place.moved(place.plan(rest, *rows))), cls(own & ~rest, period)

    def collectives(self, plan: Communication, shape: RowShape) -> Iterator[Collective]:
        """Tokens there, results back."""
        devices, parts, bounds = plan.devices, self._parts(plan), np.array(plan.keys.bounds)
        sent, received, targets, sources = (np.zeros(devices, np.int64) for _ in range(4))
        step = max(1, _CELLS // devices)
        for first in range(0, devices, step):
            own = np.arange(first, min(first + step, devices))
            edges = np.append(bounds[own], bounds[own[-1] + 1])[:, None]
            # Rows that go from each of these devices (first axis) to each: the differences of how many positions are
            # below a bound and have a residue below a part's. Period 4, two devices with residues 0..1 and 2..3,
            # bounds 0, 5, 8: below = [[0, 0, 0], [0, 3, 5], [0, 4, 8]], rows = [[3, 2], [1, 2]].
            rows = np.diff(np.diff(_below(edges, self.period, parts), axis=1), axis=0)
            rows[np.arange(len(own)), own] = 0
            sent[own], targets[own] = rows.sum(axis=1), (rows > 0).sum(axis=1)
            received += rows.sum(axis=0)
            sources += (rows > 0).sum(axis=0)
        row, result = shape.key + shape.query, shape.result
        yield Collective("queries, keys and values", sent * row, received * row, targets, sources)
        yield Collective("results", received * result, sent * result, sources, targets)

    def held(self, plan: Communication, shape: RowShape) -> Integers:
        """int64 [devices], bytes: all tokens of some residues."""
        return np.diff(_below(np.array(plan.keys.length), self.period, self._parts(plan))) * shape.key

    def title(self, plan: Communication) -> str:
        """What moves, in words."""
        return f"tokens go where their residue modulo {self.period:,} lives, and results come back"

    def _parts(self, plan: Communication) -> Integers:
        return np.array(Shards.even(self.period, plan.devices).bounds)


def _below(edges: Integers, period: int, parts: Integers) -> Integers:
    """How many positions below each edge have a residue below each bound of parts: edges // period whole periods of
    `parts` each, and what the last, unfinished period has of them."""
    found: Integers = edges // period * parts + np.clip(edges % period, 0, parts)
    return found
