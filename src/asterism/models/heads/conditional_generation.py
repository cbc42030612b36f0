"""The encoder-decoder with its head: reads a source with any mixers, and writes a target with causal patterns.

`generate` of transformers runs the encoder once; then every new token reads what the decoder's patterns still read of
the tokens before it, and the keys of the source, which are computed once.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import nn
from transformers import GenerationConfig, GenerationMixin
from transformers.cache_utils import EncoderDecoderCache
from transformers.modeling_outputs import Seq2SeqLMOutput

from asterism.errors import ConfigurationError
from asterism.labels import shifted_right
from asterism.layers.rows import refuse_shifting
from asterism.models.asterism.backbone import AsterismModel
from asterism.models.asterism.base import Targets
from asterism.models.asterism.configuration import AsterismConfig
from asterism.models.asterism.encoder_decoder import AsterismEncoderDecoder, EncoderDecoderOutput
from asterism.models.cache.cache import is_plain
from asterism.models.cache.naming import CACHE, cache_of, with_cache
from asterism.models.cache.source import EncoderDecoderPatternCache
from asterism.models.generation.generation import GeneratesTokens
from asterism.models.heads.head import head_of


class AsterismForConditionalGeneration(GeneratesTokens, GenerationMixin):
    """An encoder, a decoder that reads it, and a linear layer for the logits of the next token.

    Raises ConfigurationError or PatternError for a configuration without a decoder or with one that is not causal.
    """

    loss_arguments: ClassVar[tuple[str, ...]] = ("ignore_index", "num_items_in_batch", "label_smoothing")

    def __init__(self, config: AsterismConfig) -> None:
        super().__init__(config)
        self.model = AsterismEncoderDecoder(config)
        self._add_lm_head(config)
        stacks = self.model.get_expanded_tied_weights_keys()
        self._tied_weights_keys = {f"model.{name}": f"model.{source}" for name, source in stacks.items()}
        if config.tie_word_embeddings:
            embedding = "model.decoder.embed_tokens.weight"
            self._tied_weights_keys["lm_head.weight"] = self._tied_weights_keys.get(embedding, embedding)
        self.post_init()

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        """Tied parameters for transformers: {name of a parameter: name of the parameter it is tied to}."""
        return dict(self._tied_weights_keys)

    def _stack(self) -> AsterismModel:
        return self.model.decoder

    def get_encoder(self, modality: str | None = None) -> nn.Module:
        return self.model.encoder

    def get_decoder(self) -> nn.Module:
        return self.model.decoder

    def _targets(self, given: Mapping[str, Any]) -> Targets:
        shape = self._shape_of(given, "decoder_input_ids", "decoder_inputs_embeds")
        return {"labels": (shape, self.config.vocab_size)}

    @head_of(AsterismEncoderDecoder.forward)
    def forward(
        self,
        outputs: EncoderDecoderOutput,
        labels: torch.Tensor | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        **loss_arguments: Any,
    ) -> Seq2SeqLMOutput:
        """Logits [B, N, vocab_size] of the token after each one of the target and, with labels, the loss in nats.

        input_ids               int64 [B, S], the source; or instead inputs_embeds. embedding_scale is not applied to
                                inputs_embeds and decoder_inputs_embeds
        attention_mask          [B, S]: 1 for tokens of the source, 0 for padding, on any side
        decoder_input_ids       int64 [B, N], the target so far; or instead decoder_inputs_embeds; by default the
                                labels, shifted to the right behind decoder_start_token_id, which within
                                `sequence_parallel` must be done before sharding
        decoder_attention_mask  [B, N] or, when the cache has seen P columns, [B, P + N]: the same for the target
        encoder_outputs         outputs of the encoder for the source: the encoder is not run again
        past_key_values         an EncoderDecoderPatternCache, or an empty EncoderDecoderCache, which is given its
                                layers; it is extended. Once it holds the keys of the source, input_ids can be left out.
        cache                   another name of past_key_values, that of transformers since 5.24
        use_cache               make such a cache when none is given, and return it
        labels                  int64 [B, N]: column i is compared with the prediction of column i; -100 is ignored
        token_type_ids          int64 [B, S], of the source; a model without types takes only 0
        logits_to_keep          number of last columns with logits, or the columns themselves; 0 keeps all
        dropout_seed            in [0, 2^48), required in training with attention_dropout: a new one for each step
        loss_arguments          label_smoothing in [0, 1]: the fraction of each label that is spread over the vocabulary
                                (Szegedy 2016); num_items_in_batch: divides the sum; ignore_index in place of -100

        Raises ConfigurationError for any other argument, and for a target longer than the decoder's positions.
        """
        logits = self._logits(outputs.last_hidden_state, logits_to_keep)
        loss = None if labels is None else self._token_loss(outputs.rows, logits, labels, loss_arguments)
        return Seq2SeqLMOutput(
            loss=self._penalise(outputs.rows, loss, labels, loss_arguments),
            logits=logits,
            decoder_hidden_states=outputs.decoder_hidden_states,
            encoder_last_hidden_state=outputs.encoder_last_hidden_state,
            encoder_hidden_states=outputs.encoder_hidden_states,
            **with_cache(cache_of(outputs)),
        )

    def _complete(self, inputs: dict[str, Any], others: dict[str, Any]) -> None:
        """By default the decoder reads the labels, shifted to the right."""
        labels = others.get("labels")
        target = (inputs.get(name) for name in ("decoder_input_ids", "decoder_inputs_embeds"))
        if labels is not None and all(each is None for each in target):
            refuse_shifting("labels", "decoder_input_ids")
            inputs["decoder_input_ids"] = self.prepare_decoder_input_ids_from_labels(labels)

    def prepare_decoder_input_ids_from_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """Labels int64 [..., N] shifted to the right behind decoder_start_token_id, pad_token_id where they are -100.

        Raises ConfigurationError if the configuration lacks one of the two.
        """
        start, padding = self.config.decoder_start_token_id, self.config.pad_token_id
        if start is None or padding is None:
            raise ConfigurationError(
                "shift-needs-tokens",
                "labels are shifted behind decoder_start_token_id, with pad_token_id for -100, to make the decoder's"
                f" input: set both in the configuration, which has {start} and {padding}, or give decoder_input_ids",
            )
        return shifted_right(labels, start, padding)

    def _prepare_cache_for_generation(
        self, generation_config: GenerationConfig, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        given = model_kwargs.get(CACHE)
        done = super()._prepare_cache_for_generation(generation_config, model_kwargs, *args, **kwargs)
        made = model_kwargs.get(CACHE)
        if made is not given and type(made) is EncoderDecoderCache and is_plain(made.self_attention_cache):
            beams = generation_config.num_beams or 1
            model_kwargs[CACHE] = EncoderDecoderPatternCache(self.config, beams=beams)
        return done
