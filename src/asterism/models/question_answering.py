"""Extractive question answering: where in the text the answer starts and ends."""

from typing import Any

import torch
from torch import nn
from transformers.modeling_outputs import QuestionAnsweringModelOutput
from transformers.utils.generic import can_return_tuple

from asterism.models.base import AsterismPreTrainedModel
from asterism.models.configuration import AsterismConfig
from asterism.models.modeling import AsterismModel


class AsterismForQuestionAnswering(AsterismPreTrainedModel):
    """Two logits for every token: that the answer starts there, and that it ends there."""

    def __init__(self, config: AsterismConfig) -> None:
        super().__init__(config)
        self.model = AsterismModel(config)
        self.span = nn.Linear(config.hidden_size, 2)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        start_positions: torch.Tensor | None = None,
        end_positions: torch.Tensor | None = None,
        output_hidden_states: bool | None = None,
        **loss_arguments: Any,
    ) -> QuestionAnsweringModelOutput:
        """Start and end logits [B, N] each and, with positions, the mean of both losses in nats.

        start_positions, end_positions  int64 [B]: first and last token of the answer; N or more is ignored
        loss_arguments                  for the loss of transformers, such as num_items_in_batch

        Other arguments are as in AsterismModel. Raises ConfigurationError for any other argument.
        """
        self._refuse_unknown(loss_arguments)
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            inputs_embeds=inputs_embeds,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        start_logits, end_logits = self.span(outputs.last_hidden_state).unbind(dim=-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            loss = self.loss_function(start_logits, end_logits, start_positions, end_positions, **loss_arguments)
        return QuestionAnsweringModelOutput(
            loss=self._penalise(loss, start_positions, loss_arguments),
            start_logits=start_logits,
            end_logits=end_logits,
            hidden_states=outputs.hidden_states,
        )
