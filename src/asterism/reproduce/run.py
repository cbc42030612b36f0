"""Runs an experiment, or what is left of it, and writes its page.

    runs/reproduce-copy-task/   record.json, page.md, plot.svg, data/, runs/NAME-SEED/

Files that the user brings are copied into data/, so a folder needs nothing outside it to go on.

Invariant: the table depends on the settings and the machine alone, not on where a run was stopped.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from asterism.errors import DataError
from asterism.files import make_folder, remove_leftovers, replacing_file, write_text
from asterism.reproduce.experiment import Experiment, Scale, Source, require_scale
from asterism.reproduce.page import section, write_plot
from asterism.reproduce.record import add, is_measured, open_record
from asterism.reproduce.trials import DATA
from asterism.training.run.arithmetic import undisturbed
from asterism.training.run.lock import locked

PAGE, PLOT = "page.md", "plot.svg"


def reproduce(
    experiment: Experiment,
    scale: Scale,
    folder: Path,
    data: Path | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Run the trials of a scale that the record in `folder` does not have, and return the record.

    `data` is the folder with the sources of the experiment; `say` is given a line for each trial. Raises
    ConfigurationError for a scale that the experiment does not have, DataError for a source that is missing,
    CheckpointError for a folder in use, of another experiment, or with results of other settings, and what runs raise.
    """
    require_scale(experiment, scale)
    trials = experiment.trials(scale)
    with undisturbed(), locked(folder):
        remove_leftovers(folder)
        remove_leftovers(folder / DATA)
        record = open_record(folder, experiment, scale)
        for source in experiment.sources:
            _take(source, experiment, folder / DATA / source.name, data)
        left = [trial for trial in trials if not is_measured(record, trial, folder)]
        for number, trial in enumerate(left, len(trials) - len(left) + 1):
            say(f"{number} of {len(trials)}: {trial.name}, seed {trial.seed}")
            add(folder, record, trial, trial.run(folder))
        write_plot(experiment, record, folder / PLOT)
        write_text(folder / PAGE, section(experiment, record, PLOT))
    return record


def _take(source: Source, experiment: Experiment, path: Path, data: Path | None) -> None:
    """Copy a source into the folder of an experiment, if it is not there. Raises DataError if nobody gave it."""
    if path.exists():
        return
    if data is None or not (data / source.name).is_file():
        where = "give the folder that has it, --data DIR" if data is None else f"{data} does not have it"
        raise DataError("reproduce-data", f"{experiment.name} reads {source.name}, {source.what}; {where}")
    make_folder(path.parent)
    with replacing_file(path) as unfinished:
        shutil.copyfile(data / source.name, unfinished)
