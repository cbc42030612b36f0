"""The tasks, by name: 11 of the 13 of Hsieh 2024 (RULER). The two others ask about SQuAD and HotpotQA.

The names are those of RULER. Its prompts are longer, and have an example with its answer for `vt` and `cwe`; its
haystack of essays is prose of drawn words here. So scores are comparable among models, not with published ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

from asterism.errors import ConfigurationError, nearest
from asterism.evaluation.counting import Common, frequent
from asterism.evaluation.needles import Needles
from asterism.evaluation.sample import Counter, Maker, Sample, longest_sample, made
from asterism.evaluation.tracking import tracked
from asterism.randomness import derive

SHORTEST, LONGEST = 128, 131_072
"""Tokens of a prompt with the room for its answer."""


@dataclass(frozen=True)
class RulerTask:
    """What is asked, and how samples of it are made: by the first maker whose question fills at most half the length,
    else by the last."""

    name: str
    makers: tuple[Maker, ...]
    about: str

    def sample(self, number: int, length: int, seed: int, count: Counter) -> Sample:
        """Sample `number` of this length in tokens, a function of all arguments. Raises what `longest_sample` raises.

        The prompt and the room for the answer (`room_for`) have at most `length` tokens.
        """
        drawn = derive(seed, crc32(self.name.encode()), length, number)
        what = f"{self.name}, {length:,} tokens"
        for make in self.makers[:-1]:
            if 2 * count(made(make, drawn, 0).prompt) <= length:
                return longest_sample(make, drawn, length, count, what)
        return longest_sample(self.makers[-1], drawn, length, count, what)


_ALL = (
    RulerTask("niah_single_1", (Needles("noise"),), "a number, in noise"),
    RulerTask("niah_single_2", (Needles("prose"),), "a number, in prose"),
    RulerTask("niah_single_3", (Needles("prose", values="uuids"),), "a UUID, in prose"),
    RulerTask("niah_multikey_1", (Needles("prose", keys_hidden=4),), "one of four keys, in prose"),
    RulerTask("niah_multikey_2", (Needles("needles"),), "one of many keys"),
    RulerTask(
        "niah_multikey_3", (Needles("needles", keys="uuids", values="uuids"),), "one of many keys, all of them UUIDs"
    ),
    RulerTask("niah_multivalue", (Needles("prose", values_of_key=4),), "the four values of a key"),
    RulerTask("niah_multiquery", (Needles("prose", keys_hidden=4, keys_asked=4),), "the values of four keys"),
    RulerTask("vt", (tracked,), "variables that are assigned to one another"),
    RulerTask("cwe", (Common(30, 3), Common(6, 1), Common(3, 1)), "the ten most common words of a list"),
    RulerTask("fwe", (frequent,), "the three most frequent words of a coded text"),
)
TASKS = {task.name: task for task in _ALL}
GROUPS = {
    "niah_single": [name for name in TASKS if name.startswith("niah_single")],
    "niah_multikey": [name for name in TASKS if name.startswith("niah_multikey")],
    "niah": [name for name in TASKS if name.startswith("niah")],
    "all": list(TASKS),
}


def tasks_of(names: Sequence[str]) -> list[RulerTask]:
    """The tasks that names of tasks and groups stand for, each once. Raises ConfigurationError for an unknown name."""
    found: dict[str, RulerTask] = {}
    for name in names:
        if name not in TASKS and name not in GROUPS:
            known = [*GROUPS, *TASKS]
            hint = nearest(name, known) or f" The tasks are {', '.join(known)}."
            raise ConfigurationError("unknown-task", f"ruler: there is no task {name!r}.{hint}")
        found |= {one: TASKS[one] for one in GROUPS.get(name, [name])}
    if not found:
        raise ConfigurationError("no-task", f"ruler: name at least one task of {', '.join(GROUPS)}, {', '.join(TASKS)}")
    return list(found.values())
