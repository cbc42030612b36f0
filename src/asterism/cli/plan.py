"""asterism plan: explain how a pattern is computed at a length, and what that costs.

Of a schedule, each distinct pattern has a plan of its own.
"""

from argparse import Namespace
from collections.abc import Sequence

from asterism.cli.layers import FOURIER, add_pattern, heading, queries_of, read_pattern
from asterism.cli.parser import Parser, print_json, whole_number
from asterism.compiler import Plan, compile_pattern
from asterism.patterns import Mixer, Pattern


def run(argv: Sequence[str]) -> None:
    arguments = _parser().parse(argv)
    schedule, turns = read_pattern(arguments)
    plans = [_plan(turn.mixer, arguments) for turn in turns]
    if arguments.json:
        rows = [
            {"places": turn.places, "mixer": turn.mixer.text, "plan": plan.summary() if plan else None}
            for turn, plan in zip(turns, plans, strict=True)
        ]
        print_json({"schedule": str(schedule), "length": arguments.length, "period": schedule.period, "mixers": rows})
        return
    for number, (turn, plan) in enumerate(zip(turns, plans, strict=True)):
        if schedule.period > 1:
            print("\n" * (number > 0) + heading(turn, schedule, arguments.layer))
        print(plan.describe() if plan else FOURIER)


def _plan(mixer: Mixer, arguments: Namespace) -> Plan | None:
    if not isinstance(mixer, Pattern):
        return None
    queries = queries_of(mixer, arguments)
    return compile_pattern(mixer, queries, arguments.length, query_offset=0, tile=arguments.tile)


def _parser() -> Parser:
    parser = Parser("plan", __doc__ or "", 'asterism plan "strided(stride=128)" -n 16384')
    add_pattern(parser, "fixed(stride=128, summary=8)")
    parser.add_argument("--tile", type=whole_number(1), help="side of a tile (default: chosen by the cost model)")
    return parser
