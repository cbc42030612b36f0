"""Universal approximation, executed: a continuous function on [0, 1]^(n x d) -> a sparse transformer within epsilon.

The proof of both universality theorems (Zaheer 2020, appendix A; Yun 2020, after Yun et al. 2019 for full attention):

1. Quantise. On each cell of a grid of step delta the function is replaced by its value in the middle of the cell.
2. Map. Sparse attention gives every token of every cell a code of its own (`contextual`).
3. Look up. A feed-forward layer for each of the n delta^-(n d) codes adds the value that belongs to it.

`Approximation.exact` is the construction with thresholds, hard attention and whole numbers of any size. `model` is the
same as an ordinary torch model of this library's layers (`approximator`). The distance is

    d_p(f, g) = (integral over [0, 1]^(n x d) of the sum over tokens and outputs of |f - g|^p)^(1/p)

estimated from seeded uniform samples, with its standard error.
"""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from asterism.errors import ConfigurationError, PatternError
from asterism.patterns import Pattern, Schedule, as_schedule
from asterism.theory.approximation.contextual import (
    ContextualMapping,
    count_star_layers,
    count_yun_layers,
    grid,
    read_delta,
    star_mapping,
    yun_mapping,
)
from asterism.theory.approximation.torch_model import (
    EXACT_BITS,
    HEADS,
    TEMPERATURE,
    WIDTH,
    Approximator,
    Features,
    count_feed_forward_layers,
    count_parameters,
    trace_largest,
)
from asterism.theory.certificates.graph import Integers
from asterism.theory.certificates.universality import Certificate, certify

Floats = NDArray[np.float64]
Function = Callable[[Floats], Floats]
"""float64 [B, n, d] -> [B, n, outputs]."""

SAMPLES = 2**14

_ATTENTION_BYTES, _FEED_FORWARD_BYTES, _CODE_BYTES = 21_000, 12_000, 400
"""Bytes of Python objects, measured: those of a module of each kind without its parameters, and of an exact code."""

_CHUNK = 2**12


@dataclass(frozen=True)
class Distance:
    """An estimate of d_p and its standard error."""

    value: float
    error: float

    @property
    def upper(self) -> float:
        """Three standard errors above."""
        return self.value + 3 * self.error

    def __str__(self) -> str:
        return f"{self.value:.4f} +- {self.error:.4f}"


