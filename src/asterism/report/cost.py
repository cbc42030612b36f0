"""What a run costs, from its settings and the names and shapes of its weights: no weight is read.

FLOPs are an estimate: two for each weight of a product and token, and for each pair of tokens that a pattern allows
two for each feature of queries, keys and values; backward twice as many for products and 2.5 times for pairs. Of an
encoder-decoder, the tokens are those of the stack: of the source, or of the target.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from asterism.report.layers import Layers
from asterism.report.reading import why_not_read

_MASKED = 0.15
"""The share of tokens that a masked model predicts, and its head computes."""
_HEADS = ("lm_head", "cls.predictions", "predictions")
_TABLES = ("embed", "position", "shared.weight", "relative_attention_bias")
"""Parts of the names of weights that are looked up by token or position, and multiplied with nothing."""
_RARE = ("global_query", *(f"longformer_self_attn.{name}_global" for name in ("query", "key", "value")))
"""Weights that are computed for a few tokens alone, or, in LED without global tokens, for none."""
_CROSS = ("cross_attention", "crossattention", "encoder_attn", "EncDecAttention")
_READ = ("key", "value", "k_proj", "v_proj", "k", "v")
"""In cross-attention, the weights of what is read: they are computed for each token of the source."""
_BACKWARD_PRODUCTS, _BACKWARD_PAIRS = 2, 2.5


@dataclass(frozen=True)
class Weights:
    """The shapes of a model's weights, by name, and how many bytes their files have."""

    shapes: Mapping[str, tuple[int, ...]]
    bytes: int

    @property
    def count(self) -> int:
        """How many weights there are; those that are shared count once."""
        return sum(prod(shape) for shape in self.shapes.values())


def read_weights(folder: Path | None) -> Weights | None:
    """The names and shapes in a model folder; None where they cannot be read."""
    files = sorted(folder.glob("model*.safetensors")) if folder is not None else []
    shapes: dict[str, tuple[int, ...]] = {}
    try:
        for path in files:
            if why_not_read(path) is not None:  # a pipe would be waited for
                return None
            with safe_open(path, framework="np") as file:
                shapes |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        size = sum(path.stat().st_size for path in files)
    except (SafetensorError, OSError):
        return None
    return Weights(shapes, size) if shapes else None


def flops_per_step(settings: Mapping[str, Any], weights: Weights, layers: Layers) -> float | None:
    """FLOPs of one step of the optimiser; None for a model whose sizes, or the length of its targets, are not known.

    Rows and targets count as full: where they are shorter, as in fine-tuning, a step takes less.
    """
    if layers.length is None or layers.heads is None or not layers.mixers:
        return None
    if layers.has_decoder and layers.target is None:
        return None
    products = _products(settings, weights, layers.length, layers.target if layers.has_decoder else None)
    pairs = sum(layer.flops * layer.count for layer in layers.mixers)
    again = 1 if settings.get("gradient_checkpointing") else 0
    sequences = int(settings["batch_size"])
    return sequences * (products * (1 + _BACKWARD_PRODUCTS + again) + pairs * (1 + _BACKWARD_PAIRS + again))


def _products(settings: Mapping[str, Any], weights: Weights, length: int, target: int | None) -> float:
    """FLOPs of the products with weights for one sequence, forward; tables that are only looked up take none.

    A decoder computes its weights for each token of the target, but for keys and values of its cross-attention, which
    are those of the source. Where it has no weights but these, the encoder's are its own, too.
    """
    source = read = decoder = head = 0.0
    has_head = has_own = False
    for name, shape in weights.shapes.items():
        if len(shape) < 2 or any(part in name for part in (*_TABLES, *_RARE)):
            continue
        flops = 2.0 * prod(shape)
        if any(part in name for part in _HEADS):
            head += flops
            has_head |= max(shape) == max(_table(weights), default=0)
        elif target is None or "decoder" not in name:
            source += flops
        elif not any(part in name for part in _CROSS):
            decoder, has_own = decoder + flops, True
        elif name.split(".")[-2] in _READ:
            read += flops
        else:
            decoder += flops
    masked = settings.get("objective") == "mlm"
    if not has_head and (target is not None or masked or settings.get("objective") in ("causal", "prefix_lm")):
        head += 2.0 * prod(_table(weights))
    if target is None:
        return (source + (_MASKED if masked else 1.0) * head) * length
    return (source + read) * length + (decoder + head + (0.0 if has_own else source)) * target


def _table(weights: Weights) -> tuple[int, ...]:
    """The shape of the largest table of embeddings: that of tokens."""
    named = weights.shapes.items()
    tables = [shape for name, shape in named if ("embed" in name or "shared" in name) and "position" not in name]
    return max((shape for shape in tables if len(shape) == 2), key=prod, default=(0, 0))
