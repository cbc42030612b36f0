"""How far a pattern reads to each side of a token, where that is all there is to it.

Windows, `causal()`, `dense()`, their unions and intersections are bands around the diagonal: each query reads every key
from `left` tokens before it to `right` tokens after it. Configurations of other libraries hold such numbers, and
nothing else of a pattern.
"""

from typing import NamedTuple

from asterism.patterns.pattern import And, Named, Or, Pattern, PerHead
from asterism.patterns.primitives import (
    Blocks,
    Causal,
    Columns,
    Dense,
    GlobalKeys,
    GlobalQueries,
    Stride,
    Window,
)
from asterism.patterns.selected import Selected


class Sides(NamedTuple):
    """Tokens read to each side, the token itself not counted; None for all of them."""

    left: int | None
    right: int | None


_WORDS: dict[type[Pattern], str] = {
    Stride: "strides",
    Blocks: "blocks",
    Columns: "columns",
    GlobalKeys: "global keys",
    GlobalQueries: "global queries",
    PerHead: "heads with patterns of their own",
    Selected: "blocks chosen by content",
}


def sides_of(pattern: Pattern) -> Sides | None:
    """The sides of a pattern that is a band around the diagonal, None for any other.

    >>> from asterism.patterns import parse
    >>> sides_of(parse("window(left=7) | window(left=3, right=1) & causal()"))
    Sides(left=7, right=0)
    >>> sides_of(parse("window(left=7) | global_keys(0)"))
    >>> sides_of(parse("selected(block=16, topk=2) & causal()"))
    """
    match pattern:
        case Selected():
            return None
        case Dense():
            return Sides(None, None)
        case Causal():
            return Sides(None, 0)
        case Window(left=left, right=right):
            return Sides(left, right)
        case Named(body=body):
            return sides_of(body)
        case And(parts=parts) | Or(parts=parts) | PerHead(patterns=parts):
            found = [sides_of(part) for part in parts]
            bands = [one for one in found if one is not None]
            if len(bands) < len(found) or (isinstance(pattern, PerHead) and len(set(bands)) > 1):
                return None
            joined = _longest if isinstance(pattern, Or) else _shortest
            return Sides(joined([one.left for one in bands]), joined([one.right for one in bands]))
        case _:
            return None


def beyond_sides(pattern: Pattern) -> str | None:
    """Which part of a pattern is no band, in words such as "global keys"; None for a pattern that is one."""
    if sides_of(pattern) is not None:
        return None
    match pattern:
        case Named(body=body):
            return beyond_sides(body)
        case And(parts=parts) | Or(parts=parts) | PerHead(patterns=parts):
            found = [words for part in parts if (words := beyond_sides(part)) is not None]
            return found[0] if found else _WORDS[PerHead]
        case _:
            return next((words for kind, words in _WORDS.items() if isinstance(pattern, kind)), f"{pattern}")


def _longest(sides: list[int | None]) -> int | None:
    """Both sides hold the token itself, so a union of bands has no gap."""
    known = [side for side in sides if side is not None]
    return None if len(known) < len(sides) else max(known)


def _shortest(sides: list[int | None]) -> int | None:
    known = [side for side in sides if side is not None]
    return min(known) if known else None
