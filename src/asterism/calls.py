"""Reads calls of a closed vocabulary from text, with Python's grammar and without evaluating anything.

What patterns, readers and modalities share: the syntax tree of a text, and the arguments of a call put to a function or
refused in one line. Who may be called, and which values an argument may have, is the vocabulary's to say: that of
patterns is a grammar of its own, those of readers and modalities are `Calls`.
"""

import ast
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from asterism.errors import AsterismError, ConfigurationError, nearest, shown
from asterism.lazy import imported

Result = TypeVar("Result")


class Calls(dict[str, str]):
    """Classes by the names that a text calls, each imported when it is first called: `parse("cut(length=512)")`.

    kind         what the classes are, as messages say it: "reader"
    places       module and class, "asterism.training.readers.direct:Cut", by name
    example      a call, as messages show it
    parentheses  whether a call without arguments needs them
    """

    def __init__(self, kind: str, places: Mapping[str, str], *, example: str, parentheses: bool = True) -> None:
        super().__init__(places)
        self.kind, self.example, self.parentheses = kind, example, parentheses
        self._kept = lru_cache(maxsize=256)(self._parsed)

    def parse(self, text: str) -> Any:
        """What the one call gives that a text is; its arguments are numbers, texts and bare words.

        Raises ConfigurationError, in one line, for unknown names (with the nearest known one), wrong arguments, and
        anything that is no such call.
        """
        return self._kept(text)

    def _parsed(self, text: str) -> Any:
        refusal = ConfigurationError(
            "not-a-call", f"{self.kind}: cannot read {quoted(text)}: write a call such as {self.example}"
        )
        match expression(text):
            case ast.Call(func=ast.Name(id=name), args=positional, keywords=keywords):
                named = [(one.arg, argument(one.value, refusal)) for one in keywords]
                given = [argument(one, refusal) for one in positional]
                return call(f"{self.kind}: {name}", self._class(name), given, named, ConfigurationError)
            case ast.Name(id=name):
                found = self._class(name)
                if self.parentheses:
                    raise ConfigurationError(
                        "missing-parentheses",
                        f"{self.kind}: {name} needs parentheses: write {name}()",
                    )
                return call(f"{self.kind}: {name}", found, [], [], ConfigurationError)
            case _:
                raise refusal

    def _class(self, name: str) -> type[Any]:
        if name not in self:
            hint = f"{nearest(name[:60], self)} Known: {', '.join(self)}"
            raise ConfigurationError("unknown-name", f"{self.kind}: unknown {self.kind} {shown(name)}.{hint}")
        return imported(self[name])


def expression(text: str) -> ast.expr | None:
    """The syntax tree of a text; None if it is no expression."""
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def fault(text: str) -> str:
    """Where Python's grammar stops in a text that is no expression, as the end of a sentence; "" where it is not known.

    " (at character 7: '(' was never closed)"
    """
    try:
        ast.parse(text.strip(), mode="eval")
    except SyntaxError as error:
        if error.lineno == 1 and error.offset:
            return f" (at character {error.offset}: {error.msg})"
    except (ValueError, RecursionError, MemoryError):
        pass
    return ""


def call(
    name: str,
    function: Callable[..., Result],
    positional: Sequence[object],
    named: Iterable[tuple[str | None, object]],
    error: type[AsterismError],
) -> Result:
    """What the function gives for these arguments.

    Raises `error`, in one line, for an argument that the function does not have (with the nearest that it has), that is
    given twice, or that is missing.
    """
    known = list(inspect.signature(function).parameters)
    keywords: dict[str, object] = {}
    for argument, value in named:
        if argument is None or argument not in known:
            hint = nearest(argument or "", known) or f" Its arguments are {_listed(known)}."
            raise error("unknown-argument", f"{name} has no argument {shown(argument)}.{hint}")
        if argument in keywords:
            raise error("argument-twice", f"{name} got the argument {shown(argument)} twice")
        keywords[argument] = value
    try:
        inspect.signature(function).bind(*positional, **keywords)
    except TypeError as reason:
        raise error("bad-argument", f"{name}: {reason}; its arguments are {_listed(known)}") from None
    return function(*positional, **keywords)


def argument(tree: ast.expr, refusal: AsterismError) -> object:
    """The number, text or bare word that an argument is. Raises the refusal for anything else."""
    match tree:
        case ast.Constant(value=bool() | int() | float() | str() | None as literal):
            return literal
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as literal)):
            return -literal
        case ast.Name(id=word):
            return word
        case _:
            raise refusal


def is_whole(value: object, least: int, most: int = 2**31 - 1) -> bool:
    """Whether an argument is a whole number within these limits; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def quoted(text: str) -> str:
    """A text as a message shows it: on one line, and short."""
    shortened = " ".join(text.split())
    return repr(shortened if len(shortened) <= 60 else shortened[:57] + "...")


def _listed(names: list[str]) -> str:
    return ", ".join(names) if names else "none"
