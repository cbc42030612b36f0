"""Encoder-decoder transformers with hard attention, in exact rational arithmetic (Perez 2019, section 2).

A vector is a dictionary of its slots that are not zero; slots have names, so that a construction reads like its
derivation. Maps are linear, feed-forward networks have ReLU units, the score of a query and a key is -|<q, k>|, and
attention takes the mean of the values whose score is greatest. A decoder layer adds, in turn,

    p = attention(y over earlier tokens) + y,    a = attention(p over the encoder's keys) + p,    z = network(a) + a,

with the same encoder keys and values in every layer, as the paper defines it. Keys and values of earlier tokens are
kept, never changed, so that a token costs its own maps and one product per key it may read.

The same network runs in floating point: constants are rounded once, every operation then rounds as the format does.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

Number = Any  # int or Fraction; float or numpy.float32 where the arithmetic says so
Vector = dict[str, Number]
Rows = Mapping[str, Mapping[str, int | Fraction]]


@dataclass(frozen=True)
class Arithmetic:
    """How numbers are represented. `tolerance` is how far from a whole number a number may be read as it."""

    name: str
    dtype: type
    tolerance: float

    def number(self, value: int | Fraction) -> Number:
        """A rational, rounded to this arithmetic; exact rationals that are whole become int, which is faster."""
        if self.dtype is object:
            return value.numerator if value.denominator == 1 else value
        return self.dtype(float(value))

    def vector(self, entries: Mapping[str, int | Fraction]) -> Vector:
        """The entries that are not zero, rounded."""
        return {slot: self.number(value) for slot, value in entries.items() if value}

    def mean(self, values: np.ndarray) -> Number:
        """The mean of an array [count] of `dtype`."""
        total = values.sum()
        return self.number(Fraction(total, len(values))) if self.dtype is object else total / self.dtype(len(values))

    def whole(self, value: Number) -> int | None:
        """The whole number that `value` stands for, or None."""
        return round(value) if abs(value - round(value)) <= self.tolerance else None


EXACT = Arithmetic("exact", object, 0)
FLOAT64 = Arithmetic("float64", float, 0.25)
FLOAT32 = Arithmetic("float32", np.float32, 0.25)
ARITHMETICS = {arithmetic.name: arithmetic for arithmetic in (EXACT, FLOAT64, FLOAT32)}


class LinearMap:
    """A linear map. `rows[target][source]` is a weight; the zeros of its matrix are not stored."""

    def __init__(self, rows: Rows, arithmetic: Arithmetic) -> None:
        self.rows = rows
        self._columns: dict[str, list[tuple[str, Number]]] = {}
        for target, row in rows.items():
            for source, weight in row.items():
                self._columns.setdefault(source, []).append((target, arithmetic.number(weight)))

    def __call__(self, x: Vector) -> Vector:
        out: Vector = {}
        for source, value in x.items():
            for target, weight in self._columns.get(source, ()):
                out[target] = out[target] + weight * value if target in out else weight * value
        return out


class Hidden:
    """A layer of units relu(<weights, x> - threshold). Thresholds are not negative, so units without input are 0."""

    def __init__(self, rows: Rows, thresholds: Mapping[str, int], arithmetic: Arithmetic) -> None:
        if min(thresholds.values(), default=0) < 0:
            raise ValueError("a unit with a negative threshold is active without input; use a constant slot instead")
        self.linear, self.thresholds = LinearMap(rows, arithmetic), dict(thresholds)
        self._thresholds = {unit: arithmetic.number(value) for unit, value in thresholds.items() if value}

    def __call__(self, x: Vector) -> Vector:
        active: Vector = {}
        for unit, value in self.linear(x).items():
            above = value - self._thresholds.get(unit, 0)
            if above > 0:
                active[unit] = above
        return active


class HardmaxFeedForward:
    """Layers of hidden units, then a linear map."""

    def __init__(self, hidden: Sequence[Hidden], output: LinearMap) -> None:
        self.hidden, self.output = tuple(hidden), output

    def __call__(self, x: Vector) -> Vector:
        for layer in self.hidden:
            x = layer(x)
        return self.output(x)


@dataclass(frozen=True)
class Attention:
    """The maps of one head. Without keys every score is 0, all keys tie, and the mean of all values is read."""

    query: LinearMap
    key: LinearMap
    value: LinearMap


@dataclass(frozen=True)
class DecoderLayer:
    """One layer. None stands for a value map, or a network, that is 0."""

    attention: Attention | None
    feed_forward: HardmaxFeedForward | None


@dataclass(frozen=True)
class Transformer:
    """An encoder of one trivial layer (values 0 and network 0, so the identity) and a decoder.

    embed          a symbol and its position, from 1 -> the encoder's vector
    encoder_key, encoder_value   what every decoder layer reads of the encoder
    position       decoder token, from 0 -> the slots that are added to its vector
    neighbours     decoder token -> the tokens that it may read in self-attention; None means all up to itself
    output         the last layer's vector -> the next token's vector (the function F of Perez 2019)
    """

    arithmetic: Arithmetic
    embed: Callable[[str, int], Vector]
    encoder_key: LinearMap
    encoder_value: LinearMap
    layers: tuple[DecoderLayer, ...]
    position: Callable[[int], Vector]
    neighbours: Callable[[int], Sequence[int]] | None
    output: HardmaxFeedForward


@dataclass(frozen=True)
class Token:
    """The decoder's work on one token; tokens and positions in the word are counted from 0.

    last       the last layer's vector                         following  the next token's vector
    reads      the tokens whose values the last layer with self-attention read, that is those of the greatest score
    word_reads the places in the word that the first layer's cross-attention read
    degree     the most tokens that any self-attention looked at
    products   query-key products, in self- and cross-attention
    """

    number: int
    last: Vector
    following: Vector
    reads: tuple[int, ...]
    word_reads: tuple[int, ...]
    degree: int
    products: int


class Decoder:
    """A run: the encoder's keys and values, and those of the decoder tokens so far."""

    def __init__(self, transformer: Transformer, word: Sequence[str]) -> None:
        self.transformer, self.length = transformer, 0
        arithmetic = transformer.arithmetic
        self._word = _Memory(transformer.encoder_key, transformer.encoder_value, arithmetic)
        for place, symbol in enumerate(word, 1):
            self._word.append(transformer.embed(symbol, place))
        heads = [layer.attention for layer in transformer.layers]
        self._memories = [_Memory(head.key, head.value, arithmetic) if head else None for head in heads]

    def step(self, token: Vector) -> Token:
        """Read the next token and compute the one that follows it."""
        x = add(token, self.transformer.position(self.length))
        among = self._neighbours()
        looked: list[_Look] = []
        crossed: list[_Look] = []
        for layer, memory in zip(self.transformer.layers, self._memories, strict=True):
            if layer.attention and memory:
                memory.append(x)
                looked.append(memory.read(layer.attention.query(x), among))
                x = add(x, looked[-1].mean)
            crossed.append(self._word.read(x, None))
            x = add(x, crossed[-1].mean)
            x = add(x, layer.feed_forward(x)) if layer.feed_forward else x
        self.length += 1
        return Token(
            number=self.length - 1,
            last=x,
            following=self.transformer.output(x),
            reads=looked[-1].best,
            word_reads=crossed[0].best,
            degree=max(look.degree for look in looked),
            products=sum(look.products for look in looked + crossed),
        )

    def _neighbours(self) -> np.ndarray | None:
        if self.transformer.neighbours is None:
            return None
        return np.array(self.transformer.neighbours(self.length))


