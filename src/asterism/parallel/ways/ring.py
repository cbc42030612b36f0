"""Passes keys and values around the ring of ranks, and their gradients back; see `Ring`.

A rank holds its own shard, the one that it computes with, and the one that is on its way. Nothing of others is kept for
the backward pass: there all shards go round a second time, the gradients of each a step behind it, and every step is
differentiated by the results of all together.

Tensors keep the dtype in which they are given; indices are int64.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from asterism import kernels
from asterism.compiler.devices import Communication, Ring
from asterism.kernels.attend import attend_part
from asterism.kernels.checks import as_they_are
from asterism.kernels.merging import Result, joined
from asterism.kernels.operator import Rounded
from asterism.kernels.terms.terms import DistanceTable, Terms
from asterism.parallel.compute import Call, Questions
from asterism.parallel.context import SequenceParallel
from asterism.parallel.exchange import Flight, Hop, Route, begin, finish, whole
from asterism.parallel.indices import TokenIndices
from asterism.parallel.key_marks import Marks
from asterism.parallel.local import Local, reading


def run(call: Call, way: Ring) -> Result:
    """The results of this rank's queries."""
    steps, segments = call.plan.derived(ring_of, way, call.rank), call.marks.segments
    terms, learned = _learned(call)

    def questions(step: int, tensors: Sequence[Tensor], marks: Marks, learned: Sequence[Tensor]) -> Questions:
        if steps[step].is_empty:
            return iter(())
        q, k, v = tensors
        options = call.options | {"terms": _with(terms, learned)}
        return replace(call, options=options).questions(steps[step], q, k, v, marks, segments)

    turn = RingTurn(call.context, call.plan.keys.sizes, call.marks, questions)
    return round_the_ring(turn, (call.q, call.k, call.v), learned)


def _learned(call: Call) -> tuple[Terms | None, list[Tensor]]:
    """The terms, and tensors of them that may have gradients. A bias that has some becomes a table of all distances,
    whose gradient makes those of whatever it was computed from."""
    terms, plan = call.options["terms"], call.plan
    if terms is None:
        return None, []
    bias = terms.bias
    if bias is not None and not isinstance(bias, DistanceTable) and bias.table(0, 1).requires_grad:
        first, past = (end + plan.query_offset for end in plan.queries.range(call.rank))
        first -= plan.keys.length - 1
        bias = DistanceTable(bias.table(first, max(first, past)), first)
    terms = replace(terms, bias=bias)
    return terms, [x for x in (getattr(bias, "values", None), terms.relative) if isinstance(x, Tensor)]


def _with(terms: Terms | None, learned: Sequence[Tensor]) -> Terms | None:
    """The terms with these tensors instead of those that `_learned` named."""
    if terms is None or not learned:
        return terms
    *values, relative = learned if terms.relative is not None else (*learned, None)
    bias = replace(cast(Any, terms.bias), values=values[0]) if values else terms.bias
    return replace(terms, bias=bias, relative=relative)


def ring_of(plan: Communication, way: Ring, rank: int) -> tuple[Local, ...]:
    """What rank `rank` computes at each step, with the keys of the rank that is as many before it."""
    first, past = plan.queries.range(rank)
    found = []
    for step in range(plan.devices):
        keys = np.arange(*plan.keys.range((rank - step) % plan.devices))
        some = reading(plan, way.pattern, np.arange(first, past), keys)
        queries = np.arange(first, past) + plan.query_offset if len(some) else np.zeros(0, np.int64)
        found.append(Local(way.pattern, queries, keys, plan.keys.length))
    return tuple(found)


