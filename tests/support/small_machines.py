"""What the tests of Turing machines share: what the samples should compute, and machines at random."""

from collections.abc import Callable, Iterator
from itertools import product

from hypothesis import strategies as st

from asterism.theory.machines.machine import Configuration, Transition, TuringMachine


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
        list(words("01", 5)),
        lambda word: (True, f"{int(word or '0', 2) + 1:b}".rjust(len(word), "0")),
    ),
    "unary-addition": (
        ["1" * a + "+" + "1" * b for a in range(4) for b in range(4)] + ["", "11", "++", "1++1", "11+1+1"],
        lambda word: (True, word.replace("+", "")) if word.count("+") == 1 else (False, None),
    ),
    "anbn": (
        list(words("ab", 4)),
        accepts(lambda word: word == "a" * (len(word) // 2) + "b" * (len(word) // 2)),
    ),
    "palindromes": (list(words("01", 5)), accepts(lambda word: word == word[::-1])),
    "copy": (list(words("ab", 3)), lambda word: (True, f"{word}.{word}")),
    "beaver3": ([""], lambda word: (True, "111111")),
    "beaver4": ([""], lambda word: (True, "10" + "1" * 12)),
    "counter": (list(words("01", 3)), lambda word: (True, "1" * len(word))),
    "universal": (
        ["[:1", "[0:1", "[,:01", "[:", "[0,:11", "[1,:1"],
        lambda word: (True, None),
    ),
}


# A state may have the name of a symbol, even of the blank, or of one of the normal form's own states.
STATE_NAMES = (("q0", "q1", "q2", "q3"), ("a", "b", "_", "q_back"))


@st.composite
def machines(draw: st.DrawFn) -> TuringMachine:
    """Two to four states over two or three symbols. One transition in ten is missing, few halt."""
    states = draw(st.sampled_from(STATE_NAMES))[: draw(st.integers(2, 4))]
    symbols = "_ab"[: draw(st.integers(2, 3))]
    transitions = st.builds(
        Transition,
        st.sampled_from([*states * 8, "yes", "no"]),
        st.sampled_from(symbols),
        st.sampled_from([-1, 1, -1, 1, 0]),
    )
    table = {(state, symbol): draw(transitions) for state in states for symbol in symbols}
    missing = [key for key in table if draw(st.integers(0, 9)) == 0 and key != (states[0], "_")]
    table = {key: transition for key, transition in table.items() if key not in missing}
    undefined = {state for state in states if not any((state, symbol) in table for symbol in symbols)}
    return TuringMachine(
        name="random",
        transitions=table,
        start=states[0],
        accept=frozenset({"yes"}),
        reject=frozenset({"no"} | undefined),
        inputs=tuple(symbols[1:]),
        symbols=tuple(symbols),
        tape=draw(st.sampled_from(["two-way", "two-way", "one-way"])),
    )
