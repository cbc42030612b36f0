"""Certificates: against exhaustive search on small graphs, against facts of the papers, and against their checkers."""

import itertools
import json
import math
import time

import numpy as np
import oracle
import pytest
from refusals import refusing

pytest.importorskip("scipy")

from small_graphs import certify_matrices, graph_of, hops_of

from asterism import patterns
from asterism.cli.main import main
from asterism.errors import AsterismError, CertificateError
from asterism.theory import Certificate, certify
from asterism.theory.certificates.graph import read_graph
from asterism.theory.certificates.hamiltonian import (
    Exhausted,
    PathSearch,
    Separator,
    TooFewPredecessors,
    Unconnected,
    find_path,
    is_path,
)
from asterism.theory.certificates.reach import find_reach
from asterism.theory.certificates.universality import find_hub
from asterism.theory.certificates.witnesses import Hub, MissingLoop, Never, Reach

CAUSAL = ("causal()", "strided(8)", "fixed(8, summary=2)", "sinks(2, 4)", "bigbird_causal(block=4)")


def cycle(text: str) -> patterns.Schedule:
    """The parts of a published pattern, layer by layer."""
    return patterns.interleave(*patterns.parse(text).parts)


# --- independent definitions, by brute force on boolean matrices ------------------------------------------------------


def has_star(dense: np.ndarray) -> bool:
    star = [np.eye(len(dense), dtype=bool) for _ in dense]
    for hub, spokes in enumerate(star):
        spokes[hub], spokes[:, hub] = True, True
        spokes[hub, hub] = False
    return any((dense >= spokes).all() for spokes in star)


def has_path(union: np.ndarray) -> bool:
    """Try every order that can be continued token by token."""
    readers = [np.flatnonzero(union[:, token]).tolist() for token in range(len(union))]

    def extend(last: int, left: frozenset[int]) -> bool:
        return not left or any(extend(token, left - {token}) for token in readers[last] if token in left)

    tokens = frozenset(range(len(union)))
    return any(extend(token, tokens - {token}) for token in tokens)


def agrees(cycle: list[np.ndarray], certificate: Certificate) -> None:
    loops = all(dense.diagonal().all() for dense in cycle)
    path, hops = has_path(np.logical_or.reduce(cycle)), hops_of(cycle)
    found = (certificate.star, certificate.self_loops, certificate.hamiltonian_path, certificate.hops)
    assert found == (any(map(has_star, cycle)), loops, path, hops), (cycle, certificate)
    assert certificate.full_reach == (hops is not None)
    assert certificate.yun == (loops and path and hops is not None)


def matrices(n: int) -> np.ndarray:
    """Every directed graph on n vertices, self loops included: bool [2^(n^2), n, n]."""
    codes = np.arange(1 << n * n)[:, None]
    return ((codes >> np.arange(n * n)) & 1).astype(bool).reshape(-1, n, n)


def one_of_each_kind(graphs: np.ndarray) -> np.ndarray:
    """One graph of every isomorphism class: the one of the least code among its relabellings."""
    n = graphs.shape[1]
    weights = 1 << np.arange(n * n)
    codes = [
        graphs[:, order][:, :, order].reshape(len(graphs), -1) @ weights
        for order in map(list, itertools.permutations(range(n)))
    ]
    return graphs[np.min(codes, axis=0) == codes[0]]


def test_every_graph_on_up_to_3_vertices_and_kinds_on_4():
    """On 4 vertices: one of each kind with no self loop and with all of them, and some of the others."""
    kinds = one_of_each_kind(matrices(4))
    assert len(kinds) == 3044  # relations on 4 unlabelled points
    loops = kinds.diagonal(axis1=1, axis2=2).sum(axis=1)
    assert ((loops == 0).sum(), (loops == 4).sum()) == (218, 218)
    some = np.random.default_rng(4).random(len(kinds)) < 0.15
    for dense in [dense for n in (1, 2, 3) for dense in matrices(n)]:
        agrees([dense], certify(patterns.explicit(dense), len(dense)))
    for dense in kinds[(loops % 4 == 0) | some]:
        agrees_as_graph(dense)


