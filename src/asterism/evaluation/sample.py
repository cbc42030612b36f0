"""A prompt with its answers, made as long as a model's tokens allow."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from asterism.errors import ConfigurationError


@dataclass(frozen=True)
class Sample:
    """A question about a long text.

    prompt      the text and the question, up to where the answer begins
    answers     the strings that a right answer contains, in any order
    candidates  all strings of the text that are of the answers' kind, as often as the text has them: among these picks
                a reader that sees their form and does not understand the question
    """

    prompt: str
    answers: tuple[str, ...]
    candidates: tuple[str, ...]


Maker: TypeAlias = Callable[[np.random.Generator, int], Sample]
"""Makes a sample with so many words of filler: equal generators give the same question for every number of words."""

Counter: TypeAlias = Callable[[str], int]
"""How many tokens a prompt has."""

_FIRST = 64
_CLOSE = 4
"""Tokens that may be left over where another search would be needed to use them."""


def made(make: Maker, seed: int, words: int) -> Sample:
    """The sample of a seed with so many words of filler."""
    return make(np.random.Generator(np.random.Philox(key=seed)), words)


def room_for(sample: Sample, count: Counter) -> int:
    """Tokens that a model may write: half as many again as the answers have as a list, and 8 more."""
    return count(" " + ", ".join(sample.answers)) * 3 // 2 + 8


def longest_sample(make: Maker, seed: int, length: int, count: Counter, what: str) -> Sample:
    """The sample with the most words of filler whose prompt and room for the answer have at most `length` tokens.

    The result is a function of all arguments. Less than a word of filler remains unused, or a few tokens.
    Raises ConfigurationError, which begins with `what`, where not even the question fits.
    """

    best, low, high = made(make, seed, 0), 0, 0
    least = count(best.prompt)
    budget = length - room_for(best, count)
    if least > budget:
        raise ConfigurationError(
            "prompt-too-long",
            f"{what}: the question alone has {least:,} tokens of this model, and needs room for"
            f" {length - budget:,} of an answer, which is more than {length:,}; ask for at least"
            f" {least + length - budget:,}",
        )
    used, rate, tried = least, (budget - least) / _FIRST, 0
    while (not high or high - low > 1) and budget - used >= _CLOSE:
        aim = low + max(1, int((budget - used) / rate))
        if high:
            aim = (low + high) // 2 if tried > 8 else min(aim, high - 1)
        sample = made(make, seed, aim)
        tokens = count(sample.prompt)
        rate = max((tokens - used) / (aim - low), 0.01)
        if tokens <= budget:
            best, used, low = sample, tokens, aim
        else:
            high = aim
        tried += 1
    return best
