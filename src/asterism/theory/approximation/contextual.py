"""Contextual mappings: sparse attention that gives every token of every input a code of its own, in exact arithmetic.

The step of both universality proofs that needs attention. Inputs are on a grid: n tokens of d features from {0, delta,
..., 1 - delta}, 1 / delta whole. A token is read through u^T Z with u = (1, delta^-1, ..., delta^-(d-1)), one to one on
the grid. Every layer changes the first feature only, so u^T Z changes by as much, and the codes u^T Z are all the state
that the layers see. Two kinds of layer, both hardmax attention over the keys A_k that a pattern lets token k read:

    sparse selective shift    z_k += factor (max over A_k - min over A_k)  if low < z_k < high    (two heads)
    global shift              z_k += factor max over A_k                                           (one head)

Numbers are Python integers in units of delta / 2, so that the bounds b - delta/2 and b + delta/2 are whole.

`yun_mapping` is the construction of Yun 2020 for any cycle of patterns that satisfies Assumption 1. With a Hamiltonian
path gamma, E adds n - 1 to token gamma(1) and i - 2 to gamma(i). The tokens gamma(2), ..., gamma(n) are then shifted in
turn, one layer per value b of u^T Z and per pattern of the cycle: z_gamma(i) becomes
delta^-d z_gamma(i-1) - (delta^-d - 1) z_gamma(i), as gamma(i) reads gamma(i-1), the greatest so far, and itself, the
least left. So z_gamma(n) holds the whole input; s global shifts, s the layers to full reach, hand it to every token.
Layers: p (n - 1) / delta^d + s.

`star_mapping` is the construction of Zaheer 2020, appendix A, for any pattern with a star. Phase k shifts token k to
f_k = delta^-d (hub - l_k) + l_k and then the hub by delta^(-n d) (f_k - l_(k+1)); a last layer shifts the tokens by
delta^(-n^2 d) times the spread of what they read. Corrected here, found by executing what is printed:

1. a shift tests u^T Z of the query; printed: of the key;
2. likewise b is subtracted on the query's side; printed: on the key's;
3. the hub starts at delta^(-n d); printed once: with exponent -(n + 1) d;
4. token k starts in [delta^(-(k-1) d), delta^(-k d)), token 1 from 0 on; printed once: shifted by one;
5. the bounds S_k, T_k of the hub follow from an expansion with wrong terms: exact intervals are used instead;
6. in the last phase the least value that the hub reads is f_1; printed: l_(n+1), and there is no such token.

The paper shifts the hub once per value; here one shift per phase covers its interval. Layers: p (n (delta^-d + 1) + 1)
for a cycle of p patterns, of which the one with the star does all the work and the others wait.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from asterism.errors import PatternError
from asterism.patterns import Pattern, Schedule
from asterism.theory.certificates.graph import Graph, Integers
from asterism.theory.certificates.universality import Certificate, certify
from asterism.theory.certificates.witnesses import Hub

Codes = NDArray[np.object_]

MOST_CODES = 2**20
"""The most codes, tokens times inputs, that a check enumerates."""


MOST_LAYERS = 2**16
"""The most layers that are built."""


@dataclass(frozen=True)
class Idle:
    """A layer that changes nothing, while the cycle of patterns goes on."""

    pattern: int

    def __call__(self, codes: Codes, keys: Sequence[Integers]) -> Codes:
        return codes


@dataclass(frozen=True)
class SelectiveShift:
    """z_k += factor (max - min over the keys of k) where low < z_k < high; bounds in units of delta / 2."""

    pattern: int
    low: int
    high: int
    factor: int

    def __call__(self, codes: Codes, keys: Sequence[Integers]) -> Codes:
        moves = (codes > self.low) & (codes < self.high)
        result = codes.copy()
        for token in np.flatnonzero(moves.any(axis=0)).tolist():
            read = codes[:, keys[token]]
            shift = self.factor * (read.max(axis=1) - read.min(axis=1))
            result[:, token] += np.where(moves[:, token], shift, 0)
        return result


@dataclass(frozen=True)
class GlobalShift:
    """z_k += factor (max over the keys of k)."""

    pattern: int
    factor: int

    def __call__(self, codes: Codes, keys: Sequence[Integers]) -> Codes:
        return np.stack([codes[:, k] + self.factor * codes[:, read].max(axis=1) for k, read in enumerate(keys)], axis=1)


Layer = Idle | SelectiveShift | GlobalShift


@dataclass(frozen=True, eq=False)
class Collision:
    """Two (input, token) pairs with one code; an input lists d features per token, as fractions."""

    code: Fraction
    first_input: tuple[tuple[Fraction, ...], ...]
    first_token: int
    second_input: tuple[tuple[Fraction, ...], ...]
    second_token: int

    def __str__(self) -> str:
        return (
            f"token {self.first_token} of {_show(self.first_input)} and token {self.second_token} of"
            f" {_show(self.second_input)} have the code {self.code}"
        )


@dataclass(frozen=True)
class Enumeration:
    """The result of enumerating a grid: the numbers of inputs and codes, and a collision if there is one."""

    inputs: int
    codes: int
    collision: Collision | None

    @property
    def distinct(self) -> bool:
        """Whether no two codes are equal."""
        return self.collision is None

    def __str__(self) -> str:
        found = "all codes distinct" if self.collision is None else f"collision: {self.collision}"
        return f"{self.inputs:,} inputs, {self.codes:,} codes: {found}"


@dataclass(frozen=True, eq=False)
class ContextualMapping:
    """Layers that give each token of each input a code of its own.

    `tokens` are the positions of the n input tokens among the `length` positions of the patterns, ascending; `start` is
    what each position's u^T Z has before the input is added, in units of delta / 2.
    """

    graphs: tuple[Graph, ...]
    tokens: tuple[int, ...]
    d: int
    delta: Fraction
    start: tuple[int, ...]
    layers: tuple[Layer, ...]

    @property
    def length(self) -> int:
        """Positions of the patterns: n, and one more where the hub is added to the input."""
        return len(self.start)

    def codes(self, inputs: Codes | Integers, delta: Fraction | None = None) -> Codes:
        """The codes u^T Z after all layers, in units of delta / 2, exact: object [inputs, length] of int.

        `inputs` holds features in units of `delta`, object or int [inputs, n, d]; token `tokens[i]` gets inputs[:, i].
        `delta` is the grid's step, that of the construction by default or a finer one, which divides it.
        """
        return deque(self.trace(inputs, delta), maxlen=1).pop()

    def trace(self, inputs: Codes | Integers, delta: Fraction | None = None) -> Iterator[Codes]:
        """The codes before the first layer and after each, dtype object [inputs, length]; arguments as of `codes`."""
        steps = self.delta.denominator
        finer = _finer(self.delta, delta or self.delta)
        codes = np.zeros((len(inputs), self.length), object)
        codes += np.array(self.start, object) * finer
        weights = [2 * steps**feature for feature in range(self.d)]
        for place, token in enumerate(self.tokens):
            codes[:, token] += inputs[:, place].astype(object) @ np.array(weights, object)
        yield codes
        keys = [[graph.keys(token) for token in range(self.length)] for graph in self.graphs]
        for layer in self.layers:
            codes = _scaled(layer, finer)(codes, keys[layer.pattern])
            yield codes

    def check(self, positions: Sequence[int] | None = None, delta: Fraction | str | float | None = None) -> Enumeration:
        """Enumerate the grid and compare all codes at `positions` (by default those of the input).

        With a finer `delta` than the construction's, it has to distinguish more inputs than it was built for. Raises
        PatternError for more than MOST_CODES codes, or if delta does not divide the construction's.
        """
        step = self.delta if delta is None else read_delta(delta)
        _finer(self.delta, step)
        steps, n = step.denominator, len(self.tokens)
        positions = self.tokens if positions is None else positions
        count = steps ** (n * self.d)
        if count * self.length > MOST_CODES:
            raise PatternError(
                "grid-too-large",
                f"the grid has {steps}^{n * self.d} inputs of {self.length} codes each, but a check enumerates at"
                f" most {MOST_CODES:,} codes: use fewer tokens or features, or a larger delta",
            )
        inputs = grid(steps, n, self.d, np.arange(count))
        codes = self.codes(inputs, step)
        seen: dict[int, tuple[int, int]] = {}
        for row in range(count):
            for position in positions:
                code = codes[row, position]
                if code in seen:
                    other, where = seen[code]
                    first, second = (_features(inputs[which], step) for which in (other, row))
                    collision = Collision(code * step / 2, first, where, second, position)
                    return Enumeration(count, count * len(positions), collision)
                seen[code] = row, position
        return Enumeration(count, count * len(positions), None)


def yun_mapping(
    pattern: Pattern | Schedule | str,
    n: int,
    d: int,
    delta: Fraction | str | float,
    *,
    path: Sequence[int] | None = None,
    hops: int | None = None,
) -> ContextualMapping:
    """The construction of Yun 2020 for n tokens of d features on a grid of step `delta`, such as "1/3".

    Path and layers to full reach are the certificate's. Give both to try a pattern that is not certified; its codes may
    then collide. Raises PatternError for a pattern that does not satisfy Assumption 1, and a delta that is not 1 over a
    whole number of at least 2.
    """
    delta, certificate = _checked(n, d, delta), _certified(pattern, n)
    period, steps, graphs = certificate.schedule.period, delta.denominator, certificate.graphs
    if path is None or hops is None:
        if not certificate.yun or certificate.path.path is None or certificate.hops is None:
            raise PatternError("not-certified", _refusal(certificate, "Assumption 1 of Yun 2020", "path= and hops="))
        path, hops = certificate.path.path.tolist(), certificate.hops
    _check_layers(count_yun_layers(n, d, steps, period, hops), n, d, steps, period)
    spread = sum(steps**feature for feature in range(d))  # what adding 1 to every feature adds to u^T Z
    offsets = [n - 1, *range(n - 1)]
    start = [0] * n
    for token, offset in zip(path, offsets, strict=True):
        start[token] = 2 * steps * offset * spread
    layers = [
        layer
        for place in range(1, n)
        for value in range(steps**d)
        for layer in _one_cycle(graphs, path[place - 1], path[place], start[path[place]] + 2 * value, steps**d)
    ]
    layers += [GlobalShift(number % period, n * steps ** ((n + 1) * d + 1)) for number in range(hops)]
    return ContextualMapping(graphs, tuple(range(n)), d, delta, tuple(start), tuple(layers))


def star_mapping(pattern: Pattern | Schedule | str, n: int, d: int, delta: Fraction | str | float) -> ContextualMapping:
    """The construction of Zaheer 2020, appendix A, for n tokens of d features beside the hub of a star.

    The pattern is taken at length n + 1. In a cycle of patterns the layers of all but the one with the star are idle.
    Raises PatternError for a pattern without a star, and a delta that is not 1 over a whole number of at least 2.
    """
    delta, certificate = _checked(n, d, delta), _certified(pattern, n + 1)
    if not isinstance(certificate.hub, Hub):
        raise PatternError("not-certified", _refusal(certificate, "Theorem 1 of Zaheer 2020 (a star)"))
    star, hub = certificate.hub.pattern, certificate.hub.token
    period, steps = certificate.schedule.period, delta.denominator
    _check_layers(count_star_layers(n, d, steps, period), n, d, steps, period)
    tokens = tuple(token for token in range(n + 1) if token != hub)
    unit, spread = 2 * steps, sum(steps**feature for feature in range(d))
    start = [0] * (n + 1)
    for place, token in enumerate(tokens):
        start[token] = unit * spread * steps ** (place * d) if place else 0
    start[hub] = unit * steps ** (n * d)
    shifts: list[SelectiveShift] = []
    own = [(start[token], start[token] + 2 * (steps**d - 1)) for token in tokens]
    center, shifted = (start[hub], start[hub]), []
    for place, (least, greatest) in enumerate(own):
        shifts += [SelectiveShift(star, least + 2 * v - 1, least + 2 * v + 1, steps**d) for v in range(steps**d)]
        shifts.append(SelectiveShift(star, center[0] - 1, center[1] + 1, steps ** (n * d)))
        more = steps**d - 1
        shifted.append((steps**d * center[0] - more * greatest, steps**d * center[1] - more * least))
        below = own[place + 1] if place + 1 < n else shifted[0]
        center = tuple(center[side] + steps ** (n * d) * max(shifted[-1][side] - below[1 - side], 0) for side in (0, 1))
    shifts.append(SelectiveShift(star, shifted[0][0] - 1, shifted[-1][1] + 1, steps ** (n * n * d)))
    layers = [shift if number == star else Idle(number) for shift in shifts for number in range(period)]
    return ContextualMapping(certificate.graphs, tokens, d, delta, tuple(start), tuple(layers))


def count_yun_layers(n: int, d: int, steps: int, period: int, hops: int) -> int:
    """The layers of `yun_mapping`, steps = 1 / delta: p (n - 1) / delta^d + s."""
    return period * (n - 1) * steps**d + hops


def count_star_layers(n: int, d: int, steps: int, period: int) -> int:
    """The layers of `star_mapping`, steps = 1 / delta: p (n (delta^-d + 1) + 1)."""
    return period * (n * (steps**d + 1) + 1)


def _one_cycle(graphs: Sequence[Graph], before: int, token: int, value: int, factor: int) -> Iterator[Layer]:
    """One layer per pattern: a shift of `value` in the first one in which `token` reads `before`, else nothing."""
    active = next((number for number, graph in enumerate(graphs) if graph.has(token, before)), None)
    for number in range(len(graphs)):
        yield SelectiveShift(number, value - 1, value + 1, factor) if number == active else Idle(number)


# --- grids and units -------------------------------------------------------------------------------------------------


def read_delta(delta: Fraction | str | float) -> Fraction:
    """The step of a grid; a float is taken as it is written, 0.1 as 1/10. Raises PatternError if it makes no grid."""
    try:
        step = Fraction(str(delta))
    except (ValueError, ZeroDivisionError):
        raise PatternError("delta-form", f"delta must be a fraction such as '1/4', got {delta!r}") from None
    if step.numerator != 1 or step.denominator < 2:
        raise PatternError(
            "grid-step", f"a grid needs a step that is 1 over a whole number of at least 2, got delta={step}"
        )
    return step


def _checked(n: int, d: int, delta: Fraction | str | float) -> Fraction:
    """The step as a fraction, once it is known that there are tokens and features."""
    if n < 1 or d < 1:
        raise PatternError(
            "mapping-too-small", f"a mapping needs at least one token with one feature, got {n=} and {d=}"
        )
    return read_delta(delta)


def _check_layers(layers: int, n: int, d: int, steps: int, period: int) -> None:
    if layers > MOST_LAYERS:
        turns = f" in a cycle of {period} patterns," if period > 1 else ""
        raise PatternError(
            "mapping-too-large",
            f"the construction shifts each of {n:,} tokens once per value, {steps}^{d} of them,{turns} but at most"
            f" {MOST_LAYERS:,} layers are built: use fewer tokens or features, or a larger delta",
        )


def _certified(pattern: Pattern | Schedule | str, length: int) -> Certificate:
    certificate = certify(pattern, length)
    for part in certificate.schedule.patterns:
        if part.heads > 1:
            raise PatternError(
                "mapping-heads",
                f"the heads of the construction share one pattern, but {part} is for {part.heads} heads: write their"
                " patterns as a cycle, interleave(a, b, ...)",
            )
    return certificate


def _refusal(certificate: Certificate, theorem: str, way: str = "") -> str:
    hint = f"; give {way} to try it anyway" if way else ""
    return f"{certificate.schedule} at length {certificate.n} is not certified for {theorem}, see explain(){hint}"


def _finer(coarse: Fraction, fine: Fraction) -> int:
    """How many fine steps a coarse one has."""
    ratio = coarse / fine
    if ratio.denominator != 1:
        raise PatternError(
            "grids-do-not-divide", f"the grid's delta must divide the construction's, {coarse}, got {fine}"
        )
    return ratio.numerator


def _scaled(layer: Layer, finer: int) -> Layer:
    """The layer for codes in units `finer` times smaller."""
    if isinstance(layer, SelectiveShift):
        return SelectiveShift(layer.pattern, layer.low * finer, layer.high * finer, layer.factor)
    return layer


def grid(steps: int, n: int, d: int, numbers: Integers) -> Integers:
    """The inputs of these numbers out of steps^(n d), in units of delta: int64 [inputs] -> [inputs, n, d]."""
    return np.stack(np.unravel_index(numbers, (steps,) * (n * d)), axis=1).reshape(-1, n, d)


def _features(row: Integers, delta: Fraction) -> tuple[tuple[Fraction, ...], ...]:
    return tuple(tuple(value * delta for value in token) for token in row.tolist())


def _show(rows: tuple[tuple[Fraction, ...], ...]) -> str:
    tokens = (", ".join(str(value) for value in token) for token in rows)
    return f"[{'; '.join(tokens)}]"
