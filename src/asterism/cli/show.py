"""asterism show: the picture of a pattern, how many keys its queries read, and what computing it costs."""

from collections.abc import Sequence
from dataclasses import asdict

from asterism.cli.parser import Parser, amount, print_json, whole_number
from asterism.compiler import compile_pattern
from asterism.patterns import parse
from asterism.patterns.draw import degrees, draw, draw_image


def run(argv: Sequence[str]) -> None:
    arguments = _parser().parse(argv)
    pattern, n, head = parse(arguments.pattern), arguments.length, arguments.head
    picture = draw(pattern, n, head=head)
    if arguments.image:
        draw_image(pattern, n, arguments.image, head=head)
    read, plan = degrees(pattern, n, head), compile_pattern(pattern, n)
    if arguments.json:
        head_facts = {"head": head, "picture": picture.splitlines()[1:-1], "degrees": asdict(read)}
        print_json({"pattern": pattern.text, "length": n, **head_facts, "plan": plan.summary()})
        return
    sampled = f", of {read.queries:,} queries looked at" if read.queries < n else ""
    print(picture)
    print(f"degrees: a query reads {read.minimum:,} to {read.maximum:,} keys, {read.mean:,.1f} on average{sampled}")
    print(f"density: {plan.density:.2%} of the pairs")
    print(f"cost:    {amount(plan.flops(64) / plan.heads, 'FLOP')} per head 64 wide; `asterism plan` says more")


def _parser() -> Parser:
    parser = Parser("show", __doc__ or "", 'asterism show "bigbird(block=64)" -n 1024')
    parser.add_argument("pattern", help='the rule, such as "window(left=64) | global_tokens(0)"')
    parser.add_argument("-n", "--length", type=whole_number(1), required=True, help="how many tokens")
    parser.add_argument("--head", type=whole_number(0), default=0, help="which head to show (default 0)")
    parser.add_argument("--image", metavar="PATH", help="also write the picture, as .png or .svg")
    return parser
