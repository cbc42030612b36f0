"""Tasks to fine-tune for: reading their files, making features of them, asking models, and scoring predictions.

`task.py` says what a task is; one file per task has its records and how they are read; `predictor.py` asks a model.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from asterism.training.run.configuration import TaskName
from asterism.training.tasks.answering import read_questions
from asterism.training.tasks.classification import Classification, read_documents
from asterism.training.tasks.predictor import Predictor, as_fields
from asterism.training.tasks.spans import Answering
from asterism.training.tasks.tagging import Tagging, read_tagged
from asterism.training.tasks.task import Feature, Task

TASKS: dict[TaskName, type[Task[Any]]] = {"classify": Classification, "tag": Tagging, "qa": Answering}
"""By the name that `FineTuneConfig.task` gives them."""

READERS: dict[TaskName, Callable[[Path], Sequence[Any]]] = {
    "classify": read_documents,
    "tag": read_tagged,
    "qa": read_questions,
}
"""The labelled examples of a file, by the name of the task."""

__all__ = [
    "READERS",
    "TASKS",
    "Answering",
    "Classification",
    "Feature",
    "Predictor",
    "Tagging",
    "Task",
    "as_fields",
    "read_documents",
    "read_questions",
    "read_tagged",
]
