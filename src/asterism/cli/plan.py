"""asterism plan: how a pattern is computed at a length, and what that costs."""

from collections.abc import Sequence

from asterism.cli.parser import Parser, print_json, whole_number
from asterism.compiler import compile_pattern
from asterism.patterns import parse


def run(argv: Sequence[str]) -> None:
    arguments = _parser().parse(argv)
    plan = compile_pattern(parse(arguments.pattern), arguments.length, tile=arguments.tile)
    if arguments.json:
        print_json(plan.summary())
    else:
        print(plan.describe())


def _parser() -> Parser:
    parser = Parser("plan", __doc__ or "", 'asterism plan "strided(stride=128)" -n 16384')
    parser.add_argument("pattern", help='the rule, such as "fixed(stride=128, summary=8)"')
    parser.add_argument("-n", "--length", type=whole_number(1), required=True, help="how many tokens")
    parser.add_argument("--tile", type=whole_number(1), help="side of a tile (default: chosen by the cost model)")
    return parser
