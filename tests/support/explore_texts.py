"""Texts that somebody may type: valid ones, valid ones with a few characters changed, and anything."""

import random
from collections.abc import Iterator

_VALID = (
    "window(left=3)",
    "bigbird(block=8, random=1)",
    "fixed(stride=8, summary=2, heads=2)",
    "strided(8) | global_tokens((0, -1))",
    "~causal() & window(2, 2)",
    "interleave(window(left=3), fourier(), causal())",
    "per_head([causal(), dense(), blocks(4)])",
    "longformer(window=8, dilation=2)",
    "random_blocks(4, 2, seed=3)",
    "across(window(1, 1), step='3/2')",
    "documents(causal(), 3, 4)",
    "shifted(star(), 2)",
    "explicit([(0, 1), (5, 2)], 9)",
    "tree((-1, 0, 0, 2), pattern=window(3))",
    "grid(4, 2)",
    "sinks(first=2, window=5)",
    "yun_strided(4)",
    "columns(8, 7)",
    "split_heads(causal(), stride(3), heads=4)",
)

_CHARACTERS = "()[]{},|&~=+-*/.'\"\\ 0123456789abcdefghijklmnopqrstuvwxyzé∞\u200b\n\t\0_#@:;<>!%"


def random_texts(count: int, seed: int) -> Iterator[str]:
    """So many texts, the same for a seed."""
    chance = random.Random(seed)
    for _ in range(count):
        kind = chance.random()
        if kind < 0.15:
            yield "".join(chance.choices(_CHARACTERS, k=chance.randrange(40)))
        elif kind < 0.3:
            yield f" {chance.choice('|&|')} ".join(chance.sample(_VALID, 2))
        else:
            yield _mutated(chance.choice(_VALID), chance)


def _mutated(text: str, chance: random.Random) -> str:
    letters = list(text)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(letters) + 1)
        change = chance.random()
        if change < 0.4 and letters:
            letters.pop(min(at, len(letters) - 1))
        elif change < 0.8:
            letters.insert(at, chance.choice(_CHARACTERS))
        else:
            letters[at:at] = chance.choice(("999999999999", "-1", "window(", "0", "True", "None", "()", "seed=7"))
    return "".join(letters)


def without_defects(told: dict, text: str = "") -> None:
    """Asserts that a reply is an answer, or a refusal in one short line that is no defect."""
    if "refused" in told:
        refused = told["refused"]
        assert refused["code"] != "defect", f"{text!r}: {refused['message']}"
        assert 0 < len(refused["message"]) <= 600 and "\n" not in refused["message"]
    else:
        assert set(told) == {"answer"}
