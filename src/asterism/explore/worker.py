"""A process that answers questions: a line of JSON in, a line of JSON out, until its input ends.

The answer is {"answer": ...} or {"refused": {"code", "message", "place"}}; `place` is where in the text the refusal
lies, if that is known. Whatever libraries print goes to stderr, never between the lines.
"""

import json
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any, BinaryIO

from asterism.errors import AsterismError, PatternError
from asterism.explore.fault import fault_of
from asterism.explore.questions import answer

_MOST_MEMORY = 4 * 2**30
"""Bytes of address space: a question that needs more is refused."""


_FIRST = {"question": "picture", "text": "bigbird()", "length": 4096, "layer": 0, "head": 0}
_FIRST |= {"rows": [0, 4096], "columns": [0, 4096], "cells": 16}
"""Answered before the worker is ready, so that nobody waits for what is imported and made at first use."""


Answer = Callable[[dict[str, Any]], dict[str, Any]]


def respond(line: bytes, answer: Answer = answer) -> dict[str, Any]:
    """What a worker says to a line."""
    try:
        given = json.loads(line)
    except (ValueError, RecursionError):
        return _refused("not-json", "a question must be JSON")
    try:
        return {"answer": answer(given)}
    except Exception as error:
        return refusal_of(error, given)


def refusal_of(error: Exception, given: Any = None) -> dict[str, Any]:
    """What an error says of a question."""
    match error:
        case PatternError():
            text = given.get("text") if isinstance(given, dict) else None
            place = fault_of(text, error) if isinstance(text, str) else None
            return _refused(error.code, _line(error), place)
        case AsterismError():
            return _refused(error.code, _line(error))
        case MemoryError():
            return _refused("too-much-memory", "this takes too much memory: ask for fewer tokens or a simpler pattern")
        case RecursionError():
            return _refused("nested-too-deeply", "the text is nested too deeply")
    # The page must go on; tests let none of these pass.
    message = f"this question fails, by a defect of the library: {type(error).__name__}: {error}"
    return _refused("defect", message)


def _refused(code: str, message: str, place: tuple[int, int] | None = None) -> dict[str, Any]:
    return {"refused": {"code": code, "message": " ".join(message.split())[:600], "place": place}}


def _line(error: AsterismError) -> str:
    return str(error).splitlines()[0]


def main() -> None:
    """Answer until the input ends."""
    answers = answers_on_stdout()
    _limit_memory()
    warnings.simplefilter("ignore", SyntaxWarning)  # of Python's grammar about what somebody types
    answer(_FIRST)
    serve_lines(answers, answer)


def answers_on_stdout() -> BinaryIO:
    """Where answers are written. What is printed from now on goes to stderr."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return answers


def serve_lines(answers: BinaryIO, answer: Answer) -> None:
    """Say that the worker is ready, and answer each line of the input."""
    answers.write(b'{"ready": true}\n')
    answers.flush()
    for line in sys.stdin.buffer:
        answers.write(json.dumps(respond(line, answer), allow_nan=False).encode() + b"\n")
        answers.flush()


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # Windows has no such limits
        return
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    limit = _MOST_MEMORY if most == resource.RLIM_INFINITY else min(_MOST_MEMORY, most)
    resource.setrlimit(resource.RLIMIT_AS, (limit, most))


if __name__ == "__main__":
    main()
