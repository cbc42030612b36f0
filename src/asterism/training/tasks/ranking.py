"""What ranks the windows of a document, learned from a task's training documents, and kept beside the model's weights.

What is wanted of a document is the task's to say (`Task.wanted`), how it is learned the scorer's
(`readers/learned.py`). A document of no more windows than are read teaches nothing. At most `STUDIED` examples are
learned from, evenly spread.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors.numpy import save_file
from transformers import PreTrainedTokenizerFast

from asterism.errors import CheckpointError, ConfigurationError, DataError
from asterism.files import read_tensors
from asterism.training.readers.bm25 import bm25
from asterism.training.readers.learned import BUCKETS, FEWEST, WIDTH, Bags, Lesson, Scorer, learn
from asterism.training.readers.reader import Reader
from asterism.training.readers.selected import Selected, counted, words_in
from asterism.training.tasks.task import Studied, Task

SCORER = "scorer.safetensors"
"""The file in a model's folder."""
STUDIED = 2_000
"""Examples: more take long and teach little."""

_SHAPES = {"asked": (BUCKETS, WIDTH), "read": (BUCKETS, WIDTH), "alone": (BUCKETS,), "beta": (1,)}


def learned_scorer(
    task: Task[Any], examples: Sequence[Any], tokenizer: PreTrainedTokenizerFast, seed: int
) -> tuple[Scorer, str]:
    """What a task whose reader `learns` learned of training examples, and a line that says how well.

    Raises DataError for examples that cannot be read, or too few that teach something.
    """
    reader = task.reading
    assert isinstance(reader, Selected)
    every = max(1, -(-len(examples) // STUDIED))
    studied = [one for one in _studied(task, reader, examples[::every], tokenizer) if len(one.windows) > reader.k]
    wanted = task.wanted(studied)
    bags: dict[Any, Bags] = {}  # several questions may be asked about one document; the longer, the shorter its windows
    lessons, documents = [], []
    for one, shares in zip(studied, wanted, strict=True):
        if shares is None:
            continue
        text, question = one.encoded.text, one.encoded.question
        key = text, *one.windows
        if key not in bags:
            bags[key] = Bags.of(one.words)
        asked = counted(text if question is None else question)
        scores = bm25(asked, one.words, k1=reader.k1, b=reader.b)
        lessons.append(Lesson.of(None if question is None else asked, bags[key], scores, shares))
        documents.append(text)
    if len(lessons) < FEWEST:
        raise DataError(
            f"data: reader {task.reader} learns from training examples that say which of more than {reader.k} windows"
            f" they want; there are {len(lessons)}, and {FEWEST} are needed: give more or longer ones, or by=bm25"
        )
    scorer, found = learn(lessons, documents, seed)
    return scorer, (
        f"selected(by=learned) learned from {len(lessons):,} training examples; in the {found['lessons']:,} that were"
        f" kept apart the window that it ranks best is wanted in {found['scorer']:.0%}, that of BM25 in"
        f" {found['bm25']:.0%}"
    )


def _studied(
    task: Task[Any], reader: Selected, examples: Sequence[Any], tokenizer: PreTrainedTokenizerFast
) -> list[Studied]:
    found = []
    for example, encoded in zip(examples, task.encoded(examples, tokenizer), strict=True):
        document = task.document(example, encoded)
        windows = reader.windows(document)
        found.append(Studied(example, encoded, windows, words_in(document, windows), reader))
    return found


def save_scorer(scorer: Scorer, folder: Path) -> None:
    """Write a scorer into a model's folder."""
    save_file({name: getattr(scorer, name) for name in _SHAPES}, folder / SCORER)


def load_scorer(folder: Path) -> Scorer:
    """The scorer in a model's folder. Raises CheckpointError for one that is missing, damaged, or of another kind."""
    tensors = {name: tensor.numpy() for name, tensor in read_tensors(folder / SCORER).items()}
    shapes = {name: array.shape for name, array in tensors.items()}
    if shapes != _SHAPES:
        raise CheckpointError(f"{folder / SCORER} is no scorer: it holds {shapes}, where {_SHAPES} are needed")
    return Scorer(**tensors)


def require_scorer(reader: Reader, task: Task[Any], trained_by: str) -> None:
    """Raises ConfigurationError if a reader needs a scorer that the task has not learned."""
    if reader.learns and task.scorer is None:
        raise ConfigurationError(
            f"reader: {reader} ranks by what is learned in fine-tuning, and this run was fine-tuned by {trained_by}:"
            f" fine-tune by it, or ask by=bm25"
        )
