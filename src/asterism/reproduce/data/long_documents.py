"""Two made-up tasks that need length, and text to pretrain on: what decides stands hundreds of words from the start.

Documents are 3,900 words of generated prose. None of what decides stands in their first 600 words; where it stands
further on is uniform. A model that reads 512 tokens therefore can do no better than guess, whatever its tokenizer; one
that reads 4,096 tokens of a tokenizer with a token per word sees it all.

Classification (`classify.train.jsonl`, `classify.test.jsonl`): one section of 150 sentences uses words of one of four
topics, which is the label. One word of each topic also stands anywhere in the document, also in its beginning, whatever
the label is.

Question answering (`qa.train.jsonl`, `qa.test.jsonl`): one sentence says where the thing is that the question asks for.
Eight other sentences, anywhere in the document, mention other places.

A `Shape` of another length has its evidence anywhere, in its beginning too, and as much of it as its length deserves.

Text (`text/`): short unlabelled documents of the same prose, with paragraphs on topics, in which six sentences on where
things are kept return again and again: words to predict that have been said before. Places are drawn anew for every
document, so that what is learned is to look, not to know.

Everything is a function of the seed; each document has a generator of its own, keyed by (seed, what it is for, number).
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from asterism.files import replacing

WORDS = 3_900
"""Words of a labelled document."""
PREFIX = 600
"""How many words at its start say nothing about label or answer."""
LAST = 3_400
"""About where everything that decides ends: with a token for each word and mark, before token 4,000."""
EVIDENCE = 150
"""Sentences of a document that are on its topic: about three of ten."""
DECOYS = 8
"""Sentences of a document that mention a place where nothing is."""

TOPICS = {
    "weather": ("storm", "thunder", "snow", "fog", "rain", "frost", "hail", "breeze"),
    "music": ("violin", "melody", "choir", "flute", "organ", "trumpet", "chorus", "harp"),
    "food": ("bread", "cheese", "soup", "apple", "honey", "pepper", "butter", "onion"),
    "travel": ("train", "ticket", "luggage", "voyage", "passport", "station", "carriage", "ferry"),
}
THINGS = (
    *("lamp", "coin", "book", "ring", "map", "drum", "bell", "cup"),
    *("rope", "sword", "flag", "crown", "pearl", "mirror", "candle", "hammer"),
)
PLACES = (
    *("cellar", "attic", "garden", "kitchen", "stable", "tower", "chapel", "library"),
    *("harbour", "market", "mill", "barn", "forest", "quarry", "meadow", "workshop"),
)
_PEOPLE = (
    *("farmer", "teacher", "doctor", "soldier", "painter", "sailor", "judge", "miner"),
    *("widow", "clerk", "guard", "nurse", "tailor", "hunter", "pilot", "monk"),
)
_OBJECTS = (
    *("door", "window", "letter", "table", "chair", "wall", "road", "field"),
    *("river", "wheel", "horse", "dog", "stone", "fence", "cart", "paper"),
)
_ADJECTIVES = ("old", "young", "quiet", "tall", "tired", "proud", "gentle", "strange", "clever", "poor")
_VERBS = ("saw", "painted", "moved", "followed", "found", "sold", "watched", "cleaned", "carried", "forgot")
_TIMES = ("today", "again", "yesterday", "slowly", "at noon", "in silence", "once more", "before dawn")


@dataclass(frozen=True)
class Shape:
    """Words of a document, the range of words in which all that decides stands, and its sentences on the topic."""

    words: int = WORDS
    first: int = PREFIX
    last: int = LAST
    evidence: int = EVIDENCE


def anywhere(words: int) -> Shape:
    """The shape of a document of so many words that may have what decides anywhere."""
    return Shape(words, 0, words, round(words * EVIDENCE / WORDS))


def classification_document(random: np.random.Generator, shape: Shape = Shape()) -> dict[str, Any]:
    """{"text", "label", "evidence"}: the last is the number of the first word that decides."""
    label = list(TOPICS)[int(random.integers(len(TOPICS)))]
    evidence = [_sentence(random, _pick(random, TOPICS[label])) for _ in range(shape.evidence)]
    at = int(random.integers(shape.first, shape.last - _words(evidence)))
    decoys = [
        ([_sentence(random, _pick(random, words))], int(random.integers(shape.words))) for words in TOPICS.values()
    ]
    sentences, places = _document(random, shape.words, [(evidence, at), *decoys])
    return {"text": " ".join(sentences), "label": label, "evidence": places[0]}


def question_document(random: np.random.Generator, shape: Shape = Shape()) -> dict[str, Any]:
    """{"context", "question", "answers", "evidence"}: the last is the number of the first word of the fact."""
    thing = _pick(random, THINGS)
    place, *others = random.choice(PLACES, 1 + DECOYS, replace=False).tolist()
    fact = _fact(random, thing, place)
    at = int(random.integers(shape.first, shape.last - _words([fact])))
    decoys = [([_passing(random, other)], int(random.integers(shape.last))) for other in others]
    sentences, numbers = _document(random, shape.words, [([fact], at), *decoys])
    context = " ".join(sentences)
    start = context.index(fact) + fact.index(place)
    return {
        "context": context,
        "question": f"Where is the {thing}?",
        "answers": {"text": [place], "answer_start": [start]},
        "evidence": numbers[0],
    }


MAKERS: dict[str, Callable[[np.random.Generator, Shape], dict[str, Any]]] = {
    "classify": classification_document,
    "qa": question_document,
}
_PURPOSES = ("classify.train", "classify.test", "qa.train", "qa.test", "text")


@dataclass(frozen=True)
class Sizes:
    """How many documents are made of each kind."""

    train: int = 2_000
    test: int = 200
    text: int = 6_000


def write_long_range(folder: Path, *, seed: int = 0, sizes: Sizes = Sizes()) -> None:
    """Write all files into a new folder, whole or not at all."""
    with replacing(folder) as temporary:
        for task in MAKERS:
            for split, count in (("train", sizes.train), ("test", sizes.test)):
                write_examples(temporary / f"{task}.{split}.jsonl", f"{task}.{split}", seed, count)
        write_texts(temporary / "text", seed, sizes.text)


def write_examples(path: Path, purpose: str, seed: int, count: int, shapes: Sequence[Shape] = (Shape(),)) -> None:
    """Write labelled documents, a line each, for a purpose such as "qa.train"; shapes take turns."""
    make = MAKERS[purpose.partition(".")[0]]
    with path.open("w") as lines:
        for number, random in enumerate(generators(seed, purpose, count)):
            lines.write(json.dumps(make(random, shapes[number % len(shapes)])) + "\n")


def write_texts(folder: Path, seed: int, count: int) -> None:
    """Write unlabelled documents, a file each."""
    folder.mkdir()
    for number, random in enumerate(generators(seed, "text", count)):
        (folder / f"{number:06}.txt").write_text(text_document(random))


def generators(seed: int, purpose: str, count: int) -> Iterator[np.random.Generator]:
    """One generator for each document of a kind."""
    for number in range(count):
        key = np.random.SeedSequence((seed, _PURPOSES.index(purpose), number)).generate_state(2, np.uint64)
        yield np.random.Generator(np.random.Philox(key=key))


def text_document(random: np.random.Generator) -> str:
    """An unlabelled document of 400 words: half of its sentences restate one of six facts, a fifth are on a topic."""
    things, places = (random.choice(names, 6, replace=False).tolist() for names in (THINGS, PLACES))
    topic = TOPICS[list(TOPICS)[int(random.integers(len(TOPICS)))]]
    sentences: list[str] = []
    while _words(sentences) < 400:
        kind, fact = random.random(), int(random.integers(6))
        if kind < 0.5:
            sentences.append(_fact(random, things[fact], places[fact]))
        elif kind < 0.6:
            sentences.append(_passing(random, _pick(random, PLACES)))
        else:
            sentences.append(_sentence(random, _pick(random, topic if kind < 0.8 else _OBJECTS)))
    return " ".join(sentences) + "\n"


def _document(
    random: np.random.Generator, length: int, planted: Sequence[tuple[list[str], int]]
) -> tuple[list[str], list[int]]:
    """Sentences of `length` words or a few more; groups stand at or behind given words, and where each begins."""
    sentences: list[str] = []
    begins = [0] * len(planted)
    words = 0
    for number in sorted(range(len(planted)), key=lambda one: planted[one][1]):
        group, at = planted[number]
        while words < at:
            sentences.append(_sentence(random, _pick(random, _OBJECTS)))
            words += _words(sentences[-1:])
        begins[number] = words
        sentences += group
        words += _words(group)
    while words < length:
        sentences.append(_sentence(random, _pick(random, _OBJECTS)))
        words += _words(sentences[-1:])
    return sentences, begins


def _sentence(random: np.random.Generator, noun: str) -> str:
    adjective, person, verb, time = (_pick(random, words) for words in (_ADJECTIVES, _PEOPLE, _VERBS, _TIMES))
    return f"The {adjective} {person} {verb} the {noun} {time}."


def _passing(random: np.random.Generator, place: str) -> str:
    return f"The {_pick(random, _ADJECTIVES)} {_pick(random, _PEOPLE)} went past the {place} {_pick(random, _TIMES)}."


def _fact(random: np.random.Generator, thing: str, place: str) -> str:
    return f"{_pick(random, ('The', 'Here the', 'Now the'))} {thing} is in the {place}."


def _pick(random: np.random.Generator, words: Sequence[str]) -> str:
    return words[int(random.integers(len(words)))]


def _words(sentences: Sequence[str]) -> int:
    return sum(sentence.count(" ") + 1 for sentence in sentences)