@pytest.mark.slow
def test_every_graph_on_4_vertices():
    for dense in matrices(4):
        agrees_as_graph(dense)


def agrees_as_graph(dense: np.ndarray) -> None:
    """The same agreement without the compiler, whose work on tens of thousands of explicit patterns takes long."""
    graph = graph_of(dense)
    search, reach = find_path(graph), find_reach([graph])
    assert reach.hops == hops_of([dense])
    assert reach.decided
    assert (search.path is not None) == has_path(dense)
    assert (search.path is None) == (search.obstruction is not None)
    assert search.path is None or is_path(graph, search.path)
    assert isinstance(find_hub([[graph]]), Hub) == has_star(dense)


def test_random_graphs_on_5_to_8_vertices():
    random = np.random.default_rng(5)
    for number in range(300):
        n = 5 + number % 4
        dense = random.random((n, n)) < random.choice([0.15, 0.3, 0.5])
        dense |= np.eye(n, dtype=bool) & (random.random() < 0.7)
        agrees([dense], certify(patterns.explicit(dense), n))


def test_random_cycles_of_explicit_patterns_through_the_whole_library():
    random = np.random.default_rng(6)
    for number in range(60):
        n, period = 2 + number % 5, 1 + number % 3
        cycle = [(random.random((n, n)) < 0.5) | (np.eye(n, dtype=bool) & (number % 4 > 0)) for _ in range(period)]
        certificate = certify_matrices(*cycle)
        agrees(cycle, certificate)
        assert len(certificate.check()) == 4


# --- the list of the certificates that must be right ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "n", "star", "yun", "hops"),
    [
        ("star()", 3, True, True, 2),
        ("star()", 4, True, False, 2),
        ("star()", 64, True, False, 2),
        ("star() | window(1, 1)", 64, True, True, 2),
        ("star_transformer()", 64, True, True, 2),
        ("yun_star()", 64, True, True, 2),
        ("yun_window(4)", 64, False, True, 32),
        ("bigbird(block=4)", 64, True, True, 2),
        ("bigbird(block=4, random=0)", 64, True, True, 2),
        ("bigbird(block=4, random=2, heads=3, seed=1)", 64, True, True, 2),
        ("dense()", 64, True, True, 1),
        ("dense()", 1, True, True, 1),
        ("dense() & ~(global_queries(3) & global_keys(3))", 9, True, False, 2),
        ("window(1, 1) & ~(global_queries(3) & global_keys(3))", 9, False, False, 8),
        ('explicit("0:0-1;1:0-1;2:2-3;3:2-3")', 4, False, False, None),
        ("stride(2)", 64, False, False, None),
        (cycle("yun_fixed(4)"), 16, False, True, 2),
        (cycle("yun_fixed(4)"), 18, False, False, None),
        (cycle("yun_strided(4)"), 16, False, True, 3),
        ("yun_fixed(4)", 16, False, True, 2),
        ("yun_fixed(4)", 18, False, False, None),
        ("yun_strided(4)", 16, False, True, 3),
        ("window() & ~window()", 5, False, False, None),
        *((text, 32, False, False, None) for text in CAUSAL),
    ],
)
def test_certificates_of_patterns(text: str | patterns.Schedule, n: int, star: bool, yun: bool, hops: int | None):
    certificate = certify(text, n)
    assert (certificate.star, certificate.yun, certificate.hops) == (star, yun, hops)
    assert len(certificate.check()) == 4


def test_a_disconnected_pattern_names_two_tokens():
    certificate = certify('explicit("0:0-1;1:0-1;2:2-3;3:2-3")', 4)
    assert (certificate.reach.never.query, certificate.reach.never.key) == (0, 2)
    assert "token 0 never depends on token 2, after any number of layers" in certificate.explain()
    assert "the graph falls into 2 pieces that nothing connects" in certificate.explain()


