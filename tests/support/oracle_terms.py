"""Attention with terms of the score, said a second time in NumPy and float64: the formula, its gradients, and Philox.

Nothing here imports the library. A bias is a name with its parameters; `Bias.pairs` gives it pair by pair.
"""

from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from oracle import _gather, _spread

# ---------------------------------------------------------------------------------------------------------------------
# Which pairs dropout drops.


def philox(counter, key):
    """Philox 4x32-10 (Salmon et al. 2011, section 4.3) in uint64: four words [..., 4] for counters [..., 4]."""
    words = [np.asarray(word, dtype=np.uint64) for word in counter]
    low = np.uint64(0xFFFFFFFF)
    for round_number in range(10):
        left, right = words[0] * np.uint64(0xD2511F53), words[2] * np.uint64(0xCD9E8D57)
        first = (int(key[0]) + round_number * 0x9E3779B9) % 2**32
        second = (int(key[1]) + round_number * 0xBB67AE85) % 2**32
        words = [
            (right >> np.uint64(32)) ^ words[1] ^ np.uint64(first),
            right & low,
            (left >> np.uint64(32)) ^ words[3] ^ np.uint64(second),
            left & low,
        ]
    return words


def kept(batch: int, heads: int, n_queries: int, n_keys: int, offset: int, rate: float, seed: int) -> np.ndarray:
    """bool [B, H, N, M]: whether a pair's word is at least round(rate * 2^32)."""
    row, head, query, key = np.meshgrid(*map(np.arange, (batch, heads, n_queries, n_keys)), indexing="ij")
    words = philox((query + offset, key // 4, head, row), (seed % 2**32, seed // 2**32))
    return np.choose(key % 4, words) >= round(rate * 2**32)


# ---------------------------------------------------------------------------------------------------------------------
# Biases.


@dataclass(frozen=True, eq=False)
class Bias:
    """ "alibi" (slopes [H]), "buckets" ([n, H], with max_distance and bidirectional), "span" (reach [H], with ramp) or
    "table" ([H or 1, R], with first).
    """

    name: str
    values: np.ndarray
    settings: dict[str, Any]

    def pairs(self, distances: np.ndarray) -> np.ndarray:
        """The bias [H or 1, N, M] of pairs at distances [N, M]; -inf where a key is not read."""
        match self.name:
            case "alibi":
                return -self.values[:, None, None] * abs(distances)
            case "buckets":
                return np.moveaxis(self.values[bucket(distances, len(self.values), **self.settings)], -1, 0)
            case "span":
                with np.errstate(divide="ignore"):
                    return np.log(self._span(distances))
        return self.values[:, np.clip(distances - self.settings["first"], 0, self.values.shape[1] - 1)]

    def gradient(self, distances: np.ndarray, d_pairs: np.ndarray) -> np.ndarray:
        """That of `values`, from that of `pairs` summed over the batch, [H, N, M]."""
        d_values = np.zeros(self.values.shape)
        match self.name:
            case "alibi":
                return -(d_pairs * abs(distances)).sum((1, 2))
            case "buckets":
                np.add.at(d_values, bucket(distances, len(d_values), **self.settings), np.moveaxis(d_pairs, 0, -1))
            case "span":
                share = self._span(distances)
                slope = np.where(
                    (share > 0) & (share < 1), 1 / np.where(share > 0, share, 1) / self.settings["ramp"], 0
                )
                return (d_pairs * slope).sum((1, 2))
            case "table":
                place = distances - self.settings["first"]
                there = (place >= 0) & (place < d_values.shape[1])
                shared = d_pairs.sum(0, keepdims=True) if len(d_values) == 1 else d_pairs
                for head in range(len(d_values)):
                    np.add.at(d_values[head], place[there], shared[head][there])
        return d_values

    def _span(self, distances):
        reach, ramp = self.values[:, None, None], self.settings["ramp"]
        return np.clip((reach + 1 - distances) / ramp + 1, 0, 1)


def bucket(distances: np.ndarray, count: int, bidirectional: bool, max_distance: int) -> np.ndarray:
    """T5's bucket of each distance, one at a time (Raffel et al. 2020, and their code)."""

    def one(distance: int, count: int) -> int:
        if bidirectional:
            return (count // 2 if distance < 0 else 0) + ranged(abs(distance), count // 2)
        return ranged(max(distance, 0), count)

    def ranged(distance: int, count: int) -> int:
        exact = count // 2
        if distance < exact:
            return distance
        growth = np.log(np.float32(distance) / np.float32(exact)) / np.float32(np.log(max_distance / exact))
        return min(count - 1, exact + int(growth * np.float32(count - exact)))

    found = [one(int(distance), count) for distance in distances.ravel()]
    return np.array(found, dtype=np.int64).reshape(distances.shape)


# ---------------------------------------------------------------------------------------------------------------------
# Attention.


@dataclass(frozen=True, eq=False)
class Terms:
    """None or 0 for none; `kept` [B, H, N, M] says what dropout keeps at its `rate`."""

    bias: Bias | None = None
    relative: np.ndarray | None = None
    softcap: float = 0.0
    sinks: np.ndarray | None = None
    kept: np.ndarray | None = None
    rate: float = 0.0


def attention(q, k, v, mask, scale, offset, terms, d_out, d_lse) -> dict[str, np.ndarray]:
    """out, lse, and the gradients of sum(d_out * out) + sum(d_lse * lse) with respect to all that is differentiable.

    mask bool [B, H, N, M]; a pair that it allows and a bias of -inf forbids is not read.
    """
    distances = np.arange(q.shape[2])[:, None] + offset - np.arange(k.shape[2])
    if terms.bias is not None:
        bias = terms.bias.pairs(distances)
        mask = mask & (bias > -np.inf)
    keys, values = (_spread(x, q) for x in (k, v))
    places = None if terms.relative is None else np.clip(distances, 0, len(terms.relative) - 1)
    raw = q @ keys.swapaxes(-1, -2)
    if places is not None:
        raw = raw + np.einsum("bhnd,nmd->bhnm", q, terms.relative[places])
    raw = raw * scale
    scores, slope = raw, 1.0
    if terms.softcap:
        scores = terms.softcap * np.tanh(raw / terms.softcap)
        slope = 1 - np.tanh(raw / terms.softcap) ** 2
    if terms.bias is not None:
        scores = scores + np.where(bias > -np.inf, bias, 0)
    weights, sink_weights, lse = _softmax(np.where(mask, scores, -np.inf), terms.sinks)
    factor = 1.0 if terms.kept is None else terms.kept / (1 - terms.rate)
    out = (weights * factor) @ values

    d_weights = (d_out @ values.swapaxes(-1, -2)) * factor
    delta = (d_out * out).sum(-1, keepdims=True)
    d_scores = weights * (d_weights - delta + d_lse[..., None])
    d_raw = d_scores * slope * scale
    d_q, d_k = d_raw @ keys, d_raw.swapaxes(-1, -2) @ q
    found = {"out": out, "lse": lse, "dq": d_q, "dk": _gather(d_k, k)}
    found["dv"] = _gather((weights * factor).swapaxes(-1, -2) @ d_out, v)
    if terms.bias is not None:
        found["dbias"] = terms.bias.gradient(distances, d_scores.sum(0))
    if places is not None:
        found["dq"] = d_q + np.einsum("bhnm,nmd->bhnd", d_raw, terms.relative[places])
        found["drelative"] = np.zeros(terms.relative.shape)
        np.add.at(found["drelative"], places, np.einsum("bhnm,bhnd->nmd", d_raw, q))
    if terms.sinks is not None:
        found["dsinks"] = (sink_weights * (d_lse - delta[..., 0])).sum((0, 2))
    return found


def _softmax(scores, sinks):
    """Weights of the keys and of the sinks, and the log-sum-exp of both."""
    every = [scores] if sinks is None else [scores, np.broadcast_to(sinks[:, None, None], (*scores.shape[:3], 1))]
    tops = [x.max(-1, keepdims=True, initial=-np.inf) for x in every]
    top = reduce(np.maximum, tops)
    top = np.where(np.isinf(top), 0, top)
    powers = [np.exp(x - top) for x in every]
    total = sum(x.sum(-1, keepdims=True) for x in powers)
    with np.errstate(divide="ignore"):
        lse = (np.log(total) + top)[..., 0]
    shares = [x / np.where(total > 0, total, 1) for x in powers]
    return shares[0], shares[-1][..., 0] if sinks is not None else None, lse
