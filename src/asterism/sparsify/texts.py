"""The texts that losses are measured on: pieces of equal length, some to choose by and others to judge by."""

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from asterism.errors import DataError
from asterism.evaluation import CausalModel
from asterism.presence import require_data
from asterism.training.data.corpora.folders import list_folder, regular
from asterism.training.data.records.formats import read_records
from asterism.training.data.records.record import Record

_LONGEST = 64
"""Characters of a document that are read for each token that is wanted: more than tokens have, but for long runs of
blanks. What lies behind is not read, however long a file is."""


@dataclass(frozen=True)
class Texts:
    """Pieces of texts as tokens, int64 [1, N] each.

    chosen_by  pieces whose losses decide
    held_out   pieces that decide nothing; of other documents, wherever there is more than one
    digest     SHA-256 of all pieces
    length     N
    """

    chosen_by: tuple[Tensor, ...]
    held_out: tuple[Tensor, ...]
    digest: str
    length: int

    @property
    def choosing(self) -> list[str]:
        """The names of the pieces that decide."""
        return [f"chosen by {number}" for number in range(len(self.chosen_by))]

    @property
    def judging(self) -> list[str]:
        """The names of the others."""
        return [f"held out {number}" for number in range(len(self.held_out))]

    @property
    def pieces(self) -> dict[str, Tensor]:
        """All pieces by name, int64 [1, N] each."""
        return dict(zip((*self.choosing, *self.judging), (*self.chosen_by, *self.held_out), strict=True))


def read_texts(model: CausalModel, data: Path, length: int, counts: tuple[int, int], seed: int) -> Texts:
    """`counts` pieces of `length` tokens to choose by and to judge by, of documents in an order drawn from the seed.

    `data` is a file of text (one document), a folder of such files, or .jsonl with a `text`, or a `prompt` and a
    `completion`, in each line. Raises DataError for data that cannot be read or are too short.
    """
    wanted = sum(counts)
    documents = _documents(data, wanted * length * _LONGEST)
    random.Random(seed).shuffle(documents)
    pieces: list[list[Tensor]] = []
    for read in documents:
        text = read()
        ids: Tensor = model.tokenizer(text, return_tensors="pt", verbose=False).input_ids
        if found := [ids[:, at : at + length] for at in range(0, ids.shape[1] - length + 1, length)]:
            pieces.append(found)
        if len(pieces) > wanted:
            break
    some, others = _divided(pieces, counts)
    if len(some) < counts[0] or len(others) < counts[1]:
        raise DataError(
            "text-too-short",
            f"data: {data} gives {len(some)} and {len(others)} pieces of {length:,} tokens to choose and to judge by,"
            f" of {counts[0]} and {counts[1]} asked for: give more text, or a shorter --length, fewer --documents or"
            " --held-out",
        )
    digest = hashlib.sha256(b"".join(one.numpy().tobytes() for one in (*some, *others))).hexdigest()
    return Texts(tuple(some), tuple(others), digest, length)


def _divided(pieces: list[list[Tensor]], counts: tuple[int, int]) -> tuple[list[Tensor], list[Tensor]]:
    """Documents in turn, a piece of each, until there are enough of either kind; one document is cut in two."""
    if len(pieces) == 1:
        return pieces[0][: counts[0]], pieces[0][counts[0] :][: counts[1]]
    share = max(1, round(len(pieces) * counts[0] / max(1, sum(counts))))
    share = min(share, len(pieces) - 1)
    return _in_turns(pieces[:share], counts[0]), _in_turns(pieces[share:], counts[1])


def _in_turns(pieces: list[list[Tensor]], count: int) -> list[Tensor]:
    most = max((len(one) for one in pieces), default=0)
    return [one[at] for at in range(most) for one in pieces if at < len(one)][:count]


def _documents(data: Path, most: int) -> list[Callable[[], str]]:
    """What reads each document, of which so many characters are needed at most."""
    require_data(data)
    if data.is_dir():
        return [partial(_text, data / name, most) for name in list_folder(data)]
    if data.name.endswith((".jsonl", ".jsonl.gz", ".jsonl.xz")):
        return [partial(_of_record, record, most) for record in read_records(data, ["jsonl"])]
    return [partial(_text, data, most)]


def _of_record(record: Record, most: int) -> str:
    names = ("text",) if "text" in record.fields else ("prompt", "completion")
    parts = [record.get(name) for name in names]
    if not all(isinstance(part, str) for part in parts):
        raise record.error(names[0], "must be a text")
    for name, part in zip(names, parts, strict=True):
        record.refuse_surrogates(name, part)
    return "".join(parts)[:most]


def _text(path: Path, most: int) -> str:
    try:
        with regular(path).open(encoding="utf-8", newline="") as file:
            return file.read(most)
    except UnicodeDecodeError as error:
        raise DataError("not-utf8", f"data: {path} is not UTF-8") from error
    except OSError as error:
        raise DataError("unreadable-file", f"data: cannot read {path}: {error.strerror}") from error


def scored(ids: Tensor) -> tuple[int, Tensor]:
    """The place of the first token that counts, the middle of a piece [1, N], and the int64 tokens from there on.

    In the first half a query has few keys, so that no schedule takes much from it.
    """
    start = ids.shape[1] // 2
    return start, ids[0, start:].to(torch.int64)
