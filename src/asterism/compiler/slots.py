"""Assigns keys to the slots of a cache, from the pattern and the position alone.

Tokens come one after the other. The key of each takes the slot that has been free for longest, or a new one where none
is free. A slot is free again a few tokens (`restorable`) after the last query that may read its key. So a window goes
round in a ring, and `fixed` puts the summary cells beside the block that comes and goes.

Because nothing but the position decides, all layers and all rows of a batch share one plan, and whatever was written
after a position can be taken back: by then it has replaced only keys that had been dead for `restorable` tokens.

Heads that keep different keys have plans of their own (`head_groups`).
"""

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from asterism.compiler.liveness import FOREVER, last_reader, most_living
from asterism.memo import Derives
from asterism.patterns import Pattern, per_head
from asterism.patterns.explicit import Explicit
from asterism.patterns.intervals import Integers
from asterism.patterns.pattern import Booleans, Named, PerHead, Shifted
from asterism.patterns.tree import Tree

EMPTY = -1
"""The position of the key in a slot that has held none yet."""

_FIRST_WIDTH, _GROWTH, _MULTIPLE = 64, 1.2, 16
_LARGEST_TABLE = 2**20


class HeadGroup(NamedTuple):
    """Query heads whose keys live equally long, with the key heads they read; `pattern` is that of these heads."""

    pattern: Pattern
    heads: tuple[int, ...]
    key_heads: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Table(Derives):
    """What is known of S positions from `first` on, for W slots.

    slots    int64 [S]: where the key of each goes; S ends before the first key that finds no room
    allowed  bool [heads, S, W]: whether the query at each may read the slot, whose key may be one of up to
             `restorable` later tokens
    """

    first: int
    slots: Integers
    allowed: Booleans


def head_groups(pattern: Pattern, heads: int, key_heads: int) -> tuple[HeadGroup, ...]:
    """Group the heads that keep different keys; query head h reads key head h // (heads // key_heads).

    Raises PatternError when the pattern is for another number of heads.
    """
    pattern.check_heads(heads)
    everything = HeadGroup(pattern, tuple(range(heads)), tuple(range(key_heads)))
    # A part that draws for each head, such as random blocks, has no pattern of one head.
    if pattern.heads == 1 or any(part.heads > 1 and not part.children for part in pattern.walk()):
        return (everything,)
    share = heads // key_heads
    members: dict[tuple[Pattern, ...], list[int]] = {}
    for key_head in range(key_heads):
        rules = tuple(_of_head(pattern, head) for head in range(key_head * share, (key_head + 1) * share))
        members.setdefault(rules, []).append(key_head)
    if len(members) == 1 and len(set(next(iter(members)))) > 1:
        return (everything,)
    groups = []
    for rules, own in members.items():
        rule = rules[0] if len(set(rules)) == 1 else per_head(rules * len(own))
        asking = tuple(head for key_head in own for head in range(key_head * share, (key_head + 1) * share))
        groups.append(HeadGroup(rule, asking, tuple(own)))
    return tuple(groups)


def _of_head(pattern: Pattern, head: int) -> Pattern:
    """The rule of one head of a composition whose leaves are the same for all heads."""
    if pattern.heads == 1:
        return pattern
    if isinstance(pattern, PerHead):
        return _of_head(pattern.patterns[head], head)
    if isinstance(pattern, Named):
        return _of_head(pattern.body, head)
    return pattern.rebuild(tuple(_of_head(part, head) for part in pattern.children))


def slot_plan(pattern: Pattern, restorable: int) -> "SlotPlan":
    """Plan the slots of a causal pattern; equal calls share the plan."""
    return pattern.derived(SlotPlan, restorable)


