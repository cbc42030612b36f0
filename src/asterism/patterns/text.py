"""The text form of patterns, schedules and mixers: `parse("fixed(stride=128, summary=8) | window(left=64)")`.

    schedule   interleave(mixer, mixer, ...) or one mixer for every layer
    mixer      pattern, fourier(), linear() or linear(learned=False)
    pattern    calls of the vocabulary, joined by | & ~

Python's own grammar reads the text into a syntax tree, and a closed vocabulary interprets it: calls of known names,
the operators | & ~, numbers, True, False, None, strings, tuples and lists. Nothing is ever evaluated.
"""

import ast
import inspect
from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any, TypeGuard

from asterism.calls import call, expression, fault, quoted
from asterism.errors import ConfigurationError, PatternError, nearest, shown
from asterism.memo import remembering_few
from asterism.patterns import primitives, published
from asterism.patterns.across import across
from asterism.patterns.documents import documents
from asterism.patterns.explicit import explicit
from asterism.patterns.grid import grid
from asterism.patterns.part import part
from asterism.patterns.pattern import Pattern
from asterism.patterns.random_blocks import random_blocks
from asterism.patterns.schedule import Fourier, Linear, Mixer, Schedule, Transform, interleave, merge, split_heads
from asterism.patterns.selected import selected
from asterism.patterns.tree import tree

VOCABULARY: dict[str, Callable[..., Pattern]] = {
    function.__name__: function
    for function in (
        primitives.dense,
        primitives.causal,
        primitives.window,
        primitives.stride,
        primitives.blocks,
        primitives.columns,
        grid,
        primitives.global_keys,
        primitives.global_queries,
        primitives.global_tokens,
        random_blocks,
        explicit,
        primitives.per_head,
        primitives.shifted,
        documents,
        tree,
        across,
        part,
        selected,
        published.strided,
        published.fixed,
        published.bigbird,
        published.bigbird_etc,
        published.bigbird_causal,
        published.longformer,
        published.sinks,
        published.star,
        published.star_transformer,
        published.yun_strided,
        published.yun_fixed,
        published.yun_star,
        published.yun_window,
        published.yun_random,
        merge,
        split_heads,
    )
}
"""Every name that the text of a pattern may call."""

_RENAMED: dict[tuple[str, str], Callable[[Any], tuple[str, Any]]] = {
    **{
        (name, "window"): lambda count: ("window_blocks", count)
        for name in ("bigbird", "bigbird_etc", "bigbird_causal")
    },
    ("random_blocks", "window"): lambda radius: ("window_blocks", _count_within(radius)),
}
"""What arguments are called today that older texts, such as those of saved models, have under another name."""

TRANSFORMS: dict[str, Callable[..., Transform]] = {"fourier": Fourier, "linear": Linear}
"""What a layer may have in place of a pattern."""
_NAMES = (*VOCABULARY, "interleave", *TRANSFORMS)

_LIST_MEMBERS = "a call such as window(left=255), the operators | & ~, whole numbers, tuples and lists"


@remembering_few(1024)
def parse(text: str) -> Pattern:
    """Read a pattern from its text; `parse(str(p)) == p`.

    Raises PatternError, in one line, for unknown names (with the nearest known one), wrong arguments, and anything that
    is not a call of the vocabulary, an operator or a literal.
    """
    return _read_pattern(_read(text), text)


def parse_schedule(text: str) -> Schedule:
    """Read a schedule from its text: `interleave(a, b)`, or one mixer for every layer. Raises the errors of `parse`."""
    tree = _read(text)
    if not _calls(tree, "interleave"):
        return Schedule((_read_mixer(tree, text),))
    if tree.keywords:
        raise PatternError(
            "interleave-argument", f"interleave takes patterns only, got the argument {shown(tree.keywords[0].arg)}"
        )
    return interleave(*(_read_mixer(argument, text) for argument in tree.args))


def as_schedule(given: Mixer | Schedule | str | Sequence[Mixer | str]) -> Schedule:
    """Turn a pattern, a schedule, the text of one, or a list with a mixer for each layer into a schedule.

    Raises PatternError for a text that cannot be read and for anything else.
    """
    if isinstance(given, Schedule):
        return given
    if isinstance(given, str):
        return parse_schedule(given)
    if isinstance(given, Mixer):
        return Schedule((given,))
    if isinstance(given, Sequence) and all(isinstance(mixer, Mixer | str) for mixer in given):
        return Schedule(tuple(_parse_mixer(mixer) if isinstance(mixer, str) else mixer for mixer in given))
    raise PatternError(
        "not-a-schedule",
        f"expected a pattern, a schedule, the text of one, or a list with one per layer, got {shown(given)}",
    )


