"""The slots of one group of heads: keys and values that are written over once no query can read them.

Which slot takes which key follows from the pattern and the position (`asterism.compiler.slots`). With `window(left=2)`
and nothing to take back, three slots go round in a ring, and the key of token t lies in slot t % 3:

    tokens seen   slot 0  slot 1  slot 2
    3             key 0   key 1   key 2
    4             key 3   key 1   key 2
"""

import copy
from typing import Any

import numpy as np
import torch

from asterism.compiler import HeadGroup, slot_plan
from asterism.errors import ConfigurationError
from asterism.layers.kept import Kept, NewTokens, index_of
from asterism.models.cache.slot_tables import PlanStep, exhausted


class Slots:
    """The keys [B, h, W, D] and values [B, h, W, Dv] of one group of heads, in the dtype of the layer.

    heads  the query heads that read them; None for all
    holds  the plan has room in W slots for sequences of so many tokens
    """

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, group: HeadGroup, heads: int, restorable: int) -> None:
        self.group, self.plan = group, slot_plan(group.pattern, restorable)
        self.is_whole = len(group.heads) == heads
        self.heads = None if self.is_whole else group.heads
        self.holds = 0

    def allocate(self, keys: torch.Tensor, values: torch.Tensor, width: int) -> None:
        """Make W = `width` empty slots like these keys [B, Hkv, N, D] and values [B, Hkv, N, Dv] of all heads."""
        shape = keys.shape[0], len(self.group.key_heads), width
        with torch.inference_mode(False):  # slots are written to in any mode
            self.keys = torch.zeros(*shape, keys.shape[3], dtype=keys.dtype, device=keys.device)
            self.values = torch.zeros(*shape, values.shape[3], dtype=values.dtype, device=values.device)
        self.holds = 0

    def copied(self) -> "Slots":
        """The same in memory of their own; the plan is shared."""
        other = copy.copy(self)
        with torch.inference_mode(False), torch.no_grad():
            other.keys, other.values = self.keys.clone(), self.values.clone()
        return other

    def restore(self, keys: torch.Tensor, values: torch.Tensor, width: int, longest: int) -> None:
        """Become W = `width` slots, the first w of which hold keys [B, h, w, D] and values [B, h, w, Dv], in their
        dtype, of rows of at most `longest` tokens. Raises ValueError for other shapes than those have."""
        shape = len(keys), len(self.group.key_heads), self.plan.used(longest)
        alike = keys.dtype == values.dtype and keys.is_floating_point() and keys.device == values.device
        if not (keys.shape[:3] == values.shape[:3] == shape and alike and type(width) is int and width >= shape[2]):
            raise ValueError(f"slots {list(keys.shape)} and {list(values.shape)} of {width} where {list(shape)} belong")
        self.keys, self.values = _widened(keys, width), _widened(values, width)
        self.holds = 0

    def of(self, states: torch.Tensor) -> torch.Tensor:
        """The part of new keys or values [B, Hkv, N, D] that belongs here."""
        return states if self.is_whole else states[:, index_of(self.group.key_heads, states.device)]

    def make_room(self, length: int, may_grow: bool) -> None:
        """Make slots for sequences of `length` tokens. Raises ConfigurationError where they may not grow."""
        if length <= self.holds:
            return
        if self.plan.used(length) > self.width:
            if not may_grow:
                raise ConfigurationError("cache-exhausted", exhausted(self.width, length))
            width = self.plan.width(length)
            self.keys, self.values = _widened(self.keys, width), _widened(self.values, width)
        self.holds = self.plan.fits(length, self.width)

    @property
    def width(self) -> int:
        """W."""
        return self.keys.shape[2]

    def write(self, step: PlanStep, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Put new keys [B, Hkv, N, D] and values [B, Hkv, N, Dv] of all heads into the slots of their step."""
        for slots, new in ((self.keys, self.of(keys).detach()), (self.values, self.of(values).detach())):
            if isinstance(step.slots, int):  # one token, in the same slot of all rows
                slots.narrow(2, step.slots, 1).copy_(new)
            elif step.rows is not None:  # pairs of row and column: rows [0, 0, 1], columns [0, 1, 0], slots [4, 5, 9]
                slots[step.rows, :, step.slots] = new[step.rows, :, step.columns].to(slots.dtype)
            else:  # several tokens, in the same slots of all rows
                chosen = new if step.columns is None else new.index_select(2, step.columns)
                slots.index_copy_(2, step.slots, chosen.to(slots.dtype))

    def read(self, step: PlanStep, tokens: NewTokens, keys: torch.Tensor) -> Kept:
        """The slots, for tokens whose keys [B, Hkv, N, D] are among them."""

        def positions() -> torch.Tensor:
            return self._positions(tokens)

        held = _without_history(self.keys, keys)
        return Kept(None, self.heads, held, self.values, self.group.pattern, step.allowed, 0, positions)

    def read_sequence(self, tokens: NewTokens, keys: torch.Tensor, values: torch.Tensor) -> list[Kept]:
        """Before new tokens are written: they and what is kept, each at its place in a sequence of all tokens.

        Of keys [B, Hkv, N, D] and values [B, Hkv, N, Dv] of all heads; one part for each length of rows. The places of
        keys that are gone are never touched, nor read.
        """
        lengths = tokens.before.lengths
        if isinstance(lengths, int):
            return [self._sequence(None, lengths, self.of(keys), self.of(values))]
        parts = []
        for length in sorted(set(lengths)):
            rows = tuple(row for row, own in enumerate(lengths) if own == length)
            parts.append(self._sequence(rows, length, self.of(keys)[list(rows)], self.of(values)[list(rows)]))
        return parts

    def _sequence(self, rows: tuple[int, ...] | None, length: int, keys: torch.Tensor, values: torch.Tensor) -> Kept:
        # After 4 tokens slots [3, 0] may hold the keys at positions [1, 3]. With two new ones, at 4 and 5, the sequence
        # has 6 places, of which 1, 3, 4 and 5 are filled; what stands at 0 and 2 no query reads.
        slots, positions = (torch.from_numpy(x).to(keys.device) for x in self.plan.living(length))
        count = length + keys.shape[2]

        def whole(held: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
            old = held if rows is None else held[list(rows)]
            sequence = new.new_empty(*new.shape[:2], count, new.shape[3])
            sequence[:, :, positions] = _without_history(old.index_select(2, slots), new).to(new.dtype)
            sequence[:, :, length:] = new
            return sequence

        held_positions = torch.full((1, count), -1, device=keys.device)
        held_positions[:, positions] = positions
        held_positions[:, length:] = torch.arange(length, count, device=keys.device)
        sequences = whole(self.keys, keys), whole(self.values, values)
        return Kept(rows, self.heads, *sequences, self.group.pattern, None, length, lambda: held_positions)

    def _positions(self, tokens: NewTokens) -> torch.Tensor:
        """int64 [B or 1, W]: which position's key each slot holds after the tokens; -1 for none."""
        key = "positions", self.plan.text, self.plan.restorable, self.width
        found: torch.Tensor | None = tokens.results.get(key)
        if found is None:
            lengths = tokens.after.lengths
            rows = (lengths,) if isinstance(lengths, int) else lengths
            positions = np.full((len(rows), self.width), -1)
            for row, length in enumerate(rows):
                held = self.plan.held(length)
                positions[row, : len(held)] = held
            with torch.inference_mode(False):  # whoever asks next may need gradients
                found = tokens.results[key] = torch.from_numpy(positions).to(self.keys.device)
        return found

    def choose_rows(self, rows: torch.Tensor) -> None:
        """Keep the rows int64 [B'] or bool [B], in that order."""
        with torch.inference_mode(False), torch.no_grad():
            self.keys, self.values = self.keys[rows], self.values[rows]


def _widened(slots: torch.Tensor, width: int) -> torch.Tensor:
    """The same slots and empty ones behind them."""
    with torch.inference_mode(False):
        wide = torch.zeros(*slots.shape[:2], width, slots.shape[3], dtype=slots.dtype, device=slots.device)
        wide[:, :, : slots.shape[2]] = slots
    return wide


def _without_history(held: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """`held`, through which no gradient goes back: refused where the new keys need one, and not left out in silence."""
    if torch.is_grad_enabled() and new.requires_grad:
        guarded: torch.Tensor = _Remembered.apply(held, new)
        return guarded
    return held


class _Remembered(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, held: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        return held.view_as(held)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor | None) -> Any:
        raise ConfigurationError(
            "cache-not-differentiable",
            "a PatternCache stores keys and values without their gradients, so only the first call is"
            " differentiable; call the model without a cache (use_cache=False)",
        )
