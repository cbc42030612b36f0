"""Runs an experiment, or what is left of it, and writes its page.

    runs/reproduce-copy-task/   record.json, page.md, plot.svg, data/, runs/NAME-SEED/

Invariant: the table depends on the settings and the machine alone, not on where a run was stopped.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from asterism.files import remove_leftovers, write_text
from asterism.reproduce.experiment import Experiment, Scale, require_scale
from asterism.reproduce.page import section, write_plot
from asterism.reproduce.record import add, is_measured, open_record
from asterism.training.run.arithmetic import undisturbed
from asterism.training.run.lock import locked

PAGE, PLOT = "page.md", "plot.svg"


def reproduce(
    experiment: Experiment, scale: Scale, folder: Path, say: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Run the trials of a scale that the record in `folder` does not have, and return the record.

    `say` is given a line for each trial. Raises ConfigurationError for a scale that the experiment does not have,
    CheckpointError for a folder in use, of another experiment, or with results of other settings, and what runs raise.
    """
    require_scale(experiment, scale)
    trials = experiment.trials(scale)
    with undisturbed(), locked(folder):
        remove_leftovers(folder)
        record = open_record(folder, experiment, scale)
        left = [trial for trial in trials if not is_measured(record, trial, folder)]
        for number, trial in enumerate(left, len(trials) - len(left) + 1):
            say(f"{number} of {len(trials)}: {trial.name}, seed {trial.seed}")
            add(folder, record, trial, trial.run(folder))
        write_plot(experiment, record, folder / PLOT)
        write_text(folder / PAGE, section(experiment, record, PLOT))
    return record
