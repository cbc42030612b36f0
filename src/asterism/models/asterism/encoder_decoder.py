"""An encoder, and a decoder that reads its output: an AsterismModel each, with cross attention in the decoder."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import nn
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqModelOutput
from transformers.utils.generic import can_return_tuple

from asterism.errors import ConfigurationError
from asterism.kernels import Dropout
from asterism.layers.rows import Rows, find_rows, is_sharded, kept_rows, with_all_ranks
from asterism.models.asterism.backbone import AsterismModel, BackboneOutput, EncodedSource
from asterism.models.asterism.base import AsterismPreTrainedModel
from asterism.models.asterism.configuration import AsterismConfig
from asterism.models.cache.naming import one_cache, with_cache
from asterism.models.cache.source import EncoderDecoderPatternCache, SourceLayer, own_caches

_DECODER, _CROSS = 2**12, 2**13
"""Which numbers the first layer of a decoder has, and its cross attention, where seeds of dropout are counted."""


class AsterismEncoder(AsterismModel):
    """The encoder of an encoder-decoder, built from `config.encoder_config()`: it reads both sides of a token."""

    role = "encoder"


class AsterismDecoder(AsterismModel):
    """The decoder of an encoder-decoder, built from `config.decoder_config()`: a causal stack that reads a source."""

    role = "decoder"

    @with_all_ranks
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        source: torch.Tensor | None = None,
        source_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        *,
        source_layers: Sequence[SourceLayer] | None = None,
        output_hidden_states: bool | None = None,
        dropout_seed: int | None = None,
    ) -> BackboneOutput:
        """Hidden states [B, N, hidden_size] of N new tokens, with their rows; as AsterismModel, and

        source         [B, S, hidden_size]: the states of the tokens to read; None where `source_layers` are filled
        source_mask    [B, S]: 1 for tokens of the source, 0 for padding, on any side
        source_layers  of a SourceCache, one for each layer; they are filled
        """
        embedded = self._embed(input_ids, inputs_embeds)
        cache, dropouts = self._find_cache(past_key_values, False), self._dropouts(dropout_seed, _DECODER)
        read = self._find_source(source, source_mask, source_layers, self._dropouts(dropout_seed, _CROSS))
        rows = self._find_rows(embedded, attention_mask, cache)
        last, states = self._run(rows, embedded, cache, dropouts, output_hidden_states, read)
        return BackboneOutput(last_hidden_state=last, hidden_states=states, rows=rows, **with_cache(cache))

    def _find_source(
        self,
        states: torch.Tensor | None,
        mask: torch.Tensor | None,
        kept: Sequence[SourceLayer] | None,
        dropouts: Sequence[Dropout | None],
    ) -> EncodedSource:
        """What the blocks read of the source. Its real tokens are brought to the front, where patterns count."""
        if kept is not None and is_sharded():
            raise ConfigurationError(
                "source-cache-in-shards",
                "the keys of a source cannot be kept in a cache within sequence_parallel: set use_cache=False",
            )
        if kept is not None and kept[0].is_filled:
            return EncodedSource(None, kept_rows(kept[0].get_seq_length(), mask), kept, dropouts)
        if states is None:
            raise ConfigurationError(
                "source-missing", "a decoder needs the states of a source, or a cache that holds its keys"
            )
        rows = find_rows(states, mask)
        return EncodedSource(rows.pack(states), rows.inside(0, told=True, by_length=False), kept, dropouts)


EncoderOutputs = BaseModelOutput | tuple[torch.Tensor, ...]


@dataclass
class EncoderDecoderOutput(Seq2SeqModelOutput):
    """What the head reads: as transformers has it, and where the tokens of the target stand."""

    last_hidden_state: torch.Tensor = None  # type: ignore[assignment]  # as of BackboneOutput
    rows: Rows = None  # type: ignore[assignment]


class AsterismEncoderDecoder(AsterismPreTrainedModel):
    """An encoder and a decoder that reads what it gives."""

    def __init__(self, config: AsterismConfig) -> None:
        super().__init__(config)
        decoder = config.decoder_config()
        config.check()
        self.encoder = AsterismEncoder(config.encoder_config())
        self.decoder = AsterismDecoder(decoder)
        self._tied_weights_keys = self._tied_names()
        self.post_init()

    @property
    def shared(self) -> nn.Embedding | None:
        """The embedding of the tokens of both stacks; None where each has its own."""
        return self.encoder.embed_tokens if self.config.share_embeddings else None

    def get_input_embeddings(self) -> nn.Embedding:
        """Those of the encoder."""
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Raises ConfigurationError where each stack has its own."""
        if self.shared is None:
            raise ConfigurationError(
                "embeddings-not-shared",
                "encoder and decoder have separate embeddings (share_embeddings=False): set each one separately",
            )
        self.encoder.embed_tokens = self.decoder.embed_tokens = cast(nn.Embedding, value)

    def _tied_names(self) -> dict[str, str]:
        """Which parameters of the decoder are those of the encoder, by name."""
        tied = {}
        if self.config.share_embeddings:
            tied["decoder.embed_tokens.weight"] = "encoder.embed_tokens.weight"
        if self.config.tie_encoder_decoder:
            own = {name for name, _ in self.encoder.named_parameters()}
            names = [name for name, _ in self.decoder.named_parameters() if name in own]
            tied |= {f"decoder.{name}": f"encoder.{name}" for name in names}
        return tied

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        """As transformers asks for it: {name of a parameter: name of the one that it is}."""
        return dict(self._tied_weights_keys)

    def span_penalty(self) -> torch.Tensor | None:
        """What adaptive spans add to the loss, of both stacks: a scalar in the dtype of the weights, or None."""
        penalties = [stack.span_penalty() for stack in (self.encoder, self.decoder)]
        there = [penalty for penalty in penalties if penalty is not None]
        return torch.stack(there).sum() if there else None

    @can_return_tuple
    @with_all_ranks
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: EncoderOutputs | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        *,
        token_type_ids: torch.Tensor | None = None,
        use_cache: bool = False,
        output_hidden_states: bool | None = None,
        dropout_seed: int | None = None,
        with_rows: bool = False,
        cache: Cache | None = None,
    ) -> EncoderDecoderOutput:
        """Hidden states [B, N, hidden_size] of the target, in the dtype of the weights; the arguments are those of
        AsterismForConditionalGeneration.forward."""
        both = self._find_cache(one_cache(past_key_values, cache), use_cache)
        if both is None:
            past, layers = None, None
        else:
            past, kept = own_caches(both, self.config)
            layers = cast(list[SourceLayer], kept.layers)
        encoded = encoder_outputs
        if encoded is None and not (layers and layers[0].is_filled):
            encoded = self.encoder(
                input_ids,
                attention_mask,
                token_type_ids=token_type_ids,
                inputs_embeds=inputs_embeds,
                output_hidden_states=output_hidden_states,
                dropout_seed=dropout_seed,
                return_dict=True,
            )
        decoded = self.decoder(
            decoder_input_ids,
            decoder_attention_mask,
            source=None if encoded is None else encoded[0],
            source_mask=attention_mask,
            past_key_values=past,
            source_layers=layers,
            inputs_embeds=decoder_inputs_embeds,
            output_hidden_states=output_hidden_states,
            dropout_seed=dropout_seed,
        )
        return EncoderDecoderOutput(
            last_hidden_state=decoded.last_hidden_state,
            decoder_hidden_states=decoded.hidden_states,
            encoder_last_hidden_state=None if encoded is None else encoded[0],
            encoder_hidden_states=getattr(encoded, "hidden_states", None),
            rows=decoded.rows if with_rows else None,  # type: ignore[arg-type]
            **with_cache(both),
        )

    def _find_cache(self, past: Cache | None, use_cache: bool) -> EncoderDecoderCache | None:
        """The cache to extend, or None. Raises ConfigurationError for one that has no place for a source."""
        if past is None:
            return EncoderDecoderPatternCache(self.config) if use_cache else None
        if not isinstance(past, EncoderDecoderCache):
            raise ConfigurationError(
                "foreign-cache",
                f"the cache is of type {type(past).__name__}, which cannot hold the keys of a source; pass an"
                " EncoderDecoderPatternCache(model.config), or nothing",
            )
        return past
