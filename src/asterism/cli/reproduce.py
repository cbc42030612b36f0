"""asterism reproduce: run experiments of papers again, and see which of their claims hold.

NAME is an experiment of --list; several run one after the other. At scale `laptop` one takes two cores at most an hour;
`workstation` is for one GPU and a day; `--scale paper --dry-run` counts what the published sizes cost. The folder gets
page.md, plot.svg, record.json and the runs. The same command continues an experiment that was stopped, and what is
measured is not run again.
"""

import textwrap
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asterism.cli.errors import UsageError
from asterism.cli.output import say
from asterism.cli.parser import Parser, print_json
from asterism.cli.waiting import waiting
from asterism.presence import require_matplotlib
from asterism.reproduce.experiment import (
    OURS,
    SCALES,
    Experiment,
    Results,
    Scale,
    Table,
    findings_of,
    require_scale,
    verdict,
)


def run(argv: Sequence[str]) -> None:
    arguments = _parser().parse(argv)
    _refuse_unused(arguments)
    with waiting("loading the experiments"):
        from asterism.reproduce.kept import write_pages
        from asterism.reproduce.registry import find_experiment
    if arguments.pages is not None:
        require_matplotlib("plot", "the plots of experiments")
        paths = write_pages(arguments.pages)
        print_json({"pages": [str(path) for path in paths]}) if arguments.json else print(*paths, sep="\n")
    elif arguments.list and arguments.names:
        _print_trials([find_experiment(name) for name in arguments.names], arguments)
    elif arguments.list:
        _print_list(arguments.json)
    elif not arguments.names:
        raise UsageError("reproduce-name", "give the NAME of an experiment, or --list to see them")
    else:
        if len(arguments.names) > 1 and arguments.output is not None:
            raise UsageError("reproduce-output", "--output is the folder of one experiment; leave it out for several")
        experiments = [_changed(find_experiment(name), arguments) for name in arguments.names]
        if not arguments.dry_run:
            _require_all(experiments, arguments)
        found = []
        for one in experiments:
            text, record = (_costs if arguments.dry_run else _reproduce)(one, arguments)
            head = f"{one.name}\n\n" if len(experiments) > 1 else ""
            if not arguments.json:
                print("\n" * bool(found) + head + text)
            found.append(record)
        if arguments.json:
            print_json(found[0] if len(found) == 1 else {"experiments": found})


_USED = {"pages": (), "list": ("names", "scale"), "dry_run": ("names", "scale", "set", "only")}
"""Flags with which nothing runs, and what they use besides --json."""


def _refuse_unused(arguments: Namespace) -> None:
    """Raises UsageError for arguments that would be ignored."""
    given, usual = vars(arguments), vars(_parser().parse([]))
    for mode, used in _USED.items():
        if not given[mode]:
            continue
        kept = (mode, "json", *used)
        if unused := [_flag(name) for name in given if given[name] != usual[name] and name not in kept]:
            raise UsageError("reproduce-unused", f"{_flag(mode)} runs nothing; leave out {', '.join(unused)}")


def _flag(name: str) -> str:
    return "NAME" if name == "names" else f"--{name.replace('_', '-')}"


def _changed(one: Experiment, arguments: Namespace) -> Experiment:
    """The experiment as --set and --only have it."""
    if not arguments.set and not arguments.only:
        return one
    if arguments.scale == SCALES[-1]:
        raise UsageError("reproduce-set-paper", "--set and --only are for experiments that run: leave them out here")
    if arguments.output is None and not arguments.dry_run:
        raise UsageError("reproduce-changed-folder", "--set and --only need a folder of their own: --output DIR")
    from asterism.reproduce.changes import changed

    settings = {}
    for text in arguments.set:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError("reproduce-set-form", f"--set: give NAME=VALUE, got {text!r}")
        if name in settings:
            raise UsageError("reproduce-set-twice", f"--set: {name} is given twice")
        settings[name] = value
    return changed(one, arguments.scale, settings, arguments.only)


