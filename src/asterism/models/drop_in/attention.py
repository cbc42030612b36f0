"""The attention function that transformers calls in each layer of a model that follows a pattern.

To the pattern, a token's position is the number of real tokens before it in its row, so padding changes no real token.
A pattern that depends on the length is laid over each row's own length. A sliding window of the model's own counts only
where the configuration says so.
"""

from dataclasses import replace
from itertools import accumulate
from typing import Any, NamedTuple

import torch

from asterism.errors import ConfigurationError
from asterism.kernels import Terms, attend, decode
from asterism.layers.kept import Kept, read
from asterism.layers.rows import is_sharded
from asterism.layers.rows.padding import (
    Packing,
    count_positions,
    cut_into_rows,
    documents_of_rows,
    lay_end_to_end,
)
from asterism.layers.rows.rows import in_documents
from asterism.memo import remembering_few
from asterism.models.cache.layer import PatternCacheLayer
from asterism.models.drop_in.chosen import attend_chosen
from asterism.models.drop_in.documents import from_boundaries, from_positions
from asterism.models.drop_in.field import read_native_window, read_patterns, require_native_window
from asterism.models.drop_in.interface import CHOSEN
from asterism.models.drop_in.native import check_asked
from asterism.models.drop_in.places import place_of
from asterism.models.drop_in.positions import in_cache, sinks_of
from asterism.models.drop_in.terms import of_heads, read_terms
from asterism.models.drop_in.tokens import LayerTokens, require_tokens
from asterism.models.drop_in.trees import check_tree, trees_of
from asterism.patterns import parse, require_causal, window


class Rule(NamedTuple):
    """A layer's pattern as text, whether the rows of a batch must follow it at their own lengths, whether their tokens
    are a tree, of `sinks(first, window)` the two arguments, and whether queries choose blocks."""

    text: str
    depends_on_length: bool
    has_tree: bool
    sinks: tuple[int, int] | None
    chooses: bool


class LayerCall(NamedTuple):
    """What a layer's attention is asked to do: who reads whom, of which tokens, and how scores become weights."""

    rule: Rule
    tokens: LayerTokens
    scale: float | None
    terms: Terms | None


def pattern_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: LayerTokens | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    pattern_cache: PatternCacheLayer | None = None,
    pattern_rule: Rule | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """q [B, H, N, D], k [B, Hkv, N, D] and v [B, Hkv, N, Dv] -> [B, N, H, Dv], by the pattern of the module's layer.

    All have one dtype, which the result has, too.

    Without `pattern_cache`, k and v may hold the S keys before them, too; with it comes the layer's rule. Raises
    ConfigurationError for everything that would change the scores and that a pattern does not say, PatternError for a
    pattern that this layer cannot use.
    """
    tokens = require_tokens(attention_mask, module)
    if is_causal is not None and is_causal != tokens.causal:
        raise ConfigurationError(
            "mask-contradicts-causal",
            f"attention got is_causal={is_causal}, but the model's mask has is_causal={tokens.causal}",
        )
    intersects = sliding_window is not None and read_native_window(module.config) == "intersect"
    if intersects and tokens.window is None:
        raise ConfigurationError(
            "mask-contradicts-window",
            f"attention got sliding_window={sliding_window}, but the model's mask has no window",
        )
    documents = _documents(query, tokens, others)
    rule = layer_rule(module, tokens) if pattern_rule is None else pattern_rule
    if (chosen := others.pop(CHOSEN, None)) is not None or rule.chooses:
        rest = documents, scaling, read_terms(others, dropout)
        mixed = attend_chosen((query, key, value), chosen, place_of(module), tokens, rest)
        return mixed.transpose(1, 2).contiguous(), None
    if (among_read := in_cache(module, query, key, rule.sinks, tokens, documents)) is not None:
        scaling = query.shape[3] ** -0.5 if scaling is None else scaling
        query, key = among_read
    asked = LayerCall(rule, tokens, scaling, read_terms(others, dropout))
    if rule.has_tree:
        shape = query.shape[0], query.shape[2]
        check_tree(rule.text, documents, shape, tokens, asked.terms, has_cache=pattern_cache is not None)
        documents = None  # the runs along the paths of the tree
    if tokens.call is not None:
        return _attend_shard(query, key, value, asked, documents).transpose(1, 2).contiguous(), None
    if is_sharded():
        raise ConfigurationError(
            "no-mask-in-shards",
            f"{type(module).__name__} gets no mask from its model, so within sequence_parallel it cannot read the"
            " tokens of other ranks",
        )
    if documents is not None:
        _check_documents(key, tokens, query.shape[2], pattern_cache)
        mixed = _attend_documents(query, key, value, asked, documents)
    elif pattern_cache is not None:
        mixed = _attend_cached(query, key, value, asked, pattern_cache)
    else:
        _check_keys(key, tokens, query.shape[2])
        mixed = _attend_all(query, key, value, asked)
    return mixed.transpose(1, 2).contiguous(), None


