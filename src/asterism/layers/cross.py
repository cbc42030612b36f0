"""Cross attention: the tokens of one sequence read those of another, the source, by a pattern.

It is attention whose keys and values come from elsewhere. They are the same for every token that is generated, so a
cache keeps them once they are computed.
"""

from typing import Any, Protocol

import torch

from asterism.errors import ConfigurationError
from asterism.kernels import Dropout, Terms, attend, decode_slots, readable_keys
from asterism.kernels.checks import autocast
from asterism.layers.attention import SparseAttention
from asterism.patterns import Pattern, dense, require_cross_attention, require_prefix_stable

_EVERYTHING = dense()


class SourceKeys(Protocol):
    """The keys [B, Hkv, S, D] and values [B, Hkv, S, Dv] of a source, kept by a cache once they were computed."""

    keys: torch.Tensor
    values: torch.Tensor

    @property
    def is_filled(self) -> bool: ...

    def fill(self, keys: torch.Tensor, values: torch.Tensor) -> None: ...


class CrossAttention(SparseAttention):
    """Multi-head attention to a source; arguments as those of SparseAttention.

    The pattern is about queries and keys of different sequences: `dense()`, or an `across(...)` that says where a query
    stands in the source. What it allows must not depend on the length of the source, so that padding changes nothing.
    There are no rotary positions and no global projections.
    """

    def __init__(self, hidden_size: int, num_heads: int, pattern: Pattern | str, **options: Any) -> None:
        for name in ("rotary", "global_projections"):
            if options.get(name) is not None:
                raise ConfigurationError(f"cross attention has no {name}: its keys are those of another sequence")
        super().__init__(hidden_size, num_heads, pattern, **options)

    def _check_pattern(self) -> None:
        require_cross_attention(self.pattern)
        require_prefix_stable(self.pattern)  # the sources of a batch differ in length

    def forward(  # type: ignore[override]
        self,
        hidden: torch.Tensor,
        source: torch.Tensor | None,
        *,
        positions: torch.Tensor | None = None,
        real: torch.Tensor | None = None,
        kept: SourceKeys | None = None,
        dropout: Dropout | None = None,
    ) -> torch.Tensor:
        """[B, N, hidden_size] -> [B, N, hidden_size].

        source     [B, S, hidden_size]; None where `kept` has its keys and values
        positions  int64 [B or 1, N]: which tokens of their own sequence ask, -1 for padding; by default the first ones
        real       bool [B, S]: which tokens of the source are real; they come first. By default all are.
        kept       this layer's part of a cache, which is filled by the first call
        dropout    of the pairs that are read, as in `attend`; not together with a cache
        """
        (hidden,) = autocast(hidden)
        q = self._split(self.query(hidden), self.num_heads)
        if kept is not None and kept.is_filled:
            mixed = self._read_source(q, kept.keys, kept.values, positions, real)
            return self.output(mixed.transpose(1, 2).flatten(2))
        if source is None:
            raise ConfigurationError("cross attention needs the states of the source, or a cache that holds its keys")
        (source,) = autocast(source)
        k, v = (self._split(make(source), self.num_key_value_heads) for make in (self.key, self.value))
        if kept is not None:
            kept.fill(k, v)
            if positions is not None and bool((positions[:, :1] > 0).any()):  # a source that comes after some tokens
                return self.output(self._read_source(q, k, v, positions, real).transpose(1, 2).flatten(2))
        terms = None if dropout is None else Terms(dropout=dropout)
        # Without a cache, and with a new one, the first token is number 0; that of a row is its first real one.
        mixed = attend(q, k, v, self.pattern, key_mask=real, query_offset=0, terms=terms, **self._options)
        return self.output(mixed.transpose(1, 2).flatten(2))

    def _read_source(
        self,
        q: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        positions: torch.Tensor | None,
        real: torch.Tensor | None,
    ) -> torch.Tensor:
        """[B, H, N, Dv]: what a few queries read of keys that were kept."""
        allowed = torch.ones((), dtype=torch.bool, device=q.device) if real is None else real[:, None, None]
        if self.pattern != _EVERYTHING:
            if positions is None:
                raise ConfigurationError(f"{self.pattern.text} with a cache: say by positions which tokens ask")
            allowed = allowed & readable_keys(self.pattern, positions.clamp(min=0), keys.shape[2])
        rows, heads = allowed.shape[:2] or (1, 1)
        return decode_slots(q, keys, values, allowed.expand(rows, heads, q.shape[2], keys.shape[2]), **self._options)
