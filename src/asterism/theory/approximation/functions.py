"""Functions to approximate, each with a pattern that is certified for it. Arrays are float64."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Example:
    """A function float64 [B, n, d] -> [B, n, 1], the pattern of the attention, and the construction."""

    function: Callable[[Floats], Floats]
    n: int
    d: int
    pattern: str
    construction: Literal["yun", "star"]


def far(inputs: Floats) -> Floats:
    """Every token gets the one at the other end, which the window does not let it read, [B, n, 1] -> [B, n, 1]."""
    return inputs[:, ::-1]


def greatest(inputs: Floats) -> Floats:
    """Every token gets the greatest, [B, n, 1] -> [B, n, 1]: continuous, not smooth."""
    return np.broadcast_to(inputs.max(1, keepdims=True), inputs.shape)


def crossed(inputs: Floats) -> Floats:
    """The first feature of the other token times the second feature of the own, [B, 2, 2] -> [B, 2, 1]."""
    return inputs[:, ::-1, :1] * inputs[:, :, 1:]


def root(inputs: Floats) -> Floats:
    """The root of the distance between two tokens, [B, 2, 1] -> [B, 2, 1]: not even Lipschitz continuous."""
    return np.sqrt(np.abs(inputs - inputs[:, ::-1]))


EXAMPLES = {
    "far": Example(far, 3, 1, "window(left=1, right=1)", "yun"),
    "greatest": Example(greatest, 3, 1, "star_transformer()", "yun"),
    "crossed": Example(crossed, 2, 2, "dense()", "yun"),
    "root": Example(root, 2, 1, "star()", "star"),
}