def layer_rule(module: Any, tokens: LayerTokens) -> Rule:
    """Who reads whom in a layer: its pattern, and the model's own window with it where the configuration wants both.

    Raises PatternError for a causal model whose pattern reads the future or is not prefix-stable, ConfigurationError
    where the model has a window and the configuration does not say what becomes of it.
    """
    field, place = module.config.asterism_pattern, place_of(module)
    texts = tuple(field) if isinstance(field, list) else field
    if place.follows:
        check_asked(place, tokens.window, tokens.causal)
    elif tokens.window is not None:
        require_native_window(module.config, tokens.window)
    own_window = tokens.window if read_native_window(module.config) == "intersect" else None
    return Rule(*_constant_rule(texts, place.number, place.layers, tokens.causal, own_window))


@torch.compiler.assume_constant_result
def _constant_rule(*question: Any) -> tuple[str, bool, bool, tuple[int, int] | None, bool]:
    """As `_complete_rule`; nothing for torch.compile to look into."""
    return _complete_rule(*question)


@remembering_few(1024)
def _complete_rule(
    texts: str | tuple[str, ...] | None, number: int, layers: int, causal: bool, own_window: int | None
) -> tuple[str, bool, bool, tuple[int, int] | None, bool]:
    pattern = read_patterns(texts, layers)[number]
    if own_window is not None:
        pattern = pattern & (window(own_window - 1) if causal else window(own_window, own_window))
    if causal:
        require_causal(pattern)
    has_tree = bool(trees_of(pattern))
    return pattern.text, pattern.depends_on_length, has_tree, sinks_of(pattern), pattern.chooses


def _attend_all(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, asked: LayerCall) -> torch.Tensor:
    """k and v hold all S + N tokens."""
    tokens = asked.tokens
    if tokens.seen:
        positions = count_positions(tokens.real, k.shape[2], k.device)
        return _decode(q, k, v, asked, positions[:, tokens.seen :], positions)
    if tokens.packing is None:
        return attend(q, k, v, asked.rule.text, scale=asked.scale, terms=asked.terms)
    return _attend_packed(q, k, v, asked, tokens.packing)


def _attend_shard(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, asked: LayerCall, documents: tuple[int, ...] | None
) -> torch.Tensor:
    """The tokens of one shard, whose padding comes last in its row."""
    if asked.terms is not None and asked.terms.bias is not None:
        raise ConfigurationError(
            "bias-in-shards",
            "the model computes its position bias from the tokens of one rank alone, which is wrong within"
            " sequence_parallel: run it without sequence_parallel",
        )
    call, causal = asked.tokens.call, asked.tokens.causal
    assert call is not None
    rows = replace(call.rows, documents=documents, real=None if causal else call.rows.real)
    mixed: torch.Tensor = rows.attend(q, k, v, parse(asked.rule.text), scale=asked.scale, terms=asked.terms)
    return mixed


def _attend_documents(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, asked: LayerCall, documents: tuple[int, ...]
) -> torch.Tensor:
    """Each document by itself; the rows of the batch are one row, one after another."""
    rows, ends = q.shape[0], [0, *accumulate(documents)]
    q, k, v = map(lay_end_to_end, (q, k, v))
    mixed = attend(q, k, v, asked.rule.text, cu_seqlens=ends, scale=asked.scale, terms=asked.terms)
    return cut_into_rows(mixed, rows)


