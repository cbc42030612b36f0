"""A key/value cache that forgets what the pattern can no longer read.

Each layer keeps, for every row of the batch, the keys and values that some later query may still read, and at which
position each of them stands. What may be forgotten follows from the pattern alone (`asterism.compiler.last_reader`): a
window keeps the last w keys, `fixed` the present block and the summary cells, `strided` everything.

Invariant: after an update no slot holds a key that no later query can read. Rows may keep different keys, so the rows
are as long as the longest needs, and a slot without a key has position -1.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from asterism.compiler import last_reader
from asterism.errors import ConfigurationError
from asterism.patterns import Pattern, require_causal


class PatternCacheLayer(CacheLayerMixin):
    """The keys of one attention layer that its pattern can still read.

    keys          [B, Hkv, L, D], values [B, Hkv, L, Dv]; L grows and shrinks
    positions     int64 [B, L]: where the key in each slot stands in its row; -1 for a slot without a key
    last_readers  int64 [B, L]: the last query position that may read the slot; -1 for a slot without a key
    lengths       int64 [B]: how many real tokens, padding not counted, each row has seen

    Raises PatternError for a pattern that a causal model cannot use.
    """

    is_sliding = False
    is_compileable = False
    is_croppable = False
    keys: torch.Tensor
    values: torch.Tensor
    positions: torch.Tensor
    last_readers: torch.Tensor
    lengths: torch.Tensor

    def __init__(self, pattern: Pattern) -> None:
        super().__init__()
        require_causal(pattern)
        self.pattern = pattern
        self.tokens_seen = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Empty slots of the batch size, head counts, widths, dtypes and device of the first keys and values."""
        batch = key_states.shape[0]
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys, self.values = key_states[:, :, :0], value_states[:, :, :0]
        self.positions = torch.empty(batch, 0, dtype=torch.int64, device=self.device)
        self.last_readers = self.positions
        self.lengths = torch.zeros(batch, dtype=torch.int64, device=self.device)
        self.is_initialized = True

    def extend(
        self, keys: torch.Tensor, values: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Add new tokens; return what they may read, then forget what nobody after them may read.

        keys [B, Hkv, m, D], values [B, Hkv, m, Dv], positions int64 [B or 1, m] with -1 for padding. Returns keys,
        values and positions [B, L + m] of the slots kept so far followed by the new ones.
        """
        if not self.is_initialized:
            self.lazy_initialization(keys, values)
        new = positions.expand(keys.shape[0], -1)
        keys = torch.cat([self.keys, keys], dim=2)
        values = torch.cat([self.values, values], dim=2)
        slots = torch.cat([self.positions, new], dim=1)
        last_readers = torch.cat([self.last_readers, self._last_readers(new)], dim=1)
        self.lengths = torch.cat([self.lengths[:, None], new + 1], dim=1).amax(dim=1)
        self.tokens_seen += new.shape[1]
        self._keep(keys, values, slots, last_readers)
        return keys, values, slots

    def _last_readers(self, positions: torch.Tensor) -> torch.Tensor:
        """int64 [B, m], -1 for padding."""
        keys = positions.clamp(min=0).cpu().numpy()
        readers = torch.from_numpy(last_reader(self.pattern, keys.ravel()).reshape(keys.shape))
        return torch.where(positions < 0, -1, readers.to(positions.device))

    def _keep(
        self, keys: torch.Tensor, values: torch.Tensor, positions: torch.Tensor, last_readers: torch.Tensor
    ) -> None:
        """Store the slots that a query at position `lengths` or later may read, in their order."""
        living = last_readers >= self.lengths[:, None]
        longest = int(living.sum(dim=1).max()) if living.numel() else 0
        if longest < living.shape[1]:
            order = torch.argsort(living, dim=1, descending=True, stable=True)[:, :longest]
            living, positions, last_readers = (x.gather(1, order) for x in (living, positions, last_readers))
            keys, values = (
                x.gather(2, order[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3])) for x in (keys, values)
            )
        self.keys, self.values = keys, values
        self.positions = torch.where(living, positions, -1)
        self.last_readers = torch.where(living, last_readers, -1)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Refused with ConfigurationError: keys without their positions cannot be told apart; `extend` takes both."""
        raise ConfigurationError(
            "a PatternCache keeps keys together with their positions;"
            " call `cache.layers[i].extend(keys, values, positions)`"
        )

    def get_seq_length(self) -> int:
        """How many tokens have been seen, padding included; not how many are kept."""
        return self.tokens_seen

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of the mask over all tokens seen and `query_length` new ones."""
        return self.tokens_seen + query_length, 0

    def get_max_length(self) -> int:
        """-1: no limit."""
        return -1

    def get_max_cache_shape(self) -> int:
        """-1: no limit. The name of `get_max_length` before transformers 5.16."""
        return -1

    def reset(self) -> None:
        """Forget everything, batch size included."""
        self.is_initialized = False
        self.tokens_seen = 0

    def crop(self, tokens_to_remove: int) -> None:
        """Refused with ConfigurationError, so there is no assisted generation: what is forgotten cannot come back."""
        raise ConfigurationError(
            "a PatternCache cannot be cropped, because the keys that its last tokens made unreadable are forgotten;"
            " generate without an assistant or look-up"
        )

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Row i becomes the old row beam_idx[i] (beam search)."""
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each row `repeats` times, copies next to each other."""
        if self.is_initialized:
            rows = torch.arange(self.lengths.shape[0], device=self.device)
            self.batch_select_indices(rows.repeat_interleave(repeats))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep the rows `indices` (int64 [B'] or bool [B]), in that order."""
        if self.is_initialized:
            rows = indices.to(self.device)
            self.keys, self.values = self.keys[rows], self.values[rows]
            self.positions, self.last_readers = self.positions[rows], self.last_readers[rows]
            self.lengths = self.lengths[rows]


class HasPatterns(Protocol):
    """A configuration that knows the pattern of each layer."""

    def layer_patterns(self) -> Sequence[Pattern]: ...


class PatternCache(Cache):
    """The cache of a whole model: one PatternCacheLayer for each pattern of the configuration."""

    def __init__(self, config: HasPatterns) -> None:
        super().__init__(layers=[PatternCacheLayer(pattern) for pattern in config.layer_patterns()])

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        """-1: no limit. The name of `get_max_length` before transformers 5.16."""
        return self.layers[layer_idx].get_max_length()
