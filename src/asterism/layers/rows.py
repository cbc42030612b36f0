"""Rows of a batch at their own lengths, for patterns whose rule depends on the length."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F


def by_length(lengths: Sequence[int], tokens: int, compute: Callable[[list[int], int], torch.Tensor]) -> torch.Tensor:
    """[B, H, tokens, D]: `compute(rows, length)` gives [rows, H, length, D] for rows of one length; 0 behind it."""
    order: list[int] = []
    parts = []
    for length in sorted(set(lengths)):
        rows = [row for row, own in enumerate(lengths) if own == length]
        order += rows
        parts.append(F.pad(compute(rows, length), (0, 0, 0, tokens - length)))
    together = torch.cat(parts)
    return together[torch.tensor(order, device=together.device).argsort()]
