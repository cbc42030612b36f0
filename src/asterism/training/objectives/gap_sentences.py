"""The gap sentences of Pegasus (Zhang 2020, section 3.1): the most important sentences are left out and become the
target.

    text     Pegasus is mythical. It is pure white. It names the model.
    input    Pegasus is mythical. <mask> It names the model.
    target   It is pure white.

The importance of a sentence is the ROUGE-1 (F1) between it and the rest of the text. Each sentence is judged alone, and
repeated words count repeatedly ("Ind-Orig", the choice of the paper). 3 of 10 sentences, at least one, are left out,
the most important first, as far as the target has room. The target keeps the order of the text.

A share of them, `kept_sentences`, stays in the input nevertheless, drawn anew each time, so that the model learns to
copy (section 6.2: 0.2 for Pegasus large).
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from transformers import PreTrainedTokenizerBase

from asterism.training.data.corpora.splits import Split, Splits
from asterism.training.data.corpora.tokenization import Needs
from asterism.training.objectives.denoising import Denoising, Pairs, Room, none_left
from asterism.training.settings.configuration import RunConfig

GAP_SHARE = 0.3

_WORDS = re.compile(r"\w+")
_SENTENCE_BEGIN = re.compile(r"(?<=[.!?])(?=\s)|(?<=[^\n\s])(?=\s*\n)")


def sentences_of(text: str) -> list[str]:
    """The sentences of a text: they end behind ".", "!" or "?" and with a line. Joined they are the text again.

    White space belongs to the sentence after it; the text neither begins nor ends with white space.
    """
    text = text.strip()
    cuts = sorted({0, *(match.start() for match in _SENTENCE_BEGIN.finditer(text)), len(text)})
    return [text[begin:end] for begin, end in pairwise(cuts)]


def gaps(sentences: Sequence[str], tokens: Sequence[int], room: int) -> list[int]:
    """The indices of the sentences to leave out, ascending; of equally important ones, the first is left out.

    There are 2 sentences or more, and `tokens` gives the length of each. The target has `room` tokens, enough for the
    longest sentence.
    """
    scores = importance(sentences)
    count = max(1, round(GAP_SHARE * len(sentences)))
    chosen: list[int] = []
    for number in sorted(range(len(sentences)), key=lambda number: -scores[number]):
        if len(chosen) < count and tokens[number] <= room:
            chosen.append(number)
            room -= tokens[number]
    return sorted(chosen)


def importance(sentences: Sequence[str]) -> list[float]:
    """ROUGE-1 (F1) of each sentence and all others together, from 0 to 1."""
    counts = [Counter(_WORDS.findall(sentence.lower())) for sentence in sentences]
    whole: Counter[str] = sum(counts, Counter())
    words = whole.total()
    # Twice what both have, by the words of both: of a sentence and the rest, those of the text.
    common = (sum(min(times, whole[word] - times) for word, times in own.items()) for own in counts)
    return [2 * shared / words if words else 0.0 for shared in common]


Sentence = tuple[str, np.ndarray]
"""Its text, and its tokens, int32 [tokens]."""


class GapPairs(Pairs):
    """Stretches of documents, each of 2 sentences or more, from which sentences are left out.

    A document longer than an input is read in consecutive stretches, and a sentence longer than a target in parts. A
    remainder of one sentence is dropped. Raises DataError if nothing is left.
    """

    def __init__(
        self,
        corpus: Splits,
        split: Split,
        tokenizer: PreTrainedTokenizerBase,
        mask: int,
        room: Room,
        kept: float = 0.0,
    ) -> None:
        self.mask, self.wanted, self.kept = mask, room.targets - 1, kept
        self.stretches: list[tuple[list[np.ndarray], list[int]]] = []
        self.documents = 0
        longest = min(self.wanted, room.inputs - 2)  # two must have room in an input
        for document in corpus.documents(split):
            self.documents += 1
            sentences = list(encoded_sentences(document, tokenizer, longest))
            for stretch in stretches(sentences, room.inputs - 1):
                tokens = [ids for _, ids in stretch]
                chosen = gaps([text for text, _ in stretch], [len(ids) for ids in tokens], self.wanted)
                self.stretches.append((tokens, chosen))
        if not self.stretches:
            raise none_left(split, corpus, "no document has two sentences that fit into the context together")
        self.count = len(self.stretches)
        self.tokens = sum(len(one) for tokens, _ in self.stretches for one in tokens)

    def pair(self, number: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """The random choice is which sentences of the target stay in the input."""
        tokens, chosen = self.stretches[number]
        mask = np.array([self.mask])
        left_out = {
            place for place, drawn in zip(chosen, random.random(len(chosen)), strict=True) if drawn >= self.kept
        }
        read = [mask if place in left_out else one for place, one in enumerate(tokens)]
        wanted = [tokens[place] for place in chosen]
        return np.concatenate(read).astype(np.int64), np.concatenate(wanted).astype(np.int64)


def encoded_sentences(document: str, tokenizer: PreTrainedTokenizerBase, longest: int) -> Iterator[Sentence]:
    """The sentences of a document that have tokens, in parts of at most `longest`, none of them special."""
    texts = sentences_of(document)
    if not texts:
        return
    rows = tokenizer(texts, add_special_tokens=False, split_special_tokens=True, verbose=False).encodings
    for text, row in zip(texts, rows, strict=True):
        for at in range(0, len(row.ids), longest):
            ids = np.array(row.ids[at : at + longest], dtype=np.int32)
            yield text[row.offsets[at][0] : row.offsets[at + len(ids) - 1][1]], ids


def stretches(sentences: Sequence[Sentence], room: int) -> Iterator[list[Sentence]]:
    """Consecutive sentences, as many as fit into `room` tokens together; at least 2, or none."""
    stretch: list[Sentence] = []
    for sentence in sentences:
        if stretch and sum(len(ids) for _, ids in stretch) + len(sentence[1]) > room:
            if len(stretch) > 1:
                yield stretch
            stretch = []
        stretch.append(sentence)
    if len(stretch) > 1:
        yield stretch


class GapSentences(Denoising):
    """Texts that fit into the context, targets that fit into half of it, as Pegasus has them, or are shorter."""

    @classmethod
    def needs(cls, config: RunConfig) -> Needs:
        """A token that pads, one that ends a text, and one that stands for a sentence."""
        return Needs("leaving sentences out", (("pad_token",), ("eos_token", "sep_token"), ("mask_token",)))

    @classmethod
    def room_of(cls, config: RunConfig) -> Room:
        return Room(config.context, config.target_length or config.context // 2)

    def rows(self, corpus: Splits, split: Split) -> GapPairs:
        kept = self.config.kept_sentences
        return GapPairs(corpus, split, self.tokenizer, _mask(self.tokenizer), self.room, kept)


def _mask(tokenizer: PreTrainedTokenizerBase) -> int:
    """The token that stands for a sentence. Pegasus has two masks, and <mask_1> is for sentences."""
    known: dict[str, int] = tokenizer.get_vocab()
    return known.get("<mask_1>", tokenizer.mask_token_id)
