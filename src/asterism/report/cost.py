"""What a run costs, from its settings and the names and shapes of its weights: no weight is read.

FLOPs are an estimate: two for each weight of a product and token, and for each pair of tokens that a pattern allows
two for each feature of queries, keys and values; backward twice as many for products and 2.5 times for pairs.
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
_TABLES = ("embed", "position", "shared.weight")
"""Parts of the names of weights that are looked up by token or position, and multiplied with nothing."""
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
    """FLOPs of one step of the optimiser; None for an encoder-decoder and for a model whose sizes are not known.

    Rows count as full: where they are shorter, as in fine-tuning, a step takes less.
    """
    if layers.length is None or layers.heads is None or layers.has_decoder:
        return None
    products = _per_token(settings, weights) * layers.length
    pairs = sum(layer.flops * layer.count for layer in layers.mixers)
    again = 1 if settings.get("gradient_checkpointing") else 0
    sequences = int(settings["batch_size"])
    return sequences * (products * (1 + _BACKWARD_PRODUCTS + again) + pairs * (1 + _BACKWARD_PAIRS + again))


def _per_token(settings: Mapping[str, Any], weights: Weights) -> float:
    """FLOPs of the products with weights for one token, forward; tables that are only looked up take none."""
    total = 0.0
    share = _MASKED if settings.get("objective") == "mlm" else 1.0
    has_head = False
    for name, shape in weights.shapes.items():
        if len(shape) < 2 or any(table in name for table in _TABLES):
            continue
        is_head = any(part in name for part in _HEADS)
        has_head |= is_head and max(shape) == _vocabulary(weights)
        total += 2 * prod(shape) * (share if is_head else 1.0)
    if settings.get("objective") in ("causal", "prefix_lm", "mlm") and not has_head:
        total += 2 * share * max((prod(shape) for name, shape in weights.shapes.items() if "embed" in name), default=0)
    return total


def _vocabulary(weights: Weights) -> int:
    return max((shape[0] for name, shape in weights.shapes.items() if "embed" in name and len(shape) == 2), default=0)
