"""Rows that go from rank to rank by one all-to-all, and their gradients the same way back.

An exchange is two steps, so that something can be computed in between: `begin` sends, `finish` waits. Backward, the
gradient is sent by the step that waited and waited for by the step that sent. Autograd runs these steps in the order in
which they were made, reversed, and never leaves one out whose results were `tied` to something that is differentiated:
so all ranks call the same collectives in the same order, whatever each of them has to send, receive or compute.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup


@dataclass(frozen=True)
class Route:
    """How many rows go from this rank to each rank, and come from each."""

    sent: tuple[int, ...]
    received: tuple[int, ...]

    @property
    def back(self) -> "Route":
        return Route(self.received, self.sent)


@dataclass(frozen=True)
class _Kind:
    """What is sent in one piece: by which route, and what a row is."""

    route: Route
    features: tuple[int, ...]
    dtype: torch.dtype

    @property
    def back(self) -> "_Kind":
        return _Kind(self.route.back, self.features, self.dtype)


@dataclass(eq=False)
class Flight:
    """Rows that are on their way: to be given to `finish`, once.

    `wire` has no values before it is waited for: forward what comes, and backward the gradients of what was sent.
    `ticket` is empty: by it autograd knows that `finish` follows `begin`.
    """

    group: ProcessGroup
    kinds: tuple[_Kind, ...]
    ticket: Tensor | None = None
    wire: Tensor | None = None

    def send(self, kinds: tuple[_Kind, ...], pieces: Sequence[Tensor]) -> None:
        self.wire = _send(self.group, kinds, pieces)

    def arrive(self, kinds: tuple[_Kind, ...]) -> tuple[Tensor, ...]:
        wire, self.wire = self.wire, None
        assert wire is not None, "what is waited for was sent"
        return _arrived(torch.ops._c10d_functional.wait_tensor(wire), kinds)


def begin(group: ProcessGroup, pieces: Sequence[tuple[Tensor, Route]]) -> Flight:
    """Sends the rows of several tensors in one message per rank.

    The rows of a tensor are along its first dimension, first those for rank 0, then those for rank 1 and so on. The
    tensors have one dtype, or a wider one beside bfloat16 and float16.
    """
    kinds = tuple(_Kind(route, tuple(rows.shape[1:]), rows.dtype) for rows, route in pieces)
    flight = Flight(group, kinds)
    flight.ticket = _Begin.apply(flight, *(rows for rows, _ in pieces))  # type: ignore[no-untyped-call]
    return flight


def finish(flight: Flight) -> tuple[Tensor, ...]:
    """What came, for each tensor that was sent: its rows from rank 0, then those from rank 1 and so on."""
    ticket, flight.ticket = flight.ticket, None  # a flight that autograd keeps must not keep autograd's graph
    found: tuple[Tensor, ...] = _Finish.apply(ticket, flight)  # type: ignore[no-untyped-call]
    return found


def tied(results: tuple[Tensor, ...], received: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The results, whose gradients make those of what was received, even if nothing was computed from it."""
    same: tuple[Tensor, ...] = _Tied.apply(len(results), *results, *received)  # type: ignore[no-untyped-call]
    return same


class _Begin(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, flight: Flight, *pieces: Tensor) -> Tensor:
        ctx.flight = flight
        flight.send(flight.kinds, pieces)
        return pieces[0].new_empty(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Any, ...]:
        return None, *ctx.flight.arrive(tuple(kind.back for kind in ctx.flight.kinds))


class _Finish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ticket: Tensor, flight: Flight) -> tuple[Tensor, ...]:
        ctx.flight = flight
        return flight.arrive(flight.kinds)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        ctx.flight.send(tuple(kind.back for kind in ctx.flight.kinds), gradients)
        return gradients[0].new_empty(0), None


class _Tied(torch.autograd.Function):
    """It keeps a tensor for the way back, so that activations are computed anew up to here, after all collectives."""

    @staticmethod
    def forward(ctx: Any, results: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.results, ctx.others = results, len(tensors) - results
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(tensors[0].new_empty(0))
        return tuple(tensor.view_as(tensor) for tensor in tensors[:results])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        _ = ctx.saved_tensors
        return None, *gradients, *(None for _ in range(ctx.others))


def _send(group: ProcessGroup, kinds: tuple[_Kind, ...], pieces: Sequence[Tensor]) -> Tensor:
    """Starts the exchange; what it gives has no values before it is waited for."""
    narrow = min((kind.dtype for kind in kinds), key=lambda dtype: dtype.itemsize)
    laid: list[list[Tensor]] = []
    for piece, kind in zip(pieces, kinds, strict=True):
        parts = piece.split(kind.route.sent)
        laid.append([part.reshape(-1).contiguous().view(narrow) for part in parts])
    parcels = [part for target in zip(*laid, strict=True) for part in target]
    sent, received = _sizes(kinds, narrow, sending=True), _sizes(kinds, narrow, sending=False)
    wire = torch.cat(parcels) if parcels else pieces[0].new_empty(0, dtype=narrow)
    flying: Tensor = torch.ops._c10d_functional.all_to_all_single(wire, received, sent, group.group_name)
    return flying


def _arrived(wire: Tensor, kinds: tuple[_Kind, ...]) -> tuple[Tensor, ...]:
    """Takes apart what came from each rank."""
    sizes = [
        rows * _numbers(kind, wire.dtype)
        for rank in range(len(kinds[0].route.received))
        for rows, kind in ((kind.route.received[rank], kind) for kind in kinds)
    ]
    parcels = wire.split(sizes)
    found = []
    for number, kind in enumerate(kinds):
        own = [parcel for parcel in parcels[number :: len(kinds)] if len(parcel)]
        rows = own[0] if len(own) == 1 and len(kinds) == 1 else torch.cat(own) if own else wire.new_empty(0)
        found.append(rows.view(kind.dtype).view(sum(kind.route.received), *kind.features))
    return tuple(found)


def _numbers(kind: _Kind, narrow: torch.dtype) -> int:
    """How many numbers of the wire's dtype a row takes."""
    return math.prod(kind.features) * kind.dtype.itemsize // narrow.itemsize


def _sizes(kinds: tuple[_Kind, ...], narrow: torch.dtype, *, sending: bool) -> list[int]:
    """Numbers per rank."""
    rows = [kind.route.sent if sending else kind.route.received for kind in kinds]
    numbers = [_numbers(kind, narrow) for kind in kinds]
    return [sum(map(lambda x, y: x * y, numbers, each)) for each in zip(*rows, strict=True)]
