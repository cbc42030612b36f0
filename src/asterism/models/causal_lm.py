"""The causal language model: predicts the next token and generates."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import GenerationConfig, GenerationMixin
from transformers.cache_utils import Cache
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from asterism.errors import ConfigurationError
from asterism.layers import Linear
from asterism.models.base import AsterismPreTrainedModel
from asterism.models.configuration import AsterismConfig
from asterism.models.documents import hide_first_tokens
from asterism.models.modeling import AsterismModel, too_long


class AsterismForCausalLM(AsterismPreTrainedModel, GenerationMixin):
    """A linear layer over AsterismModel that gives the logits of the next token.

    It starts at 0, as in Child 2019, unless it is tied to the embedding. Raises ConfigurationError or PatternError for
    a configuration that is not causal.
    """

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: AsterismConfig) -> None:
        super().__init__(config)
        config.check()
        config.require_causal()
        if config.tie_word_embeddings and config.embedding_width != config.hidden_size:
            raise ConfigurationError(
                f"tie_word_embeddings needs embeddings as wide as the model, got embedding_size"
                f" {config.embedding_size} and hidden_size {config.hidden_size}"
            )
        self.model = AsterismModel(config)
        self.lm_head = Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear) and module is self.lm_head and not self.config.tie_word_embeddings:
            nn.init.zeros_(module.weight)
        else:
            super()._init_weights(module)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool = False,
        output_hidden_states: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        dropout_seed: int | None = None,
        position_ids: torch.Tensor | None = None,
        cu_seqlens: torch.Tensor | Sequence[int] | None = None,
        **loss_arguments: Any,
    ) -> CausalLMOutputWithPast:
        """Logits [B, N, vocab_size] and, with labels, the mean loss in nats; other arguments as in AsterismModel.

        labels           int64 [B, N], the tokens themselves: column i is compared with the prediction of column i - 1;
                         -100 is ignored, and so is the first token of each document that is packed into a row
        shift_labels     in their place int64 [B, N]: what each column is to predict (one of the loss_arguments)
        logits_to_keep   logits of the last so many columns only, or of these columns; 0 keeps all
        loss_arguments   for the loss of transformers, such as num_items_in_batch

        Raises ConfigurationError for any other argument.
        """
        self._refuse_unknown(loss_arguments)
        outputs = self.model(
            input_ids,
            attention_mask,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            output_hidden_states=output_hidden_states,
            dropout_seed=dropout_seed,
            position_ids=position_ids,
            cu_seqlens=cu_seqlens,
            return_dict=True,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(outputs.last_hidden_state[:, kept])
        shifted = loss_arguments.get("shift_labels")
        targets = labels if shifted is None else shifted
        loss = None
        if labels is not None:
            documents = self.model.find_documents(position_ids, cu_seqlens, attention_mask, labels)
            labels = hide_first_tokens(labels, documents, loss_arguments.get("ignore_index", -100))
        if targets is not None:
            loss = self.loss_function(logits, labels, vocab_size=self.config.vocab_size, **loss_arguments)
        return CausalLMOutputWithPast(
            loss=self._penalise(loss, targets, loss_arguments),
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
        )

    # All are called by transformers with its own arguments, of which versions have different ones.
    def prepare_inputs_for_generation(
        self, *args: Any, inputs_embeds: torch.Tensor | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Without positions: the model and its cache count tokens themselves."""
        prepare: Any = super()
        inputs: dict[str, Any] = prepare.prepare_inputs_for_generation(*args, inputs_embeds=inputs_embeds, **kwargs)
        inputs.pop("position_ids", None)
        return inputs

    @staticmethod
    def create_masks_for_generate(attention_mask: torch.Tensor | None = None, **kwargs: Any) -> torch.Tensor | None:
        """The mask as it is, [B, S + N], also for a cache whose step may be compiled: the patterns do the rest."""
        return attention_mask

    def _prepare_cache_for_generation(
        self, generation_config: GenerationConfig, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Before the first token is generated: raises ConfigurationError when the last one would have no position."""
        mask = model_kwargs.get("attention_mask")
        padding = 0 if mask is None else int((mask == 0).sum(dim=1).min())
        # The last token is generated and never read.
        longest = generation_config.max_length - 1 - padding
        if self.model.positions is not None and longest > self.config.max_position_embeddings:
            raise ConfigurationError(too_long(longest, self.config))
        prepare: Any = super()
        return prepare._prepare_cache_for_generation(generation_config, model_kwargs, *args, **kwargs)
