"""The made-up long tasks: nothing decides in the beginning, what decides stands anywhere further on, seeds fix all."""

import json
import re
from collections import Counter

import pytest
from small_encoders import write_lines
from small_tasks import read_documents, read_questions

from asterism.reproduce.data.long_documents import (
    DECOYS,
    EVIDENCE,
    LAST,
    PLACES,
    PREFIX,
    THINGS,
    TOPICS,
    WORDS,
    Sizes,
    anywhere,
    classification_document,
    generators,
    question_document,
    text_document,
    write_long_range,
)

COUNT = 400
TOPIC_OF = {word: topic for topic, words in TOPICS.items() for word in words}
FACT = re.compile(r"(?:The|Here the|Now the) (\w+) is in the (\w+)\.")


@pytest.fixture(scope="module")
def documents():
    return [classification_document(random) for random in generators(0, "classify.train", COUNT)]


@pytest.fixture(scope="module")
def questions():
    return [question_document(random) for random in generators(0, "qa.train", COUNT)]


def topics(text):
    return Counter(TOPIC_OF[word] for word in re.findall(r"\w+", text) if word in TOPIC_OF)


def is_uniform(places, first, last):
    """Whether each quarter of the range holds about a quarter of them: within five standard deviations."""
    quarters = Counter(min(3, 4 * (place - first) // (last - first)) for place in places)
    return all(abs(quarters[number] - COUNT / 4) < 5 * (COUNT * 3 / 16) ** 0.5 for number in range(4))


def test_the_evidence_decides_and_stands_anywhere_behind_the_beginning(documents):
    for document in documents:
        words = document["text"].split()
        assert WORDS <= len(words) < WORDS + 20
        assert topics(document["text"])[document["label"]] == EVIDENCE + 1  # one is everywhere
        assert all(count in (1, EVIDENCE + 1) for count in topics(document["text"]).values())
        at = document["evidence"]
        paragraph = " ".join(words[at:]).split(". ")[:EVIDENCE]
        assert all(topics(sentence)[document["label"]] >= 1 for sentence in paragraph)
        assert at >= PREFIX and at + len(" ".join(paragraph).split()) <= LAST + 60
    section = 8 * EVIDENCE
    assert is_uniform([document["evidence"] for document in documents], PREFIX, LAST - section)


def test_the_beginning_says_nothing_about_the_label(documents):
    """Labels are balanced, and what stands in the first words is as often of the label's topic as of any other."""
    labels = Counter(document["label"] for document in documents)
    assert labels.keys() == TOPICS.keys() and max(labels.values()) < 0.32 * COUNT
    beginnings = [topics(" ".join(document["text"].split()[:PREFIX])) for document in documents]
    own = sum(seen[document["label"]] for seen, document in zip(beginnings, documents, strict=True))
    every = sum(seen.total() for seen in beginnings)
    assert every > 100 and abs(own - every / 4) < 5 * (every * 3 / 16) ** 0.5
    best = [max(TOPICS, key=lambda topic: seen[topic]) for seen in beginnings]
    right = sum(one == document["label"] for one, document in zip(best, documents, strict=True))
    assert right / COUNT < 0.35


def test_one_fact_answers_and_other_places_are_only_passed(questions):
    for question in questions:
        facts = FACT.findall(question["context"])
        thing = re.fullmatch(r"Where is the (\w+)\?", question["question"])[1]
        passed = set(re.findall(r"went past the (\w+)", question["context"]))
        assert len(facts) == 1 and len(passed) == DECOYS and facts[0][1] not in passed
        (place,), (start,) = question["answers"]["text"], question["answers"]["answer_start"]
        assert (thing, place) in facts and question["context"][start:].startswith(place)
        assert thing not in " ".join(question["context"].split()[:PREFIX]).lower().split()
        assert PREFIX <= question["evidence"] <= LAST
    assert is_uniform([question["evidence"] for question in questions], PREFIX, LAST)
    for names, chosen in ((THINGS, 0), (PLACES, 1)):
        seen = Counter(
            (re.findall(r"the (\w+)\?", question["question"]) + question["answers"]["text"])[chosen]
            for question in questions
        )
        assert seen.keys() == set(names) and max(seen.values()) < 3 * COUNT / len(names)


@pytest.mark.parametrize("words", [300, 1000, 3600])
def test_in_a_shape_of_its_own_what_decides_stands_anywhere(words):
    shape = anywhere(words)
    documents = [classification_document(random, shape) for random in generators(0, "classify.train", COUNT)]
    for document in documents:
        assert words <= len(document["text"].split()) < words + 20
        assert topics(document["text"]).most_common(1)[0] == (document["label"], round(words / 26) + 1)
    assert is_uniform([document["evidence"] for document in documents], 0, words - 8 * shape.evidence)
    questions = [question_document(random, shape) for random in generators(0, "qa.train", COUNT)]
    assert is_uniform([question["evidence"] for question in questions], 0, words)


def test_text_restates_its_facts():
    texts = [text_document(random) for random in generators(0, "text", 50)]
    for text in texts:
        facts = FACT.findall(text)
        assert len(set(facts)) <= 6 and len(facts) > 12
        assert len({place for _, place in set(facts)}) == len({thing for thing, _ in set(facts)}) == len(set(facts))


def test_files_are_functions_of_the_seed_and_can_be_read(tmp_path):
    sizes = Sizes(train=3, test=2, text=2)
    for name, seed in (("one", 0), ("same", 0), ("other", 1)):
        write_long_range(tmp_path / name, seed=seed, sizes=sizes)
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file())
    assert len(files) == 6
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "same" / file).read_bytes()
        assert (tmp_path / "one" / file).read_bytes() != (tmp_path / "other" / file).read_bytes()
    train, test = (read_documents(tmp_path / "one" / f"classify.{split}.jsonl") for split in ("train", "test"))
    assert (len(train), len(test)) == (3, 2) and not {one.text for one in train} & {one.text for one in test}
    assert len(read_questions(tmp_path / "one" / "qa.train.jsonl")) == 3


def test_what_is_written_is_what_was_made(tmp_path, questions):
    path = write_lines(tmp_path / "q.jsonl", questions[:5])
    assert [json.loads(line) for line in path.read_text().splitlines()] == questions[:5]
    assert [one.answers[0].text for one in read_questions(path)] == [one["answers"]["text"][0] for one in questions[:5]]
