"""Divide examples into training and held-out ones, by the seed, without reading them."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, overload

import numpy as np

from asterism.errors import DataError
from asterism.randomness import derive

HOLD_OUT = 2**32
"""Keys the order in which examples are held out: no pass over the examples has this number."""


class OnDemand(Sequence[Any]):
    """A sequence whose elements are made when they are asked for, by `made`."""

    @abstractmethod
    def made(self, number: int) -> Any:
        """The element of a number."""

    @overload
    def __getitem__(self, number: int) -> Any: ...
    @overload
    def __getitem__(self, number: slice) -> "Chosen": ...
    def __getitem__(self, number: int | slice) -> Any:
        return Chosen(self, range(len(self))[number]) if isinstance(number, slice) else self.made(number)


class Chosen(OnDemand):
    """Some elements of a sequence, each taken from it when it is asked for."""

    def __init__(self, whole: Sequence[Any], numbers: Sequence[int]) -> None:
        self.whole, self.numbers = whole, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def made(self, number: int) -> Any:
        return self.whole[self.numbers[number]]


def held_out(examples: Sequence[Any], fraction: float, seed: int, name: str) -> tuple[Chosen, Chosen]:
    """The training examples and the held-out fraction, both in their original order.

    Raises DataError if there are too few to hold some out; `name` says what they are of.
    """
    count = round(len(examples) * fraction)
    if count < 1:
        raise DataError(
            "too-few-examples",
            f"data: {name} has {len(examples):,} examples, too few to hold {fraction:g} of them out; give more, or a"
            " validation file",
        )
    order = np.random.Generator(np.random.Philox(derive(seed, HOLD_OUT))).permutation(len(examples)).tolist()
    return Chosen(examples, sorted(order[count:])), Chosen(examples, sorted(order[:count]))
