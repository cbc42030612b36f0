"""The span corruption of T5 (Raffel 2020, sections 3.1.4 and 3.3.4): spans of a text are left out and become the
target.

    text     Thank you for inviting me to your party last week .
    input    Thank you <X> me to your party <Y> week .
    target   <X> for inviting <Y> last <Z>

15 of 100 tokens are left out, in spans of 3 on average. In the input, a different sentinel replaces each span. The
target is every span after its sentinel, and a final sentinel. All texts of one length lose the same number of tokens in
the same number of spans. Their positions are drawn uniformly, and no two spans touch.
"""

import numpy as np
from transformers import PreTrainedTokenizerBase

from asterism.training.data.corpora.packing import TokenStream
from asterism.training.data.corpora.splits import Split, Splits
from asterism.training.data.corpora.tokenization import Needs, sentinel_ids
from asterism.training.objectives.denoising import Denoising, Pairs, Room
from asterism.training.objectives.span_sizes import SpanSizes
from asterism.training.settings.configuration import RunConfig


def corrupt_spans(
    tokens: np.ndarray, sizes: SpanSizes, sentinels: np.ndarray, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Leave spans of a text out.

    tokens     int64 [sizes.tokens], not changed
    sentinels  int64 [sizes.spans + 1 or more], in the order in which they come
    returns    input int64 [sizes.input_tokens], target int64 [sizes.target_tokens]
    """
    lengths = _parts(sizes.noise, sizes.spans, random)
    # What stays: at least a token between two spans, and any number, also none, before the first and behind the last.
    kept = _parts(sizes.tokens - sizes.noise + 2, sizes.spans + 1, random)
    kept[[0, -1]] -= 1
    starts = np.cumsum(kept[:-1]) + np.cumsum(lengths) - lengths
    inputs: list[np.ndarray] = []
    targets: list[np.ndarray] = []
    place = 0
    for start, length, sentinel in zip(starts.tolist(), lengths.tolist(), sentinels, strict=False):
        inputs += [tokens[place:start], sentinel[None]]
        targets += [sentinel[None], tokens[start : start + length]]
        place = start + length
    return np.concatenate([*inputs, tokens[place:]]), np.concatenate([*targets, sentinels[sizes.spans, None]])


def _parts(whole: int, count: int, random: np.random.Generator) -> np.ndarray:
    """A whole number as the sum of `count` positive ones, uniformly among all ways: int64 [count]."""
    cuts = np.sort(random.choice(whole - 1, count - 1, replace=False)) + 1
    return np.diff(cuts, prepend=0, append=whole)


class SpanPairs(Pairs):
    """Rows of one length, packed end to end (`packing.py`), from which spans are left out.

    Raises DataError for a split with too few tokens.
    """

    def __init__(self, corpus: Splits, split: Split, tokenizer: PreTrainedTokenizerBase, sizes: SpanSizes) -> None:
        self.stream = TokenStream.of(corpus, split, tokenizer)
        self.stream.require(sizes.tokens, f"the {split} split of {corpus.name}")
        self.starts = self.stream.row_starts(sizes.tokens)
        self.sizes, self.sentinels = sizes, sentinel_ids(tokenizer, sizes.spans + 1)
        self.count, self.tokens, self.documents = len(self.starts), len(self.stream.tokens), self.stream.documents

    def pair(self, number: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        start = self.starts[number]
        tokens = self.stream.tokens[start : start + self.sizes.tokens].astype(np.int64)
        return corrupt_spans(tokens, self.sizes, self.sentinels, random)


class SpanCorruption(Denoising):
    """Span corruption of rows whose inputs fill the context."""

    @classmethod
    def needs(cls, config: RunConfig) -> Needs:
        """A token that pads, one that ends a text, and the sentinels."""
        tokens = (("pad_token",), ("eos_token", "sep_token"))
        return Needs("span corruption", tokens, SpanSizes.fitting(config.context - 1).spans + 1)

    @classmethod
    def room_of(cls, config: RunConfig) -> Room:
        return Room(config.context, SpanSizes.fitting(config.context - 1).target_tokens + 1)

    def rows(self, corpus: Splits, split: Split) -> SpanPairs:
        return SpanPairs(corpus, split, self.tokenizer, SpanSizes.fitting(self.room.inputs - 1))
