"""Attention as a layer: projections, heads, grouped queries, and a cache, around a pattern.

The layer knows the pattern and hands it to the kernels; it knows no tiles and no masks. Without a cache, and for the
first tokens with one, all queries go through `attend`; later tokens are few, read what the cache has kept, and go
through `decode`. Both roads give the same numbers. There is no dropout inside attention (Child 2019, section 5.4).
"""

from typing import TYPE_CHECKING

import torch
from torch import nn

from asterism.errors import ConfigurationError
from asterism.kernels import attend, decode
from asterism.layers.initialisation import ResidualLinear
from asterism.layers.positions import Rotary
from asterism.patterns import Pattern, parse

if TYPE_CHECKING:
    from asterism.layers.cache import PatternCacheLayer


class SparseAttention(nn.Module):
    """Multi-head attention in which the pattern says who reads whom.

    pattern              a Pattern or its text, for all heads alike or with one rule per head
    num_key_value_heads  fewer key and value heads than query heads (grouped queries); by default as many
    query_key_dim        width of the queries over all heads; the paper's half-size queries and keys have
                         hidden_size // 2. Values are always hidden_size // num_heads wide per head.
    rotary               turns queries and keys by position; None when positions are in the embedding
    implementation       as in `attend`

    Raises ConfigurationError when the head counts do not divide the widths, PatternError when the pattern has rules
    for another number of heads.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        pattern: Pattern | str,
        *,
        num_key_value_heads: int | None = None,
        query_key_dim: int | None = None,
        implementation: str = "auto",
        rotary: Rotary | None = None,
    ) -> None:
        super().__init__()
        self.pattern = parse(pattern) if isinstance(pattern, str) else pattern
        self.num_heads = num_heads
        self.num_key_value_heads = num_heads if num_key_value_heads is None else num_key_value_heads
        query_key_dim = hidden_size if query_key_dim is None else query_key_dim
        for name, width in (("hidden_size", hidden_size), ("query_key_dim", query_key_dim)):
            if width % num_heads:
                raise ConfigurationError(f"{name} {width} cannot be divided evenly over {num_heads} attention heads")
        if num_heads % self.num_key_value_heads:
            raise ConfigurationError(
                f"{num_heads} attention heads cannot share {self.num_key_value_heads} key and value heads evenly"
            )
        self.pattern.check_heads(num_heads)
        query_head_dim, value_head_dim = query_key_dim // num_heads, hidden_size // num_heads
        if rotary is not None and query_head_dim % 2:
            raise ConfigurationError(
                f"rotary positions turn pairs of features, but query heads are {query_head_dim} wide"
            )
        self.implementation = implementation
        self.rotary = rotary
        self.query = nn.Linear(hidden_size, query_key_dim)
        self.key = nn.Linear(hidden_size, query_head_dim * self.num_key_value_heads)
        self.value = nn.Linear(hidden_size, value_head_dim * self.num_key_value_heads)
        self.output = ResidualLinear(hidden_size, hidden_size)

    def forward(
        self,
        hidden: torch.Tensor,
        *,
        positions: torch.Tensor | None = None,
        cache: "PatternCacheLayer | None" = None,
        key_mask: torch.Tensor | None = None,
        segments: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """[B, N, hidden_size] -> [B, N, hidden_size].

        positions  int64 [B or 1, N], for the rotary and the cache; -1 for padding, which comes last in its row.
                   By default tokens follow those already in the cache. To the pattern, tokens of one call always
                   stand at 0, 1, 2, ... after what the cache has seen.
        cache      this layer's part of a PatternCache; it is extended by the new tokens
        key_mask   bool [B, N]: True where the key may be read; segments int [B, N]: a query reads only keys of its
                   own segment. Neither goes together with a cache.
        """
        if cache is not None:
            self._check_cache(cache, key_mask, segments)
        if positions is None:
            seen = 0 if cache is None else cache.get_seq_length()
            positions = torch.arange(seen, seen + hidden.shape[1], device=hidden.device)[None]
        q = self._split(self.query(hidden), self.num_heads)
        k = self._split(self.key(hidden), self.num_key_value_heads)
        v = self._split(self.value(hidden), self.num_key_value_heads)
        if self.rotary is not None:
            q, k = self.rotary(q, positions), self.rotary(k, positions)
        if cache is None or cache.get_seq_length() == 0:
            if cache is not None:
                cache.extend(k, v, positions)
            mixed = attend(
                q, k, v, self.pattern, key_mask=key_mask, segments=segments, implementation=self.implementation
            )
        else:
            keys, values, key_positions = cache.extend(k, v, positions)
            mixed = decode(q, keys, values, self.pattern, positions.clamp(min=0), key_positions)
        return self.output(mixed.transpose(1, 2).flatten(2))

    def _check_cache(
        self, cache: "PatternCacheLayer", key_mask: torch.Tensor | None, segments: torch.Tensor | None
    ) -> None:
        if key_mask is not None or segments is not None:
            raise ConfigurationError("key_mask and segments cannot be used together with a cache")
        if cache.pattern != self.pattern:
            raise ConfigurationError(
                f"the cache forgets by the pattern {cache.pattern.text}, but the layer reads by {self.pattern.text}"
            )

    @staticmethod
    def _split(projected: torch.Tensor, heads: int) -> torch.Tensor:
        """[B, N, heads * D] -> [B, heads, N, D]."""
        return projected.unflatten(-1, (heads, -1)).transpose(1, 2)

    def extra_repr(self) -> str:
        return f"{self.num_heads} heads, {self.num_key_value_heads} of keys and values, {self.pattern.text}"
