"""A model of pixels by their neighbours, counted on training pictures: the yardstick that learns, but no network does.

Values are coded in raster order, channel by channel, each by what is known before it. Three steps, in the manner of the
coders of the literature (CALIC, Wu and Memon 1997): a linear predictor over the neighbours and the channels before it
says the mean; a second one says how far off that will be, from the differences between neighbours and from how far off
the means of neighbours and of channels before were; and histograms of the difference between value and mean, counted by
context, say the rest. Two families of contexts are mixed, by weights that are found on other pictures than are counted.

Invariant: what the model says of a value is a distribution over 0..255 that depends on values before it alone, so the
sum of -log2 p is a code length, to which an arithmetic coder comes within a few bytes.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

Array = np.ndarray

MOST_COUNTED = 2**24
"""How many values of training pictures are counted, at most: of CIFAR-10, twice as many gave 0.003 bits less."""

SCALES = 48
"""How many steps there are of how far off a mean is thought to be."""

_COARSE = 8
_FRACTIONS = 4
_LEVELS = np.array([-1.0, -0.25, 0.25, 1.0])
_AT_ONCE = 2**19
_ROUNDS = 30


@dataclass(frozen=True, eq=False)
class _Seen:
    """What is known of the values of one channel of some pictures before they are coded.

    floor     int64 [n, h, w]: the mean, rounded down
    contexts  two families, int64 [n, h, w] each
    scale     int64 [n, h, w]: how far off the mean is thought to be, in steps
    """

    floor: Array
    contexts: tuple[Array, Array]
    scale: Array


class _Histograms:
    """How often each difference of -255..255 was seen in each context, as distributions over the values 0..255.

    A context is smoothed by what was seen in all contexts, as if `_PRIOR` values of it had been seen so.
    """

    _PRIOR = 24.0

    def __init__(self, contexts: int) -> None:
        self.counts = np.zeros((contexts, 511))
        self.shares = self.sums = self.counts

    def add(self, contexts: Array, differences: Array) -> None:
        """Count differences (value - floor)."""
        places = contexts.ravel() * 511 + differences.ravel() + 255
        self.counts += np.bincount(places, minlength=self.counts.size).reshape(self.counts.shape)

    def settle(self) -> None:
        """All is counted."""
        overall = self.counts.sum(0) + 1.0 / 511
        smooth = self.counts + self._PRIOR * overall / overall.sum()
        self.shares = smooth / smooth.sum(1, keepdims=True)
        self.sums = np.pad(np.cumsum(self.shares, 1), ((0, 0), (1, 0)))

    def probability(self, contexts: Array, floor: Array, values: Array) -> Array:
        """That of values: the share of the difference among those that lead to 0..255."""
        possible = self.sums[contexts, 511 - floor] - self.sums[contexts, 255 - floor]
        return self.shares[contexts, values - floor + 255] / possible


class _Channel:
    """The model of one channel; the channels before it are known at a pixel."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.mean, self.spread = _Linear(), _Linear()
        self.edges = np.zeros(0)
        self.histograms = (_Histograms(SCALES * _FRACTIONS), _Histograms(_COARSE * 5**3))
        self.weights = np.full(SCALES, 0.5)

    def off(self, pictures: Array) -> Array:
        """How far off the means are: float32 [n, h, w]."""
        return pictures[..., self.number] - self._means(pictures)

    def _means(self, pictures: Array) -> Array:
        return np.clip(self.mean.of(_around(pictures, self.number)), 0, 255)

    def describe(self, pictures: Array, before: Sequence[Array]) -> _Seen:
        """What is known of the values before they are coded; `before` says how far off the channels before were."""
        mean = self._means(pictures)
        off = pictures[..., self.number] - mean
        spread = np.maximum(self.spread.of(_activity(pictures, self.number, off, before)), 0.05)
        scale = np.searchsorted(self.edges, spread)
        floor = np.floor(mean)
        west, north = (_neighbours(pictures[..., self.number])[side] for side in ("W", "N"))
        last = before[-1] if before else _neighbours(off, 0.0)["W"]
        texture = scale * _COARSE // SCALES
        for difference in (west - mean, north - mean, last):
            texture = texture * 5 + np.searchsorted(_LEVELS, difference / spread)
        fraction = ((mean - floor) * _FRACTIONS).astype(np.int64)
        return _Seen(floor.astype(np.int64), (scale * _FRACTIONS + fraction, texture), scale)

    def probabilities(self, seen: _Seen, values: Array) -> list[Array]:
        """Those of values, int64 [n, h, w], by each family."""
        pairs = zip(self.histograms, seen.contexts, strict=True)
        return [histograms.probability(contexts, seen.floor, values) for histograms, contexts in pairs]

    def bits(self, seen: _Seen, values: Array) -> Array:
        """The code length of each value: float64 [n, h, w]."""
        first, second = self.probabilities(seen, values)
        weight = self.weights[seen.scale]
        return -np.log2(weight * first + (1 - weight) * second)


