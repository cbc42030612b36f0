"""The kept records: what the experiments found when they were last run, as files of the package.

A kept record is a record without the settings of its trials, which are those of the experiment: `keep` writes it.
"""

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from asterism.files import make_folder, write_text, writing
from asterism.reproduce.experiment import Experiment
from asterism.reproduce.page import page, write_plot
from asterism.reproduce.papers import PAPERS
from asterism.reproduce.record import read_record
from asterism.reproduce.registry import EXPERIMENTS
from asterism.reproduce.trials import with_seeds
from asterism.training.run.integrity import write_sealed

PLACE = Path(str(files("asterism.reproduce"))) / "records"
PICTURES = "pictures"


def kept(experiment: Experiment) -> dict[str, Any] | None:
    """The kept record of an experiment, if there is one. Raises CheckpointError for a damaged one."""
    path = PLACE / f"{experiment.name}.json"
    return read_record(path) if path.exists() else None


def keep(record: Mapping[str, Any]) -> None:
    """Keep a record in the package's source, in place of the one that is there.

    Its rows are in the order of the trials, in whatever order they were measured.
    """
    usual = EXPERIMENTS[record["experiment"]].trials(record["scale"])
    trials = with_seeds(usual, len({row["seed"] for row in record["rows"]}))
    order = [(trial.name, trial.seed) for trial in trials]
    rows = [{**row, "settings": {}} for row in record["rows"]]
    rows.sort(key=lambda row: order.index((row["trial"], row["seed"])))
    write_sealed(PLACE / f"{record['experiment']}.json", {**record, "rows": rows})


def write_pages(folder: Path) -> list[Path]:
    """Write a page for each paper with kept records, NAME.md, and the plots in pictures/; return the pages."""
    with writing(folder):
        make_folder(folder / PICTURES)
    found = {name: record for name, one in EXPERIMENTS.items() if (record := kept(one)) is not None}
    written = []
    for paper in PAPERS:
        some = [(EXPERIMENTS[name], record) for name, record in found.items() if EXPERIMENTS[name].paper == paper]
        if not some:
            continue
        for one, record in some:
            write_plot(one, record, folder / PICTURES / f"{one.name}.svg")
        written.append(folder / f"{paper}.md")
        write_text(written[-1], page(paper, some))
    return written
