"""Rows that lie on this device alone."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from asterism import kernels
from asterism.kernels.fourier import fourier, fourier_of_rows
from asterism.kernels.merging import unread
from asterism.layers.index import Index, index_loss
from asterism.layers.rows.padding import Packing, cut_into_rows, lay_end_to_end
from asterism.layers.rows.rows import Rows, in_documents
from asterism.layers.rows.trees import refuse_distances
from asterism.patterns import Pattern
from asterism.patterns.forest import Forest


@dataclass(eq=False)
class RowsHere(Rows):
    """As Rows says, and

    packing  how the real tokens of a padded batch are brought to the front of their rows; None where they stay
    mask     bool [B, N]: which columns of the batch, as the caller knows them, are real; None where all are
    seen     how many columns a cache has seen before these
    """

    packing: Packing | None = None
    mask: Tensor | None = None
    seen: int = 0

    def pack(self, columns: Tensor) -> Tensor:
        return columns if self.packing is None else self.packing.pack(columns)

    def by_column(self, hidden: Tensor) -> Tensor:
        return hidden if self.packing is None else self.packing.unpack(hidden)

    def inside(self, front: int, *, told: bool, by_length: bool) -> "RowsHere":
        real = self.packing.real if told and self.packing is not None else None
        if real is not None and front:
            real = torch.cat([real.new_ones(len(real), front), real], dim=1)
        lengths = tuple(real.sum(dim=1).tolist()) if by_length and real is not None else None
        return replace(self, positions=self._behind(front, front), real=real, lengths=lengths, front=front)

    def longest(self, limit: int) -> int:
        columns = self.seen + self.positions.shape[1]
        return columns if columns <= limit else int(self.positions.max()) + 1

    # --- attention ---

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, index: Index | None = None, **options: Any
    ) -> Any:
        sizes = self._documents_under(pattern, q.shape[2])
        if sizes is None:
            key_mask = None if self._goes_by_length(pattern) else self.real
            if index is not None:
                options["choice"] = kernels.select(*index, pattern, key_mask=key_mask)
            return kernels.attend(q, k, v, pattern, key_mask=key_mask, segments=self.segments, **options)
        if isinstance(sizes, Forest):
            refuse_distances(options.get("terms"))
        elif pattern.chooses:
            return self._one_by_one((q, k, v), pattern, sizes, index, **options)
        segments = None if self.segments is None else self.segments.reshape(1, -1)
        q_laid, k_laid, v_laid = map(lay_end_to_end, (q, k, v))
        laid = kernels.attend(q_laid, k_laid, v_laid, in_documents(pattern, sizes), segments=segments, **options)
        if isinstance(laid, tuple):
            out, lse = laid
            return cut_into_rows(out, len(q)), cut_into_rows(lse[..., None], len(q))[..., 0]
        return cut_into_rows(laid, len(q))

    def _one_by_one(
        self,
        heads: tuple[Tensor, ...],
        pattern: Pattern,
        sizes: Sequence[int],
        index: Index | None = None,
        **options: Any,
    ) -> Any:
        """`attend` for documents of these sizes, laid end to end, negative ones of padding: each chooses for itself."""
        q, with_lse = heads[0], options.pop("return_lse", False)
        if self.segments is not None:
            options["segments"] = self.segments.reshape(1, -1)  # refused
        outs, lses = [], []
        for size, (q_here, k_here, v_here, *own) in _split(sizes, *heads, *(index or ())):
            if size > 0:
                choice = kernels.select(own[0], own[1], pattern) if own else None
                out, lse = kernels.attend(q_here, k_here, v_here, pattern, return_lse=True, choice=choice, **options)
            else:
                out, lse = unread(q_here, k_here, v_here)
            outs.append(out)
            lses.append(lse)
        out = cut_into_rows(torch.cat(outs, dim=2), len(q))
        if not with_lse:
            return out
        return out, cut_into_rows(torch.cat(lses, dim=2)[..., None], len(q))[..., 0]

    def index_loss(self, index: Index, q: Tensor, k: Tensor, pattern: Pattern, scale: float | None) -> Tensor:
        sizes = self._documents_under(pattern, q.shape[2])
        if sizes is None:
            real = self.positions >= 0
            each = index_loss(index, q, k, pattern, scale=scale, key_mask=self.real).mean(dim=1)
            real = real.expand(each.shape)
            return each.masked_fill(~real, 0).sum() / real.sum().clamp(min=1)
        assert not isinstance(sizes, Forest), "a choice has no trees"
        lost = [
            index_loss(Index(*own), q_here, k_here, pattern, scale=scale).mean(dim=1)
            for size, (q_here, k_here, *own) in _split(sizes, q, k, *index)
            if size > 0
        ]
        return torch.cat(lost, dim=1).mean() if lost else q.new_zeros(())

    def attend_source(
        self, q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, source: Rows | None, **options: Any
    ) -> Tensor:
        # The first token is number 0, also with a new cache; that of a row is its first real one.
        key_mask = None if source is None else source.real
        mixed: Tensor = kernels.attend(q, k, v, pattern, key_mask=key_mask, query_offset=0, **options)
        return mixed

    def columns_of(self, places: Sequence[int]) -> list[int] | None:
        columns = [place for place in places if place < self.positions.shape[1]]
        return columns or None

    def attend_everything(self, q: Tensor, k: Tensor, v: Tensor, places: Sequence[int], **options: Any) -> Tensor:
        mixed: Tensor = kernels.attend(q, k, v, "dense()", key_mask=self.real, **options)
        return mixed

    # --- other mixers ---

    def fourier(self, hidden: Tensor) -> Tensor:
        return fourier(hidden) if self.real is None else fourier_of_rows(hidden, self.real)

    def linear(self, hidden: Tensor, over_tokens: Tensor) -> Tensor:
        count = hidden.shape[1]
        over_tokens = over_tokens[:count, :count].to(hidden.dtype)
        if self.real is None:
            return over_tokens @ hidden
        real = self.real.unsqueeze(-1)
        return (over_tokens @ hidden.masked_fill(~real, 0)).masked_fill(~real, 0)

    # --- what heads ask of whole rows ---

    def first(self, hidden: Tensor) -> Tensor:
        if self.mask is None:
            return hidden[:, 0]
        return hidden[torch.arange(len(hidden), device=hidden.device), self.mask.int().argmax(dim=1)]

    def mean(self, hidden: Tensor) -> Tensor:
        if self.mask is None:
            return hidden.mean(dim=1)
        real = self.mask[..., None]
        total = hidden.masked_fill(~real, 0).sum(dim=1, dtype=torch.promote_types(hidden.dtype, torch.float32))
        return (total / real.sum(dim=1).clamp(min=1)).to(hidden.dtype)

    def everywhere(self, columns: Tensor) -> Tensor:
        return columns

    def total(self, part: Tensor) -> Tensor:
        return part

    def once(self, compute: Callable[[], Tensor]) -> Tensor:
        return compute()

    def divisor(self, count: Callable[[], Tensor]) -> Tensor | None:
        return None

    def bind(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return hidden


def _split(sizes: Sequence[int], *heads: Tensor) -> Iterator[tuple[int, tuple[Tensor, ...]]]:
    """The sizes of documents, negative ones of padding, and the part of each in heads [B, H, N, D] laid end to end."""
    laid = [lay_end_to_end(x).split([abs(size) for size in sizes], dim=2) for x in heads]
    return zip(sizes, zip(*laid, strict=True), strict=True)
