"""Baselines on the same samples: FLAC, and a model that counts the sample after two others.

Both get the 8-bit codes that a model gets, not the recordings, of which FLAC would keep 16 bits per sample.
"""

from collections.abc import Iterator
from io import BytesIO

import numpy as np

from asterism.training.data.audio.decoding import require_soundfile
from asterism.training.data.corpora.splits import Pieces

_AT_ONCE = 2**20
"""Values that are counted or encoded at once."""

MOST_COUNTED = 2**27
"""Samples of the training split that are counted, from its beginning: three hours at 12,000 per second."""

_EMPTY = 256
"""The code before the first sample of a clip: of no value."""


def flac_bits(pieces: Pieces, first: int, stop: int, rate: int) -> float:
    """Bits per sample of one FLAC file, 8 bits in and all clips in a row, at libsndfile's strongest level."""
    require_soundfile()
    import soundfile

    written = BytesIO()
    settings = {"mode": "w", "samplerate": rate, "channels": 1, "subtype": "PCM_S8", "format": "FLAC"}
    with soundfile.SoundFile(written, compression_level=1.0, **settings) as file:
        for codes, _ in _parts(pieces, first, stop):
            file.write((codes.astype(np.int16) - 128) * 256)  # of 16 bits, FLAC is given the upper 8
    return 8 * written.getbuffer().nbytes / (stop - first)


class Order2:
    """P(sample | the two before it), counted on training clips; contexts that were seen seldom lean on shorter ones.

    Witten and Bell's interpolation (1991, method C): p(x | h) = (n(h x) + t(h) p(x | h')) / (n(h) + t(h)), where n
    counts, t(h) is how many different samples followed h, and h' is h without its oldest sample; all 256 are equally
    likely at last. Before its first sample a clip has a code of its own. The tables take 70 MiB.
    """

    def __init__(self, training: Pieces) -> None:
        self._counts = [np.zeros(257**order * 256, dtype=np.uint32) for order in range(3)]
        for codes, before in _parts(training, 0, min(len(training), MOST_COUNTED)):
            for counts, keys in zip(self._counts, _keys(codes, before), strict=True):
                np.add.at(counts, keys, 1)
        tables = [counts.reshape(-1, 256) for counts in self._counts]
        self._totals = [table.sum(axis=1, dtype=np.int64) for table in tables]
        self._kinds = [np.count_nonzero(table, axis=1) for table in tables]

    def probabilities(self, codes: np.ndarray, before: np.ndarray) -> np.ndarray:
        """P of each of consecutive samples, uint8 [n], behind the two samples `before`, int64 [2]: float64 [n]."""
        likely = np.full(len(codes), 1 / 256)
        every = zip(_keys(codes, before), self._counts, self._totals, self._kinds, strict=True)
        for keys, counts, totals, kinds in every:
            context = keys // 256
            different = kinds[context]
            weight = totals[context] + different
            seen = weight > 0  # after a context that never occurred, the shorter context decides
            likely[seen] = (counts[keys[seen]] + different[seen] * likely[seen]) / weight[seen]
        return likely


def order2_bits(training: Pieces, pieces: Pieces, first: int, stop: int) -> float:
    """Bits per sample under `Order2`, for the indices first .. stop - 1."""
    model = Order2(training)
    bits = (-np.log2(model.probabilities(codes, before)).sum() for codes, before in _parts(pieces, first, stop))
    return float(sum(bits)) / (stop - first)


def _parts(pieces: Pieces, first: int, stop: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The values first .. stop - 1 in parts of one piece each, with the two codes before: uint8, int64 [2]."""
    at = first
    while at < stop:
        home = int(np.searchsorted(pieces.bounds, at, side="right")) - 1
        begin, end = pieces.bounds[home : home + 2].tolist()
        lead = min(2, at - begin)
        part = pieces.read(at - lead, min(end, stop, at + _AT_ONCE))
        before = np.array([_EMPTY] * (2 - lead) + part[:lead].tolist(), dtype=np.int64)
        yield part[lead:], before
        at += len(part) - lead


def _keys(codes: np.ndarray, before: np.ndarray) -> list[np.ndarray]:
    """The places of samples in the tables of orders 0, 1 and 2: int64 [n] each."""
    oldest, middle, last = (np.concatenate([before, codes])[shift : shift + len(codes)] for shift in range(3))
    return [last, middle * 256 + last, (oldest * 257 + middle) * 256 + last]
