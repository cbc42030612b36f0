"""Rows on several devices: every rank holds the same stretch of columns of all rows."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asterism import parallel
from asterism.compiler.devices import Shards
from asterism.errors import ConfigurationError
from asterism.layers.rows.padding import documents_by_row
from asterism.layers.rows.rows import Rows, in_documents
from asterism.parallel import SequenceParallel
from asterism.parallel.agreement import agree, exchanging
from asterism.parallel.collectives import all_tokens, counted_once, nothing_of, summed, whole
from asterism.parallel.context import resumed
from asterism.parallel.fourier import fourier_of_rows
from asterism.patterns import Pattern
from asterism.patterns.forest import Forest


@dataclass(eq=False, kw_only=True)
class ShardedRows(Rows):
    """As Rows says, of which `lengths` and `documents` are those of whole rows, and

    context  which processes hold them
    shards   who holds which of their columns, learned tokens included
    """

    context: SequenceParallel
    shards: Shards

    @property
    def columns(self) -> Tensor:
        """int64 [1, N]: which columns of whole rows are on this rank."""
        return torch.arange(*self.context.range(self.shards), device=self.positions.device)[None]

    def pack(self, columns: Tensor) -> Tensor:
        return columns

    def by_column(self, hidden: Tensor) -> Tensor:
        return hidden if self.real is None else hidden.masked_fill(~self.real[..., None], 0)

    def inside(self, front: int, *, told: bool, by_length: bool) -> "ShardedRows":
        here = front if self.context.is_first else 0  # the first rank holds all of them
        positions = self._behind(front, here)
        shards = Shards((0, *(bound + front for bound in self.shards.bounds[1:])))
        rows = replace(self, positions=positions, shards=shards, front=here, real=None, lengths=None)
        if self.documents is not None or self.real is None or self.lengths is None or not told:
            return rows
        real = torch.cat([self.real.new_ones(len(self.real), here), self.real], dim=1)
        return replace(rows, real=real, lengths=tuple(length + front for length in self.lengths))

    def longest(self, limit: int) -> int:
        if self.documents is not None:
            return max(_lengths(self.documents), default=0)
        return self.shards.length if self.lengths is None else max(self.lengths, default=0)

    @contextmanager
    def _exchanging(self, call: str, own: Tensor) -> Iterator[None]:
        """Around an exchange of tensors [B, N, ...] or of scalars like this rank's `own`, on which all ranks agree."""
        shape = [own.shape[0], *own.shape[2:]] if own.ndim else []  # without tokens, of which ranks may have any number
        words = {"call": call, "shape": str(shape), "dtype": str(own.dtype)}
        agree(self.context, words, (0, 0), own.device, wants_numbers=False)
        with exchanging():
            yield

    # --- attention ---

    @contextmanager
    def _among_ranks(self) -> Iterator[None]:
        """The context again: blocks that are computed a second time, in the backward pass, are outside of it."""
        with resumed(self.context):
            yield

    def attend(self, q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, **options: Any) -> Any:
        options.pop("index", None)  # a pattern that chooses is refused
        options |= {"queries": self.shards, "keys": self.shards}
        sizes = self._documents_under(pattern, self.shards.length)
        with self._among_ranks():
            if sizes is not None:
                return self._attend_by_row((q, k, v), pattern, _lengths(sizes), options)
            key_mask = None if self._goes_by_length(pattern) else self.real
            return parallel.attend(q, k, v, pattern, key_mask=key_mask, segments=self.segments, **options)

    def _attend_by_row(
        self, heads: tuple[Tensor, ...], pattern: Pattern, sizes: tuple[int, ...], options: dict[str, Any]
    ) -> Any:
        """Rows that each lie on all ranks cannot be laid end to end: rows of equal documents are one call. All ranks
        know the documents of all rows, and make the same calls."""
        batch, terms = len(heads[0]), options.get("terms")
        found: dict[int, tuple[Tensor, ...]] = {}
        for own, rows in documents_by_row(sizes, batch, self.shards.length).items():
            if terms is not None and terms.dropout is not None and len(rows) < batch:
                raise ConfigurationError(  # what is dropped goes by a row's number in its call
                    "sharded-dropout-rows",
                    "dropout inside attention within sequence_parallel needs rows of equal documents and lengths: give"
                    " the batch one row, or set attention_dropout to 0",
                )
            segments = None if self.segments is None else self.segments[rows]
            q, k, v = (x[rows] for x in heads)
            done = parallel.attend(q, k, v, in_documents(pattern, own), segments=segments, **options)
            parts = done if isinstance(done, tuple) else (done,)
            found |= dict(zip(rows, zip(*parts, strict=True), strict=True))
        stacked = tuple(torch.stack(part) for part in zip(*(found[row] for row in range(batch)), strict=True))
        return stacked if options.get("return_lse") else stacked[0]

    def attend_source(
        self, q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, source: Rows | None, **options: Any
    ) -> Tensor:
        with self._among_ranks():
            if isinstance(source, ShardedRows):
                options |= {"key_mask": source.real, "keys": source.shards}
            else:
                options["keys"] = self.context.shards(k.shape[2], k.device)
            mixed: Tensor = parallel.attend(q, k, v, pattern, queries=self.shards, **options)
            return mixed

    def columns_of(self, places: Sequence[int]) -> list[int] | None:
        first, past = self.context.range(self.shards)
        if all(place >= self.shards.length for place in places):
            return None
        return [place - first for place in places if first <= place < past]

    def attend_everything(self, q: Tensor, k: Tensor, v: Tensor, places: Sequence[int], **options: Any) -> Tensor:
        there = np.array([place for place in places if place < self.shards.length], np.int64)
        owners = np.bincount(self.shards.owners(there), minlength=self.shards.devices)
        options |= {"queries": Shards.of_sizes(tuple(owners.tolist())), "keys": self.shards}
        with self._among_ranks():
            mixed: Tensor = parallel.attend(q, k, v, "dense()", key_mask=self.real, **options)
            return mixed

    # --- other mixers ---

    def fourier(self, hidden: Tensor) -> Tensor:
        with self._exchanging("a Fourier transform", hidden):
            return fourier_of_rows(self.context, hidden, self.shards, self.real, self.lengths)

    def linear(self, hidden: Tensor, over_tokens: Tensor) -> Tensor:
        raise ConfigurationError(
            "linear-sharded",
            "linear() mixes a row by a matrix, and cannot mix rows that several devices share; train without sequence"
            " parallelism, or with fourier()",
        )

    # --- what heads ask of whole rows ---

    def first(self, hidden: Tensor) -> Tensor:
        return self._mean_of(hidden, self.columns[0] == 0)

    def mean(self, hidden: Tensor) -> Tensor:
        return self._mean_of(hidden, hidden.new_ones(hidden.shape[1], dtype=torch.bool))

    def _mean_of(self, hidden: Tensor, columns: Tensor) -> Tensor:
        """[B, C]: the mean over those columns bool [N] of this rank that are real, of all ranks. Every rank adds what
        it holds, also nothing, so that all of them are asked for gradients."""
        chosen = columns.expand(hidden.shape[:2]) if self.real is None else columns & self.real
        wide = torch.promote_types(hidden.dtype, torch.float32)
        with self._exchanging("a mean of hidden states", hidden):
            total = summed(hidden.masked_fill(~chosen[..., None], 0).sum(dim=1, dtype=wide), self.context.group)
            return (total / summed(chosen.sum(dim=1), self.context.group)[:, None].clamp(min=1)).to(hidden.dtype)

    def everywhere(self, columns: Tensor) -> Tensor:
        with self._exchanging("columns of whole rows", columns):
            return all_tokens(columns, self.shards, self.context.group)

    def total(self, part: Tensor) -> Tensor:
        with self._exchanging("a total", part):
            return whole(part, self.context.group)

    def once(self, compute: Callable[[], Tensor]) -> Tensor:
        return self.total(counted_once(compute(), self.context.group))

    def divisor(self, count: Callable[[], Tensor]) -> Tensor | None:
        return self.total(count())

    def bind(self, hidden: Tensor, weight: Tensor) -> Tensor:
        # A rank that computes no pair has no gradient of what only pairs read, but 0, so that ranks can add them.
        return hidden + nothing_of(weight).sum().to(hidden.dtype)


def _lengths(documents: tuple[int, ...] | Forest) -> tuple[int, ...]:
    """The lengths of documents, which are no trees: `find_rows` refuses these."""
    assert not isinstance(documents, Forest)
    return documents
