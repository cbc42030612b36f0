"""The entry of layers to attention, for sequences on one device or on several.

Tensors are of the dtypes that `asterism.attend` takes.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from asterism import kernels
from asterism.compiler.devices import Communication, RowShape, Shards, communicate, refusal
from asterism.errors import ConfigurationError, KernelError, shown
from asterism.kernels.attend import check_options
from asterism.kernels.checks import as_they_are, autocast, check_scale, check_tensors, check_types
from asterism.kernels.merging import Result, merged
from asterism.kernels.packed import pattern_of_documents, read_bounds
from asterism.kernels.terms.terms import Terms, check_by_distance
from asterism.kernels.transforms import is_transformed
from asterism.parallel.agreement import agree, exchanging, in_words, refuse
from asterism.parallel.compute import Call
from asterism.parallel.context import SequenceParallel, sharding
from asterism.parallel.exchange import tied, to_all
from asterism.parallel.key_marks import Marks
from asterism.parallel.ways import results_of
from asterism.patterns import Pattern
from asterism.patterns.by_text import by_text
from asterism.patterns.pattern import resolve_lengths


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pattern: Pattern | str,
    *,
    queries: Shards | None = None,
    keys: Shards | None = None,
    **options: Any,
) -> Any:
    """Compute `asterism.attend`; within `sequence_parallel`, over the shards of all ranks.

    Within `sequence_parallel`, q [B, H, Nq, D], k [B, Hkv, Nk, D] and v [B, Hkv, Nk, Dv] are those of this rank's
    tokens; `queries` and `keys` are the shards of all ranks (by default, ranks exchange their numbers of tokens). The
    pattern is that of the whole sequence. Options and results are those of `asterism.attend`; `key_mask` and `segments`
    are those of this rank's keys.

    Every rank calls it with the same arguments but its own shards. If their calls differ, or one rank fails, every rank
    raises ConfigurationError with the rank and the cause, before any row moves. If a group has no backend for the CPU
    (nccl alone), comparing calls waits for the GPU, so a rank compares only calls that are new to it in this group; if
    ranks then differ in calls that both have made before, the GPU stops with an assertion. Raises LostRankError if a
    rank never makes the call.
    """
    context = sharding()
    if context is None:
        return kernels.attend(q, k, v, pattern, **options)
    return _untraced()(context, q, k, v, pattern, queries, keys, options)


@dataclass(frozen=True, eq=False)
class _ShardedOptions:
    """Those of `asterism.attend`."""

    key_mask: Tensor | None = None
    segments: Tensor | None = None
    scale: float | None = None
    return_lse: bool = False
    implementation: str = "auto"
    query_offset: int | None = None
    cu_seqlens: Tensor | Sequence[int] | None = None
    terms: Terms | None = None


def _options(given: dict[str, Any]) -> _ShardedOptions:
    """Raises the error of `asterism.attend` for a name that is none."""
    if unknown := given.keys() - {field.name for field in fields(_ShardedOptions)}:
        raise TypeError(f"attend() got an unexpected keyword argument {min(unknown)!r}")
    return _ShardedOptions(**given)


def _untraced() -> Callable[..., Any]:
    """What computes; graphs of torch.compile end before it. Only what compiles has imported the compiler."""
    return torch.compiler.disable(_attend) if "torch._dynamo" in sys.modules else _attend


def _attend(
    context: SequenceParallel,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pattern: Pattern | str,
    queries: Shards | None,
    keys: Shards | None,
    given: dict[str, Any],
) -> Any:
    try:
        asked = _checked(context, q, k, v, pattern, queries, keys, _options(given))
    except Exception as error:
        refuse(context, error, q.device if isinstance(q, Tensor) else None)
        raise
    own = asked.q.shape[2], asked.k.shape[2]
    wants_tokens = queries is None or keys is None
    tokens = agree(context, asked.words(context), own, asked.q.device, wants_numbers=wants_tokens)
    if tokens is not None:
        told = [Shards.of_sizes(tuple(sizes)) for sizes in tokens.T.tolist()]
        queries, keys = (told[0] if queries is None else queries), (told[1] if keys is None else keys)
    assert queries is not None and keys is not None, "either given, or read"
    with exchanging():
        return _attended(context, asked, queries, keys)


def _attended(context: SequenceParallel, asked: "_Asked", queries: Shards, keys: Shards) -> Any:
    """The results, as `attend` gives them, of what all ranks were asked; what is refused here, all of them refuse."""
    q, k, v, rule, options = asked.q, asked.k, asked.v, asked.rule, asked.options
    if options.cu_seqlens is not None:
        lengths = queries.length, keys.length
        rule = by_text(pattern_of_documents(rule.text, options.cu_seqlens, lengths, q.device, options.query_offset))
    _, offset = resolve_lengths(rule, queries.length, keys.length, options.query_offset)
    if options.segments is not None and (rule.crosses or offset or queries != keys):
        raise KernelError(
            "segments-across",
            "segments are for self-attention, but the queries of cross attention belong to another sequence: choose"
            " keys with key_mask",
        )
    check_by_distance(options.terms, rule.text)
    shape = RowShape(q.shape[1], k.shape[1], q.shape[3], v.shape[3], q.element_size(), len(q))
    plan = communicate(rule, queries, keys, shape, offset)
    if plan.is_dense and not context.dense_exchange:
        raise ConfigurationError("exchange-refused", refusal(plan, shape))
    call = _call(context, plan, (q, k, v), options)
    drops = options.terms is not None and options.terms.dropout is not None
    with as_they_are(q):
        results = _with_all_keys(call, options.return_lse) if drops else _computed(call)
    return tuple(results) if options.return_lse else results[0]


@dataclass(frozen=True, eq=False)
class _Asked:
    """What a rank was asked: nothing of it can fail on this rank alone any more."""

    q: Tensor
    k: Tensor
    v: Tensor
    rule: Pattern
    queries: Shards | None
    keys: Shards | None
    options: _ShardedOptions

    def words(self, context: SequenceParallel) -> dict[str, str]:
        """What must be the same on all ranks: all that decides which rows move, or changes the meaning of the result.

        How a rank computes (`implementation`), and what it returns of it, is its own affair.
        """
        o, terms = self.options, self.options.terms or Terms()
        needing = [name for name in "qkv" if getattr(self, name).requires_grad and torch.is_grad_enabled()]
        said = {
            "call": "attention",
            "pattern": self.rule.text,
            "queries": "as many as ranks have" if self.queries is None else list(self.queries.sizes),
            "keys": "as many as ranks have" if self.keys is None else list(self.keys.sizes),
            "query_offset": o.query_offset,
            "cu_seqlens": o.cu_seqlens,
            "batch": len(self.q),
            "heads": self.q.shape[1],
            "key heads": self.k.shape[1],
            "features": f"{self.q.shape[3]} and {self.v.shape[3]}",
            "dtype": self.q.dtype,
            "device": self.q.device.type,
            "scale": o.scale,
            "key_mask": None if o.key_mask is None else "given",
            "segments": None if o.segments is None else o.segments.dtype,
            "bias": None if terms.bias is None else type(terms.bias).__name__,
            "relative": None if terms.relative is None else list(terms.relative.shape),
            "softcap": terms.softcap,
            "sinks": None if terms.sinks is None else "given",
            "dropout": terms.dropout,
            "dense_exchange": context.dense_exchange,
            "gradients": f"of {', '.join(needing) or 'none'}",
        }
        return {name: in_words(word) for name, word in said.items()}


def _checked(
    context: SequenceParallel,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pattern: Pattern | str,
    queries: Shards | None,
    keys: Shards | None,
    options: _ShardedOptions,
) -> _Asked:
    """What is wrong of this rank's own is said here, with whatever error: others may have been asked rightly."""
    if is_transformed():
        raise KernelError(
            "functional-in-shards",
            "within sequence_parallel attention supports neither torch.func (grad, vmap, jvp) nor forward-mode"
            " derivatives: use torch.autograd",
        )
    check_types(q=q, k=k, v=v, key_mask=options.key_mask, segments=options.segments)
    q, k, v = autocast(q, k, v)
    check_tensors(q, k, v, options.key_mask, options.segments)
    for name, shards, tokens in (("queries", queries, q.shape[2]), ("keys", keys, k.shape[2])):
        if shards is not None:
            _check_shards(context, name, shards, tokens)
    rule = by_text(pattern) if isinstance(pattern, str) else pattern
    rule.check_heads(q.shape[1])
    check_options(q, k, v, scale=options.scale, implementation=options.implementation, terms=options.terms)
    own: dict[str, Any] = {}
    if options.scale is not None:
        own["scale"] = check_scale(options.scale)
    if options.cu_seqlens is not None:
        own["cu_seqlens"] = read_bounds(options.cu_seqlens, q.device)
    return _Asked(q, k, v, rule, queries, keys, replace(options, **own))


