"""The approximating transformer as an ordinary torch model: this library's attention and feed-forward layers, float64.

Three parts, each a stack of residual layers, x + attention(x) or x + feed_forward(x), without norms:

- quantise     counts, for every feature, the grid's thresholds below it. One feed-forward layer per threshold.
- map          the layers of a contextual mapping, with softmax at a low temperature for its hard attention.
- look up      adds the value that belongs to a code where a token has that code. One feed-forward layer per code.

Attention has two heads whose queries and keys have one feature: for a selective shift the scores are
(u^T z_k - b) u^T z_j / temperature, so that the greatest key wins where u^T z_k > b and the least where it is less; the
heads take b below and above the shifted values, and their difference is max - min between and 0 elsewhere. Feed-forward
layers have four ReLU units. An indicator takes two of them in depth: the first writes a distance s into a scratch
feature, 0 where the condition holds and at least 1 where it does not, and the next adds relu(1 - s), so that nothing
is left of large numbers that should cancel. The papers' blocks are pairs of an attention and a feed-forward layer, of
which one is idle here at any time.

The hidden features: the d inputs, the code u^T z in units of delta, the scratch feature, the outputs. Codes are whole
numbers. As long as none has more than EXACT_BITS bits and losing keys underflow to weight 0, all arithmetic is exact
and the model equals the construction with hard attention and thresholds, but for inputs less than RAMP below a
threshold, as a continuous function cannot jump.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from asterism.layers import FeedForward, SparseAttention
from asterism.patterns import Pattern
from asterism.theory.approximation.contextual import ContextualMapping, GlobalShift, Idle, Layer, SelectiveShift
from asterism.theory.certificates.graph import Integers

HEADS, WIDTH = 2, 4
"""Heads of an attention layer, hidden units of a feed-forward layer."""

RAMP = 2.0**-30
"""Width of the ramp before a threshold, up which the model goes where the exact construction jumps."""

TEMPERATURE = 2.0**-12
"""Keys lose by a score of at least 3/8 / temperature (codes 1 apart, queries 1/2, rounding); exp(-745) is 0."""

EXACT_BITS = 50
"""Whole numbers up to 2^53 are exact in float64; three bits keep the order of rounded scores."""


@dataclass
class Unit:
    """One ReLU: relu(<reads, x> + bias), times `writes`, is added to x. Features are named by number."""

    reads: dict[int, float]
    bias: float
    writes: dict[int, float] = field(default_factory=dict)


class Residual(nn.Module):
    """x + layer(x), float64 [B, length, hidden_size] -> the same shape."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.layer(hidden)


