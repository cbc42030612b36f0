"""Hamiltonian paths: found, proved impossible, or not decided."""

import itertools

import networkx as nx
import numpy as np
import pytest

pytest.importorskip("scipy")

from small_graphs import certify_matrices, graph_of, hops_of

from asterism import patterns
from asterism.errors import PatternError
from asterism.theory import certify
from asterism.theory.certificates.graph import read_graph
from asterism.theory.certificates.hamiltonian import (
    EXACT,
    Separator,
    TooFewPredecessors,
    Unconnected,
    exact_path,
    find_path,
    is_path,
)


@pytest.mark.parametrize(
    ("text", "n", "found_by"),
    [
        ("window(right=3)", 50, "the reversed order"),
        ("longformer(8, dilation=3, globals=(0, 5))", 200, "pieces in their natural order, joined by hubs"),
        ("bigbird(block=64, window_blocks=1, random=0)", 200, "pieces in their natural order, joined by hubs"),
        ("stride(3) | columns(8)", 20, "all sets of tokens"),
        ("stride(3) | columns(8)", 200, "rotations per token"),
        ("~window(2, 2)", 60, "rotations per token"),
        ("yun_random(12)", 400, "joining the cycles"),
    ],
)
def test_paths_are_found(text: str, n: int, found_by: str):
    graph = read_graph(patterns.parse(text), n)
    search = find_path(graph)
    assert found_by in search.tried[-1]
    assert is_path(graph, search.path)


def test_a_path_that_only_grows_takes_work_by_its_edges(monkeypatch):
    """600 tokens with 595 neighbours each: 357,000 numbers and 600 small steps."""
    monkeypatch.setattr("asterism.theory.certificates.hamiltonian.WORK", 2**20)
    search = find_path(read_graph(patterns.parse("~window(2, 2)"), 600))
    assert "rotations per token" in search.tried[-1] and search.path is not None


@pytest.mark.parametrize(
    "text",
    [
        "strided(8)",
        "fixed(8)",
        "bigbird(block=4)",
        "bigbird_etc(block=4)",
        "bigbird_causal(block=4)",
        "longformer(8)",
        "longformer(8, dilation=2)",
        "sinks(4, 8)",
        "star_transformer()",
        "yun_strided(8)",
        "yun_fixed(7)",
        "yun_star()",
        "yun_window(4)",
    ],
)
def test_published_patterns_have_closed_forms(text: str):
    """All but yun_random, and the bare star, which has no path."""
    search = find_path(read_graph(patterns.parse(text), 100))
    assert search.path is not None
    assert len(search.tried) <= 3 and "order" in search.tried[-1]


@pytest.mark.parametrize(
    ("text", "n", "kind"),
    [
        ("star()", 200, Separator),
        ("stride(3)", 200, Separator),
        ("bigbird(block=8, window_blocks=1, random=0)", 200, Separator),
        ("window(2, dilation=2) | global_keys(0)", 200, TooFewPredecessors),
        ("blocks(5) | global_queries(7)", 5 * 8, Separator),
        ("columns(4) | window()", 30, Separator),
    ],
)
def test_obstructions_are_proved(text: str, n: int, kind: type):
    certificate = certify(text, n)
    assert certificate.hamiltonian_path is False
    assert isinstance(certificate.path.obstruction, kind)
    assert any("no Hamiltonian path" in line for line in certificate.check())


def test_two_tokens_that_never_depend_on_each_other():
    """Two rings that read a third one: connected, with a cycle cover, and yet no path."""
    dense = np.kron(np.eye(3, dtype=bool), np.roll(np.eye(10, dtype=bool), 1, axis=1))
    dense[0, 20] = dense[10, 20] = dense[20, 21] = dense[3, 22] = dense[14, 25] = dense[5, 24] = dense[16, 28] = True
    certificate = certify_matrices(dense)
    assert isinstance(certificate.path.obstruction, Unconnected)
    certificate.check()


