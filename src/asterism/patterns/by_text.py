"""Finds the pattern that belongs to a text, where only the text can be passed.

A schema of torch.library, and so the graph of a compiled model, holds strings and numbers but no Pattern. The text is
the pattern: another process can parse it. In this one the pattern itself mostly still lives, and the text of an
explicit one may be megabytes; so `remember` keeps, under the text, a weak reference to the pattern that it came from,
and `by_text` parses only where there is none. A string keeps its hash, so looking up the very same one takes no time.
"""

from weakref import WeakValueDictionary

from asterism.patterns.pattern import Pattern
from asterism.patterns.text import parse

_LIVING: WeakValueDictionary[str, Pattern] = WeakValueDictionary()


def remember(pattern: Pattern) -> str:
    """The pattern's text, which `by_text` turns into this very pattern while it lives."""
    _LIVING[pattern.text] = pattern
    return pattern.text


def by_text(text: str) -> Pattern:
    """The pattern that a text means. Raises PatternError as `parse` does."""
    living = _LIVING.get(text)
    return parse(text) if living is None else living
