"""asterism plan: explain how a pattern is computed at a length, and what that costs.

A schedule gets one plan per distinct pattern. With --devices N, plan explains the communication between N devices that
share the sequence evenly: bytes and messages of one layer, compared with ways that ignore the pattern.
"""

from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from asterism.cli.errors import UsageError
from asterism.cli.mixers import add_pattern, heading, queries_of, read_pattern, without_pattern
from asterism.cli.parser import Parser, print_json, whole_number
from asterism.cli.waiting import waiting
from asterism.compiler import compile_pattern
from asterism.compiler.devices import RowShape, Shards, communicate, describe, summary
from asterism.patterns import Mixer, Pattern
from asterism.patterns.pattern import MOST_HEADS

DTYPES = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}
"""Bytes of a number."""

MOST_DEVICES = 2**12
"""The most devices of a plan: its messages may be a list of all pairs."""

_HEADS, _HEAD_DIM, _DTYPE = 8, 64, "bfloat16"


def run(argv: Sequence[str]) -> None:
    arguments = _parser().parse(argv)
    schedule, turns = read_pattern(arguments)
    with waiting("compiling"):
        plans = [_plan(turn.mixer, arguments) for turn in turns]
    if arguments.json:
        rows = [
            {"places": turn.places, "mixer": turn.mixer.text, "plan": plan[1]}
            for turn, plan in zip(turns, plans, strict=True)
        ]
        print_json({"schedule": schedule.text, "length": arguments.length, "period": schedule.period, "mixers": rows})
        return
    for number, (turn, plan) in enumerate(zip(turns, plans, strict=True)):
        if schedule.period > 1:
            print("\n" * (number > 0) + heading(turn, schedule, arguments.layer))
        print(plan[0])


def _plan(mixer: Mixer, arguments: Namespace) -> tuple[str, dict[str, Any] | None]:
    """A mixer's plan in words and as a record; that of a transform is None."""
    if not isinstance(mixer, Pattern):
        return without_pattern(mixer), None
    queries = queries_of(mixer, arguments)
    if arguments.devices is None:
        _refuse_row_flags(arguments)
        plan = compile_pattern(mixer, queries, arguments.length, query_offset=0, tile=arguments.tile)
        return plan.describe(), plan.summary()
    if arguments.tile is not None:
        raise UsageError(
            "tile-or-devices",
            "--tile is for the plan of one device, and --devices is about the communication of several",
        )
    shape = _shape(mixer, arguments)
    keys = Shards.even(arguments.length, arguments.devices)
    moved = communicate(mixer, keys if queries == keys.length else Shards.even(queries, keys.devices), keys, shape)
    return describe(moved, shape), summary(moved, shape)


def _shape(pattern: Pattern, arguments: Namespace) -> RowShape:
    """The size of a token's row. Raises UsageError for numbers of heads that do not fit."""
    heads = arguments.heads or (pattern.heads if pattern.heads > 1 else _HEADS)
    key_heads = arguments.key_heads or heads
    pattern.check_heads(heads)
    if heads % key_heads:
        raise UsageError("key-heads-divide", f"--key-heads must divide the heads, got {key_heads} and {heads}")
    dim = arguments.head_dim or _HEAD_DIM
    return RowShape(heads, key_heads, dim, dim, DTYPES[arguments.dtype or _DTYPE])


def _refuse_row_flags(arguments: Namespace) -> None:
    flags = {"--heads": arguments.heads, "--key-heads": arguments.key_heads, "--head-dim": arguments.head_dim}
    for flag, value in (flags | {"--dtype": arguments.dtype}).items():
        if value is not None:
            raise UsageError(
                "flag-needs-devices",
                f"{flag} sets the bytes of a token that moves between devices: give --devices, too",
            )


def _parser() -> Parser:
    parser = Parser("plan", __doc__ or "", 'asterism plan "strided(stride=128)" -n 16384')
    add_pattern(parser, "fixed(stride=128, summary=8)")
    parser.add_argument(
        "--tile", type=whole_number(1), metavar="N", help="side of a tile (default: chosen by the cost model)"
    )
    devices = parser.add_argument_group("communication between devices that share a sequence")
    devices.add_argument(
        "--devices",
        type=whole_number(1, MOST_DEVICES),
        metavar="N",
        help="explain the communication of N devices in a layer",
    )
    devices.add_argument(
        "--heads",
        type=whole_number(1, MOST_HEADS),
        metavar="N",
        help=f"query heads (default: the pattern's, or {_HEADS})",
    )
    devices.add_argument(
        "--key-heads", type=whole_number(1, MOST_HEADS), metavar="N", help="key heads (default: --heads)"
    )
    devices.add_argument(
        "--head-dim",
        type=whole_number(1, 2**16),
        metavar="N",
        help=f"features of keys and of values (default: {_HEAD_DIM})",
    )
    devices.add_argument("--dtype", choices=list(DTYPES), help=f"dtype of queries, keys and values (default: {_DTYPE})")
    return parser