def test_star_needs_two_layers_and_names_its_hub():
    certificate = certify(patterns.star(), 64)
    assert certificate.hub == Hub(0, 0, 0)
    assert certify("yun_star()", 64).hub == Hub(0, 0, 63)
    assert certificate.connections == (3 * 64 - 2,)


@pytest.mark.parametrize("n", [4, 5, 20, 21, 300])
def test_the_bare_star_has_no_hamiltonian_path(n: int):
    """Condition 2 fails from 4 tokens on; ring edges restore it."""
    certificate = certify("star()", n)
    assert (certificate.hamiltonian_path, certificate.self_loops, certificate.full_reach) == (False, True, True)
    assert isinstance(certificate.path.obstruction, Separator)
    assert certify("star_transformer()", n).yun


@pytest.mark.parametrize("n", [3, 8, 15, 16, 17, 31, 40, 63, 64])
@pytest.mark.parametrize("w", [2, 4, 8])
def test_fixed_reaches_all_in_two_layers_exactly_when_w_divides_n(n: int, w: int):
    if n <= w:
        return
    certificate = certify(cycle(f"yun_fixed({w})"), n)
    assert certificate.hops == (2 if n % w == 0 else None)
    assert certificate.yun == (n % w == 0)
    if n % w:
        assert certificate.reach.never.key >= n - n % w  # a token after the last whole block


@pytest.mark.parametrize(("n", "w"), [(16, 4), (64, 8), (256, 16)])
def test_fixed_in_the_other_order_takes_three_layers(n: int, w: int):
    block, column = patterns.yun_fixed(w).parts
    assert certify(patterns.interleave(block, column), n).hops == 2
    assert certify(patterns.interleave(column, block), n).hops == 3


@pytest.mark.parametrize(
    ("n", "w", "hops"),
    [(4, 2, 2), (16, 4, 3), (16, 5, 3), (25, 5, 3), (64, 8, 3), (64, 9, 3), (256, 8, 3), (256, 16, 3), (256, 32, 3)],
)
def test_strided_as_written_takes_three_layers(n: int, w: int, hops: int):
    assert certify(cycle(f"yun_strided({w})"), n).hops == hops
    wider = patterns.interleave(patterns.window(w, w), patterns.stride(w))
    assert certify(wider, n).hops == 2


