"""How hidden states are returned: where the tokens of the batch stand, whatever their order inside."""

from typing import NamedTuple

import torch

from asterism.layers.padding import Packing


class SlotColumns(NamedTuple):
    """Blocks work on slots, and callers know columns.

    front    how many global tokens stand before the tokens of the batch
    packing  how padding is brought behind the real tokens; None where it is not
    real     bool [B, N]: where tokens stay in their columns, which are real; None where all are
    """

    front: int
    packing: Packing | None
    real: torch.Tensor | None

    def by_column(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states as they are returned."""
        hidden = hidden[:, self.front :] if self.front else hidden
        if self.real is not None:
            return hidden.masked_fill(~self.real[..., None], 0)
        return hidden if self.packing is None else self.packing.unpack(hidden)

    def by_slot(self, returned: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """`hidden` made of what is returned of it, so that the gradient passes through the tensor that a caller holds.

        Only slots of padding, which no real token reads, change their contents.
        """
        tokens = returned if self.packing is None else self.packing.pack(returned)
        return torch.cat([hidden[:, : self.front], tokens], dim=1) if self.front else tokens
