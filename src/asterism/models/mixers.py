"""The text of the mixers: patterns and schedules, and `fourier()`, which is no pattern.

A text stands for all layers, a list has one text per layer. `fourier()` stands alone or as a part of
`interleave(...)`; everything else is a pattern (`asterism.patterns.parse_schedule`).
"""

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from asterism.errors import ConfigurationError, PatternError
from asterism.patterns import Pattern, parse, parse_schedule


@dataclass(frozen=True)
class Fourier:
    """Fourier mixing (`asterism.layers.FourierMixing`) in the place of attention."""

    text: str = "fourier()"


def parse_mixers(mixers: str | Sequence[str], layers: int) -> list[Pattern | Fourier]:
    """What mixes the tokens of each layer.

    Raises PatternError for a text that cannot be read, ConfigurationError for a list whose length is not `layers`.
    """
    if isinstance(mixers, str):
        turns = _parse_turns(mixers)
        return [turns[number % len(turns)] for number in range(layers)]
    if len(mixers) != layers:
        raise ConfigurationError(
            f"{len(mixers)} patterns are listed for {layers} layers; give one per layer, or one schedule for all"
        )
    return [Fourier() if _is_fourier(_read(text)) else _parse_pattern(text) for text in mixers]


def _parse_turns(text: str) -> tuple[Pattern | Fourier, ...]:
    """The mixers that take turns from layer to layer."""
    tree = _read(text)
    if _is_fourier(tree):
        return (Fourier(),)
    if not (isinstance(tree, ast.Call) and _names(tree.func, "interleave") and any(map(_is_fourier, tree.args))):
        _refuse_fourier_inside(text)
        return parse_schedule(text).patterns
    if tree.keywords:
        raise PatternError(f"interleave takes patterns only, got the argument {tree.keywords[0].arg!r}")
    return tuple(Fourier() if _is_fourier(part) else _parse_pattern(ast.unparse(part)) for part in tree.args)


def _parse_pattern(text: str) -> Pattern:
    _refuse_fourier_inside(text)
    return parse(text)


def _read(text: str) -> ast.expr | None:
    """The syntax tree, or None: then the parser of patterns says what is wrong with the text."""
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _is_fourier(tree: ast.expr | None) -> bool:
    return isinstance(tree, ast.Call) and _names(tree.func, "fourier") and not tree.args and not tree.keywords


def _names(tree: ast.expr, name: str) -> bool:
    return isinstance(tree, ast.Name) and tree.id == name


def _refuse_fourier_inside(text: str) -> None:
    tree = _read(text)
    if tree is not None and any(isinstance(part, ast.expr) and _names(part, "fourier") for part in ast.walk(tree)):
        raise PatternError(
            f"fourier() is a mixer without arguments and no pattern, got {text!r}:"
            " let it stand alone, or as a part of interleave(...)"
        )
