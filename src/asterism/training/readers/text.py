"""The text form of readers: `parse_reader("windows(length=512, stride=128, pool=max)")`.

One call of the vocabulary. Its arguments are numbers and bare words; nothing is ever evaluated.
"""

import ast
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from asterism.calls import argument, call, expression, quoted
from asterism.errors import ConfigurationError, nearest, shown
from asterism.training.readers.direct import Cut, Whole
from asterism.training.readers.reader import Reader
from asterism.training.readers.selected import Iterated, Selected
from asterism.training.readers.windows import Windows

VOCABULARY: dict[str, type[Reader]] = {reader.name: reader for reader in (Whole, Cut, Windows, Selected, Iterated)}
"""Every reader, by the name that a text calls."""

MEANING = "how documents become rows: " + ", ".join(f"{name}()" for name in VOCABULARY)
"""What the flag is for, in a line."""


@lru_cache(maxsize=256)
def parse_reader(text: str) -> Reader:
    """The reader that a text means; `parse_reader(str(reader)) == reader`.

    Raises ConfigurationError, in one line, for unknown names (with the nearest known one), wrong arguments, and
    anything that is no such call.
    """
    match expression(text):
        case ast.Call(func=ast.Name(id=name), args=positional, keywords=keywords):
            named = [(one.arg, argument(one.value, _refused(text))) for one in keywords]
            given = [argument(one, _refused(text)) for one in positional]
            return call(f"reader: {name}", _known(name), given, named, ConfigurationError)
        case ast.Name(id=name):
            _known(name)
            raise ConfigurationError(f"reader: {name} is a reader's name and needs its parentheses: write {name}()")
        case _:
            raise _refused(text)


def with_reader(record: Mapping[str, Any]) -> dict[str, Any]:
    """What run.json says of a run, also of one that was made before there were readers.

    Then a `stride` was what windows had in common, and without one a document was cut.
    """
    if "reader" in record:
        return dict(record)
    stride = record.get("stride")
    rest = {name: value for name, value in record.items() if name != "stride"}
    return {**rest, "reader": "cut()" if stride is None else f"windows(stride={stride})"}


def _known(name: str) -> type[Reader]:
    if name not in VOCABULARY:
        hint = f"{nearest(name[:60], VOCABULARY)} Known: {', '.join(VOCABULARY)}"
        raise ConfigurationError(f"reader: unknown reader {shown(name)}.{hint}")
    return VOCABULARY[name]


def _refused(text: str) -> ConfigurationError:
    return ConfigurationError(
        f"reader: {quoted(text)} is no reader: write a call such as windows(length=512, stride=128, pool=max)"
    )
