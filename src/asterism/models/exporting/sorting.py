"""A stable sort in ONNX, which has none: by keys that hold a number and its place. Padding is found by such a sort."""

from collections.abc import Callable
from typing import Any

import torch

_INT64 = 7
"""The number of the type in ONNX."""


def stable_sort() -> dict[Callable[..., Any], Callable[..., Any]]:
    """The translation of `torch.sort(stable=True)` along the last axis, for numbers of at least 0."""
    from onnxscript import opset18 as op

    def sort(x: Any, stable: bool = True, dim: int = -1, descending: bool = False) -> tuple[Any, Any]:
        """Values and indices of x [..., n], from x * n + place: no two keys are equal."""
        width = op.Gather(op.Shape(x), op.Constant(value_ints=[-1]))
        one = op.Constant(value_ints=[1])
        places = op.Range(op.Constant(value_int=0), op.Squeeze(width), op.Constant(value_int=1))
        order = op.Sub(op.Sub(width, one), places) if descending else places
        keys = op.Add(op.Mul(op.Cast(x, to=_INT64), width), order)
        ranked, _ = op.TopK(keys, width, axis=-1, largest=int(descending), sorted=1)
        found = op.Mod(ranked, width)
        indices = op.Sub(op.Sub(width, one), found) if descending else found
        return op.CastLike(op.Div(ranked, width), x), indices

    return {torch.ops.aten.sort.stable: sort}
