"""Which patterns a causal model may use."""

from asterism.errors import PatternError
from asterism.patterns.pattern import Named, Pattern
from asterism.patterns.selected import require_static

_STABLE_RELATIVES = {
    "bigbird": "bigbird_causal(...)",
    "bigbird_etc": "bigbird_causal(...)",
    "random_blocks": "random_blocks(..., earlier=True)",
    "yun_random": "random_blocks(..., earlier=True)",
    "star_transformer": "star() & causal()",
    "yun_star": "star() & causal()",
    "longformer": "longformer(...) with globals counted from the front, & causal()",
    "global_tokens": "positions counted from the front",
    "global_keys": "positions counted from the front",
    "global_queries": "positions counted from the front",
}


def require_causal(pattern: Pattern) -> None:
    """Refuse a pattern that a causal model cannot use: one that is not prefix-stable, or that may read the future.

    Raises PatternError with the pattern, the part that breaks the rule, and what to use instead.
    """
    require_self_attention(pattern, "a causal model")
    require_prefix_stable(pattern)
    if not pattern.is_causal:
        raise PatternError(
            "reads-future",
            f"{pattern} cannot be used by a causal model: it may read the future; write ({pattern}) & causal()",
        )


def require_self_attention(pattern: Pattern, user: str) -> None:
    """Refuse a pattern for cross attention. Raises PatternError."""
    if pattern.crosses:
        raise PatternError(
            "across-not-self",
            f"{pattern} cannot be used by {user}: across(...) is for cross attention, where the queries are tokens"
            " of another sequence than the keys; use the pattern inside it",
        )


def require_cross_attention(pattern: Pattern) -> None:
    """Refuse a pattern that is only for self-attention, or with a part that is chosen. Raises PatternError."""
    require_static(pattern, "cross attention")
    if not pattern.takes_any_query:
        raise PatternError(
            "across-needed",
            f"{pattern} cannot be used by cross attention, where the queries are tokens of another sequence than"
            f" the keys: write across({pattern}, step=...), or dense()",
        )


def require_prefix_stable(pattern: Pattern) -> None:
    """Refuse a pattern that may change its answer for a pair (q, k) as the sequence grows.

    Raises PatternError with the pattern, the part that breaks the rule, and its stable relative.
    """
    part = pattern.unstable_part()
    if part is not None:
        culprit = _outermost_named(pattern, part)
        raise PatternError(
            "not-prefix-stable",
            f"{pattern} cannot be used by a causal model or with a cache: {culprit} is not prefix-stable (the keys of"
            " a query change as the sequence grows); use"
            f" {_STABLE_RELATIVES.get(_call_name(culprit), 'one that does not depend on the length')} instead",
        )


def _outermost_named(pattern: Pattern, part: Pattern) -> Pattern:
    """The published pattern that holds the unstable part, or the part itself."""
    for candidate in pattern.walk():
        if isinstance(candidate, Named) and _call_name(candidate) in _STABLE_RELATIVES and part in candidate.walk():
            return candidate
    return part


def _call_name(pattern: Pattern) -> str:
    return pattern.text.split("(", 1)[0]
