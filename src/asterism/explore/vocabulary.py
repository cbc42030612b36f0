"""The names that a pattern may call, for completion: their arguments and what they mean, from the functions."""

import inspect
import re

from asterism.patterns import interleave
from asterism.patterns.text import TRANSFORMS, VOCABULARY


def vocabulary() -> list[dict[str, object]]:
    """For every name: its arguments as text, such as "left=0", and the first sentence of its docstring."""
    functions = {**VOCABULARY, "interleave": interleave}
    words: list[dict[str, object]] = [
        {"name": name, "arguments": _arguments(function), "meaning": _meaning(function.__doc__ or "")}
        for name, function in functions.items()
    ]
    words += [
        {"name": name, "arguments": _arguments(transform), "meaning": f"In place of attention, {transform().meaning}."}
        for name, transform in TRANSFORMS.items()
    ]
    return sorted(words, key=lambda word: str(word["name"]))


def _arguments(function: object) -> list[str]:
    found = inspect.signature(function).parameters.values()  # type: ignore[arg-type]  # all entries are functions
    return [
        f"*{one.name}"
        if one.kind is one.VAR_POSITIONAL
        else one.name
        if one.default is one.empty
        else f"{one.name}={one.default!r}"
        for one in found
    ]


def _meaning(docstring: str) -> str:
    """The first sentence of a docstring, without its marks."""
    words = " ".join(docstring.partition("\n\n")[0].split()).replace("`", "").replace("*", "")
    return re.split(r"(?<=[\w)])\. (?=[A-Z])", words)[0].removesuffix(".") + "."
