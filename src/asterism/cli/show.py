"""asterism show: draw a pattern, count the keys that its queries read, and print its cost; or list a model's own.

A schedule is shown as its distinct patterns, one after another. Where each head has its own pattern, the picture shows
one head, and the figures cover every head. For a folder with a config.json, a run, or a class of transformers such as
MistralConfig, it lists the attention of each layer: pattern, heads, sinks, cost and cache. Weights are not read.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import groupby

from asterism.cli.errors import UsageError
from asterism.cli.mixers import Turn, add_pattern, heading, queries_of, read_pattern, without_pattern
from asterism.cli.output import add_plot, written_whole
from asterism.cli.parser import Parser, percent, print_json, whole_number
from asterism.cli.show_model import names_model, show_model
from asterism.cli.waiting import waiting
from asterism.compiler import Plan, compile_pattern
from asterism.compiler.blocks import pairs_read
from asterism.errors import PatternError
from asterism.memory import amount
from asterism.patterns import Mixer, Pattern, Schedule, Transform
from asterism.patterns.draw import ASCII_GLYPHS, GLYPHS, Degrees, degrees, draw, draw_image, head_of
from asterism.patterns.selected import bounds_of

_HEAD_DIM = 64
"""Features of a head, for which FLOPs are given."""


def run(argv: Sequence[str]) -> None:
    arguments = _parser().parse(argv)
    if names_model(arguments.pattern):
        return show_model(arguments)
    n, head = arguments.length, arguments.head
    schedule, turns = read_pattern(arguments)
    _check_head(schedule, head)
    counts = [queries_of(turn.mixer, arguments) for turn in turns]
    if arguments.plot:
        with waiting("drawing"), written_whole(arguments.plot) as unfinished:
            draw_image(_drawable(turns), n, unfinished, queries=arguments.queries, head=head or 0)
    if arguments.json:
        with waiting("counting"):
            rows = [
                {"places": turn.places, "mixer": turn.mixer.text, **_record(turn.mixer, queries, n, head)}
                for turn, queries in zip(turns, counts, strict=True)
            ]
        print_json({"schedule": schedule.text, "length": n, "period": schedule.period, "mixers": rows})
        return
    for number, (turn, queries) in enumerate(zip(turns, counts, strict=True)):
        if schedule.period > 1:
            print("\n" * (number > 0) + heading(turn, schedule, arguments.layer))
        with waiting("drawing and counting"):
            described = _describe(turn.mixer, queries, n, head)
        print(described)


def _drawable(turns: Sequence[Turn]) -> list[Pattern]:
    patterns = [turn.mixer for turn in turns if isinstance(turn.mixer, Pattern)]
    transform = next((turn.mixer for turn in turns if isinstance(turn.mixer, Transform)), None)
    if not patterns and transform is not None:
        raise UsageError("plot-needs-pattern", f"--plot: {without_pattern(transform)}; leave --plot out")
    return patterns


def _check_head(schedule: Schedule, head: int | None) -> None:
    """What all heads share is shown for every head of a schedule in which another pattern has several."""
    most = max(mixer.heads if isinstance(mixer, Pattern) else 1 for mixer in schedule.mixers)
    if head is not None and head >= most:
        has = "1 head, numbered 0" if most == 1 else f"{most} heads, numbered from 0"
        raise PatternError("no-such-head", f"--head {head}: {schedule} has {has}")


def _describe(pattern: Mixer, queries: int, n: int, head: int | None) -> str:
    """The picture of one head, and the figures of that head if it was asked for, else of every head."""
    if isinstance(pattern, Transform):
        return without_pattern(pattern)
    drawn = head_of(pattern, head or 0)
    glyphs = GLYPHS if _shows("".join(GLYPHS.values())) else ASCII_GLYPHS
    if pattern.chooses:
        return _describe_choice(pattern, queries, n, glyphs)
    picture = draw(pattern, n, queries=queries, head=drawn, glyphs=glyphs)
    plan = compile_pattern(pattern, queries, n, query_offset=0)
    if pattern.heads == 1 or head is not None:
        return "\n".join([picture, *_figures_of_one(degrees(pattern, n, drawn, queries), plan, drawn)])
    every = [degrees(pattern, n, number, queries) for number in range(pattern.heads)]
    return "\n".join([picture, *_figures_of_all(every, plan)])


def _describe_choice(pattern: Pattern, queries: int, n: int, glyphs: Mapping[str, str]) -> str:
    """The picture of what queries could read, whatever they choose, and how many keys they read."""
    bounds, pairs = bounds_of(pattern), pairs_read(pattern, queries, n, 0)
    return "\n".join(
        [
            draw(bounds.most, n, queries=queries, glyphs=glyphs),
            f"choice:  blocks of {bounds.chosen.block} keys, by content; the picture has all pairs that may be read",
            f"degrees: a query reads {pairs / queries:,.1f} keys on average, at most",
            f"density: {percent(pairs / (queries * n))} of the pairs, at most",
            f"cost:    {amount(4 * pairs * _HEAD_DIM, 'FLOP')} forward per head, {_HEAD_DIM} features wide, at most",
        ]
    )


def _figures_of_one(read: Degrees, plan: Plan, head: int) -> list[str]:
    """Degrees, density and cost of a head; the plan counts the pairs of all heads, so it serves only where one is."""
    pairs = plan.pairs if plan.heads == 1 else read.mean * plan.n_queries
    about = "about " if plan.heads > 1 and read.queries < plan.n_queries else ""
    of_head, whose = (f" of head {head}", f"for head {head}") if plan.heads > 1 else ("", "per head")
    cost = amount(4 * pairs * _HEAD_DIM, "FLOP")
    return [
        f"degrees: a query{of_head} reads {_keys(read, plan.n_queries)}",
        f"density: {about}{percent(pairs / (plan.n_queries * plan.n_keys))} of the pairs{of_head}",
        f"cost:    {about}{cost} forward {whose}, {_HEAD_DIM} features wide; `asterism plan` says more",
    ]


def _figures_of_all(read: Sequence[Degrees], plan: Plan) -> list[str]:
    """A line for each run of heads with equal figures, then density and cost over all heads."""
    lines, first = ["degrees and density, head by head:"], 0
    for facts, members in groupby(read):
        last = first + len(list(members)) - 1
        name = f"head {first}" if last == first else f"heads {first} to {last}"
        about = "about " if facts.queries < plan.n_queries else ""
        share = f"{about}{percent(facts.mean / plan.n_keys)} of the pairs"
        lines.append(f"  {name:<14} a query reads {_keys(facts, plan.n_queries)}; {share}")
        first = last + 1
    cost = amount(plan.flops(_HEAD_DIM), "FLOP")
    return [
        *lines,
        f"density: {percent(plan.density)} of the pairs, over {plan.heads} heads",
        f"cost:    {cost} forward for {plan.heads} heads, {_HEAD_DIM} features wide; `asterism plan` says more",
    ]


def _keys(read: Degrees, queries: int) -> str:
    if read.minimum == read.maximum:
        keys = f"{read.minimum:,} key{'s' * (read.minimum != 1)}"
    else:
        keys = f"{read.minimum:,} to {read.maximum:,} keys, {read.mean:,.1f} on average"
    return keys + (f" (of {read.queries:,} queries counted)" if read.queries < queries else "")


def _record(pattern: Mixer, queries: int, n: int, head: int | None) -> dict[str, object]:
    if isinstance(pattern, Transform):
        return {"picture": None, "heads": [], "plan": None}
    if pattern.chooses:
        density = pairs_read(pattern, queries, n, 0) / (queries * n)
        picture = draw(bounds_of(pattern).most, n, queries=queries).splitlines()[1:-1]
        heads = [{"head": 0, "degrees": None, "density": density}]
        return {"picture": {"head": 0, "rows": picture}, "heads": heads, "plan": None}
    drawn = head_of(pattern, head or 0)
    chosen = range(pattern.heads) if head is None else [drawn]
    figures = []
    for number in chosen:
        read = degrees(pattern, n, number, queries)
        figures.append({"head": number, "degrees": asdict(read), "density": read.mean / n})
    return {
        "picture": {"head": drawn, "rows": draw(pattern, n, queries=queries, head=drawn).splitlines()[1:-1]},
        "heads": figures,
        "plan": compile_pattern(pattern, queries, n, query_offset=0).summary(),
    }


def _shows(characters: str) -> bool:
    """Whether stdout can hold the characters in its encoding."""
    try:
        characters.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _parser() -> Parser:
    parser = Parser("show", __doc__ or "", 'asterism show "bigbird(block=64)" -n 1024')
    add_pattern(parser, "window(left=64) | global_tokens(0)")
    parser.add_argument(
        "--head",
        type=whole_number(0),
        metavar="N",
        help="picture and figures of this head (default: picture of head 0)",
    )
    add_plot(parser, "the picture")
    return parser
