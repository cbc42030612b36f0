"""Numbers that all ranks tell each other at once. A rank that was refused says that in their place, and none waits for
it."""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from asterism.errors import ConfigurationError
from asterism.parallel.collectives import gather_numbers
from asterism.parallel.context import SequenceParallel
from asterism.patterns.intervals import Integers


def tell(context: SequenceParallel, numbers: Sequence[int], room: int, device: torch.device) -> Integers:
    """int64 [ranks, room]: what each rank says, at most `room` numbers, behind which stand zeros.

    `device` is where tensors of the call lie. Raises ConfigurationError where a rank has said that it was refused.
    """
    said = gather_numbers([*numbers, *[0] * (room - len(numbers)), False], context.group, device)
    if said[:, -1].any():
        rank = int(said[:, -1].argmax())
        raise ConfigurationError(
            "other-rank-refused", f"rank {rank} was refused its arguments; its own message says why"
        )
    return said[:, :-1]


def tell_refusal(context: SequenceParallel, room: int, device: torch.device) -> None:
    """Says to the ranks, which `tell`, that this one was refused."""
    gather_numbers([*[0] * room, True], context.group, device)


def refuse_differences(told: Integers, names: Sequence[str], in_words: Callable[[str, int], str]) -> None:
    """Raises ConfigurationError, which names the first that differs, where ranks do not say the same as the first one.

    told      int64 [ranks, names]: what each rank says of each name
    in_words  what a number says of a name; for two numbers that say the same the second is told as "others"
    """
    others, columns = np.nonzero(told != told[0])
    if not len(others):
        return
    rank, column = others[0], columns[0]
    words = [in_words(names[column], int(number)) for number in (told[0, column], told[rank, column])]
    if words[0] == words[1]:
        words[1] = "others"
    said = [f"{word} on rank {where}" for word, where in zip(words, (0, rank), strict=True)]
    raise ConfigurationError(
        "ranks-disagree",
        f"ranks of a sharded sequence must give the same rows and arguments: {names[column]}: {', '.join(said)}",
    )
