"""The furthest-vector task, which full attention solves in one layer and sparse attention in few layers cannot.

Task 1 of Zaheer 2020, appendix C: given n unit vectors u_1, ..., u_n of d features, give each token j the vector
u_j* that is furthest from u_j. For unit vectors that is the one of least inner product, so one full layer does it:

    E(u) = [u; 0]    Q([a; b]) = -a    K([a; b]) = a    V([a; b]) = [0; a]    hard attention, residual, no network

and token j ends as [u_j; u_j*]. A solver also decides whether two of n binary vectors are orthogonal (the
orthogonal-vectors problem): normalised, all inner products are 0 or at least 1 / d, so such a pair exists exactly if
some u_j is orthogonal to its u_j*, which takes n inner products to see. Under the orthogonal-vectors conjecture no
algorithm takes n^(2 - e) steps when d grows faster than log n; l layers with about n edges take about n l. Hence sparse
attention needs about n layers: no theorem about reach, but one about work. Reach is the weaker bound that
`interactions` counts: a token learns nothing of a vector that no path of edges brings to it.
"""

from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import reduce
from operator import or_
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from asterism.errors import ConfigurationError, DataError
from asterism.layers import SparseAttention
from asterism.patterns import Pattern, Schedule, as_schedule
from asterism.theory.certificates.graph import Booleans, Integers, read_graph
from asterism.theory.certificates.reach import BLOCK, Bits, Layer, own_bits

Numbers = NDArray[Any]
"""Integers, floats, or objects such as Fraction."""

Solver = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""Unit vectors [n, d] -> the furthest vector of each, [n, d]."""


# --- the task -------------------------------------------------------------------------------------------------------


def furthest(vectors: Numbers) -> tuple[Integers, Booleans]:
    """Compare all distances and return the index of each vector's furthest one, and whether it is the only furthest
    one.

    Numbers [..., n, d] -> int64 and bool [..., n]. Of several furthest vectors the first is named.
    """
    differences = vectors[..., :, None, :] - vectors[..., None, :, :]
    distances = (differences**2).sum(-1)
    greatest = distances.max(-1, keepdims=True)
    return distances.argmax(-1), (distances == greatest).sum(-1) == 1


def rational_unit_vectors(count: int, n: int, d: int, seed: int) -> NDArray[np.object_]:
    """Unit vectors of Fractions, exactly of length 1, dtype object [count, n, d]; d is at least 2.

    Random rational points t of d - 1 coordinates, projected from the pole: (2 t, |t|^2 - 1) / (|t|^2 + 1).
    """
    drawn = np.random.Generator(np.random.Philox(seed)).normal(size=(count, n, d - 1))
    points = np.vectorize(lambda x: Fraction(round(256 * x), 256), otypes=[object])(drawn)
    square = (points**2).sum(-1, keepdims=True)
    return np.concatenate([2 * points, square - 1], axis=-1) / (square + 1)


# --- one full layer -------------------------------------------------------------------------------------------------


def hard_attention(queries: Numbers, keys: Numbers, values: Numbers) -> Numbers:
    """The mean of the values whose keys have the greatest inner product with the query; exact for Fractions.

    [..., n, e], [..., n, e] and [..., n, w] -> [..., n, w].
    """
    scores = queries @ keys.swapaxes(-1, -2)
    best = scores == scores.max(-1, keepdims=True)
    return best.astype(values.dtype) @ values / best.sum(-1, keepdims=True).astype(values.dtype)


def hard_furthest(vectors: Numbers) -> Numbers:
    """The one-layer solution with hard attention: [..., n, d] -> [u; the furthest of u], [..., n, 2 d].

    Of several furthest vectors a token gets the mean.
    """
    hidden = np.concatenate([vectors, 0 * vectors], axis=-1)
    a, b = np.split(hidden, 2, axis=-1)
    return hidden + hard_attention(-a, a, np.concatenate([0 * b, a], axis=-1))


class FurthestVectorLayer(nn.Module):
    """The one-layer solution as this library's own attention, with softmax at a temperature, in float64.

    With a gap g between the least inner product and the next, the weight on other vectors is at most
    n exp(-g / temperature). `pattern` is dense() for the theorem; with a sparse one a token finds the furthest of the
    vectors that it reads. Raises ConfigurationError for a temperature that is not positive.
    """

    def __init__(self, d: int, temperature: float, pattern: Pattern | str = "dense()") -> None:
        super().__init__()
        if not temperature > 0:
            raise ConfigurationError(
                "temperature-range", f"temperature must be above 0, got {temperature}; see hard_furthest"
            )
        self.attention = SparseAttention(2 * d, 1, pattern, query_key_dim=d, bias=False).double().requires_grad_(False)
        identity, zero = torch.eye(d, dtype=torch.float64), torch.zeros(d, d, dtype=torch.float64)
        sharpness = d**0.5 / temperature  # attention divides scores by sqrt(d)
        self.attention.query.weight.copy_(torch.cat([-sharpness * identity, zero], dim=1))
        self.attention.key.weight.copy_(torch.cat([identity, zero], dim=1))
        self.attention.value.weight.copy_(torch.cat([torch.cat([zero, zero], 1), torch.cat([identity, zero], 1)]))
        self.attention.output.weight.copy_(torch.eye(2 * d))

    def forward(self, vectors: Tensor) -> Tensor:
        """float64 [B, n, d] -> [u; nearly the furthest of u], [B, n, 2 d]."""
        hidden = torch.cat([vectors, torch.zeros_like(vectors)], dim=-1)
        return hidden + self.attention(hidden)


# --- orthogonal vectors ---------------------------------------------------------------------------------------------


def hard_solver(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Hard attention as a solver of the furthest-vector task, float64 [n, d] -> [n, d]."""
    return hard_furthest(vectors)[:, vectors.shape[1] :]


