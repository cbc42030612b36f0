"""The two stacks of an encoder-decoder: an AsterismModel each, and cross attention in the blocks of the second."""

from collections.abc import Sequence
from typing import Any, ClassVar, cast

import torch
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.utils.generic import can_return_tuple

from asterism.errors import ConfigurationError
from asterism.kernels import Dropout
from asterism.layers.rows import find_rows, is_sharded, kept_rows, with_all_ranks
from asterism.models.asterism.backbone import Asked, AsterismModel, BackboneOutput, Reading, layer_seed
from asterism.models.asterism.configuration import AsterismConfig
from asterism.models.cache.source import SourceLayer
from asterism.patterns import Pattern

_DECODER, _CROSS = 2**12, 2**13
"""Which numbers the first layers of a decoder have, and their cross attentions, where seeds of dropout are counted."""


class AsterismEncoder(AsterismModel):
    """The encoder of an encoder-decoder, built from `config.encoder_config()`: it reads both sides of a token."""

    is_one_of_two = True

    @staticmethod
    def _reads_both_sides(config: AsterismConfig) -> bool:
        return True

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        output_hidden_states: bool | None = None,
        dropout_seed: int | None = None,
        output_attentions: bool | None = None,
    ) -> BaseModelOutputWithPast:
        """Hidden states [B, N, hidden_size] of N tokens; as AsterismModel. `generate` of transformers calls it.

        Raises ConfigurationError for output_attentions: attention weights are never kept.
        """
        self._refuse_unknown({"output_attentions": output_attentions})
        return super().forward(
            input_ids,
            attention_mask,
            token_type_ids,
            inputs_embeds=inputs_embeds,
            output_hidden_states=output_hidden_states,
            dropout_seed=dropout_seed,
            return_dict=True,
        )


class AsterismDecoder(AsterismModel):
    """The decoder of an encoder-decoder, built from `config.decoder_config()`: a causal stack that reads a source."""

    is_one_of_two = True
    first_layer = _DECODER
    branches_of_a_block: ClassVar[int] = 3

    @staticmethod
    def _reads_both_sides(config: AsterismConfig) -> bool:
        return False

    @staticmethod
    def _cross_patterns(config: AsterismConfig) -> Sequence[Pattern | None]:
        return config.cross_patterns()

    @with_all_ranks
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        source: torch.Tensor | None = None,
        source_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        source_layers: Sequence[SourceLayer] | None = None,
        inputs_embeds: torch.Tensor | None = None,
        output_hidden_states: bool | None = None,
        dropout_seed: int | None = None,
    ) -> BackboneOutput:
        """Hidden states [B, N, hidden_size] of N new tokens, with their rows; as AsterismModel, and

        source         [B, S, hidden_size]: the states of the tokens to read; None where `source_layers` are filled
        source_mask    [B, S]: 1 for tokens of the source, 0 for padding, on any side
        source_layers  of a SourceCache, one for each layer; they are filled
        """
        embedded = self._embed(input_ids, inputs_embeds)
        cache, dropouts = self._find_cache(past_key_values, False), self._dropout_arguments(dropout_seed)
        reading = self._read(source, source_mask, source_layers, dropout_seed)
        rows = self._find_rows(embedded, Asked(attention_mask, cache))
        last, states = self._run(rows, embedded, cache, output_hidden_states, dropouts, reading)
        return BackboneOutput(last_hidden_state=last, past_key_values=cache, hidden_states=states, rows=rows)

    def _read(
        self,
        source: torch.Tensor | None,
        mask: torch.Tensor | None,
        layers: Sequence[SourceLayer] | None,
        dropout_seed: int | None,
    ) -> Reading:
        """What the blocks are told of the source. Its real tokens are brought to the front, where patterns count."""
        is_kept = layers is not None and layers[0].is_filled
        if source is None and not is_kept:
            raise ConfigurationError("a decoder needs the states of a source, or a cache that holds its keys")
        if layers is not None and is_sharded():
            raise ConfigurationError(
                "the keys of a source cannot be kept in a cache within sequence_parallel: set use_cache=False"
            )
        if is_kept:
            source, rows = None, kept_rows(cast(Any, layers)[0].get_seq_length(), mask)
        else:
            found = find_rows(cast(torch.Tensor, source), mask)
            source, rows = found.pack(cast(torch.Tensor, source)), found.inside(0, told=True, by_length=False)
        calls = []
        for layer in range(len(self.layers)):
            kept = {} if layers is None else {"kept": layers[layer]}
            calls.append({"source_rows": rows} | kept | self._cross_dropout(dropout_seed, layer))
        return Reading(source, calls)

    def _cross_dropout(self, seed: int | None, layer: int) -> dict[str, Any]:
        rate = self.config.attention_dropout
        if not (self.training and rate) or seed is None:  # which _run refuses
            return {}
        return {"dropout": Dropout(rate, layer_seed(seed, _CROSS + layer))}