class _Linear:
    """Least squares, from sums over all that was added."""

    def __init__(self) -> None:
        self.square: Array = np.zeros(0)
        self.product: Array = np.zeros(0)
        self.factors: Array = np.zeros(0)

    def add(self, features: Array, wanted: Array) -> None:
        """features [..., f], wanted [...]."""
        rows = features.reshape(-1, features.shape[-1]).astype(np.float64)
        self.square = rows.T @ rows + (self.square if self.square.size else 0)
        self.product = rows.T @ wanted.reshape(-1) + (self.product if self.product.size else 0)

    def settle(self) -> None:
        """All is added. The ridge is for features that never differ, such as those of flat pictures."""
        self.factors = np.linalg.solve(self.square + np.eye(len(self.square)), self.product)

    def of(self, features: Array) -> Array:
        """What is predicted: float64 [...]."""
        return np.asarray(features @ self.factors)


class PixelModel:
    """The model of all channels, counted on pictures: uint8 [n, h, w, c]."""

    def __init__(self, pictures: Array) -> None:
        self.channels: list[_Channel] = []
        for number in range(pictures.shape[-1]):
            channel = _Channel(number)
            self._fit(channel, pictures)
            self.channels.append(channel)

    def bits(self, pictures: Array) -> Array:
        """The code length of every value, in bits: float64 [n, h, w, c] for uint8 [n, h, w, c]."""
        return np.concatenate([self._bits(known, values) for known, values in _blocks(pictures)])

    def _bits(self, known: Array, values: Array) -> Array:
        found, before = [], self._before(known)
        for channel in self.channels:
            seen = channel.describe(known, before[: channel.number])
            found.append(channel.bits(seen, values[..., channel.number].astype(np.int64)))
        return np.stack(found, axis=-1)

    def _before(self, pictures: Array) -> list[Array]:
        return [channel.off(pictures) for channel in self.channels]

    def _fit(self, channel: _Channel, pictures: Array) -> None:
        """Four times over the pictures: means, spreads, histograms on most of them, weights on the others."""
        number = channel.number
        for known, _ in _blocks(pictures):
            channel.mean.add(_around(known, number), known[..., number])
        channel.mean.settle()
        for known, _ in _blocks(pictures):
            off = channel.off(known)
            channel.spread.add(_activity(known, number, off, self._before(known)), np.abs(off))
        channel.spread.settle()
        known, _ = next(_blocks(pictures))
        spread = channel.spread.of(_activity(known, number, channel.off(known), self._before(known)))
        channel.edges = np.quantile(spread, np.arange(1, SCALES) / SCALES)
        kept: list[tuple[_Seen, Array]] = []
        for known, values in _blocks(pictures):
            seen, wanted = channel.describe(known, self._before(known)), values[..., number].astype(np.int64)
            counted = np.arange(len(known)) % 10 != 9
            for histograms, contexts in zip(channel.histograms, seen.contexts, strict=True):
                histograms.add(contexts[counted], (wanted - seen.floor)[counted])
            rest = ~counted
            if rest.any() and sum(one[1].size for one in kept) < _AT_ONCE:
                chosen = _Seen(seen.floor[rest], (seen.contexts[0][rest], seen.contexts[1][rest]), seen.scale[rest])
                kept.append((chosen, wanted[rest]))
        for histograms in channel.histograms:
            histograms.settle()
        _weigh(channel, kept)


