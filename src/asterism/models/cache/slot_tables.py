"""The slots that new tokens write and read, as tensors: once for all layers that share a plan.

Inside torch.compile the tables stay outside the graph: an operator looks the position up when the graph runs, so that
the graph of one token is that of the next.
"""

from typing import NamedTuple

import numpy as np
import torch

from asterism.compiler.slots import SlotPlan, Table, slot_plan
from asterism.errors import ConfigurationError
from asterism.layers.kept import NewTokens
from asterism.patterns.by_text import by_text


class PlanStep(NamedTuple):
    """What one plan says of some new tokens.

    rows     int64 [n], with columns [n] and slots [n]: the key in this row and column goes to this slot. None for rows:
             in all rows alike; None for columns: all of them
    slots    a number where there is one column, alike in all rows
    allowed  bool [B or 1, 1 or heads, N, W]; None where the tokens do not read the slots
    """

    rows: torch.Tensor | None
    columns: torch.Tensor | None
    slots: torch.Tensor | int
    allowed: torch.Tensor | None


def find_step(plan: SlotPlan, tokens: NewTokens, width: int, device: torch.device, reads_slots: bool) -> PlanStep:
    """The step for `width` slots. With `reads_slots` the tokens are at most one more than can be restored."""
    key = plan.text, plan.restorable, width, device
    step: PlanStep | None = tokens.results.get(key)
    if step is None:
        step = tokens.results[key] = _kept_step(plan, tokens, width, device, reads_slots)
    return step


def _kept_step(plan: SlotPlan, tokens: NewTokens, width: int, device: torch.device, reads_slots: bool) -> PlanStep:
    """The step for whoever asks next: after `reset` that may be a call that needs gradients."""
    if torch.compiler.is_compiling():  # nothing stays
        return _step(plan, tokens, width, device, reads_slots)
    with torch.inference_mode(False):
        return _step(plan, tokens, width, device, reads_slots)


def _step(plan: SlotPlan, tokens: NewTokens, width: int, device: torch.device, reads_slots: bool) -> PlanStep:
    lengths = tokens.before.lengths
    alike = tokens.counts is None and isinstance(lengths, int)
    if not alike and tokens.width == 1 and tokens.counts is None and reads_slots:
        return _one_column(plan, tokens.before.lengths, width, device)  # type: ignore[arg-type]
    if not alike:
        return _step_by_row(plan, tokens, width, device, reads_slots)
    assert isinstance(lengths, int)
    if not reads_slots:
        return PlanStep(None, *_survivors(plan, lengths, tokens.width, device), None)
    if torch.compiler.is_compiling():
        slots, allowed = slot_step(plan.text, plan.restorable, lengths, tokens.width, width, device)
        return PlanStep(None, None, slots, allowed)
    if tokens.width == 1:
        table = plan.table(lengths, width)
        return PlanStep(None, None, int(table.slots[lengths - table.first]), _allowed(table, lengths, 1, device)[None])
    slots, allowed = _stretch(plan, lengths, tokens.width, width, device)
    return PlanStep(None, None, slots, allowed)


