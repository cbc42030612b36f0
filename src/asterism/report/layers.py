"""Which tokens each layer of a run's model reads: small pictures, how many keys a query reads, and what that costs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import log2
from typing import Any, NamedTuple

import numpy as np

from asterism.errors import AsterismError
from asterism.patterns import Linear, Mixer, Transform, as_schedule
from asterism.patterns.across import queries_to_the_end
from asterism.patterns.draw import draw, keys_read
from asterism.patterns.pattern import Verdict
from asterism.report.own_patterns import encoder_patterns
from asterism.report.reading import plain

MOST_PICTURES = 12
"""How many mixers of a model are drawn."""
MOST_HEADS = 4
"""How many heads of a pattern are drawn."""
_CELLS = 64
_COUNTED = 4096
"""Queries whose keys are counted; of longer sequences as many, evenly spread."""
_DIGITS = {Verdict.EMPTY: "0", Verdict.MIXED: "1", Verdict.UNKNOWN: "1", Verdict.FULL: "2"}
_WIDTHS = ("hidden_size", "d_model", "n_embd", "dim")
_HEADS = ("num_attention_heads", "num_heads", "n_head", "n_heads", "encoder_attention_heads")
_LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers")
_DECODER_LAYERS = ("num_decoder_layers", "decoder_layers")
_SIDES = ("query_key_dim", "value_dim")
_DENSE = ("bart", "blenderbot", "m2m_100", "marian", "mbart", "mt5", "pegasus", "t5", "umt5")
"""Encoder-decoders of transformers whose attention is dense, by their types."""


@dataclass(frozen=True)
class DrawnMixer:
    """A mixer, the layers that have it, and what it does there.

    stack     "layers", "decoder layers", or "cross-attention of decoder layers"
    numbers   the layers that have it, the first few; `count` is how many there are
    queries   how many tokens ask; `length` is how many there are to read
    pictures  one for each head that is drawn: rows of cells, "0" nothing, "1" some, "2" all may be read
    heads     how many heads have patterns of their own; 1 where all share one
    keys      the least, mean and greatest number of keys that a query reads; None for a transform
    is_about  whether not all queries were counted
    flops     of one layer, forward, for one sequence; 0 where the model's sizes are not known
    """

    stack: str
    text: str
    numbers: Sequence[int]
    count: int
    queries: int
    length: int
    heads: int
    pictures: Sequence[Sequence[str]]
    keys: tuple[int, float, int] | None
    is_about: bool
    flops: float

    @property
    def density(self) -> float | None:
        """The share of pairs that may be read."""
        return None if self.keys is None else self.keys[1] / max(1, self.length)

    def as_json(self) -> dict[str, Any]:
        """The mixer as the document has it."""
        return {
            "stack": self.stack,
            "pattern": self.text,
            "layers": list(self.numbers),
            "layer_count": self.count,
            "queries": self.queries,
            "length": self.length,
            "heads": self.heads,
            "keys": None if self.keys is None else dict(zip(("least", "mean", "most"), self.keys, strict=True)),
            "density": self.density,
            "about": self.is_about,
            "flops": self.flops,
            "pictures": [list(picture) for picture in self.pictures],
        }


@dataclass(frozen=True)
class Layers:
    """What is known of a model's layers.

    length  tokens of a sequence, global tokens in front of it included; None if it is not known
    target  tokens of what a decoder writes; None if there is no decoder, or it is not known
    heads   attention heads; None if the model's sizes are not known
    remark  a sentence on what is not shown
    """

    length: int | None
    heads: int | None
    has_decoder: bool = False
    mixers: Sequence[DrawnMixer] = field(default_factory=list)
    remark: str | None = None
    target: int | None = None


class _Stack(NamedTuple):
    """Layers that follow a schedule: what they are called, how many there are, and the tokens that ask and are read."""

    title: str
    schedule: Any
    layers: int
    queries: int | None
    keys: int


def draw_layers(shape: Mapping[str, Any], length: int | None, target: int | None = None) -> Layers:
    """The layers of a model, by its config.json or the settings that take its place.

    `length` counts the tokens of a row, `target` those of what a decoder writes.
    """
    heads, width, count = (_first(shape, names) for names in (_HEADS, _WIDTHS, _LAYERS))
    has_decoder = shape.get("decoder_mixers") is not None or bool(shape.get("is_encoder_decoder"))
    if length is None or heads is None or width is None or count is None or length > 2**31:
        return Layers(length, heads, has_decoder, remark="The folder does not hold the sizes of the model.")
    length += _first(shape, ("global_tokens",)) or 0
    schedules, remark = _schedules(shape, length, has_decoder)
    if schedules is None:
        return Layers(length, heads, has_decoder, remark=remark, target=target)
    below = _first(shape, _DECODER_LAYERS) or count
    stacks = [_Stack("layers", schedules[0], count, length, length)]
    if has_decoder:
        stacks += [
            _Stack("decoder layers", schedules[1], below, target, target or length),
            _Stack("cross-attention of decoder layers", schedules[2], below, target, length),
        ]
    mixers: list[DrawnMixer] = []
    try:
        for stack in stacks:
            mixers += _distinct(stack, shape)
    except (AsterismError, MemoryError, OverflowError, TypeError, ValueError) as error:
        remark = f"Patterns are left out: {plain(str(error), 300)}."
        return Layers(length, heads, has_decoder, remark=remark)
    left = len(mixers) - MOST_PICTURES
    if left > 0:
        remark = f"{left:,} more patterns are not drawn."
    return Layers(length, heads, has_decoder, mixers, remark, target)


def _schedules(shape: Mapping[str, Any], length: int, has_decoder: bool) -> tuple[Sequence[Any] | None, str | None]:
    """The schedules of the encoder (or the only stack), the decoder and its cross-attention, and a remark on them.

    None where the configuration of a model of transformers does not tell them.
    """
    if "mixers" in shape:
        return [shape.get(name) for name in ("mixers", "decoder_mixers", "cross_mixers")], None
    if not has_decoder and shape.get("asterism_pattern") is not None:
        return [shape["asterism_pattern"]], None
    kind = plain(shape.get("model_type", "other"), 40)
    other = f"The model is of type {kind}: its configuration names no patterns."
    try:
        if (encoder := encoder_patterns(shape, length)) is not None:
            return [encoder, "causal()", "dense()"], None
    except (KeyError, TypeError, ValueError) as error:
        what = str(error) if type(error) is ValueError else f"its configuration of a {kind} is damaged"
        return None, f"Patterns and FLOPs are left out: {plain(what, 200)}."
    if has_decoder and kind not in _DENSE:
        return None, other
    return ["dense()", "causal()", "dense()"], f"{other} Dense attention is assumed."


def _distinct(stack: _Stack, shape: Mapping[str, Any]) -> list[DrawnMixer]:
    """The distinct mixers of a stack of layers, in the order of their first layers."""
    schedule, count = as_schedule(stack.schedule), stack.layers
    places: dict[Mixer, list[int]] = {}
    for place, mixer in enumerate(schedule.mixers[:count]):
        places.setdefault(mixer, []).append(place)
    drawn: list[DrawnMixer] = []
    for mixer, members in places.items():
        layers = sum(len(range(place, count, schedule.period)) for place in members)
        cycles = range(0, min(count, 8 * schedule.period), schedule.period)
        numbers = sorted(cycle + place for cycle in cycles for place in members if cycle + place < count)[:8]
        drawn.append(_drawn(stack, mixer, numbers, layers, shape, is_drawn=len(drawn) < MOST_PICTURES))
    return drawn


def _drawn(
    stack: _Stack, mixer: Mixer, numbers: Sequence[int], count: int, shape: Mapping[str, Any], *, is_drawn: bool
) -> DrawnMixer:
    text, width, length = plain(str(mixer), 300), _first(shape, _WIDTHS) or 0, stack.keys
    if isinstance(mixer, Transform):
        real = length * width
        is_linear = isinstance(mixer, Linear)
        transform = 2.0 * real * (length + width) if is_linear else 2.5 * real * log2(max(2, real))
        return DrawnMixer(stack.title, text, numbers, count, length, length, 1, [], None, False, transform)
    queries = queries_to_the_end(mixer, length) if stack.queries is None else stack.queries
    pictures = []
    for head in range(min(mixer.heads, MOST_HEADS) if is_drawn else 0):
        drawn = draw(mixer, length, queries=queries, head=head, cells=_CELLS, glyphs=_DIGITS)
        pictures.append(drawn.splitlines()[1:-1])
    counted = np.unique(np.linspace(0, queries - 1, min(queries, _COUNTED)).astype(np.int64))
    each = [keys_read(mixer, counted, length, head) for head in range(mixer.heads)]
    least, most = min(int(one.min()) for one in each), max(int(one.max()) for one in each)
    mean = float(np.mean([one.mean() for one in each]))
    heads = _first(shape, _HEADS) or 1
    own = _first(shape, ("head_dim", "d_kv"))  # of transformers' models, whose heads need not fill the width
    features = 2 * own if own else sum(int(shape.get(name) or width) // heads for name in _SIDES)
    flops = 2.0 * mean * queries * heads * features
    keys = (least, mean, most)
    is_about = len(counted) < queries
    return DrawnMixer(stack.title, text, numbers, count, queries, length, mixer.heads, pictures, keys, is_about, flops)


def _first(shape: Mapping[str, Any], names: Sequence[str]) -> int | None:
    """The first of several sizes that is there; None for one that is no positive whole number."""
    found = next((shape[name] for name in names if shape.get(name) is not None), None)
    return found if isinstance(found, int) and not isinstance(found, bool) and 0 < found < 2**31 else None
