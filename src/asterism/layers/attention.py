"""Attention as a layer: projections, heads, grouped queries, and a cache, around a pattern.

The layer passes the pattern to the kernels, and has no tiles and no masks itself. Without a cache, and for the first
tokens with one, all queries go through `attend`; later tokens read from the cache. Both paths give the same numbers.
Dropout inside attention is an argument of each call, with a seed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn

from asterism.errors import ConfigurationError
from asterism.kernels import Bias, Dropout, Terms, select
from asterism.kernels.checks import autocast
from asterism.layers.index import SCORES, Index, IndexBranch
from asterism.layers.initialisation import ResidualLinear
from asterism.layers.kept import Kept, NewTokens, index_of, read
from asterism.layers.linear import Linear
from asterism.layers.positions import Rotary, turn
from asterism.layers.rows import Rows, rows_of
from asterism.patterns import Pattern, parse, require_self_attention
from asterism.patterns.selected import bounds_of

SECOND_READING = 2**62
"""What the seed of dropout is shifted by for a second softmax over the same places."""


class KeyCache(Protocol):
    """What attention asks of its part of a cache, such as `asterism.models.cache.layer.PatternCacheLayer`.

    `new_tokens` says where the next columns stand, and `extend` adds their keys and values and returns what they may
    read; for the first tokens that is nothing but themselves.
    """

    pattern: Pattern

    def new_tokens(self, width: int, counts: Sequence[int] | None = None) -> NewTokens: ...

    def extend(self, keys: torch.Tensor, values: torch.Tensor, tokens: NewTokens) -> list[Kept]:
        """Add the keys [B,
        Hkv, N, D] and values
        [B, Hkv, N, Dv] of new
        tokens, in the dtype of
        the layer; the parts of
        what they may read."""
        ...

    def get_seq_length(self) -> int: ...


class Heads(NamedTuple):
    """Queries [B, H, N, D], keys [B, Hkv, N, D] and values [B, Hkv, N, Dv] of one call."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor


class SparseAttention(nn.Module):
    """Multi-head attention over the pairs that a pattern allows.

    pattern              a Pattern or its text, for all heads alike or with one rule per head
    num_key_value_heads  number of key and value heads, fewer for grouped queries; by default num_heads
    query_key_dim        width of the queries over all heads; the paper's half-size queries and keys have
                         hidden_size // 2
    value_dim            width of the values over all heads; by default hidden_size
    scale                of the scores; by default 1 / sqrt(width of a query head)
    rotary               turns queries and keys by position; None when positions are in the embedding
    bias                 whether the projections have a bias
    global_projections   Longformer (Beltagy 2020, section 3.1): the tokens at these positions use a second set of
                         query, key and value projections for their queries, and read every key. All other queries use
                         the ordinary projections, also for reading these tokens.
    index_dim            width of an index branch, which chooses the blocks of a pattern with selected(...) and learns
                         from attention: in training, each call adds its loss to `rows.penalties`; 0 for none
    implementation       as in `attend`

    Raises ConfigurationError if the head counts do not divide the widths, global_projections is empty, or an index
    branch has nothing to choose, and PatternError if the pattern is for another number of heads or for cross attention.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        pattern: Pattern | str,
        *,
        num_key_value_heads: int | None = None,
        query_key_dim: int | None = None,
        value_dim: int | None = None,
        scale: float | None = None,
        implementation: str = "auto",
        rotary: Rotary | None = None,
        bias: bool = True,
        global_projections: Sequence[int] | None = None,
        index_dim: int = 0,
    ) -> None:
        super().__init__()
        self.pattern = parse(pattern) if isinstance(pattern, str) else pattern
        self.num_heads = num_heads
        self.num_key_value_heads = num_heads if num_key_value_heads is None else num_key_value_heads
        query_key_dim = hidden_size if query_key_dim is None else query_key_dim
        value_dim = hidden_size if value_dim is None else value_dim
        of_values = "hidden_size" if value_dim == hidden_size else "value_dim"
        for name, width in ((of_values, value_dim), ("query_key_dim", query_key_dim)):
            if width % num_heads:
                raise ConfigurationError(
                    "heads-divide-width", f"{name} {width} cannot be divided evenly over {num_heads} attention heads"
                )
        if num_heads % self.num_key_value_heads:
            raise ConfigurationError(
                "heads-share-unevenly",
                f"{num_heads} attention heads cannot share {self.num_key_value_heads} key and value heads evenly",
            )
        self.pattern.check_heads(num_heads)
        self._check_pattern()
        query_head_dim, value_head_dim = query_key_dim // num_heads, value_dim // num_heads
        if rotary is not None and query_head_dim % 2:
            raise ConfigurationError(
                "rotary-width", f"rotary positions turn pairs of features, but query heads are {query_head_dim} wide"
            )
        self.implementation = implementation
        self.rotary, self.scale = rotary, scale
        kept_key_dim, kept_value_dim = (width * self.num_key_value_heads for width in (query_head_dim, value_head_dim))
        self.query = Linear(hidden_size, query_key_dim, bias=bias)
        self.key = Linear(hidden_size, kept_key_dim, bias=bias)
        self.value = Linear(hidden_size, kept_value_dim, bias=bias)
        self.index = self._index_branch(hidden_size, index_dim) if index_dim else None
        self.output: nn.Linear = ResidualLinear(value_dim, hidden_size, bias=bias)
        self.global_projections = None if global_projections is None else _check_places(global_projections)
        if global_projections is not None:
            self.global_query = Linear(hidden_size, query_key_dim, bias=bias)
            self.global_key = Linear(hidden_size, kept_key_dim, bias=bias)
            self.global_value = Linear(hidden_size, kept_value_dim, bias=bias)

    def _index_branch(self, hidden_size: int, width: int) -> IndexBranch:
        if not self.pattern.chooses or bounds_of(self.pattern).chosen.score not in SCORES:
            raise ConfigurationError(
                "index-without-choice",
                f"index_dim {width} is for patterns with selected(...) and a score of {', '.join(SCORES)},"
                f" got {self.pattern}",
            )
        return IndexBranch(hidden_size, self.num_key_value_heads, width, rotary=self.rotary)

    def _check_pattern(self) -> None:
        require_self_attention(self.pattern, "self-attention")

    def forward(
        self,
        hidden: torch.Tensor,
        *,
        rows: Rows | None = None,
        cache: KeyCache | None = None,
        dropout: Dropout | None = None,
        **score_terms: Any,
    ) -> torch.Tensor:
        """[B, N, hidden_size] -> [B, N, hidden_size], in the dtype of the weights.

        rows     the positions of the tokens: which are real, of which documents and segments, and which follow the
                 cache. By default each row is one sequence, after the tokens in the cache. Within `sequence_parallel`,
                 these are the tokens of one shard.
        cache    this layer of a PatternCache; the new tokens are added to it
        dropout  dropout of the allowed pairs, as in `attend`; not together with a cache
        score_terms  `bias`, a bias by distance as in `Terms`; and the terms of a subclass

        Raises ConfigurationError for arguments that exclude each other: a cache with documents, segments, masks or
        dropout, and global projections with documents, segments or a cache.
        """
        (hidden,) = autocast(hidden)  # once, not for each projection
        rows = rows_of(hidden, cache=cache) if rows is None else rows
        self._check(rows, cache, dropout)
        heads = self._project(hidden, rows.positions, (self.query, self.key, self.value))
        tokens, keys = rows.tokens, heads.k
        if self.index is not None:
            index = score_terms["index"] = self.index(hidden, rows.positions)
            keys = keys if cache is None else torch.cat([keys, index.k], dim=-1)  # a cache keeps both together
        kept = cache.extend(keys, heads.v, tokens) if cache is not None and tokens is not None else []
        if tokens is not None and tokens.before.columns:
            mixed = self._read_kept(heads.q, kept, tokens, **score_terms)
        else:
            mixed = self._attend(heads, rows, dropout, **score_terms)
            if self.global_projections is not None:
                apart = None if dropout is None else dropout.shifted(SECOND_READING)
                mixed = self._ask_globally(mixed, hidden, rows, apart)
        return self.output(mixed.transpose(1, 2).flatten(2))

    def _project(
        self,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        projections: tuple[nn.Linear, nn.Linear, nn.Linear],
        asking: torch.Tensor | None = None,
    ) -> Heads:
        """Queries, keys and values by three projections; only the columns `asking`, if given, have a query."""
        query, key, value = projections
        q = self._split(query(hidden if asking is None else hidden[:, asking]), self.num_heads)
        k = self._split(key(hidden), self.num_key_value_heads)
        v = self._split(value(hidden), self.num_key_value_heads)
        if self.rotary is not None:
            turns = self.rotary.turns(positions, q.shape[-1], q.dtype)
            q = turn(q, *(turns if asking is None else (angles[:, :, asking] for angles in turns)))
            k = turn(k, *turns)
        return Heads(q, k, v)

    def _attend(
        self,
        heads: Heads,
        rows: Rows,
        dropout: Dropout | None,
        bias: Bias | None = None,
        index: Index | None = None,
        **score_terms: Any,
    ) -> torch.Tensor:
        """[B, H, N, Dv]: what each query reads of its own row or document, without a cache."""
        terms = None if dropout is None and bias is None else Terms(bias=bias, dropout=dropout)
        options = self._options if index is None else self._options | {"index": index}
        mixed: torch.Tensor = rows.attend(*heads, self.pattern, terms=terms, **options)
        if index is not None and self.training and torch.is_grad_enabled():
            rows.penalties.append(rows.index_loss(index, heads.q, heads.k, self.pattern, self.scale))
        return mixed

    @property
    def _options(self) -> Any:
        """What every call of `attend` is told."""
        return {"scale": self.scale, "implementation": self.implementation}

    def _read_kept(
        self,
        q: torch.Tensor,
        kept: list[Kept],
        tokens: NewTokens,
        bias: Bias | None = None,
        index: Index | None = None,
        **score_terms: Any,
    ) -> torch.Tensor:
        """[B, H, N, Dv]: what the queries of new tokens read of what a cache has kept."""
        terms = None if bias is None else Terms(bias=bias)

        def read_part(asked: torch.Tensor, part: Kept) -> tuple[torch.Tensor]:
            part, choice = (part, {}) if index is None else _chosen(part, index)
            return (self._read_part(asked, part, tokens, terms, **choice),)

        return read(q, kept, read_part)[0]

    def _read_part(
        self, asked: torch.Tensor, part: Kept, tokens: NewTokens, terms: Terms | None, **options: Any
    ) -> Any:
        """What queries [b, h, N, D] of these tokens read of a part of a cache; options and results as in `attend`."""
        options = self._options | options
        if terms is None:
            return part.attend(asked, **options)
        if part.heads is not None and terms.bias is not None:
            terms = replace(terms, bias=_OfHeads(terms.bias, list(part.heads)))
        if part.allowed is None:
            return part.attend(asked, terms=terms, **options)
        places = tokens.positions(asked.device).clamp(min=0)
        places = places if part.rows is None or len(places) == 1 else places[list(part.rows)]
        options |= {"positions": (places, part.key_positions()), "implementation": "auto"}  # few decode with terms
        return part.attend(asked, terms=terms, **options)

    def _ask_globally(
        self, mixed: torch.Tensor, hidden: torch.Tensor, rows: Rows, dropout: Dropout | None
    ) -> torch.Tensor:
        """`mixed` [B, H, N, Dv] with the rows of the global tokens replaced."""
        places = self.global_projections or ()
        columns = rows.columns_of(places)
        if columns is None:
            return mixed
        asking = torch.arange(hidden.shape[1], device=hidden.device)[columns]
        projections = self.global_query, self.global_key, self.global_value
        heads = self._project(hidden, rows.positions, projections, asking=asking)
        terms = None if dropout is None else Terms(dropout=dropout)
        return mixed.index_copy(2, asking, rows.attend_everything(*heads, places, terms=terms, **self._options))

    def _check(self, rows: Rows, cache: KeyCache | None, dropout: Dropout | None) -> None:
        """Raises ConfigurationError for what does not go together."""
        if self.global_projections is not None and (rows.documents is not None or rows.segments is not None):
            raise ConfigurationError(
                "global-projections-segments",
                "global_projections read every key of their row and cannot be used with documents or segments: give"
                " each document a row",
            )
        if cache is None:
            return
        if rows.documents is not None:
            raise ConfigurationError(
                "cache-with-documents", "a cache continues one sequence in each row, and cannot be used with documents"
            )
        if dropout is not None:
            raise ConfigurationError(
                "dropout-with-cache", "dropout in attention is for training and cannot be used with a cache"
            )
        if rows.segments is not None or rows.real is not None:
            raise ConfigurationError("mask-with-cache", "key_mask and segments cannot be used with a cache")
        if rows.tokens is None:
            raise ConfigurationError(
                "rows-without-cache", "rows that follow the tokens of a cache must come from rows_of(..., cache=cache)"
            )
        if self.global_projections is not None:
            raise ConfigurationError(
                "global-projections-cache", "global_projections read the future and cannot be used with a cache"
            )
        if cache.pattern != self.pattern:
            raise ConfigurationError(
                "cache-of-other-pattern",
                f"the cache is for the pattern {cache.pattern}, but the layer has {self.pattern}",
            )

    @staticmethod
    def _split(projected: torch.Tensor, heads: int) -> torch.Tensor:
        """[B, N, heads * D] -> [B, heads, N, D]."""
        return projected.unflatten(-1, (heads, -1)).transpose(1, 2)

    def extra_repr(self) -> str:
        return f"{self.num_heads} heads, {self.num_key_value_heads} of keys and values, {self.pattern}"


def _chosen(part: Kept, index: Index) -> tuple[Kept, dict[str, Any]]:
    """A part of a cache without the index keys that were kept behind its keys, and what the queries chose by them."""
    width = index.k.shape[-1]
    asked, keys = index.q[index_of(part.rows, index.q.device)], part.keys[..., -width:]
    choice = select(asked, keys, part.pattern, query_offset=part.query_offset)
    return part._replace(keys=part.keys[..., :-width]), {"choice": choice}


@dataclass(frozen=True, eq=False)
class _OfHeads:
    """The bias of some of the heads."""

    bias: Bias
    heads: list[int]

    def table(self, first: int, past: int) -> torch.Tensor:
        table = self.bias.table(first, past)
        return table if len(table) == 1 else table[self.heads]


def _check_places(places: Sequence[int]) -> tuple[int, ...]:
    if not places or any(not isinstance(place, int) or place < 0 for place in places) or len(set(places)) < len(places):
        raise ConfigurationError(
            "global-projections",
            f"global_projections must be distinct positions, counted from 0, got {list(places)}",
        )
    return tuple(places)