def _check_shards(context: SequenceParallel, name: str, shards: Any, tokens: int) -> None:
    if not isinstance(shards, Shards):
        raise ConfigurationError(
            "not-shards", f"{name} must be Shards, such as Shards.even(tokens, ranks), got {shown(shards)}"
        )
    if shards.devices != context.ranks or shards.sizes[context.rank] != tokens:
        raise ConfigurationError(
            "shards-differ-from-tokens",
            f"{name} are sharded as {list(shards.sizes)}, and rank {context.rank} of {context.ranks} has {tokens}",
        )


def _call(
    context: SequenceParallel, plan: Communication, tensors: tuple[Tensor, Tensor, Tensor], options: _ShardedOptions
) -> Call:
    local = {name: getattr(options, name) for name in ("scale", "implementation", "terms")}
    return Call(context, plan, *tensors, Marks(options.key_mask, options.segments), local)


def _computed(call: Call) -> Result:
    """The results of this rank's queries, whose backward pass is that of all ranks."""
    terms, sinks = call.options["terms"], None
    if terms is not None:
        sinks, terms = terms.sinks, replace(terms, sinks=None)
    call = replace(call, options=call.options | {"terms": terms})
    result = results_of(call)
    if sinks is not None:
        result = merged((result, _of_sinks(result, sinks)))
    return Result(*tied(result, call.received))


