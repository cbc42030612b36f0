"""The masked language model, and the same with next-sentence prediction (Devlin 2019)."""

from typing import Any

import torch
from torch import nn
from transformers.loss.loss_utils import ForMaskedLMLoss
from transformers.modeling_outputs import MaskedLMOutput
from transformers.models.bert.modeling_bert import BertForPreTrainingOutput
from transformers.utils.generic import can_return_tuple

from asterism.layers.block import ACTIVATIONS
from asterism.models.base import AsterismPreTrainedModel
from asterism.models.configuration import AsterismConfig
from asterism.models.modeling import AsterismModel
from asterism.models.pooler import Pooler


class MaskedLMHead(nn.Module):
    """Dense layer, activation, norm, and a decoder with a bias of its own: [..., hidden_size] -> [..., vocab_size]."""

    def __init__(self, config: AsterismConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.embedding_width)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.norm = nn.LayerNorm(config.embedding_width, eps=config.layer_norm_eps)
        self.decoder = nn.Linear(config.embedding_width, config.vocab_size)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.norm(self.activation(self.dense(hidden))))


class _PredictsTokens(AsterismPreTrainedModel):
    """The backbone with a MaskedLMHead, whose decoder is tied to the embedding when `tie_word_embeddings` is set."""

    _tied_weights_keys = {"lm_head.decoder.weight": "model.embed_tokens.weight"}

    def __init__(self, config: AsterismConfig) -> None:
        super().__init__(config)
        self.model = AsterismModel(config)
        self.lm_head = MaskedLMHead(config)

    def get_output_embeddings(self) -> nn.Linear:
        return self.lm_head.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        self.lm_head.decoder = new_embeddings


class AsterismForMaskedLM(_PredictsTokens):
    """Predicts the tokens that were masked."""

    def __init__(self, config: AsterismConfig) -> None:
        super().__init__(config)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        output_hidden_states: bool | None = None,
        labelled_only: bool = False,
        **loss_arguments: Any,
    ) -> MaskedLMOutput:
        """Logits [B, N, vocab_size] and, with labels, the mean loss in nats; other arguments as in AsterismModel.

        labels          int64 [B, N]: the token to predict at each place; -100 is ignored
        labelled_only   compute logits [M, vocab_size] of the M labelled places only, row by row; it saves most of the
                        memory of a large vocabulary
        loss_arguments  for the loss of transformers, such as num_items_in_batch

        Raises ConfigurationError for any other argument.
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
        hidden = outputs.last_hidden_state
        if labelled_only and labels is not None:
            labelled = labels != loss_arguments.get("ignore_index", -100)
            hidden, labels = hidden[labelled], labels[labelled]
        logits = self.lm_head(hidden)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, vocab_size=self.config.vocab_size, **loss_arguments)
        return MaskedLMOutput(
            loss=self._penalise(loss, labels, loss_arguments), logits=logits, hidden_states=outputs.hidden_states
        )


class AsterismForPreTraining(_PredictsTokens):
    """Predicts masked tokens, and from the pooled token whether the second sentence follows the first."""

    def __init__(self, config: AsterismConfig) -> None:
        super().__init__(config)
        self.pooler = Pooler(config)
        self.next_sentence = nn.Linear(config.hidden_size, 2)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        next_sentence_label: torch.Tensor | None = None,
        output_hidden_states: bool | None = None,
        **loss_arguments: Any,
    ) -> BertForPreTrainingOutput:
        """Logits of the tokens and of the two answers, and the sum of the losses whose labels are given.

        next_sentence_label  int64 [B]: 0 when the second sentence follows the first, 1 when it does not

        The loss of the tokens and all other arguments are as in AsterismForMaskedLM.
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
        logits = self.lm_head(outputs.last_hidden_state)
        answers = self.next_sentence(self.pooler(outputs.last_hidden_state, attention_mask))
        losses = []
        if labels is not None:
            losses.append(ForMaskedLMLoss(logits, labels, vocab_size=self.config.vocab_size, **loss_arguments))
        if next_sentence_label is not None:
            losses.append(nn.functional.cross_entropy(answers.float(), next_sentence_label.view(-1)))
        return BertForPreTrainingOutput(
            loss=self._penalise(sum(losses) if losses else None, labels, loss_arguments),
            prediction_logits=logits,
            seq_relationship_logits=answers,
            hidden_states=outputs.hidden_states,
        )
