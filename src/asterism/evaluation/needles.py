"""Needles in a haystack: sentences that give a key its value, at any depth of a long text, and a question about some.

Hsieh 2024 (RULER, arXiv 2404.06654), section 3, "Retrieval", after Kamradt 2023 and Mohtashami and Jaggi 2023.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import numpy as np

from asterism.evaluation.sample import Sample
from asterism.evaluation.words import hexadecimals, names, noise, numbers, prose

Kind = Literal["names", "numbers", "uuids"]

_DIGITS = 7
_LETTERS_OF_A_WORD = 5
"""With the space behind it."""
_DRAWS: dict[Kind, Callable[[np.random.Generator], Iterator[str]]] = {
    "names": names,
    "numbers": lambda random: numbers(random, _DIGITS),
    "uuids": hexadecimals,
}
_ONE_OF: dict[Kind, str] = {"names": "name", "numbers": "number", "uuids": "uuid"}


@dataclass(frozen=True)
class Needles:
    """A maker of samples.

    haystack       what the needles lie in: noise, prose, or more needles, which nobody asks about
    keys, values   what they are; each is different from all others of the text
    keys_hidden    how many keys have needles
    values_of_key  how many needles each has, with a value each
    keys_asked     how many of the keys the question is about: all their values are the answer
    """

    haystack: Literal["noise", "prose", "needles"]
    keys: Kind = "names"
    values: Kind = "numbers"
    keys_hidden: int = 1
    values_of_key: int = 1
    keys_asked: int = 1

    def __call__(self, random: np.random.Generator, words: int) -> Sample:
        """A sample with so many words in its haystack; a needle counts as many as there are in a text of its length."""
        draws = {kind: _DRAWS[kind](random) for kind in dict.fromkeys((self.keys, self.values))}
        keys = list(islice(draws[self.keys], self.keys_hidden))
        values = [list(islice(draws[self.values], self.values_of_key)) for _ in keys]
        needles = [self._needle(key, one) for key, own in zip(keys, values, strict=True) for one in own]
        order = random.permutation(len(needles)).tolist()
        depths = np.sort(random.random(len(needles)))
        others: list[str] = []
        if self.haystack == "needles":
            more, rest = divmod(words, len(needles[0]) // _LETTERS_OF_A_WORD)
            pairs = list(islice(zip(draws[self.keys], draws[self.values], strict=False), more))
            others = [value for _, value in pairs]
            hay = [self._needle(key, value) for key, value in pairs] + noise(rest)
        else:
            hay = noise(words) if self.haystack == "noise" else prose(random, words)
        places = (depths * (len(hay) + 1)).astype(int).tolist()
        for place, number in reversed(list(zip(places, order, strict=True))):
            hay.insert(place, needles[number])
        answers = [value for own in values[: self.keys_asked] for value in own]
        shown = [value for own in values for value in own] + others
        return Sample(self._prompt(" ".join(hay), keys[: self.keys_asked]), tuple(answers), tuple(shown))

    def _needle(self, key: str, value: str) -> str:
        return f"One of the special magic {self.values} for {key} is: {value}."

    def _prompt(self, text: str, asked: list[str]) -> str:
        several = self.values_of_key * self.keys_asked > 1
        what, verb = (self.values, "are") if several else (_ONE_OF[self.values], "is")
        about = asked[0] if len(asked) == 1 else f"{', '.join(asked[:-1])} and {asked[-1]}"
        return (
            f"Some special magic {self.values} are hidden in the text below. Remember them.\n{text}\n"
            f"According to the text, the special magic {what} for {about} {verb}:"
        )
