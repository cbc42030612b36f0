"""A linear layer whose weights are read at the speed of memory while tokens are generated one by one."""

import torch
import torch.nn.functional as F
from torch import nn

_FEW = 4
"""Rows for which products and sums that a compiler fuses are faster than a matrix product of PyTorch on CPUs."""


class Linear(nn.Linear):
    """nn.Linear with a faster product of a few rows in graphs compiled for inference on a CPU.

    There the product with one row takes as long as reading the weights, and PyTorch's is three times slower than
    memory. Sums are taken in float32; they are rounded in another order.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """[..., in_features] -> [..., out_features]."""
        if torch.compiler.is_compiling() and self._reads_weights(input):
            wide = torch.promote_types(input.dtype, torch.float32)
            rows = (input.unsqueeze(-2).to(wide) * self.weight.to(wide)).sum(-1)
            return (rows if self.bias is None else rows + self.bias).to(input.dtype)
        return F.linear(input, self.weight, self.bias)

    def _reads_weights(self, x: torch.Tensor) -> bool:
        """Whether the weights are what takes time, and nothing is differentiated or of mixed dtypes."""
        on_cpu = x.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
        return on_cpu and not torch.is_grad_enabled() and x.dtype == self.weight.dtype and x.shape[:-1].numel() <= _FEW
