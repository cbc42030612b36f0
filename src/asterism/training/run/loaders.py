"""The versions of the loaders that turn a run's files into values, tokens and rows.

The hash of the data shows that files are equal, but not that they are loaded in the same way. So run.json holds the
versions of all loaders, and a run is not resumed with others: its second half would learn from other tokens.
"""

from collections.abc import Mapping
from typing import Any

from asterism.errors import DataError
from asterism.training.data.corpora.modality import parse_modality
from asterism.training.readers.text import parse_reader
from asterism.training.settings.configuration import AnyConfig, FineTuneConfig
from asterism.training.settings.registry import OBJECTIVES, TASKS


def versions_of(config: AnyConfig) -> dict[str, dict[str, int]]:
    """The versions of the loaders of a run's data, by setting and by name."""
    found = {"objective": {config.objective: OBJECTIVES[config.objective].version}}
    if isinstance(config, FineTuneConfig):
        reader = parse_reader(config.reader)
        found |= {"task": {config.task: TASKS[config.task].version}, "reader": {reader.name: reader.version}}
        modality = None if config.modality is None else parse_modality(config.modality)
    else:
        modality = config.reads()
    return found if modality is None else found | {"modality": {modality.name: modality.version}}


def refuse_other_versions(config: AnyConfig, record: Mapping[str, Any]) -> None:
    """Raise DataError if a run with this record began with other versions of its loaders."""
    now = versions_of(config)
    for setting, versions in record["readers"].items():
        for name, began in versions.items():
            if began != (known := now.get(setting, {}).get(name)):
                raise DataError(
                    "loader-version",
                    f"data: the run began with version {began} of {setting} {name}, but this asterism has {known},"
                    " which makes other tokens of the same files: resume with asterism"
                    f" {record['versions']['asterism']}, or begin a new run",
                )
