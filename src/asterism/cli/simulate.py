"""asterism simulate: run a Turing machine as a transformer, token by token, and check it against an interpreter."""

from collections.abc import Sequence
from contextlib import nullcontext
from itertools import islice
from typing import Any

from asterism.cli.parser import Parser, print_json, whole_number
from asterism.cli.waiting import waiting
from asterism.theory.machines.hardmax import ARITHMETICS
from asterism.theory.machines.machine import sample_names
from asterism.theory.machines.simulation import CONSTRUCTIONS, Disagreement, MachineRun, Step, prepare

_LINE = "{:>4}  {:>4}  {:<15} {:<11}  {:>5}  {:<10}  {:<4}  {}"


def run(argv: Sequence[str]) -> None:
    arguments = _parser().parse(argv)
    simulation = prepare(
        arguments.machine, arguments.input, attention=arguments.attention, arithmetic=arguments.arithmetic
    )
    rows = _Rows(simulation, arguments.trace and not arguments.json)
    wrong = None
    try:
        with nullcontext() if rows.show else waiting("simulating"):
            for step in islice(simulation, arguments.steps + 1):
                rows.add(step, arguments.trace and arguments.json)
    except Disagreement as disagreement:
        if arguments.arithmetic == "exact":
            raise
        wrong = disagreement
    if arguments.json:
        print_json(_record(simulation, rows, wrong))
    else:
        print(_summary(simulation, rows, wrong))


class _Rows:
    """The steps as they come: printed, kept, or only counted."""

    def __init__(self, simulation: MachineRun, show: bool) -> None:
        self.blank, self.show = simulation.normal.original.blank, show
        self.kept: list[dict[str, object]] = []
        self.own = -1  # the machine's own steps
        self.last: Step
        self.final: Step | None = None

    def add(self, step: Step, keep: bool) -> None:
        self.own += step.exact
        self.last = step
        self.final = step if step.exact or self.final is None else self.final
        row = self._row(step)
        if keep:
            self.kept.append(row)
        if self.show:
            self._print(step.time, row)

    def _print(self, time: int, row: dict[str, Any]) -> None:
        if time == 0:
            print(_LINE.format("time", "own", "state", "symbol from", "token", "reads", "word", "tape"))
        own, token = ("" if row[name] is None else row[name] for name in ("own", "token"))
        reads, word = (" ".join(map(str, row[name])) for name in ("reads", "word_reads"))
        print(_LINE.format(time, own, row["state"], row["source"], token, reads, word, row["tape"]))

    def _row(self, step: Step) -> dict[str, object]:
        return {
            "time": step.time,
            "own": self.own if step.exact else None,
            "state": step.view.state,
            "head": step.view.head,
            "tape": step.view.write(self.blank),
            "source": f"time {step.source}" if isinstance(step.source, int) else step.source,
            "token": step.token,
            "reads": list(step.reads),
            "word_reads": list(step.word_reads),
        }


def _ending(simulation: MachineRun, rows: _Rows, wrong: Disagreement | None) -> str:
    machine, state = simulation.normal.machine, rows.last.configuration.state
    if wrong:
        return "wrong"
    if state in machine.accept:
        return "accepted"
    return "rejected" if state in machine.halting else "running"


def _record(simulation: MachineRun, rows: _Rows, wrong: Disagreement | None) -> dict[str, object]:
    final = rows.final or rows.last
    return {
        "machine": simulation.normal.original.name,
        "input": simulation.word,
        "attention": simulation.construction.name,
        "arithmetic": simulation.construction.transformer.arithmetic.name,
        "result": _ending(simulation, rows, wrong),
        "state": final.view.state,
        "head": final.view.head,
        "tape": final.view.write(rows.blank),
        "steps": rows.last.time,
        "own_steps": max(0, rows.own),
        "tokens": simulation.tokens,
        "width": simulation.construction.width,
        "layers": len(simulation.construction.transformer.layers),
        "degree": simulation.degree,
        "products": simulation.products,
        "wrong_at": wrong.time if wrong else None,
        "problem": str(wrong) if wrong else None,
        "trace": rows.kept,
    }


def _summary(simulation: MachineRun, rows: _Rows, wrong: Disagreement | None) -> str:
    facts = _record(simulation, rows, wrong)
    result = str(facts["result"])
    ending = {"running": "still running after", "wrong": "correct for"}.get(result, f"{result} after")
    lines = [
        f"{facts['machine']} on {facts['input']!r}: {ending} {facts['steps']:,} steps,"
        f" {facts['own_steps']:,} of them the machine's own; tape {facts['tape']}",
        f"{facts['attention']} attention, {facts['arithmetic']}: {facts['tokens']:,} decoder tokens of width"
        f" {facts['width']}, {facts['layers']} layers; a token reads at most {facts['degree']:,};"
        f" {facts['products']:,} query-key products",
    ]
    verdict = facts["problem"] or "every configuration matches the interpreter's"
    return "\n".join([*lines, str(verdict)])


def _parser() -> Parser:
    parser = Parser("simulate", __doc__ or "", "asterism simulate increment --input 1011 --attention sparse --trace")
    parser.add_argument("machine", metavar="MACHINE", help=f"file of a machine, or one of {', '.join(sample_names())}")
    parser.add_argument("--input", default="", metavar="WORD", help="input word on the tape (default: empty)")
    parser.add_argument(
        "--attention", choices=CONSTRUCTIONS, default="full", help="full (Perez 2019, default) or sparse (Zaheer 2020)"
    )
    parser.add_argument(
        "--arithmetic",
        choices=ARITHMETICS,
        default="exact",
        help="exact rationals (default), or floats, to see where they fail",
    )
    parser.add_argument(
        "--steps", type=whole_number(0, 10**9), default=500, metavar="N", help="stop after N steps (default: 500)"
    )
    parser.add_argument(
        "--trace", action="store_true", help="print the tape, the head and the attended positions at each step"
    )
    return parser
