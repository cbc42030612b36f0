"""The text form of readers: `parse_reader("windows(length=512, stride=128, pool=max)")`.

One call of the vocabulary. Its arguments are numbers and bare words; nothing is ever evaluated.
"""

from asterism.calls import Calls
from asterism.training.readers.reader import Reader

_ROOM = "asterism.training.readers"

VOCABULARY = Calls(
    "reader",
    {
        "whole": f"{_ROOM}.direct:Whole",
        "cut": f"{_ROOM}.direct:Cut",
        "windows": f"{_ROOM}.windows:Windows",
        "selected": f"{_ROOM}.selected:Selected",
        "iterated": f"{_ROOM}.selected:Iterated",
    },
    example="windows(length=512, stride=128, pool=max)",
)
"""Module and class of every reader, by the name that a text calls."""

MEANING = "how documents become rows: " + ", ".join(f"{name}()" for name in VOCABULARY)
"""The help of the flag, in a line."""


def parse_reader(text: str) -> Reader:
    """Parse the text of a reader; `parse_reader(str(reader)) == reader`.

    Raises ConfigurationError, in one line, for unknown names (and names the nearest known one), wrong arguments, and
    anything that is not such a call.
    """
    reader: Reader = VOCABULARY.parse(text)
    return reader
