"""Tasks to fine-tune for: reading their files, making features of them, and scoring predictions.

`task.py` says what a task is; one file per task has its records and how they are read.
"""

from asterism.training.tasks.answering import read_questions
from asterism.training.tasks.classification import Classification, read_documents
from asterism.training.tasks.spans import Answering
from asterism.training.tasks.tagging import Tagging, read_tagged
from asterism.training.tasks.task import Feature, Task

__all__ = [
    "Answering",
    "Classification",
    "Feature",
    "Tagging",
    "Task",
    "read_documents",
    "read_questions",
    "read_tagged",
]