def _weigh(channel: _Channel, kept: Iterable[tuple[_Seen, Array]]) -> None:
    """The weight of the first family at each scale, by expectation and maximisation."""
    parts = [(seen.scale.ravel(), *(one.ravel() for one in channel.probabilities(seen, w))) for seen, w in kept]
    if not parts:
        return
    scale, first, second = (np.concatenate(column) for column in zip(*parts, strict=True))
    there = np.bincount(scale, minlength=SCALES)
    for _ in range(_ROUNDS):
        weight = channel.weights[scale]
        share = weight * first / (weight * first + (1 - weight) * second)
        channel.weights = (np.bincount(scale, share, minlength=SCALES) + 0.5) / (there + 1.0)


def _blocks(pictures: Array) -> Iterator[tuple[Array, Array]]:
    """Some pictures after the other, as float32 and as they are: what is computed of them fits into memory."""
    size = max(1, _AT_ONCE // pictures[0].size)
    for at in range(0, len(pictures), size):
        yield pictures[at : at + size].astype(np.float32), pictures[at : at + size]


def _neighbours(plane: Array, unknown: float = 128.0) -> dict[str, Array]:
    """What lies around each pixel and before it: [n, h, w] by direction. Where nothing does, what is nearest does."""
    west, north, north_west, north_east = (np.empty_like(plane) for _ in range(4))
    west[:, :, 1:], north[:, 1:] = plane[:, :, :-1], plane[:, :-1]
    west[:, 1:, 0], west[:, 0, 0] = plane[:, :-1, 0], unknown
    north[:, 0] = west[:, 0]
    north_west[:, 1:, 1:], north_west[:, 1:, 0], north_west[:, 0] = plane[:, :-1, :-1], plane[:, :-1, 0], west[:, 0]
    north_east[:, 1:, :-1], north_east[:, 1:, -1], north_east[:, 0] = plane[:, :-1, 1:], plane[:, :-1, -1], west[:, 0]
    far_west, far_north = west.copy(), north.copy()
    far_west[:, :, 2:], far_north[:, 2:] = plane[:, :, :-2], plane[:, :-2]
    return {"W": west, "N": north, "NW": north_west, "NE": north_east, "WW": far_west, "NN": far_north}


def _around(pictures: Array, channel: int) -> Array:
    """What the mean is predicted from: float32 [n, h, w, f]."""
    found = [*_neighbours(pictures[..., channel]).values(), np.ones_like(pictures[..., 0])]
    for other in range(pictures.shape[-1]):
        there = _neighbours(pictures[..., other])
        if other < channel:
            found += [pictures[..., other], *(there[side] for side in ("W", "N", "NW", "NE"))]
        elif other > channel:
            found += [there["W"], there["N"]]
    return np.stack(found, axis=-1)


def _activity(pictures: Array, channel: int, off: Array, before: Sequence[Array]) -> Array:
    """What is predicted from how far off a mean is: float32 [n, h, w, f]."""
    at = _neighbours(pictures[..., channel])
    errors = _neighbours(off, 0.0)
    found = [at["W"] - at["NW"], at["N"] - at["NW"], at["N"] - at["NE"], at["W"] - at["WW"], at["N"] - at["NN"]]
    found += [errors[side] for side in ("W", "N", "NW", "NE")]
    for other, error in enumerate(before):
        there = _neighbours(pictures[..., other])
        found += [error, pictures[..., other] - there["W"], pictures[..., other] - there["N"]]
    return np.abs(np.stack([*found, np.ones_like(off)], axis=-1))
