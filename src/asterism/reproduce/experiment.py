"""One experiment of a paper: its question, the runs that ask it, the published figures, and what of the claim holds.

    Experiment --trials(scale)--> Trial --run(folder)--> figures --table, findings, draw--> a page

Every experiment is a file in `experiments/`. What it finds is decided by functions of the recorded figures alone, so a
page can be written again from a record without a run.
"""

import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, get_args

from asterism.columns import aligned
from asterism.errors import ConfigurationError
from asterism.training.settings.configuration import RunConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Scale = Literal["laptop", "workstation", "paper"]
"""Two cores and an hour, one GPU and a day, or the published sizes and steps."""
SCALES: tuple[Scale, ...] = get_args(Scale)

Figures = Mapping[str, float]

MOST_NAMED = 3
"""Of what a claim lacks."""

OURS = "ours: "
"""How claims begin that are not the paper's."""


class Trial(ABC):
    """One measurement of an experiment, which a record holds once it is made.

    name    what is compared, such as a pattern and a depth
    seed    of weights, data and batches
    """

    name: str
    seed: int
    has_seeds: ClassVar[bool] = True
    """Whether more seeds than an experiment has would say more."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """All that decides the figures, as JSON, without the places of files."""

    @abstractmethod
    def run(self, folder: Path) -> Figures:
        """Measure, with files in `folder`, which all trials of an experiment share; go on where a run was stopped."""


@dataclass(frozen=True)
class Results:
    """The recorded figures, by the name of the trial, with one entry for each seed."""

    rows: Sequence[Mapping[str, Any]]

    def values(self, trial: str, figure: str) -> list[float]:
        """A figure of a trial, of every seed; empty if it was not measured."""
        return [row["figures"][figure] for row in self.rows if row["trial"] == trial and figure in row["figures"]]

    def by_seed(self, unseeded: Collection[str] = ()) -> list["Results"]:
        """Those of each seed alone that every trial has; `unseeded` trials that have one seed are part of each."""
        seeds: dict[str, set[int]] = {}
        for row in self.rows:
            seeds.setdefault(row["trial"], set()).add(row["seed"])
        alike = {name for name, own in seeds.items() if name in unseeded and len(own) == 1}
        common = [own for name, own in seeds.items() if name not in alike]
        return [
            Results([row for row in self.rows if row["seed"] == seed or row["trial"] in alike])
            for seed in sorted(set.intersection(*common) if common else ())
        ]

    def mean(self, trial: str, figure: str) -> float | None:
        """The mean over seeds, or None if it was not measured."""
        values = self.values(trial, figure)
        return statistics.mean(values) if values else None

    def minutes(self) -> list[float]:
        """Those of every row; of a row that does not say so, 0."""
        return [row["figures"].get("minutes", 0.0) for row in self.rows]

    def fastest(self, trial: str) -> float | None:
        """The minutes of the fastest seed, which other programs disturbed least, or None if it was not measured."""
        return min(self.values(trial, "minutes"), default=None)

    def shown_minutes(self, trial: str) -> str:
        """The minutes of the fastest seed; `-` if they were not measured."""
        least = self.fastest(trial)
        return "-" if least is None else f"{least:.1f}"

    def shown(self, trial: str, figure: str, form: str = ".3f") -> str:
        """The mean, with half of the range if there are several seeds; `-` if it was not measured."""
        values = self.values(trial, figure)
        if not values:
            return "-"
        spread = f" ± {(max(values) - min(values)) / 2:{form}}" if len(values) > 1 else ""
        return f"{statistics.mean(values):{form}}{spread}"


@dataclass(frozen=True)
class Table:
    """Rows of text below headings."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """The table for a page."""
        lines = [self.headings, ["---"] * len(self.headings), *self.rows]
        return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)

    def aligned(self, *, left: bool = False) -> str:
        """The table for a terminal; columns after the first are to the right, unless `left`."""
        lines = [[cell.replace("`", "") for cell in line] for line in (self.headings, *self.rows)]
        return "\n".join(aligned(lines, range(len(self.headings)) if left else (0,)))


@dataclass(frozen=True)
class Finding:
    """A claim of the paper, whether it holds here (None: not decided by what was measured), and what was seen.

    `by_seed` is what each seed alone decides, if there are several.
    """

    claim: str
    holds: bool | None
    seen: str
    by_seed: Sequence[bool | None] = ()

    def __str__(self) -> str:
        return f"{self.claim}: {self.verdict()}. {self.seen}"

    def verdict(self) -> str:
        """The verdict by the means of all seeds, and how many of several seeds have the same."""
        word, decided = verdict(self.holds), [holds for holds in self.by_seed if holds is not None]
        if self.holds is None or len(decided) < 2:
            return word
        return f"{word}, in {decided.count(self.holds)} of {len(decided)} seeds"


def decided(
    claim: str, values: Mapping[str, float | None], holds: Callable[[Mapping[str, float]], bool], seen: str
) -> Finding:
    """Whether a claim holds for these values by name, which `seen` may show as {name}; undecided if one is missing."""
    known = {name: value for name, value in values.items() if value is not None}
    if missing := [name for name in values if name not in known]:
        more = f", and {len(missing) - MOST_NAMED} more" if len(missing) > MOST_NAMED else ""
        return Finding(claim, None, f"Missing: {'; '.join(missing[:MOST_NAMED])}{more}.")
    return Finding(claim, holds(known), seen.format_map(known))


def verdict(holds: bool | None) -> str:
    """A word for people."""
    return {True: "holds", False: "fails", None: "undecided"}[holds]


@dataclass(frozen=True)
class Source:
    """A file of real data that the user brings: its name, and what it is and where it comes from."""

    name: str
    what: str


class Package(NamedTuple):
    """A package that is not always installed: its name, its module, and the extra that brings it."""

    name: str
    module: str
    extra: str


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """An experiment.

    paper       short name of the paper, a key of `papers.PAPERS`, and where in it: "Table 1"
    question    one sentence
    setting     for each scale that there is: what is trained, on what, for how long
    trials      of a scale
    table       ours next to the published figures
    findings    the claims, decided
    draw        makes the plot
    published   configurations at the published sizes, and their parameters in the paper (None: not said), by name
    sources     files that the user brings
    packages    needed beyond those of training
    caveats     what differs from the paper, and what is not known of it
    tried       of claims that fail: the likely cause, and what was tried
    changes     flags that make it of the experiment of this name, such as `--set steps=7` (`changes.changed`)
    only        the trials that it has of the experiment of this name; none for all
    """

    name: str
    paper: str
    place: str
    question: str
    setting: Mapping[Scale, str]
    trials: Callable[[Scale], Sequence[Trial]]
    table: Callable[[Results], Table]
    findings: Callable[[Results], Sequence[Finding]]
    draw: Callable[[Results], "Figure"]
    published: Callable[[], Mapping[str, tuple[RunConfig, float | None]]]
    sources: Sequence[Source] = ()
    packages: Sequence[Package] = ()
    caveats: Sequence[str] = ()
    tried: Sequence[str] = ()
    changes: Sequence[str] = ()
    only: Sequence[str] = ()


def findings_of(experiment: Experiment, results: Results) -> Sequence[Finding]:
    """The claims, decided by the means over all seeds, and by each seed alone."""
    trials = experiment.trials(next(iter(experiment.setting)))
    alone = [experiment.findings(one) for one in results.by_seed([one.name for one in trials if not one.has_seeds])]
    findings = experiment.findings(results)
    if len(alone) < 2:
        return findings
    return [
        replace(finding, by_seed=[one.holds for one in seeds]) for finding, *seeds in zip(findings, *alone, strict=True)
    ]


def require_scale(experiment: Experiment, scale: Scale) -> None:
    """Raise ConfigurationError for a scale at which the experiment cannot run."""
    if scale not in experiment.setting:
        raise ConfigurationError(
            "reproduce-scale",
            f"{experiment.name} runs at scale {' and '.join(experiment.setting)}, not {scale}"
            + ("; `--scale paper --dry-run` counts what the published sizes cost" if experiment.published() else ""),
        )
