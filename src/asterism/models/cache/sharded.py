"""A sharded cache: every rank keeps the keys of its shard that can still be read.

The query of a new token goes to all ranks, as the token itself does: all of them compute it. Each answers with the keys
that it keeps, and the answers merge by log-sum-exp. A new token's own keys are kept by one rank, each in turn, so that
long answers take equal memory everywhere. What no later query can read is forgotten.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asterism.compiler.liveness import last_reader
from asterism.errors import ConfigurationError
from asterism.kernels import decode
from asterism.kernels.merging import share
from asterism.layers.kept import NewTokens, Seen
from asterism.parallel import SequenceParallel
from asterism.parallel.collectives import add_up, take_greatest
from asterism.patterns import Pattern, require_causal
from asterism.patterns.intervals import Integers

_ROOM = 64
"""Slots that are made at a time; before that, what is no longer read is forgotten."""


class ShardedCacheLayer:
    """The part of a layer of attention, as SparseAttention asks for it.

    keys, values  [B, Hkv, L, D] and [B, Hkv, L, Dv] of this rank
    positions     int64 [B, L], on the host: where they stand in their rows; -1 for a slot without a key
    """

    keys: Tensor
    values: Tensor

    def __init__(self, pattern: Pattern, context: SequenceParallel) -> None:
        require_causal(pattern)
        self.pattern, self.context = pattern, context
        self.seen = Seen()
        self.positions = np.zeros((0, 0), np.int64)
        self.prompt = self.positions
        self.generated = 0

    def new_tokens(self, width: int, counts: Sequence[int] | None = None) -> NewTokens:
        """The next columns, of all ranks."""
        return NewTokens(self.seen, width, counts)

    def get_seq_length(self) -> int:
        """How many columns have been seen on all ranks together."""
        return self.seen.columns

    @property
    def nbytes(self) -> int:
        """The memory of this rank's slots, in bytes."""
        return self.keys.nbytes + self.values.nbytes

    def extend(self, keys: Tensor, values: Tensor, tokens: NewTokens) -> list[Any]:
        """Of a prompt, keep what is on this rank; of a token that all ranks have computed, one rank keeps it."""
        self.seen = tokens.after
        if not tokens.before.columns:
            self.keys, self.values = keys.detach(), values.detach()
            self.positions = np.broadcast_to(self.prompt, (len(keys), keys.shape[2])).copy()
            self._make_room(tokens.after)
            return []
        if tokens.width != 1:
            raise ConfigurationError(
                "sharded-cache-step", f"a sharded cache is extended by one token at a time, got {tokens.width}"
            )
        if self.context.has_turn(self.generated):
            if not (free := np.flatnonzero((self.positions < 0).all(axis=0))).size:
                free = self._make_room(tokens.before)
            slot = int(free[0])
            self.keys[:, :, slot], self.values[:, :, slot] = keys[:, :, 0].detach(), values[:, :, 0].detach()
            self.positions[:, slot] = [tokens.before.of(row) for row in range(len(keys))]
        self.generated += 1
        return [_Held(self, tokens)]

    def _make_room(self, seen: Seen) -> Integers:
        """Forget what no query after those tokens reads, and see to it that there are free slots; which they are."""
        lengths = np.array([seen.of(row) for row in range(len(self.positions))])[:, None]
        read = last_reader(self.pattern, np.maximum(self.positions, 0).ravel()).reshape(self.positions.shape) >= lengths
        kept = np.flatnonzero(((self.positions >= 0) & read).any(axis=0))
        width = len(kept) + _ROOM
        chosen = torch.from_numpy(kept).to(self.keys.device)
        self.keys, self.values = (_widened(x.index_select(2, chosen), width) for x in (self.keys, self.values))
        positions = np.full((len(self.positions), width), -1)
        positions[:, : len(kept)] = self.positions[:, kept]
        self.positions = positions
        return np.arange(len(kept), width)

    def read(self, q: Tensor, tokens: NewTokens, **options: Any) -> tuple[Tensor, Tensor]:
        """What queries [B, H, 1, D] of tokens that all ranks have read of the keys of all: (out, log-sum-exp)."""
        places = tokens.positions(torch.device("cpu")).expand(len(q), -1)
        known = places, torch.from_numpy(self.positions)
        out, lse = decode(q, self.keys, self.values, self.pattern, *known, return_lse=True, **options)
        greatest = lse.clone()
        take_greatest(greatest, self.context.group)
        part = share(lse, greatest)[..., None]
        both = torch.cat([out.to(part.dtype) * part, part], dim=-1)
        add_up(both, self.context.group)
        total = both[..., -1]
        merged = both[..., :-1] / total.masked_fill(total == 0, 1)[..., None]
        return merged.to(q.dtype), greatest + total.log()


class _Held:
    """What attention gets from a layer: all rows and heads, on all ranks."""

    rows = heads = allowed = None

    def __init__(self, layer: ShardedCacheLayer, tokens: NewTokens) -> None:
        self.layer, self.tokens = layer, tokens

    def attend(self, q: Tensor, *, return_lse: bool = False, **options: Any) -> Any:
        """Results as of `asterism.attend`."""
        out, lse = self.layer.read(q, self.tokens, **options)
        return (out, lse) if return_lse else out


class ShardedCache:
    """The cache of a model within `sequence_parallel`: its `generate` fills it."""

    def __init__(self, patterns: Sequence[Pattern], context: SequenceParallel) -> None:
        self.layers = [ShardedCacheLayer(pattern, context) for pattern in patterns]

    def begin(self, positions: Tensor) -> None:
        """Say where the columns of this rank's prompt stand: int64 [B or 1, N], -1 for padding."""
        for layer in self.layers:
            layer.prompt = positions.cpu().numpy()

    def get_seq_length(self) -> int:
        return self.layers[0].get_seq_length()

    @property
    def nbytes(self) -> int:
        """The memory of the keys and values that this rank keeps, in bytes."""
        return sum(layer.nbytes for layer in self.layers)

    def kept(self, layer: int = 0, row: int = 0) -> list[int]:
        """The positions of the keys that this rank keeps of a layer."""
        held = self.layers[layer].positions[row]
        return sorted(held[held >= 0].tolist())


def _widened(slots: Tensor, width: int) -> Tensor:
    wide = slots.new_zeros(*slots.shape[:2], width, slots.shape[3])
    wide[:, :, : slots.shape[2]] = slots
    return wide