def gadgets() -> nx.Graph:
    """Four copies of the Petersen graph without a token, joined like the tokens of K4: 36 tokens and no path.

    A copy without an end of the path is passed in one go, from one of its three doors to another; that would close to a
    Hamiltonian cycle of the Petersen graph, which has none. Only two copies can hold an end.
    """
    doors, graph = list(nx.petersen_graph().neighbors(9)), nx.Graph()
    copy = nx.petersen_graph().subgraph(range(9))
    for number in range(4):
        graph.update(nx.relabel_nodes(copy, {token: (number, token) for token in copy}))
    for first, second in itertools.combinations(range(4), 2):
        graph.add_edge((first, doors[second - 1]), (second, doors[first]))
    return nx.convert_node_labels_to_integers(graph)


def test_not_decided_is_said_with_what_was_tried():
    theirs = nx.petersen_graph().subgraph(range(9))
    for first, last in itertools.combinations(nx.petersen_graph().neighbors(9), 2):
        assert max(map(len, nx.all_simple_paths(theirs, first, last))) < 9
    assert {degree for _, degree in gadgets().degree} == {3}
    certificate = certify_matrices((nx.to_numpy_array(gadgets()) > 0) | np.eye(36, dtype=bool))
    assert (certificate.yun, certificate.hamiltonian_path, certificate.full_reach) == (None, None, True)
    assert certificate.path.left_out == ()
    tried = "; ".join(certificate.path.tried)
    for what in ("natural order", "separators", "too few predecessors", "never depend", "rotations", "matchings"):
        assert what in tried
    assert f"2 Hamiltonian path in the union   not decided  tried {tried}\n" in certificate.explain()
    assert "Hamiltonian path: nothing was claimed" in certificate.check()
    assert certificate.summary()["yun"] is None


def test_what_too_many_edges_leave_out_is_not_said_to_be_tried(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("asterism.theory.certificates.hamiltonian._SEARCHED_EDGES", 100)
    certificate = certify("stride(3) | columns(8)", 200)
    tried, left_out = certificate.path.tried, certificate.path.left_out
    assert [name for name in tried if "separators" in name] == [tried[-1]]
    assert len(left_out) == 4 and not {*tried} & {*left_out}
    assert certificate.hamiltonian_path is None
    assert (
        f"tried {'; '.join(tried)}; skipped, because the graph has too many edges: {'; '.join(left_out)}"
        in certificate.explain()
    )
    assert certificate.summary()["left_out"] == list(left_out)


def wielandt(n: int) -> np.ndarray:
    """A ring with a shortcut of one token: full reach takes (n - 1)^2 + 1 layers, the most that there can be."""
    dense = np.roll(np.eye(n, dtype=bool), 1, axis=1)
    dense[n - 1, 1] = True
    return dense


def test_reach_that_is_not_decided():
    """Without self loops: layers followed without end, and a token that reads nothing in one pattern of a cycle."""
    assert hops_of([wielandt(8)]) == 50
    empty_row = patterns.interleave(patterns.dense(), patterns.dense() & ~patterns.global_queries(3))
    for certificate in (certify_matrices(wielandt(100)), certify(empty_row, 1100)):
        assert (certificate.hops, certificate.full_reach, certificate.self_loops) == (None, None, False)
        assert "3 every token reached             not decided" in certificate.explain()
        assert certificate.check()[-1] == "reach: nothing was claimed"


def test_a_search_without_result_lists_what_was_tried():
    theirs = nx.random_regular_graph(3, 300, seed=1)
    search = find_path(graph_of(nx.to_numpy_array(theirs) > 0))
    assert search.obstruction is None
    assert search.path is None or is_path(graph_of(nx.to_numpy_array(theirs) > 0), search.path)
    assert [name for name in search.tried if "rotations" in name]


def test_exact_search_is_refused_above_its_limit():
    with pytest.raises(PatternError, match=rf"all 2\^n sets of tokens: {EXACT + 1} tokens exceed its limit"):
        exact_path(read_graph(patterns.window(1, 1), EXACT + 1))


def test_exact_search_finds_what_no_closed_form_does():
    petersen = nx.to_numpy_array(nx.petersen_graph()) > 0
    assert is_path(graph_of(petersen), exact_path(graph_of(petersen)))
    theta = nx.Graph([(0, a) for a in (2, 4, 6)] + [(2, 3), (4, 5), (6, 7)])  # a spider with three legs
    dense = nx.to_numpy_array(theta, nodelist=[0, 2, 3, 4, 5, 6, 7]) > 0
    assert exact_path(graph_of(dense)) is None
