"""The masked language model, and the same with next-sentence prediction (Devlin 2019)."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import MaskedLMOutput
from transformers.models.bert.modeling_bert import BertForPreTrainingOutput

from asterism.layers.block import ACTIVATIONS
from asterism.models.asterism.backbone import BackboneOutput
from asterism.models.asterism.base import Targets
from asterism.models.asterism.configuration import AsterismConfig
from asterism.models.heads.head import EncoderWithHead, encoder_head
from asterism.models.heads.pooler import Pooler


class MaskedLMHead(nn.Module):
    """Dense layer, activation, norm, and a decoder with a bias of its own: [..., hidden_size] -> [..., vocab_size], in
    the dtype of the weights."""

    def __init__(self, config: AsterismConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.embedding_width)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.norm = nn.LayerNorm(config.embedding_width, eps=config.layer_norm_eps)
        self.decoder = nn.Linear(config.embedding_width, config.vocab_size)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.decoder(self.norm(self.activation(self.dense(hidden))))


class _PredictsTokens(EncoderWithHead):
    """The backbone with a MaskedLMHead, whose decoder is tied to the embedding when `tie_word_embeddings` is set."""

    _tied_weights_keys = {"lm_head.decoder.weight": "model.embed_tokens.weight"}

    def _add_head(self, config: AsterismConfig) -> None:
        self.lm_head = MaskedLMHead(config)

    def _targets(self, given: Mapping[str, Any]) -> Targets:
        shape = self._shape_of(given, "places", "input_ids", "inputs_embeds")
        return {"labels": (shape, self.config.vocab_size), "next_sentence_label": (shape and shape[:1], 2)}

    def get_output_embeddings(self) -> nn.Linear:
        return self.lm_head.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        self.lm_head.decoder = new_embeddings

    def _predict(
        self,
        outputs: BackboneOutput,
        labels: Tensor | None,
        places: Tensor | None,
        loss_arguments: dict[str, Any],
    ) -> tuple[Tensor, Tensor | None]:
        """The logits of the tokens and, with labels, their mean loss, as AsterismForMaskedLM.forward says."""
        hidden = outputs.last_hidden_state
        if places is not None:
            hidden = hidden.gather(1, places[:, :, None].expand(-1, -1, hidden.shape[-1]))
        logits = self.lm_head(hidden)
        if labels is None:
            return logits, None
        return logits, self._token_loss(outputs.rows, logits, labels, loss_arguments)


class AsterismForMaskedLM(_PredictsTokens):
    """AsterismModel with a head that predicts masked tokens."""

    reads_tokens = True

    @encoder_head
    def forward(
        self, outputs: BackboneOutput, labels: Tensor | None = None, places: Tensor | None = None, **loss_arguments: Any
    ) -> MaskedLMOutput:
        """Logits [B, N, vocab_size] and, with labels, the mean loss in nats; inputs are those of AsterismModel.

        labels          int64 [B, N]: the token to predict at each index; -100 is ignored
        places          int64 [B, M]: predict only at these indices of each row; logits are then [B, M, vocab_size] and
                        labels [B, M]. It saves most of the memory of a large vocabulary.
        loss_arguments  for the loss of transformers, such as num_items_in_batch

        Raises ConfigurationError for any other argument.
        """
        logits, loss = self._predict(outputs, labels, places, loss_arguments)
        loss = self._penalise(outputs.rows, loss, labels, loss_arguments)
        return MaskedLMOutput(loss=loss, logits=logits, hidden_states=outputs.hidden_states)


class AsterismForPreTraining(_PredictsTokens):
    """AsterismModel with heads for masked tokens and, from the pooled token, for a second sentence that follows."""

    def _add_head(self, config: AsterismConfig) -> None:
        super()._add_head(config)
        self.pooler = Pooler(config)
        self.next_sentence = nn.Linear(config.hidden_size, 2)

    @encoder_head
    def forward(
        self,
        outputs: BackboneOutput,
        labels: Tensor | None = None,
        next_sentence_label: Tensor | None = None,
        places: Tensor | None = None,
        **loss_arguments: Any,
    ) -> BertForPreTrainingOutput:
        """Logits of the tokens and of the two answers [B, 2], and the sum of the losses with given labels.

        next_sentence_label  int64 [B]: 0 when the second sentence follows the first, 1 when it does not

        The loss of the tokens and all other arguments are as in AsterismForMaskedLM.
        """
        logits, loss = self._predict(outputs, labels, places, loss_arguments)
        answers = self.next_sentence(self.pooler(outputs.last_hidden_state, outputs.rows))
        if next_sentence_label is not None:
            wide = answers.to(torch.promote_types(answers.dtype, torch.float32))
            follows = outputs.rows.once(lambda: nn.functional.cross_entropy(wide, next_sentence_label.view(-1)))
            loss = follows if loss is None else loss + follows
        return BertForPreTrainingOutput(
            loss=self._penalise(outputs.rows, loss, labels, loss_arguments),
            prediction_logits=logits,
            seq_relationship_logits=answers,
            hidden_states=outputs.hidden_states,  # type: ignore[arg-type]  # transformers means a tuple of any length
        )
