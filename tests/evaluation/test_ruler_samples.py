"""Prompts: one right answer, the length that was asked for, the same for the same seed."""

import re
from collections import Counter

import pytest
from reading_prompts import answers_to, candidates_in, counted_bytes, counted_words, needles_of
from refusals import refusing

from asterism.errors import ConfigurationError
from asterism.evaluation.sample import room_for
from asterism.evaluation.tasks import GROUPS, TASKS, tasks_of
from asterism.evaluation.words import ADJECTIVES, NOUNS, VERBS

COUNTERS = {"bytes": counted_bytes, "words": counted_words}


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("counter", COUNTERS)
def test_one_answer_is_right(name, counter):
    """Readers that know nothing but the prompt find the answers, and nothing else has a claim to be one."""
    for number in range(12):
        sample = TASKS[name].sample(number, 700 + 150 * number, 3, COUNTERS[counter])
        assert sorted(answers_to(sample.prompt)) == sorted(sample.answers)
        assert sorted(candidates_in(sample.prompt)) == sorted(sample.candidates)
        asked, text = sample.prompt.splitlines()[-1], sample.prompt.lower()
        assert len({answer.lower() for answer in sample.answers}) == len(sample.answers)
        assert not any(answer.lower() in asked.lower() for answer in sample.answers)
        if name in ("cwe", "fwe"):
            counts = [count for _, count in Counter(sample.candidates).most_common()]
            assert counts[len(sample.answers) - 1] > counts[len(sample.answers)]
            assert {len(word) for word in sample.candidates} == {6}  # so none is a part of another
        elif name == "vt":
            assert len(re.findall(r"= \d{5}\.", sample.prompt)) == 1
        else:
            assert all(text.count(answer.lower()) == 1 for answer in sample.answers)
            keys = [key for key, _ in needles_of(sample.prompt)]
            assert len(set(keys)) == len(keys) or name == "niah_multivalue"
            assert len(set(sample.candidates)) == len(sample.candidates)


def test_needles_are_as_the_task_has_them():
    counts = {"niah_single_1": (1, 1), "niah_multikey_1": (4, 1), "niah_multivalue": (1, 4), "niah_multiquery": (4, 4)}
    for name, (keys, answers) in counts.items():
        sample = TASKS[name].sample(0, 1500, 0, counted_bytes)
        assert len(dict(needles_of(sample.prompt))) == keys
        assert len(sample.answers) == answers
    for name in ("niah_multikey_2", "niah_multikey_3"):
        assert len(needles_of(TASKS[name].sample(0, 8000, 0, counted_bytes).prompt)) > 50


def test_needles_lie_at_all_depths():
    """Of 60 needles, some lie in each tenth of the text."""
    depths = []
    for number in range(60):
        sample = TASKS["niah_single_2"].sample(number, 4096, 0, counted_bytes)
        depths.append(int(10 * sample.prompt.index(sample.answers[0]) / len(sample.prompt)))
    assert set(depths) == set(range(10))


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("counter", COUNTERS)
def test_lengths_hold(name, counter):
    count = COUNTERS[counter]
    for length in (1024, 4096, 65_536):
        sample = TASKS[name].sample(1, length, 0, count)
        assert 0 <= length - count(sample.prompt) - room_for(sample, count) < 16


@pytest.mark.parametrize("name", TASKS)
def test_seeds_repeat(name):
    def made(number=0, length=1024, seed=0):
        return TASKS[name].sample(number, length, seed, counted_bytes)

    assert made() == made()
    assert len({made().prompt, made(number=1).prompt, made(length=1030).prompt, made(seed=1).prompt}) == 4
    assert len({made().answers, made(number=1).answers, made(length=1030).answers, made(seed=1).answers}) == 4


def test_frequent_words_are_unambiguous_at_every_length():
    """Also where rounding would make the fourth and the fifth word equally frequent."""
    from asterism.evaluation.sample import made

    for words in range(200):
        sample = made(TASKS["fwe"].makers[0], 0, words)
        counts = [count for _, count in Counter(sample.candidates).most_common(4)]
        assert len(counts) == 3 or counts[2] > counts[3]


def test_common_words_stand_as_often_as_the_length_allows():
    for length, often in ((700, 3), (2500, 6), (40_000, 30)):
        sample = TASKS["cwe"].sample(0, length, 0, counted_bytes)
        assert {Counter(sample.candidates)[word] for word in sample.answers} == {often}


def test_words_are_different():
    for words in (ADJECTIVES, NOUNS, VERBS):
        assert len(set(words)) == len(words)


def test_a_question_that_does_not_fit_is_refused():
    with refusing(ConfigurationError, "prompt-too-long", "niah_multiquery", "512"):
        TASKS["niah_multiquery"].sample(0, 512, 0, lambda text: 2 * counted_bytes(text))
    with refusing(ConfigurationError, "prompt-too-long", "cwe", "at least 592"):
        TASKS["cwe"].sample(0, 512, 0, counted_bytes)
    TASKS["cwe"].sample(0, 592, 0, counted_bytes)


def test_names_of_tasks():
    assert [task.name for task in tasks_of(["vt", "niah_single", "vt"])] == ["vt", *GROUPS["niah_single"]]
    assert len(tasks_of(["all"])) == 11
    with refusing(ConfigurationError, "unknown-task", "'niah_singel'", "'niah_single'"):
        tasks_of(["niah_singel"])
    with refusing(ConfigurationError, "no-task"):
        tasks_of([])
