"""Which universality theorems hold for a pattern at a length, each with a witness or a counterexample.

- Zaheer 2020, Theorem 1: transformers whose graph contains a star approximate every continuous sequence function. A
  star: a hub that reads all tokens and is read by all, and every other token reads itself (Definition 1).
- Yun 2020, Theorem 1, asks of the patterns A^1, ..., A^p that the layers cycle through (Assumption 1): that every token
  reads itself in every pattern; that their union has a Hamiltonian path, an order of the tokens in which each reads the
  one before it; and that some number s of layers connects every token with every token.

Three readings are ours. A layer can do nothing (its projections zero, the residual left), so a star in one pattern of a
cycle is enough. Heads can do nothing, too: a star must lie in the pattern of one head, and heads with patterns of their
own must each contain all self loops, while path and reach are those of their union; a cycle of the heads' patterns, two
heads each, then satisfies the assumption. The hub of a star is a token of the sequence; the theorem adds it to the
input, so a pattern of n tokens serves functions of n - 1 tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from operator import or_

import numpy as np

from asterism.errors import PatternError
from asterism.patterns import Pattern, Schedule, as_schedule
from asterism.theory.certificates.graph import Graph, read_graph
from asterism.theory.certificates.hamiltonian import find_path
from asterism.theory.certificates.reach import find_reach
from asterism.theory.certificates.small_world import Comparison, compare
from asterism.theory.certificates.witnesses import Hub, MissingLoop, NoHub, PathSearch, Reach

MOST_TOKENS = 2**16
"""The longest sequence that can be certified. Reach looks at all n^2 pairs, which are 2^32 at this length."""


@dataclass(frozen=True, eq=False)
class Certificate:
    """The decisions about a schedule at length n. `check()` tests every witness against the rule itself."""

    schedule: Schedule
    n: int
    graphs: tuple[Graph, ...] = field(repr=False)
    hub: Hub | NoHub
    missing_loop: MissingLoop | None
    path: PathSearch
    reach: Reach

    @property
    def star(self) -> bool:
        """Whether Theorem 1 of Zaheer 2020 covers it: some pattern contains a star."""
        return isinstance(self.hub, Hub)

    @property
    def yun(self) -> bool | None:
        """Whether Theorem 1 of Yun 2020 covers it: Assumption 1 holds, fails, or was not decided (None)."""
        answers = (self.self_loops, self.hamiltonian_path, self.full_reach)
        if False in answers:
            return False
        return None if None in answers else True

    @property
    def self_loops(self) -> bool:
        """Condition 1: every token reads itself in every pattern of the cycle."""
        return self.missing_loop is None

    @property
    def hamiltonian_path(self) -> bool | None:
        """Condition 2: the union has a Hamiltonian path; None if undecided."""
        if self.path.path is not None:
            return True
        return False if self.path.obstruction is not None else None

    @property
    def full_reach(self) -> bool | None:
        """Condition 3: some number of layers connects every token with every token; None if undecided."""
        return self.reach.hops is not None if self.reach.decided else None

    @property
    def hops(self) -> int | None:
        """The s of condition 3: after how many layers every token depends on every token."""
        return self.reach.hops

    @property
    def connections(self) -> tuple[int, ...]:
        """Pairs (query, key) that a layer of each pattern connects."""
        return tuple(graph.edges for graph in self.graphs)

    @cached_property
    def small_world(self) -> Comparison:
        """Path length, clustering and spectral gap of the union, and of a random graph and a ring of equal degree."""
        return compare(reduce(or_, self.graphs))

    def check(self) -> list[str]:
        """Test every witness by querying the patterns pair by pair, without graphs or plans. Returns the verified
        claims.

        Raises CertificateError when a witness does not hold.
        """
        from asterism.theory.certificates.check import check

        return check(self)

    def explain(self) -> str:
        """The certificate in words, one line per condition."""
        from asterism.theory.certificates.explain import explain

        return explain(self)

    def summary(self) -> dict[str, object]:
        """The certificate for machines: plain values."""
        from asterism.theory.certificates.explain import summary

        return summary(self)


def certify(pattern: Pattern | Schedule | str, n: int) -> Certificate:
    """Decide which universality theorems hold for a pattern, a schedule, or the text of one, at length n.

    Stars, self loops and reach are decided exactly (for patterns without self loops, see `find_reach`). The Hamiltonian
    path may remain undecided (see `find_path`). Memory grows with the runs of keys that queries read, not with n^2.
    Time grows with n^2 / 64 per layer. Raises PatternError for n < 1 and n > MOST_TOKENS, and for a pattern that cannot
    be compiled at that length.
    """
    schedule = as_schedule(pattern)
    if not 1 <= n <= MOST_TOKENS:
        raise PatternError(
            "certify-length", f"certify visits all pairs of tokens: n must be from 1 to {MOST_TOKENS:,}, got {n:,}"
        )
    heads = [[read_graph(part, n, head) for head in range(part.heads)] for part in schedule.patterns]
    graphs = tuple(reduce(or_, row) for row in heads)
    return Certificate(
        schedule, n, graphs, find_hub(heads), _missing_loop(heads), find_path(reduce(or_, graphs)), find_reach(graphs)
    )


def find_hub(heads: Sequence[Sequence[Graph]]) -> Hub | NoHub:
    """The first hub of the first pattern and head that has one, else why each token is none."""
    missing = {}
    for pattern, row in enumerate(heads):
        for head, graph in enumerate(row):
            without_loop = np.flatnonzero(~graph.loops)
            hubs = graph.hubs[[without_loop[without_loop != hub].size == 0 for hub in graph.hubs.tolist()]]
            if hubs.size:
                return Hub(pattern, head, int(hubs[0]))
            missing[pattern, head] = np.array([_missing_spoke(graph, token) for token in range(graph.n)])
    return NoHub(missing)


def _missing_spoke(graph: Graph, hub: int) -> tuple[int, int]:
    """A pair of the star of a hub that the graph lacks."""
    others = graph.n - 1
    if graph.out_degrees[hub] - graph.loops[hub] < others:
        keys = graph.keys(hub)
        absent = np.setdiff1d(np.arange(min(len(keys) + 2, graph.n)), np.append(keys, hub))
        return hub, int(absent[0])
    if graph.in_degrees[hub] - graph.loops[hub] < others:
        tokens = np.delete(np.arange(graph.n), hub)
        return int(tokens[~graph.has(tokens, hub)][0]), hub
    silent = np.flatnonzero(~graph.loops)
    token = int(silent[silent != hub][0])
    return token, token


def _missing_loop(heads: Sequence[Sequence[Graph]]) -> MissingLoop | None:
    for pattern, row in enumerate(heads):
        for head, graph in enumerate(row):
            if not graph.loops.all():
                return MissingLoop(pattern, head, int(np.argmin(graph.loops)))
    return None
