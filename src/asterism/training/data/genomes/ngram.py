"""Predict the next base from counts of the bases before it: the model of order k, a baseline for models of genomes.

Of every base of the training pieces the k bases before it are kept. A base b after a context is predicted by the
counts of the longest context and of all shorter ones, each smoothed by the next shorter (MacKay and Peto 1995, "A
hierarchical Dirichlet language model"):

    p_j(b) = (count_j(b) + trust_j * p_{j-1}(b)) / (count_j + trust_j),   p_{-1} = 1/5

where count_j(b) is how often b came after the j bases that stand before it, and count_j how often anything did. How
much is left to the shorter context is learned for each order: the trust_j under which the training bases are likeliest,
each of them left out of the counts when it is predicted. So a longer context counts only as far as it helps, and the
order may be as high as repeats are long. Both strands are counted: what stands on one is read backwards, complemented,
on the other.

Invariant: the five probabilities of a place sum to 1.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from asterism.errors import ConfigurationError, DataError
from asterism.training.data.genomes.letters import reverse_complement

LETTERS = b"ACGTN"
HIGHEST = 20
"""Of an order: a context and the base behind it are one 64-bit number, three bits for each base."""
MOST_BASES = 1 << 27
"""That are counted, those of both strands together. They take 28 bytes each, 3.5 GiB in all, and 16 more at first."""
_DIGIT = 3
_AT_ONCE = 1 << 16
_LEARNED_FROM = 1 << 17
"""Bases from which trust is learned, spread evenly over all that are counted."""
_TRUSTS = 2.0 ** np.arange(-6, 25, 0.5)


@dataclass(frozen=True, eq=False)
class OrderModel:
    """Counts of contexts, and how far each order trusts the shorter one. `count` makes it.

    keys    uint64 [counted], ascending: digits of three bits, first the base just before, then those further back, and
            last the base that came; 1 to 5 for a letter, 0 for a place before the piece
    before  int32 [counted + 1, 5]: of each letter, how many of the keys before this one have it as their last
    trusts  float64 [order + 1]
    """

    order: int
    keys: np.ndarray
    before: np.ndarray
    trusts: np.ndarray

    def probabilities(self, piece: np.ndarray) -> np.ndarray:
        """Of A, C, G, T and N at each place of a piece of letters, uint8 [bases]: float64 [bases, 5]."""
        parts = [self._predicted(keys)[-1] for keys in _batches(_keys(piece, self.order))]
        return np.concatenate([np.empty((0, len(LETTERS))), *parts])

    def bits(self, piece: np.ndarray) -> np.ndarray:
        """-log2 p of each base of a piece, uint8 [bases]: float64 [order + 1, bases]; row j is the model of order j.

        Raises DataError for letters other than A, C, G, T and N.
        """
        parts = [_bits(self._predicted(keys), keys) for keys in _batches(_keys(piece, self.order))]
        return np.concatenate([np.empty((self.order + 1, 0)), *parts], axis=1)

    def bits_per_base(self, pieces: Iterable[np.ndarray]) -> np.ndarray:
        """The mean of `bits` over all bases of all pieces: float64 [order + 1]. Raises DataError if there is none."""
        total, bases = np.zeros(self.order + 1), 0
        for piece in pieces:
            total += self.bits(piece).sum(axis=1)
            bases += len(piece)
        if not bases:
            raise DataError("no-bases", "data: no bases to score")
        return total / bases

    def _predicted(self, keys: np.ndarray) -> np.ndarray:
        """The probability of every letter by every order: float64 [order + 1, places, 5]."""
        found = np.empty((self.order + 1, len(keys), len(LETTERS)))
        by_key = np.argsort(keys)  # neighbours are looked up among counts that are still in the processor's cache
        shorter, ordered = np.full((len(keys), len(LETTERS)), 1 / len(LETTERS)), keys[by_key]
        for order, trust in enumerate(self.trusts):
            counts = self._counts(ordered, order)
            shorter = (counts + trust * shorter) / (counts.sum(axis=1, keepdims=True) + trust)
            found[order, by_key] = shorter
        return found

    def _counts(self, keys: np.ndarray, order: int) -> np.ndarray:
        """How often each letter came after the last `order` bases of each context: int64 [places, 5].

        Counted contexts that begin alike stand together. One that begins before its piece never came.
        """
        low = np.uint64(_DIGIT * (self.order + 1 - order))
        context = keys >> low
        begin, end = (np.searchsorted(self.keys, one << low) for one in (context, context + np.uint64(1)))
        counts = self.before[end].astype(np.int64) - self.before[begin]
        if order:
            counts[context & np.uint64(2**_DIGIT - 1) == 0] = 0
        return counts


def count(pieces: Iterable[np.ndarray], order: int, *, both_strands: bool = True) -> OrderModel:
    """The model of an order, from the bases of pieces, letters as uint8 [bases] each.

    Raises ConfigurationError for an order below 0 or above 20, and DataError for other letters than A, C, G, T and N,
    for no base, and for more than `MOST_BASES`.
    """
    if not 0 <= order <= HIGHEST:
        raise ConfigurationError("order-range", f"order must be from 0 to {HIGHEST}, got {order}")
    parts, bases = [], 0
    for piece in pieces:
        for strand in (piece, reverse_complement(piece)) if both_strands else (piece,):
            parts.append(_keys(strand, order))
            bases += len(strand)
            if bases > MOST_BASES:
                raise DataError(
                    "too-many-bases",
                    f"data: more than {MOST_BASES:,} bases are to be counted"
                    f"{', on both strands together' * both_strands}, the most that a model of their order counts",
                )
    if not bases:
        raise DataError("no-bases", "data: no bases to count")
    keys = np.concatenate(parts)
    sample = np.sort(keys[:: -(-bases // _LEARNED_FROM)])
    keys.sort()
    before = np.zeros((bases + 1, len(LETTERS)), dtype=np.int32)
    letters = _letters(keys)
    for letter in range(len(LETTERS)):
        np.cumsum(letters == letter, out=before[1:, letter])
    counted = OrderModel(order, keys, before, np.empty(0))
    return OrderModel(order, keys, before, _learned(counted, sample))


def yardsticks(
    training: Iterable[np.ndarray], scored: Iterable[np.ndarray], orders: Sequence[int] = (2, 11, 16)
) -> dict[str, float]:
    """Bits per base of `scored` by models of several orders that counted both strands of `training`, by their names.

    Both are letters, uint8 [bases] each. Raises DataError as `count` and `OrderModel.bits_per_base` do.
    """
    bits = count(training, max(orders)).bits_per_base(scored)
    return {f"order {order}": float(bits[order]) for order in orders}


def _learned(model: OrderModel, keys: np.ndarray) -> np.ndarray:
    """The trust of each order under which counted bases are likeliest, each left out: float64 [order + 1].

    One after the other, from the shortest: a longer context changes nothing about shorter ones.
    """
    trusts, places, letters = np.empty(model.order + 1), np.arange(len(keys)), _letters(keys)
    shorter = np.full(len(keys), 1 / len(LETTERS))
    for order in range(model.order + 1):
        counts = model._counts(keys, order)
        came, total = counts[places, letters] - 1, counts.sum(axis=1) - 1  # the base itself is left out
        known = total > 0  # the others have the probability of the shorter context under any trust
        came, total, given = came[known], total[known], shorter[known]
        likelihoods = [np.log((came + trust * given) / (total + trust)).sum() for trust in _TRUSTS]
        trusts[order] = _TRUSTS[int(np.argmax(likelihoods))]
        shorter[known] = (came + trusts[order] * given) / (total + trusts[order])
    return trusts


def _bits(predicted: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """-log2 of what was given to the bases that came: float64 [order + 1, places]."""
    return -np.log2(predicted[:, np.arange(len(keys)), _letters(keys)])


def _letters(keys: np.ndarray) -> np.ndarray:
    """Which of LETTERS came: int64 [places]."""
    return (keys & np.uint64(2**_DIGIT - 1)).astype(np.int64) - 1


def _keys(piece: np.ndarray, order: int) -> np.ndarray:
    """The base at each place and the `order` before it, as one number: uint64 [bases]."""
    digits = _DIGITS[piece]
    if not digits.all():
        place = int(np.argmin(digits))
        raise DataError(
            "bad-letter",
            f"data: base {place + 1:,} of a piece is {bytes(piece[place : place + 1])!r}, not A, C, G, T or N",
        )
    keys = np.zeros(len(piece), dtype=np.uint64)
    for back in range(1, min(order, len(piece)) + 1):
        keys[back:] |= digits[:-back] << np.uint64(_DIGIT * (order + 1 - back))
    return keys | digits


def _batches(keys: np.ndarray) -> Iterator[np.ndarray]:
    return (keys[at : at + _AT_ONCE] for at in range(0, len(keys), _AT_ONCE))


_DIGITS = np.zeros(256, dtype=np.uint64)
_DIGITS[list(LETTERS)] = range(1, len(LETTERS) + 1)
_DIGITS.setflags(write=False)
