"""Rows of a causal model: tokens that are read, and answers among them that are learned; and packed rows.

    conversation, or prompt and completion -> `Continued` -> a row that fits -> perhaps packed with others

A token is learned if the model's prediction for it is part of the loss. The first token of a row never is, because
nothing precedes it. A packed row holds several examples. Their positions restart, so no token reads across a border.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from asterism.labels import IGNORED
from asterism.training.tasks.rows import Feature


@dataclass(frozen=True, eq=False)
class Continued:
    """An example of a causal model, of any length.

    tokens   int32 [N]
    learned  bool [N]: the tokens of answers, with the token that ends each
    answer   the index at which the last answer begins; it ends with the last token
    """

    tokens: np.ndarray
    learned: np.ndarray
    answer: int

    def with_shorter_answer(self, most: int) -> "Continued":
        """The same with at most `most` tokens of the last answer, of which the last one still ends it."""
        if len(self.tokens) - self.answer <= most:
            return self
        kept = np.append(np.arange(self.answer + most - 1), len(self.tokens) - 1)
        return Continued(self.tokens[kept], self.learned[kept], self.answer)

    def feature(self, room: int, *, begins: bool) -> Feature:
        """A row of at most `room` tokens, without the oldest tokens of a longer example.

        The first token stays if it `begins` every text of the tokenizer.
        """
        kept, excess = np.arange(len(self.tokens)), len(self.tokens) - room
        if excess > 0:
            kept = np.append(kept[:begins], kept[excess + begins :])
        tokens, learned = self.tokens[kept], self.learned[kept]
        labels = np.where(learned, tokens, IGNORED)
        labels[:1] = IGNORED
        return Feature({"input_ids": tokens}, labels, is_cut=excess > 0)


def packed(features: Sequence[Feature], length: int) -> list[Feature]:
    """Rows of up to `length` tokens that hold several features each, longest first, wherever they leave least room.

    `position_ids` restart with each feature. Which features share a row depends on their lengths and order alone.
    """
    sizes = [len(one.inputs["input_ids"]) for one in features]
    rows: list[list[int]] = []
    open_rows: list[tuple[int, int]] = []  # the room that is left, and the number of the row, in ascending order
    for number in sorted(range(len(features)), key=lambda number: -sizes[number]):
        place = bisect_left(open_rows, (sizes[number], -1))
        if place < len(open_rows):
            room, row = open_rows.pop(place)
            rows[row].append(number)
        else:
            room, row = length, len(rows)
            rows.append([number])
        insort(open_rows, (room - sizes[number], row))
    return [_joined([features[number] for number in row]) for row in rows]


def _joined(features: Sequence[Feature]) -> Feature:
    tokens = [one.inputs["input_ids"] for one in features]
    positions = [np.arange(len(one), dtype=np.int32) for one in tokens]
    inputs = {"input_ids": np.concatenate(tokens), "position_ids": np.concatenate(positions)}
    return Feature(inputs, np.concatenate([one.target for one in features]), is_cut=any(one.is_cut for one in features))
