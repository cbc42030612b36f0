"""Pack documents end to end into rows of tokens, so that no row is padded and no token is lost.

The tokens of a split stand in one flat array, every document followed by a separator. A row is a class token, the next
so many tokens of that array, and a separator; the last row ends with the array and repeats tokens of the row before it.
A row that holds the end of one document and the beginning of the next reads across the separator, as in RoBERTa (Liu
2019, FULL-SENTENCES) and in what BigBird and Longformer took from it: were documents kept apart, only the first one
of a row would see the global tokens that these patterns put at fixed places. Invariant: all rows have one length.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from transformers import PreTrainedTokenizerBase

from asterism.errors import DataError
from asterism.randomness import derive
from asterism.training.data.corpora.long_array import Appended
from asterism.training.data.corpora.made_once import made_once
from asterism.training.data.corpora.splits import Split, Splits
from asterism.training.data.corpora.tokenization import encode, end_of

SORTED_TOGETHER = 50
"""Of how many batches rows are sorted by length, at most; of no more than a quarter of a pass, so that no two passes
have the same batches. More saves little padding."""

_COUNTED = 2**24
"""Tokens that are counted at a time."""


@dataclass(frozen=True, eq=False)
class TokenStream:
    """The documents of a split: `tokens` int32 [tokens], each document with its separator behind it; a memory map where
    they are many.

    Document d is tokens[starts[d] : starts[d + 1]], `starts` int64 [documents + 1]. Documents that a tokenizer leaves
    nothing of are left out; `empty` counts them.
    """

    tokens: np.ndarray
    starts: np.ndarray
    empty: int

    @classmethod
    def of(
        cls, corpus: Splits, split: Split, tokenizer: PreTrainedTokenizerBase, separator: int | None = None
    ) -> "TokenStream":
        """The documents of a split as tokens. One process of a machine makes them, and the others read its result."""
        name = f"tokens {corpus.sha256} {split}"
        return made_once(name, lambda: cls.made(corpus.documents(split), tokenizer, separator), cls._write, cls._read)

    @classmethod
    def made(
        cls, documents: Iterable[str], tokenizer: PreTrainedTokenizerBase, separator: int | None = None
    ) -> "TokenStream":
        """The documents as tokens; the token `separator` follows each, by default the one that separates sentences."""
        if separator is None:
            separator = end_of(tokenizer) if tokenizer.sep_token_id is None else tokenizer.sep_token_id
        behind = np.array([separator], dtype=np.int32)
        tokens, lengths, empty = Appended(), [0], 0
        for document in encode(tokenizer, documents):
            if len(document):
                tokens.append(np.concatenate([document, behind]))
                lengths.append(len(document) + 1)
            else:
                empty += 1
        return cls(tokens.array(), np.cumsum(lengths, dtype=np.int64), empty)

    def _write(self, folder: Path) -> None:
        for name, numbers in (("tokens", self.tokens), ("starts", self.starts), ("empty", np.array(self.empty))):
            np.save(folder / f"{name}.npy", numbers)

    @classmethod
    def _read(cls, folder: Path) -> "TokenStream":
        starts = np.load(folder / "starts.npy")
        # Mapped, all processes have one copy; nothing cannot be mapped.
        tokens = np.load(folder / "tokens.npy", mmap_mode="r" if starts[-1] else None)
        return cls(np.asarray(tokens), starts, int(np.load(folder / "empty.npy")))

    @property
    def documents(self) -> int:
        """How many documents there are."""
        return len(self.starts) - 1

    def counts(self, vocabulary: int) -> np.ndarray:
        """The count of each token: int64 [vocabulary]."""
        counts = np.zeros(vocabulary, dtype=np.int64)
        for at in range(0, len(self.tokens), _COUNTED):
            counts += np.bincount(self.tokens[at : at + _COUNTED], minlength=vocabulary)
        return counts

    def row_starts(self, content: int) -> np.ndarray:
        """The starts of rows of `content` tokens that together hold every token: int64 [rows]."""
        last = len(self.tokens) - content
        return np.minimum(np.arange(0, len(self.tokens), content), last)

    def of_another_document(self, position: int, length: int, random: np.random.Generator) -> np.ndarray:
        """This many tokens from a random place in any document except the one at `position`; the end wraps to the
        beginning.
        """
        document = np.searchsorted(self.starts, position, side="right") - 1
        first, last = self.starts[document : document + 2]
        begin = last + random.integers(len(self.tokens) - (last - first))
        return self.tokens.take(np.arange(begin, begin + length), mode="wrap")

    def require(self, content: int, what: str) -> None:
        """Raises DataError if there are too few tokens for one row; `what` names the split and its corpus."""
        if len(self.tokens) < content:
            raise DataError(
                "too-few-tokens",
                f"data: {what} has {len(self.tokens):,} tokens in {self.documents:,} documents, but a sequence needs"
                f" {content:,}; give more data or a shorter context",
            )


class Epochs:
    """Rows in a new random order for each pass over them, endlessly: a function of (seed, number of the draw)."""

    def __init__(self, rows: int, seed: int) -> None:
        self.rows = rows
        self._order = lru_cache(maxsize=2)(lambda epoch: self._drawn(derive(seed, epoch), epoch))

    def draw(self, first: int, count: int) -> np.ndarray:
        """The rows of the draws first .. first + count - 1: int64 [count]."""
        return np.array([self._order(draw // self.rows)[draw % self.rows] for draw in range(first, first + count)])

    def _drawn(self, seed: int, epoch: int) -> np.ndarray:
        """The order of one pass: int64 [rows]."""
        return np.random.Generator(np.random.Philox(seed)).permutation(self.rows)


class EpochsByLength(Epochs):
    """The same, where draws in batches that begin at multiples of `batch` are of rows of like length.

    Rows are drawn at random, `together` batches of them are sorted by length and cut into batches, which are shuffled
    (Vaswani 2017, section 5.1, batches sentences by approximate length). A batch of two passes is not sorted.
    """

    def __init__(self, lengths: np.ndarray, batch: int, seed: int) -> None:
        super().__init__(len(lengths), seed)
        self.lengths, self.batch = lengths, batch
        self.together = max(1, min(SORTED_TOGETHER, len(lengths) // (4 * batch)))

    def _drawn(self, seed: int, epoch: int) -> np.ndarray:
        order, random = super()._drawn(seed, epoch), np.random.Generator(np.random.Philox(derive(seed, self.batch)))
        begin = -epoch * self.rows % self.batch
        end = begin + max(0, self.rows - begin) // self.batch * self.batch
        for at in range(begin, end, self.together * self.batch):
            some = order[at : min(end, at + self.together * self.batch)]
            batches = some[np.argsort(self.lengths[some], kind="stable")].reshape(-1, self.batch)
            some[:] = random.permutation(batches).reshape(-1)
        return order
