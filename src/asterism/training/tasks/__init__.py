"""Tasks to fine-tune for: reading their files, making features of them, and scoring predictions.

`task.py` says what a task has. A new one is a file of its own and an entry here.
"""

from typing import TYPE_CHECKING, Any

from asterism.training.registry import Entry, Registry

if TYPE_CHECKING:
    from asterism.training.tasks.task import Task

_HERE = "asterism.training.tasks"
_WRITING = (
    "target_length",
    "num_beams",
    "length_penalty",
    "no_repeat_ngram_size",
    "label_smoothing",
    "source_prefix",
)
_SEQUENCES = ("pooling", "label_table", "augment_strands", "average_strands", "positive_weight", "genome", "window")

TASKS: "Registry[Task[Any]]" = Registry(
    classify=Entry(f"{_HERE}.classification:Classification", settings=("pooling", "modality"), kind="finetune"),
    tag=Entry(f"{_HERE}.tagging:Tagging", kind="finetune"),
    qa=Entry(f"{_HERE}.spans:Answering", settings=("max_answer_length",), kind="finetune"),
    multilabel=Entry(f"{_HERE}.multilabel:MultiLabel", settings=(*_SEQUENCES, "column_groups"), kind="finetune"),
    promoter=Entry(f"{_HERE}.promoter:Promoter", settings=_SEQUENCES, kind="finetune"),
    chromatin=Entry(f"{_HERE}.chromatin:Chromatin", settings=(*_SEQUENCES, "column_groups"), kind="finetune"),
    summarize=Entry(f"{_HERE}.texts:Summarization", settings=_WRITING, kind="finetune"),
    translate=Entry(f"{_HERE}.texts:Translation", settings=_WRITING, kind="finetune"),
    generate=Entry(f"{_HERE}.texts:Generation", settings=_WRITING, kind="finetune"),
)
"""By the name that `FineTuneConfig.task` gives them."""
