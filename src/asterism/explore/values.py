"""Values of a question, each checked before it is used: whatever a browser sends."""

from collections.abc import Mapping
from typing import Any

from asterism.calls import is_whole, quoted
from asterism.errors import ConfigurationError, shown

Given = Mapping[str, Any]


def number(given: Given, name: str, least: int, most: int) -> int:
    """A whole number in a range. Raises ConfigurationError."""
    value = given.get(name)
    if not is_whole(value, least, most):
        raise ConfigurationError(
            "number-out-of-range", f"{name} must be a whole number from {least:,} to {most:,}, got {_short(value)}"
        )
    return int(value)  # type: ignore[arg-type]  # is_whole says so


def _short(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and abs(value) < 2**63 else quoted(shown(value))


def part(given: Given, name: str, tokens: int) -> tuple[int, int]:
    """A range of tokens, cut to those that there are; at least one token. Raises ConfigurationError."""
    value = given.get(name)
    if not (isinstance(value, list) and len(value) == 2 and all(is_whole(one, -(2**40), 2**40) for one in value)):
        raise ConfigurationError("part-form", f"{name} must be two whole numbers, got {quoted(shown(value))}")
    start = min(max(value[0], 0), tokens - 1)
    return start, min(max(value[1], start + 1), tokens)
