"""Classification of files: pictures, sounds, or whatever a modality reads as a sequence of 8-bit values.

Data: a folder in which the folder of a file is its class, with splits as in `corpora/folders.py`; or a table (JSONL or
CSV) with the fields `file`, a path relative to the table's folder, and `label` or `labels`. Files are decoded whenever
they are needed. Value v is token v, so training can start from a model that has learned their density.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from transformers import PreTrainedConfig, PreTrainedTokenizerFast

from asterism.errors import DataError
from asterism.models import AsterismConfig
from asterism.system import sha256_of
from asterism.training.data.corpora.folders import SplitFolder, list_folder, split_folder, split_homes
from asterism.training.data.corpora.modality import Modality, parse_modality
from asterism.training.data.corpora.splits import SPLITS, Split
from asterism.training.data.records.record import Record
from asterism.training.settings.configuration import FineTuneConfig
from asterism.training.tasks.encoding import Encoded
from asterism.training.tasks.kinds.classification import (
    DocumentExamples,
    LabelAnswers,
    LabelledDocument,
    LabelledRows,
    labels_in,
)
from asterism.training.tasks.rows import DrawnRows
from asterism.training.tasks.task import Kind


@dataclass(frozen=True, kw_only=True)
class LabelledFiles(DocumentExamples):
    """Files with labels."""

    formats: ClassVar[tuple[str, ...]] = ("jsonl", "csv", "files")

    @classmethod
    def read(cls, path: Path, config: FineTuneConfig) -> Sequence[LabelledDocument]:
        """All files of a folder or a table. Each is decoded once here, so that a damaged file cannot stop a run that
        has begun.
        """
        found = _of_splits(_folder(path), SPLITS) if path.is_dir() else super().read(path, config)
        return _decoded(found, config)

    @classmethod
    def divided(cls, config: FineTuneConfig) -> tuple[Sequence[LabelledDocument], Sequence[LabelledDocument]]:
        """The splits of a folder; a validation file or folder replaces the one in it."""
        data = Path(config.data)
        if not data.is_dir():
            return super().divided(config)
        folder = _folder(data)
        training = _decoded(_of_splits(folder, ["train"]), config)
        if config.validation is None:
            validation = _decoded(_of_splits(folder, ["validation"]), config)
        else:
            validation = cls.read(Path(config.validation), config)
        for name, part in (("train", training), ("validation", validation)):
            if not part:
                raise DataError(
                    "empty-split", f"data: the {name} split of {data} has no file; give more, or a validation folder"
                )
        return training, validation

    def example(self, record: Record, *, labelled: bool) -> LabelledDocument:
        """`file`, and if `labelled` its `label` or `labels`."""
        labels = labels_in(record, self.several) if labelled else None
        path = Path(record.folder) / record.text("file")
        if not path.is_file():
            raise record.error("file", f"names {path}, which does not exist")
        return LabelledDocument(record, str(path), labels, self.several)


@dataclass(frozen=True, kw_only=True)
class FileRows(LabelledRows, DrawnRows[LabelledDocument]):
    """Rows of the values of files.

    modality  the text of what reads files as values
    """

    modality: str

    def encoded(self, examples: Sequence[LabelledDocument], tokenizer: PreTrainedTokenizerFast) -> Iterator[Encoded]:
        """The values of each file."""
        modality = parse_modality(self.modality)
        for example in examples:
            yield _encoded(_values(example, modality), self.most)


class FileAnswers(LabelAnswers):
    """Answers that are one or several labels of a file."""

    @classmethod
    def choices(
        cls, config: FineTuneConfig, model: PreTrainedConfig, tokenizer: PreTrainedTokenizerFast
    ) -> dict[str, Any]:
        """Our models answer by the mean of all tokens by default, because files have no special token."""
        usual = "mean" if isinstance(model, AsterismConfig) else None
        return {"pooling": config.pooling or usual, "modality": str(parse_modality(config.modality or ""))}

    def _words(self, example: LabelledDocument) -> str:
        """Files have none."""
        return ""


FILE_CLASSIFICATION = Kind("classification of files", LabelledFiles, FileRows, FileAnswers)


def _decoded(examples: Sequence[LabelledDocument], config: FineTuneConfig) -> Sequence[LabelledDocument]:
    """The same examples. Raises DataError for the first whose file the modality does not read."""
    modality = parse_modality(config.modality or "")
    for one in examples:
        _values(one, modality)
    return examples


def _encoded(values: np.ndarray, most: int | None) -> Encoded:
    """Values as tokens; no more of them than are read."""
    tokens = values[:most].astype(np.int32)
    places = np.arange(len(tokens) + 1, dtype=np.int32)
    return Encoded(
        {"input_ids": tokens},
        first=0,
        end=len(tokens),
        characters=np.stack([places[:-1], places[1:]], axis=1),
        words=np.full(len(tokens), -1, dtype=np.int32),
        text="",
        question=None,
        goes_on=len(tokens) < len(values),
    )


def _values(example: LabelledDocument, modality: Modality) -> np.ndarray:
    """uint8 [values], one at least. Raises DataError, as the modality does."""
    values = modality.read_prompt(Path(example.text))
    if not len(values):
        raise DataError("empty-file", f"data: {example.text} holds no value")
    return values


def _folder(path: Path) -> SplitFolder:
    """Raises DataError for a folder without classes."""
    names = list_folder(path)
    if not names:
        raise DataError("no-files", f"data: {path} holds no file")
    folder = split_folder(path, names, sha256_of)
    has_splits = bool(split_homes(path, names))
    loose = [name for name in names if name.count("/") == has_splits]
    if loose and len(loose) < len(names):
        raise DataError(
            "loose-file",
            f"data: {path / loose[0]} is outside the folders of the classes: move it into one, or elsewhere",
        )
    if not folder.classes:
        raise DataError(
            "class-folders",
            f"data: {path} must hold at least two folders, one for each class, with its files",
        )
    return folder


def _of_splits(folder: SplitFolder, splits: Sequence[Split]) -> list[LabelledDocument]:
    """The files of some splits of a folder, each with its class."""
    return [
        LabelledDocument(Record(str(file), {"file": name}), str(file), (folder.classes[label],), False)
        for files in map(folder.splits.__getitem__, splits)
        for name, label in zip(files.names, [] if files.labels is None else files.labels.tolist(), strict=True)
        for file in [folder.root / name]
    ]
