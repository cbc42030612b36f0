"""What `show` and `plan` share: a pattern or a schedule as the distinct mixers of its layers."""

from argparse import Namespace
from typing import NamedTuple

from asterism.cli.parser import Parser, whole_number
from asterism.errors import PatternError
from asterism.patterns import Mixer, Schedule, Transform, parse_schedule
from asterism.patterns.draw import check_queries

MOST_TOKENS = 2**24
"""The longest sequence shown or planned: a plan lists every token, in up to a few gigabytes."""


class Turn(NamedTuple):
    """A pattern or transform, and the layers that use it: those whose number modulo the period is among `places`."""

    places: tuple[int, ...]
    mixer: Mixer


def add_pattern(parser: Parser, example: str) -> None:
    """Add the arguments PATTERN, -n, --queries and --layer."""
    parser.add_argument(
        "pattern", metavar="PATTERN", help=f'a pattern such as "{example}", or a schedule such as "interleave(A, B)"'
    )
    parser.add_argument(
        "-n", "--length", type=whole_number(1, MOST_TOKENS), required=True, metavar="N", help="tokens of the sequence"
    )
    parser.add_argument(
        "--queries",
        type=whole_number(1, MOST_TOKENS),
        metavar="N",
        help="number of queries: of across(...), tokens of the decoder (default: those inside the source); else the"
        " first N tokens (default: all)",
    )
    parser.add_argument(
        "--layer", type=whole_number(0), metavar="N", help="only this layer of a schedule (default: every pattern)"
    )


def without_pattern(mixer: Transform) -> str:
    """What is said of a mixer that has no pattern to show."""
    return f"{mixer} {mixer.meaning}: every token depends on every other, and there is no pattern of attention"


def queries_of(mixer: Mixer, arguments: Namespace) -> int:
    """How many queries a mixer is shown with. Raises PatternError for more than it can have."""
    if isinstance(mixer, Transform):
        return int(arguments.length)
    count = check_queries(mixer, arguments.length, arguments.queries)
    if count > MOST_TOKENS:
        raise PatternError(
            "too-many-queries", f"{count:,} queries stand in the source of {mixer}: ask for {MOST_TOKENS:,} (--queries)"
        )
    return count


def read_pattern(arguments: Namespace) -> tuple[Schedule, list[Turn]]:
    """The schedule that was given, and each distinct mixer of the layers that were asked for."""
    schedule = parse_schedule(arguments.pattern)
    if arguments.layer is not None:
        return schedule, [Turn((arguments.layer % schedule.period,), schedule.layer(arguments.layer))]
    places: dict[Mixer, tuple[int, ...]] = {}
    for place, mixer in enumerate(schedule.mixers):
        places[mixer] = (*places.get(mixer, ()), place)
    return schedule, [Turn(members, mixer) for mixer, members in places.items()]


def heading(turn: Turn, schedule: Schedule, layer: int | None) -> str:
    """The line above a mixer of a schedule: which layers use it."""
    if layer is not None:
        return f"layer {layer:,}"
    if len(turn.places) == schedule.period:
        return "every layer"
    numbers = [cycle * schedule.period + place for cycle in range(3) for place in turn.places][:4]
    share = f"{len(turn.places)} of every {schedule.period}"
    return f"layers {', '.join(map(str, numbers))}, ... ({share})"
