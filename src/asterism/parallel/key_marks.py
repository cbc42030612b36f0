"""The marks of keys: whether they may be read, and their segment."""

from typing import NamedTuple

import torch
from torch import Tensor

from asterism.parallel.indices import TokenIndices


class Marks(NamedTuple):
    """key_mask bool [B, N] and segments integers [B, N]; None for what was not given."""

    key_mask: Tensor | None = None
    segments: Tensor | None = None

    @property
    def rows(self) -> Tensor | None:
        """The bytes of both, uint8 [B, 1, N, bytes], as they go to other ranks; None if there are none."""
        given = [mark.contiguous()[..., None].view(torch.uint8) for mark in self if mark is not None]
        return torch.cat(given, dim=-1)[:, None] if given else None

    def read(self, rows: Tensor) -> "Marks":
        """Marks of other keys like these, from their bytes."""
        rows, begin, found = rows[:, 0], 0, []
        for mark in self:
            end = begin + (0 if mark is None else mark.element_size())
            found.append(
                None
                if mark is None
                else rows[..., begin:end].clone(memory_format=torch.contiguous_format).view(mark.dtype)[..., 0]
            )
            begin = end
        return Marks(*found)

    def take(self, indices: TokenIndices) -> "Marks":
        return Marks(*(None if mark is None else indices.take(mark[:, None])[:, 0] for mark in self))

    def readable(self, batch: int, keys: int, device: torch.device) -> Tensor:
        """key_mask, of all keys where it was not given."""
        return torch.ones(batch, keys, dtype=torch.bool, device=device) if self.key_mask is None else self.key_mask
