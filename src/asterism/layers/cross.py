"""Cross attention: the tokens of one sequence read those of another, the source, by a pattern.

It is attention whose keys and values come from elsewhere. They are the same for every token that is generated, so a
cache keeps them once they are computed.
"""

from typing import Any, Protocol

import torch

from asterism.errors import ConfigurationError
from asterism.kernels import Dropout, Terms, decode_slots, readable_keys
from asterism.kernels.checks import autocast
from asterism.layers.attention import SparseAttention
from asterism.layers.rows import Rows, rows_of
from asterism.patterns import Pattern, dense, require_cross_attention, require_prefix_stable

_EVERYTHING = dense()


class SourceKeys(Protocol):
    """The keys [B, Hkv, S, D] and values [B, Hkv, S, Dv] of a source, kept by a cache once they were computed."""

    keys: torch.Tensor
    values: torch.Tensor

    @property
    def is_filled(self) -> bool: ...

    def fill(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Keep the keys [B, Hkv, S, D] and values [B,
        Hkv, S, Dv] of a source, in the dtype of the
        layer."""
        ...


class CrossAttention(SparseAttention):
    """Multi-head attention to a source, with the arguments of SparseAttention.

    The pattern is about queries and keys of different sequences: `dense()`, or an `across(...)` that places each query
    in the source. It must not depend on the length of the source, so that padding changes nothing. It takes no rotary
    positions and no global projections.
    """

    def __init__(self, hidden_size: int, num_heads: int, pattern: Pattern | str, **options: Any) -> None:
        for name in ("rotary", "global_projections"):
            if options.get(name) is not None:
                raise ConfigurationError(
                    "cross-argument", f"cross attention takes no {name}: its keys belong to another sequence"
                )
        super().__init__(hidden_size, num_heads, pattern, **options)

    def _check_pattern(self) -> None:
        require_cross_attention(self.pattern)
        require_prefix_stable(self.pattern)  # the sources of a batch differ in length

    def forward(  # type: ignore[override]
        self,
        hidden: torch.Tensor,
        source: torch.Tensor | None,
        *,
        rows: Rows | None = None,
        source_rows: Rows | None = None,
        kept: SourceKeys | None = None,
        dropout: Dropout | None = None,
    ) -> torch.Tensor:
        """[B, N, hidden_size] -> [B, N, hidden_size]; both sequences may be sharded, each by its own shards.

        source       [B, S, hidden_size]; None where `kept` has its keys and values rows         the positions of the
        queries; by default they are the first tokens of their rows source_rows  which tokens of the source are real
        (they come first); by default all kept         this layer of a cache, filled by the first call dropout
        dropout of the allowed pairs, as in `attend`; not together with a cache

        Raises ConfigurationError without a source, or without `rows` if a cache has its keys.
        """
        (hidden,) = autocast(hidden)
        q = self._split(self.query(hidden), self.num_heads)
        if kept is not None and kept.is_filled:
            allowed = self._readable(rows, kept.keys, source_rows)
            return self._finish(self._read_source(q, kept.keys, kept.values, allowed))
        if source is None:
            raise ConfigurationError(
                "source-missing", "cross attention needs the states of the source, or a cache that holds its keys"
            )
        (source,) = autocast(source)
        k, v = (self._split(make(source), self.num_key_value_heads) for make in (self.key, self.value))
        if kept is not None:
            kept.fill(k, v)
            if rows is not None and bool((rows.positions[:, :1] > 0).any()):  # a source that comes after some tokens
                return self._finish(self._read_source(q, k, v, self._readable(rows, k, source_rows)))
        terms = None if dropout is None else Terms(dropout=dropout)
        rows = rows_of(hidden) if rows is None else rows
        mixed = rows.attend_source(q, k, v, self.pattern, source_rows, terms=terms, **self._options)
        return self._finish(mixed)

    def _finish(self, mixed: torch.Tensor) -> torch.Tensor:
        """[B, H, N, Dv] -> [B, N, hidden_size]."""
        finished: torch.Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return finished

    def _read_source(
        self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, allowed: torch.Tensor
    ) -> torch.Tensor:
        """[B, H, N, Dv]: what a few queries read of keys that were kept."""
        return decode_slots(q, keys, values, allowed.expand(-1, -1, q.shape[2], -1), **self._options)

    def _readable(self, rows: Rows | None, keys: torch.Tensor, source: Rows | None) -> torch.Tensor:
        """Which keys [B, Hkv, S, D] of a source these tokens read: bool [B or 1, 1 or heads, N or 1, S]."""
        text, known = self.pattern.text, {} if source is None else source.readable
        if text not in known:
            allowed = torch.ones(1, 1, 1, keys.shape[2], dtype=torch.bool, device=keys.device)
            if self.pattern != _EVERYTHING:
                if rows is None:
                    raise ConfigurationError(
                        "cross-rows-with-cache",
                        f"{text} with a cache needs the positions of the queries: pass rows",
                    )
                allowed = readable_keys(self.pattern, rows.positions.clamp(min=0), keys.shape[2])
            real = None if source is None else source.real
            known[text] = allowed if real is None else allowed & real[:, None, None]
        return known[text]