def _attend_cached(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, asked: LayerCall, cache: PatternCacheLayer
) -> torch.Tensor:
    """k and v hold the N new tokens, which the cache is extended by."""
    tokens = asked.tokens
    _check_seen(cache.get_seq_length(), tokens.seen)
    packing, padding = tokens.packing, tokens.padding or ()
    queries, keys, values = q, k, v
    if packing is not None:
        padding = padding or packing.known()
        queries, keys, values = (packing.pack(x.transpose(1, 2)).transpose(1, 2) for x in (q, k, v))
    parts = cache.extend(keys, values, cache.new_tokens(q.shape[2], *padding))
    if not tokens.seen:
        return _attend_all(q, k, v, asked)
    (mixed,) = read(queries, parts, lambda some, part: (_read(some, part, asked),))
    return mixed if packing is None else packing.unpack(mixed.transpose(1, 2)).transpose(1, 2)


def _read(q: torch.Tensor, part: Kept, asked: LayerCall) -> torch.Tensor:
    """What some queries read of what a cache has kept for them."""
    terms = None if asked.terms is None else of_heads(asked.terms, part.heads)
    mixed: torch.Tensor = part.attend(q, scale=asked.scale, terms=terms)
    return mixed


def _decode(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, asked: LayerCall, positions: torch.Tensor, kept: torch.Tensor
) -> torch.Tensor:
    """Queries at `positions` [B or 1, N] of keys at `kept` [B or 1, L]; -1 is padding."""
    return decode(q, k, v, asked.rule.text, positions.clamp(min=0), kept, scale=asked.scale, terms=asked.terms)


def _attend_packed(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, asked: LayerCall, packing: Packing
) -> torch.Tensor:
    """Real tokens in front, padding behind them; then back to where they were."""
    text, scale, terms = asked.rule.text, asked.scale, asked.terms
    q, k, v = (packing.pack(x.transpose(1, 2)).transpose(1, 2) for x in (q, k, v))
    if asked.rule.depends_on_length:
        sizes = documents_of_rows(packing.real.sum(dim=1).tolist(), q.shape[2])
        pattern, rows = in_documents(parse(text), sizes), len(q)
        q, k, v = map(lay_end_to_end, (q, k, v))
        mixed = cut_into_rows(attend(q, k, v, pattern, scale=scale, terms=terms), rows)
    else:
        mixed = attend(q, k, v, text, key_mask=packing.real, scale=scale, terms=terms)
    return packing.unpack(mixed.transpose(1, 2)).transpose(1, 2)


# --- refusals --------------------------------------------------------------------------------------------------------


def _documents(query: torch.Tensor, tokens: LayerTokens, given: dict[str, Any]) -> tuple[int, ...] | None:
    """The lengths of the documents in the batch, by all that is said of them; None where each row is one sequence."""
    rows, _, new, _ = query.shape
    new = new if tokens.call is None else tokens.call.positions.shape[1]
    documents = from_boundaries(given, rows * new, query.device) or tokens.documents
    if (
        documents is None
        and tokens.call is None
        and tokens.causal
        and tokens.real is None
        and not tokens.seen
        and not torch.compiler.is_compiling()
    ):
        documents = from_positions(given.get("position_ids"), rows, new)
    return documents


def _check_documents(key: torch.Tensor, tokens: LayerTokens, new: int, cache: PatternCacheLayer | None) -> None:
    if cache is not None or tokens.seen or tokens.real is not None:
        raise ConfigurationError(
            "packed-with-cache",
            "documents packed into a row (position_ids that restart, cu_seq_lens_q) take no cache and no padding:"
            " set use_cache=False, in the call or in the model's configuration, and leave out attention_mask",
        )
    _check_keys(key, tokens, new)


def _check_seen(by_layer: int, by_model: int) -> None:
    # Were two counters of a graph compared, a guard would make them one, and inductor binds no input to the one that is
    # left (NameError in PyTorch 2.13). So a graph only asks of each whether there is anything.
    compiling = torch.compiler.is_compiling()
    unequal = (not by_model if by_layer else by_model) if compiling else by_layer != by_model
    if unequal:
        raise ConfigurationError(
            "cache-of-other-layer",
            f"the cache has seen {by_model} tokens, but its part for this layer {by_layer}: it belongs to a model of"
            " fewer layers; pass a PatternCache(), or nothing",
        )


def _check_keys(key: torch.Tensor, tokens: LayerTokens, new: int) -> None:
    if key.shape[2] != tokens.seen + new:
        raise ConfigurationError(
            "foreign-keys",
            f"attention got {key.shape[2]} keys for {tokens.seen} tokens seen and {new} new ones: a pattern needs the"
            " keys of the queries' own sequence, no more and no less",
        )