@pytest.mark.parametrize(("n", "w"), [(16, 4), (64, 8), (10, 2), (11, 6), (100, 7)])
def test_a_window_takes_as_many_layers_as_steps_to_the_far_end(n: int, w: int):
    assert certify(f"yun_window({w})", n).hops == math.ceil((n - 1) / (w // 2))


@pytest.mark.parametrize("text", CAUSAL)
@pytest.mark.parametrize("parts", [False, True])
def test_causal_patterns_never_reach_the_future(text: str, parts: bool):
    asked = cycle(text) if parts and hasattr(patterns.parse(text), "parts") else text
    certificate = certify(asked, 32)
    assert (certificate.full_reach, certificate.yun) == (False, False)
    assert certificate.reach.never.query < certificate.reach.never.key
    assert "no token reads a later one" in certificate.explain()


def test_a_missing_self_loop_is_named():
    holes = patterns.window(1, 1) & ~(patterns.global_queries(3) & patterns.global_keys(3))
    certificate = certify(patterns.interleave(patterns.dense(), holes), 9)
    assert certificate.missing_loop == MissingLoop(1, 0, 3)
    assert certificate.yun is False
    assert "token 3 does not of pattern 2" in certificate.explain()


def test_heads_with_patterns_of_their_own():
    """A star must lie in one head, loops in every head; path and reach are those of the union."""
    halves = patterns.per_head([patterns.window(1, 0), patterns.window(0, 1)])
    assert certify(halves, 8).yun is True
    split_star = patterns.per_head(
        [patterns.global_keys(0) | patterns.window(), patterns.global_queries(0) | patterns.window()]
    )
    certificate = certify(split_star, 8)
    assert (certificate.star, certificate.hops) == (False, 2)
    loopless = patterns.per_head([patterns.dense(), patterns.dense() & ~patterns.window()])
    assert certify(loopless, 8).missing_loop == MissingLoop(0, 1, 0)
    assert certify(loopless, 8).hub == Hub(0, 0, 0)
    for pattern in (halves, split_star, loopless):
        assert len(certify(pattern, 8).check()) == 4


def test_a_star_in_one_pattern_of_a_cycle_is_enough():
    certificate = certify(patterns.interleave(patterns.window(1, 1), patterns.star()), 16)
    assert certificate.hub == Hub(1, 0, 0)
    assert "hub 0 of pattern 2" in certificate.explain()


# --- checkers ---------------------------------------------------------------------------------------------------------


def forged(certificate: Certificate, **changes: object) -> Certificate:
    values = {
        name: getattr(certificate, name) for name in ("schedule", "n", "graphs", "hub", "missing_loop", "path", "reach")
    }
    return Certificate(**(values | changes))


def none(n: int) -> np.ndarray:
    return np.zeros(n, bool)


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("window(1, 1)", {"hub": Hub(0, 0, 3)}),
        ("star()", {"hub": certify("window(1, 1)", 8).hub}),
        ("window(1, 1)", {"missing_loop": MissingLoop(0, 0, 2)}),
        ("window(1, 1) & ~window()", {"missing_loop": None}),
        ("window(1, 1)", {"path": PathSearch(np.array([0, 1, 2, 3, 5, 4, 6, 7]), None, ())}),
        ("window(1, 1)", {"path": PathSearch(np.array([0, 1, 2, 3, 4, 5, 6, 6]), None, ())}),
        ("window(1, 1)", {"path": PathSearch(None, Exhausted(8), ())}),
        ("window(1, 1)", {"path": PathSearch(None, TooFewPredecessors(np.arange(3), np.arange(1)), ())}),
        ("window(1, 1)", {"path": PathSearch(None, Unconnected(0, 5, none(8), none(8)), ())}),
        ("window(1, 1)", {"path": PathSearch(None, Separator(np.array([3]), np.array([0, 1, 2, -1, 2, 2, 2, 2])), ())}),
        ("window(1, 1)", {"reach": Reach(8, 6, (0, 7), None, False, (1.0,))}),
        ("window(1, 1)", {"reach": Reach(8, 8, (0, 7), None, False, (1.0,))}),
        ("window(1, 1)", {"reach": Reach(8, 7, None, None, False, (1.0,))}),
        ("window(1, 1)", {"reach": Reach(8, None, None, Never(0, 5, none(8)), True, (1.0,))}),
        ("window(1, 1)", {"reach": Reach(8, None, None, None, True, (1.0,))}),
    ],
)
def test_checkers_refuse_false_witnesses(text: str, changes: dict[str, object]):
    certificate = certify(text, 8)
    certificate.check()
    with refusing(CertificateError, "wrong-certificate"):
        forged(certificate, **changes).check()


def test_checks_of_long_sequences_follow_some_keys():
    lines = certify("yun_window(64)", 2048).check()
    assert "keys, drawn at random, reach every token in 64 layers" in lines[-1]


# --- scale, words, refusals -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "hops", "seconds"),
    [
        ("interleave(window(32, 32), stride(64))", 3, 15),
        ("bigbird()", 2, 15),
        ("dense()", 1, 15),
        ("star()", 2, 15),
        ("yun_window(64)", 128, 15),
        # 8 million scattered edges, no closed form, and a path only over the one edge between the halves:
        pytest.param("stride(2) | (global_queries(0) & global_keys(1))", None, 60, marks=pytest.mark.slow),
    ],
)
def test_4096_tokens_take_seconds(text: str, hops: int | None, seconds: int, capsys: pytest.CaptureFixture[str]):
    """Processor time of the whole command: certificate, words, figures beside a random graph and a ring."""
    started = time.process_time()
    assert main(["certify", text, "-n", "4096", "--json"]) == 0
    assert time.process_time() - started < seconds
    assert json.loads(capsys.readouterr().out)["hops"] == hops


