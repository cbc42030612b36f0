"""Terms added to the scores of attention, and changes of its weights.

    score(q, k) = softcap(scale * (q . (k + p(d)))) + bias(d),  d = position of the query - position of the key

and the weights are a softmax over the keys that may be read and, where there are sinks, over one more score per head.
A term is a value; tensors in it may be parameters, and get their gradients. All kernels compute the same terms, or
refuse them.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from asterism.errors import KernelError, shown
from asterism.kernels.checks import DTYPES, check_types, crossing

_MOST = 2**62
"""Distances are less than this."""


class Bias(Protocol):
    """A bias added to each score, by head and distance."""

    def table(self, first: int, past: int) -> Tensor:
        """The bias at distances first, first + 1, ..., past - 1: [H or 1, past - first], float32 or wider.

        It may be differentiable. A key at a distance of bias -inf is not read.
        """


@dataclass(frozen=True, eq=False)
class Alibi:
    """-slope * |d| for slopes [H] (Press et al. 2022, Train Short, Test Long, section 3)."""

    slopes: Tensor

    def __post_init__(self) -> None:
        _check_shape("the slopes of Alibi", self.slopes, "[heads]", 1)

    def table(self, first: int, past: int) -> Tensor:
        """[H, past - first], float32 or wider: the bias of each distance from `first` on."""
        return -_wide(self.slopes)[:, None] * _distances(first, past, self.slopes).abs()


@dataclass(frozen=True, eq=False)
class Buckets:
    """Learned biases of T5, one for each bucket of distances (Raffel et al. 2020, section 2.1).

    `values` is [buckets, H], as T5 keeps it. With `bidirectional` one half of the buckets is for keys after the query;
    without, these share the bucket of distance 0. Half of the rest are for one distance each, the others for ranges
    that grow up to `max_distance`, and the last one for all beyond.
    """

    values: Tensor
    bidirectional: bool = True
    max_distance: int = 128

    def __post_init__(self) -> None:
        _check_shape("the table of Buckets", self.values, "[buckets, heads]", 2)
        exact = len(self.values) // (4 if self.bidirectional else 2)
        if exact < 1 or not (isinstance(self.max_distance, int) and exact < self.max_distance < _MOST):
            raise KernelError(
                "bucket-range",
                f"Buckets needs at least {4 if self.bidirectional else 2} buckets, and a max_distance above the"
                f" number of buckets for one distance each: got {len(self.values)} and {shown(self.max_distance)}",
            )

    def table(self, first: int, past: int) -> Tensor:
        """[H, past - first], float32 or wider: the bias of each distance from `first` on."""
        return _wide(self.values)[self.buckets(_distances(first, past, self.values))].T

    def buckets(self, distances: Tensor) -> Tensor:
        """The bucket of each distance, int64."""
        count, start = len(self.values), torch.zeros_like(distances)
        if self.bidirectional:
            count //= 2
            start = torch.where(distances < 0, count, 0)
            distances = distances.abs()
        distances = distances.clamp(min=0)
        exact = count // 2
        # In float32 and in this order, because T5 does so: elsewhere a distance at a border would change its bucket.
        growth = torch.log(distances.clamp(min=1).float() / exact) / math.log(self.max_distance / exact)
        ranges = (exact + (growth * (count - exact)).long()).clamp(max=count - 1)
        return start + torch.where(distances < exact, distances, ranges)


@dataclass(frozen=True, eq=False)
class SoftSpan:
    """log m(d), m(d) = clamp((reach + 1 - d) / ramp + 1, 0, 1) for a reach per head, [H] (Sukhbaatar et al. 2019).

    m is 1 up to reach + 1, then falls over `ramp` tokens; where it is 0, a key is not read.
    """

    reach: Tensor
    ramp: int

    def __post_init__(self) -> None:
        _check_shape("the reach of SoftSpan", self.reach, "[heads]", 1)
        if not (isinstance(self.ramp, int | float) and 1 <= self.ramp < _MOST):
            raise KernelError(
                "ramp-range",
                f"the ramp of SoftSpan must be at least 1 token and less than 2^62, got {shown(self.ramp)}",
            )

    def weights(self, distances: Tensor) -> Tensor:
        """m, in float32 or wider, for int64 distances [..., M, K]: [..., H, M, K]."""
        return ((_wide(self.reach)[:, None, None] + 1 - distances) / self.ramp + 1).clamp(0, 1)

    def table(self, first: int, past: int) -> Tensor:
        """[H, past - first], float32 or wider: log m for each distance from `first` on, -inf where m is 0."""
        weights = self.weights(_distances(first, past, self.reach)[None])[:, 0]
        unread = weights <= 0
        return weights.masked_fill(unread, 1).log().masked_fill(unread, -math.inf)


@dataclass(frozen=True, eq=False)
class DistanceTable:
    """A bias for each distance, values [H or 1, R] at distances first, first + 1, ..., first + R - 1.

    The pattern must not read other distances.
    """

    values: Tensor
    first: int = 0

    def __post_init__(self) -> None:
        _check_shape("the values of DistanceTable", self.values, "[heads or 1, distances]", 2)
        if not (isinstance(self.first, int | torch.SymInt) and -_MOST < self.first < _MOST):
            raise KernelError(
                "first-distance",
                f"the first distance of DistanceTable must be a whole number between -2^62 and 2^62, got"
                f" {shown(self.first)}",
            )

    def known(self, first: int, past: int) -> tuple[int, int]:
        """The distances from first to past - 1 that have a value, as (first, past)."""
        start = max(first, self.first)
        return start, max(start, min(past, self.first + self.values.shape[1]))

    def table(self, first: int, past: int) -> Tensor:
        """[H or 1, past - first], float32 or wider: the values from distance `first` on."""
        return _wide(self.values)[:, first - self.first : past - self.first]


@dataclass(frozen=True)
class Dropout:
    """Dropout of pairs after the softmax: dropped weights become 0, the others are divided by 1 - rate.

    The choice depends only on the seed and the positions, not on the implementation: with Philox 4x32-10 (philox.py),
    key = (lower, upper 32 bits of seed) and counter = (position of the query, position of the key // 4, query head, row
    of the batch), a pair is dropped if word number (position of the key % 4) is less than round(rate * 2^32). The
    log-sum-exp does not change. A model uses a new seed for every step and layer.
    """

    rate: float
    seed: int

    def __post_init__(self) -> None:
        if not (isinstance(self.rate, int | float) and 0 <= self.rate < 1):
            raise KernelError(
                "dropout-rate", f"the rate of dropout must be at least 0 and less than 1, got {shown(self.rate)}"
            )
        if not (isinstance(self.seed, int | torch.SymInt) and 0 <= self.seed < 2**64):
            raise KernelError(
                "dropout-seed", f"the seed of dropout must be a whole number in [0, 2^64), got {shown(self.seed)}"
            )

    def shifted(self, by: int) -> "Dropout":
        """The same rate with a seed greater by `by`."""
        return Dropout(self.rate, self.seed + by)


@dataclass(frozen=True, eq=False)
class Terms:
    """Terms of the score; None leaves a term out.

    bias      Alibi, Buckets, SoftSpan, DistanceTable, or another object with their method `table`
    relative  [R, D]: row d is p(d), a vector added to the keys at distance d, for all heads (Shaw et al. 2018); the
              pattern must read no key after its query and none at distance R or more
    softcap   s becomes softcap * tanh(s / softcap), before the bias is added (Gemma 2)
    sinks     [H]: one more score per head in the denominator of the softmax, without a value (GPT-OSS). It is part of
              the log-sum-exp; a query that may read nothing has output 0, and its log-sum-exp is the sink.
    dropout   Dropout(rate, seed)

    Raises KernelError for any other type or value.
    """

    bias: Bias | None = None
    relative: Tensor | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    dropout: Dropout | None = None

    def __post_init__(self) -> None:
        if self.softcap is not None and not (isinstance(self.softcap, int | float) and 1e-30 <= self.softcap <= 1e30):
            # Beyond, float32 has no such number or none to divide by.
            raise KernelError(
                "softcap-range", f"softcap must be greater than 0, from 1e-30 to 1e30, got {shown(self.softcap)}"
            )
        if self.bias is not None and (isinstance(self.bias, type) or not callable(getattr(self.bias, "table", None))):
            seen = f"the class {self.bias.__name__}" if isinstance(self.bias, type) else f"a {type(self.bias).__name__}"
            raise KernelError(
                "not-a-bias",
                "bias must be Alibi, Buckets, SoftSpan or DistanceTable, or an object with a method table(first,"
                f" past); got {seen}",
            )
        for name, tensor, dimensions in (("relative", self.relative, 2), ("sinks", self.sinks, 1)):
            if tensor is not None:
                _check_shape(name, tensor, "[distances, head_dim]" if dimensions == 2 else "[heads]", dimensions)
        if self.dropout is not None and not isinstance(self.dropout, Dropout):
            raise KernelError("not-a-dropout", f"dropout must be Dropout(rate, seed), got {shown(self.dropout)}")


def check_by_distance(terms: Terms | None, text: str) -> None:
    """Raises KernelError for tables by distance where queries do not stand one token apart."""
    by_distance = isinstance(terms, Terms) and (terms.bias is not None or terms.relative is not None)
    if by_distance and not crossing(text).by_ones:
        raise KernelError(
            "terms-across",
            "a bias and relative positions need tokens one position apart, but the pattern has part(...), or"
            " across(...) with a step other than 1: leave them out of terms",
        )


class Expanded(NamedTuple):
    """The terms as kernels get them; see `Operands`."""

    bias: Tensor | None = None
    relative: Tensor | None = None
    sinks: Tensor | None = None
    first_distance: int = 0
    softcap: float = 0.0
    dropout: float = 0.0
    seed: int = 0


def expanded(terms: Terms | None, q: Tensor, k: Tensor, query_offset: int) -> Expanded:
    """The terms for queries q [B, H, Nq, D] and keys k [B, Hkv, Nk, D] of any of the dtypes of `attend`.

    Raises KernelError for those that do not fit q.
    """
    if terms is None:
        return Expanded()
    if not isinstance(terms, Terms):
        raise KernelError("not-terms", f"terms must be Terms(...), got a {type(terms).__name__}")
    wide = torch.promote_types(q.dtype, torch.float32)
    first, past = query_offset - k.shape[2] + 1, query_offset + q.shape[2]
    first, bias = _bias(terms.bias, first, max(first, past), q)
    relative, sinks, dropout = terms.relative, terms.sinks, terms.dropout
    _check_fits("relative", relative, q, -1, "features", "head_dim of q")
    _check_fits("sinks", sinks, q, 1, "heads", "heads of q")
    # A schema has signed integers only.
    seed = 0 if dropout is None else dropout.seed if dropout.seed < 2**63 else dropout.seed - 2**64
    return Expanded(
        bias=None if bias is None else bias.to(wide),
        relative=None if relative is None else relative[: max(past, 0)].to(q.dtype),
        sinks=None if sinks is None else sinks.to(wide),
        first_distance=first,
        softcap=float(terms.softcap or 0),
        dropout=0.0 if dropout is None else float(dropout.rate),
        seed=seed,
    )


def _bias(bias: Bias | None, first: int, past: int, q: Tensor) -> tuple[int, Tensor | None]:
    """The table of a bias and its first distance."""
    if bias is None:
        return 0, None
    if isinstance(bias, DistanceTable):
        first, past = bias.known(first, past)
    table: Any = bias.table(first, past)
    name = type(bias).__name__
    if not isinstance(table, Tensor) or table.ndim != 2 or table.shape[1] != past - first:
        seen = list(table.shape) if isinstance(table, Tensor) else f"a {type(table).__name__}"
        raise KernelError(
            "table-shape", f"{name}.table({first}, {past}) must give [heads or 1, {past - first}], got {seen}"
        )
    check_types(**{f"{name}.table(...)": table})
    if table.dtype.is_complex:
        raise KernelError("table-dtype", f"{name}.table(...) must give real numbers, got {table.dtype}")
    if table.shape[0] not in (1, q.shape[1]):
        raise KernelError("bias-heads", f"bias {name} is for {table.shape[0]} heads, but q has {q.shape[1]}")
    if table.device != q.device:
        raise KernelError("bias-device", f"bias {name} is on {table.device}, but q is on {q.device}")
    return first, table


def _check_fits(name: str, tensor: Tensor | None, q: Tensor, axis: int, what: str, of: str) -> None:
    if tensor is None:
        return
    if tensor.shape[-1] != q.shape[axis]:
        raise KernelError(
            "term-shape", f"{name} {list(tensor.shape)} is for {tensor.shape[-1]} {what}, but {of} is {q.shape[axis]}"
        )
    if tensor.device != q.device:
        raise KernelError("term-device", f"{name} is on {tensor.device}, but q is on {q.device}")


def _check_shape(name: str, tensor: object, expected: str, dimensions: int) -> None:
    if not isinstance(tensor, Tensor):
        raise KernelError("not-a-tensor", f"{name} must be a torch.Tensor {expected}, got a {type(tensor).__name__}")
    check_types(**{name: tensor})
    if tensor.ndim != dimensions or tensor.dtype not in DTYPES:
        raise KernelError(
            "term-form", f"{name} must be floating-point numbers {expected}, got {list(tensor.shape)} of {tensor.dtype}"
        )


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _distances(first: int, past: int, like: Tensor) -> Tensor:
    return torch.arange(first, past, device=like.device)
