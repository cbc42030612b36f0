"""Labelled examples of a task: those to train on and those to score, as features, and a hash of the files they are of.

Invariant: features come in a new order on each pass, a function of (seed, pass), and of their lengths and the size of
batches if these are to hold features of like length; a batch may span two passes.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from transformers import PreTrainedTokenizerFast

from asterism.errors import DataError
from asterism.randomness import derive
from asterism.training.data.contract import Corpus
from asterism.training.data.packing import Epochs, EpochsByLength
from asterism.training.data.records import pair_of
from asterism.training.data.splits import Split
from asterism.training.run.configuration import FineTuneConfig
from asterism.training.tasks.task import Feature, Task

HOLD_OUT = 2**32
"""Keys the order in which examples are held out: no pass over the examples has this number."""


class Examples(Corpus[list[Feature]]):
    """The data of a fine-tuning run.

    `training` are features; `validation` examples, and `validation_features` those of each. Raises DataError for an
    example that the task cannot use.
    """

    unit: ClassVar[str] = "examples"

    def __init__(
        self,
        config: FineTuneConfig,
        training: Sequence[Any],
        validation: Sequence[Any],
        task: Task[Any],
        tokenizer: PreTrainedTokenizerFast,
    ) -> None:
        self.name, self.sha256 = config.data, identity(config.data, config.validation)
        self.training_examples = len(training)
        features = list(task.training_features(training, tokenizer))
        self.training: list[Feature] = [one for some in features for one in some]
        self.notes = task.notes(training, features)
        self.validation = validation
        self.validation_features = list(task.features(validation, tokenizer))
        self.epochs = Epochs(len(self.training), config.seed)
        if config.group_by_length:
            lengths = np.array([task.tokens(one) for one in self.training])
            self.epochs = EpochsByLength(lengths, config.batch_size, config.seed)

    def length(self, split: Split) -> int:
        return {"train": self.training_examples, "validation": len(self.validation)}[split]

    def draw(self, step: int, count: int) -> list[Feature]:
        """The training features of one step."""
        return [self.training[number] for number in self.epochs.draw(step * count, count)]


def identity(*paths: str | None) -> str:
    """The hash of the bytes of files, one after the other, two for a pair; None is the file that there is not."""
    digest = hashlib.sha256()
    for path in paths:
        for one in () if path is None else pair_of(path) or (path,):
            digest.update(hashlib.sha256(Path(one).read_bytes()).digest())
    return digest.hexdigest()


def read_examples(config: FineTuneConfig, task: type[Task[Any]]) -> tuple[Sequence[Any], Sequence[Any]]:
    """Training and validation examples. Raises DataError if a single file is too short to hold some out."""
    examples = task.read(Path(config.data))
    if config.validation is not None:
        return examples, task.read(Path(config.validation))
    held_out = round(len(examples) * config.validation_fraction)
    if held_out < 1:
        raise DataError(
            f"data: {config.data} has {len(examples):,} examples, too few to hold {config.validation_fraction:g} of"
            " them out; give more, or a validation file"
        )
    order = np.random.Generator(np.random.Philox(derive(config.seed, HOLD_OUT))).permutation(len(examples)).tolist()
    return [examples[at] for at in sorted(order[held_out:])], [examples[at] for at in sorted(order[:held_out])]
