"""Rows that go from rank to rank by one all-to-all, and their gradients the same way back.

An exchange is two steps, so that something can be computed in between: `begin` sends, `finish` waits. Backward, the
gradient is sent by the step that waited and waited for by the step that sent. Autograd runs these steps in the order in
which they were made, reversed, and never leaves one out whose results were `tied` to something that is differentiated:
so all ranks call the same collectives in the same order, whatever each of them has to send, receive or compute.

Tensors keep the dtype in which they are given; indices are int64.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from asterism.compiler.devices import Shards
from asterism.memo import cached_property
from asterism.parallel.collectives import ProcessGroup, begin_all_to_all, wait
from asterism.parallel.indices import TokenIndices, owned


@dataclass(frozen=True)
class Route:
    """How many rows go from this rank to each rank, and come from each."""

    sent: tuple[int, ...]
    received: tuple[int, ...]

    @property
    def back(self) -> "Route":
        return Route(self.received, self.sent)


@dataclass(frozen=True, eq=False)
class Hop:
    """Which tokens go to which rank: `rows` are their indices, in the order of the ranks that they go to."""

    rows: TokenIndices
    route: Route

    @cached_property
    def parts(self) -> tuple[TokenIndices, ...]:
        """The indices of what goes to each rank."""
        return self.rows.split(self.route.sent)


def whole(route: Route) -> Hop:
    """The tokens of a tensor one after another."""
    return Hop(TokenIndices.first(sum(route.sent)), route)


def to_all(shards: Shards, rank: int) -> Hop:
    """This rank's tokens to every rank, and those of every rank here."""
    own = shards.sizes[rank]
    return Hop(TokenIndices(np.tile(np.arange(own), shards.devices)), Route((own,) * shards.devices, shards.sizes))


@dataclass(frozen=True)
class _Load:
    """What goes one way: for each rank a parcel [B, heads, rows, ...] of each tensor, one parcel after another.

    `rows` are numbers by tensor and rank. The wire has the narrowest dtype; a number of a wider one is several of it.
    """

    rows: tuple[tuple[int, ...], ...]
    shapes: tuple[torch.Size, ...]
    dtypes: tuple[torch.dtype, ...]

    @cached_property
    def narrow(self) -> torch.dtype:
        return min(self.dtypes, key=lambda dtype: dtype.itemsize)

    @cached_property
    def sizes(self) -> list[int]:
        """Numbers on the wire, by rank."""
        return [sum(map(math.prod, each)) for each in zip(*self._shapes(), strict=True)]

    def parcels(self, wire: Tensor) -> list[list[Tensor]]:
        """Views of a wire, by tensor and rank."""
        found = wire.split([math.prod(one) for each in zip(*self._shapes(), strict=True) for one in each])
        kinds = len(self.rows)
        return [
            [parcel.view(shape) for parcel, shape in zip(found[kind::kinds], shapes, strict=True)]
            for kind, shapes in enumerate(self._shapes())
        ]

    def _shapes(self) -> list[list[tuple[int, ...]]]:
        found = []
        for rows, shape, dtype in zip(self.rows, self.shapes, self.dtypes, strict=True):
            wider = dtype.itemsize // self.narrow.itemsize
            more = (*shape[3:], wider) if wider > 1 else shape[3:]
            found.append([(*shape[:2], count, *more) for count in rows])
        return found


@dataclass(eq=False)
class Flight:
    """Rows that are on their way: to be given to `finish`, once.

    group      the processes among which they are
    hops       for each tensor, which of its rows go to which rank
    out, back  how what goes to other ranks lies on its wire, and what comes from them; gradients travel the other way
    ticket     [0], of the first tensor's dtype: by it autograd knows that `finish` follows `begin`
    wire       [numbers], of the narrowest of the tensors' dtypes, and without values before it is waited for: forward
               what comes, and backward the gradients of what was sent; None where nothing is under way
    """

    group: ProcessGroup
    hops: tuple[Hop, ...]
    out: _Load
    back: _Load
    ticket: Tensor | None = None
    wire: Tensor | None = None

    @classmethod
    def of(cls, group: ProcessGroup, tensors: Sequence[Tensor], hops: Sequence[Hop]) -> Self:
        """For rows of such tensors [B, heads, tokens, ...], each by its hop."""
        shapes, dtypes = tuple(x.shape for x in tensors), tuple(x.dtype for x in tensors)
        out, back = (tuple(getattr(hop.route, way) for hop in hops) for way in ("sent", "received"))
        return cls(group, tuple(hops), _Load(out, shapes, dtypes), _Load(back, shapes, dtypes))

    def send(self, wire: Tensor, *, out: bool) -> None:
        """Sends the wire [numbers]: what goes `out`, or gradients on their way back."""
        sent, received = (self.out, self.back) if out else (self.back, self.out)
        self.wire = begin_all_to_all(wire, received.sizes, sent.sizes, self.group)

    def arrive(self) -> Tensor:
        """The wire [numbers] that came, when all of it is there."""
        wire, self.wire = self.wire, None
        assert wire is not None, "what is waited for was sent"
        return wait(wire)


