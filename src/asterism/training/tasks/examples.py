"""Labelled examples of a task: those to train on and those to score, as features, and a hash of the files they are of.

Where an example is one row (`Task.on_demand`), features are made whenever they are drawn or asked for, and examples
that are read from a file as they are needed are never all in memory.

Invariant: features come in a new order on each pass, a function of (seed, pass), and of their lengths and the size of
batches if these are to hold features of like length; a batch may span two passes.
"""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, overload

import numpy as np
from transformers import PreTrainedTokenizerFast

from asterism.presence import pair_of
from asterism.randomness import of_row
from asterism.system import sha256_of
from asterism.training.data.corpora.corpus import Corpus
from asterism.training.data.corpora.folders import list_folder
from asterism.training.data.corpora.packing import Epochs, EpochsByLength
from asterism.training.data.corpora.splits import Split
from asterism.training.settings.configuration import FineTuneConfig
from asterism.training.tasks.task import Feature, Task

LOOKED_AT = 200
"""Examples, of those that are read on demand, by which it is told before the first step how many are cut."""


class AskedFeatures(Sequence[list[Feature]]):
    """The features of each example, to be asked about, made when they are taken."""

    def __init__(self, task: Task[Any], examples: Sequence[Any], tokenizer: PreTrainedTokenizerFast) -> None:
        self.task, self.examples, self.tokenizer = task, examples, tokenizer

    def __len__(self) -> int:
        return len(self.examples)

    @overload
    def __getitem__(self, number: int) -> list[Feature]: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[list[Feature]]: ...
    def __getitem__(self, number: int | slice) -> list[Feature] | Sequence[list[Feature]]:
        if isinstance(number, slice):
            return AskedFeatures(self.task, self.examples[number], self.tokenizer)
        (features,) = self.task.features([self.examples[number]], self.tokenizer)
        return features

    def __iter__(self) -> Iterator[list[Feature]]:
        yield from self.task.features(self.examples, self.tokenizer)


class Examples(Corpus[list[Feature]]):
    """The data of a fine-tuning run.

    `training_features` is how many rows there are to learn from; `validation` are examples, and `validation_features`
    those of each. Raises DataError for an example that the task cannot use, here or when it is read.
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
        self.name, self.sha256 = config.data, identity(*task.files(config))
        self.task, self.tokenizer, self.seed = task, tokenizer, config.seed
        self.examples, self.validation = training, validation
        self.training: list[Feature] = []
        self.validation_features: Sequence[list[Feature]] = AskedFeatures(task, validation, tokenizer)
        self.notes: list[str] = []
        if not task.on_demand:
            features = list(task.training_features(training, tokenizer))
            self.training = [one for some in features for one in some]
            self.notes = [*task.notes(training, features), *self._cuts([some[0] for some in features if some])]
            self.validation_features = list(task.features(validation, tokenizer))
        else:
            looked_at = training[:: max(1, len(training) // LOOKED_AT)]
            self.notes = self._cuts([some[0] for some in task.features(looked_at, tokenizer)])
        self.training_features = len(training) if task.on_demand else len(self.training)
        self.epochs = Epochs(self.training_features, config.seed)
        if config.group_by_length:
            lengths = np.array([task.tokens(self._feature(number, 0, 0)) for number in range(self.training_features)])
            self.epochs = EpochsByLength(lengths, config.batch_size, config.seed)

    def _cuts(self, features: Sequence[Feature]) -> list[str]:
        """How many documents are cut, by the first feature of each of those that were looked at."""
        cut = sum(one.is_cut for one in features)
        if not cut:
            return []
        return [
            f"{cut / len(features):.0%} of the training documents ({cut:,} of {len(features):,}"
            f"{' that were looked at' if len(features) < len(self.examples) else ''}) are longer than"
            f" {self.task.length:,} tokens and cut there: a greater length, or another reader, reads more of them"
        ]

    @property
    def asked_features(self) -> int:
        """How many rows the validation examples have."""
        if not self.task.on_demand:
            return sum(map(len, self.validation_features))
        return len(self.validation) * len(self.validation_features[0]) if self.validation else 0

    def length(self, split: Split) -> int:
        return {"train": len(self.examples), "validation": len(self.validation)}[split]

    def draw(self, step: int, count: int) -> list[Feature]:
        """The training features of one step."""
        numbers = self.epochs.draw(step * count, count).tolist()
        return [self._feature(number, step, place) for place, number in enumerate(numbers)]

    def _feature(self, number: int, step: int, place: int) -> Feature:
        """A training feature as it is drawn at a place of a step."""
        if not self.task.on_demand:
            return self.training[number]
        return self.task.drawn(self.examples[number], self.tokenizer, of_row(self.seed, step, place))


def identity(*paths: str | None) -> str:
    """The hash of the bytes of files, one after the other, two for a pair; None is the file that there is not.

    Of a folder, the names and bytes of all files in it.
    """
    digest = hashlib.sha256()
    for path in paths:
        names = [] if path is None else list(pair_of(path) or (path,))
        if path is not None and Path(path).is_dir():
            below = list_folder(Path(path))
            digest.update("\0".join(below).encode(errors="surrogateescape"))
            names = [f"{path}/{name}" for name in below]
        for one in names:
            digest.update(sha256_of(Path(one)))
    return digest.hexdigest()
