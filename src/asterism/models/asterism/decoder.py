"""The two stacks of an encoder-decoder: an AsterismModel each, and cross attention in the blocks of the second."""

from collections.abc import Sequence

import torch
from transformers.cache_utils import Cache

from asterism.errors import ConfigurationError
from asterism.kernels import Dropout
from asterism.layers.rows import find_rows, is_sharded, kept_rows, with_all_ranks
from asterism.models.asterism.backbone import AsterismModel, BackboneOutput, Source
from asterism.models.cache.source import SourceLayer

_DECODER, _CROSS = 2**12, 2**13
"""Which numbers the first layer of a decoder has, and its cross attention, where seeds of dropout are counted."""


class AsterismEncoder(AsterismModel):
    """The encoder of an encoder-decoder, built from `config.encoder_config()`: it reads both sides of a token."""

    role = "encoder"


class AsterismDecoder(AsterismModel):
    """The decoder of an encoder-decoder, built from `config.decoder_config()`: a causal stack that reads a source."""

    role = "decoder"

    @with_all_ranks
    def forward(  # type: ignore[override]
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
        return BackboneOutput(last_hidden_state=last, past_key_values=cache, hidden_states=states, rows=rows)

    def _find_source(
        self,
        states: torch.Tensor | None,
        mask: torch.Tensor | None,
        kept: Sequence[SourceLayer] | None,
        dropouts: Sequence[Dropout | None],
    ) -> Source:
        """What the blocks read of the source. Its real tokens are brought to the front, where patterns count."""
        if kept is not None and is_sharded():
            raise ConfigurationError(
                "the keys of a source cannot be kept in a cache within sequence_parallel: set use_cache=False"
            )
        if kept is not None and kept[0].is_filled:
            return Source(None, kept_rows(kept[0].get_seq_length(), mask), kept, dropouts)
        if states is None:
            raise ConfigurationError("a decoder needs the states of a source, or a cache that holds its keys")
        rows = find_rows(states, mask)
        return Source(rows.pack(states), rows.inside(0, told=True, by_length=False), kept, dropouts)
