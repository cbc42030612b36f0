"""All tokens go where their residue lives, and results come back; see `ByResidues`."""

from dataclasses import dataclass

import numpy as np

from asterism.compiler.devices import ByResidues, Communication, Shards
from asterism.kernels.merging import Result
from asterism.memo import cached_property
from asterism.parallel.compute import Call
from asterism.parallel.exchange import Hop, Route, whole
from asterism.parallel.indices import TokenIndices
from asterism.parallel.local import Local


@dataclass(frozen=True, eq=False)
class ResiduesOf:
    """A share by residues, as one rank sees it. Positions and indices are int64.

    rows      indices of its tokens in the order in which they leave: by the rank that they go to, then ascending
    route     how many go to each rank, and come from each
    attended  what it computes: all tokens of its residues, which come in the order of their positions
    back      puts results, which come back in the order of `rows`, into that of the tokens: its inverse
    """

    rows: TokenIndices
    route: Route
    attended: Local
    back: TokenIndices

    @cached_property
    def leaving(self) -> Hop:
        return Hop(self.rows, self.route)

    @cached_property
    def returning(self) -> Hop:
        return whole(self.route.back)


def run(call: Call, way: ByResidues) -> Result:
    """The results of this rank's queries."""
    own = call.plan.derived(residues_of, way, call.rank)
    marks = call.marks
    if (rows := marks.rows) is not None:
        marks = marks.read(*call.exchange((rows, own.leaving)))
    q, k, v = call.exchange(*((x, own.leaving) for x in (call.q, call.k, call.v)))
    result = call.attend(own.attended, q, k, v, marks, marks.segments)
    return Result(*(own.back.take(x) for x in call.exchange(*((x, own.returning) for x in result))))


def residues_of(plan: Communication, way: ByResidues, rank: int) -> ResiduesOf:
    """What rank `rank` does.

    Two ranks have four tokens each, and the period is 3: residues 0 and 1 live on rank 0, residue 2 on rank 1. Of
    tokens 4, 5, 6 and 7 on rank 1 only 5 stays, so rows = [0, 2, 3 | 1], and back = [0, 3, 1, 2]; tokens 2 and 5 are
    attended there, one received from each rank.
    """
    tokens, parts = plan.keys, Shards.even(way.period, plan.keys.devices)
    own = parts.owners(np.arange(*tokens.range(rank)) % way.period)
    everyone = np.arange(tokens.length)
    mine = everyone[parts.owners(everyone % way.period) == rank]
    sent = np.bincount(own, minlength=tokens.devices)
    received = np.bincount(tokens.owners(mine), minlength=tokens.devices)
    leaving = np.argsort(own, kind="stable")
    return ResiduesOf(
        rows=TokenIndices(leaving),
        route=Route(tuple(int(x) for x in sent), tuple(int(x) for x in received)),
        attended=Local(way.pattern, mine, mine, tokens.length),
        back=TokenIndices(np.argsort(leaving, kind="stable")),
    )