def distance(
    f: Function, g: Function, n: int, d: int, *, p: float = 2, samples: int = SAMPLES, seed: int = 0
) -> Distance:
    """d_p(f, g) from uniform samples. Raises ConfigurationError for p below 1 and fewer than two samples."""
    if p < 1 or samples < 2:
        raise ConfigurationError(
            "distance-arguments", f"a distance needs p >= 1 and at least 2 samples, got {p=} and {samples=}"
        )
    generator = np.random.Generator(np.random.Philox(seed))
    powers = np.concatenate(
        [
            (np.abs(f(inputs) - g(inputs)) ** p).sum((1, 2))
            for inputs in np.array_split(generator.random((samples, n, d)), -(-samples // _CHUNK))
        ]
    )
    mean = float(powers.mean())
    if mean == 0:
        return Distance(0.0, 0.0)
    error = float(powers.std(ddof=1)) / math.sqrt(samples)
    return Distance(mean ** (1 / p), error * mean ** (1 / p - 1) / p)


@dataclass(frozen=True)
class Price:
    """The size of the torch model, known before anything is built.

    The grid has `inputs` inputs and n times as many `codes`, a feed-forward layer each. Of the attention layers, `idle`
    only wait for their pattern's turn. `width` counts the hidden units of a feed-forward layer. `memory` is about how
    many bytes the model and the exact table take.
    """

    delta: Fraction
    inputs: int
    codes: int
    attention_layers: int
    idle: int
    feed_forward_layers: int
    heads: int
    hidden_size: int
    width: int
    parameters: int
    memory: int


@dataclass(frozen=True, eq=False)
class Approximation:
    """An approximation of `function`. `positions` are the places of its tokens among the mapping's positions.

    `price` is the size of the torch model. Its attention layers cycle through `patterns`.
    """

    function: Function
    mapping: ContextualMapping
    patterns: tuple[Pattern, ...]
    price: Price

    @property
    def n(self) -> int:
        return len(self.mapping.tokens)

    @property
    def steps(self) -> int:
        """1 / delta."""
        return self.mapping.delta.denominator

    @property
    def positions(self) -> list[int]:
        return list(self.mapping.tokens)

    def quantised(self, inputs: Floats) -> Floats:
        """Step 1 alone: the function's value in the middle of the cell, float64 [B, n, d] -> [B, n, outputs]."""
        return self._values(_cells(inputs, self.steps))

    def exact(self, inputs: Floats) -> Floats:
        """The construction with thresholds, hard attention and exact whole numbers.

        float64 [B, n, d] -> [B, n, outputs].

        Raises ConfigurationError for inputs of another shape or outside [0, 1], PatternError where codes collide.
        """
        cells, place = np.unique(_cells(_checked_inputs(inputs, self), self.steps), axis=0, return_inverse=True)
        codes = self.mapping.codes(cells)[:, self.positions]
        table, _ = self._enumerated
        values = [[table[code] for code in row] for row in codes.tolist()]
        return np.array(values)[place.reshape(-1)]

    def codes(self, inputs: Floats) -> NDArray[np.object_]:
        """The exact codes of all positions of the mapping, in units of delta.

        float64 [B, n, d] -> integers of dtype object [B, length].

        Raises ConfigurationError for inputs of another shape or outside [0, 1].
        """
        return self.mapping.codes(_cells(_checked_inputs(inputs, self), self.steps)) // 2

    def model(self, temperature: float = TEMPERATURE) -> Approximator:
        """Build the torch model. Raises ConfigurationError if float64 cannot hold its numbers."""
        corners = _corners(self.steps, self.n, self.mapping.d)
        self._check_range(trace_largest(self.mapping, corners)[1])  # before the whole grid is looked at
        table, largest = self._enumerated
        self._check_range(largest)
        codes, values = zip(*table.items(), strict=True)
        return Approximator(self.mapping, self.patterns, self.positions, codes, np.array(values), temperature)

    def measure(
        self, model: Approximator | None = None, *, p: float = 2, samples: int = SAMPLES, seed: int = 0
    ) -> Distance:
        """d_p between the function and the exact construction, or the model."""
        g = self.exact if model is None else as_function(model)
        return distance(self.function, g, self.n, self.mapping.d, p=p, samples=samples, seed=seed)

    @cached_property
    def _enumerated(self) -> tuple[dict[int, Floats], int]:
        """The value [outputs] of every code of the grid, and the largest number met on the way to the codes."""
        table: dict[int, Floats] = {}
        largest = 0
        for start in range(0, self.price.inputs, _CHUNK):
            numbers = np.arange(start, min(start + _CHUNK, self.price.inputs))
            cells = grid(self.steps, self.n, self.mapping.d, numbers)
            codes, number = trace_largest(self.mapping, cells)
            largest = max(largest, number)
            for row, tokens in zip(codes[:, self.positions].tolist(), self._values(cells), strict=True):
                table.update(zip(row, tokens, strict=True))
        expected = self.price.codes
        if len(table) != expected:
            raise PatternError(
                "codes-collide",
                f"{expected - len(table):,} of {expected:,} codes collide, so no table can tell their inputs apart;"
                " the mapping's check() names two",
            )
        return table, largest

    def _values(self, cells: Integers) -> Floats:
        return _evaluate(self.function, (cells + 0.5) / self.steps)

    def _check_range(self, largest: int) -> None:
        bits = largest.bit_length()
        if bits > EXACT_BITS:
            raise ConfigurationError(
                "codes-too-long",
                f"at n={self.n}, d={self.mapping.d}, delta=1/{self.steps} the codes need {bits} bits or more, but a"
                f" float64 model stores only {EXACT_BITS} exactly: use a larger delta, fewer tokens or features, or a"
                " pattern of fewer hops; exact() has no such limit",
            )


def approximate(
    function: Function,
    n: int,
    d: int,
    pattern: Pattern | Schedule | str,
    *,
    epsilon: float | None = None,
    delta: Fraction | str | float | None = None,
    p: float = 2,
    construction: Literal["auto", "yun", "star"] = "auto",
    memory: int | None = None,
) -> Approximation:
    """A sparse transformer that approximates a continuous function of n tokens of d features in [0, 1].

    function      vectorised: float64 [B, n, d] -> [B, n, outputs]
    pattern       a pattern, schedule or text that a theorem certifies: Yun 2020 at length n ("yun"), or Zaheer 2020 at
                  length n + 1, the hub being one more token ("star"); "auto" takes the first that holds
    epsilon       the greatest d_p(f, g): the largest delta is taken for which the estimate is below it by three
                  standard errors; or
    delta         the step of the grid itself, 1 over a whole number, such as "1/4"
    memory        bytes that table and model may take, by default what the machine has left

    Raises ConfigurationError if the memory does not suffice, before anything is built, and for arguments or a function
    that do not fit. Raises PatternError for a pattern that is not certified and a delta that makes no grid.
    """
    if (epsilon is None) == (delta is None):
        raise ConfigurationError("missing-argument", "approximate needs either epsilon or delta")
    if epsilon is not None and not epsilon > 0:
        raise ConfigurationError("epsilon-range", f"epsilon must be above 0, got {epsilon}")
    if n < 2 or d < 1:
        raise ConfigurationError(
            "sequence-too-small", f"approximate needs sequences of at least 2 tokens with 1 feature, got {n=} and {d=}"
        )
    left = _memory_left() if memory is None else memory
    outputs = _evaluate(function, np.full((1, n, d), 0.5)).shape[2]
    chosen = _choose(pattern, n, d, construction)
    if delta is None:
        assert epsilon is not None  # one of the two is given
        price = _largest_delta(function, chosen, outputs, epsilon, p, left)
    else:
        price = chosen.price(read_delta(delta), outputs)
        _check_memory(price, n, d, left)
    return Approximation(function, chosen.build(price.delta), chosen.certificate.schedule.patterns, price)


def as_function(model: Approximator) -> Function:
    """The torch model as a function of arrays, float64 [B, n, d] -> [B, n, outputs]."""

    def evaluate(inputs: Floats) -> Floats:
        with torch.no_grad():
            return model(torch.from_numpy(inputs)).numpy()

    return evaluate


# --- choice of the construction and of delta --------------------------------------------------------------------------


@dataclass(frozen=True)
class _Construction:
    """A construction for n tokens of d features, whose theorem the certificate proves; the grid is still open."""

    certificate: Certificate
    star: bool
    n: int
    d: int

    def price(self, delta: Fraction, outputs: int) -> Price:
        n, d, steps, features = self.n, self.d, delta.denominator, Features(self.d, outputs)
        codes = n * steps ** (n * d)
        attention_layers = self._attention_layers(steps, self.certificate.schedule.period)
        feed_forward_layers = count_feed_forward_layers(d, steps, codes)
        parameters = count_parameters(features, self.certificate.n, attention_layers, feed_forward_layers)
        return Price(
            delta=delta,
            inputs=codes // n,
            codes=codes,
            attention_layers=attention_layers,
            idle=attention_layers - self._attention_layers(steps, period=1),
            feed_forward_layers=feed_forward_layers,
            heads=HEADS,
            hidden_size=features.hidden_size,
            width=WIDTH,
            parameters=parameters,
            memory=8 * parameters
            + attention_layers * _ATTENTION_BYTES
            + feed_forward_layers * _FEED_FORWARD_BYTES
            + codes * _CODE_BYTES,
        )

    def build(self, delta: Fraction) -> ContextualMapping:
        make = star_mapping if self.star else yun_mapping
        return make(self.certificate.schedule, self.n, self.d, delta)

    def _attention_layers(self, steps: int, period: int) -> int:
        if self.star:
            return count_star_layers(self.n, self.d, steps, period)
        assert self.certificate.hops is not None  # Assumption 1 holds
        return count_yun_layers(self.n, self.d, steps, period, self.certificate.hops)


def _choose(pattern: Pattern | Schedule | str, n: int, d: int, construction: str) -> _Construction:
    """The construction asked for, once a theorem covers the pattern."""
    schedule = as_schedule(pattern)
    if construction not in ("auto", "yun", "star"):
        raise ConfigurationError(
            "unknown-construction", f"construction must be auto, yun or star, got {construction!r}"
        )
    reasons = []
    if construction != "star":
        certificate = certify(schedule, n)
        if certificate.yun:
            return _Construction(certificate, False, n, d)
        reasons.append(f"Assumption 1 of Yun 2020 is not known to hold at length {n}")
    if construction != "yun":
        certificate = certify(schedule, n + 1)
        if certificate.star:
            return _Construction(certificate, True, n, d)
        reasons.append(f"there is no star at length {n + 1}")
    raise PatternError(
        "not-certified", f"no theorem certifies {schedule}: {' and '.join(reasons)}; see certify(...).explain()"
    )


def _largest_delta(
    function: Function, chosen: _Construction, outputs: int, epsilon: float, p: float, left: int
) -> Price:
    """Try finer and finer grids. The error is about proportional to delta, so most steps can be left out."""
    n, d, steps = chosen.n, chosen.d, 2
    while True:
        price = chosen.price(Fraction(1, steps), outputs)
        _check_memory(price, n, d, left, f"epsilon {epsilon:g} needs delta of about 1/{steps} or less: ")

        def quantised(inputs: Floats, steps: int = steps) -> Floats:
            return _evaluate(function, (_cells(inputs, steps) + 0.5) / steps)

        found = distance(function, quantised, n, d, p=p)
        if found.upper <= epsilon:
            return price
        steps = max(steps + 1, math.floor(0.9 * steps * found.value / epsilon))


def _check_memory(price: Price, n: int, d: int, left: int, because: str = "") -> None:
    """Refuse a grid whose table and model would not fit."""
    if price.memory > left:
        raise ConfigurationError(
            "construction-too-large",
            f"{because}n={n} tokens of d={d} features on a grid of delta={price.delta} have {_count(price.codes)}"
            f" codes, a layer each, which take about {_gibibytes(price.memory)}, and {_gibibytes(left)} are left",
        )


def _count(number: int) -> str:
    """A number of any size: whole up to a trillion, then as a power of ten."""
    return f"{number:,}" if number < 10**12 else f"about 10^{math.log10(number):.0f}"


def _gibibytes(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB" if size < 2**70 else f"10^{math.log10(size) - math.log10(2**30):.0f} GiB"


def _memory_left() -> int:
    """Bytes that new objects may take: what Linux calls available, elsewhere all memory."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


# --- cells and values -------------------------------------------------------------------------------------------------


def _cells(inputs: Floats, steps: int) -> Integers:
    """The cell of each feature: how many of the thresholds 1/steps, 2/steps, ... are not above it."""
    return np.searchsorted(np.arange(1, steps) / steps, inputs, side="right")


def _corners(steps: int, n: int, d: int) -> Integers:
    """The cells whose tokens have all features least or all greatest, int64 [2^n, n, d]."""
    corners = np.indices((2,) * n).reshape(n, -1).T
    return np.repeat(corners[:, :, None], d, axis=2) * (steps - 1)


def _evaluate(function: Function, inputs: Floats) -> Floats:
    """The function's values, checked: float64 [B, n, d] -> [B, n, outputs]."""
    values = np.asarray(function(inputs), np.float64)
    if values.ndim != 3 or values.shape[:2] != inputs.shape[:2] or not np.isfinite(values).all():
        raise ConfigurationError(
            "function-form",
            f"the function must return finite numbers [B, n, outputs] for [B, n, d]; for {list(inputs.shape)} it"
            f" returned {list(values.shape)}{'' if np.isfinite(values).all() else ' with NaN or Inf'}",
        )
    return values


def _checked_inputs(inputs: Floats, approximation: Approximation) -> Floats:
    n, d = approximation.n, approximation.mapping.d
    if inputs.shape[1:] != (n, d) or inputs.min(initial=0) < 0 or inputs.max(initial=1) > 1:
        raise ConfigurationError(
            "inputs-form", f"inputs must be [B, {n}, {d}] with features in [0, 1], got {list(inputs.shape)}"
        )
    return inputs