def in_full(mixers: Any) -> Any:
    """The text of a schedule, or a list with one per layer, as files hold it: with every argument, so that a model
    stays what it is where a default becomes another.

    Unreadable values are returned unchanged; building a model with them raises the error.
    """
    if isinstance(mixers, list | tuple):
        return [in_full(mixer) for mixer in mixers]
    try:
        return as_schedule(mixers).text
    except PatternError:
        return mixers


def mentions(text: str, name: str, outside: str | None = None) -> bool:
    """Whether a name stands in a text: `mentions("native | causal()", "native")`; with `outside`, anywhere but within
    a call of that name."""
    read = expression(text)
    open_: list[ast.AST] = [] if read is None else [read]
    while open_:
        node = open_.pop()
        if isinstance(node, ast.Name) and node.id == name:
            return True
        if not (isinstance(node, ast.expr) and outside is not None and _calls(node, outside)):
            open_ += ast.iter_child_nodes(node)
    return False


def bind(text: str, name: str, pattern: Pattern) -> str:
    """The text with a pattern in the place of a name, which stands alone or with empty parentheses.

    `bind("native | causal()", "native", window(3))` is "window(left=3, right=0, dilation=1) | causal()". A text that is
    no expression stays as it is, for `parse` to refuse.
    """
    tree, meant = expression(text), expression(pattern.text)
    assert meant is not None, "patterns have a text that can be read"
    return text if tree is None else ast.unparse(_Binding(name, meant).visit(tree))


class _Binding(ast.NodeTransformer):
    def __init__(self, name: str, meant: ast.expr) -> None:
        self.name, self.meant = name, meant

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.meant if node.id == self.name else node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if _calls(node, self.name) and not node.args and not node.keywords:
            return self.meant
        # The function's name is no operand: native(3) is refused as an unknown pattern.
        node.args = [self.visit(argument) for argument in node.args]
        node.keywords = [self.visit(keyword) for keyword in node.keywords]
        return node


def layer_mixers(given: Mixer | Schedule | str | Sequence[Mixer | str], layers: int) -> tuple[Mixer, ...]:
    """The mixer of each of `layers` layers, as `as_schedule` reads it.

    Raises ConfigurationError for a list whose length is not the number of layers.
    """
    schedule = _schedule_of(given, layers)
    return tuple(schedule.layer(number) for number in range(layers))


def mixer_counts(given: Mixer | Schedule | str | Sequence[Mixer | str], layers: int) -> dict[Mixer, int]:
    """Number of layers of each mixer, in the order of `layer_mixers`, without listing the layers.

    Raises the errors of `layer_mixers`.
    """
    schedule = _schedule_of(given, layers)
    counts: dict[Mixer, int] = {}
    for number, mixer in enumerate(schedule.mixers[:layers]):
        counts[mixer] = counts.get(mixer, 0) + len(range(number, layers, schedule.period))
    return counts


def _schedule_of(given: Mixer | Schedule | str | Sequence[Mixer | str], layers: int) -> Schedule:
    if isinstance(given, Sequence) and not isinstance(given, str) and len(given) != layers:
        raise ConfigurationError(
            "patterns-per-layer",
            f"got {len(given)} patterns for {layers} layers: give one per layer, or one schedule for all",
        )
    return as_schedule(given)


def _parse_mixer(text: str) -> Mixer:
    return _read_mixer(_read(text), text)


def _read_mixer(tree: ast.expr, text: str) -> Mixer:
    return _read_transform(tree) or _read_pattern(tree, text)


def _read_transform(tree: ast.expr) -> Transform | None:
    """A transform with arguments that it has; None for anything else, such as a pattern."""
    for name, transform in TRANSFORMS.items():
        if _calls(tree, name) and not tree.args:
            given = {word.arg or "": getattr(word.value, "value", None) for word in tree.keywords}
            known = inspect.signature(transform).parameters
            if (
                len(given) == len(tree.keywords)
                and given.keys() <= known.keys()
                and all(isinstance(value, bool) for value in given.values())
            ):
                return transform(**given)
    return None