@dataclass(frozen=True)
class Features:
    """Which hidden feature holds what."""

    d: int
    outputs: int

    @property
    def code(self) -> int:
        return self.d

    @property
    def scratch(self) -> int:
        return self.d + 1

    @property
    def output(self) -> range:
        return range(self.d + 2, self.d + 2 + self.outputs)

    @property
    def hidden_size(self) -> int:
        """A multiple of the heads."""
        return -(-self.output.stop // HEADS) * HEADS


class Approximator(nn.Module):
    """float64 [B, n, d] in [0, 1] -> [B, n, outputs].

    mapping    the contextual mapping; patterns[i] is the pattern of its graphs[i]
    positions  where the n tokens of the function stand; other positions of the mapping, the hub, hold zeros
    codes      the codes of the grid, in the mapping's units, and values float64 [codes, outputs]
    """

    def __init__(
        self,
        mapping: ContextualMapping,
        patterns: Sequence[Pattern],
        positions: Sequence[int],
        codes: Sequence[int],
        values: NDArray[np.float64],
        temperature: float = TEMPERATURE,
    ) -> None:
        super().__init__()
        self.features = features = Features(mapping.d, values.shape[1])
        steps = mapping.delta.denominator
        self.embed = nn.Linear(mapping.d, features.hidden_size, bias=False)
        self.positions = nn.Parameter(torch.zeros(mapping.length, features.hidden_size))
        self.quantise = nn.Sequential(*(_feed_forward(features, units) for units in _thresholds(features, steps)))
        self.map = nn.Sequential(
            *(_attention(features, patterns[layer.pattern], layer, temperature) for layer in mapping.layers)
        )
        halves = [code // 2 for code in codes]
        self.look_up = nn.Sequential(*(_feed_forward(features, units) for units in _table(features, halves, values)))
        self.answer = nn.Linear(features.hidden_size, features.outputs, bias=False)
        self.double().requires_grad_(False)
        self.embed.weight.copy_(torch.eye(features.hidden_size, mapping.d))
        self.positions[:, features.code] = torch.tensor([start // 2 for start in mapping.start], dtype=torch.float64)
        self.answer.weight.copy_(torch.eye(features.hidden_size)[list(features.output)])
        self.places: Tensor
        self.register_buffer("places", torch.tensor(positions))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.answer(self.look_up(self._mapped(inputs))[:, self.places])

    def codes(self, inputs: Tensor) -> Tensor:
        """The codes of all positions after the mapping, in units of delta, float64 [B, length]."""
        return self._mapped(inputs)[..., self.features.code]

    def _mapped(self, inputs: Tensor) -> Tensor:
        padded = inputs.new_zeros(len(inputs), len(self.positions), inputs.shape[2])
        hidden = self.embed(padded.index_copy(1, self.places, inputs)) + self.positions
        return self.map(self.quantise(hidden))


def count_feed_forward_layers(d: int, steps: int, codes: int) -> int:
    """Feed-forward layers of the model: an indicator's second half is in the layer after its first."""
    thresholds = d * (steps - 1)
    return (thresholds + 1) + (codes + 1)


def count_parameters(features: Features, length: int, attention_layers: int, feed_forward_layers: int) -> int:
    """Parameters of the model for `length` positions, from the shapes of its layers."""
    size = features.hidden_size
    attention = 2 * HEADS * (size + 1) + 2 * size * (size + 1)
    feed_forward = WIDTH * (size + 1) + size * (WIDTH + 1)
    ends = size * (features.d + length + features.outputs)
    return attention_layers * attention + feed_forward_layers * feed_forward + ends


def _thresholds(features: Features, steps: int) -> Iterator[list[Unit]]:
    """Per layer: code += steps^r where feature r is at or above a threshold k / steps."""
    erase = Unit({features.scratch: 1.0}, 0.0, {features.scratch: -1.0})
    pending: list[Unit] = []
    for feature in range(features.d):
        for threshold in range(1, steps):
            below = Unit({feature: -1 / RAMP}, threshold / steps / RAMP, {features.scratch: 1.0})
            yield [below, *pending]
            hit = Unit({features.scratch: -1.0}, 1.0, {features.code: float(steps**feature)})
            pending = [erase, hit]
    yield pending


def _table(features: Features, codes: Sequence[int], values: NDArray[np.float64]) -> Iterator[list[Unit]]:
    """Per layer: outputs += value where the code is that of the value."""
    code, scratch = features.code, features.scratch
    erase = Unit({scratch: 1.0}, 0.0, {scratch: -1.0})
    pending: list[Unit] = []
    for number, value in zip(codes, values.tolist(), strict=True):
        above = Unit({code: 1.0}, -float(number), {scratch: 1.0})
        below = Unit({code: -1.0}, float(number), {scratch: 1.0})
        yield [above, below, *pending]
        pending = [erase, Unit({scratch: -1.0}, 1.0, dict(zip(features.output, value, strict=True)))]
    yield pending


def _feed_forward(features: Features, units: Sequence[Unit]) -> Residual:
    layer = FeedForward(features.hidden_size, WIDTH, "relu").double().requires_grad_(False)
    for parameter in layer.parameters():
        parameter.zero_()
    for number, unit in enumerate(units):
        layer.up_proj.bias[number] = unit.bias
        for feature, weight in unit.reads.items():
            layer.up_proj.weight[number, feature] = weight
        for feature, weight in unit.writes.items():
            layer.down_proj.weight[feature, number] = weight
    return Residual(layer)


def _attention(features: Features, pattern: Pattern, mapped: Layer, temperature: float) -> Residual:
    """A layer of the mapping. Its bounds are in halves of the code's unit."""
    size, code = features.hidden_size, features.code
    layer = SparseAttention(size, HEADS, pattern, query_key_dim=HEADS).double().requires_grad_(False)
    for parameter in layer.parameters():
        parameter.zero_()
    second = size // HEADS  # the first value feature of the second head
    layer.key.weight[:, code] = 1
    layer.value.weight[[0, second], code] = 1
    match mapped:
        case Idle():
            pass
        case SelectiveShift(low=low, high=high, factor=factor):
            layer.query.weight[:, code] = 1 / temperature
            layer.query.bias.copy_(torch.tensor([-low / 2 / temperature, -high / 2 / temperature]))
            layer.output.weight[code, 0], layer.output.weight[code, second] = factor, -factor
        case GlobalShift(factor=factor):
            layer.query.bias[0] = 1 / temperature
            layer.output.weight[code, 0] = factor
    return Residual(layer)


def trace_largest(mapping: ContextualMapping, inputs: Integers) -> tuple[NDArray[np.object_], int]:
    """The codes of grid inputs [inputs, n, d], and the largest number that the model meets, in units of delta.

    Attention multiplies the codes before a layer by its factor and adds the difference of two such products.
    """
    trace = mapping.trace(inputs)
    codes = next(trace)
    largest = codes.max()
    for layer, after in zip(mapping.layers, trace, strict=True):
        factor = 1 if isinstance(layer, Idle) else layer.factor
        largest = max(largest, factor * codes.max(), after.max())
        codes = after
    return codes, int(largest) // 2
