"""The page of a paper, and the section of an experiment in it, written from records."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asterism.files import replacing_file
from asterism.reproduce.experiment import Experiment, Finding, Results, Table, findings_of
from asterism.reproduce.papers import PAPERS
from asterism.reproduce.record import results_of


def page(paper: str, kept: Sequence[tuple[Experiment, Mapping[str, Any]]]) -> str:
    """The page of a paper, in Markdown: a section for each experiment with a record; plots are pictures/NAME.svg."""
    head = title(paper) + (
        "What counts is whether a claim holds, not whether digits agree. The theory is explained in"
        " [Theory](../../explanation/theory.md) and [Turing machines](../../explanation/turing-machines.md). This page"
        " is written by `asterism reproduce --pages` from the kept records.\n"
    )
    sections = [section(experiment, record, f"pictures/{experiment.name}.svg") for experiment, record in kept]
    return "\n".join([head, *sections])


def title(paper: str) -> str:
    """The head of a page: the short name, and what to cite."""
    source = PAPERS[paper]
    return f"# {source.short}\n\n{source.authors}, *{source.title}*, [{source.link}](https://{source.link}).\n\n"


def section(experiment: Experiment, record: Mapping[str, Any], plot: str) -> str:
    """What an experiment found, in Markdown: question, claims, table, plot, setting and caveats."""
    results, rows = results_of(record), record["rows"]
    findings = findings_of(experiment, results)
    claims = Table(("claim", "here", "seen"), [(one.claim, f"**{one.verdict()}**", one.seen) for one in findings])
    flags, table = _flags(experiment, rows), experiment.table(results).markdown()
    parts = [
        f"## {experiment.place}: {experiment.name}\n",
        f"{experiment.question}\n",
        f"{experiment.setting[record['scale']]} {_ran(rows)}{_how_to_read(findings, table)}\n",
        _changed(flags),
        _listed("What differs from the paper, and what is not known of it", experiment.caveats),
        claims.markdown() + "\n",
        table + "\n",
        f"![{experiment.question}]({plot})\n",
        "" if flags else _listed("What was tried", experiment.tried),
    ]
    parts.append(f"<!-- not run: up to hours -->\n```sh\n{_command(experiment, record)}\n```\n")
    return "\n".join(part for part in parts if part)


def write_plot(experiment: Experiment, record: Mapping[str, Any], path: Path) -> None:
    """Write the plot as SVG; equal records give equal files."""
    from matplotlib import rc_context, rcdefaults, rcParams

    with rc_context(), replacing_file(path) as unfinished:
        rcdefaults()  # in place of the user's
        rcParams["svg.hashsalt"] = experiment.name
        experiment.draw(results_of(record)).savefig(unfinished, format="svg", metadata={"Date": None})


def _command(experiment: Experiment, record: Mapping[str, Any]) -> str:
    """The command that measures what a record holds."""
    scale = record["scale"]
    usual = {trial.seed for trial in experiment.trials(scale)}
    seeds = {row["seed"] for row in record["rows"]}
    flags = _flags(experiment, record["rows"])
    return (
        f"asterism reproduce {experiment.name}"
        + ("" if scale == "laptop" else f" --scale {scale}")
        + (" --data DIR" if experiment.sources else "")
        + (f" --seeds {len(seeds)}" if len(seeds) > len(usual) else "")
        + "".join(f" {flag}" for flag in flags)
        + (" --output DIR" if flags else "")
    )


def _flags(experiment: Experiment, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What makes an experiment that is not the usual one, with all trials that were measured of some."""
    names = list(dict.fromkeys(row["trial"] for row in rows)) if experiment.only else []
    return [*(f"--only {shlex.quote(name)}" for name in names), *experiment.changes]


def _changed(flags: Sequence[str]) -> str:
    if not flags:
        return ""
    return f"**Changed**: `{' '.join(flags)}`. What the text says of sizes and steps is of the usual experiment.\n"


def _listed(title: str, lines: Sequence[str]) -> str:
    return "\n".join([f"{title}:\n", *(f"- {line}" for line in lines), ""]) if lines else ""


def _how_to_read(findings: Sequence[Finding], table: str) -> str:
    """What the figures of several seeds mean."""
    verdicts = " Means decide; `in 2 of 3 seeds` says how many seeds alone give the same verdict."
    spread = " A ± is half of the range over seeds."
    fastest = " Minutes are those of the fastest seed."
    head, several = table.partition("\n")[0], any(one.by_seed for one in findings)
    return verdicts * several + spread * ("±" in table) + fastest * (several and "minutes" in head)


def _ran(rows: Sequence[Mapping[str, Any]]) -> str:
    """Seeds, minutes, machines and dates of the rows."""
    seeds, minutes = {row["seed"] for row in rows}, sum(Results(rows).minutes())
    machines = sorted(
        {
            f"{row['machine']['processor'].replace('(R)', '')} ({row['machine']['kernel'] or 'no kernel'})"
            for row in rows
        }
    )
    dates = sorted({row["date"] for row in rows})
    count = "One seed" if len(seeds) == 1 else f"{len(seeds)} seeds"
    took = f"{count}, {minutes:,.0f} minutes in all on " if minutes >= 0.5 else ""
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    return f"{took}{', '.join(machines)}, {when}."
