"""What all Asterism models share: initialisation, and what their losses take."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import nn
from transformers import PreTrainedModel

from asterism.errors import ConfigurationError
from asterism.labels import IGNORED
from asterism.layers import initialise
from asterism.models.asterism.configuration import AsterismConfig
from asterism.models.heads.loss import cross_entropy
from asterism.parallel import sharding
from asterism.parallel.collectives import counted_once, whole


class AsterismPreTrainedModel(PreTrainedModel):
    """Configuration class, initialisation, what must stay on one device, and which arguments mean something."""

    config: AsterismConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _keys_to_ignore_on_load_unexpected = [r"^pooler\."]  # an imported checkpoint keeps its pooler for classifiers
    _no_split_modules = ["AsterismBlock", "AsterismPostNormBlock", "AsterismAllAttentionBlock"]
    _skip_keys_device_placement = ["past_key_values", "cache"]

    branches_of_a_block: ClassVar[int] = 2
    """How many residual branches a block of the stack has."""
    loss_arguments: ClassVar[tuple[str, ...]] = ("ignore_index", "num_items_in_batch", "shift_labels")
    """What `forward` of a model with a loss takes for it, beside what its signature names."""

    def _init_weights(self, module: nn.Module) -> None:
        config = self.config
        branches = self.branches_of_a_block * config.num_hidden_layers
        initialise(module, gain=config.initializer_gain, branches=branches, spread=config.initializer_range)

    def _refuse_unknown(self, arguments: dict[str, Any]) -> None:
        """Raises ConfigurationError for an argument that no loss takes, unless it is None or False."""
        for name, value in arguments.items():
            if name not in self.loss_arguments and value is not None and value is not False:
                raise ConfigurationError(
                    f"{type(self).__name__}.forward has no argument {name!r}; positions count the tokens of"
                    " attention_mask, and attention weights are never kept"
                )

    def _token_loss(self, logits: torch.Tensor, labels: torch.Tensor, loss_arguments: dict[str, Any]) -> torch.Tensor:
        """The mean loss of columns [B, N, V], whose `labels` [B, N] are what each is to predict; within
        `sequence_parallel` that of the columns of all ranks, whose gradient is this rank's part of the whole."""
        arguments = {name: value for name, value in loss_arguments.items() if name != "shift_labels"}
        context = sharding()
        if context is None:
            return cross_entropy(logits, labels, **arguments)
        if arguments.get("num_items_in_batch") is None:
            arguments["num_items_in_batch"] = self._count(labels, arguments)
        return whole(cross_entropy(logits, labels, **arguments), context.group)

    def _row_loss(self, compute: Callable[[], torch.Tensor]) -> torch.Tensor:
        """A loss of whole rows; within `sequence_parallel` all ranks compute it, and the first rank's is counted."""
        context = sharding()
        return compute() if context is None else whole(counted_once(compute(), context.group), context.group)

    @staticmethod
    def _count(labels: torch.Tensor, loss_arguments: dict[str, Any]) -> torch.Tensor:
        """How many labels there are, on all ranks together."""
        count = (labels != loss_arguments.get("ignore_index", IGNORED)).sum()
        context = sharding()
        return count if context is None else whole(count, context.group)

    def _penalise(
        self, loss: torch.Tensor | None, labels: torch.Tensor | None, loss_arguments: dict[str, Any]
    ) -> torch.Tensor | None:
        """The loss and, in training, the penalty of adaptive spans: once per step of the optimiser.

        When num_items_in_batch says that this batch is a part of a step, it bears its part of the penalty.
        """
        penalty = self.model.span_penalty() if self.training and loss is not None else None
        if penalty is None or loss is None:
            return loss
        items = loss_arguments.get("num_items_in_batch")
        if items is not None and labels is not None:
            penalty = penalty * self._count(labels, loss_arguments) / items
        context = sharding()
        return loss + (penalty if context is None else whole(counted_once(penalty, context.group), context.group))
