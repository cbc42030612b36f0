"""The context in which a sequence is sharded over a group of processes, invisible to layers.

The context belongs to the thread and task that entered it; the backward pass needs none, since what it does was written
down on the way forward.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from threading import Lock

import torch
from torch import Tensor

from asterism.compiler.devices import Shards
from asterism.errors import ConfigurationError, shown
from asterism.parallel.collectives import OUTSIDE, DeviceMesh, ProcessGroup, gather_numbers, rank_of, size_of

_CURRENT: ContextVar["SequenceParallel | None"] = ContextVar("sequence_parallel", default=None)

_entered, _entering = 0, Lock()
"""How many contexts are entered, in all threads. A graph of torch.compile, which cannot read a ContextVar, is guarded
by this number: as long as it is 0, no sequence is sharded."""


@dataclass(frozen=True, eq=False)
class SequenceParallel:
    """The processes that hold the shards of a sequence, in order, and this process among them.

    dense_exchange  whether a pattern may be computed that moves as many bytes as dense attention known           the
    shards, if a model has already exchanged them for all of its layers
    """

    group: ProcessGroup
    rank: int
    ranks: int
    dense_exchange: bool = False
    known: Shards | None = None

    @property
    def is_first(self) -> bool:
        """Whether this process holds the first tokens of a sequence."""
        return self.rank == 0

    def range(self, shards: Shards) -> tuple[int, int]:
        """The first token of this process, and one past its last."""
        return shards.range(self.rank)

    def has_turn(self, number: int) -> bool:
        """Whether this process has turn `number`, counted from 0; processes take turns in their order."""
        return number % self.ranks == self.rank

    def shards(self, tokens: int, device: torch.device) -> Shards:
        """Exchange the shards of a sequence of which this process holds `tokens`; all ranks call it together."""
        return Shards.of_sizes(tuple(gather_numbers([tokens], self.group, device)[:, 0].tolist()))


@contextmanager
def sequence_parallel(mesh: DeviceMesh | ProcessGroup, *, dense_exchange: bool = False) -> Iterator[SequenceParallel]:
    """Shard sequences over processes: in the body, tensors of tokens hold this process's shard. Rank r of the mesh (of
    one dimension) or group holds the tokens after those of rank r - 1.

    Raises ConfigurationError if `mesh` is neither a mesh nor a group, for a mesh of several dimensions (choose one:
    mesh["cp"]), for a group without this process, and within another such context.
    """
    if not isinstance(mesh, DeviceMesh | ProcessGroup) and mesh is not OUTSIDE:
        raise ConfigurationError(
            "not-a-mesh",
            f"sequence_parallel needs a DeviceMesh or a ProcessGroup, such as dist.group.WORLD, got {shown(mesh)}",
        )
    if isinstance(mesh, DeviceMesh) and mesh.ndim != 1:
        raise ConfigurationError(
            "mesh-dimensions",
            f"sequence_parallel needs a mesh of one dimension, got one of {mesh.ndim}: choose one, such as mesh['cp']",
        )
    if _CURRENT.get() is not None:
        raise ConfigurationError(
            "sequence-parallel-nested", "sequence_parallel cannot be entered within itself: a sequence is sharded once"
        )
    group = mesh.get_group() if isinstance(mesh, DeviceMesh) else mesh
    if rank_of(group) < 0:
        raise ConfigurationError(
            "not-in-group",
            f"process {rank_of()} entered sequence_parallel with a group that it does not belong to: only the group's"
            " processes may enter",
        )
    found = SequenceParallel(group, rank_of(group), size_of(group), dense_exchange)
    with resumed(found):
        yield found


@contextmanager
def resumed(context: SequenceParallel | None) -> Iterator[None]:
    """Within the body, this context again: for what the backward pass computes a second time, in any thread."""
    token = _CURRENT.set(context)
    _count(1)
    try:
        yield
    finally:
        _count(-1)
        _CURRENT.reset(token)


def _count(more: int) -> None:
    global _entered
    with _entering:
        _entered += more


def sharding() -> SequenceParallel | None:
    """The context around the caller; None if sequences are on one device."""
    return _CURRENT.get() if _entered else None


def shards_of(tokens: Tensor) -> Shards | None:
    """Who holds which tokens, where this rank holds `tokens` [B, N, ...] of any dtype; None where a sequence lies on
    one device.

    What is not known yet, all ranks ask together.
    """
    context = sharding()
    if context is None or context.known is not None:
        return None if context is None else context.known
    return context.shards(tokens.shape[1], tokens.device)


def own_range(shards: Shards | None, tokens: int) -> tuple[int, int]:
    """The first token of this rank and one past its last; 0 and `tokens` where a sequence lies on one device."""
    context = sharding()
    return (0, tokens) if context is None or shards is None else context.range(shards)
