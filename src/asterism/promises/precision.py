"""A model in float64, and its own tensors back at the end."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def in_float64(model: nn.Module) -> Iterator[None]:
    """Put weights and buffers into float64 within the body. Experts run one after another: others know no float64."""
    tensors = [*model.parameters(), *model.buffers()]
    kept = [(tensor, tensor.data) for tensor in tensors if tensor.is_floating_point()]
    experts = getattr(getattr(model, "config", None), "_experts_implementation", None)
    try:
        for tensor, data in kept:
            tensor.data = data.double()
        if hasattr(model, "set_experts_implementation"):
            model.set_experts_implementation("eager")
        yield
    finally:
        for tensor, data in kept:
            tensor.data = data
        if experts is not None and hasattr(model, "set_experts_implementation"):
            model.set_experts_implementation(experts)


def own_dtype(model: nn.Module) -> torch.dtype:
    """The dtype of a model's first weight."""
    found = (parameter.dtype for parameter in model.parameters() if parameter.is_floating_point())
    return next(found, torch.get_default_dtype())