def test_a_graph_takes_no_n_by_n_memory():
    """8,192 dense tokens have 67 million pairs; their graph and reach are held in a few megabytes."""
    import tracemalloc

    graph = read_graph(patterns.causal(), 8192)
    tracemalloc.start()
    find_reach([graph])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8192**2 / 2  # bytes; measured: about 25 MB, most of it the table of unions


def test_summary_is_plain_and_complete():
    certificate = certify(cycle("yun_fixed(4)"), 16)
    document = json.loads(json.dumps(certificate.summary(), allow_nan=False))
    assert document["gamma"] == list(range(16))
    assert (document["star"], document["yun"], document["hops"], document["connections"]) == (False, True, 2, [64, 76])
    assert document["small_world"]["pattern"]["degree"] == pytest.approx(6.375, abs=3)


def test_summary_holds_the_counterexamples():
    """As plain values, everything counted from 0: they are tested here against the dense pictures."""
    asked = patterns.interleave(patterns.window(1, 1), patterns.window(2, 0) & ~patterns.global_keys(3))
    document = json.loads(json.dumps(certify(asked, 9).summary()))
    assert document["hub"] is None
    assert [(row["pattern_index"], row["head"]) for row in document["missing_spokes"]] == [(0, 0), (1, 0)]
    for row, part in zip(document["missing_spokes"], asked.patterns, strict=True):
        assert [hub in pair or pair[0] == pair[1] for hub, pair in enumerate(row["pairs"])] == [True] * 9
        assert not any(part.dense(9)[0][query, key] for query, key in row["pairs"])
    assert document["missing_loop"] == {"pattern_index": 1, "head": 0, "token": 3}
    never = json.loads(json.dumps(certify("causal()", 5).summary()))["never"]
    assert never == {"kind": "Never", "query": 0, "key": 1, "closed": [0]}
    assert certify("star()", 5).summary()["obstruction"] == {
        "text": "without token 0 the graph falls into 4 pieces, and a path would leave at most 2",
        "kind": "Separator",
        "removed": [0],
        "piece": [-1, 0, 1, 2, 3],
    }


def test_every_pattern_of_a_cycle_is_explained():
    words = certify(cycle("yun_fixed(4)"), 16).explain()
    assert (
        "no token is a hub; token 0 of pattern 1 is not, since 0 does not read 4; token 0 of pattern 2 is not" in words
    )
    words = certify(patterns.interleave(*[patterns.window(1, 1)] * 6), 16).explain()
    assert "of pattern 4 is not, since 1 does not read 3; 2 more" in words


@pytest.mark.parametrize(
    ("pattern", "n", "message"),
    [
        ("dense()", 0, "n must be from 1 to 65,536, got 0"),
        ("dense()", 10**6, "n must be from 1 to 65,536, got 1,000,000"),
        ('explicit("0:0")', 4, "got 4 positions, but the pattern covers 1"),
        ("dens()", 4, "unknown pattern 'dens'"),
        ("stride(2)", 65536, "scattered pairs"),
        (
            "interleave(star(), across(star(), step=2))",
            16,
            r"across\(star\(\), step=2\) cannot be used by a certificate",
        ),
    ],
)
def test_refusals(pattern: str, n: int, message: str):
    with pytest.raises(AsterismError, match=message) as raised:
        certify(pattern, n)
    assert "\n" not in str(raised.value)


def test_text_pattern_and_schedule_are_the_same_question():
    pattern = patterns.parse("star()")
    for asked in (pattern, "star()", patterns.interleave(pattern)):
        assert certify(asked, 9).explain() == certify(pattern, 9).explain()


def test_rules_of_the_oracle_give_the_same_stars():
    """The compiled graph against the plain loops of the oracle."""
    for rule in (oracle.rule("star"), oracle.rule("star_transformer"), oracle.rule("causal")):
        dense = oracle.picture(rule, 12)[0]
        assert certify(rule.text, 12).star == has_star(np.asarray(dense, bool))
