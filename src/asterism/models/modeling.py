"""Causal transformers with sparse attention, as Hugging Face models.

`AsterismModel` is the decoder of Child 2019: embedding, residual blocks whose patterns the configuration names, a last
norm. `AsterismForCausalLM` predicts the next token from it and generates. The usual methods of transformers work:
`save_pretrained`, `from_pretrained`, `generate`, gradient checkpointing, the Trainer.

Positions count the real tokens of each row, and the cache remembers how many each row has seen; that is why there is no
`position_ids`.
"""

from typing import Any, cast

import torch
from torch import nn
from transformers import DynamicCache, GenerationConfig, GenerationMixin, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from asterism.errors import ConfigurationError
from asterism.layers import FactorisedPositions, LearnedPositions, PreNormBlock, Rotary, SparseAttention, initialise
from asterism.layers.cache import PatternCache, PatternCacheLayer
from asterism.models.configuration import AsterismConfig
from asterism.models.padding import Packing
from asterism.patterns import Pattern

LOSS_ARGUMENTS = ("ignore_index", "num_items_in_batch", "shift_labels")
"""What `AsterismForCausalLM.forward` passes on to the loss of transformers."""


class AsterismBlock(GradientCheckpointingLayer, PreNormBlock):
    """A PreNormBlock whose activations can be recomputed in the backward pass (Child 2019, section 5.4)."""


class AsterismPreTrainedModel(PreTrainedModel):
    """What all Asterism models share: configuration class, initialisation, what must stay on one device."""

    config: AsterismConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["AsterismBlock"]
    _skip_keys_device_placement = ["past_key_values", "cache"]

    def _init_weights(self, module: nn.Module) -> None:
        initialise(module, gain=self.config.initializer_gain, depth=self.config.num_hidden_layers)


