"""Reads the prompts of RULER's tasks by regular expressions: a model that finds every answer, and one that guesses."""

import re
from collections import Counter

import numpy as np

_NEEDLE = re.compile(r"One of the special magic \w+ for (\S+) is: (\S+)\.(?: |\n)")
_ASKED = re.compile(r"According to the text, the special magic \w+ for (.+) (?:is|are):$")


def counted_bytes(text: str) -> int:
    return len(text.encode())


def counted_words(text: str) -> int:
    """Words and marks, as a tokenizer with a token for each would have them."""
    return len(re.findall(r"\w+|[^\w\s]", text))


def needles_of(prompt: str) -> list[tuple[str, str]]:
    """Keys with their values, as the text has them."""
    return _NEEDLE.findall(prompt)


def answers_to(prompt: str) -> list[str]:
    """All right answers, found without knowing how the prompt was made."""
    if asked := _ASKED.search(prompt):
        keys = set(re.split(r", | and ", asked[1]))
        return [value for key, value in needles_of(prompt) if key in keys]
    if asked := re.search(r"have the value (\d+) are:$", prompt):
        return _followed(prompt, asked[1])
    asked = re.search(r"\nThe (\d+) words that stand most often", prompt)
    text = prompt.splitlines()[1]
    return [word for word, _ in Counter(re.findall(r"[a-z]{6}", text)).most_common(int(asked[1]))]


def candidates_in(prompt: str) -> list[str]:
    """What has the form of an answer, as often as it is there."""
    text = prompt.splitlines()[1]
    return (
        [value for _, value in needles_of(prompt)]
        or re.findall(r"VAR (\w+) =", text)
        or re.findall(r"\b[a-z]{6}\b", text)
    )


def _followed(prompt: str, value: str) -> list[str]:
    given = dict(re.findall(r"VAR (\w+) = (?:VAR )?(\w+)\.", prompt))
    found, more = [], True
    while more:
        more = [name for name, source in given.items() if source in (value, *found) and name not in found]
        found += more
    return found


class Answerer:
    """Something to ask: it counts bytes and writes what a function of the prompt and the room finds."""

    positions = None

    def __init__(self, write, count=counted_bytes) -> None:
        self.write, self.count, self.asked = write, count, 0

    def continued(self, prompt: str, room: int) -> str:
        self.asked += 1
        return self.write(prompt)

    def identity(self) -> dict[str, str]:
        return {"model": "answerer"}


def oracle(count=counted_bytes) -> Answerer:
    return Answerer(lambda prompt: ", ".join(answers_to(prompt)), count)


def guesser() -> Answerer:
    random = np.random.default_rng(0)

    def write(prompt: str) -> str:
        shown = candidates_in(prompt)
        picked = dict.fromkeys(shown[place] for place in random.permutation(len(shown)))
        return ", ".join(list(picked)[: len(answers_to(prompt))])

    return Answerer(write)
