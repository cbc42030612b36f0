"""Runs an experiment, or what is left of it, and writes its page.

    runs/reproduce-copy-task/   record.json, page.md, plot.svg, data/, runs/NAME-SEED/

Files that the user brings are copied into data/, so a folder needs nothing outside it to go on.

Invariant: the table depends on the settings, the machine and its threads alone, not on where a run was stopped.
"""

import os
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from asterism.errors import ConfigurationError, DataError, shown
from asterism.files import make_folder, remove_leftovers, replacing_file, write_text
from asterism.presence import require_package
from asterism.randomness import isolated
from asterism.reproduce.experiment import Experiment, Scale, Source, Trial, require_scale
from asterism.reproduce.jobs import measured
from asterism.reproduce.page import section, title, write_plot
from asterism.reproduce.record import add, is_measured, open_record, write_record
from asterism.reproduce.trials import DATA, MODELS, RUNS, Training, with_seeds
from asterism.training.run.arithmetic import undisturbed
from asterism.training.run.lock import locked

PAGE, PLOT = "page.md", "plot.svg"


def reproduce(
    experiment: Experiment,
    scale: Scale,
    folder: Path,
    data: Path | None = None,
    seeds: int | None = None,
    jobs: int = 1,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Run the trials of a scale that the record in `folder` does not have, and return the record.

    `data` is the folder with the sources of the experiment; `seeds` is how many seeds each trial has, by default as
    many as the scale says; `jobs` is how many trials run at a time, each in a process of its own unless it is 1; `say`
    is given a line for each trial. Raises ConfigurationError for a scale that the experiment does not have and for a
    package that is missing, DataError for a source that is missing or another than before, CheckpointError for a folder
    in use, of another experiment, or with results of other settings, and what runs raise.
    """
    require_scale(experiment, scale)
    if jobs < 1:
        raise ConfigurationError("reproduce-jobs", f"jobs: must be at least 1, got {jobs}")
    _require_folder(data)
    trials = with_seeds(experiment.trials(scale), seeds)
    with undisturbed(), locked(folder):
        record = open_record(folder, experiment, scale)
        remove_leftovers(folder)
        remove_leftovers(folder / DATA)
        left = [trial for trial in trials if not is_measured(record, trial, folder)]
        given = require_inputs(experiment, folder, data) if left else []
        write_record(folder, record)  # so that what is made from here on is known to be of this experiment
        is_read = bool(record["rows"]) or any((folder / name).exists() for name in (RUNS, MODELS))
        for path in given:
            _take(path, experiment, folder, is_read=is_read)
        with isolated(0):
            for trial in left:
                if isinstance(trial, Training):
                    trial.prepare(folder, say)

        def tell(what: str, trial: Trial) -> None:
            number = len(trials) - len(left) + left.index(trial) + 1
            say(f"{number} of {len(trials)}{what}: {trial.name}, seed {trial.seed}")

        with closing(measured(left, folder, jobs, tell)) as found:  # so that jobs end, should a record not be written
            for trial, figures in found:
                add(folder, record, trial, figures)
        write_plot(experiment, record, folder / PLOT)
        write_text(folder / PAGE, title(experiment.paper) + section(experiment, record, PLOT))
    return record


def require_inputs(experiment: Experiment, folder: Path, data: Path | None) -> list[Path]:
    """The files in `data` that an experiment reads; none that its folder has already, if nobody gives `data`.

    Raises ConfigurationError for a package that is missing, and DataError for a file.
    """
    _require_folder(data)
    for package in experiment.packages:
        require_package(*package, experiment.name)
    given = [_given(source, experiment, folder, data) for source in experiment.sources]
    return [path for path in given if path is not None]


def _require_folder(data: Path | None) -> None:
    if data is not None and not os.path.isdir(data):  # noqa: PTH112  # false of what can be no name of a folder
        raise DataError("reproduce-data-folder", f"data: there is no folder {shown(str(data))}")


def _given(source: Source, experiment: Experiment, folder: Path, data: Path | None) -> Path | None:
    given = None if data is None else data / source.name
    if given is not None and os.path.isfile(given):  # noqa: PTH113  # false of what can be no name of a file
        return given
    if data is None and (folder / DATA / source.name).exists():
        return None
    missing = "; ".join(f"{one.name}, {one.what}" for one in experiment.sources)
    where = "give the folder that has them, --data DIR" if data is None else f"{shown(str(data))} lacks {source.name}"
    raise DataError("reproduce-data", f"{experiment.name} reads {missing}; {where}")


def _take(given: Path, experiment: Experiment, folder: Path, *, is_read: bool) -> None:
    """Copy a source into the folder of an experiment, in place of a copy that nothing was made of.

    Raises DataError for another file than the one that a run has read or a figure was made of.
    """
    path = folder / DATA / given.name
    try:
        content = given.read_bytes()
    except OSError as error:
        raise DataError("reproduce-source", f"{shown(str(given))} cannot be read: {error.strerror}") from error
    if path.exists() and path.read_bytes() == content:
        return
    if path.exists() and is_read:
        raise DataError(
            "reproduce-other-data",
            f"{shown(str(given))} is another file than {path}, which {experiment.name} has read; leave --data"
            " out, or give another --output",
        )
    for made in path.parent.iterdir() if path.exists() else ():  # of the file that goes
        if made.name not in {one.name for one in experiment.sources}:
            shutil.rmtree(made) if made.is_dir() else made.unlink()
    make_folder(path.parent)
    with replacing_file(path) as unfinished:
        unfinished.write_bytes(content)
