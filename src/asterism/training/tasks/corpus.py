"""The labelled examples of a task, for training and for scoring, as features, with a hash of their files.

If an example is one row (`DrawnRows`), features are made whenever they are needed. Examples that are read from a file
on demand are then never all in memory.

Invariant: each pass has a new order of features, which is a function of (seed, pass). If batches group features of
similar length, it also depends on the lengths and the size of batches. A batch may span two passes.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from asterism.training.tasks.rows import DrawnRows, ExampleRows, Feature
from asterism.training.tasks.task import Task

LOOKED_AT = 200
"""The number of examples, read on demand, from which the share of cut ones is estimated before the first step."""


class AskedFeatures(Sequence[list[Feature]]):
    """The features of each example for evaluation, made on demand."""

    def __init__(self, rows: ExampleRows[Any], examples: Sequence[Any], tokenizer: PreTrainedTokenizerFast) -> None:
        self.rows, self.examples, self.tokenizer = rows, examples, tokenizer

    def __len__(self) -> int:
        return len(self.examples)

    @overload
    def __getitem__(self, number: int) -> list[Feature]: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[list[Feature]]: ...
    def __getitem__(self, number: int | slice) -> list[Feature] | Sequence[list[Feature]]:
        if isinstance(number, slice):
            return AskedFeatures(self.rows, self.examples[number], self.tokenizer)
        (features,) = self.rows.features([self.examples[number]], self.tokenizer)
        return features

    def __iter__(self) -> Iterator[list[Feature]]:
        yield from self.rows.features(self.examples, self.tokenizer)


class LabelledCorpus(Corpus[list[Feature]]):
    """The data of a fine-tuning run.

    `reported` are the examples of `validation` that are scored at the end, all unless the run limits them.
    `training_features` counts the training rows, and `asked_features` those of `reported`; `validation_features` holds
    the features of each example of `validation`. Raises DataError for an example that the task cannot use, here or
    when it is read.
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
        self.name, self.sha256 = config.data, identity(*task.examples.files(config))
        self.examples, self.validation = training, validation
        self.reported = config.at_the_end.of(validation)
        rows, asked = task.rows, AskedFeatures(task.rows, validation, tokenizer)
        self._feature: Callable[[int, int, int], Feature]
        """The training feature of an index, as drawn at a position of a step."""
        self.validation_features: Sequence[list[Feature]]
        if isinstance(rows, DrawnRows):
            looked_at = training[:: max(1, len(training) // LOOKED_AT)]
            each = list(rows.features(looked_at, tokenizer))
            self.notes = self._cuts(rows, each)
            self._feature = lambda number, step, place: rows.drawn(
                training[number], tokenizer, of_row(config.seed, step, place)
            )
            self.training_features = len(training)
            self.validation_features = asked
            self.asked_features = len(self.reported) * len(asked[0]) if validation else 0
        else:
            each = list(rows.training_features(training, tokenizer))
            features, notes = rows.laid_out([one for some in each for one in some])
            self.notes = [*rows.notes(training, each), *self._cuts(rows, each), *notes]
            self._feature = lambda number, step, place: features[number]
            self.training_features = len(features)
            self.validation_features = list(asked)
            self.asked_features = sum(map(len, self.validation_features[: len(self.reported)]))
        labelled = looked_at if isinstance(rows, DrawnRows) else training
        classes = Counter(label for example in labelled for label in task.examples.classes(example))
        self.summary = [f"data: {len(training):,} training examples and {len(validation):,} for validation"]
        self.summary += [_shares(classes)] if classes else []
        self.summary += [_lengths(rows, each)] if any(each) else []
        self.summary += task.answers.notes(len(self.reported))
        self.epochs = Epochs(self.training_features, config.seed)
        if config.group_by_length:
            lengths = np.array([rows.tokens(self._feature(number, 0, 0)) for number in range(self.training_features)])
            self.epochs = EpochsByLength(lengths, config.batch_size, config.seed)

    def _cuts(self, rows: ExampleRows[Any], each: Iterable[Sequence[Feature]]) -> list[str]:
        """The number of cut documents, by the first feature of each inspected document."""
        firsts = [some[0] for some in each if some]
        cut = sum(one.is_cut for one in firsts)
        if not cut:
            return []
        return [
            f"{cut / len(firsts):.0%} of the training documents ({cut:,} of {len(firsts):,}"
            f"{' that were looked at' if len(firsts) < len(self.examples) else ''}) are longer than"
            f" {rows.length:,} tokens and cut there: a greater length, or another reader, reads more of them"
        ]

    def length(self, split: Split) -> int:
        return {"train": len(self.examples), "validation": len(self.validation)}[split]

    def draw(self, step: int, count: int) -> list[Feature]:
        """The training features of one step."""
        numbers = self.epochs.draw(step * count, count).tolist()
        return [self._feature(number, step, place) for place, number in enumerate(numbers)]


_MOST_CLASSES = 12
"""The most classes that are listed with their percentages; of more, the rarest are only counted."""


def _shares(classes: Counter[str]) -> str:
    """The classes, the most frequent first, and the percentage of all labels that each has."""
    listed = [f"{name} {count / classes.total():.0%}" for name, count in classes.most_common(_MOST_CLASSES)]
    more = len(classes) - len(listed)
    return f"classes: {len(classes)}: {', '.join(listed)}" + (f" and {more} rarer ones" if more else "")


def _lengths(rows: ExampleRows[Any], each: Sequence[Sequence[Feature]]) -> str:
    """The lengths of rows, and the percentage of documents that are cut."""
    lengths = np.array([rows.tokens(one) for some in each for one in some])
    cut = np.mean([some[0].is_cut for some in each if some])
    span = f"{lengths.min():,} to {lengths.max():,} tokens a row, median {np.median(lengths):,.0f}"
    return f"lengths: {span}; {cut:.0%} of the documents cut"


def identity(*paths: str | None) -> str:
    """The hash of the bytes of files, one after the other, two for a pair; None stands for no file.

    For a folder, the names and bytes of all files in it are hashed.
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
