"""Blocks of keys that are chosen by what stands in them: a rule that is known only when queries and keys are.

What a pattern with such a part may read lies between two patterns that are known before: what it reads whatever is
chosen, and what it could read if everything were. The compiler and the kernels see these two; which blocks are chosen
comes to them as data.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from asterism.errors import PatternError, nearest, shown
from asterism.patterns.pattern import Combination, Named, Pattern, check_integer
from asterism.patterns.primitives import Dense, blocks, dense, global_keys

SCORES = ("mean", "max", "minmax", "antidiagonal", "given")
"""How blocks are scored."""

STRIDE = 8
"""Of the antidiagonals whose sums score a block: tokens that are taken together."""


@dataclass(frozen=True, eq=False, repr=False)
class Selected(Dense):
    """As a pattern without queries and keys it is what may be chosen: everything."""

    keyword: ClassVar[str] = "selected"
    block: int
    topk: int | None = None
    score: str = "mean"
    query_block: int = 1
    first: int = 1
    local: int = 1
    mass: float | None = None

    def _depends_on_content(self) -> bool:
        return True

    def _needs_no_place(self) -> bool:
        return False  # a query has a block of its own

    @property
    def forced(self) -> Pattern:
        """The pairs that are read whatever is chosen: of the first blocks, and of those near the query's own."""
        first = global_keys(tuple(range(self.first)), self.block) if self.first else ~dense()
        near = self.local - 1
        return first | blocks(self.block, left=near, right=near) if self.local else first

    def unstable_part(self) -> Pattern | None:
        """Queries that share a choice share it with later ones, which a shorter sequence does not have."""
        return self if self.query_block > 1 else None


def selected(
    block: int,
    topk: int | None = None,
    score: str = "mean",
    query_block: int = 1,
    first: int = 1,
    local: int = 1,
    mass: float | None = None,
) -> Pattern:
    """Let each query read `topk` blocks of `block` keys, chosen by content, as far as the rest of the pattern lets it.

    The `first` blocks of the sequence and those less than `local` blocks from the query's own are always read, and
    counted among the `topk`. Of the others, a query may choose those that the pattern lets it read entirely, so that a
    causal one never sees the future through a choice, and chooses the same however many tokens follow.

    `score` says what a block is worth to a query:

    mean    q . mean of the block's keys (MoBA, arXiv 2502.13189)
    max     the greatest q . k of the block (MiniMax Sparse Attention, arXiv 2606.13392)
    minmax  the sum over features of max(q * least, q * greatest of the block) (Quest, arXiv 2406.10774)
    antidiagonal  the attention of groups of 8 queries to groups of 8 keys, of which one runs backwards (XAttention,
            arXiv 2503.16428); `query_block` is a multiple of 8
    given   what the caller of `asterism.select` gives

    With `mass`, 0 < mass < 1, in the place of `topk`, a query chooses as few blocks as hold that share of its attention
    to all that it may choose, as scores estimate it: the softmax of score * D**-0.5, the mean of a group's heads; of
    antidiagonals and of given scores, which are shares already, their part of the sum. Forced blocks come on top.

    `query_block` queries share a choice, by the mean of their scores. It stands once in a pattern, under | and & with
    others: `window(left=255) | selected(block=64, topk=16) & causal()`. Raises PatternError for a block that is no
    multiple of 16, for topk and query_block below 1, for both or neither of topk and mass, negative `first` and
    `local`, and an unknown score.
    """
    block = check_integer("selected", "block", block, 16)
    if block % 16:
        raise PatternError("selected-block", f"selected: block must be a multiple of 16, got {block}")
    if score not in SCORES:
        near = nearest(score, SCORES) if isinstance(score, str) else ""
        raise PatternError(
            "selected-score", f"selected: score must be one of {', '.join(SCORES)}, got {shown(score)}.{near}"
        )
    query_block = check_integer("selected", "query_block", query_block, 1)
    if score == "antidiagonal" and query_block % STRIDE:
        raise PatternError(
            "selected-antidiagonal",
            f'selected: score="antidiagonal" takes {STRIDE} queries together, so query_block is a multiple of {STRIDE},'
            f" got {query_block}",
        )
    if (topk is None) == (mass is None):
        raise PatternError(
            "selected-budget", f"selected: give one of topk and mass, got topk={shown(topk)} and mass={shown(mass)}"
        )
    if mass is not None and not (type(mass) is float and 0 < mass < 1):
        raise PatternError("selected-mass", f"selected: mass must be a number between 0 and 1, got {shown(mass)}")
    return Selected(
        block,
        None if topk is None else check_integer("selected", "topk", topk, 1),
        score,
        query_block,
        check_integer("selected", "first", first, 0, _MOST_FIRST),
        check_integer("selected", "local", local, 0),
        mass,
    )


_MOST_FIRST = 2**16
"""More would be listed one by one."""


class Bounds(NamedTuple):
    """A pattern with a part that is chosen: the pairs that are read whatever is chosen, those that could be read if
    everything were, and those of the latter that depend on the choice."""

    chosen: Selected
    always: Pattern
    most: Pattern
    rest: Pattern


def bounds_of(pattern: Pattern) -> Bounds:
    """The bounds of a pattern that has a part which is chosen.

    Raises PatternError where that part stands under anything but | and &, or there are two different ones, or other
    parts differ by head.
    """
    return pattern.derived(_bounds_of)


def _bounds_of(pattern: Pattern) -> Bounds:
    chosen = _chosen(pattern)
    if pattern.heads > 1:
        raise PatternError(
            "selected-heads", f"selected(...) stands beside patterns that are alike for all heads, got {pattern}"
        )
    always, most = (_with(pattern, chosen, static) for static in (chosen.forced, dense()))
    return Bounds(chosen, always, most, most & ~always)


def _with(pattern: Pattern, chosen: Selected, static: Pattern) -> Pattern:
    """The pattern with another in the place of its part that is chosen."""
    if isinstance(pattern, Selected):
        if pattern != chosen:
            raise PatternError("selected-twice", f"one choice serves a pattern, but it has {chosen} and {pattern}")
        return static
    if not pattern.chooses:
        return pattern
    if isinstance(pattern, Named):
        return _with(pattern.body, chosen, static)
    if isinstance(pattern, Combination):
        return pattern.rebuild(tuple(_with(part, chosen, static) for part in pattern.parts))
    raise PatternError(
        "selected-within",
        f"selected(...) may stand under | and & only, but it is within {shown(str(pattern))}: move it out",
    )


def require_static(pattern: Pattern, user: str) -> None:
    """Refuse a pattern with a part that is chosen by content. Raises PatternError."""
    if pattern.chooses:
        raise PatternError(
            "selected-not-here",
            f"{_chosen(pattern)} cannot be used by {user}: what it reads is known only with queries and keys; use it in"
            " asterism.attend, or in the layers of AsterismForCausalLM and its kin",
        )


def _chosen(pattern: Pattern) -> Selected:
    return next(part for part in pattern.walk() if isinstance(part, Selected))
