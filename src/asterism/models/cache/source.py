"""The cache of an encoder-decoder: the keys of the decoder's self-attention, and those of the source.

The first forgets, as any PatternCache. The second is filled by the first tokens and stays as it is: what a source gives
is the same for every token that is generated.
"""

from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, EncoderDecoderCache

from asterism.errors import ConfigurationError
from asterism.models.asterism.configuration import AsterismConfig
from asterism.models.cache.cache import PatternCache, is_plain


class SourceLayer(CacheLayerMixin):
    """The keys [B, Hkv, S, D] and values [B, Hkv, S, Dv] of a source, for one layer of a decoder, in its dtype."""

    keys: torch.Tensor
    values: torch.Tensor
    is_sliding = False
    is_compileable = True
    is_croppable = True

    @property
    def is_filled(self) -> bool:
        """Whether the keys are there."""
        return self.is_initialized

    def fill(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Keep the keys and values of a source, without the graph that computed them."""
        self.dtype, self.device = keys.dtype, keys.device
        self.keys, self.values = keys.detach(), values.detach()
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing: a source is given as a whole."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Refused with ConfigurationError: a source does not grow."""
        raise ConfigurationError(
            "source-cache-grows", "the keys of a source are given once, with `fill`, and do not grow"
        )

    def get_seq_length(self) -> int:
        """How many tokens the source has, padding included; 0 before it is given."""
        return self.keys.shape[2] if self.is_filled else 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of a mask over the source."""
        return self.get_seq_length(), 0

    def get_max_length(self) -> int:
        """-1: there is no limit."""
        return -1

    def reset(self) -> None:
        """Forget the source."""
        self.is_initialized = False

    def crop(self, tokens_to_remove: int) -> None:
        """Nothing: tokens are taken back from what is generated, not from the source."""

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each row `repeats` times, copies next to each other."""
        if self.is_filled:
            self.keys, self.values = (x.repeat_interleave(repeats, dim=0) for x in (self.keys, self.values))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep the rows `indices` (int64 [B'] or bool [B]), in that order."""
        if self.is_filled:
            self.keys, self.values = (x[indices.to(x.device)] for x in (self.keys, self.values))


class SourceCache(Cache):
    """The keys and values of a source, for all layers of a decoder."""

    def __init__(self, layers: int) -> None:
        super().__init__(layers=[SourceLayer() for _ in range(layers)])

    @property
    def is_filled(self) -> bool:
        """Whether the keys of all layers are there."""
        return all(isinstance(layer, SourceLayer) and layer.is_filled for layer in self.layers)


class EncoderDecoderPatternCache(EncoderDecoderCache):
    """A PatternCache of the decoder's own attention, with its options, and a SourceCache.

    beams  how many rows next to each other read the same source: where rows are only exchanged among them, as in beam
           search, keys of the source stay where they are
    """

    self_attention_cache: PatternCache  # type: ignore[assignment]
    cross_attention_cache: SourceCache  # type: ignore[assignment]

    def __init__(self, config: AsterismConfig, *, beams: int = 1, **options: Any) -> None:
        decoder = config.decoder_config()
        self.beams = beams
        super().__init__(PatternCache(decoder, **options), SourceCache(decoder.num_hidden_layers))

    def reorder_cache(self, beam_idx: Any) -> None:
        """Row i becomes the old row beam_idx[i] (beam search)."""
        self.self_attention_cache.reorder_cache(beam_idx)
        rows = torch.arange(len(beam_idx), device=beam_idx.device)
        if not torch.equal(beam_idx // self.beams, rows // self.beams):
            self.cross_attention_cache.reorder_cache(beam_idx)

    def check_dynamic_cache(self, method: str) -> None:
        """Nothing to refuse: both caches can be cropped, and their rows chosen."""


def own_caches(past: EncoderDecoderCache, config: AsterismConfig) -> tuple[Cache, SourceCache]:
    """The two caches of what transformers gives, empty, or of what was filled before.

    Raises ConfigurationError for a cache that was filled by another model.
    """
    cross: Any = past.cross_attention_cache
    if is_plain(cross) and cross.get_seq_length() == 0:
        # The caller may hold on to this object, so it is given the layers that it needs.
        cross.layers = SourceCache(config.decoder_config().num_hidden_layers).layers
    if not (cross.layers and all(isinstance(layer, SourceLayer) for layer in cross.layers)):
        raise ConfigurationError(
            "source-not-filled",
            f"the cache holds a source of type {type(cross).__name__} that this model did not fill; pass an"
            " EncoderDecoderPatternCache(model.config), or nothing",
        )
    own: Cache = past.self_attention_cache
    return own, cross
