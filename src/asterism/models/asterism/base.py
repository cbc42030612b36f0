"""The base of all Asterism models: initialisation, and arguments of their losses."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import nn
from transformers import PreTrainedModel

from asterism.errors import ConfigurationError
from asterism.labels import IGNORED
from asterism.layers import Rows, initialise
from asterism.layers.rows import check_numbers
from asterism.models.asterism.configuration import AsterismConfig
from asterism.models.heads.loss import cross_entropy

Targets = dict[str, tuple[Sequence[int] | None, int | None]]
"""By the name of an argument that a loss is taken of: its shape, and how many classes there are; None for any."""


class AsterismPreTrainedModel(PreTrainedModel):
    """Configuration class, initialisation, what must stay on one device, and which arguments mean something."""

    config: AsterismConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _keys_to_ignore_on_load_unexpected = [r"^pooler\."]  # an imported checkpoint keeps its pooler for classifiers
    _no_split_modules = ["AsterismBlock", "AsterismPostNormBlock", "AsterismAllAttentionBlock"]
    _skip_keys_device_placement = ["past_key_values", "cache"]

    role: ClassVar[Literal["alone", "encoder", "decoder"]] = "alone"
    """Whether this is a stack by itself, or one of the two of an encoder-decoder."""
    loss_arguments: ClassVar[tuple[str, ...]] = ("ignore_index", "num_items_in_batch", "shift_labels")
    """What `forward` of a model with a loss takes for it, beside what its signature names."""

    def _init_weights(self, module: nn.Module) -> None:
        config = self.config
        branches = (3 if self.role == "decoder" else 2) * config.num_hidden_layers
        initialise(module, gain=config.initializer_gain, branches=branches, spread=config.initializer_range)

    def _refuse_unknown(self, arguments: dict[str, Any]) -> None:
        """Raises ConfigurationError for an argument that no loss takes, unless it is None or False."""
        for name, value in arguments.items():
            if name not in self.loss_arguments and value is not None and value is not False:
                raise ConfigurationError(
                    "unknown-argument",
                    f"{type(self).__name__}.forward has no argument {name!r}: positions come from attention_mask, and"
                    " attention weights are never stored",
                )

    def _complete(self, inputs: dict[str, Any], others: dict[str, Any]) -> None:
        """Fill in what the backbone reads, `inputs`, from what else `forward` was given; or refuse it."""

    def check_numbers(self, given: Mapping[str, Any]) -> None:
        """Refuse tokens, types and targets for which this model has no entry, or that are not as its tokens are.

        Only a rank that shares its sequence with others need know before it computes. Raises ConfigurationError.
        """
        bounds = {"input_ids": self.config.vocab_size, "decoder_input_ids": self.config.vocab_size}
        if self.config.type_vocab_size:
            bounds["token_type_ids"] = self.config.type_vocab_size
        for name, below in bounds.items():
            check_numbers(name, given.get(name), below=below)
        ignored = given.get("ignore_index", IGNORED)
        for name, (shape, classes) in self._targets(given).items():
            check_numbers(name, given.get(name), shape=shape, below=classes, ignored=ignored)

    def _targets(self, given: Mapping[str, Any]) -> Targets:
        """What a loss may be taken of."""
        return {}

    @staticmethod
    def _shape_of(given: Mapping[str, Any], *names: str) -> Sequence[int] | None:
        """[B, N] of the first of these arguments that is given."""
        found = next((given[name] for name in names if given.get(name) is not None), None)
        return None if found is None else found.shape[:2]

    def _token_loss(
        self, rows: Rows, logits: torch.Tensor, labels: torch.Tensor, loss_arguments: dict[str, Any]
    ) -> torch.Tensor:
        """The mean loss of columns [B, N, V], whose `labels` [B, N] are what each is to predict, over all tokens of
        their rows; where these lie on several devices, its gradient is this one's part of the whole."""
        arguments = {name: value for name, value in loss_arguments.items() if name != "shift_labels"}
        if arguments.get("num_items_in_batch") is None:
            arguments["num_items_in_batch"] = rows.divisor(lambda: self._count(labels, arguments))
        return rows.total(cross_entropy(logits, labels, **arguments))

    @staticmethod
    def _count(labels: torch.Tensor, loss_arguments: dict[str, Any]) -> torch.Tensor:
        """How many labels there are here."""
        return (labels != loss_arguments.get("ignore_index", IGNORED)).sum()

    def _penalise(
        self, rows: Rows, loss: torch.Tensor | None, labels: torch.Tensor | None, loss_arguments: dict[str, Any]
    ) -> torch.Tensor | None:
        """The loss and, in training, the penalty of adaptive spans and the mean loss of index branches: once per step
        of the optimiser.

        When num_items_in_batch says that this batch is a part of a step, it bears its part of the penalty.
        """
        if loss is None or not self.training:
            return loss
        spans = self.model.span_penalty()
        found = [] if spans is None else [spans]
        if rows.penalties:
            found.append(torch.stack(rows.penalties).mean())
        if not found:
            return loss
        penalty = torch.stack(found).sum()
        items = loss_arguments.get("num_items_in_batch")
        if items is not None and labels is not None:
            penalty = penalty * rows.total(self._count(labels, loss_arguments)) / items
        return loss + rows.once(lambda: penalty)