@dataclass(frozen=True, eq=False)
class RingTurn:
    """Once round the ring.

    sizes      keys of each rank
    marks      of the own keys
    questions  of a step, for q, k and v, the marks of these keys, and what is learned beside
    """

    context: SequenceParallel
    sizes: tuple[int, ...]
    marks: Marks
    questions: Callable[[int, Sequence[Tensor], Marks, Sequence[Tensor]], Questions]

    def go(self, k: Tensor, v: Tensor, use: Callable[[int, Tensor, Tensor, Marks], None]) -> None:
        """Gives all shards, k [B, Hkv, N, D] and v [B, Hkv, N, Dv] of each, to `use`, the own one first; the next one
        comes while it computes."""
        marks, wire, flight = self.marks, None, None
        for step in range(len(self.sizes)):
            if comes := step + 1 < len(self.sizes):
                hop, of_marks = self.handed_on(step), None
                if (rows := marks.rows) is not None:
                    of_marks, _ = begin(self.context.group, [(rows, hop)])
                wire = _packed((k, v)) if wire is None else wire
                flight = Flight.of(self.context.group, (k, v), (hop, hop))
                flight.send(wire, out=True)
            use(step, k, v, marks)
            if comes and flight is not None:
                if of_marks is not None:
                    marks = marks.read(finish(of_marks)[0][self.context.rank - 1])
                wire = flight.arrive()
                k, v = (parcels[self.context.rank - 1] for parcels in flight.back.parcels(wire))

    def handed_on(self, step: int) -> Hop:
        """To the next rank the shard that is held, and from the one before that which it holds."""
        rank, ranks = self.context.rank, len(self.sizes)
        sent, received = [0] * ranks, [0] * ranks
        sent[(rank + 1) % ranks] = self.sizes[(rank - step) % ranks]
        received[rank - 1] = self.sizes[(rank - step - 1) % ranks]
        return whole(Route(tuple(sent), tuple(received)))


def round_the_ring(turn: RingTurn, tensors: Sequence[Tensor], learned: Sequence[Tensor]) -> Result:
    """The results, [B, H, N, Dv] and [B, H, N], of the own q over the keys of all, for the own q, k and v [B, heads, N,
    features] and what is learned besides, [...]."""
    return Result(*_Round.apply(turn, *tensors, *learned))  # type: ignore[no-untyped-call]


class _Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, turn: RingTurn, q: Tensor, k: Tensor, v: Tensor, *learned: Tensor) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(q.dtype, torch.float32)
        out = q.new_zeros((*q.shape[:3], v.shape[3]), dtype=wide)
        lse = q.new_full(q.shape[:3], -math.inf, dtype=wide)

        def use(step: int, k: Tensor, v: Tensor, marks: Marks) -> None:
            for indices, questions in turn.questions(step, (q, k, v), marks, learned):
                for one in questions:
                    _merge_into(
                        out, lse, indices, *kernels.attend(*one.tensors, one.rule, return_lse=True, **one.options)
                    )

        turn.go(k, v, use)
        total = Rounded.rounded(out, lse, q.dtype)
        ctx.turn = turn
        ctx.save_for_backward(q, k, v, *learned, total.out, total.lse, total.residual)
        return total.out, total.lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor, grad_lse: Tensor) -> tuple[Tensor | None, ...]:
        *operands, out, lse, residual = ctx.saved_tensors
        with as_they_are(out):
            way = _Back(ctx.turn, operands, ctx.needs_input_grad[1:], Rounded(out, lse, residual), (grad_out, grad_lse))
            return None, *way.gradients()


