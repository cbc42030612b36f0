"""Encode documents with the tokenizer, uncut, and cut the rows of a reader from them.

The tokens around a document, special tokens and perhaps a question, surround every row of it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers import Encoding
from transformers import PreTrainedTokenizerFast

from asterism.training.readers.reader import Document, Row

ENCODED_TOGETHER = 64
"""Documents tokenized at once. An encoding takes much more memory than the part of it that is kept."""


@dataclass(frozen=True, eq=False)
class Encoded:
    """One document of any length, with the tokens around it.

    inputs      the model's arguments, such as input_ids: int32 [N] each
    first, end  where the document's own tokens are
    characters  int32 [end - first, 2]: the characters of the document, or of its word, that each of them covers
    words       int32 [end - first]: the word that each of them is of, where documents come in words
    text        the document, "" if it comes in words
    question    what stands before it, if anything does
    goes_on     whether the document has more tokens than these
    """

    inputs: dict[str, np.ndarray]
    first: int
    end: int
    characters: np.ndarray
    words: np.ndarray
    text: str
    question: str | None
    goes_on: bool = False

    @property
    def tokens(self) -> int:
        """The number of tokens of the document itself."""
        return self.end - self.first

    @property
    def around(self) -> int:
        """The number of tokens around the document."""
        return len(self.inputs["input_ids"]) - self.tokens

    def document(self, length: int) -> Document:
        """The document as a reader sees it, for rows of `length` tokens."""
        return Document(self.tokens, length - self.around, self.text, self.characters[:, 0], self.question)

    def kept(self, row: Row) -> np.ndarray:
        """The indices of the document's tokens in a row, int64 [M]."""
        return np.concatenate([np.arange(begin, end) for begin, end in row])

    def covered(self, row: Row) -> list[list[int]]:
        """The characters of the document that a row holds: [first, end] of each stretch."""
        return [[int(self.characters[begin, 0]), int(self.characters[end - 1, 1])] for begin, end in row]

    def row(self, row: Row) -> dict[str, np.ndarray]:
        """The model's arguments for a row: int32 each."""
        numbers = np.concatenate(
            [np.arange(self.first), self.first + self.kept(row), np.arange(self.end, self.around + self.tokens)]
        )
        return {name: values[numbers] for name, values in self.inputs.items()}

    def along(self, row: Row, values: np.ndarray, filler: int) -> np.ndarray:
        """The entries of `values` [tokens, ...] for each token of a row, with `filler` for the tokens around the
        document.
        """
        kept = values[self.kept(row)]
        sides = ((self.first, self.around - self.first), *[(0, 0)] * (values.ndim - 1))
        return np.pad(kept, sides, constant_values=filler)


def encode(
    documents: Sequence[str] | Sequence[Sequence[str]],
    tokenizer: PreTrainedTokenizerFast,
    *,
    questions: Sequence[str] | None = None,
    prefix: str = "",
    most: int | None = None,
) -> Iterator[Encoded]:
    """Encode each document, given as text or words, after its question if there are `questions`.

    A `prefix` precedes the text, or its question. Without questions, tokens beyond a row of `most` tokens may be left
    out.
    """
    before = prefix if questions is None else ""
    for at in range(0, len(documents), ENCODED_TOGETHER):
        some = [
            f"{before}{one}" if isinstance(one, str) else list(one) for one in documents[at : at + ENCODED_TOGETHER]
        ]
        asked = None if questions is None else list(questions[at : at + ENCODED_TOGETHER])
        rows = tokenizer(
            *([some] if asked is None else [[f"{prefix}{one}" for one in asked], some]),
            is_split_into_words=not isinstance(some[0], str),
            truncation=asked is None and most is not None,
            max_length=most if asked is None else None,
            verbose=False,
        ).encodings
        for number, (row, document) in enumerate(zip(rows, some, strict=True)):
            text = document if isinstance(document, str) else ""
            inputs = {"input_ids": row.ids, "token_type_ids": row.type_ids}
            names = [name for name in inputs if name in tokenizer.model_input_names]
            yield _encoded(
                row,
                {name: np.array(inputs[name], dtype=np.int32) for name in names},
                text[len(before) :],
                None if asked is None else asked[number],
                len(before) if text else 0,
            )


def _encoded(row: Encoding, inputs: dict[str, np.ndarray], text: str, question: str | None, before: int) -> Encoded:
    """`before` are the characters of the row's text that stand before the document."""
    mine = np.array([part == int(question is not None) for part in row.sequence_ids], dtype=bool)
    characters = np.array(row.offsets, dtype=np.int32).reshape(-1, 2) - before
    # Many a tokenizer counts the space before a word to the word's token: the one at the end of "summarize: " may be of
    # the document's first token.
    places = np.flatnonzero(mine & ((characters[:, 0] >= 0) | (characters[:, 1] > 0)))
    first, end = (int(places[0]), int(places[-1]) + 1) if len(places) else (len(mine), len(mine))
    characters = np.maximum(characters, 0)
    words = [-1 if word is None else word for word in row.word_ids[first:end]]
    words_of = np.array(words, dtype=np.int32)
    return Encoded(inputs, first, end, characters[first:end], words_of, text, question, bool(row.overflowing))
