"""What the tests of Turing machines share: what the samples should compute, and machines at random."""

from collections.abc import Callable, Iterator
from itertools import product

from hypothesis import strategies as st

from asterism.theory.machine import Configuration, Transition, TuringMachine


def words(symbols: str, length: int) -> Iterator[str]:
    """Every word of at most this length."""
    for n in range(length + 1):
        yield from map("".join, product(symbols, repeat=n))


def contents(final: Configuration, blank: str = "_") -> str:
    """What stands on the tape, from its first to its last symbol."""
    return final.write(blank).replace("[", "").replace("]", "").strip(blank)


def cyclic_tag_data(program: str, steps: int) -> list[str]:
    """The data of a cyclic tag system "[11,0:1" after each step, until none are left."""
    productions, data = program[1:].split(":")
    turns, seen = productions.split(","), [data]
    for step in range(steps):
        if not data:
            break
        data = data[1:] + (turns[step % len(turns)] if data[0] == "1" else "")
        seen.append(data)
    return seen


def accepts(predicate: Callable[[str], bool]) -> Callable[[str], tuple[bool, None]]:
    """What a machine that decides should do: accept or not, whatever it leaves."""
    return lambda word: (predicate(word), None)


# Sample -> its words, and for a word whether it accepts and what it leaves on the tape (None: whatever).
SAMPLES: dict[str, tuple[list[str], Callable[[str], tuple[bool, str | None]]]] = {
    "increment": (
        list(words("01", 4)),
        lambda word: (True, f"{int(word or '0', 2) + 1:b}".rjust(len(word), "0")),
    ),
    "unary-addition": (
        ["1" * a + "+" + "1" * b for a in range(4) for b in range(4)],
        lambda word: (True, word.replace("+", "")),
    ),
    "anbn": (
        list(words("ab", 4)),
        accepts(lambda word: word == "a" * (len(word) // 2) + "b" * (len(word) // 2)),
    ),
    "palindromes": (list(words("01", 4)), accepts(lambda word: word == word[::-1])),
    "copy": (list(words("ab", 3)), lambda word: (True, f"{word}.{word}")),
    "beaver3": ([""], lambda word: (True, "111111")),
    "beaver4": ([""], lambda word: (True, "10" + "1" * 12)),
    "counter": (list(words("01", 3)), lambda word: (True, "1" * len(word))),
    "universal": (
        ["[:1", "[0:1", "[,:01", "[:", "[0,:11"],
        lambda word: (True, None),
    ),
}


@st.composite
def machines(draw: st.DrawFn) -> TuringMachine:
    """Two to four states over two or three symbols; some transitions are missing, some lead to a state that halts."""
    states = [f"q{n}" for n in range(draw(st.integers(1, 3)))]
    symbols = "_ab"[: draw(st.integers(2, 3))]
    targets = st.builds(
        Transition, st.sampled_from([*states, "yes", "no"]), st.sampled_from(symbols), st.sampled_from([-1, 0, 1])
    )
    keys = [(state, symbol) for state in states for symbol in symbols]
    table = {key: transition for key in keys if (transition := draw(st.none() | targets))}
    table |= {(state, "_"): draw(targets) for state in states if not any(q == state for q, _ in table)}
    return TuringMachine(
        name="random",
        transitions=table,
        start=states[0],
        accept=frozenset({"yes"}),
        reject=frozenset({"no"}),
        inputs=tuple(symbols[1:]),
        symbols=tuple(symbols),
        tape=draw(st.sampled_from(["two-way", "one-way"])),
    )
