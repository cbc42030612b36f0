"""The normal form of Perez 2019 (section 3 and appendix B), and any machine brought into it.

A machine in normal form never lets its head stand still. It starts in q_init on cell 0, which is blank, with the word
in cells 1, 2, ... At time 0 it moves right into q_read; in q_read it moves right over the word, which it does not
change, until it meets a blank: so at time i it reads the i-th symbol, which is what the encoder can tell the decoder.
It never moves left of cell 0, its transitions are total, and no transition leaves a state that halts.

`normalise` adds the reading pass, and a walk back to a mark in cell 0, before the machine's own first step. Then:

    one-way tape   the machine's cell c is cell c + 1
    two-way tape   folded: cell c + 1 holds the pair of the machine's cells c and -1 - c ("up" and "down"); a pair whose
                   second part is blank is written as its first part. A state knows on which half its head is, and
                   moves the other way on the lower half; on the mark the head turns to the other half.
    S              a step to the right and, in the state "return", one to the left
    no transition  a step into the state "stuck", which halts and does not accept

`view` is the inverse: what a configuration of the normal form says about the machine's own. `stands_for` tells whether
the configuration is one of the machine's or lies between two of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from asterism.errors import MachineError
from asterism.theory.machines.machine import Configuration, Transition, TuringMachine

INIT, READ, BACK, STUCK = "q_init", "q_read", "q_back", "stuck"
MARK = "end"  # stands in cell 0; machines that are normalised have symbols of one character
UP, DOWN = " up", " down"  # with the spaces, no state of the machine can be mistaken for one of the form's own
RETURN = " return"


@dataclass(frozen=True)
class NormalForm:
    """`machine` is in normal form and computes the same as `original`. Raises MachineError if it is not in normal
    form.
    """

    original: TuringMachine
    machine: TuringMachine
    _origin: dict[str, tuple[str, str]] = field(repr=False)  # state -> the machine's state, and its half of the tape

    def __post_init__(self) -> None:
        for problem in _violations(self.machine):
            raise MachineError("not-normal-form", f"{self.machine.name}: not in normal form: {problem}")

    def begin(self, word: str) -> Configuration:
        """The first configuration of the normal form."""
        tape = self.original.begin(word).tape
        return Configuration(INIT, 0, {cell + 1: symbol for cell, symbol in tape.items()})

    def stands_for(self, now: Configuration) -> bool:
        """Whether `view(now)` is a configuration of the machine, and not a moment between two of them."""
        return now.state in self._origin and (now.head > 0 or now.state in self.machine.halting)

    def view(self, now: Configuration) -> Configuration:
        """State, head and tape in the machine's own terms; between two configurations the state keeps its own name."""
        state, half = self._origin.get(now.state, (now.state, UP))
        if now.state.endswith(DOWN + RETURN):
            half = DOWN
        tape: dict[int, str] = {}
        for cell, symbol in now.tape.items():
            if cell == 0:
                continue
            up, down = symbol[0], symbol[1:]
            tape |= {cell - 1: up} if up != self.original.blank else {}
            tape |= {-cell: down} if down else {}
        return Configuration(state, -now.head if half == DOWN else now.head - 1, tape)