def _require_all(experiments: Sequence[Experiment], arguments: Namespace) -> None:
    """Raise what the experiments would raise for want of data or packages, before the first of them runs."""
    from asterism.reproduce.run import require_inputs
    from asterism.reproduce.trials import with_seeds

    for one in experiments:
        require_scale(one, arguments.scale)
        with_seeds(one.trials(arguments.scale), arguments.seeds)
        if not (folder := _folder(one, arguments)).exists():  # else it may have what it needs
            require_inputs(one, folder, arguments.data)


def _folder(one: Experiment, arguments: Namespace) -> Path:
    suffix = "" if arguments.scale == SCALES[0] else f"-{arguments.scale}"
    folder: Path = arguments.output or Path("runs") / f"reproduce-{one.name}{suffix}"
    return folder


def _reproduce(one: Experiment, arguments: Namespace) -> tuple[str, dict[str, Any]]:
    """Run an experiment: what it found, for people and as JSON."""
    require_matplotlib("plot", "the plot of an experiment")
    from asterism.reproduce.record import results_of
    from asterism.reproduce.run import PAGE, reproduce
    from asterism.training.run.device import uses_cuda

    scale: Scale = arguments.scale
    folder = _folder(one, arguments)
    if scale != SCALES[0] and scale in one.setting and not uses_cuda():
        say(f"note: scale {scale} is for a GPU, and there is none here")
    try:
        record = reproduce(one, scale, folder, arguments.data, arguments.seeds, arguments.jobs, say)
    except KeyboardInterrupt:
        say("stopped; give the same command again to go on")
        raise
    results = results_of(record)
    findings = findings_of(one, results)
    lines = [f"Changed: {' '.join(one.changes)}.", ""] if one.changes else []
    lines += [one.table(results).aligned(), "", *map(str, findings), "", f"the page: {folder / PAGE}"]
    return "\n".join(lines), {**record, "findings": [vars(finding) for finding in findings]}


def _print_list(as_json: bool) -> None:
    from asterism.reproduce.kept import kept
    from asterism.reproduce.record import results_of
    from asterism.reproduce.registry import EXPERIMENTS

    rows: list[dict[str, Any]] = []
    for one in EXPERIMENTS.values():
        record = kept(one)
        findings = [] if record is None else one.findings(results_of(record))
        measured = [] if record is None else record["rows"]
        seeds, usual = {row["seed"] for row in measured}, len({trial.seed for trial in one.trials(SCALES[0])})
        rows.append(
            {
                "name": one.name,
                "paper": one.paper,
                "place": one.place,
                "question": one.question,
                "scales": [*one.setting, *(["paper"] if one.published() else [])],
                "reads": [source.name for source in one.sources],
                "claims": {finding.claim: verdict(finding.holds) for finding in findings},
                "date": max((row["date"] for row in measured), default=None),
                "seeds": len(seeds),
                "minutes": sum(Results(measured).minutes()) * usual / max(1, len(seeds)),
            }
        )
    if as_json:
        print_json({"experiments": rows})
        return
    cells = [
        (
            row["name"],
            f"{row['paper']}, {row['place']}",
            _state(row),
            f"{row['minutes']:.0f}" if row["minutes"] else "-",
            "--data" if row["reads"] else "",
            row["question"],
        )
        for row in rows
    ]
    print(Table(("experiment", "of", "state", "minutes", "needs", "question"), cells).aligned(left=True))
    print("Minutes are those of the default seeds at scale laptop, with one thread and one job; `-` is not recorded.")


def _print_trials(experiments: Sequence[Experiment], arguments: Namespace) -> None:
    """What --only and --set can name, and the minutes of the kept records."""
    from asterism.reproduce.changes import settable
    from asterism.reproduce.kept import kept

    found: list[dict[str, Any]] = []
    for one in experiments:
        require_scale(one, arguments.scale)
        trials = one.trials(arguments.scale)
        record = kept(one) if arguments.scale == SCALES[0] else None
        rows = [] if record is None else record["rows"]
        minutes = {(row["trial"], row["seed"]): row["figures"].get("minutes") for row in rows}
        found.append(
            {
                "name": one.name,
                "trials": [
                    {"name": trial.name, "seed": trial.seed, "minutes": minutes.get((trial.name, trial.seed))}
                    for trial in trials
                ],
                "settings": sorted({name for trial in trials for name in settable(trial)}),
            }
        )
    if arguments.json:
        print_json(found[0] if len(found) == 1 else {"experiments": found})
        return
    for number, one in enumerate(found):
        cells = [
            (row["name"], str(row["seed"]), "-" if row["minutes"] is None else f"{row['minutes']:.1f}")
            for row in one["trials"]
        ]
        settings = f"--set can change: {', '.join(one['settings']) or 'nothing'}"
        print("\n" * bool(number) + Table((f"trial of {one['name']}", "seed", "minutes"), cells).aligned(left=True))
        print(textwrap.fill(settings, 100, subsequent_indent="  ", break_on_hyphens=False))


