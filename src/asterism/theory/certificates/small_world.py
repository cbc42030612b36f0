"""Measure path lengths and clustering of a graph, compared with a random graph and a ring lattice of equal degree.

The argument of Zaheer 2020, section 2, for random keys beside a window: a random graph has short paths and a large
spectral gap, so that information mixes in few layers; a ring lattice is clustered, as language is; a small world
(Watts and Strogatz 1998) has both. Directions and self loops are left out.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asterism.theory.certificates.graph import Graph, Integers
from asterism.theory.certificates.reach import Layer, propagate_union

Floats = NDArray[np.float64]

SAMPLE = 256
"""How many tokens paths and clustering are averaged over, at most, when there are more than twice as many."""

WORK = 2**27
"""About how many runs of keys clustering looks at; fewer tokens are averaged over when all would take more."""


@dataclass(frozen=True)
class SmallWorld:
    """Figures of one undirected graph.

    `path_length` is the mean number of edges between two tokens that are connected, and `connected` the share of pairs
    that are. `clustering` is the mean share of a token's neighbours' pairs that are neighbours themselves; 0 for tokens
    with fewer than two. Both are over the pairs and neighbourhoods of `sample` tokens. `spectral_gap` is 1 minus the
    second largest eigenvalue of D^(-1/2) A D^(-1/2): 0 when the graph falls apart; None for a single token, and when
    the eigenvalue was not found to a millionth.
    """

    degree: float
    path_length: float | None
    connected: float
    clustering: float
    spectral_gap: float | None
    sample: int


@dataclass(frozen=True)
class Comparison:
    """The figures of a pattern, and those of a random graph and a ring lattice with as many edges."""

    pattern: SmallWorld
    random: SmallWorld
    ring: SmallWorld


def compare(graph: Graph, seed: int = 0) -> Comparison:
    """Measure a graph and its two relatives. `seed` draws the random graph and the sampled tokens."""
    graph = graph.undirected
    edges = graph.edges // 2
    graphs = (graph, random_graph(graph.n, edges, seed), ring(graph.n, edges))
    count = min(map(_sample_size, graphs))
    return Comparison(*(measure(g, seed, count) for g in graphs))


def _sample_size(graph: Graph) -> int:
    """How many tokens' neighbourhoods can be looked at; one costs the runs of all its neighbours."""
    if graph.n <= 2 * SAMPLE:
        return graph.n
    return max(1, min(SAMPLE, WORK * graph.n**2 // (1 + graph.edges * len(graph.runs[0]))))


def measure(graph: Graph, seed: int = 0, count: int = SAMPLE) -> SmallWorld:
    """Measure an undirected graph on `count` sampled tokens, or on all tokens of a graph of at most twice SAMPLE
    tokens.
    """
    n = graph.n
    sample = np.arange(n) if n <= 2 * SAMPLE else np.sort(_generator(seed, n).choice(n, count, replace=False))
    path_length, connected = _path_length(graph, sample)
    clustering = float(np.mean([_clustering(graph, token) for token in sample.tolist()]))
    return SmallWorld(graph.edges / n, path_length, connected, clustering, _spectral_gap(graph), len(sample))


def random_graph(n: int, edges: int, seed: int = 0) -> Graph:
    """`edges` distinct pairs of n tokens, drawn uniformly, in both directions."""
    most, generator = n * (n - 1) // 2, _generator(seed, n)
    wanted = min(edges, most - edges)  # of more than half of the pairs, the ones left out are drawn
    codes = np.arange(0)
    while codes.size < wanted:
        missing = (wanted - codes.size) / (1 - codes.size / most)
        codes = np.sort(np.append(codes, generator.integers(0, most, int(1.5 * missing) + 16)))
        codes = codes[np.diff(codes, prepend=-1) > 0]
    codes = np.sort(generator.choice(codes, wanted, replace=False))
    later = np.floor((1 + np.sqrt(1 + 8 * codes.astype(float))) / 2).astype(np.int64)
    later -= later * (later - 1) // 2 > codes  # where the square root was rounded up
    earlier = codes - later * (later - 1) // 2
    graph = Graph.of_pairs(n, np.append(later, earlier), np.append(earlier, later))
    return graph if wanted == edges else graph.complement.undirected


def ring(n: int, edges: int) -> Graph:
    """The ring lattice: `edges` pairs of n tokens in a circle, nearest ones first, the rest evenly spread."""
    tokens = np.arange(n)
    whole, rest = divmod(edges, n)
    extra = np.arange(rest) * n // max(rest, 1)
    if n % 2 == 0 and whole + 1 == n // 2:  # opposite tokens: half as many pairs
        extra = np.arange(rest)
    query = np.concatenate([tokens, tokens, tokens, extra, (extra + whole + 1) % n])
    start = np.concatenate([tokens - whole, tokens - whole + n, tokens - whole - n, (extra + whole + 1) % n, extra])
    stop = start + np.append(np.full(3 * n, 2 * whole + 1), np.ones(2 * rest, np.int64))
    return Graph.of_runs(n, query, start, stop).undirected


def _generator(seed: int, n: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=[seed, n]))


def _path_length(graph: Graph, sources: Integers) -> tuple[float | None, float]:
    """Mean distance from the sources to the tokens connected to them, and the share of the pairs that are connected."""
    total, reached = 0, len(sources)
    for distance, bits in enumerate(propagate_union(Layer(graph), sources), start=1):
        count = int(np.bitwise_count(bits).sum())
        if count == reached:
            break
        total, reached = total + distance * (count - reached), count
    pairs = len(sources) * (graph.n - 1)
    found = reached - len(sources)
    return (total / found if found else None), (found / pairs if pairs else 1.0)


def _clustering(graph: Graph, token: int) -> float:
    """The share of pairs of the token's neighbours that are neighbours."""
    near = graph.keys(token)
    if len(near) < 2:
        return 0.0
    inside = np.zeros(graph.n, np.int64)
    inside[near] = 1
    below = np.append(0, np.cumsum(inside))
    _, start, stop = graph.runs_of(near)
    return float((below[stop] - below[start]).sum()) / (len(near) * (len(near) - 1))


def _spectral_gap(graph: Graph) -> float | None:
    """1 minus the second largest eigenvalue of the normalised adjacency matrix.

    The matrix is never built: a product with a vector needs differences of its running sums at the ends of runs, which
    a sparse matrix with two entries per run takes. The eigenvector of eigenvalue 1 is known and taken out.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

    n, degrees = graph.n, graph.out_degrees
    if n == 1:
        return None
    if graph.pieces_without(np.arange(0)).any():  # there is a second piece
        return 0.0
    _, start, stop = graph.runs
    ends = np.stack([start, stop], axis=1).astype(np.int32).ravel()
    differences = csr_array((np.tile([-1.0, 1.0], len(start)), ends, 2 * graph.offsets), shape=(n, n + 1))
    weight = 1 / np.sqrt(degrees)
    first = np.sqrt(degrees / degrees.sum())

    def multiply(vector: Floats) -> Floats:
        vector = vector.ravel()
        sums = np.append(0, np.cumsum(weight * vector))
        product = weight * (differences @ sums)
        return product - 2 * first * (first @ vector)  # eigenvalue 1 becomes -1, the least there can be

    if n <= SAMPLE:
        matrix = np.stack([multiply(column) for column in np.eye(n)])
        return float(1 - np.linalg.eigvalsh((matrix + matrix.T) / 2)[-1])
    begin = _generator(0, n).standard_normal(n)
    try:
        operator = LinearOperator((n, n), multiply, dtype=np.float64)
        values = eigsh(operator, k=1, which="LA", v0=begin, ncv=48, maxiter=400, tol=1e-6, return_eigenvectors=False)
    except ArpackNoConvergence:
        return None
    return float(1 - values[0])
