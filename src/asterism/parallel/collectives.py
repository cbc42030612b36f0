"""Exchanges between processes: the only module that calls `torch.distributed`.

Every function takes the group of processes that call it, all of them and in the same order; None stands for all that
have joined. What autograd calls on the way back is the same on all ranks, too.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup as ProcessGroup
from torch.distributed.device_mesh import DeviceMesh as DeviceMesh

from asterism.compiler.devices import Shards
from asterism.patterns.intervals import Integers

OUTSIDE: object = dist.GroupMember.NON_GROUP_MEMBER
"""What stands for a group in a process that is not in it."""


def rank_of(group: ProcessGroup | None = None) -> int:
    """Which process of the group this one is; negative where it is none of them."""
    return dist.get_rank(group)


def size_of(group: ProcessGroup | None = None) -> int:
    """How many processes are in the group."""
    return dist.get_world_size(group)


def has_processes() -> bool:
    """Whether several processes have joined."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def everyone() -> ProcessGroup:
    """The group of all processes that have joined."""
    group: Any = dist.group.WORLD
    assert group is not None, "asked only where processes have joined"
    return cast(ProcessGroup, group)


def neighbours(size: int, timeout: timedelta) -> ProcessGroup:
    """A new group of this process and its neighbours: the first `size` processes, or the next, and so on. All processes
    that have joined call it."""
    group, _ = dist.new_subgroups(size, timeout=timeout)
    return group


def leave(group: ProcessGroup) -> None:
    """End a group that `neighbours` made."""
    dist.destroy_process_group(group)


def meeting_device(group: ProcessGroup | None, device: torch.device | None) -> torch.device:
    """Where ranks exchange numbers: on the CPU, if the group has a backend for it, else where the tensors are."""
    kinds = [backend.partition(":")[0] for backend in dist.distributed_c10d.get_backend_config(group).split(",")]
    if "cpu" in kinds:
        return torch.device("cpu")
    return device if device is not None and device.type in kinds else torch.device(kinds[0])


def all_gather(own: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """[ranks, ...]: what each rank gave, all of them tensors of one shape and dtype, where `own` lies."""
    everyone = own.new_empty(size_of(group), *own.shape)
    dist.all_gather(list(everyone.unbind()), own, group=group)
    return everyone


def gather_numbers(
    numbers: Sequence[int], group: ProcessGroup | None = None, device: torch.device | None = None
) -> Integers:
    """int64 [ranks, numbers]: what each rank gave; all give equally many. `device` is where tensors of the call lie."""
    own = torch.tensor(list(numbers), dtype=torch.int64, device=meeting_device(group, device))
    found: Integers = all_gather(own, group).cpu().numpy()
    return found


def begin_all_to_all(wire: Tensor, received: Sequence[int], sent: Sequence[int], group: ProcessGroup) -> Tensor:
    """Sends `sent[r]` numbers of the wire [numbers], of any dtype, to each rank r, and gives what comes, `received[r]`
    numbers from each: a wire that has no values before `wait`."""
    name = group.group_name
    found: Tensor = torch.ops._c10d_functional.all_to_all_single(wire, list(received), list(sent), name)
    return found


def wait(wire: Tensor) -> Tensor:
    """The same wire [numbers], of any dtype, when all of it is there."""
    found: Tensor = torch.ops._c10d_functional.wait_tensor(wire)
    return found


def broadcast(tensor: Tensor, group: ProcessGroup | None = None) -> None:
    """Overwrites the tensor [...] of every rank, of any dtype, with that of the first."""
    dist.broadcast(tensor, group_src=0, group=group)


def add_up(tensor: Tensor, group: ProcessGroup | None = None) -> None:
    """Overwrites the tensor [...] of every rank, of any dtype, with the sum of all."""
    dist.all_reduce(tensor, group=group)


def take_greatest(tensor: Tensor, group: ProcessGroup | None = None) -> None:
    """Overwrites the numbers [...] of every rank, of any dtype, with the greatest of all."""
    dist.all_reduce(tensor, dist.ReduceOp.MAX, group=group)


def whole(part: Tensor, group: ProcessGroup) -> Tensor:
    """The sum of what all ranks give, [...] of any floating dtype, equal on all of them; its gradient is that of this
    rank's part.

    So a loss that is shared out over ranks has the value of the whole on each, and the gradients that backward passes
    leave on the ranks add up to those of the whole.
    """
    total: Tensor = _Whole.apply(part, group)  # type: ignore[no-untyped-call]
    return total


def summed(part: Tensor, group: ProcessGroup) -> Tensor:
    """The sum of what all ranks give, [...] of any floating dtype, on which all ranks go on computing: its gradients
    are summed over ranks."""
    total: Tensor = _Summed.apply(part, group)  # type: ignore[no-untyped-call]
    return total


def all_tokens(own: Tensor, shards: Shards, group: ProcessGroup) -> Tensor:
    """[B, N of this rank, ...] -> [B, N of all, ...], of any dtype, for what is small compared with a token's keys;
    differentiable."""
    first, past = shards.range(rank_of(group))
    before, after = (own.new_zeros(own.shape[0], count, *own.shape[2:]) for count in (first, shards.length - past))
    return summed(torch.cat([before, own, after], dim=1), group)


def counted_once(value: Tensor, group: ProcessGroup) -> Tensor:
    """This rank's part of what all ranks know, [...] of any floating dtype: the first rank's is the value, the others'
    are `nothing_of` it."""
    return value if rank_of(group) == 0 else nothing_of(value)


def nothing_of(value: Tensor) -> Tensor:
    """Zeros in place of the value, [...] of any floating dtype, whose gradient is 0, too, instead of None."""
    return value.masked_fill(torch.ones_like(value, dtype=torch.bool), 0)


class _Whole(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, part: Tensor, group: ProcessGroup) -> Tensor:
        return _sum(part, group)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, part: Tensor, group: ProcessGroup) -> Tensor:
        context.group = group
        return _sum(part, group)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _sum(gradient, context.group), None


def _sum(part: Tensor, group: ProcessGroup) -> Tensor:
    total = part.detach().clone(memory_format=torch.contiguous_format)
    add_up(total, group)
    return total