def soft_solver(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """The attention layer as a solver for `orthogonal_pair`, float64 [n, d] -> [n, d], at a low enough temperature.

    If an orthogonal vector exists, those of inner product 1 / d or more have together a weight of at most
    n exp(-1 / (d temperature)) = 1 / (4 d).
    """
    n, d = vectors.shape
    layer = FurthestVectorLayer(d, temperature=1 / (d * np.log(4 * n * d)))
    return layer(torch.from_numpy(vectors)[None])[0, :, d:].numpy()


def orthogonal_pair(vectors: Integers, solve: Solver = hard_solver) -> tuple[int, int] | None:
    """Two orthogonal vectors out of [n, d] of 0 and 1, or None, by one call of a solver of the furthest-vector task.

    The first such i, and the first j for it. A vector of zeros, which has no direction, is orthogonal to all others.
    Raises DataError for other numbers than 0 and 1.
    """
    vectors = _binary(vectors)
    lengths = np.sqrt(vectors.sum(1, keepdims=True, dtype=np.float64))
    zeros = np.flatnonzero(lengths[:, 0] == 0)
    if len(vectors) < 2:
        return None
    if zeros.size:
        found = 0
    else:
        units = vectors / lengths
        products = (units * solve(units)).sum(1)  # 0, or at least 1 / d
        orthogonal = np.flatnonzero(products < 1 / (2 * vectors.shape[1]))
        if not orthogonal.size:
            return None
        found = int(orthogonal[0])
    partners = np.flatnonzero(vectors @ vectors[found] == 0)
    return found, int(partners[partners != found][0])


def _binary(vectors: Integers) -> Integers:
    vectors = np.asarray(vectors)
    if vectors.ndim != 2:
        raise DataError(
            "vectors-not-binary", f"vectors must be rows of 0 and 1, got an array of shape {list(vectors.shape)}"
        )
    for row, column in np.argwhere(~np.isin(vectors, (0, 1))):
        raise DataError(
            "vectors-not-binary", f"vectors must be rows of 0 and 1, got {vectors[row, column]} in row {row}"
        )
    return vectors.astype(np.int64)


# --- who can interact at all ----------------------------------------------------------------------------------------


def interactions(pattern: Pattern | Schedule | str, n: int, layers: int) -> tuple[float, ...]:
    """The share of the n x n pairs (token, token) that can interact after 1, 2, ..., `layers` layers.

    In such a pair, the first token can depend on the second: a path joins them, with at most one edge per layer,
    because the residual stream may carry a token unchanged. The patterns of all heads count together. A token that
    cannot interact with its furthest vector can only guess. Raises ConfigurationError if `layers` is less than 1.
    """
    pairs = np.zeros(layers, np.int64)
    for _, number, bits in _followed(pattern, n, layers):
        pairs[number] += np.bitwise_count(bits).sum(dtype=np.int64)
    return tuple((pairs / n**2).tolist())


def depends(pattern: Pattern | Schedule | str, n: int, layers: int, queries: Integers, keys: Integers) -> Booleans:
    """Which pairs (query, key), int64 [pairs] each, can interact after `layers` layers: bool [pairs].

    Raises ConfigurationError as `interactions` does.
    """
    found = np.zeros(len(queries), bool)
    for start, number, bits in _followed(pattern, n, layers):
        if number == layers - 1:
            here = (keys >= start) & (keys < start + BLOCK)
            place = (keys[here] - start).astype(np.uint64)
            words = bits[queries[here], place // np.uint64(64)]
            found[here] = (words >> (place % np.uint64(64))) & np.uint64(1) == 1
    return found


def _followed(pattern: Pattern | Schedule | str, n: int, layers: int) -> Iterator[tuple[int, int, Bits]]:
    """For each block of keys, from `start` on, and each layer: the keys of the block that each query depends on."""
    if layers < 1:
        raise ConfigurationError("layers-range", f"layers must be at least 1, got {layers}")
    steps = [
        Layer(reduce(or_, (read_graph(part, n, head) for head in range(part.heads))))
        for part in as_schedule(pattern).patterns
    ]
    for start in range(0, n, BLOCK):
        bits = own_bits(n, np.arange(start, min(start + BLOCK, n)))
        for number in range(layers):
            bits = bits | steps[number % len(steps)](bits)
            yield start, number, bits
