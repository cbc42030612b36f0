"""What ranks that share rows tell each other, once per call of a model, and how none waits for one that was refused.

All ranks must know how many tokens each holds, how many of a row are real, and where packed documents begin. They say
so in one exchange of a few numbers. A rank whose own arguments are refused before says so in their place, so that all
ranks raise an error, and none waits for it.
"""

import inspect
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from asterism.compiler.devices import Shards
from asterism.errors import ConfigurationError
from asterism.kernels.packed import read_bounds
from asterism.layers.rows.documents import PackedDocuments, find_documents
from asterism.layers.rows.padding import real_tokens
from asterism.parallel import SequenceParallel, sharding
from asterism.parallel.collectives import all_tokens, gather_numbers
from asterism.parallel.telling import refuse_differences, tell, tell_refusal
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
"""What a rank says of a call, in this order; all but the first are equal on all ranks. Of the arguments after `rows` it
says whether they are given, and of `cu_seqlens` a digest."""

_ROWS = 64
"""Of how many rows the first exchange counts the real tokens; what is more takes a second one."""

_ROOM = len(_NUMBERS) + _ROWS
"""How many numbers a rank says in it, whatever the call: ranks that are given other arguments must meet."""

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
def together(given: Mapping[str, Any], device: torch.device) -> Iterator[None]:
    """Around a call of a model with these arguments, by their names, in which ranks `meet`.

    A rank that raises an error before says so to the others, which then raise one, too.
    """
    context, around = sharding(), _MEETING.get()
    if context is None or (around is not None and not around.is_over):  # a part of a model, whose call is under way
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
                tell_refusal(context, _ROOM, device)
        raise
    finally:
        _MEETING.reset(token)


def with_all_ranks(forward: Function) -> Function:
    """The `forward` of a model, `together` within `sequence_parallel`, where `check_numbers(given)` of the model raises
    an error for arguments, by their names, that could not be computed with."""

    @wraps(forward)
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        if sharding() is None:
            return forward(self, *arguments, **named)
        given = dict(zip(list(inspect.signature(forward).parameters)[1:], arguments, strict=False)) | named
        with together(given, self.device):
            self.check_numbers(given)
            return forward(self, *arguments, **named)

    return cast(Function, call)


def check_numbers(
    name: str,
    numbers: Tensor | None,
    *,
    shape: Sequence[int] | None = None,
    below: int | None = None,
    ignored: int | None = None,
) -> None:
    """Refuse numbers of this rank that a table or a loss would refuse when the ranks have met: the others would wait.

    numbers  the argument of that name, [...]: of `shape`, if one is given; of an integer dtype and in [0, below), or
             `ignored`, if `below` is given

    Raises ConfigurationError.
    """
    if numbers is None:
        return
    if shape is not None and numbers.shape != torch.Size(shape):
        raise ConfigurationError(
            "shape-of-tokens", f"{name} must be {list(shape)} as the tokens of this rank are, got {list(numbers.shape)}"
        )
    if below is None:
        return
    if numbers.is_floating_point() or numbers.is_complex():
        raise ConfigurationError("not-whole-numbers", f"{name} must be whole numbers, got {numbers.dtype}")
    wrong = (numbers < 0) | (numbers >= below)
    if ignored is not None:
        wrong &= numbers != ignored
    if wrong.any():
        raise ConfigurationError(
            "numbers-out-of-range", f"{name} must be from 0 to {below - 1}, got {int(numbers[wrong][0])}"
        )


class Said(NamedTuple):
    """What a rank says of its rows: tokens [B, N, ...], and what else `find_rows` is given."""

    tokens: Tensor
    attention_mask: Tensor | None
    position_ids: Tensor | None
    cu_seqlens: Tensor | Sequence[int] | None


class Agreed(NamedTuple):
    """What all ranks know of their rows.

    shards     who holds which columns
    real       bool [B, N] of this rank, and lengths: how many of each whole row are real; None where all are
    documents  of whole rows
    """

    shards: Shards
    real: Tensor | None
    lengths: tuple[int, ...] | None
    documents: PackedDocuments | None