def add(x: Vector, y: Vector) -> Vector:
    """The sum of two vectors, without the slots that become zero."""
    total = dict(x)
    for slot, value in y.items():
        value = total[slot] + value if slot in total else value
        if value:
            total[slot] = value
        else:
            total.pop(slot, None)
    return total


class _Memory:
    """Keys and values of one attention, slot by slot as arrays that grow."""

    def __init__(self, key: LinearMap, value: LinearMap, arithmetic: Arithmetic) -> None:
        self._key, self._value, self._arithmetic = key, value, arithmetic
        self._keys: dict[str, np.ndarray] = {slot: np.zeros(16, arithmetic.dtype) for slot in key.rows}
        self._values: dict[str, np.ndarray] = {slot: np.zeros(16, arithmetic.dtype) for slot in value.rows}
        self._capacity, self._length = 16, 0

    def append(self, x: Vector) -> None:
        if self._length == self._capacity:
            for arrays in (self._keys, self._values):
                for slot, array in arrays.items():
                    arrays[slot] = np.concatenate([array, np.zeros_like(array)])
            self._capacity *= 2
        for arrays, entries in ((self._keys, self._key(x)), (self._values, self._value(x))):
            for slot, entry in entries.items():
                arrays[slot][self._length] = entry
        self._length += 1

    def read(self, query: Vector, among: np.ndarray | None) -> "_Look":
        """Attend to the places `among`, or to all."""
        places = np.arange(self._length) if among is None else among
        best = places
        if self._keys:
            distance = np.abs(self._products(query, slice(self._length) if among is None else among))
            best = places[np.equal(distance, distance.min()).astype(bool)]
        return _Look(self._mean(best), tuple(best.tolist()), len(places), len(places) if self._keys else 0)

    def _mean(self, best: np.ndarray) -> Vector:
        if len(best) == 1:
            place = best[0]
            return {slot: value for slot, array in self._values.items() if (value := array[place])}
        means = {slot: self._arithmetic.mean(array[best]) for slot, array in self._values.items()}
        return {slot: value for slot, value in means.items() if value}

    def _products(self, query: Vector, among: slice | np.ndarray) -> np.ndarray:
        products = 0
        for slot, array in self._keys.items():
            if slot in query:
                products = products + query[slot] * array[among]
        return products if isinstance(products, np.ndarray) else np.zeros_like(next(iter(self._keys.values()))[among])


@dataclass(frozen=True)
class _Look:
    """One attention: the mean of the best values, their places, how many were looked at, products of query and key."""

    mean: Vector
    best: tuple[int, ...]
    degree: int
    products: int
