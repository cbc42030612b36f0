"""Batches whose rows lie on several devices: every rank holds the same stretch of columns of all rows.

What all ranks must know of rows, they tell each other once per call of a model: how many tokens each holds, how many of
a row are real, and where packed documents begin. Padding comes last in its row. A rank whose own arguments are refused
before says so in the place of its numbers, so that all ranks raise an error, and none waits for it.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from asterism.compiler.devices import Shards
from asterism.errors import ConfigurationError
from asterism.layers.padding import real_tokens
from asterism.models.documents import PackedDocuments, find_documents
from asterism.parallel import SequenceParallel, sharding
from asterism.parallel.collectives import all_tokens, gather_numbers
from asterism.parallel.context import shards_of
from asterism.patterns.intervals import Integers

_NUMBERS = (
    "tokens",
    "rows",
    "attention_mask",
    "position_ids",
    "cu_seqlens",
    "labels",
    "shift_labels",
    "num_items_in_batch",
)
"""What a rank says of a call, in this order, and at last whether it was refused."""

_TARGETS = ("labels", "next_sentence_label", "start_positions")
"""Arguments of models that a loss is taken of."""

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass
class _Meeting:
    """A call of a model: which labels it was given, and whether the ranks have met in it."""

    labels: tuple[bool, ...]
    is_over: bool = False


_MEETING: ContextVar[_Meeting | None] = ContextVar("meeting", default=None)


@contextmanager
def together(context: SequenceParallel, given: Mapping[str, Any], device: torch.device) -> Iterator[None]:
    """Around a call of a model with these arguments, by their names, in which ranks meet in `find_rows`.

    A rank that raises an error before says so to the others, which then raise one, too.
    """
    around = _MEETING.get()
    if around is not None and not around.is_over:  # a part of a model, whose call is under way
        yield
        return
    labels = any(given.get(name) is not None for name in _TARGETS)
    numbers = (given.get(name) is not None for name in ("shift_labels", "num_items_in_batch"))
    meeting = _Meeting((labels, *numbers))
    token = _MEETING.set(meeting)
    try:
        yield
    except Exception:
        if not meeting.is_over:
            with suppress(Exception):  # this rank has its own error to raise
                _meet(context, [0] * len(_NUMBERS), device, refused=True)
        raise
    finally:
        _MEETING.reset(token)


def with_all_ranks(forward: Function) -> Function:
    """The `forward` of a model, `together` within `sequence_parallel`."""

    @wraps(forward)
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        context = sharding()
        if context is None:
            return forward(self, *arguments, **named)
        given = dict(zip(list(inspect.signature(forward).parameters)[1:], arguments, strict=False)) | named
        tokens = next((given[name] for name in ("input_ids", "inputs_embeds") if given.get(name) is not None), None)
        with together(context, given, self.device):
            check_targets("shift_labels", given.get("shift_labels"), tokens)
            return forward(self, *arguments, **named)

    return cast(Function, call)


def check_targets(name: str, targets: Tensor | None, tokens: Tensor | None) -> None:
    """Raises ConfigurationError for what tokens [B, N, ...] are compared with, if it is not [B, N]: a loss would find
    out when the ranks have met."""
    if targets is not None and tokens is not None and targets.shape != tokens.shape[:2]:
        raise ConfigurationError(
            f"{name} must be as the tokens of this rank, [batch, tokens] = {list(tokens.shape[:2])}, got"
            f" {list(targets.shape)}"
        )


def _meet(context: SequenceParallel, numbers: Sequence[int], device: torch.device, *, refused: bool) -> Integers:
    """[ranks, numbers]: what each rank says. Raises ConfigurationError where one was refused."""
    if (meeting := _MEETING.get()) is not None:
        meeting.is_over = True
    said = gather_numbers([*numbers, int(refused)], context.group, device)
    if said[:, -1].any() and not refused:
        rank = int(said[:, -1].argmax())
        raise ConfigurationError(f"rank {rank} was refused its arguments; its own message says why")
    return said[:, :-1]


class ShardedRows(NamedTuple):
    """What a rank knows of rows of which it holds B x N columns.

    shards     who holds which columns
    positions  int64 [B or 1, N]: where the columns of this rank stand, -1 for padding
    real       bool [B, N], and lengths: how many tokens of each row are real, on all ranks; None where all are
    documents  the lengths of packed documents, through all whole rows laid end to end; None where rows are sequences
    """

    context: SequenceParallel
    shards: Shards
    positions: Tensor
    real: Tensor | None = None
    lengths: tuple[int, ...] | None = None
    documents: tuple[int, ...] | None = None

    @property
    def longest(self) -> int:
        """One more than the greatest position of all ranks."""
        if self.documents is not None:
            return max(self.documents, default=0)
        return self.shards.length if self.lengths is None else max(self.lengths, default=0)

    def mixer_arguments(
        self, by_length: Sequence[bool], fourier: Sequence[bool], front: int, needs_padding: bool
    ) -> list[dict[str, Any]]:
        """What each mixer is told, as `Packing.mixer_arguments` says it; the first rank holds `front` more tokens."""
        bounds = (0, *(bound + front for bound in self.shards.bounds[1:]))
        known: dict[str, Any] = {"sharded": replace(self.context, known=Shards(bounds))}
        if self.documents is not None:
            return [known | {"documents": self.documents}] * len(by_length)
        if self.real is None or self.lengths is None or not needs_padding:
            return [known] * len(by_length)
        own_front = front if self.context.rank == 0 else 0
        real = torch.cat([self.real.new_ones(len(self.real), own_front), self.real], dim=1)
        lengths = [length + front for length in self.lengths]
        told = [
            {"lengths": lengths} if any(which) else {"key_mask": real} for which in zip(by_length, fourier, strict=True)
        ]
        return [known | one for one in told]


def find_rows(
    context: SequenceParallel,
    tokens: Tensor,
    attention_mask: Tensor | None,
    position_ids: Tensor | None = None,
    cu_seqlens: Tensor | Sequence[int] | None = None,
) -> ShardedRows:
    """What all ranks know of their rows together, of which this one holds tokens [B, N, ...].

    attention_mask [B, N] and position_ids [B or 1, N] are those of this rank's tokens, cu_seqlens those of whole rows.
    Raises ConfigurationError, on all ranks, for ranks that do not say the same, and for padding before a token.
    """
    batch, own = tokens.shape[:2]
    real = None if attention_mask is None else real_tokens(attention_mask, batch, 0, own)
    meeting = _MEETING.get()
    given = attention_mask is not None, position_ids is not None, cu_seqlens is not None
    labels = (False,) * 3 if meeting is None else meeting.labels
    said = _meet(context, [own, batch, *given, *labels], tokens.device, refused=False)
    _refuse_differences(said)
    shards = Shards.of_sizes(tuple(said[:, 0].tolist()))
    positions = torch.arange(*shards.range(context.rank), device=tokens.device)[None]
    rows = ShardedRows(context, shards, positions)
    lengths = None if real is None else _lengths(context, real, shards)
    documents = _documents(context, shards, position_ids, cu_seqlens, tokens, lengths)
    if documents is not None:
        own_columns = slice(*shards.range(context.rank))
        return rows._replace(positions=documents.positions[:, own_columns], documents=documents.sizes)
    if real is None or lengths is None:
        return rows
    return rows._replace(positions=torch.where(real, positions, -1), real=real, lengths=lengths)


def _refuse_differences(said: Integers) -> None:
    """Raises ConfigurationError, which names what differs, for ranks with other rows or arguments than the first."""
    others, columns = np.nonzero(said[:, 1:] != said[0, 1:])
    if not len(others):
        return
    rank, column = others[0], columns[0] + 1
    of_rank = {0: said[0, column], rank: said[rank, column]}
    told = [
        f"{number if column == 1 else 'given' if number else 'left out'} on rank {where}"
        for where, number in of_rank.items()
    ]
    raise ConfigurationError(
        f"ranks of a sharded sequence must give the same rows and arguments: {_NUMBERS[column]}: {', '.join(told)}"
    )


def _lengths(context: SequenceParallel, real: Tensor, shards: Shards) -> tuple[int, ...] | None:
    """How many tokens of each row are real; None where all are. Raises ConfigurationError for padding before one."""
    counts = real.sum(dim=1)
    is_prefix = (real == (torch.arange(real.shape[1], device=real.device) < counts[:, None])).all()
    said = gather_numbers([*counts.tolist(), int(is_prefix)], context.group, real.device)
    held, sizes = said[:, :-1], np.array(shards.sizes)[:, None]
    total = held.sum(axis=0)
    filled = np.clip(total - np.array(shards.bounds[:-1])[:, None], 0, sizes)
    if not said[:, -1].all() or (held != filled).any():
        raise ConfigurationError(
            "attention_mask has padding before a token, and within sequence_parallel padding comes last in its row: pad"
            " on the right"
        )
    return None if (total == shards.length).all() else tuple(total.tolist())


def _documents(
    context: SequenceParallel,
    shards: Shards,
    position_ids: Tensor | None,
    cu_seqlens: Tensor | Sequence[int] | None,
    tokens: Tensor,
    lengths: tuple[int, ...] | None,
) -> PackedDocuments | None:
    """Those of whole rows, as `find_documents` finds them where rows lie on one device."""
    batch, own = tokens.shape[:2]
    if position_ids is not None:
        fits = position_ids.shape in ((batch, own), (1, own)) and not position_ids.is_floating_point()
        # All ranks call this, also where this one's positions are refused then.
        rows = position_ids.expand(batch, own) if fits else torch.full((batch, own), -1, device=tokens.device)
        position_ids = all_tokens(rows.to(tokens.device), shards, context.group)
    real = None if lengths is None else torch.arange(shards.length) < torch.tensor(lengths)[:, None]
    whole = tokens.new_empty(1).expand(batch, shards.length)
    return find_documents(position_ids, cu_seqlens, real, whole)


def everywhere(columns: Tensor) -> Tensor:
    """[B, N, ...] of whole rows from those of each rank; as it is where rows lie on one device. Differentiable."""
    context, shards = sharding(), shards_of(columns)
    return columns if context is None or shards is None else all_tokens(columns, shards, context.group)
