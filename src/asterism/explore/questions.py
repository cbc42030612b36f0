"""The questions of the page: each takes plain values and gives plain values, or is refused with an AsterismError.

A question that comes from a browser may hold anything, so every value is checked here before it is used.
"""

from collections.abc import Callable
from typing import Any

from asterism.errors import ConfigurationError, PatternError, shown
from asterism.explore.cost import cost_by_length
from asterism.explore.degrees import count_degrees
from asterism.explore.gallery import gallery
from asterism.explore.machine import machine
from asterism.explore.picture import MOST_CELLS, draw_part
from asterism.explore.proof import prove
from asterism.explore.values import Given, number, part
from asterism.explore.vocabulary import vocabulary
from asterism.patterns import Mixer, Pattern, Schedule, Transform, parse_schedule
from asterism.patterns.draw import check_queries
from asterism.patterns.pattern import MOST_HEADS

MOST_TOKENS = 2**20
"""The longest sequence of a picture."""

MOST_CHARACTERS = 20_000
"""Of a text. Longer ones, such as lists of pairs, are for `asterism show`."""

_MOST_LAYERS = 512
"""Of a schedule, each of which the page lists."""


def answer(given: object) -> dict[str, Any]:
    """The answer to a question {"question": NAME, ...}. Raises AsterismError where it is refused."""
    name = given.get("question") if isinstance(given, dict) else None
    if not isinstance(given, dict) or not isinstance(name, str) or name not in QUESTIONS:
        raise ConfigurationError("unknown-question", f"a question must be one of {', '.join(QUESTIONS)}")
    return QUESTIONS[name](given)


# --- the questions ----------------------------------------------------------------------------------------------------


def _start(given: Given) -> dict[str, Any]:
    return {"vocabulary": vocabulary(), "gallery": gallery(), "most_tokens": MOST_TOKENS, "most_cells": MOST_CELLS}


def _machine(given: Given) -> dict[str, Any]:
    return machine()


def _picture(given: Given) -> dict[str, Any]:
    """The schedule that a text means, and a part of one layer's mask for one head, which is the last if it has less."""
    schedule, n = _schedule(given), number(given, "length", 1, MOST_TOKENS)
    layer = number(given, "layer", 0, 2**31 - 1) % schedule.period
    mixer = schedule.layer(layer)
    told = _told(schedule, n, layer)
    if isinstance(mixer, Transform):
        return told | {"note": f"{mixer} {mixer.meaning}: it has no pairs"}
    queries = check_queries(mixer, n, None)
    if not 1 <= queries <= MOST_TOKENS:
        raise PatternError(
            "picture-queries", f"{queries:,} queries stand in the source: there must be 1 to {MOST_TOKENS:,}"
        )
    head = min(number(given, "head", 0, MOST_HEADS), mixer.heads - 1)
    rows, columns = part(given, "rows", queries), part(given, "columns", n)
    cells = number(given, "cells", 1, MOST_CELLS)
    return told | {"head": head, "queries": queries, **draw_part(mixer, n, head, rows, columns, cells)}


def _degrees(given: Given) -> dict[str, Any]:
    mixer, n = _pattern(given), number(given, "length", 1, MOST_TOKENS)
    return count_degrees(mixer, n, min(number(given, "head", 0, MOST_HEADS), mixer.heads - 1))


def _cost(given: Given) -> dict[str, Any]:
    """`prices` and `tiles` are the server's own, of the answer to `machine`."""
    pattern = _pattern(given)
    heads = pattern.heads if pattern.heads > 1 else number(given, "heads", 1, MOST_HEADS)
    dtype = "bfloat16" if given.get("dtype") == "bfloat16" else "float32"
    return {"heads": heads} | cost_by_length(pattern, heads, dtype, given["prices"], given["tiles"])


def _certificate(given: Given) -> dict[str, Any]:
    return prove(_schedule(given), number(given, "length", 1, MOST_TOKENS))


QUESTIONS: dict[str, Callable[[Given], dict[str, Any]]] = {
    "start": _start,
    "machine": _machine,
    "picture": _picture,
    "degrees": _degrees,
    "cost": _cost,
    "certificate": _certificate,
}
"""What may be asked, by name."""


# --- their values -----------------------------------------------------------------------------------------------------


def _schedule(given: Given) -> Schedule:
    text = given.get("text")
    if not isinstance(text, str):
        raise ConfigurationError("no-text", f"a pattern must be a text, got {shown(text)}")
    if len(text) > MOST_CHARACTERS:
        raise PatternError(
            "text-too-long", f"the text has {len(text):,} characters: at most {MOST_CHARACTERS:,} are read here"
        )
    if not text.strip():
        raise PatternError("text-empty", "type a pattern, such as window(left=255)")
    schedule = parse_schedule(text)
    if schedule.period > _MOST_LAYERS:
        raise PatternError(
            "schedule-too-long", f"the schedule has {schedule.period:,} layers: at most {_MOST_LAYERS} are shown here"
        )
    return schedule


def _pattern(given: Given) -> Pattern:
    schedule = _schedule(given)
    mixer = schedule.layer(number(given, "layer", 0, 2**31 - 1))
    if isinstance(mixer, Transform):
        raise PatternError("transform-not-a-pattern", f"{mixer} has no pairs to count")
    return mixer


def _told(schedule: Schedule, n: int, layer: int) -> dict[str, Any]:
    """What the page says of a schedule beside its picture."""
    return {
        "schedule": str(schedule),
        "layers": [_layer(mixer) for mixer in schedule.mixers],
        "layer": layer,
        "python": _python(schedule, n),
    }


def _layer(mixer: Mixer) -> dict[str, Any]:
    heads = mixer.heads if isinstance(mixer, Pattern) else 1
    return {"text": str(mixer), "heads": heads, "causal": mixer.is_causal, "has_pairs": mixer.has_pairs}


def _python(schedule: Schedule, n: int) -> str:
    """A program that draws and counts the same."""
    return (
        "from asterism.patterns import Pattern, parse_schedule\n"
        "from asterism.patterns.draw import degrees, draw\n\n"
        f"schedule = parse_schedule({schedule.text!r})\n"
        "for layer, mixer in enumerate(schedule.mixers):\n"
        "    if isinstance(mixer, Pattern):\n"
        f'        print(f"layer {{layer}}:", draw(mixer, {n}), degrees(mixer, {n}), sep="\\n")\n'
    )
