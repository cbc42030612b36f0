"""Which patterns a causal model may use."""

from asterism.errors import PatternError
from asterism.patterns.pattern import Named, Pattern

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
    """Refuse a pattern that a causal model cannot use.

    It must be prefix-stable (whether q may attend to k <= q never changes as the sequence grows) and must read no
    future. Raises PatternError with the pattern, the part that breaks the rule, and what to use instead.
    """
    part = pattern.unstable_part()
    if part is not None:
        culprit = _outermost_named(pattern, part)
        raise PatternError(
            f"{pattern.text} cannot be used by a causal model: {culprit.text} is not prefix-stable, what a query may read"
            f" changes as the sequence grows; use {_STABLE_RELATIVES[_call_name(culprit)]} instead"
        )
    if not pattern.is_causal:
        raise PatternError(
            f"{pattern.text} cannot be used by a causal model: it may read the future; write ({pattern.text}) & causal()"
        )


def _outermost_named(pattern: Pattern, part: Pattern) -> Pattern:
    """The published pattern that holds the unstable part, or the part itself."""
    for candidate in pattern.walk():
        if isinstance(candidate, Named) and _call_name(candidate) in _STABLE_RELATIVES and part in candidate.walk():
            return candidate
    return part


def _call_name(pattern: Pattern) -> str:
    return pattern.text.split("(", 1)[0]