class AsterismModel(AsterismPreTrainedModel):
    """Token embedding, positions, blocks and the last norm.

    Raises ConfigurationError or PatternError for a configuration that cannot work.
    """

    def __init__(self, config: AsterismConfig) -> None:
        super().__init__(config)
        config.check()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.positions = _position_embedding(config)
        self.layers = nn.ModuleList(_block(config, pattern) for pattern in config.layer_patterns())
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        use_cache: bool = False,
        output_hidden_states: bool | None = None,
    ) -> BaseModelOutputWithPast:
        """Hidden states [B, N, hidden_size] of N new tokens.

        input_ids        int64 [B, N], or in their place inputs_embeds [B, N, hidden_size]
        attention_mask   [B, N] or, when the cache has seen S columns, [B, S + N]: 1 for tokens, 0 for padding, on any
                         side. A padded column returns what the last token before it returns, or 0 without one.
        past_key_values  a PatternCache, or an empty DynamicCache, which is given the layers of one; it is extended
        use_cache        make a PatternCache when none is given, and return it

        Raises ConfigurationError for more tokens than the model has positions, and for a cache it cannot use.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ConfigurationError("give either input_ids or inputs_embeds, not both")
        hidden = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        cache = self._find_cache(past_key_values, use_cache)
        layer_caches = [None] * len(self.layers) if cache is None else cast(list[PatternCacheLayer], cache.layers)
        seen = 0 if cache is None else cache.get_seq_length()
        packing = None if attention_mask is None else Packing.of(_mask_of_new(attention_mask, hidden, seen))
        if packing is not None:
            hidden = packing.pack(hidden)
        positions = _count_positions(hidden, layer_caches[0], packing)
        if self.positions is not None:
            self._check_length(seen + hidden.shape[1], positions)
            hidden = hidden + self.positions(positions.clamp(min=0))
        wanted = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        states = []
        for block, layer_cache in zip(self.layers, layer_caches, strict=True):
            if wanted:
                states.append(hidden)
            hidden = block(hidden, positions=positions, cache=layer_cache)
        states.append(self.norm(hidden))
        if packing is not None:
            states = [packing.unpack(state) for state in states]
        return BaseModelOutputWithPast(
            last_hidden_state=states[-1], past_key_values=cache, hidden_states=tuple(states) if wanted else None
        )

    def _find_cache(self, past_key_values: Cache | None, use_cache: bool) -> Cache | None:
        """The cache to extend, whose layers are PatternCacheLayers, or None."""
        if past_key_values is None and not use_cache:
            return None
        if self.training and any(block.gradient_checkpointing for block in self.layers):
            raise ConfigurationError("gradient checkpointing runs every block twice and cannot be used with a cache")
        if past_key_values is None:
            return PatternCache(self.config)
        empty = past_key_values.get_seq_length() == 0 and not past_key_values.offloading
        if empty and type(past_key_values) is DynamicCache:
            # The caller may hold on to this object instead of the one we return, so it is filled in place.
            past_key_values.layers = PatternCache(self.config).layers
            past_key_values.layer_class_to_replicate = None
        own_layers = [layer for layer in past_key_values.layers if isinstance(layer, PatternCacheLayer)]
        if len(own_layers) != len(self.layers):
            raise ConfigurationError(
                f"past_key_values is a {type(past_key_values).__name__} that does not know which keys the patterns of"
                " this model still need; pass a PatternCache(model.config), or nothing"
            )
        return past_key_values

    def _check_length(self, columns: int, positions: torch.Tensor) -> None:
        """Raises ConfigurationError when a real token stands beyond the table of positions."""
        limit = self.config.max_position_embeddings
        if columns > limit and (longest := int(positions.max()) + 1) > limit:
            raise ConfigurationError(_too_long(longest, self.config))


class AsterismForCausalLM(AsterismPreTrainedModel, GenerationMixin):
    """A linear layer over AsterismModel that gives the logits of the next token. It starts at 0, as in the paper."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: AsterismConfig) -> None:
        super().__init__(config)
        self.model = AsterismModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if module is self.lm_head and not self.config.tie_word_embeddings:
            nn.init.zeros_(self.lm_head.weight)
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
        **loss_arguments: Any,
    ) -> CausalLMOutputWithPast:
        """Logits [B, N, vocab_size] and, with labels, the mean loss in nats; other arguments as in AsterismModel.

        labels           int64 [B, N], the tokens themselves: column i is compared with the prediction of column i - 1;
                         -100 is ignored
        logits_to_keep   logits of the last so many columns only, or of these columns; 0 keeps all
        loss_arguments   for the loss of transformers, such as num_items_in_batch

        Raises ConfigurationError for any other argument.
        """
        _refuse_unknown(loss_arguments)
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(outputs.last_hidden_state[:, kept])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, vocab_size=self.config.vocab_size, **loss_arguments)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
        )

    def _prepare_cache_for_generation(
        self, generation_config: GenerationConfig, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        """Before the first token is generated: raises ConfigurationError when the last one would have no position."""
        mask = model_kwargs.get("attention_mask")
        padding = 0 if mask is None else int((mask == 0).sum(dim=1).min())
        # The last token is generated and never read.
        longest = generation_config.max_length - 1 - padding
        if self.model.positions is not None and longest > self.config.max_position_embeddings:
            raise ConfigurationError(_too_long(longest, self.config))
        super()._prepare_cache_for_generation(generation_config, model_kwargs, *args, **kwargs)


def _position_embedding(config: AsterismConfig) -> FactorisedPositions | None:
    """What is added to the token embedding; None for rotary positions, which turn queries and keys instead."""
    if config.position_type == "rotary":
        return None
    if config.position_shape is None:
        return LearnedPositions(config.max_position_embeddings, config.hidden_size)
    positions = FactorisedPositions(config.position_shape, config.hidden_size)
    if positions.capacity < config.max_position_embeddings:
        raise ConfigurationError(
            f"position_shape {config.position_shape} holds {positions.capacity} positions,"
            f" fewer than max_position_embeddings {config.max_position_embeddings}"
        )
    return positions


def _block(config: AsterismConfig, pattern: Pattern) -> AsterismBlock:
    attention = SparseAttention(
        config.hidden_size,
        config.num_attention_heads,
        pattern,
        num_key_value_heads=config.num_key_value_heads,
        query_key_dim=config.query_key_dim,
        implementation=config.implementation,
        rotary=Rotary(config.rope_theta) if config.position_type == "rotary" else None,
    )
    return AsterismBlock(
        attention,
        config.hidden_size,
        config.intermediate_size,
        activation=config.hidden_act,
        dropout=config.dropout,
        layer_norm_eps=config.layer_norm_eps,
    )


def _mask_of_new(attention_mask: torch.Tensor, hidden: torch.Tensor, seen: int) -> torch.Tensor:
    """The part bool [B, N] of the mask that belongs to the new tokens; earlier padding is already in the cache."""
    batch, new = hidden.shape[:2]
    if attention_mask.shape not in ((batch, new), (batch, seen + new)):
        raise ConfigurationError(
            f"attention_mask has shape {list(attention_mask.shape)}; {new} new tokens after {seen} columns"
            f" need [{batch}, {seen + new}], 1 for tokens and 0 for padding"
        )
    return attention_mask[:, attention_mask.shape[1] - new :].bool()


def _count_positions(hidden: torch.Tensor, cache: PatternCacheLayer | None, packing: Packing | None) -> torch.Tensor:
    """Where each slot stands among the real tokens of its row: int64 [B or 1, N], -1 for padding."""
    positions = torch.arange(hidden.shape[1], device=hidden.device)[None]
    if cache is not None and cache.is_initialized:
        positions = positions + cache.lengths[:, None]
    return positions if packing is None else torch.where(packing.real, positions, -1)


def _refuse_unknown(arguments: dict[str, Any]) -> None:
    for name, value in arguments.items():
        if name not in LOSS_ARGUMENTS and value is not None and value is not False:
            raise ConfigurationError(
                f"AsterismForCausalLM.forward has no argument {name!r}; positions count the tokens of attention_mask,"
                " and attention weights are never kept"
            )


def _too_long(tokens: int, config: AsterismConfig) -> str:
    return (
        f"{tokens} tokens are more than the {config.max_position_embeddings} positions of this model"
        f" (max_position_embeddings, position_type {config.position_type!r});"
        " shorten the input or what is to be generated"
    )