def meet(context: SequenceParallel, said: Said) -> Agreed:
    """What the ranks know together. Raises ConfigurationError, on all of them, where they do not say the same, for
    padding before a token, and where one was refused."""
    tokens = said.tokens
    batch, own = tokens.shape[:2]
    real = None if said.attention_mask is None else real_tokens(said.attention_mask, batch, 0, own)
    bounds = None if said.cu_seqlens is None else read_bounds(said.cu_seqlens, tokens.device)
    meeting = _MEETING.get()
    # Bounds are of whole rows, so all ranks must have the same: then all of them refuse them, or none.
    given = real is not None, said.position_ids is not None, 0 if bounds is None else _digest(bounds)
    labels = (False,) * 3 if meeting is None else meeting.labels
    counts = [] if real is None else _counts(real)
    if meeting is not None:
        meeting.is_over = True
    told = tell(context, [own, batch, *given, *labels, *counts[:_ROWS]], _ROOM, tokens.device)
    refuse_differences(told[:, 1 : len(_NUMBERS)], _NUMBERS[1:], _word)
    shards = Shards.of_sizes(tuple(told[:, 0].tolist()))
    lengths = None
    if real is not None:
        held = told[:, len(_NUMBERS) : len(_NUMBERS) + min(batch, _ROWS)]
        if batch > _ROWS:
            held = np.hstack([held, gather_numbers(counts[_ROWS:], context.group, tokens.device)])
        lengths = _lengths(held, shards)
    documents = _documents(context, shards, said._replace(cu_seqlens=bounds), lengths)
    return Agreed(shards, None if lengths is None else real, lengths, documents)


def _word(name: str, number: int) -> str:
    if name == "rows":
        return str(number)
    return "given" if number else "left out"


def _digest(bounds: Sequence[int]) -> int:
    """A number above 0 that is another for other bounds."""
    return 1 + zlib.crc32(repr(tuple(bounds)).encode())


def _counts(real: Tensor) -> list[int]:
    """How many tokens of each row bool [B, N] are real; -1 where padding stands before one."""
    counts = real.sum(dim=1)
    is_prefix = (real == (torch.arange(real.shape[1], device=real.device) < counts[:, None])).all(dim=1)
    found: list[int] = torch.where(is_prefix, counts, -1).tolist()
    return found


def _lengths(held: Integers, shards: Shards) -> tuple[int, ...] | None:
    """How many tokens of each row are real, of [ranks, B] that each rank holds; None where all are.

    Raises ConfigurationError for padding before one: every rank but the last that holds any must be full.
    """
    total = held.sum(axis=0)
    filled = np.clip(total - np.array(shards.bounds[:-1])[:, None], 0, np.array(shards.sizes)[:, None])
    if (held < 0).any() or (held != filled).any():
        raise ConfigurationError(
            "padding-before-token",
            "attention_mask has padding before a token, and within sequence_parallel padding comes last in its row: pad"
            " on the right",
        )
    return None if (total == shards.length).all() else tuple(total.tolist())


def _documents(
    context: SequenceParallel, shards: Shards, said: Said, lengths: tuple[int, ...] | None
) -> PackedDocuments | None:
    """Those of whole rows, as `find_documents` finds them where rows lie on one device."""
    tokens, position_ids = said.tokens, said.position_ids
    batch, own = tokens.shape[:2]
    if position_ids is not None:
        fits = position_ids.shape in ((batch, own), (1, own)) and not position_ids.is_floating_point()
        # All ranks call this, also where this one's positions are refused then.
        rows = position_ids.expand(batch, own) if fits else torch.full((batch, own), -1, device=tokens.device)
        position_ids = all_tokens(rows.to(tokens.device), shards, context.group)
    real = None if lengths is None else torch.arange(shards.length) < torch.tensor(lengths)[:, None]
    whole = tokens.new_empty(1).expand(batch, shards.length)
    return find_documents(position_ids, said.cu_seqlens, real, whole)
