"""Attention as a layer: projections, heads, grouped queries, and a cache, around a pattern.

The layer knows the pattern and hands it to the kernels; it knows no tiles and no masks. Without a cache, and for the
first tokens with one, all queries go through `attend`; later tokens are few, read what the cache has kept, and go
through `decode`. Both roads give the same numbers. There is no dropout inside attention (Child 2019, section 5.4).
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import nn

from asterism.errors import ConfigurationError
from asterism.kernels import attend, decode
from asterism.layers.initialisation import ResidualLinear
from asterism.layers.padding import by_length
from asterism.layers.positions import Rotary
from asterism.patterns import Pattern, parse


class KeyCache(Protocol):
    """What attention asks of its part of a cache: `asterism.models.cache.PatternCacheLayer` is one.

    `extend` adds the keys, values and positions of new tokens, and returns those that they may read.
    """

    pattern: Pattern

    def extend(
        self, keys: torch.Tensor, values: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]: ...

    def get_seq_length(self) -> int: ...


class SparseAttention(nn.Module):
    """Multi-head attention in which the pattern says who reads whom.

    pattern              a Pattern or its text, for all heads alike or with one rule per head
    num_key_value_heads  fewer key and value heads than query heads (grouped queries); by default as many
    query_key_dim        width of the queries over all heads; the paper's half-size queries and keys have
                         hidden_size // 2. Values are always hidden_size // num_heads wide per head.
    rotary               turns queries and keys by position; None when positions are in the embedding
    bias                 whether the projections have one
    global_projections   Longformer (Beltagy 2020, section 3.1): the tokens at these places of the sequence ask through
                         a second set of query, key and value projections and read every key. All other queries use the
                         ordinary projections, also where they read these tokens.
    implementation       as in `attend`

    Raises ConfigurationError when the head counts do not divide the widths and for global projections that name no
    place, PatternError when the pattern has rules for another number of heads.
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
        bias: bool = True,
        global_projections: Sequence[int] | None = None,
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
        key_dim, value_dim = query_head_dim * self.num_key_value_heads, value_head_dim * self.num_key_value_heads
        self.query = nn.Linear(hidden_size, query_key_dim, bias=bias)
        self.key = nn.Linear(hidden_size, key_dim, bias=bias)
        self.value = nn.Linear(hidden_size, value_dim, bias=bias)
        self.output = ResidualLinear(hidden_size, hidden_size, bias=bias)
        self.global_projections = None if global_projections is None else _check_places(global_projections)
        if global_projections is not None:
            self.global_query = nn.Linear(hidden_size, query_key_dim, bias=bias)
            self.global_key = nn.Linear(hidden_size, key_dim, bias=bias)
            self.global_value = nn.Linear(hidden_size, value_dim, bias=bias)

    def forward(
        self,
        hidden: torch.Tensor,
        *,
        positions: torch.Tensor | None = None,
        cache: KeyCache | None = None,
        key_mask: torch.Tensor | None = None,
        segments: torch.Tensor | None = None,
        lengths: Sequence[int] | None = None,
        **score_terms: torch.Tensor | None,
    ) -> torch.Tensor:
        """[B, N, hidden_size] -> [B, N, hidden_size].

        positions  int64 [B or 1, N], for the rotary and the cache; -1 for padding, which comes last in its row.
                   By default tokens follow those already in the cache. To the pattern, tokens of one call always
                   stand at 0, 1, 2, ... after what the cache has seen.
        cache      this layer's part of a PatternCache; it is extended by the new tokens
        key_mask   bool [B, N]: True where the key may be read; segments int [B, N]: a query reads only keys of its
                   own segment. Neither goes together with a cache, nor segments with global projections.
        lengths    how many tokens of each row are real; they come first, and padding follows. Each row then follows
                   the pattern at its own length. By default all rows follow it at length N.
        score_terms  what a subclass adds to the scores; none here
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
            mixed = self._attend(q, k, v, key_mask, segments, lengths, **score_terms)
            if self.global_projections is not None:
                mixed = self._ask_globally(mixed, hidden, positions, key_mask, segments, lengths)
        else:
            keys, values, key_positions = cache.extend(k, v, positions)
            mixed = self._decode(q, keys, values, positions.clamp(min=0), key_positions, **score_terms)
        return self.output(mixed.transpose(1, 2).flatten(2))

    def _attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        key_mask: torch.Tensor | None,
        segments: torch.Tensor | None,
        lengths: Sequence[int] | None,
        **score_terms: torch.Tensor | None,
    ) -> torch.Tensor:
        """[B, H, N, Dv]; with lengths, rows of one length at a time, and 0 behind the real tokens."""
        if lengths is None or min(lengths) == q.shape[2]:
            return self._read(q, k, v, key_mask, segments, **score_terms)

        def read(rows: list[int], length: int) -> torch.Tensor:
            operands = [x[rows, :, :length] for x in (q, k, v)]
            masks = [None if mask is None else mask[rows, :length] for mask in (key_mask, segments)]
            return self._read(*operands, *masks, **score_terms)

        return by_length(lengths, q.shape[2], read)

    def _read(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        key_mask: torch.Tensor | None,
        segments: torch.Tensor | None,
    ) -> torch.Tensor:
        """[B, H, N, Dv]: rows of one length, without a cache."""
        return attend(q, k, v, self.pattern, key_mask=key_mask, segments=segments, implementation=self.implementation)

    def _decode(
        self,
        q: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        query_positions: torch.Tensor,
        key_positions: torch.Tensor,
    ) -> torch.Tensor:
        """[B, H, M, Dv]: new queries against what the cache has kept."""
        return decode(q, keys, values, self.pattern, query_positions, key_positions, implementation=self.implementation)

    def _ask_globally(
        self,
        mixed: torch.Tensor,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        key_mask: torch.Tensor | None,
        segments: torch.Tensor | None,
        lengths: Sequence[int] | None,
    ) -> torch.Tensor:
        """`mixed` [B, H, N, Dv] with the rows of the global tokens replaced."""
        if segments is not None:
            raise ConfigurationError("global_projections read every key, so they cannot be used together with segments")
        columns = torch.arange(hidden.shape[1], device=hidden.device)
        asked = [place for place in self.global_projections if place < len(columns)]
        if not asked:
            return mixed
        places = columns[asked]
        if lengths is not None:
            real = columns < torch.tensor(lengths, device=hidden.device)[:, None]
            key_mask = real if key_mask is None else key_mask & real
        q = self._split(self.global_query(hidden[:, places]), self.num_heads)
        k = self._split(self.global_key(hidden), self.num_key_value_heads)
        v = self._split(self.global_value(hidden), self.num_key_value_heads)
        if self.rotary is not None:
            q, k = self.rotary(q, positions[:, places]), self.rotary(k, positions)
        answers = attend(q, k, v, "dense()", key_mask=key_mask, implementation=self.implementation)
        return mixed.index_copy(2, places, answers)

    def _check_cache(self, cache: KeyCache, key_mask: torch.Tensor | None, segments: torch.Tensor | None) -> None:
        if key_mask is not None or segments is not None:
            raise ConfigurationError("key_mask and segments cannot be used together with a cache")
        if self.global_projections is not None:
            raise ConfigurationError("global_projections read every token, the future too: they go with no cache")
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


def _check_places(places: Sequence[int]) -> tuple[int, ...]:
    if not places or any(not isinstance(place, int) or place < 0 for place in places) or len(set(places)) < len(places):
        raise ConfigurationError(
            f"global_projections must be different places of the sequence, counted from 0, got {list(places)}"
        )
    return tuple(places)
