"""Every rank computes some heads of the whole sequence; see `ByHeads`."""

import numpy as np
import torch
from torch import Tensor

from asterism.compiler.devices import ByHeads, Shards
from asterism.compiler.devices.ways.heads import some_heads
from asterism.kernels.merging import Result
from asterism.parallel.compute import Call
from asterism.parallel.exchange import Hop, Route, to_all, whole
from asterism.parallel.local import Local


def run(call: Call, way: ByHeads) -> Result:
    """The results of this rank's queries."""
    plan, ranks = call.plan, call.context.ranks
    of_queries, of_keys = (_heads_to_all(shards, call.rank) for shards in (plan.queries, plan.keys))
    marks = call.marks
    if (rows := marks.rows) is not None:
        marks = marks.read(*call.exchange((rows, to_all(plan.keys, call.rank))))
    pieces = ((call.q, of_queries), (call.k, of_keys), (call.v, of_keys))
    q, k, v = call.exchange(*((_heads_after_another(x, ranks), hop) for x, hop in pieces))
    heads = q.shape[1]
    rule = some_heads(way.pattern, call.rank * heads, (call.rank + 1) * heads)
    assert rule is not None, "no plan cuts the heads of such a pattern"
    positions = np.arange(plan.queries.length) + plan.query_offset
    result = call.attend(
        Local(rule, positions, np.arange(plan.keys.length), plan.keys.length), q, k, v, marks, marks.segments
    )
    back = call.exchange(*((x, whole(of_queries.route.back)) for x in result))
    return Result(*(x.unflatten(2, (ranks, call.q.shape[2])).movedim(2, 1).flatten(1, 2) for x in back))


def _heads_to_all(shards: Shards, rank: int) -> Hop:
    return whole(Route((shards.sizes[rank],) * shards.devices, shards.sizes))


def _heads_after_another(x: Tensor, ranks: int) -> Tensor:
    """[B, H, N, ...] -> [B, H / ranks, ranks * N, ...]: for each rank its heads of all tokens."""
    return torch.cat(x.chunk(ranks, dim=1), dim=2)
