"""Graphs of patterns, which tokens depend on which after how many layers, and small worlds."""

import math

import networkx as nx
import numpy as np
import pytest

pytest.importorskip("scipy")

from small_graphs import certify_matrices, graph_of

from asterism import patterns
from asterism.theory import certify
from asterism.theory.certificates.graph import read_graph
from asterism.theory.certificates.reach import first_layers
from asterism.theory.certificates.small_world import compare, measure, random_graph, ring

# --- reach ------------------------------------------------------------------------------------------------------------


def test_the_order_of_the_cycle_matters():
    """S^t unites S^(t-1) over the keys of pattern t: the last layer is the one applied last."""
    first, second = np.eye(3, dtype=bool), np.eye(3, dtype=bool)
    first[1, 0] = second[2, 1] = True
    layers = first_layers([graph_of(first), graph_of(second)], 3, 4)
    assert layers[2, 0] == 2  # 1 reads 0, then 2 reads 1
    layers = first_layers([graph_of(second), graph_of(first)], 3, 4)
    assert layers[2, 0] == 3


def test_reach_without_self_loops_may_repeat_for_ever():
    ring_of_5 = np.roll(np.eye(5, dtype=bool), 1, axis=1)
    certificate = certify_matrices(ring_of_5)
    assert (certificate.hops, certificate.full_reach, certificate.reach.never) == (None, False, None)
    assert certificate.reach.repeats
    assert "never connect all pairs at once" in certificate.explain()
    assert "the layers repeat and never connect all pairs at once" in certificate.check()[-1]


def test_reach_of_long_sequences_is_followed_in_blocks():
    """More keys than a block holds: the same as from boolean matrices."""
    n = 1100
    pattern = patterns.blocks(40) | patterns.columns(90, first=7)
    certificate = certify(patterns.interleave(pattern, patterns.window(20, 3)), n)
    parts = [pattern.dense(n)[0], patterns.window(20, 3).dense(n)[0]]
    state, shares = np.eye(n, dtype=np.float32), []
    while not state.all():
        state = (parts[len(shares) % 2].astype(np.float32) @ state > 0).astype(np.float32)
        shares.append(state.mean(dtype=np.float64))
    assert certificate.hops == len(shares)
    np.testing.assert_allclose(certificate.reach.fractions, shares, rtol=1e-12)


def test_first_layers_of_a_window():
    tokens = np.arange(12)
    distance = np.abs(tokens[:, None] - tokens)
    exact = np.maximum(-(-distance // 2), 1)
    graphs = [read_graph(patterns.window(2, 2), 12)]
    assert (first_layers(graphs, 12, 6) == exact).all()
    assert (first_layers(graphs, 4, 6) == exact.reshape(4, 3, 4, 3).max(axis=(1, 3))).all()
    assert (first_layers(graphs, 12, 2) == np.where(exact > 2, 0, exact)).all()


# --- graphs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "dense()",
        "causal()",
        "stride(3)",
        "bigbird(block=3, heads=2)",
        "yun_strided(5)",
        "fixed(4, 2)",
        "star_transformer()",
    ],
)
@pytest.mark.parametrize("n", [1, 7, 70])
def test_a_graph_is_the_dense_picture(text: str, n: int):
    pattern = patterns.parse(text)
    for head in range(pattern.heads):
        dense, graph, tokens = pattern.dense(n)[head], read_graph(pattern, n, head), np.arange(n)
        assert (graph.has(tokens[:, None], tokens) == dense).all()
        assert (graph.transposed.has(tokens[:, None], tokens) == dense.T).all()
        assert (graph.complement.has(tokens[:, None], tokens) == ~dense).all()
        both = (dense | dense.T) & ~np.eye(n, dtype=bool)
        assert (graph.undirected.has(tokens[:, None], tokens) == both).all()
        assert (graph.out_degrees == dense.sum(axis=1)).all()
        assert (graph.in_degrees == dense.sum(axis=0)).all()
        assert all((graph.keys(token) == np.flatnonzero(dense[token])).all() for token in tokens)


def test_a_dense_row_is_one_run():
    assert len(read_graph(patterns.dense(), 5000).reads.starts) == 5000


@pytest.mark.parametrize(
    ("text", "n"),
    [("bigbird(block=4)", 60), ("star()", 40), ("yun_strided(5)", 50), ("stride(3)", 21), ("random_blocks(2, 2)", 70)],
)
def test_small_world_figures_agree_with_networkx(text: str, n: int):
    graph = read_graph(patterns.parse(text), n).undirected
    figures = measure(graph)
    theirs = nx.Graph(zip(*(column.tolist() for column in graph.pairs()), strict=True))
    paths = [d for _, lengths in nx.all_pairs_shortest_path_length(theirs) for d in lengths.values() if d]
    assert figures.path_length == pytest.approx(np.mean(paths))
    assert figures.connected == pytest.approx(len(paths) / (n * (n - 1)))
    assert figures.clustering == pytest.approx(nx.average_clustering(theirs))
    assert figures.spectral_gap == pytest.approx(sorted(nx.normalized_laplacian_spectrum(theirs))[1], abs=1e-9)


def test_spectral_gap_of_a_ring_too_long_for_a_matrix():
    n = 1500
    figures = measure(ring(n, 2 * n))
    eigenvalue = (math.cos(2 * math.pi / n) + math.cos(4 * math.pi / n)) / 2
    assert figures.spectral_gap == pytest.approx(1 - eigenvalue, abs=1e-6)
    assert figures.clustering == pytest.approx(0.5)


@pytest.mark.parametrize("n", [2, 3, 6, 9, 12])
def test_relatives_have_as_many_edges(n: int):
    for edges in range(n * (n - 1) // 2 + 1):
        for graph in (ring(n, edges), random_graph(n, edges)):
            assert graph.edges == 2 * edges
            assert not graph.loops.any()


def test_fewer_tokens_are_looked_at_where_each_takes_long(monkeypatch: pytest.MonkeyPatch):
    """The same number in all three graphs, and said so."""
    graph = read_graph(patterns.stride(8), 600)
    full = compare(graph)
    monkeypatch.setattr("asterism.theory.certificates.small_world.WORK", 2**19)
    world = compare(graph)
    assert full.pattern.sample == 256
    assert 10 < world.pattern.sample == world.random.sample == world.ring.sample < 256
    assert world.pattern.clustering == pytest.approx(full.pattern.clustering)


def test_bigbird_is_a_small_world():
    world = certify("bigbird(block=8)", 512).small_world
    assert world.pattern.path_length < 0.8 * world.ring.path_length
    assert world.pattern.clustering > 2 * world.random.clustering
    assert world.pattern.spectral_gap > 2 * world.ring.spectral_gap
