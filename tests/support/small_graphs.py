"""Graphs as boolean matrices: certified, and followed layer by layer without the library."""

import itertools

import numpy as np

from asterism import patterns
from asterism.theory import Certificate, certify
from asterism.theory.certificates.graph import Graph


def graph_of(dense: np.ndarray) -> Graph:
    return Graph.of_pairs(len(dense), *np.nonzero(dense))


def hops_of(cycle: list[np.ndarray]) -> int | None:
    """The least number of layers after which all pairs are connected; None once the layers repeat."""
    state, seen = np.eye(len(cycle[0]), dtype=int), set()
    for number in itertools.count():
        if number % len(cycle) == 0:
            if state.tobytes() in seen:
                return None
            seen.add(state.tobytes())
        state = (cycle[number % len(cycle)].astype(int) @ state > 0).astype(int)
        if state.all():
            return number + 1


def certify_matrices(*cycle: np.ndarray) -> Certificate:
    return certify(patterns.interleave(*map(patterns.explicit, cycle)), len(cycle[0]))
