"""Turing machines: definition, text form, plain interpreter, and those in the folder `samples`.

A machine has one tape, a head that moves left, right or stays, and states of which some halt. The word stands in the
cells 0, 1, ..., the head starts on cell 0, every other cell is blank. The tape is endless in both directions
("two-way") or begins with cell 0 ("one-way"). A machine that finds no transition halts and does not accept.

The text form, one transition per line, with comments after a semicolon:

    start: right
    accept: done
    input: 0 1
    right 0 -> right 0 R
    right _ -> done  _ S
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple, NoReturn

from asterism.errors import MachineError, nearest

MOVES = {"L": -1, "S": 0, "R": 1}
TAPES = ("two-way", "one-way")

_HEADERS = ("start", "accept", "reject", "input", "symbols", "blank", "tape")
_SUFFIX = ".tm"


class Transition(NamedTuple):
    """One step: the next state, the symbol written, and the move of the head (-1, 0 or 1)."""

    state: str
    symbol: str
    move: int


@dataclass(frozen=True)
class Configuration:
    """A moment of a run. `tape` holds the cells that are not blank."""

    state: str
    head: int
    tape: Mapping[int, str]

    def write(self, blank: str) -> str:
        """The tape from the first to the last cell that matters, with the head's cell in brackets: "10[1]1"."""
        first, last = min([self.head, *self.tape]), max([self.head, *self.tape])
        cells = [self.tape.get(cell, blank) for cell in range(first, last + 1)]
        cells[self.head - first] = f"[{cells[self.head - first]}]"
        return "".join(cells)


@dataclass(frozen=True)
class TuringMachine:
    """A deterministic machine. `transitions` maps (state, symbol) to what the step does.

    `accept` and `reject` are the states that halt; `inputs` are the symbols of which words are made, `symbols` all that
    may stand on the tape, the blank first. `lines` says where in a text each transition stood. Raises MachineError when
    the parts do not fit each other.
    """

    name: str
    transitions: Mapping[tuple[str, str], Transition]
    start: str
    accept: frozenset[str]
    inputs: tuple[str, ...]
    symbols: tuple[str, ...]
    reject: frozenset[str] = frozenset()
    tape: str = "two-way"
    lines: Mapping[tuple[str, str], int] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        for key, problem in self._problems():
            line = f", line {self.lines[key]}" if key and key in self.lines else ""
            raise MachineError("machine-definition", f"{self.name}{line}: {problem}")

    @property
    def blank(self) -> str:
        """The symbol of the empty cells."""
        return self.symbols[0]

    @property
    def halting(self) -> frozenset[str]:
        """The states in which the machine stops."""
        return self.accept | self.reject

    @cached_property
    def states(self) -> tuple[str, ...]:
        """All states: those with transitions in their order, then those that halt."""
        return tuple(dict.fromkeys([self.start, *(q for q, _ in self.transitions), *sorted(self.halting)]))

    @staticmethod
    def parse(text: str, name: str = "machine") -> "TuringMachine":
        """The machine of a text. Raises MachineError with the name and the line."""
        return _Reader(name, text).machine()

    @staticmethod
    def load(name: str | Path) -> "TuringMachine":
        """The sample of this name, or the machine in the file at this path. Raises MachineError if neither exists."""
        if str(name) in sample_names():
            resource = files(__package__) / "samples" / f"{name}{_SUFFIX}"
            return TuringMachine.parse(resource.read_text(encoding="utf-8"), str(name))
        path = Path(name)
        if not path.is_file():
            samples = sample_names()
            hint = nearest(str(name), samples) or f" The samples are {', '.join(samples)}."
            raise MachineError("unknown-machine", f"there is no sample machine and no file {str(name)!r}.{hint}")
        try:
            return TuringMachine.parse(path.read_text(encoding="utf-8"), str(path))
        except UnicodeDecodeError:
            raise MachineError("not-utf8", f"{path} is not text in UTF-8") from None

    def begin(self, word: Iterable[str]) -> Configuration:
        """The first configuration. Raises MachineError for symbols that are not of the input alphabet."""
        tape = dict(enumerate(word))
        for place, symbol in tape.items():
            if symbol not in self.inputs:
                raise MachineError(
                    "machine-input",
                    f"{self.name}: the input has {symbol!r} at position {place};"
                    f" its symbols are {' '.join(self.inputs) or 'none: it starts on an empty tape'}",
                )
        return Configuration(self.start, 0, tape)

    def step(self, now: Configuration) -> Configuration | None:
        """The next configuration, or None if the machine halts in this one. Raises MachineError at the tape's end."""
        symbol = now.tape.get(now.head, self.blank)
        transition = self.transitions.get((now.state, symbol))
        if transition is None:
            return None
        head = now.head + transition.move
        if head < 0 and self.tape == "one-way":
            raise MachineError(
                "machine-left-end",
                f"{self.name}: moves left of cell 0 in state {now.state!r} on {symbol!r}, and its tape is one-way;"
                " mark the first cell, or write 'tape: two-way'",
            )
        tape = {**now.tape, now.head: transition.symbol}
        if transition.symbol == self.blank:
            del tape[now.head]
        return Configuration(transition.state, head, tape)

    def run(self, word: Iterable[str]) -> Iterator[Configuration]:
        """The configurations, beginning with the first; endless if the machine does not halt."""
        now: Configuration | None = self.begin(word)
        while now is not None:
            yield now
            now = self.step(now)

    def _problems(self) -> Iterator[tuple[tuple[str, str] | None, str]]:
        defined = {state for state, _ in self.transitions} | self.halting
        for problem in self._heading_problems(defined):
            yield None, problem
        for key, transition in self.transitions.items():
            for problem in self._transition_problems(*key, transition, defined):
                yield key, problem

    def _heading_problems(self, defined: set[str]) -> Iterator[str]:
        if not self.accept:
            yield "there is no accept state, so no run could accept; say 'accept: STATE'"
        if both := self.accept & self.reject:
            yield f"state {min(both)!r} both accepts and rejects"
        if self.tape not in TAPES:
            yield f"the tape must be {' or '.join(TAPES)}, got {self.tape!r}.{nearest(self.tape, TAPES)}"
        if self.blank in self.inputs:
            yield f"the blank {self.blank!r} cannot be an input symbol: it would end the word"
        if len(set(self.symbols)) < len(self.symbols):
            yield f"a symbol is listed twice among {' '.join(self.symbols)}"
        for symbol in set(self.inputs) - set(self.symbols):
            yield f"the input symbol {symbol!r} is not among the tape's symbols"
        if self.start not in defined:
            yield f"the start state {self.start!r} is undefined: it has no transitions and does not halt"

    def _transition_problems(self, state: str, symbol: str, transition: Transition, defined: set[str]) -> Iterator[str]:
        if state in self.halting:
            yield f"state {state!r} halts, so it cannot have transitions"
        for seen in (symbol, transition.symbol):
            if seen not in self.symbols:
                yield f"symbol {seen!r} is undefined: list it under 'input:' or 'symbols:'"
        if transition.move not in MOVES.values():
            yield f"the head moves by -1, 0 or 1, got {transition.move!r}"
        if transition.state not in defined:
            hint = nearest(transition.state, sorted(defined))
            yield f"state {transition.state!r} is undefined: it has no transitions and does not halt.{hint}"


