"""The questions about a model: what it is, what it reads in a text, and parts of that."""

import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

from asterism.errors import ConfigurationError, DataError, shown
from asterism.explore.model import ReadingModel
from asterism.explore.picture import MOST_CELLS
from asterism.explore.reading import Reading
from asterism.explore.values import Given, number, part

_MOST_BYTES = 2**24
"""Of a file of text: no model reads more tokens than that here."""


class ModelQuestions:
    """Answers questions about a model; keeps what was read last."""

    def __init__(self, model: ReadingModel, file: str | None) -> None:
        self.model, self.file = model, file
        self.text = None if file is None else _text_of(file)
        self.read: tuple[str, Reading] | None = None

    def answer(self, given: Given) -> dict[str, Any]:
        """The answer to {"question": NAME, ...}. Raises AsterismError where it is refused."""
        answers: dict[str, Callable[[Given], dict[str, Any]]] = {
            "model": self._model, "read": self._read, "mass": self._mass, "keys": self._keys
        }  # fmt: skip
        return answers[given["question"]](given)

    def _model(self, given: Given) -> dict[str, Any]:
        return {
            "name": self.model.name,
            "unit": self.model.unit,
            "limit": self.model.limit,
            "trained": self.model.trained,
            "file": None if self.text is None else {"name": self.file, "characters": len(self.text)},
        }

    def _read(self, given: Given) -> dict[str, Any]:
        """The text, or without one the file."""
        text = given.get("text", self.text)
        if not isinstance(text, str):
            raise ConfigurationError("no-text", f"type a text for the model to read, got {shown(text)}")
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # a half of a pair is no character
        if not text:
            raise ConfigurationError("text-empty", "type a text for the model to read")
        began = time.monotonic()
        name = sha256(text.encode(errors="replace")).hexdigest()[:16]
        if self.read is None or self.read[0] != name:
            self.read = None  # before the next one needs memory
            self.read = name, self._reading(text)
        reading = self.read[1]
        return {
            "reading": name,
            "tokens": reading.tokens,
            "front": reading.front,
            "length": reading.length,
            "block": reading.block,
            "seconds": round(time.monotonic() - began, 3),
            "layers": reading.layers(),
        }

    def _reading(self, text: str) -> Reading:
        unit, limit = self.model.unit, self.model.limit
        if len(text) > _MOST_BYTES:
            raise ConfigurationError(
                "text-too-long", f"the text has {len(text):,} characters: at most {limit:,} {unit}"
            )
        encoded = self.model.encode(text)
        if len(encoded.ids) > limit:
            raise ConfigurationError(
                "text-too-long", f"the text has {len(encoded.ids):,} {unit}, but at most {limit:,} can be read: cut it"
            )
        if not encoded.ids:
            raise ConfigurationError("text-empty", f"the text holds no {unit} for the model to read")
        return Reading(self.model, encoded)

    def _mass(self, given: Given) -> dict[str, Any]:
        reading = self._of(given)
        rows, columns = (part(given, name, reading.length) for name in ("rows", "columns"))
        return reading.picture(*_choice(given), rows, columns, number(given, "cells", 1, MOST_CELLS))

    def _keys(self, given: Given) -> dict[str, Any]:
        reading = self._of(given)
        return reading.keys(*_choice(given), number(given, "query", 0, reading.length - 1))

    def _of(self, given: Given) -> Reading:
        if self.read is None or self.read[0] != given.get("reading"):
            raise ConfigurationError("reading-gone", "another text was read since: read this one again")
        return self.read[1]


def _choice(given: Given) -> tuple[int, int | None]:
    """A layer, and a head or None for the mean of all."""
    head = number(given, "head", -1, 2**16)
    return number(given, "layer", 0, 2**16), None if head < 0 else head


def _text_of(file: str) -> str:
    """The text of a file. Raises DataError."""
    try:
        with Path(file).open("rb") as opened:
            content = opened.read(_MOST_BYTES + 1)
    except OSError as error:
        raise DataError("unreadable-text", f"text: {file} cannot be read: {error.strerror}") from None
    if len(content) > _MOST_BYTES:
        raise DataError("text-too-long", f"text: {file} has more than {_MOST_BYTES:,} bytes: cut it")
    return content.decode(errors="replace")
