"""Compiles a pattern into the communication plan that moves the fewest bytes."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from asterism.compiler.devices.communication import Communication, TokenPlace, Way
from asterism.compiler.devices.needs import Term, named_keys, terms
from asterism.compiler.devices.shards import Shards
from asterism.compiler.devices.traffic import RowShape
from asterism.compiler.devices.ways import WAYS
from asterism.errors import PatternError, shown
from asterism.patterns.pattern import Pattern
from asterism.patterns.selected import require_static
from asterism.patterns.text import parse

_MOST_LISTED = 2**23
"""The most intervals that the keys which a pattern names may make for all devices together."""

BY_PATTERN = tuple(way for way in WAYS if not way.ignores_the_pattern)


def communicate(
    pattern: Pattern | str, queries: Shards, keys: Shards, shape: RowShape, query_offset: int = 0
) -> Communication:
    """Plan how devices that hold shards of queries and keys attend by a pattern; equal calls return the same object.

    The pattern is for keys.length tokens, and query i stands at position query_offset + i. Among all plans that the
    ways offer, the chosen one moves the fewest bytes on its busiest device, for rows of this shape, forward. Raises
    PatternError if queries and keys are on different numbers of devices, or if the plan would be too long.
    """
    pattern = parse(pattern) if isinstance(pattern, str) else pattern
    require_static(pattern, "several devices")
    return pattern.derived(_communicate, queries, keys, shape, query_offset)


def _communicate(pattern: Pattern, queries: Shards, keys: Shards, shape: RowShape, query_offset: int) -> Communication:
    plans = list(candidates(pattern, queries, keys, shape, query_offset))
    moved = [plan.traffic(shape).most for plan in plans]
    by_pattern = [cost for plan, cost in zip(plans, moved, strict=True) if not plan.ignores_the_pattern]
    # Where nothing need move, no device has another's work to do. Else the ring comes first, as it needs least memory.
    first = len(plans) - len(by_pattern) if min(by_pattern) == 0 else 0
    everything = plans[0].traffic(shape).most
    return replace(plans[moved.index(min(moved), first)], is_dense=0 < everything <= min(by_pattern))


def candidates(
    pattern: Pattern, queries: Shards, keys: Shards, shape: RowShape, query_offset: int = 0
) -> Iterator[Communication]:
    """All plans that are weighed, those that ignore the pattern first. Raises PatternError as `communicate` does."""
    if queries.devices != keys.devices:
        raise PatternError(
            "ranks-differ", f"queries are on {queries.devices} ranks and keys on {keys.devices}: use the same ranks"
        )
    place = TokenPlace(queries, keys, query_offset, shape)
    found = terms(pattern, place.extent)
    if (listed := listed_at_most(found, keys)) > _MOST_LISTED:
        raise PatternError(
            "scattered-keys",
            f"{shown(str(pattern))} reads keys so scattered that a plan for {keys.devices:,} ranks may list"
            f" {listed:,} intervals, more than the limit of {_MOST_LISTED:,}: use fewer ranks or larger blocks of"
            " keys",
        )
    yield from offered(place, pattern, found)


def offered(
    place: TokenPlace, pattern: Pattern, found: Sequence[Term], ways: Sequence[type[Way]] = WAYS
) -> Iterator[Communication]:
    """The plans that these ways offer for a pattern whose terms are `found`, in their order."""
    for way in ways:
        for some in way.offers(place, pattern, found):
            yield place.plan(pattern, *some)


def listed_at_most(found: Sequence[Term], keys: Shards) -> int:
    """How many intervals of keys that the terms name all devices together may need."""
    return keys.devices * sum(len(starts) for term in found for starts, _ in named_keys(term.rule, keys.length))
