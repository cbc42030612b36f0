"""What all Asterism models share: initialisation, what their losses take, and the arguments of encoders with a head."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.utils.generic import can_return_tuple

from asterism.errors import ConfigurationError
from asterism.layers import initialise
from asterism.models.configuration import AsterismConfig

LOSS_ARGUMENTS = ("ignore_index", "num_items_in_batch", "shift_labels")
"""What `forward` of a model with a loss passes on to the loss of transformers."""


class AsterismPreTrainedModel(PreTrainedModel):
    """Configuration class, initialisation, what must stay on one device, and which arguments mean something."""

    config: AsterismConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _keys_to_ignore_on_load_unexpected = [r"^pooler\."]  # an imported checkpoint keeps its pooler for classifiers
    _no_split_modules = ["AsterismBlock", "AsterismPostNormBlock", "AsterismAllAttentionBlock"]
    _skip_keys_device_placement = ["past_key_values", "cache"]

    def _init_weights(self, module: nn.Module) -> None:
        config = self.config
        initialise(
            module, gain=config.initializer_gain, depth=config.num_hidden_layers, spread=config.initializer_range
        )

    def _refuse_unknown(self, arguments: dict[str, Any]) -> None:
        """Raises ConfigurationError for an argument that no loss takes, unless it is None or False."""
        for name, value in arguments.items():
            if name not in LOSS_ARGUMENTS and value is not None and value is not False:
                raise ConfigurationError(
                    f"{type(self).__name__}.forward has no argument {name!r}; positions count the tokens of"
                    " attention_mask, and attention weights are never kept"
                )

    def _penalise(
        self, loss: torch.Tensor | None, labels: torch.Tensor | None, loss_arguments: dict[str, Any]
    ) -> torch.Tensor | None:
        """The loss and, in training, the penalty of adaptive spans: once per step of the optimiser.

        When num_items_in_batch says that this batch is a part of a step, it bears its part of the penalty.
        """
        penalty = self.model.span_penalty() if self.training and loss is not None else None
        if penalty is None:
            return loss
        items = loss_arguments.get("num_items_in_batch")
        if items is not None and labels is not None:
            penalty = penalty * (labels != loss_arguments.get("ignore_index", -100)).sum() / items
        return loss + penalty


class Encoded(NamedTuple):
    """What a head reads: the last hidden states [B, N, hidden_size], the mask as it was given, and all if asked for."""

    hidden: torch.Tensor
    attention_mask: torch.Tensor | None
    hidden_states: tuple[torch.Tensor, ...] | None


Output = TypeVar("Output")


def encoder_head(compute: Callable[..., Output]) -> Callable[..., Output]:
    """The `forward` of an encoder with a head, from what the head computes of an Encoded and of arguments of its own.

    `forward` takes input_ids, attention_mask, token_type_ids and inputs_embeds as AsterismModel does, then the head's
    own arguments, and output_hidden_states and return_dict by name. The Trainer, pipelines and others read from its
    signature which columns of a data set a model wants and which of them are labels, so all names stand in there.

    Raises ConfigurationError for an argument that neither the head nor a loss takes.
    """
    own = list(inspect.signature(compute).parameters.values())[2:]
    own_names = frozenset(one.name for one in own)

    def forward(
        self: Any,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        *given: Any,
        output_hidden_states: bool | None = None,
        **named: Any,
    ) -> Output:
        self._refuse_unknown({name: value for name, value in named.items() if name not in own_names})
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            inputs_embeds=inputs_embeds,
            output_hidden_states=output_hidden_states,
        )
        return compute(self, Encoded(outputs[0], attention_mask, outputs.hidden_states), *given, **named)

    *inputs, _, by_name, _ = inspect.signature(forward).parameters.values()
    at = next((number for number, one in enumerate(own) if one.kind is one.VAR_KEYWORD), len(own))
    head = can_return_tuple(functools.wraps(compute)(forward))
    head.__signature__ = inspect.signature(compute).replace(parameters=[*inputs, *own[:at], by_name, *own[at:]])
    return head
