"""Attention implementations of a model, one after another, without compilation, and the first one back at the end."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from asterism.models.drop_in.use_pattern import use_pattern

OURS = "asterism"
"""The implementation of the pattern `native`."""


@contextmanager
def engine(model: nn.Module, name: str) -> Iterator[str | None]:
    """Select an implementation within the body, and yield why the model refuses it, or None.

    Compiled parts run without compilation: masks are the same, and float64 is open to all.
    """
    with torch.compiler.set_stance("force_eager"):
        if not isinstance(model, PreTrainedModel) or name == model.config._attn_implementation:
            yield None
            return
        before, fields = model.config._attn_implementation, dict(vars(model.config))
        try:
            yield _select(model, name)
        finally:
            vars(model.config).clear()
            vars(model.config).update(fields)
            model.set_attn_implementation(before)


def _select(model: Any, name: str) -> str | None:
    try:
        if name == OURS:
            use_pattern(model, "native")
        else:
            model.set_attn_implementation(name)
    except Exception as error:
        return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
    if model.config._attn_implementation != name:
        return f"{type(model).__name__} keeps {model.config._attn_implementation} attention"
    return None