def begin(group: ProcessGroup, pieces: Sequence[tuple[Tensor, Hop]]) -> tuple[Flight, tuple[Tensor, ...]]:
    """Sends tokens of several tensors [B, heads, tokens, ...] in one message per rank, which lies as `_Load` says.

    The tensors have one dtype, or a wider one beside bfloat16 and float16. Also given are the tensors themselves, for
    one attention that reads them meanwhile: backward, the gradients that come are added to its own where they lie.
    Autograd would add up tensors as large as all tokens, nearly all zeros.
    """
    tensors = [x for x, _ in pieces]
    flight = Flight.of(group, tensors, [hop for _, hop in pieces])
    flight.ticket, *same = _Begin.apply(flight, *tensors)  # type: ignore[no-untyped-call]
    return flight, tuple(same)


def finish(flight: Flight) -> list[tuple[Tensor, ...]]:
    """What came, for each tensor of which something was sent: from each rank [B, heads, rows, ...]."""
    ticket, flight.ticket = flight.ticket, None  # a flight that autograd keeps must not keep autograd's graph
    found: tuple[Tensor, ...] = _Finish.apply(ticket, flight)  # type: ignore[no-untyped-call]
    ranks = len(flight.back.sizes)
    return [found[first : first + ranks] for first in range(0, len(found), ranks)]


def tied(results: tuple[Tensor, ...], received: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The results [...], whose gradients make those of what was received [...], even if nothing is computed from it."""
    same: tuple[Tensor, ...] = _Tied.apply(len(results), *results, *received)  # type: ignore[no-untyped-call]
    return same


def together(parcels: Sequence[Tensor]) -> Tensor:
    """[B, heads, rows, ...] one after another."""
    some = [x for x in parcels if x.shape[2]] or list(parcels[:1])
    return torch.cat(some, dim=2) if len(some) > 1 else some[0]


def inserted(rows: Tensor, more: Tensor, before: int) -> Tensor:
    """[B, heads, rows, ...] of two tensors, where so many rows of the first stand before all of the second.

    A slice of all rows is left out, because its gradient would be a copy.
    """
    if before in (0, rows.shape[2]):
        return together([rows, more] if before else [more, rows])
    return together([rows[:, :, :before], more, rows[:, :, before:]])


class _Begin(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, flight: Flight, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.flight = flight
        ctx.set_materialize_grads(False)
        wire = tensors[0].new_empty(sum(flight.out.sizes), dtype=flight.out.narrow)
        for x, hop, parcels in zip(tensors, flight.hops, flight.out.parcels(wire), strict=True):
            for parcel, indices in zip(parcels, hop.parts, strict=True):
                indices.take_into(parcel, _narrowed(x, wire.dtype))
        flight.send(wire, out=True)
        return tensors[0].new_empty(0), *(x.view_as(x) for x in tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor, *gradients: Tensor | None) -> tuple[Any, ...]:
        flight, found = ctx.flight, []
        parcels = flight.out.parcels(wire := flight.arrive())
        for number, (gradient, hop, dtype) in enumerate(zip(gradients, flight.hops, flight.out.dtypes, strict=True)):
            total = wire.new_zeros(flight.out.shapes[number], dtype=dtype) if gradient is None else owned(gradient)
            for parcel, indices in zip(parcels[number], hop.parts, strict=True):
                indices.add_to(total, _widened(parcel, dtype))
            found.append(total)
        return None, *found


class _Finish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ticket: Tensor, flight: Flight) -> tuple[Tensor, ...]:
        ctx.flight, ctx.device = flight, ticket.device
        ctx.set_materialize_grads(False)
        each = zip(flight.back.parcels(flight.arrive()), flight.back.dtypes, strict=True)
        return tuple(_widened(parcel, dtype) for parcels, dtype in each for parcel in parcels)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        flight, load = ctx.flight, ctx.flight.back
        wire = torch.empty(sum(load.sizes), dtype=load.narrow, device=ctx.device)
        parcels = [parcel for each in load.parcels(wire) for parcel in each]
        for gradient, parcel in zip(gradients, parcels, strict=True):
            if gradient is None:
                parcel.zero_()
            else:
                parcel.copy_(_narrowed(gradient, wire.dtype))
        flight.send(wire, out=False)
        return wire.new_empty(0, dtype=load.dtypes[0]), None


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


def _narrowed(x: Tensor, narrow: torch.dtype) -> Tensor:
    """[...] as it is, or [..., numbers of the wire] where a number of x is several of them."""
    return x if x.dtype == narrow else x.contiguous()[..., None].view(narrow)


def _widened(parcel: Tensor, dtype: torch.dtype) -> Tensor:
    """The inverse; what was narrowed may lie anywhere in a wire, so it is copied."""
    if parcel.dtype == dtype:
        return parcel
    return parcel.clone(memory_format=torch.contiguous_format).view(dtype)[..., 0]