def _survivors(plan: SlotPlan, first: int, count: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """(columns, slots) of those of `count` new tokens whose keys are still there after the last of them.

    Of tokens 4 to 7 in three slots of a window, `held` is [6, 7, 5]: columns [2, 3, 1] go to slots [0, 1, 2], and
    token 4 goes nowhere.
    """
    held = plan.held(first + count)
    slots = np.flatnonzero(held >= first)
    return torch.from_numpy(held[slots] - first).to(device), torch.from_numpy(slots).to(device)


def _stretch(
    plan: SlotPlan, first: int, count: int, width: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """(slots [count], allowed [1, heads, count, width]) of consecutive positions, from one table or several."""
    slots, allowed, position = [], [], first
    while position < first + count:
        table = _table_with(plan, position, width)
        some = min(first + count, table.first + len(table.slots)) - position
        slots.append(table.slots[position - table.first :][:some])
        allowed.append(_allowed(table, position, some, device))
        position += some
    together = allowed[0] if len(allowed) == 1 else torch.cat(allowed, dim=1)
    return torch.from_numpy(np.concatenate(slots)).to(device), together[None]


def exhausted(slots: int, length: int) -> str:
    """Why a token finds no slot."""
    return (
        f"all {slots} slots of the cache hold keys that are still read, and token {length} of a row needs one more;"
        " give the cache a higher max_tokens, or none"
    )


def _one_column(plan: SlotPlan, lengths: tuple[int, ...], width: int, device: torch.device) -> PlanStep:
    """One real token in each of the rows of different lengths, which mostly need the same table or two."""
    found: dict[Table, list[int]] = {}
    slots = []
    for row, position in enumerate(lengths):
        table = _table_with(plan, position, width)
        found.setdefault(table, []).append(row)
        slots.append(int(table.slots[position - table.first]))
    # Rows at positions 3, 300 and 5 read two tables: rows [0, 2] the one of 0 to 255, row [1] the one of 256 to 511.
    allowed = torch.empty(plan.pattern.heads, len(lengths), width, dtype=torch.bool, device=device)
    for table, rows in found.items():
        places = torch.tensor([lengths[row] - table.first for row in rows], device=device)
        allowed[:, rows] = table.derived(_table_on, device)[:, places]
    own = torch.arange(len(lengths), device=device)
    return PlanStep(own, torch.zeros_like(own), torch.tensor(slots, device=device), allowed.transpose(0, 1)[:, :, None])


def _table_with(plan: SlotPlan, position: int, width: int) -> Table:
    """The table that holds the position. Raises ConfigurationError where its key finds no slot."""
    table = plan.table(position, width)
    if position >= table.first + len(table.slots):
        raise ConfigurationError("cache-exhausted", exhausted(width, position))
    return table


def _step_by_row(plan: SlotPlan, tokens: NewTokens, width: int, device: torch.device, reads_slots: bool) -> PlanStep:
    """Rows of different lengths: each as if it were alone, and all together as lists of rows, columns and slots."""
    after = tokens.after.lengths
    count = len(after) if isinstance(after, tuple) else len(tokens.counts or tokens.before.lengths)  # type: ignore[arg-type]
    places: list[list[torch.Tensor]] = [[], [], []]
    masks = []
    for row in range(count):
        first = tokens.before.of(row)
        real = tokens.width if tokens.counts is None else tokens.counts[row]
        mask = torch.zeros(1, plan.pattern.heads, tokens.width, width, dtype=torch.bool, device=device)
        if reads_slots and real:
            slots, mask[:, :, :real] = _stretch(plan, first, real, width, device)
            columns = torch.arange(real, device=device)
        else:
            columns, slots = _survivors(plan, first, real, device)
        masks.append(mask)
        for place, found in zip(places, (torch.full_like(columns, row), columns, slots), strict=True):
            place.append(found)
    rows, columns, slots = (torch.cat(place) for place in places)
    return PlanStep(rows, columns, slots, torch.cat(masks) if reads_slots else None)


def _allowed(table: Table, position: int, count: int, device: torch.device) -> torch.Tensor:
    """bool [heads, count, W]: the queries from `position` on."""
    row = position - table.first
    return table.derived(_table_on, device)[:, row : row + count]


def _table_on(table: Table, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(table.allowed).to(device)


@torch.library.custom_op("asterism::slot_step", mutates_args=())
def slot_step(
    pattern: str, restorable: int, first: int, count: int, width: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """(slots int64 [count], allowed bool [1, heads, count, width]) of `count` tokens from position `first` on."""
    slots, allowed = _stretch(slot_plan(by_text(pattern), restorable), first, count, width, device)
    return slots.clone(), allowed.clone()


@slot_step.register_fake
def _(
    pattern: str, restorable: int, first: int, count: int, width: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    heads = by_text(pattern).heads
    return (
        torch.empty(count, dtype=torch.int64, device=device),
        torch.empty(1, heads, count, width, dtype=torch.bool, device=device),
    )
