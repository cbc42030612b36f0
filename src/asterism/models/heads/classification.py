"""Classifiers of whole sequences and of every token."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers.modeling_outputs import SequenceClassifierOutput, TokenClassifierOutput

from asterism.models.asterism.backbone import BackboneOutput
from asterism.models.asterism.base import Targets
from asterism.models.asterism.configuration import AsterismConfig
from asterism.models.heads.head import EncoderWithHead, encoder_head
from asterism.models.heads.pooler import Pooler


class _Classifier(EncoderWithHead):
    """The backbone, dropout and a linear layer to `num_labels` logits."""

    def _add_head(self, config: AsterismConfig) -> None:
        rate = config.dropout if config.classifier_dropout is None else config.classifier_dropout
        self.dropout = nn.Dropout(rate)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels or 0)


class AsterismForSequenceClassification(_Classifier):
    """Classify a sequence from its pooled token: one of several labels, any of several labels, or numbers.

    `classifier_pooling` of the configuration chooses that token. `problem_type` is the kind of labels, as in
    transformers: "single_label_classification", "multi_label_classification" or "regression". When it is None, the
    first labels decide.
    """

    def _add_head(self, config: AsterismConfig) -> None:
        super()._add_head(config)
        self.pooler = Pooler(config)

    def _targets(self, given: Mapping[str, Any]) -> Targets:
        config, labels = self.config, given.get("labels")
        rows = (self._shape_of(given, "input_ids", "inputs_embeds") or ())[:1]
        numbers = config.problem_type == "regression" or config.num_labels == 1
        if numbers and labels is not None and labels.numel() == math.prod(rows):
            return {"labels": (labels.shape, None)}  # [B] and [B, 1] are the same to a loss of one number
        if (
            numbers
            or config.problem_type == "multi_label_classification"
            or (labels is not None and labels.is_floating_point())
        ):
            return {"labels": ((*rows, config.num_labels or 0), None)}
        return {"labels": (rows, config.num_labels)}

    @encoder_head
    def forward(
        self, outputs: BackboneOutput, labels: torch.Tensor | None = None, **loss_arguments: Any
    ) -> SequenceClassifierOutput:
        """Logits [B, num_labels] and, with labels, the mean loss; inputs are those of AsterismModel.

        labels          int64 [B], for several labels [B, num_labels] of 0 and 1, for numbers [B] or [B, num_labels]
        loss_arguments  for the loss of transformers, such as num_items_in_batch

        Raises ConfigurationError for any other argument.
        """
        logits = self.classifier(self.dropout(self.pooler(outputs.last_hidden_state, outputs.rows)))
        loss = None
        if labels is not None:
            if self.config.problem_type in ("multi_label_classification", "regression"):
                labels = labels.to(logits.dtype)
            wanted = {"labels": labels, "pooled_logits": logits, "config": self.config}
            loss = outputs.rows.once(lambda: self.loss_function(**wanted, **loss_arguments))
        loss = self._penalise(outputs.rows, loss, labels, loss_arguments)
        return SequenceClassifierOutput(loss=loss, logits=logits, hidden_states=outputs.hidden_states)


class AsterismForTokenClassification(_Classifier):
    """Labels every token."""

    reads_tokens = True

    def _targets(self, given: Mapping[str, Any]) -> Targets:
        return {"labels": (self._shape_of(given, "input_ids", "inputs_embeds"), self.config.num_labels)}

    @encoder_head
    def forward(
        self, outputs: BackboneOutput, labels: torch.Tensor | None = None, **loss_arguments: Any
    ) -> TokenClassifierOutput:
        """Logits [B, N, num_labels] and, with labels, the mean loss in nats; everything else as for sequences.

        labels  int64 [B, N]; -100 is ignored
        """
        logits = self.classifier(self.dropout(outputs.last_hidden_state))
        loss = None
        if labels is not None:
            loss = self._token_loss(outputs.rows, logits, labels, loss_arguments)
        loss = self._penalise(outputs.rows, loss, labels, loss_arguments)
        return TokenClassifierOutput(loss=loss, logits=logits, hidden_states=outputs.hidden_states)
