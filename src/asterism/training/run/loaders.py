"""By which version of the library's loaders a run's files become values, tokens and rows.

The hash of the data says that files are equal, not that they are loaded as they were. So run.json has the version of
all that load them, and a run is not resumed by others: its second half would learn from other tokens.
"""

from collections.abc import Mapping
from typing import Any

from asterism.errors import DataError
from asterism.training.data.corpora.modality import parse_modality
from asterism.training.readers.text import parse_reader
from asterism.training.settings.configuration import AnyConfig, FineTuneConfig
from asterism.training.settings.registry import OBJECTIVES, TASKS


def versions_of(config: AnyConfig) -> dict[str, dict[str, int]]:
    """The versions of what loads the data of a run: by the setting that names it, and the name."""
    found = {"objective": {config.objective: OBJECTIVES[config.objective].version}}
    if isinstance(config, FineTuneConfig):
        reader = parse_reader(config.reader)
        found |= {"task": {config.task: TASKS[config.task].version}, "reader": {reader.name: reader.version}}
        modality = None if config.modality is None else parse_modality(config.modality)
    else:
        modality = config.reads()
    return found if modality is None else found | {"modality": {modality.name: modality.version}}


def refuse_other_versions(config: AnyConfig, record: Mapping[str, Any]) -> None:
    """Raises DataError if a run of this record began with loaders of other versions."""
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
