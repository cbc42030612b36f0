"""By which version of the library's readers a run's files become values, tokens and rows.

The hash of the data says that files are equal, not that they are read as they were. So run.json has a number for all
that read them, and a run is not gone on with by others: its second half would learn from other tokens.
"""

from collections.abc import Mapping
from typing import Any

from asterism.errors import DataError
from asterism.training.data.corpora.modality import parse_modality
from asterism.training.readers.text import parse_reader
from asterism.training.settings.configuration import AnyConfig, FineTuneConfig

VERSIONS = {
    "modality": {"bytes": 1, "images": 1, "audio": 1, "genome": 1},
    "objective": {"causal": 1, "mlm": 1, "prefix_lm": 1, "span_corruption": 1, "gap_sentences": 1, "labelled": 1},
    "task": {
        "classify": 1,
        "tag": 1,
        "qa": 1,
        "multilabel": 1,
        "promoter": 1,
        "chromatin": 1,
        "summarize": 1,
        "translate": 1,
        "generate": 1,
    },
    "reader": {"whole": 1, "cut": 1, "windows": 1, "selected": 1, "iterated": 1},
}
"""What reads data, by the setting that names it. Raise the number of what makes other values, tokens or rows than it
made of the same files."""


def versions_of(config: AnyConfig) -> dict[str, dict[str, int]]:
    """The versions of what reads the data of a run, for run.json; what others have added has none that is known."""
    names = {"objective": config.objective}
    if isinstance(config, FineTuneConfig):
        names |= {"task": config.task, "reader": parse_reader(config.reader).name}
        if config.modality is not None:
            names["modality"] = parse_modality(config.modality).name
    else:
        names["modality"] = config.reads().name
    known = {setting: VERSIONS[setting].get(name) for setting, name in names.items()}
    return {setting: {names[setting]: version} for setting, version in known.items() if version is not None}


def refuse_other_versions(config: AnyConfig, record: Mapping[str, Any]) -> None:
    """Raises DataError if a run of this record was begun by other readers; runs of earlier versions do not say."""
    now = versions_of(config)
    for setting, versions in record.get("readers", {}).items():
        for name, began in versions.items():
            if began != (known := now.get(setting, {}).get(name)):
                raise DataError(
                    f"data: the run began with version {began} of {setting} {name}, and this asterism has {known}:"
                    " it makes other tokens of the same files; go on with asterism"
                    f" {record['versions']['asterism']}, or begin a new run"
                )
