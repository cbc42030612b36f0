"""The all-attention layer (Sukhbaatar et al. 2019, Augmenting Self-attention with Persistent Memory).

Every head has N learned keys and values that stand at no position and that every query reads. They replace the
feed-forward layer: one softmax runs over the context, by any pattern, and over them. The context is attended to as
usual, the persistent vectors as well, and the two merge exactly by their log-sum-exp.

Two options of the authors' code change scores by distance: relative positions, and an adaptive span per head.
"""

import math
from typing import Any

import torch
from torch import nn

from asterism.errors import ConfigurationError
from asterism.kernels import Dropout, SoftSpan, Terms, attend
from asterism.kernels.merging import joined
from asterism.layers.attention import SECOND_READING, Heads, SparseAttention
from asterism.layers.kept import Kept, NewTokens, read
from asterism.layers.linear import Linear
from asterism.layers.rows import Rows
from asterism.patterns import Pattern, window

_REACH_STEP = 32
"""Tokens by which the reach of an adaptive span grows or shrinks before there is another plan."""


class PersistentVectors(nn.Module):
    """N learned keys and values per head. They are kept as the authors keep them, with unit norm in expectation: keys
    from N(0, 1 / sqrt(head_dim)), read times sqrt(head_dim), values from N(0, 1 / sqrt(N)), read times sqrt(N).
    """

    def __init__(self, heads: int, count: int, head_dim: int, value_dim: int, implementation: str) -> None:
        super().__init__()
        self.implementation = implementation
        self.keys = nn.Parameter(torch.empty(heads, count, head_dim))
        self.values = nn.Parameter(torch.empty(heads, count, value_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.keys, std=1 / math.sqrt(self.keys.shape[2]))
        nn.init.normal_(self.values, std=1 / math.sqrt(self.values.shape[1]))

    def forward(
        self, q: torch.Tensor, context: torch.Tensor, context_lse: torch.Tensor, dropout: Dropout | None = None
    ) -> torch.Tensor:
        """What q [B, H, M, D] read from the context, [B, H, M, Dv] with its log-sum-exp [B, H, M], joined with these;
        in the dtype of q, and the log-sum-exp in float32 or float64.

        A query that read nothing, whose log-sum-exp is -inf, reads these alone. `dropout` is for these.
        """
        memory, memory_lse = self._read(q, dropout)
        _, (of_context, of_memory) = joined((context_lse, memory_lse))
        return (of_context[..., None] * context + of_memory[..., None] * memory).to(q.dtype)

    def _read(self, q: torch.Tensor, dropout: Dropout | None) -> tuple[torch.Tensor, torch.Tensor]:
        """(out [B, H, M, Dv], lse [B, H, M]). The queries of a head, over the whole batch, are cut into runs no longer
        than the keys, and run as queries that share a key head: so `attend` sums all gradients of a key in one place.
        """
        batch, heads, tokens, width = q.shape
        count = self.keys.shape[1]
        k = (self.keys * math.sqrt(width)).to(q.dtype)[None]
        v = (self.values * math.sqrt(count)).to(q.dtype)[None]
        runs = max(-(-batch * tokens // count), 1)
        longest = -(-batch * tokens // runs)
        asked = q.transpose(0, 1).flatten(1, 2)
        asked = nn.functional.pad(asked, (0, 0, 0, runs * longest - batch * tokens))
        asked = asked.unflatten(1, (runs, longest)).flatten(0, 1)[None]
        terms = None if dropout is None else Terms(dropout=dropout)
        out, lse = attend(asked, k, v, "dense()", return_lse=True, terms=terms, implementation=self.implementation)
        out, lse = (x[0].unflatten(0, (heads, runs)).flatten(1, 2)[:, : batch * tokens] for x in (out, lse))
        return tuple(x.unflatten(1, (batch, tokens)).transpose(0, 1) for x in (out, lse))

    def extra_repr(self) -> str:
        return f"{self.keys.shape[1]} per head"


class AdaptiveSpan(nn.Module):
    """The learned span of each head, a fraction z of the largest span (Sukhbaatar et al. 2019, Adaptive Attention
    Span).

    A key at distance d counts with weight clamp((z * span + 1 - d) / ramp + 1, 0, 1). z starts at 0 and is projected
    onto [0, 1] whenever it is used, in place, which is the authors' clamp after each update.
    """

    def __init__(self, heads: int, span: int, ramp: int) -> None:
        super().__init__()
        self.span, self.ramp = span, ramp
        self.shares = nn.Parameter(torch.zeros(heads))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.shares)

    def forward(self) -> SoftSpan:
        self.shares.data.clamp_(0, 1)
        return SoftSpan(self.shares * self.span, self.ramp)

    def penalty(self) -> torch.Tensor:
        """The mean span over the heads, in tokens, a scalar in the dtype of the weights: a model adds it to its loss,
        times a small factor."""
        return self().reach.mean()

    def extra_repr(self) -> str:
        return f"span={self.span}, ramp={self.ramp}"


class PersistentAttention(SparseAttention):
    """Multi-head attention over a context, by a pattern, and over persistent vectors, in one softmax.

    persistent_vectors  how many each head has
    span                the largest distance q - k that is read; `pattern` becomes `within_span(pattern, span)`. Only
                        for causal patterns.
    relative_positions  whether scores are q . (k + p), p a row of RelativePositions for the distance; `forward` is
                        given the table, because all layers share it. Needs a span.
    adaptive_span_ramp  R: every head learns how far it reads, within the span, with a ramp of R tokens at the end.
                        Needs a span. None: no adaptive span.

    The other arguments are those of SparseAttention. Projections have no bias and dropout is left to the block.
    Distance changes the scores as terms of `attend`. Unlike the authors, we add no 1e-8 to the sum of the weights.

    Raises ConfigurationError for numbers below 1, options without the span they need, and a span for a pattern that is
    not causal; and what SparseAttention raises.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        pattern: Pattern | str,
        persistent_vectors: int,
        *,
        num_key_value_heads: int | None = None,
        query_key_dim: int | None = None,
        implementation: str = "auto",
        span: int | None = None,
        relative_positions: bool = False,
        adaptive_span_ramp: int | None = None,
    ) -> None:
        super().__init__(
            hidden_size,
            num_heads,
            pattern,
            num_key_value_heads=num_key_value_heads,
            query_key_dim=query_key_dim,
            implementation=implementation,
            bias=False,
        )
        numbers = {"persistent_vectors": persistent_vectors, "span": span, "adaptive_span_ramp": adaptive_span_ramp}
        for name, number in numbers.items():
            if number is not None and number < 1:
                raise ConfigurationError("at-least-one", f"{name} must be at least 1, got {number}")
        if span is None and relative_positions:
            raise ConfigurationError(
                "positions-need-span", "relative positions need a span, the largest distance that is read"
            )
        if span is None and adaptive_span_ramp is not None:
            raise ConfigurationError(
                "adaptive-needs-span", "an adaptive span needs a span, the largest distance that is read"
            )
        if span is not None:
            self.pattern = within_span(self.pattern, span)
        self.span, self.relative_positions = span, relative_positions
        # Its branch is the only one of its block, so it is not made smaller at the start as a ResidualLinear is.
        self.output = Linear(hidden_size, hidden_size, bias=False)
        head_dim, value_dim = self.query.out_features // num_heads, hidden_size // num_heads
        self.persistent = PersistentVectors(num_heads, persistent_vectors, head_dim, value_dim, implementation)
        self.adaptive_span = None
        if span is not None and adaptive_span_ramp is not None:
            self.adaptive_span = AdaptiveSpan(num_heads, span, adaptive_span_ramp)

    def forward(self, hidden: torch.Tensor, *, relative: torch.Tensor | None = None, **arguments: Any) -> torch.Tensor:
        """[B, N, hidden_size] -> [B, N, hidden_size].

        `relative` [span + 1, head_dim] is the table of RelativePositions, given if and only if the layer has relative
        positions; the other arguments are those of SparseAttention. A cache forgets by `self.pattern`, which has the
        span in it.
        """
        self._check_table(None if relative is None else list(relative.shape))
        return super().forward(hidden, relative=relative, **arguments)

    def _check_table(self, shape: list[int] | None) -> None:
        if not self.relative_positions:
            if shape is not None:
                raise ConfigurationError(
                    "no-relative-positions", f"this layer has no relative positions, but was given a table {shape}"
                )
            return
        assert self.span is not None  # the constructor has seen to it
        if shape != (expected := [self.span + 1, self.persistent.keys.shape[2]]):
            raise ConfigurationError(
                "relative-table", f"relative positions need a table {expected}, got {shape or 'none'}"
            )

    def _attend(  # type: ignore[override]
        self,
        heads: Heads,
        rows: Rows,
        dropout: Dropout | None,
        relative: torch.Tensor | None = None,
        **score_terms: Any,
    ) -> torch.Tensor:
        pattern, span = self._reach(self.pattern)
        has_terms = self._uses_distance or dropout is not None
        terms = Terms(bias=span, relative=relative, dropout=dropout) if has_terms else None
        context = rows.attend(*heads, pattern, return_lse=True, terms=terms, implementation=self.implementation)
        return self.persistent(heads.q, *context, None if dropout is None else dropout.shifted(SECOND_READING))

    def _read_kept(  # type: ignore[override]
        self,
        q: torch.Tensor,
        kept: list[Kept],
        tokens: NewTokens,
        relative: torch.Tensor | None = None,
        **score_terms: Any,
    ) -> torch.Tensor:
        span = None if self.adaptive_span is None else self.adaptive_span()
        terms = Terms(bias=span, relative=relative) if self._uses_distance else None

        def compute(asked: torch.Tensor, part: Kept) -> tuple[torch.Tensor, ...]:
            out, lse = self._read_part(asked, part, tokens, terms, return_lse=True)
            return out, lse

        return self.persistent(q, *read(q, kept, compute))

    @property
    def _uses_distance(self) -> bool:
        return self.relative_positions or self.adaptive_span is not None

    def _reach(self, pattern: Pattern) -> tuple[Pattern, SoftSpan | None]:
        """What is read now: the pattern, cut about where the furthest-reading head has weight 0, and the soft span.

        It is cut at multiples of _REACH_STEP, because a plan is compiled for each; the span itself says what is read.
        """
        if self.adaptive_span is None:
            return pattern, None
        span = self.adaptive_span()
        reach = math.ceil(span.reach.max().item()) + span.ramp
        return within_span(pattern, -(-reach // _REACH_STEP) * _REACH_STEP), span


def within_span(pattern: Pattern, span: int) -> Pattern:
    """Restrict a causal pattern to keys at most `span` tokens before the query.

    Raises ConfigurationError when the pattern is not causal.
    """
    if not pattern.is_causal:
        raise ConfigurationError(
            "span-needs-causal",
            f"a span of {span} tokens is for causal patterns, but {pattern} may read the future; write ({pattern}) &"
            " causal(), or leave the span out",
        )
    return pattern & window(left=span)
