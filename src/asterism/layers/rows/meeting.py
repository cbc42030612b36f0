"""The agreement of ranks that share rows, once per call of a model.

All ranks must know how many tokens each holds, how many of a row are real, and where packed documents begin. They say
so when they agree that all of them were given the same arguments (`asterism.parallel.agreement`).
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from asterism.compiler.devices import Shards
from asterism.errors import ConfigurationError
from asterism.kernels.packed import read_bounds
from asterism.layers.rows.documents import PackedDocuments, check_positions, find_documents
from asterism.layers.rows.padding import real_tokens
from asterism.parallel import SequenceParallel, sharding
from asterism.parallel.agreement import agree, exchanging, in_words, one_call, words_of_call
from asterism.parallel.collectives import all_tokens, gather_numbers
from asterism.patterns.intervals import Integers

_SAME = (
    "labels",
    "shift_labels",
    "next_sentence_label",
    "start_positions",
    "end_positions",
    "encoder_outputs",
    "num_items_in_batch",
)
"""Arguments of models that all ranks give, or none: what they exchange goes by them."""

Function = TypeVar("Function", bound=Callable[..., Any])


@contextmanager
def with_given(model: Any, given: Mapping[str, Any]) -> Iterator[None]:
    """Around a call of a model of transformers with these arguments, by their names: where a rank that shares its rows
    with others raises an error, all of them do."""
    if (context := sharding()) is None:
        yield
        return
    words = {name: "given" for name in _SAME if given.get(name) is not None}
    if torch.is_grad_enabled() and model.training and _computes_again(model):
        words["gradient checkpointing"] = "on"  # what is computed a second time is exchanged a second time
    with one_call(context, model.device, words):
        yield


def _computes_again(model: Any) -> bool:
    """Whether layers are computed a second time in the backward pass."""
    return any(getattr(part, "gradient_checkpointing", False) for part in model.modules())


def with_all_ranks(forward: Function) -> Function:
    """The `forward` of a model as a call of all ranks that share a sequence, where `check_numbers(given)` of the model
    raises an error for arguments, by their names, that could not be computed with."""

    @wraps(forward)
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        if sharding() is None:
            return forward(self, *arguments, **named)
        given = dict(zip(list(inspect.signature(forward).parameters)[1:], arguments, strict=False)) | named
        with with_given(self, given):
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
    """Refuse, before ranks meet, numbers that a table or a loss would refuse in words of its own, or that stop a GPU.

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
    padding before a token, and where one cannot go on."""
    tokens, positions = said.tokens, said.position_ids
    batch, own = tokens.shape[:2]
    real = None if said.attention_mask is None else real_tokens(said.attention_mask, batch, 0, own)
    bounds = None if said.cu_seqlens is None else read_bounds(said.cu_seqlens, tokens.device)
    if positions is not None:
        check_positions(positions, batch, own)
    words = {
        "call": "where tokens stand",
        "rows": str(batch),
        "attention_mask": "left out" if real is None else "given",
        "position_ids": "left out" if positions is None else "given",
        # Of whole rows, so all ranks must have the same: then all of them refuse them, or none.
        "cu_seqlens": "left out" if bounds is None else in_words(bounds),
    }
    counts = [] if real is None else _counts(real)
    told = agree(context, words | words_of_call(), (own, 0), tokens.device, wants_numbers=True)
    assert told is not None, "wanted"
    shards = Shards.of_sizes(tuple(told[:, 0].tolist()))
    with exchanging():
        lengths = None if real is None else _lengths(gather_numbers(counts, context.group, tokens.device), shards)
        documents = _documents(context, shards, said._replace(cu_seqlens=bounds), lengths)
    return Agreed(shards, None if lengths is None else real, lengths, documents)


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
            "attention_mask has padding before a token, but within sequence_parallel rows must be padded on the right",
        )
    return None if (total == shards.length).all() else tuple(total.tolist())


def _documents(
    context: SequenceParallel, shards: Shards, said: Said, lengths: tuple[int, ...] | None
) -> PackedDocuments | None:
    """Those of whole rows, as `find_documents` finds them where rows lie on one device."""
    tokens, position_ids = said.tokens, said.position_ids
    batch, own = tokens.shape[:2]
    if position_ids is not None:
        rows = position_ids.expand(batch, own).to(tokens.device, torch.int64)
        position_ids = all_tokens(rows, shards, context.group)
    real = None if lengths is None else torch.arange(shards.length) < torch.tensor(lengths)[:, None]
    whole = tokens.new_empty(1).expand(batch, shards.length)
    return find_documents(position_ids, said.cu_seqlens, real, whole)