def _read_pattern(tree: ast.expr, text: str) -> Pattern:
    result = _interpret(tree, text)
    if not isinstance(result, Pattern):
        raise PatternError("not-a-pattern-text", f"{quoted(text)} is not a pattern: write {_LIST_MEMBERS}")
    return result


def _calls(tree: ast.expr, name: str) -> TypeGuard[ast.Call]:
    return isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id == name


def _read(text: str) -> ast.expr:
    tree = expression(text)
    if tree is None:
        raise PatternError(
            "unreadable-pattern", f"{quoted(text)} cannot be read as a pattern{fault(text)}: write {_LIST_MEMBERS}"
        )
    return tree


def _interpret(tree: ast.expr, text: str) -> object:
    try:
        return _value(tree, text)
    except RecursionError:
        raise PatternError("nested-too-deeply", f"{quoted(text)} is nested too deeply") from None


def _value(tree: ast.expr, text: str) -> object:
    match tree:
        case ast.Constant(value=bool() | int() | float() | str() | None as literal):
            return literal
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as literal)):
            return -literal
        case ast.Tuple(elts=items) | ast.List(elts=items):
            return tuple(_value(item, text) for item in items)
        case ast.UnaryOp(op=ast.Invert(), operand=part):
            return ~_pattern(part, text)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _pattern(left, text) | _pattern(right, text)
        case ast.BinOp(left=left, op=ast.BitAnd(), right=right):
            return _pattern(left, text) & _pattern(right, text)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=keywords):
            return _call(name, arguments, keywords, text)
        case ast.Name(id=name) if name in VOCABULARY:
            inside = "..." if signature(VOCABULARY[name]).parameters else ""
            raise PatternError(
                "missing-parentheses", f"{name} is a pattern's name and needs parentheses: write {name}({inside})"
            )
        case ast.Name(id=name):
            raise _unknown(name, text)
        case _:
            shown = ast.get_source_segment(text.strip(), tree) or text
            raise PatternError(
                "not-allowed-in-pattern", f"{quoted(shown)} is not allowed in a pattern: write {_LIST_MEMBERS}"
            )


def _pattern(tree: ast.expr, text: str) -> Pattern:
    value = _value(tree, text)
    if not isinstance(value, Pattern):
        raise PatternError(
            "operator-operand", f"the operators | & ~ join patterns, got {shown(value)} in {quoted(text)}"
        )
    return value


def _call(name: str, arguments: list[ast.expr], keywords: list[ast.keyword], text: str) -> Pattern:
    if name not in VOCABULARY:
        raise _unknown(name, text)
    if name == "per_head" and len(arguments) > 1:
        listed = ", ".join(map(ast.unparse, arguments))
        raise PatternError(
            "per-head-list", f"per_head takes one list, with a pattern for each head: write per_head([{listed}])"
        )
    named = (_today(name, keyword.arg, _value(keyword.value, text)) for keyword in keywords)
    return call(name, VOCABULARY[name], [_value(argument, text) for argument in arguments], named, PatternError)


def _today(name: str, argument: str | None, value: object) -> tuple[str | None, object]:
    """An argument and its value, as the function of this name has them today."""
    renamed = _RENAMED.get((name, argument or ""))
    return (argument, value) if renamed is None else renamed(value)


def _count_within(radius: Any) -> Any:
    """How many blocks are at most so many away from one; -1 stood for none."""
    if type(radius) is not int:
        return radius  # which is refused
    return 0 if radius == -1 else 2 * radius + 1


def _unknown(name: str, text: str) -> PatternError:
    if name == "interleave":
        return PatternError(
            "schedule-within-pattern",
            f"unknown pattern {name!r}. It is a schedule: write it outermost, around patterns.",
        )
    if name in TRANSFORMS:
        takes = "no arguments" if name == "fourier" else "no argument but learned=False"
        return PatternError(
            "transform-not-alone",
            f"{name}() takes {takes} and is not a pattern, got {quoted(text)}: write it alone, or as a part of"
            " interleave(...)",
        )
    return PatternError("unknown-pattern", f"unknown pattern {shown(name)}.{nearest(name[:60], _NAMES)}")
