"""Ranks that are threads of the test: what they exchange is compared, and who waits for one that has left is told so.

Over gloo, ranks that are in different collectives wait for minutes or end with their process. Here each gets an error
at once, which names what the others are in:

    found = in_threads(3, function)     # function(context), called by each rank: what it returned or raised
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from asterism.parallel import SequenceParallel, collectives, exchange, fourier
from asterism.parallel.context import resumed

PATIENCE = 60.0
"""Seconds after which a rank that computes is taken for one that hangs."""


class StrandedRankError(Exception):
    """A rank is in a collective in which the others are not."""


@dataclass(eq=False)
class Group:
    """Stands for a process group: `asked` holds what each rank gave to the collective of a number, by rank."""

    ranks: int
    group_name: str = "threads"
    asked: dict[int, dict[int, tuple[str, Any]]] = field(default_factory=lambda: defaultdict(dict))
    left: set[int] = field(default_factory=set)
    changed: threading.Condition = field(default_factory=threading.Condition)
    own: threading.local = field(default_factory=threading.local)

    def enter(self, rank: int) -> None:
        self.own.rank, self.own.number = rank, 0

    def leave(self) -> None:
        with self.changed:
            self.left.add(self.own.rank)
            self.changed.notify_all()

    def meet(self, kind: str, given: Any) -> list[Any]:
        """What all ranks gave to this collective. Raises StrandedRankError where one is in another, or in none."""
        number, self.own.number = self.own.number, self.own.number + 1
        with self.changed:
            asked = self.asked[number]
            asked[self.own.rank] = kind, given
            self.changed.notify_all()
            self.changed.wait_for(lambda: len(asked) == self.ranks or self.left - set(asked), PATIENCE)
        if len(asked) < self.ranks:
            absent = sorted(set(range(self.ranks)) - set(asked))
            raise StrandedRankError(f"waits in {kind} for ranks {absent}")
        kinds = {rank: asked[rank][0] for rank in range(self.ranks)}
        if len(set(kinds.values())) > 1:
            raise StrandedRankError(f"is in {kind}; all ranks: {kinds}")
        return [asked[rank][1] for rank in range(self.ranks)]


def _all_gather(parts: Sequence[Tensor], own: Tensor, group: Group) -> None:
    found = group.meet(f"all_gather of {list(own.shape)} {own.dtype}", own.clone())
    for part, theirs in zip(parts, found, strict=True):
        part.copy_(theirs)


def _all_reduce(tensor: Tensor, operation: str = "sum", group: Any = None) -> None:
    found = torch.stack(group.meet(f"all_reduce of {list(tensor.shape)} {tensor.dtype}", tensor.detach().clone()))
    tensor.copy_(found.amax(0) if operation == "max" else found.sum(0))


def _broadcast(tensor: Tensor, group_src: int, group: Group) -> None:
    tensor.copy_(group.meet(f"broadcast of {list(tensor.shape)}", tensor.clone())[group_src])


def _all_to_all(wire: Tensor, received: Sequence[int], sent: Sequence[int], group: Group) -> Tensor:
    found = group.meet(f"all_to_all of {wire.dtype}", wire.detach().split(list(sent)))
    parts = [theirs[group.own.rank] for theirs in found]
    if [len(part) for part in parts] != list(received):
        raise StrandedRankError(f"waits for {list(received)} numbers, and gets {list(map(len, parts))}")
    return torch.cat(parts)


FAKE = SimpleNamespace(
    get_rank=lambda group: group.own.rank,
    get_world_size=lambda group: group.ranks,
    distributed_c10d=SimpleNamespace(get_backend_config=lambda group: "cpu:gloo"),
    all_gather=_all_gather,
    all_reduce=_all_reduce,
    broadcast=_broadcast,
    ReduceOp=SimpleNamespace(MAX="max"),
)


def in_threads(ranks: int, function: Callable[[SequenceParallel], Any]) -> list[Any]:
    """What function(context) returns to each rank, or the error that it raises."""
    group = Group(ranks)
    found: list[Any] = [None] * ranks

    def run(rank: int) -> None:
        group.enter(rank)
        context = SequenceParallel(group, rank, ranks, dense_exchange=True)  # type: ignore[arg-type]
        try:
            with resumed(context):
                found[rank] = function(context)
        except Exception as error:
            found[rank] = error
        finally:
            group.leave()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collectives, "dist", FAKE)
        for module in (exchange, fourier):
            patch.setattr(module, "begin_all_to_all", _all_to_all)
            patch.setattr(module, "wait", lambda wire: wire)
        threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(3 * PATIENCE)
            assert not thread.is_alive(), f"a rank hangs; the others: {found}"
    return found