class _Back:
    """The second turn: `operands` are q, k, v and what is learned, of some of which gradients are `wanted`.

    Those of q and of what is learned stay here; those of k and v follow their shard, and end at its owner, who keeps
    its own part of them meanwhile.
    """

    def __init__(
        self,
        turn: RingTurn,
        operands: list[Tensor],
        wanted: Sequence[bool],
        total: Rounded,
        grads: tuple[Tensor, Tensor],
    ) -> None:
        self.turn, self.operands, self.wanted, self.total, self.grads = turn, operands, wanted, total, grads
        self.staying: list[Tensor | None] = [None] * len(operands)
        self.travelling = [x for x, is_wanted in zip(operands[1:3], wanted[1:3], strict=True) if is_wanted]
        self.flight: Flight | None = None

    def gradients(self) -> list[Tensor | None]:
        self.turn.go(self.operands[1], self.operands[2], self._use)
        if self.flight is not None:
            parcels = self.flight.back.parcels(self.flight.arrive())
            for place in (1, 2):
                if self.wanted[place]:
                    self._add(place, parcels.pop(0)[self.turn.context.rank - 1])
        each = zip(self.staying, self.operands, self.wanted, strict=True)
        found = [torch.zeros_like(x) if total is None else total.to(x.dtype) for total, x, _ in each]
        return [one if is_wanted else None for one, is_wanted in zip(found, self.wanted, strict=True)]

    def _add(self, place: int, gradient: Tensor) -> None:
        total = self.staying[place]
        if total is None:
            self.staying[place] = gradient.to(torch.promote_types(gradient.dtype, torch.float32))
        else:
            total += gradient

    def _use(self, step: int, k: Tensor, v: Tensor, marks: Marks) -> None:
        found = self._of_step(step, [self.operands[0], k, v, *self.operands[3:]], marks)
        for place, gradient in enumerate(found):
            if gradient is not None and (place not in (1, 2) or not step):
                self._add(place, gradient)
        if step and self.travelling:
            self._pass_on(step, [x for x, is_wanted in zip(found[1:3], self.wanted[1:3], strict=True) if is_wanted])

    def _pass_on(self, step: int, gradients: Sequence[Tensor | None]) -> None:
        """Adds to what ranks before this one found of the gradients of a shard, and hands the sum on."""
        context, hop = self.turn.context, self.turn.handed_on(step)
        flight = Flight.of(context.group, self.travelling, [hop] * len(self.travelling))
        before = self.flight
        wire = self.travelling[0].new_zeros(sum(flight.out.sizes)) if before is None else before.arrive()
        for parcels, gradient in zip(flight.out.parcels(wire), gradients, strict=True):
            if gradient is not None:
                parcels[(context.rank + 1) % context.ranks] += gradient
        flight.send(wire, out=True)
        self.flight = flight

    def _of_step(self, step: int, tensors: Sequence[Tensor], marks: Marks) -> list[Tensor | None]:
        """The gradients by one shard: of each tensor, None for one that is not wanted or not read."""
        outputs: list[Tensor] = []
        grads: list[Tensor] = []
        total = self.total
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_(wanted) for x, wanted in zip(tensors, self.wanted, strict=True)]
            for indices, questions in self.turn.questions(step, leaves[:3], marks, leaves[3:]):
                residual = indices.take(total.residual) if total.residual.numel() else total.residual
                part = Rounded(*(x.contiguous() for x in (indices.take(total.out), indices.take(total.lse), residual)))
                for one in questions:
                    outputs += attend_part(*one.tensors, one.rule, part, **one.options)
                    grads += [indices.take(x).contiguous() for x in self.grads]
        asked = [leaf for leaf in leaves if leaf.requires_grad]
        found = iter(torch.autograd.grad(outputs, asked, grads, allow_unused=True) if outputs else [None] * len(asked))
        return [next(found) if leaf.requires_grad else None for leaf in leaves]


def _merge_into(out: Tensor, lse: Tensor, indices: TokenIndices, more_out: Tensor, more_lse: Tensor) -> None:
    """Adds results of the queries at these indices, over further keys, where the wide out and lse lie."""
    own_out, own_lse = indices.take(out), indices.take(lse)
    both, (own, more) = joined((own_lse, more_lse))
    indices.write_to(out, own_out * own[..., None] + more_out * more[..., None])
    indices.write_to(lse, both)


def _packed(tensors: Sequence[Tensor]) -> Tensor:
    """As they lie on the wire to one rank."""
    return torch.cat([x.reshape(-1) for x in tensors])
