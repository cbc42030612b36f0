"""Within which group of processes a sequence is sharded: a context, which layers need not know.

The context belongs to the thread and task that entered it; the backward pass needs none, since what it does was written
down on the way forward.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from asterism.compiler.devices import Shards
from asterism.errors import ConfigurationError

_CURRENT: ContextVar["SequenceParallel | None"] = ContextVar("sequence_parallel", default=None)


@dataclass(frozen=True, eq=False)
class SequenceParallel:
    """The processes that hold the shards of a sequence, in order, and this process among them.

    dense_exchange  whether a pattern may be computed that moves as much as dense attention would
    """

    group: dist.ProcessGroup
    rank: int
    ranks: int
    dense_exchange: bool = False

    def shards(self, tokens: int, device: torch.device) -> Shards:
        """The shards of a sequence of which this process holds `tokens`: all ranks ask together, each for its own."""
        own = torch.tensor([tokens], device=device)
        sizes = [torch.empty_like(own) for _ in range(self.ranks)]
        dist.all_gather(sizes, own, group=self.group)
        return Shards.of_sizes(tuple(int(size) for size in sizes))


@contextmanager
def sequence_parallel(
    mesh: DeviceMesh | dist.ProcessGroup, *, dense_exchange: bool = False
) -> Iterator[SequenceParallel]:
    """Within the body, tensors of tokens hold the shard of this process: rank r of the mesh, which has one dimension,
    or of the group holds the tokens that follow those of rank r - 1.

    Raises ConfigurationError for a mesh of several dimensions (choose one: mesh["cp"]), and within another context.
    """
    if isinstance(mesh, DeviceMesh) and mesh.ndim != 1:
        raise ConfigurationError(
            f"sequence_parallel needs a mesh of one dimension, and this one has {mesh.ndim}: name one, as in mesh['cp']"
        )
    if _CURRENT.get() is not None:
        raise ConfigurationError("sequence_parallel was entered within itself: a sequence is sharded once")
    group = mesh.get_group() if isinstance(mesh, DeviceMesh) else mesh
    found = SequenceParallel(group, dist.get_rank(group), dist.get_world_size(group), dense_exchange)
    token = _CURRENT.set(found)
    try:
        yield found
    finally:
        _CURRENT.reset(token)


def sharding() -> SequenceParallel | None:
    """The context around the caller; None where a sequence lies on one device."""
    return _CURRENT.get()