def normalise(machine: TuringMachine) -> NormalForm:
    """The machine in normal form. Raises MachineError for symbols of more than one character or states with blanks."""
    spaced = [state for state in machine.states if any(map(str.isspace, state))]
    for name in (*spaced, *(symbol for symbol in machine.symbols if len(symbol) != 1)):
        raise MachineError(
            "machine-name", f"{machine.name}: a state must have no spaces and a symbol one character, got {name!r}"
        )
    halves = (UP, DOWN) if machine.tape == "two-way" else (UP,)
    origin = {state + half: (state, half) for state in machine.states for half in halves}
    pairs = [up + down for up in machine.symbols for down in machine.symbols[1:]] if len(halves) == 2 else []
    symbols = (*machine.symbols, *pairs, MARK)
    transitions = _reading(machine) | dict(_folded(machine, halves))
    halting = {state for state, (old, _) in origin.items() if old in machine.halting}
    total = {
        (state, symbol): transitions.get((state, symbol), Transition(STUCK, symbol, 1))
        for state in dict.fromkeys([INIT, READ, BACK, *(state for state, _ in transitions), *origin])
        for symbol in symbols
        if state not in halting
    }
    normal = TuringMachine(
        name=machine.name,
        transitions=total,
        start=INIT,
        accept=frozenset(state for state in halting if origin[state][0] in machine.accept),
        reject=frozenset({STUCK} | {state for state in halting if origin[state][0] in machine.reject}),
        inputs=machine.inputs,
        symbols=symbols,
        tape="one-way",
    )
    return NormalForm(machine, normal, origin)


def _reading(machine: TuringMachine) -> dict[tuple[str, str], Transition]:
    """The pass over the word, and the walk back to the machine's first configuration."""
    transitions = {
        (INIT, machine.blank): Transition(READ, MARK, 1),
        (READ, machine.blank): Transition(BACK, machine.blank, -1),
        (BACK, MARK): Transition(machine.start + UP, MARK, 1),
    }
    for symbol in machine.inputs:
        transitions[READ, symbol] = Transition(READ, symbol, 1)
        transitions[BACK, symbol] = Transition(BACK, symbol, -1)
    return transitions


def _folded(machine: TuringMachine, halves: tuple[str, ...]) -> Iterator[tuple[tuple[str, str], Transition]]:
    """The machine's own transitions on each half of the tape, the turns on the mark, and the returns."""
    others = machine.symbols if len(halves) == 2 else (machine.blank,)
    returns: dict[str, str] = {}
    for (state, symbol), (target, written, move) in machine.transitions.items():
        for half in halves:
            for other in others:
                read, write = _pair(symbol, other, half, machine.blank), _pair(written, other, half, machine.blank)
                step = -move if half == DOWN else move
                name = target + half + (RETURN if move == 0 else "")
                returns |= {name: target + half} if move == 0 else {}
                yield (state + half, read), Transition(name, write, step or 1)
    for name, target in returns.items():
        for upper in machine.symbols:
            for other in others:
                symbol = _pair(upper, other, UP, machine.blank)
                yield (name, symbol), Transition(target, symbol, -1)
    if len(halves) == 2:
        for state in machine.states:
            if state not in machine.halting:
                yield (state + UP, MARK), Transition(state + DOWN, MARK, 1)
                yield (state + DOWN, MARK), Transition(state + UP, MARK, 1)


def _pair(own: str, other: str, half: str, blank: str) -> str:
    """The symbol of a folded cell, from the machine's symbol under the head and the one on the other half."""
    up, down = (other, own) if half == DOWN else (own, other)
    return up if down == blank else up + down


def _violations(machine: TuringMachine) -> Iterator[str]:
    """The reasons why a machine is not in the normal form that `normalise` makes."""
    for state in machine.states:
        for symbol in machine.symbols:
            if state not in machine.halting and (state, symbol) not in machine.transitions:
                yield f"state {state!r} has no transition on {symbol!r}"
    for (state, symbol), (target, written, move) in machine.transitions.items():
        if move == 0:
            yield f"the head stands still in state {state!r} on {symbol!r}"
        if target == INIT:
            yield f"state {state!r} goes back to the first state"
        if state == INIT and symbol == machine.blank and (target, written, move) != (READ, MARK, 1):
            yield "the first step does not mark cell 0 and move right to read"
        if state == READ and symbol in machine.inputs and (target, written, move) != (READ, symbol, 1):
            yield f"the reading pass stops or writes on {symbol!r}"
        if symbol == MARK and (written, move) != (MARK, 1):
            yield f"in state {state!r} the head may move left of cell 0, or its mark be lost"
