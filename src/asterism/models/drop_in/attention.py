"""The attention function that transformers calls in each layer of a model that follows a pattern.

To the pattern, a token's position is the number of real tokens before it in its row, so padding changes no real token.
A pattern that depends on the length is laid over each row's own length. A sliding window of the model's own counts only
where the configuration says so.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import torch

from asterism.errors import ConfigurationError
from asterism.kernels import attend, decode
from asterism.layers.kept import read
from asterism.layers.padding import (
    Packing,
    count_positions,
    cut_into_rows,
    documents_of_rows,
    in_documents,
    lay_end_to_end,
)
from asterism.models.cache import PatternCacheLayer
from asterism.models.drop_in.field import read_native_window, read_patterns
from asterism.models.drop_in.interface import HARMLESS
from asterism.models.drop_in.places import place_of
from asterism.models.drop_in.tokens import Tokens, require_tokens
from asterism.patterns import parse, require_causal, window

DROPOUT_FIELDS = ("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob", "attn_dropout")
"""How configurations call the dropout of attention."""


class Rule(NamedTuple):
    """A layer's pattern as text, and whether the rows of a batch must follow it at their own lengths."""

    text: str
    depends_on_length: bool


def pattern_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Tokens | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    pattern_cache: PatternCacheLayer | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """q [B, H, N, D], k [B, Hkv, N, D] and v [B, Hkv, N, Dv] -> [B, N, H, Dv], by the pattern of the module's layer.

    Without `pattern_cache`, k and v may hold the S keys before them, too. Raises ConfigurationError for everything that
    would change the scores and that a pattern does not say, PatternError for a pattern that this layer cannot use.
    """
    tokens = require_tokens(attention_mask, module)
    _refuse_others(others)
    if dropout > 0:
        raise ConfigurationError(_explain_dropout(module.config, dropout))
    if is_causal is not None and is_causal != tokens.causal:
        raise ConfigurationError(f"attention got is_causal={is_causal}, but the model's mask says {tokens.causal}")
    intersects = read_native_window(module.config) == "intersect"
    if intersects and sliding_window is not None and tokens.window is None:
        raise ConfigurationError(f"attention got sliding_window={sliding_window}, but the model's mask has no window")
    rule = layer_rule(module, tokens)
    if pattern_cache is not None:
        mixed = _attend_cached(query, key, value, rule, tokens, scaling, pattern_cache)
    else:
        _check_keys(key, tokens, query.shape[2])
        mixed = _attend_all(query, key, value, rule, tokens, scaling)
    return mixed.transpose(1, 2).contiguous(), None


def layer_rule(module: Any, tokens: Tokens) -> Rule:
    """Who reads whom in a layer: its pattern, and the model's own window with it where the configuration wants both.

    Raises PatternError for a causal model whose pattern reads the future or is not prefix-stable.
    """
    field, place = module.config.asterism_pattern, place_of(module)
    texts = tuple(field) if isinstance(field, list) else field
    own_window = tokens.window if read_native_window(module.config) == "intersect" else None
    return Rule(*_constant_rule(texts, *place, tokens.causal, own_window))


@torch.compiler.assume_constant_result
def _constant_rule(*question: Any) -> tuple[str, bool]:
    """As `_complete_rule`; nothing for torch.compile to look into."""
    return _complete_rule(*question)


@lru_cache(maxsize=1024)
def _complete_rule(
    texts: str | tuple[str, ...] | None, number: int, layers: int, causal: bool, own_window: int | None
) -> tuple[str, bool]:
    pattern = read_patterns(texts, layers)[number]
    if own_window is not None:
        pattern = pattern & (window(own_window - 1) if causal else window(own_window, own_window))
    if causal:
        require_causal(pattern)
    return pattern.text, pattern.depends_on_length


def _attend_all(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rule: Rule, tokens: Tokens, scale: float | None
) -> torch.Tensor:
    """k and v hold all S + N tokens."""
    if tokens.seen:
        positions = count_positions(tokens.real, k.shape[2], k.device)
        return decode(q, k, v, rule.text, positions[:, tokens.seen :].clamp(min=0), positions, scale=scale)
    if tokens.packing is None:
        return attend(q, k, v, rule.text, scale=scale)
    return _attend_packed(q, k, v, rule, tokens.packing, scale)


def _attend_cached(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    rule: Rule,
    tokens: Tokens,
    scale: float | None,
    cache: PatternCacheLayer,
) -> torch.Tensor:
    """k and v hold the N new tokens, which the cache is extended by."""
    packing, counts = tokens.packing, tokens.counts
    asked, keys, values = q, k, v
    if packing is not None:
        counts = packing.real.sum(dim=1).tolist() if counts is None else counts
        asked, keys, values = (packing.pack(x.transpose(1, 2)).transpose(1, 2) for x in (q, k, v))
    parts = cache.extend(keys, values, cache.new_tokens(q.shape[2], counts))
    if not tokens.seen:
        return _attend_all(q, k, v, rule, tokens, scale)
    (mixed,) = read(asked, parts, lambda some, part: (part.attend(some, scale=scale),))
    return mixed if packing is None else packing.unpack(mixed.transpose(1, 2)).transpose(1, 2)


def _attend_packed(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rule: Rule, packing: Packing, scale: float | None
) -> torch.Tensor:
    """Real tokens in front, padding behind them; then back to where they were."""
    q, k, v = (packing.pack(x.transpose(1, 2)).transpose(1, 2) for x in (q, k, v))
    if rule.depends_on_length:
        sizes = documents_of_rows(packing.real.sum(dim=1).tolist(), q.shape[2])
        pattern, rows = in_documents(parse(rule.text), sizes), len(q)
        q, k, v = map(lay_end_to_end, (q, k, v))
        mixed = cut_into_rows(attend(q, k, v, pattern, scale=scale), rows)
    else:
        mixed = attend(q, k, v, rule.text, key_mask=packing.real, scale=scale)
    return packing.unpack(mixed.transpose(1, 2)).transpose(1, 2)


# --- refusals --------------------------------------------------------------------------------------------------------


def _check_keys(key: torch.Tensor, tokens: Tokens, new: int) -> None:
    if key.shape[2] != tokens.seen + new:
        raise ConfigurationError(
            f"attention got {key.shape[2]} keys for {tokens.seen} tokens seen and {new} new ones: a pattern needs the"
            " keys of the queries' own sequence, no more and no less"
        )


def _refuse_others(others: dict[str, Any]) -> None:
    for name, given in others.items():
        if given is not None and given is not False and (name not in HARMLESS or name == "output_attentions"):
            raise ConfigurationError(
                f"the model gives its attention {name!r}, which can change its scores: attention by a pattern knows no"
                " soft-capping, sinks, position biases or cross-attention, and returns no weights"
            )


def _explain_dropout(config: Any, dropout: float) -> str:
    field = next((name for name in DROPOUT_FIELDS if getattr(config, name, None)), "the attention dropout")
    return (
        f"attention dropout is {dropout} in training, and attention by a pattern has none:"
        f" build or load the model with {field}=0"
    )
