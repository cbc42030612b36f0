"""How good answers are: the recall of RULER, how sure it is, and what a guess would have."""

import math
from collections.abc import Sequence

import numpy as np

_Z = 1.959964
"""The quantile of the normal distribution for 95 % on both sides."""


def recall(written: str, answers: Sequence[str]) -> float:
    """The share of the answers that what was written contains, in upper or lower case (Hsieh 2024, section 4)."""
    text = written.lower()
    return sum(answer.lower() in text for answer in answers) / len(answers)


def interval(mean: float, count: int) -> tuple[float, float]:
    """The bounds of the mean of a score from 0 to 1, after `count` samples, at 95 % (Wilson 1927).

    They are exact to Wilson's order where scores are 0 or 1, and too wide otherwise: no score between 0 and 1 with this
    mean varies more than one of 0 and 1.
    """
    spread = _Z**2 / count
    middle = (mean + spread / 2) / (1 + spread)
    half = _Z / (1 + spread) * math.sqrt(mean * (1 - mean) / count + spread / (4 * count))
    return max(0.0, middle - half), min(1.0, middle + half)


def guess(random: np.random.Generator, candidates: Sequence[str], count: int) -> list[str]:
    """`count` different candidates, one after the other, each in proportion to how often it is listed."""
    shuffled = (candidates[place] for place in random.permutation(len(candidates)).tolist())
    return list(dict.fromkeys(shuffled))[:count]
