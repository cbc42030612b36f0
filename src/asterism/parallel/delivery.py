"""Delivers rows to a rank in one or two hops: from their owners, or through the rank that distributes them.

Tensors keep the dtype in which they are given; indices are int64.
"""

from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np
from torch import Tensor

from asterism.compiler.devices import Shards, Transfers
from asterism.parallel.compute import Call
from asterism.parallel.exchange import Flight, Hop, Route, inserted, together
from asterism.parallel.indices import TokenIndices
from asterism.parallel.local import positions_in
from asterism.patterns.intervals import Integers


@dataclass(frozen=True, eq=False)
class Second:
    """The second hop of rows.

    taken  indices of the own rows that go, of a row that goes to several ranks once for each
    own    these; its indices are among what was taken
    held   of what came in the first hop; its indices are among that
    """

    taken: TokenIndices
    own: Hop
    held: Hop


@dataclass(frozen=True, eq=False)
class Delivery:
    """Rows that come to this rank in up to two hops; None for one that no rank has rows for.

    first      from the ranks that own them; its indices are among the own rows, as are those of `second.taken`
    second     from the ranks that share them out, whether they own them or not
    order      int64 [rows]: sorts [what came first | what owners sent in the second hop | what others did] by position
    positions  int64 [rows]: those of all that come, ascending
    """

    first: Hop | None
    second: Second | None
    order: TokenIndices
    positions: Integers

    def among(self, own: Integers) -> "Delivery":
        """The same where the own rows are these of the shard: indices int64 [own], ascending."""
        first, second = self.first, self.second
        if first is not None:
            first = Hop(first.rows.among(own), first.route)
        if second is not None:
            second = replace(second, taken=second.taken.among(own))
        return replace(self, first=first, second=second)


def deliver(shards: Shards, direct: Transfers, shared: Integers, rank: int) -> Delivery:
    """How rows come: `direct` ones from their owners, those at the positions `shared`, int64 [shared] ascending, to a
    rank each, and from there to all.

    Three ranks have four tokens each, and share 0, 1 and 2, all of them rank 0's. In the first hop 1 goes to rank 1 and
    2 to rank 2. In the second, rank 0 sends 0, which it shares out itself, to both; rank 1 sends 1 on to rank 2, and
    rank 2 sends 2 to rank 1; nobody sends a row to its owner. So on rank 2 come [2 | 0 | 1], and order is [1, 2, 0].
    On rank 0 the indices of the first hop are [1, 2], taken = [0, 0], and those of its own in the second [0, 1].
    """
    ranks = shards.devices
    parts = [shared[slice(*Shards.even(len(shared), ranks).range(target))] for target in range(ranks)]
    owners = [shards.owners(piece) for piece in parts]

    def first(source: int, target: int) -> Integers:
        own = parts[target][owners[target] == source]
        return _nothing() if source == target else np.union1d(direct.positions(source, target), own)

    def second(source: int, target: int, *, own: bool) -> Integers:
        piece = parts[source]
        if source == target or not len(piece):
            return _nothing()
        to_target = direct.target == target
        held = positions_in(np.stack([direct.start[to_target], direct.stop[to_target]], axis=1))
        is_own = owners[source] == source
        sent = (owners[source] != target) & (is_own if own else ~is_own)
        return np.setdiff1d(piece[sent], held, assume_unique=True)

    everyone, both = range(ranks), (True, False)
    came = [first(source, rank) for source in everyone]
    came_second = [[second(source, rank, own=own) for source in everyone] for own in both]
    goes = [first(rank, target) for target in everyone]
    goes_second = [[second(rank, target, own=own) for target in everyone] for own in both]
    some = len(direct.start) or any((owners[target] != target).any() for target in everyone)
    some_second = any(len(second(*pair, own=own)) for pair in product(everyone, everyone) for own in both)
    held = np.concatenate(came)
    all_came = np.concatenate([held, *came_second[0], *came_second[1]])
    order = np.argsort(all_came, kind="stable")
    start = shards.range(rank)[0]
    twice = None
    if some_second:
        of_own, of_held = (np.concatenate(each) for each in goes_second)
        # What came first ascends: from each rank in order, and ranks hold one stretch after another.
        rows = TokenIndices.first(len(of_own)), TokenIndices(of_held).among(held)
        hops = (Hop(*one) for one in zip(rows, map(_route, goes_second, came_second), strict=True))
        twice = Second(TokenIndices(of_own - start), *hops)
    return Delivery(
        first=Hop(TokenIndices(np.concatenate(goes) - start), _route(goes, came)) if some else None,
        second=twice,
        order=TokenIndices(order),
        positions=all_came[order],
    )


def _route(sent: list[Integers], received: list[Integers]) -> Route:
    return Route(tuple(map(len, sent)), tuple(map(len, received)))


def _nothing() -> Integers:
    return np.zeros(0, np.int64)


@dataclass(eq=False)
class Coming:
    """Rows on their way to this rank, in up to two hops: `own` are tensors [B, heads, tokens, ...] of its shard, and
    `came` the parcels of each that are there, as the delivery's `order` takes them."""

    call: Call
    delivery: Delivery
    own: tuple[Tensor, ...]
    taken: tuple[Tensor, ...] = ()
    flight: Flight | None = None
    came: list[list[Tensor]] = field(default_factory=list)

    def start(self) -> tuple[Tensor, ...]:
        """Sends the first hop; the own tensors, for who reads them from now on."""
        if (second := self.delivery.second) is not None:
            shared = [second.taken.share(x) for x in self.own]
            self.own, self.taken = tuple(x for x, _ in shared), tuple(x for _, x in shared)
        if (hop := self.delivery.first) is not None:
            self.flight, self.own = self.call.send(*((x, hop) for x in self.own))
        return self.own

    def go_on(self) -> None:
        """Starts the second hop, for which it waits for the first."""
        if (second := self.delivery.second) is not None:
            self._land()
            held = [together(parcels or [x[:, :, :0]]) for parcels, x in zip(self.came, self.own, strict=True)]
            pieces = *((x, second.own) for x in self.taken), *((x, second.held) for x in held)
            self.flight, same = self.call.send(*pieces)
            self.came = [[x] for x in same[len(self.own) :]]

    def rows(self) -> tuple[Tensor, ...]:
        """All that came, in the order of its positions."""
        self._land()
        none = (x[:, :, :0] for x in self.own)
        return tuple(self.delivery.order.take(together(x or [y])) for x, y in zip(self.came, none, strict=True))

    def among_own(self, before: int) -> tuple[Tensor, ...]:
        """The own rows as well, before which so many of those that came stand."""
        if self.delivery.second is None and self.delivery.first is not None:
            self._land()
            rank = self.call.rank
            return tuple(together([*x[:rank], own, *x[rank:]]) for x, own in zip(self.came, self.own, strict=True))
        return tuple(inserted(x, own, before) for x, own in zip(self.rows(), self.own, strict=True))

    def _land(self) -> None:
        self.came = self.came or [[] for _ in self.own]
        if self.flight is not None:
            for number, parcels in enumerate(self.call.receive(self.flight)):
                self.came[number % len(self.own)].extend(parcels)
        self.flight = None
