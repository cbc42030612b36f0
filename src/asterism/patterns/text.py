"""The text form of patterns and schedules: `parse("fixed(stride=128, summary=8) | window(left=64)")`.

Python's own grammar reads the text into a syntax tree, and a closed vocabulary interprets it: calls of known names,
the operators | & ~, whole numbers, True, False, None, strings, tuples and lists. Nothing is ever evaluated.
"""

import ast
import inspect
from collections.abc import Callable
from functools import lru_cache

from asterism.errors import PatternError, nearest
from asterism.patterns import primitives, published
from asterism.patterns.explicit import explicit
from asterism.patterns.pattern import Pattern
from asterism.patterns.random_blocks import random_blocks
from asterism.patterns.schedule import Schedule, interleave, merge, split_heads

VOCABULARY: dict[str, Callable[..., Pattern]] = {
    function.__name__: function
    for function in (
        primitives.dense,
        primitives.causal,
        primitives.window,
        primitives.stride,
        primitives.blocks,
        primitives.columns,
        primitives.global_keys,
        primitives.global_queries,
        primitives.global_tokens,
        random_blocks,
        explicit,
        primitives.per_head,
        primitives.shifted,
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
"""Every name that a text may call."""

_LIST_MEMBERS = "a call such as window(left=255), the operators | & ~, whole numbers, tuples and lists"


@lru_cache(maxsize=1024)
def parse(text: str) -> Pattern:
    """The pattern that a text means; `parse(str(p)) == p`.

    Raises PatternError, in one line, for unknown names (with the nearest known one), wrong arguments, and anything that
    is not a call of the vocabulary, an operator or a literal.
    """
    result = _interpret(_read(text), text)
    if not isinstance(result, Pattern):
        raise PatternError(f"{_quote(text)} is not a pattern: write {_LIST_MEMBERS}")
    return result


@lru_cache(maxsize=1024)
def parse_schedule(text: str) -> Schedule:
    """The schedule that a text means: `interleave(a, b)`, or a single pattern for every layer."""
    tree = _read(text)
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id == "interleave":
        if tree.keywords:
            raise PatternError(f"interleave takes patterns only, got the argument {tree.keywords[0].arg!r}")
        return interleave(*(_interpret(argument, text) for argument in tree.args))  # type: ignore[arg-type]  # checked there
    return Schedule((parse(text),))


def _read(text: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise PatternError(f"{_quote(text)} cannot be read as a pattern: write {_LIST_MEMBERS}") from None


def _interpret(tree: ast.expr, text: str) -> object:
    try:
        return _value(tree, text)
    except RecursionError:
        raise PatternError(f"{_quote(text)} is nested too deeply") from None


def _value(tree: ast.expr, text: str) -> object:
    match tree:
        case ast.Constant(value=bool() | int() | str() | None as literal):
            return literal
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as literal)):
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
            raise PatternError(f"{name} is a pattern's name and needs its arguments: write {name}(...)")
        case ast.Name(id=name):
            raise PatternError(f"unknown pattern {name!r}.{nearest(name, VOCABULARY)}")
        case _:
            shown = ast.get_source_segment(text.strip(), tree) or text
            raise PatternError(f"{_quote(shown)} is not allowed in a pattern: write {_LIST_MEMBERS}")


def _pattern(tree: ast.expr, text: str) -> Pattern:
    value = _value(tree, text)
    if not isinstance(value, Pattern):
        raise PatternError(f"the operators | & ~ join patterns, got {value!r} in {_quote(text)}")
    return value


def _call(name: str, arguments: list[ast.expr], keywords: list[ast.keyword], text: str) -> Pattern:
    if name not in VOCABULARY:
        hint = (
            " It is a schedule: it stands alone, around patterns."
            if name == "interleave"
            else nearest(name, VOCABULARY)
        )
        raise PatternError(f"unknown pattern {name!r}.{hint}")
    known = inspect.signature(VOCABULARY[name]).parameters
    named: dict[str, object] = {}
    for keyword in keywords:
        if keyword.arg is None or keyword.arg not in known:
            raise PatternError(f"{name} has no argument {keyword.arg!r}.{_hint(keyword.arg or '', list(known))}")
        if keyword.arg in named:
            raise PatternError(f"{name} got the argument {keyword.arg!r} twice")
        named[keyword.arg] = _value(keyword.value, text)
    positional = [_value(argument, text) for argument in arguments]
    try:
        inspect.signature(VOCABULARY[name]).bind(*positional, **named)
    except TypeError as error:
        raise PatternError(f"{name}: {error}; its arguments are {_listed(list(known))}") from None
    return VOCABULARY[name](*positional, **named)


def _hint(name: str, known: list[str]) -> str:
    return nearest(name, known) or f" Its arguments are {_listed(known)}."


def _listed(names: list[str]) -> str:
    return ", ".join(names) if names else "none"


def _quote(text: str) -> str:
    shortened = " ".join(text.split())
    return repr(shortened if len(shortened) <= 60 else shortened[:57] + "...")