def sample_names() -> tuple[str, ...]:
    """The names of the machines that come with the library."""
    folder = files(__package__) / "samples"
    return tuple(sorted(file.name.removesuffix(_SUFFIX) for file in folder.iterdir() if file.name.endswith(_SUFFIX)))


class _Reader:
    """Reads the text form line by line, so that every error names its line."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.headers: dict[str, list[str]] = {}
        self.transitions: dict[tuple[str, str], Transition] = {}
        self.lines: dict[tuple[str, str], int] = {}
        for number, line in enumerate(text.splitlines(), 1):
            self.number = number
            if content := line.partition(";")[0].strip():
                (self._read_transition if "->" in content else self._read_header)(content)

    def machine(self) -> TuringMachine:
        """The machine that has been read."""
        inputs = self._many("input")
        return TuringMachine(
            name=self.name,
            transitions=self.transitions,
            start=self._one("start"),
            accept=frozenset(self._many("accept")),
            inputs=inputs,
            symbols=(self._one("blank", "_"), *inputs, *self._many("symbols")),
            reject=frozenset(self._many("reject")),
            tape=self._one("tape", "two-way"),
            lines=self.lines,
        )

    def _read_header(self, content: str) -> None:
        key, colon, values = (part.strip() for part in content.partition(":"))
        if not colon:
            self._fail(f"expected 'STATE SYMBOL -> STATE SYMBOL MOVE' or 'HEADER: VALUES', got {content!r}")
        if key not in _HEADERS:
            hint = nearest(key, _HEADERS) or f" The headers are {', '.join(_HEADERS)}."
            self._fail(f"unknown header {key!r}.{hint}")
        if key in self.headers:
            self._fail(f"header {key!r} is given a second time")
        self.headers[key] = values.split()
        if key in ("input", "symbols", "blank"):
            self._check_symbols(self.headers[key])

    def _read_transition(self, content: str) -> None:
        words = content.split()
        if len(words) != 6 or words[2] != "->":
            self._fail(f"expected 'STATE SYMBOL -> STATE SYMBOL MOVE', got {content!r}")
        state, symbol, _, target, written, move = words
        self._check_symbols([symbol, written])
        if move not in MOVES:
            self._fail(f"the move must be L, R or S, got {move!r}")
        if first := self.lines.get((state, symbol)):
            self._fail(f"state {state!r} on symbol {symbol!r} has a transition already, in line {first}")
        self.transitions[state, symbol] = Transition(target, written, MOVES[move])
        self.lines[state, symbol] = self.number

    def _check_symbols(self, symbols: Iterable[str]) -> None:
        for symbol in symbols:
            if len(symbol) != 1:
                self._fail(f"a symbol is a single character, got {symbol!r}")

    def _many(self, header: str) -> tuple[str, ...]:
        return tuple(self.headers.get(header, ()))

    def _one(self, header: str, default: str | None = None) -> str:
        values = self.headers.get(header, [default] if default else [])
        if len(values) != 1:
            raise MachineError(
                "machine-header", f"{self.name}: a machine needs exactly one '{header}: ...', got {len(values)}"
            )
        return values[0]

    def _fail(self, problem: str) -> NoReturn:
        raise MachineError("machine-line", f"{self.name}, line {self.number}: {problem}")
