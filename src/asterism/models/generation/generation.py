"""The common part of models that generate: the last layer, and the hooks of transformers' `generate`."""

from typing import Any, cast

import torch
from torch import nn
from transformers import GenerationConfig, GenerationMixin

from asterism.errors import ConfigurationError
from asterism.layers import Linear
from asterism.layers.rows import is_sharded
from asterism.models.asterism.backbone import AsterismModel, too_long
from asterism.models.asterism.base import AsterismPreTrainedModel
from asterism.models.asterism.configuration import AsterismConfig
from asterism.models.cache.naming import with_own_name


class GeneratesTokens(AsterismPreTrainedModel, GenerationMixin):
    """A linear layer gives the logits of the next token.

    It starts at 0, as in Child 2019, unless it is tied to the embedding.
    """

    lm_head: nn.Linear

    def _add_lm_head(self, config: AsterismConfig) -> None:
        """Raises ConfigurationError for a tied layer of another width."""
        if config.tie_word_embeddings and config.embedding_width != config.hidden_size:
            raise ConfigurationError(
                "tied-width",
                f"tie_word_embeddings needs embeddings as wide as the model, got embedding_size"
                f" {config.embedding_size} and hidden_size {config.hidden_size}",
            )
        self.lm_head = Linear(config.hidden_size, config.vocab_size, bias=config.lm_head_bias)

    def _init_weights(self, module: nn.Module) -> None:
        if module is not self.lm_head or self.config.tie_word_embeddings:
            super()._init_weights(module)
            return
        nn.init.zeros_(self.lm_head.weight)
        if self.lm_head.bias is not None:
            nn.init.zeros_(self.lm_head.bias)

    def _logits(self, hidden: torch.Tensor, logits_to_keep: int | torch.Tensor = 0) -> torch.Tensor:
        """Logits of hidden states [B, N, hidden_size]: of the last so many columns, or of these; 0 for all."""
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        hidden, scale = hidden[:, kept], self.config.logit_scale
        return cast(torch.Tensor, self.lm_head(hidden if scale == 1 else hidden * scale))

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """As of transformers. Raises ConfigurationError within `sequence_parallel` unless the model says otherwise."""
        if is_sharded():
            raise ConfigurationError(
                "generate-in-shards",
                f"{type(self).__name__} cannot generate within sequence_parallel: generate on one device",
            )
        whole: Any = super()
        return whole.generate(*args, **with_own_name(kwargs))

    def _stack(self) -> AsterismModel:
        """The stack whose tokens are generated."""
        raise NotImplementedError

    # All are called by transformers with its own arguments, of which versions have different ones.
    def prepare_inputs_for_generation(
        self, *args: Any, inputs_embeds: torch.Tensor | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """What `forward` is given for the next tokens, int64 [B, N] or embeddings [B, N, C]: without positions, for the
        model and its cache count tokens themselves."""
        prepare: Any = super()
        inputs: dict[str, Any] = prepare.prepare_inputs_for_generation(*args, inputs_embeds=inputs_embeds, **kwargs)
        inputs.pop("position_ids", None)
        return inputs

    @staticmethod
    def create_masks_for_generate(attention_mask: torch.Tensor | None = None, **kwargs: Any) -> torch.Tensor | None:
        """The mask int64 [B, S + N] as it is, also for a cache whose step may be compiled: patterns do the rest."""
        return attention_mask

    def _prepare_cache_for_generation(
        self, generation_config: GenerationConfig, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Before the first token is generated: raises ConfigurationError when the last one would have no position."""
        stack = self._stack()
        mask = model_kwargs.get("decoder_attention_mask" if self.config.is_encoder_decoder else "attention_mask")
        padding = 0 if mask is None else int((mask == 0).sum(dim=1).min())
        # The last token is generated and never read.
        longest = generation_config.max_length - 1 - padding
        if stack.config.positions_end and longest > stack.config.max_position_embeddings:
            raise ConfigurationError("too-long", too_long(longest, stack.config))
        prepare: Any = super()
        return prepare._prepare_cache_for_generation(generation_config, model_kwargs, *args, **kwargs)
