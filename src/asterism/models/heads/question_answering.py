"""Extractive question answering: where in the text the answer starts and ends."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers.modeling_outputs import QuestionAnsweringModelOutput

from asterism.models.asterism.backbone import BackboneOutput
from asterism.models.asterism.base import Targets
from asterism.models.asterism.configuration import AsterismConfig
from asterism.models.heads.head import EncoderWithHead, encoder_head


class AsterismForQuestionAnswering(EncoderWithHead):
    """Two logits for every token: that the answer starts there, and that it ends there."""

    def _add_head(self, config: AsterismConfig) -> None:
        self.qa_outputs = nn.Linear(config.hidden_size, 2)

    def _targets(self, given: Mapping[str, Any]) -> Targets:
        rows = (self._shape_of(given, "input_ids", "inputs_embeds") or ())[:1]
        return {"start_positions": (rows, None), "end_positions": (rows, None)}

    @encoder_head
    def forward(
        self,
        outputs: BackboneOutput,
        start_positions: torch.Tensor | None = None,
        end_positions: torch.Tensor | None = None,
        **loss_arguments: Any,
    ) -> QuestionAnsweringModelOutput:
        """Start and end logits [B, N] each and, with positions, the mean of both losses in nats.

        start_positions, end_positions  int64 [B]: first and last token of the answer, counted in whole rows; N or more
                                        is ignored
        loss_arguments                  for the loss of transformers, such as num_items_in_batch

        Inputs are those of AsterismModel. Raises ConfigurationError for any other argument.
        """
        start_logits, end_logits = self.qa_outputs(outputs.last_hidden_state).unbind(dim=-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            answers = outputs.rows.everywhere(torch.stack([start_logits, end_logits], dim=-1)).unbind(dim=-1)
            wanted = start_positions, end_positions
            loss = outputs.rows.once(lambda: self.loss_function(*answers, *wanted, **loss_arguments))
        return QuestionAnsweringModelOutput(
            loss=self._penalise(outputs.rows, loss, start_positions, loss_arguments),
            start_logits=start_logits,
            end_logits=end_logits,
            hidden_states=outputs.hidden_states,
        )
