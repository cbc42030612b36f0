"""Documents as a stream of tokens, which is read in windows like a stream of bytes.

Between two documents lies one border. The model predicts the token that ends a text there, and reads the token that
starts one (`Border`). The stream begins with a border, so every token of every document is predicted. A border counts
as one byte, the NUL between documents in `bytes.py`. So the bytes of a split are the same whatever its tokens, and
bits per byte of tokens can be compared with bits per byte of bytes.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from asterism.errors import ConfigurationError
from asterism.training.data.corpora.packing import TokenStream
from asterism.training.data.corpora.splits import Border, Pieces, Split, Splits
from asterism.training.data.corpora.tokenization import bytes_of_tokens, encode, encode_with_ends, end_of, start_of_text

CHECKED = 2**20
"""Characters of the validation split that are compared with what their tokens decode to."""


class TokenPieces(Pieces):
    """One split as a stream: place 0 is a border, and the tokens of the documents follow, each document with a border
    behind it.
    """

    is_stream = True
    border: Border

    def __init__(self, corpus: Splits, split: Split, tokenizer: PreTrainedTokenizerBase) -> None:
        end, start = end_of(tokenizer), start_of_text(tokenizer)
        assert end is not None and start is not None  # as `Needs` says
        self.border = Border(end, start)
        self.corpus, self.split, self.tokenizer = corpus, split, tokenizer
        self.stream = TokenStream.of(corpus, split, tokenizer, end)
        self.bounds = np.array([0, len(self.stream.tokens) + 1], dtype=np.int64)

    def read(self, start: int, stop: int) -> np.ndarray:
        """The tokens at the places start .. stop - 1: int32 [stop - start]."""
        found = self.stream.tokens[max(0, start - 1) : max(0, stop - 1)]
        return found if start else np.concatenate([np.array([self.border.end], dtype=np.int32), found])[:stop]

    def documents(self) -> Iterator[str]:
        """The documents that have tokens."""
        for document in self.corpus.documents(self.split):
            if not self.stream.empty or len(next(encode(self.tokenizer, [document]))):
                yield document

    def text(self, first: int, stop: int) -> Iterator[bytes]:
        """The bytes first .. stop - 1 of the documents, each with the NUL behind it, in parts."""
        begin = 0
        for document in self.documents():
            if begin >= stop:
                return
            whole = document.encode() + b"\0"
            yield whole[max(0, first - begin) : max(0, stop - begin)]
            begin += len(whole)

    def bytes_before(self, places: np.ndarray) -> np.ndarray:
        return self._offsets[places]

    def place_of(self, size: int) -> int:
        return min(int(np.searchsorted(self._offsets, size)), len(self))

    @cached_property
    def _offsets(self) -> np.ndarray:
        """The number of bytes before each place and at the end: int64 [places + 1]."""
        sizes = np.zeros(len(self) + 1, dtype=np.int64)  # of the place before
        table, starts = bytes_of_tokens(self.tokenizer), self.stream.starts
        for number, document in enumerate(self.documents()):
            begin, end = int(starts[number]), int(starts[number + 1]) - 1
            tokens, whole = self.stream.tokens[begin:end], len(document.encode())
            found = None if table is None else table[tokens]
            if found is None or found.sum() != whole:  # the tokenizer changes the text, or its tokens are no bytes
                found = np.diff(encode_with_ends(self.tokenizer, document), prepend=0)
            sizes[begin + 2 : end + 2], sizes[end + 2] = found, 1
        return np.cumsum(sizes)

    def changed(self) -> tuple[int, int]:
        """How many of the first documents, up to CHECKED characters, the tokenizer does not restore; and how many they
        are."""
        wrong = count = read = 0
        for document in self.documents():
            begin, end = int(self.stream.starts[count]), int(self.stream.starts[count + 1]) - 1
            wrong += decoded(self.tokenizer, self.stream.tokens[begin:end]) != document
            count, read = count + 1, read + len(document)
            if read >= CHECKED:
                break
        return wrong, count


class TokenSplits(Splits):
    """A corpus of documents, the splits of which are streams of tokens. `length` and the sizes of a split stay those of
    the documents, in bytes.
    """

    def __init__(self, corpus: Splits, tokenizer: PreTrainedTokenizerBase) -> None:
        if not tokenizer.is_fast:
            raise ConfigurationError(
                "slow-tokenizer",
                "tokenizer: only a fast one locates its tokens in the text, by which bits per byte are counted; give"
                " the folder of a fast tokenizer (tokenizer.json)",
            )
        self.corpus, self.tokenizer = corpus, tokenizer
        self.name, self.sha256, self.notes, self.unit = corpus.name, corpus.sha256, corpus.notes, "tokens"
        self._made: dict[Split, TokenPieces] = {}

    def pieces(self, split: Split) -> TokenPieces:
        """The stream of a split, made once."""
        if split not in self._made:
            self._made[split] = TokenPieces(self.corpus, split, self.tokenizer)
        return self._made[split]

    def length(self, split: Split) -> int:
        return self.corpus.length(split)

    def record(self) -> dict[str, Any]:
        """Name, hash, and the sizes of each split that a run reads."""
        used: tuple[Split, ...] = ("train", "validation")
        sizes: dict[str, Any] = {
            split: {
                "bytes": self.length(split),
                "tokens": len(self.pieces(split).stream.tokens),
                "documents": self.pieces(split).stream.documents,
            }
            for split in used
        }
        return {"name": self.name, "sha256": self.sha256, **sizes}


def decoded(tokenizer: PreTrainedTokenizerBase, tokens: np.ndarray) -> str:
    """The text of tokens, int [tokens], without those that are special."""
    text = tokenizer.decode(tokens.tolist(), skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return str(text)
