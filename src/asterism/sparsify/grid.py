"""What may be chosen: for each layer and key head a level, from the layer's own pattern down to a few sinks."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from asterism.budget import Budget, Kind
from asterism.compiler import compile_pattern
from asterism.compiler.liveness import last_reader
from asterism.errors import ConfigurationError
from asterism.memo import remembering_few
from asterism.models.drop_in.layers import LayerAttention, ModelAttention
from asterism.patterns import Pattern, per_head
from asterism.patterns.published import sinks

FIRST = 4
"""Sinks that every level reads (Xiao 2023, section 3.2)."""

Choice = tuple[tuple[int, ...], ...]
"""The level of each key head of each layer; 0 is the layer's own pattern, and the last level reads least."""


@dataclass(frozen=True)
class Costs:
    """What a head does at the length measured: pairs that it reads, and tokens of its cache."""

    keys: int
    cache: int

    def of(self, kind: Kind) -> int:
        """The cost of one kind; operations are counted in pairs."""
        return self.cache if kind == "cache" else self.keys


@remembering_few(4096)
def costs_of(pattern: Pattern, length: int) -> Costs:
    """What a head of this pattern, the same for all heads, does on a text of so many tokens."""
    plan = compile_pattern(pattern, length)
    kept = int((last_reader(pattern, np.arange(length)) >= length).sum())
    return Costs(plan.pairs, kept)


@dataclass(frozen=True)
class Grid:
    """The levels of all layers, and what they cost.

    length     tokens of the texts that are measured
    window     that of the last level, in tokens
    ladders    for each layer its levels: patterns, the own one first
    key_heads  of each layer
    groups     query heads that share a key head, of each layer
    widths     numbers that a cache holds for a token and key head, of each layer
    """

    length: int
    window: int
    ladders: tuple[tuple[Pattern, ...], ...]
    key_heads: tuple[int, ...]
    groups: tuple[int, ...]
    widths: tuple[float, ...]

    @property
    def own(self) -> Choice:
        """Every head under the pattern of its layer."""
        return tuple((0,) * heads for heads in self.key_heads)

    @property
    def least(self) -> Choice:
        """Every head at its last level."""
        return tuple((len(ladder) - 1,) * heads for ladder, heads in zip(self.ladders, self.key_heads, strict=True))

    @property
    def layers(self) -> range:
        """Numbers of the layers."""
        return range(len(self.ladders))

    def weight(self, layer: int, kind: Kind) -> float:
        """What one key head counts in a sum over all: by the numbers kept for a token, by query heads, or by both."""
        queries = 1 if kind == "cache" else self.groups[layer]
        return queries * (1.0 if kind == "keys" else self.widths[layer])

    def cost(self, layer: int, level: int, kind: Kind) -> float:
        """What a key head of this layer, with its queries, costs at a level, in pairs or in numbers kept."""
        return self.weight(layer, kind) * costs_of(self.ladders[layer][level], self.length).of(kind)

    def total(self, choice: Choice, kind: Kind) -> float:
        """The same of all layers and heads."""
        return sum(self.cost(layer, level, kind) for layer in self.layers for level in choice[layer])

    def patterns(self, choice: Choice) -> tuple[str, ...]:
        """The pattern of each layer as text."""
        return tuple(self._pattern(layer, levels) for layer, levels in enumerate(choice))

    def _pattern(self, layer: int, levels: Sequence[int]) -> str:
        ladder = self.ladders[layer]
        if len(set(levels)) == 1:
            return ladder[levels[0]].text
        return per_head([ladder[level] for level in levels for _ in range(self.groups[layer])]).text

    def mean(self, total: float, kind: Kind) -> float:
        """A total as the mean of a head: keys of a query, or tokens of a cache."""
        heads = sum(self.weight(layer, kind) * self.key_heads[layer] for layer in self.layers)
        return total / heads / (1 if kind == "cache" else self.length)

    def limit(self, budget: Budget) -> float:
        """What a budget allows, as a total. Raises ConfigurationError where nothing or everything meets it."""
        kind = budget.kind
        most, least = self.total(self.own, kind), self.total(self.least, kind)
        allowed = budget.amount * (most if budget.is_share else most / self.mean(most, kind))
        if allowed >= most:
            raise ConfigurationError(
                "budget-met",
                f"budget: the model as it is needs {kind}={self.mean(most, kind):,.6g} at {self.length:,} tokens, which"
                f" {budget} allows; give less, or a longer --length",
            )
        if allowed < least:
            raise ConfigurationError(
                "budget-unmet",
                f"budget: no schedule meets {budget} at {self.length:,} tokens; the nearest, {self.ladders[0][-1]} in"
                f" every layer, needs {kind}={self.mean(least, kind):,.0f} or {least / most:.2%}: give that, or a"
                " smaller --window",
            )
        return allowed


def grid_of(model: ModelAttention, length: int, window: int) -> Grid:
    """The grid of a model: its own patterns, and `sinks` of windows that double from `window` on.

    Raises ConfigurationError for layers whose attention no pattern says, and where the least level reads as much as
    every layer does by itself.
    """
    own = [_own(number, layer) for number, layer in enumerate(model.layers)]
    ladders = tuple(_ladder(pattern, length, window) for pattern in own)
    if all(len(ladder) == 1 for ladder in ladders):
        raise ConfigurationError(
            "nothing-sparser",
            f"sinks(first={FIRST}, window={window}) reads no fewer keys of {length:,} tokens than each layer does by"
            " itself: give a smaller --window or a longer --length",
        )
    heads = tuple(layer.key_heads for layer in model.layers)
    return Grid(
        length,
        window,
        ladders,
        heads,
        tuple(layer.heads // layer.key_heads for layer in model.layers),
        tuple((layer.kept or 0) / layer.key_heads for layer in model.layers),
    )


def _own(number: int, layer: LayerAttention) -> Pattern:
    reason = layer.otherwise or ("" if layer.key_heads else "its heads are unknown")
    if isinstance(layer.pattern, Pattern) and layer.pattern.chooses:
        reason = "its queries choose what they read"
    if reason or not isinstance(layer.pattern, Pattern):
        raise ConfigurationError(
            "layer-without-pattern", f"layer {number}: {reason}; such a model cannot be made sparser here"
        )
    return layer.pattern


def _ladder(own: Pattern, length: int, window: int) -> tuple[Pattern, ...]:
    """The own pattern, then sinks of fewer and fewer keys. A level that reads hardly less than the one before it is
    left out: at most 7 of 8 of its pairs."""
    ladder = [own]
    doublings = max(0, (length // window).bit_length() - 1)
    for width in (window * 2**times for times in range(doublings, -1, -1)):
        level = sinks(first=FIRST, window=width)
        if costs_of(level, length).keys * 8 <= costs_of(ladder[-1], length).keys * 7:
            ladder.append(level)
    return tuple(ladder)
