"""A model with a configuration of its own, so that other models made from the same object see nothing of its pattern.

`from_config` of transformers keeps the very object that it is given, and every layer refers to it. A pattern that is
written there would reach all models of that object: those built before would be asked to follow a pattern for which
they are not prepared, those built later would follow it unasked.
"""

import gc
from copy import deepcopy
from typing import Any

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel


def own_configuration(model: nn.Module, base: PreTrainedModel) -> None:
    """Give a model copies of its configurations; `base` is the model itself, or the one inside of an adapter of PEFT.

    Models that `base` is a part of get the same copies: what is saved of them has the pattern, too.
    """
    copies: dict[int, Any] = {}
    for module in {*model.modules(), *_outermost(base).modules()}:
        for name, value in vars(module).items():
            if isinstance(value, PreTrainedConfig):
                vars(module)[name] = deepcopy(value, copies)  # one object is copied once


def _outermost(base: PreTrainedModel) -> PreTrainedModel:
    """The largest model of transformers that `base` is a part of; a module does not know what it is a part of."""
    others = [one for one in gc.get_objects() if issubclass(type(one), PreTrainedModel) and one is not base]
    around = [one for one in others if any(part is base for part in one.modules())]
    return max(around, key=lambda one: sum(1 for _ in one.modules()), default=base)
