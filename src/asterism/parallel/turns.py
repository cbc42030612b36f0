"""Batches of whole rows that each rank has read for itself: ranks take turns, and compute each of them together."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from asterism.errors import ConfigurationError, shown
from asterism.parallel.agreement import agree, exchanging, refuse
from asterism.parallel.collectives import all_gather, gather_numbers
from asterism.parallel.context import SequenceParallel


def share(batch: Mapping[str, Any], context: SequenceParallel) -> list[dict[str, Any]]:
    """The batches of all ranks, in the order of ranks, on every rank.

    A batch holds, by name, tensors of any shape and dtype, whole numbers, and None, which is left out. Tensors come
    back where the first of this rank's lies. Batches may differ in sizes, such as their rows and tokens. All ranks call
    it together. Raises ConfigurationError on every rank if one gives anything else, or if names, dtypes or numbers of
    dimensions differ.
    """
    device = next((x.device for x in batch.values() if isinstance(x, Tensor)), None)
    try:
        own = {name: _tensor(name, x, device) for name, x in sorted(batch.items()) if x is not None}
    except Exception as error:
        refuse(context, error, device)
        raise
    words = {name: f"of {x.dtype} in {x.ndim} dimensions" for name, x in own.items()}
    agree(context, {"call": "sharing a batch"} | words, (0, 0), device, wants_numbers=False)
    with exchanging():
        return _exchanged(own, {name for name, x in batch.items() if isinstance(x, int)}, context)


def _exchanged(own: dict[str, Tensor], numbers: set[str], context: SequenceParallel) -> list[dict[str, Any]]:
    sizes = gather_numbers([size for x in own.values() for size in x.shape], context.group, _device(own))
    wires = [x.contiguous().view(-1).view(torch.uint8) for x in own.values()]
    wire = torch.cat(wires) if wires else torch.empty(0, dtype=torch.uint8)
    room = int(gather_numbers([len(wire)], context.group, wire.device).max())
    everyone = all_gather(torch.nn.functional.pad(wire, (0, room - len(wire))), context.group)
    found = []
    for bytes_of_rank, own_sizes in zip(everyone, sizes.tolist(), strict=True):
        given: dict[str, Any] = {}
        for name, like in own.items():
            shape, own_sizes = own_sizes[: like.ndim], own_sizes[like.ndim :]
            count = torch.Size(shape).numel() * like.element_size()
            # A copy, because the view of a slice may begin anywhere.
            x = bytes_of_rank[:count].clone().view(like.dtype).view(shape)
            bytes_of_rank = bytes_of_rank[count:]
            given[name] = int(x) if name in numbers else x
        found.append(given)
    return found


def _device(own: dict[str, Tensor]) -> torch.device | None:
    return next((x.device for x in own.values()), None)


def _tensor(name: str, value: Any, device: torch.device | None) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach().to(device)
    if isinstance(value, int) and device is not None:
        return torch.tensor(value, device=device)
    raise ConfigurationError(
        "batch-not-of-tensors",
        f"ranks that share a sequence exchange tensors and whole numbers of a batch, but {name} is {shown(value)}:"
        " leave it out of what the collator returns",
    )
