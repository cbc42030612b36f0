"""Where in a text the parser's refusal lies, so that the page can mark it.

The parser itself decides: the place is the first, innermost part of the text that it refuses in the same words when it
stands alone. Where no part does, as for a part that is right alone and wrong where it stands, nothing is marked.
"""

import ast
from collections.abc import Iterator

from asterism.calls import expression
from asterism.errors import PatternError
from asterism.patterns import parse_schedule

_MOST_PARTS = 64
"""Parts that are tried: a text that is typed has few, and a pasted one must not take a second."""


def fault_of(text: str, error: PatternError) -> tuple[int, int] | None:
    """The characters of the text, half-open, that the error is about; None where that is not known."""
    before = len(text) - len(text.lstrip())
    stripped = text.strip()
    tree = expression(stripped)
    if tree is None:
        stop = _of_grammar(stripped)
        return None if stop is None else (before + stop, before + stop + 1)
    for part in _parts(tree):
        place = _span(stripped, part)
        if place and str(_refusal(stripped[slice(*place)])) == str(error):
            start, stop = _argument(stripped, part, error) or place
            return before + start, before + stop
    return None


def _of_grammar(text: str) -> int | None:
    """Where Python's grammar stops."""
    try:
        ast.parse(text, mode="eval")
    except SyntaxError as error:
        if error.lineno == 1 and error.offset:
            return min(error.offset - 1, max(len(text) - 1, 0))
    except (ValueError, RecursionError, MemoryError):
        pass
    return None


def _parts(tree: ast.expr) -> Iterator[ast.expr]:
    """Calls and bare names, innermost first."""
    outermost_first = [node for node in ast.walk(tree) if isinstance(node, ast.Call | ast.Name)]
    names_of_calls = {id(node.func) for node in outermost_first if isinstance(node, ast.Call)}
    parts = [node for node in outermost_first if id(node) not in names_of_calls]
    yield from parts[::-1][:_MOST_PARTS]


def _argument(text: str, part: ast.expr, error: PatternError) -> tuple[int, int] | None:
    """The name of the argument that an error names, in the call that it is about."""
    if error.code in ("unknown-argument", "argument-twice") and isinstance(part, ast.Call):
        for keyword in part.keywords[::-1]:
            if keyword.arg and repr(keyword.arg) in str(error).partition(". Did")[0]:
                start = len(text.encode()[: keyword.col_offset].decode())
                return start, start + len(keyword.arg)
    return None


def _span(text: str, part: ast.expr) -> tuple[int, int] | None:
    """The characters of a part; None where it ends on another line. The tree counts in bytes of UTF-8."""
    if part.lineno != 1 or part.end_lineno != 1 or part.end_col_offset is None:
        return None
    line = text.encode()
    return len(line[: part.col_offset].decode()), len(line[: part.end_col_offset].decode())


def _refusal(text: str) -> PatternError | None:
    try:
        parse_schedule(text)
    except PatternError as error:
        return error
    return None