def _of_sinks(like: Result, sinks: Tensor) -> Result:
    """A score per head that every query reads, with a value of 0: once, however many results were merged."""
    lse = sinks.to(like.lse.dtype)[:, None].expand_as(like.lse)
    return Result(torch.zeros_like(like.out), lse)


def _with_all_keys(call: Call, return_lse: bool) -> tuple[Tensor, ...]:
    """The same, (out, lse) or (out,), with all keys on every rank, because which pairs dropout drops goes by the
    numbers of all tokens."""
    if not call.context.dense_exchange:
        raise ConfigurationError(
            "sharded-dropout-keys",
            "dropout inside attention within sequence_parallel depends on the positions of all tokens, so every rank"
            " needs every key: set attention_dropout to 0, or pass sequence_parallel(..., dense_exchange=True)",
        )
    plan, everyone = call.plan, to_all(call.plan.keys, call.rank)
    marks = call.marks
    if (rows := marks.rows) is not None:
        marks = marks.read(*call.exchange((rows, everyone)))
    k, v = call.exchange((call.k, everyone), (call.v, everyone))
    first = plan.query_offset + plan.queries.range(call.rank)[0]
    options = call.options | marks._asdict() | {"query_offset": first, "return_lse": return_lse}
    found: Any = kernels.attend(call.q, k, v, plan.pattern, **options)
    return tied(found if return_lse else (found,), call.received)