def _state(row: dict[str, Any]) -> str:
    """How many claims of the paper hold and how many of ours, with how many seeds, and when that was seen."""
    if row["date"] is None:
        return "no kept record"
    ours = {claim: word for claim, word in row["claims"].items() if claim.startswith(OURS)}
    theirs = [word for claim, word in row["claims"].items() if claim not in ours]
    said = [f"{_held(theirs)} claims hold"] if theirs else []
    said += [f"{_held([*ours.values()])} of ours"] if ours else []
    said.append("1 seed" if row["seeds"] == 1 else f"{row['seeds']} seeds")
    return ", ".join([*said, row["date"]])


def _held(verdicts: Sequence[str]) -> str:
    undecided = verdicts.count(verdict(None))
    return f"{verdicts.count(verdict(True))} of {len(verdicts)}" + (f" ({undecided} undecided)" if undecided else "")


def _costs(one: Experiment, arguments: Namespace) -> tuple[str, dict[str, Any]]:
    """What an experiment costs, for people and as JSON."""
    from asterism.reproduce.costs import GPU, RATE, cost_table, costs, fine_tuned

    with waiting("counting operations and memory"):
        counted = costs(one, arguments.scale)
    lines, not_counted = [cost_table(counted, arguments.scale).aligned()], list[str]()
    rate = "" if arguments.scale == SCALES[0] else f", and time is that of {GPU} at {RATE / 1e12:g} TFLOP/s"
    lines.append(f"Tokens and operations are those of whole runs{rate}. Memory is that of training on one device.")
    others = fine_tuned(one)
    if others & {cost.name for cost in counted}:
        lines.append("Fine-tuning is counted as runs that restore masked tokens of as many rows.")
    elif others:
        lines.append("Fine-tuning is not counted.")
        not_counted.append("fine-tuning")
    record = {"experiment": one.name, "costs": [vars(cost) for cost in counted], "not_counted": not_counted}
    return "\n".join(lines), record


def _parser() -> Parser:
    parser = Parser("reproduce", __doc__ or "", "asterism reproduce reach")
    parser.add_argument("names", metavar="NAME", nargs="*", help="an experiment; --list names them")
    parser.add_argument(
        "--scale", choices=SCALES, default=SCALES[0], help="laptop (default), workstation, or paper (with --dry-run)"
    )
    parser.add_argument("--output", type=Path, metavar="DIR", help="folder to write (default: runs/reproduce-NAME)")
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="folder with the files of real data that some experiments read"
    )
    parser.add_argument(
        "--seeds", type=int, metavar="N", help="seeds of every trial (default: as the scale says, one to three)"
    )
    parser.add_argument(
        "--jobs", type=int, metavar="N", default=1, help="trials at a time, which share the processors (default: 1)"
    )
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="another value of a setting, such as steps=2000, for all trials that have it; may be repeated",
    )
    parser.add_argument(
        "--only",
        metavar="TRIAL",
        action="append",
        default=[],
        help="a trial to run; NAME --list names them; may be repeated",
    )
    parser.add_switch(
        "--list",
        "list the experiments, and which claims held when they were last run; with a NAME, its trials and settings",
        default=False,
    )
    parser.add_switch("--dry-run", "count operations and memory, and run nothing", default=False)
    parser.add_argument(
        "--pages", type=Path, metavar="DIR", help="write the pages of all papers from the records of the package"
    )
    return parser
