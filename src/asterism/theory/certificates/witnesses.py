"""The evidence of a certificate: witnesses that a condition holds, and counterexamples if it fails.

Plain data, shared by the search that finds them and the checker that tests them. Neither imports the other, so this
file imports no graph, no plan and no pattern.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]


@dataclass(frozen=True)
class _Place:
    """A token, in the pattern of this number and head."""

    pattern: int
    head: int
    token: int


@dataclass(frozen=True)
class Hub(_Place):
    """A star: the token is its hub."""


@dataclass(frozen=True)
class MissingLoop(_Place):
    """The token does not read itself."""


@dataclass(frozen=True, eq=False)
class NoHub:
    """For every pattern and head, int64 [n, 2]: row v is a pair (query, key) of the star of hub v that is missing."""

    missing: dict[tuple[int, int], Integers]


@dataclass(frozen=True, eq=False)
class TooFewPredecessors:
    """No path: the members of `tokens` together read at most len(tokens) - 2 tokens beside themselves.

    All tokens of a path but the first need predecessors, each its own (Hall's condition).
    """

    tokens: Integers
    predecessors: Integers

    def __str__(self) -> str:
        return (
            f"{len(self.tokens):,} tokens have only {len(self.predecessors):,} possible predecessors between them,"
            f" and a path needs {len(self.tokens) - 1:,}"
        )


@dataclass(frozen=True, eq=False)
class Unconnected:
    """No path: neither of two tokens depends on the other, so neither can come later.

    `first_reads` and `second_reads`, bool [n], hold all that each token depends on, and not the other one.
    """

    first: int
    second: int
    first_reads: Booleans
    second_reads: Booleans

    def __str__(self) -> str:
        return f"tokens {self.first} and {self.second} never depend on each other, so neither can come later"


@dataclass(frozen=True, eq=False)
class Separator:
    """No path: without the tokens `removed` the graph falls into more than len(removed) + 1 pieces.

    `piece`, int64 [n], numbers each token's piece, -1 for those removed; no pair across pieces is allowed.
    """

    removed: Integers
    piece: Integers

    @property
    def pieces(self) -> int:
        return int(self.piece.max()) + 1

    def __str__(self) -> str:
        count = len(self.removed)
        if count == 0:
            return f"the graph falls into {self.pieces:,} pieces that nothing connects"
        which = f"token {self.removed[0]}" if count == 1 else f"{count:,} of its tokens"
        return (
            f"without {which} the graph falls into {self.pieces:,} pieces, and a path would leave at most {count + 1:,}"
        )


@dataclass(frozen=True)
class Exhausted:
    """No path: all sets of tokens were searched."""

    n: int

    def __str__(self) -> str:
        return f"all 2^{self.n} sets of tokens were searched"


Obstruction = TooFewPredecessors | Unconnected | Separator | Exhausted


@dataclass(frozen=True, eq=False)
class PathSearch:
    """`path` int64 [n] (gamma: each token reads the one before it), or an `obstruction`, or neither: not decided.

    `tried` names what was tried, in its order, and `left_out` what was not because the graph has too many edges.
    """

    path: Integers | None
    obstruction: Obstruction | None
    tried: tuple[str, ...]
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Never:
    """A pair that no number of layers connects: query `query` never depends on key `key`.

    The proof is `closed`, bool [n]: it holds every key that the query reads and every key that one of its members
    reads, in every pattern, and `key` is not among them.
    """

    query: int
    key: int
    closed: Booleans


@dataclass(frozen=True, eq=False)
class Reach:
    """Layers to full reach.

    `hops` is the least s after which every token depends on every token; `straggler` is a pair (query, key) that is not
    connected after s - 1 layers. Otherwise `never` is a pair that is never connected. When there is none and `repeats`,
    each pair is connected after some number of layers, but not all after the same one: the layers repeat before that.
    When neither holds, nothing was decided. `fractions[t - 1]` is the share of all n^2 pairs connected after t layers.
    """

    n: int
    hops: int | None
    straggler: tuple[int, int] | None
    never: Never | None
    repeats: bool
    fractions: tuple[float, ...]

    @property
    def decided(self) -> bool:
        """Whether it is known that full reach comes, or that it never does."""
        return self.hops is not None or self.never is not None or self.repeats

    @property
    def layers(self) -> int:
        """The number of layers that were followed."""
        return len(self.fractions)