class SlotPlan(Derives):
    """Where the keys of one pattern go: four bytes for each position asked about, nothing for each key.

    restorable  for how many tokens a key stays after the last query that may read it
    bound       the most slots that are ever in use, or None where the pattern keeps ever more keys
    """

    def __init__(self, pattern: Pattern, restorable: int) -> None:
        self.pattern, self.restorable, self.text = pattern, restorable, pattern.text
        living = most_living(pattern)
        self.bound = None if living is None else living + restorable
        self._longest = _longest(pattern)
        self._given = _GivenSlots(np.empty(0, np.int32), 0, (), {})

    def used(self, length: int) -> int:
        """How many slots the first `length` tokens have ever taken at once."""
        return int(self._slots_of(length).max(initial=-1)) + 1

    def width(self, length: int) -> int:
        """How many slots to hold for `length` tokens: some more than they use, so that growth is rare."""
        used, width = self.used(length), _FIRST_WIDTH
        while width < used:
            width = -(-int(width * _GROWTH) // _MULTIPLE) * _MULTIPLE
        return width if self.bound is None else min(width, self.bound)

    def fits(self, length: int, width: int) -> int:
        """How long a sequence of `length` tokens may certainly become before it needs more than `width` slots."""
        table = self.table(length - 1, width)
        return table.first + len(table.slots)

    def capacity(self, length: int) -> int:
        """How many slots are enough for sequences of at most `length` tokens."""
        return self.bound if self.bound is not None and self.bound <= length else self.used(length)

    def held(self, length: int) -> Integers:
        """int64 [used(length)]: the position of the key in each slot after `length` tokens."""
        slots = self._slots_of(length)
        held = np.full(int(slots.max(initial=-1)) + 1, EMPTY)
        held[slots] = np.arange(length)  # of several keys in a slot the last one stays
        return held

    def living(self, length: int) -> tuple[Integers, Integers]:
        """(slots, positions), int64 [living] each, of the keys that a query at `length` or later may read, ordered by
        position."""
        held = self.held(length)
        slots = np.flatnonzero((last_reader(self.pattern, np.maximum(held, 0)) >= length) & (held >= 0))
        slots = slots[np.argsort(held[slots])]
        return slots, held[slots]

    def is_restorable(self, length: int, written: int) -> bool:
        """Whether all keys that live after `length` tokens are still in their slots after `written` ones."""
        slots, positions = self.living(length)
        return bool((self.held(written)[slots] == positions).all())

    def table(self, position: int, width: int) -> Table:
        """The table for `width` slots that `position` belongs to; it ends before the first key that finds no room."""
        size = 2 ** min(max((_LARGEST_TABLE // (width * self.pattern.heads)).bit_length() - 1, 4), 8)
        first = position // size * size
        # A position beyond the longest sequence is asked about alone, so that the pattern says what it is made for.
        # Rows of a batch may need as many tables as there are, each for many tokens.
        stop = max(min(first + size, self._longest), position + 1)
        return self.derived(SlotPlan.tabulate, first, stop, width)

    def tabulate(self, first: int, stop: int, width: int) -> Table:
        """The table of the positions from `first` to before `stop`, computed anew."""
        slots = self._slots_of(stop)[first:].astype(np.int64)
        stop = first + int(np.append(slots >= width, True).argmax())
        slots = slots[: stop - first]
        before = self.held(first)[:width]
        held = np.full((stop - first, width), EMPTY)
        held[:, : len(before)] = before
        for row, slot in enumerate(slots):
            held[row:, slot] = first + row
        queries, keys = np.arange(first, stop)[:, None], np.maximum(held, 0)
        allowed = [self.pattern.allows(queries, keys, stop, head) for head in range(self.pattern.heads)]
        return Table(first, slots, np.stack(allowed) & (held >= 0))

    def _slots_of(self, length: int) -> Integers:
        """int32 [length]: the slot of each of the first positions.

        Threads share a plan, so what has been given is never changed, only replaced by more of the same.
        """
        given = self._given
        if length > len(given.slots):
            given = self._given = self._give_more(given, length)
        return given.slots[:length]

    def _give_more(self, given: "_GivenSlots", length: int) -> "_GivenSlots":
        """Slots for the positions below `length`, and for some more."""
        start, count = len(given.slots), given.width
        free, freed_at = deque(given.free), {position: list(slots) for position, slots in given.freed_at.items()}
        keys = np.arange(start, max(length, start + 256 + start // 16))
        last = last_reader(self.pattern, keys)
        ends = np.where(last == FOREVER, FOREVER, np.maximum(last, keys) + 1 + self.restorable)
        slots = np.empty(len(keys), np.int32)
        for row, (position, end) in enumerate(zip(keys.tolist(), ends.tolist(), strict=True)):
            free.extend(freed_at.pop(position, ()))
            if free:
                slot = free.popleft()
            else:
                slot, count = count, count + 1
            slots[row] = slot
            if end != FOREVER:
                freed_at.setdefault(end, []).append(slot)
        return _GivenSlots(np.concatenate([given.slots, slots]), count, tuple(free), freed_at)


class _GivenSlots(NamedTuple):
    """Which slots the first positions were given.

    slots     int32 [positions]
    width     how many slots there are
    free      those that the next keys take, in order
    freed_at  those that are free from a position on
    """

    slots: Integers
    width: int
    free: tuple[int, ...]
    freed_at: dict[int, list[int]]


def _longest(pattern: Pattern) -> int:
    """The length of the longest sequence that the pattern has an answer for."""
    if isinstance(pattern, Explicit | Tree):
        return pattern.size
    inner = min(map(_longest, pattern.children), default=FOREVER)
    return inner + pattern.by if isinstance(pattern, Shifted) and inner < FOREVER else inner
