"""What ranks tell each other beside rows of attention: a few numbers, and sums over all tokens.

All ranks call each of these, in the same order; what autograd calls on the way back is the same on all ranks, too.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from asterism.compiler.devices import Shards
from asterism.parallel.context import SequenceParallel
from asterism.patterns.intervals import Integers


def gathered(context: SequenceParallel, own: Tensor) -> Tensor:
    """[ranks, numbers]: what each rank gave, all of them equally many numbers of one dtype, where `own` lies."""
    everyone = own.new_empty(context.ranks, len(own))
    dist.all_gather(list(everyone.unbind()), own, group=context.group)
    return everyone


def gather_numbers(context: SequenceParallel, numbers: Sequence[int], device: torch.device) -> Integers:
    """int64 [ranks, numbers]: what each rank gave; all give equally many."""
    told: Integers = gathered(context, torch.tensor(list(numbers), dtype=torch.int64, device=device)).cpu().numpy()
    return told


def whole(context: SequenceParallel, part: Tensor) -> Tensor:
    """The sum of what all ranks give, equal on all of them; its gradient is that of this rank's part.

    So a loss that is shared out over ranks has the value of the whole on each, and the gradients that backward passes
    leave on the ranks add up to those of the whole.
    """
    total: Tensor = _Whole.apply(part, context.group)  # type: ignore[no-untyped-call]
    return total


def summed(context: SequenceParallel, part: Tensor) -> Tensor:
    """The sum of what all ranks give, on which all ranks go on computing: its gradients are summed over ranks."""
    total: Tensor = _Summed.apply(part, context.group)  # type: ignore[no-untyped-call]
    return total


def all_tokens(context: SequenceParallel, own: Tensor, shards: Shards) -> Tensor:
    """[B, N of this rank, ...] -> [B, N of all, ...], for what is small beside a token's keys; differentiable."""
    first, past = shards.range(context.rank)
    before, after = (own.new_zeros(own.shape[0], count, *own.shape[2:]) for count in (first, shards.length - past))
    return summed(context, torch.cat([before, own, after], dim=1))


def counted_once(context: SequenceParallel, value: Tensor) -> Tensor:
    """This rank's part of what all ranks know: the first rank's is the value, the others' are 0 with gradient 0."""
    return value if context.rank == 0 else value.masked_fill(torch.ones_like(value, dtype=torch.bool), 0)


class _Whole(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, part: Tensor, group: dist.ProcessGroup) -> Tensor:
        return _sum(part, group)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, part: Tensor, group: dist.ProcessGroup) -> Tensor:
        context.group = group
        return _sum(part, group)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _sum(gradient, context.group), None


def _sum(part: Tensor, group: dist.ProcessGroup) -> Tensor:
    total = part.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total
