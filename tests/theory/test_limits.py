"""The furthest-vector task: one full layer solves it, orthogonal vectors reduce to it, and who can interact at all."""

from functools import reduce

import numpy as np
import pytest
import torch
from refusals import refusing

from asterism.errors import ConfigurationError, DataError
from asterism.patterns import parse, parse_schedule
from asterism.theory.approximation.limits import (
    FurthestVectorLayer,
    furthest,
    hard_furthest,
    hard_solver,
    interactions,
    orthogonal_pair,
    rational_unit_vectors,
    soft_solver,
)


def take(vectors, index):
    return np.take_along_axis(vectors, index[..., None], axis=1)


@pytest.mark.slow
def test_full_attention_solves_a_thousand_instances_exactly():
    """Hard attention in exact rationals, and the softmax layer of this library, next to all distances."""
    for n, d in ((2, 3), (5, 3), (8, 4), (11, 3)):
        vectors = rational_unit_vectors(250, n, d, seed=n)
        assert ((vectors**2).sum(-1) == 1).all()
        index, unique = furthest(vectors)
        assert unique.all()
        expected = np.concatenate([vectors, take(vectors, index)], axis=-1)
        assert (hard_furthest(vectors) == expected).all()
        layer = FurthestVectorLayer(d, temperature=1e-9)
        found = layer(torch.from_numpy(vectors.astype(float)))
        np.testing.assert_allclose(found.numpy(), expected.astype(float), rtol=0, atol=1e-12)


def test_a_warm_softmax_misses():
    vectors = rational_unit_vectors(50, 8, 4, seed=8)
    answer = take(vectors, furthest(vectors)[0]).astype(float)

    def error(temperature):
        found = FurthestVectorLayer(4, temperature)(torch.from_numpy(vectors.astype(float)))[..., 4:]
        return np.abs(found.numpy() - answer).max()

    errors = [error(temperature) for temperature in (1.0, 0.1, 1e-2, 1e-6)]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 0.1 and errors[-1] < 1e-6


def test_a_sparse_layer_cannot():
    """With a window a token finds the furthest of the vectors that it reads, and often another than the furthest."""
    signs = 2 * np.random.Generator(np.random.Philox(0)).integers(0, 2, (20, 16, 16)) - 1
    layer = FurthestVectorLayer(16, temperature=1e-6, pattern="window(1, 1)")
    found = layer(torch.from_numpy(signs / 4.0))[..., 16:].numpy() * 4
    index, unique = furthest(signs)
    right = np.isclose(found, take(signs, index), rtol=0, atol=1e-6).all(-1)[unique].mean()
    assert 0 < right < 0.4


def test_ties_give_the_mean():
    vectors = np.array([[[1, 0], [0, 1], [0, -1]]], object)
    index, unique = furthest(vectors)
    assert index[0].tolist() == [1, 2, 1] and unique[0].tolist() == [False, True, True]
    assert hard_furthest(vectors)[0, 0].tolist() == [1, 0, 0, 0]


def pair_by_search(vectors):
    """The first pair i, j of different rows without a common 1, or None."""
    pairs = ((i, j) for i in range(len(vectors)) for j in range(len(vectors)) if i != j)
    return next((pair for pair in pairs if not (vectors[pair[0]] & vectors[pair[1]]).any()), None)


@pytest.mark.parametrize("solve", [hard_solver, soft_solver])
def test_orthogonal_vectors_by_one_call_agree_with_all_pairs(solve):
    generator = np.random.Generator(np.random.Philox(3))
    answers = []
    for number in range(300):
        n, d = generator.integers(1, 13), generator.integers(1, 10)
        vectors = generator.integers(0, 2, (n, d)) | (generator.random((n, d)) < (number % 3) / 4)
        answers.append(pair_by_search(vectors))
        assert orthogonal_pair(vectors, solve) == answers[-1], vectors
    found = [answer is not None for answer in answers]
    assert 50 < sum(found) < 250


def test_a_single_orthogonal_pair_among_many_is_found():
    """Vectors that share a feature, but for one pair: every inner product but that one is at least 1."""
    vectors = np.ones((40, 30), int)
    vectors[7, 15:], vectors[31, :15] = 0, 0
    assert orthogonal_pair(vectors) == orthogonal_pair(vectors, soft_solver) == (7, 31)
    vectors[7, 20] = 1
    assert orthogonal_pair(vectors) is orthogonal_pair(vectors, soft_solver) is None


def test_vectors_of_zeros_are_orthogonal_to_all():
    assert orthogonal_pair(np.array([[1, 1], [0, 0], [1, 1]])) == (0, 1)
    assert orthogonal_pair(np.array([[0, 0], [0, 0]])) == (0, 1)
    assert orthogonal_pair(np.array([[0, 0]])) is None


@pytest.mark.parametrize(
    "text",
    [
        "dense()",
        "star()",
        "window(1, 1)",
        "causal()",
        "stride(3)",
        "interleave(blocks(4), columns(4, 3))",
        "per_head([window(1), stride(5)])",
    ],
)
def test_interactions_are_paths_of_edges(text):
    """Next to powers of the boolean matrix, residual stream included."""
    n, layers = 14, 5
    steps = [part.dense(n).any(0) | np.eye(n, dtype=bool) for part in parse_schedule(text).patterns]
    cycle = [steps[number % len(steps)] for number in range(layers)]
    reached = [reduce(lambda below, step: step @ below, cycle[: number + 1]).mean() for number in range(layers)]
    assert interactions(text, n, layers) == pytest.approx(reached, abs=0)


def test_interactions_of_many_tokens():
    """A window of one neighbour, beyond one block of keys: token q has 2 t + 1 tokens in reach, fewer at the ends."""
    n, layers = 2000, 3
    counts = [(2 * t + 1) * n - t * (t + 1) for t in range(1, layers + 1)]
    assert interactions(parse("window(1, 1)"), n, layers) == tuple(count / n**2 for count in counts)


def test_what_is_refused():
    with refusing(ConfigurationError, "temperature-range", "0"):
        FurthestVectorLayer(2, 0)
    with refusing(ConfigurationError, "layers-range", "0"):
        interactions("dense()", 4, 0)
    with refusing(DataError, "vectors-not-binary", "2", "1"):
        orthogonal_pair(np.array([[1, 0], [1, 2]]))
    with refusing(DataError, "vectors-not-binary", "[2]"):
        orthogonal_pair(np.array([1, 0]))
