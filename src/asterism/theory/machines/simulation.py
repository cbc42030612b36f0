"""Run a Turing machine by a transformer, token by token, and compare it with the interpreter.

The machine is brought into normal form and compiled to the full or the sparse construction. After each of its steps
the configuration is read from the transformer's vectors: state, symbol under the head and cell of the head are what the
decoder computed; the tape is the word that the encoder was given, with the symbols that the decoder has written. It
must equal the configuration of the interpreter on the normal form and, where that stands for one of the machine's own,
the interpreter's on the machine as it was given.

What exactness is for: with the head on cell c at time t, the full construction's products of two visits to that cell
differ by about 1 / t^5, and rounding moves each of them by about c / t^2 times the format's precision. Near c t^3 =
2^24 in float32 and 2^53 in float64 the wrong visit wins; `Simulation.wrong` names the step. The sparse construction
subtracts whole numbers and then adds 1 / (3(l+1)), an order that floating point keeps for longer than any run here.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice

from asterism.errors import AsterismError, MachineError, nearest
from asterism.theory.machines.encoding import Construction, read_group
from asterism.theory.machines.full_decoder import full_decoder
from asterism.theory.machines.hardmax import ARITHMETICS, Decoder, Token
from asterism.theory.machines.machine import Configuration, TuringMachine
from asterism.theory.machines.normal_form import NormalForm, normalise
from asterism.theory.machines.sparse_decoder import sparse_decoder

CONSTRUCTIONS = {"full": full_decoder, "sparse": sparse_decoder}


class Disagreement(AsterismError):
    """The transformer's configuration at `time` is not the interpreter's."""

    def __init__(self, time: int, problem: str) -> None:
        super().__init__("transformer-disagrees", f"at time {time} the transformer is wrong: {problem}")
        self.time = time


@dataclass(frozen=True)
class Step:
    """The machine at one time.

    `configuration` is that of the normal form, `view` the same in the machine's own terms; `exact` tells whether the
    machine itself was ever in it, or the normal form is between two of the machine's steps. From time 1 on, `token` is
    the decoder token that computed it, `reads` the tokens that its addressing attention found best, `word_reads` the
    places in the word that its cross-attention found best (all counted from 0), and `source` says where the symbol
    under the head came from: "word", "blank" (a new cell), or the time at which it was written.
    """

    time: int
    configuration: Configuration
    view: Configuration
    exact: bool
    token: int | None = None
    reads: tuple[int, ...] = ()
    word_reads: tuple[int, ...] = ()
    source: str | int = "blank"


@dataclass(frozen=True)
class Simulation:
    """A run that has ended. `wrong` says where floating point went wrong; `steps` are then those before it."""

    run: "MachineRun"
    steps: tuple[Step, ...]
    wrong: Disagreement | None = None

    @property
    def final(self) -> Configuration:
        """The last configuration, of the machine as it was given."""
        return [step for step in self.steps if step.exact or step is self.steps[-1]][-1].view

    @property
    def halted(self) -> bool:
        """Whether the machine halted within the allowed steps."""
        return self.steps[-1].configuration.state in self.run.normal.machine.halting

    @property
    def accepted(self) -> bool:
        """Whether it ended in an accept state."""
        return self.steps[-1].configuration.state in self.run.normal.machine.accept


def simulate(
    machine: TuringMachine | str,
    word: str = "",
    *,
    attention: str = "full",
    arithmetic: str = "exact",
    steps: int = 500,
) -> Simulation:
    """Run a machine, or the sample of that name, on a word for at most `steps` steps of its normal form.

    attention   "full" (Perez 2019: one decoder token per step, which reads all before it) or "sparse" (Zaheer 2020:
                t + 1 tokens for step t, which read at most two each)
    arithmetic  "exact" rationals, "float64" or "float32"

    Every configuration is checked. Raises Disagreement when exact arithmetic does not give the interpreter's; in
    floating point the run ends there, with `wrong` set. Raises MachineError for names, words and machines that do not
    fit.
    """
    run = prepare(machine, word, attention=attention, arithmetic=arithmetic)
    taken: list[Step] = []
    try:
        for step in islice(run, steps + 1):
            taken.append(step)
    except Disagreement as disagreement:
        if arithmetic == "exact":
            raise
        return Simulation(run, tuple(taken), disagreement)
    return Simulation(run, tuple(taken))


def prepare(
    machine: TuringMachine | str, word: str = "", *, attention: str = "full", arithmetic: str = "exact"
) -> "MachineRun":
    """The run of `simulate`, with steps that are computed on demand. Raises MachineError as `simulate` does."""
    for asked, choices, what in ((attention, CONSTRUCTIONS, "attention"), (arithmetic, ARITHMETICS, "arithmetic")):
        if asked not in choices:
            raise MachineError(
                "unknown-choice", f"{what} must be one of {', '.join(choices)}, got {asked!r}.{nearest(asked, choices)}"
            )
    normal = normalise(TuringMachine.load(machine) if isinstance(machine, str) else machine)
    normal.begin(word)
    return MachineRun(CONSTRUCTIONS[attention](normal.machine, ARITHMETICS[arithmetic]), normal, word)


class MachineRun:
    """The steps of a construction on a word, each computed on demand and checked.

    It counts decoder `tokens`, `products` of queries and keys, and `degree`, the most tokens that a token could read.
    Iterating raises Disagreement if the transformer is wrong, and MachineError if the machine moves off a one-way tape.
    """

    def __init__(self, construction: Construction, normal: NormalForm, word: str) -> None:
        self.construction, self.normal, self.word = construction, normal, word
        self.tokens = self.products = self.degree = 0
        self._originals = normal.original.run(word)
        self._arithmetic = construction.transformer.arithmetic

    def __iter__(self) -> Iterator[Step]:
        now, vector = self.normal.begin(self.word), self.construction.first_token
        decoder = Decoder(self.construction.transformer, [*self.word] or [self.normal.machine.blank])
        yield Step(0, now, self.normal.view(now), self.normal.stands_for(now))
        for time in count(1):
            expected = self.normal.machine.step(now)
            if expected is None:
                break
            for _ in range(self.construction.tokens(time - 1)):
                token = decoder.step(vector)
                vector = token.following
                self.tokens += 1
                self.products += token.products
                self.degree = max(self.degree, token.degree)
            now = self._check(time, self._decode(time, now, token), expected)
            yield self._step(time, now, token)
        if next(self._originals, None) is not None:
            raise Disagreement(time, "the normal form has halted and the machine has not")

    def _decode(self, time: int, before: Configuration, token: Token) -> Configuration:
        """The configuration that the decoder's vectors hold."""
        machine, arithmetic = self.normal.machine, self._arithmetic
        state = read_group(token.following, "q1", machine.states, arithmetic)
        symbol = read_group(token.following, "s1", machine.symbols, arithmetic)
        written = read_group(token.last, "s2", machine.symbols, arithmetic)
        head = arithmetic.whole(self.construction.head(token.last))
        if state is None or symbol is None or written is None or head is None:
            read = f"state {state}, symbol {symbol}, written {written}, cell {head}"
            raise Disagreement(time, f"its vectors hold no configuration, but {read}")
        tape = {**before.tape, before.head: written}
        if written == machine.blank:
            del tape[before.head]
        if (seen := tape.get(head, machine.blank)) != symbol:
            raise Disagreement(time, f"it takes the symbol under the head to be {symbol!r}, and it is {seen!r}")
        return Configuration(state, head, tape)

    def _check(self, time: int, decoded: Configuration, expected: Configuration) -> Configuration:
        if decoded != expected:
            raise Disagreement(time, f"it is in {decoded}, and the normal form in {expected}")
        if self.normal.stands_for(decoded):
            own = next(self._originals, None)
            if self.normal.view(decoded) != own:
                raise Disagreement(time, f"it stands for {self.normal.view(decoded)}, and the machine is in {own}")
        return decoded

    def _step(self, time: int, now: Configuration, token: Token) -> Step:
        latest = self._arithmetic.whole(token.last.get(self.construction.latest, 0))
        if time <= len(self.word):
            source: str | int = "word"
        else:
            source = "blank" if latest is None or latest == time else latest - 1
        return Step(
            time=time,
            configuration=now,
            view=self.normal.view(now),
            exact=self.normal.stands_for(now),
            token=token.number,
            reads=token.reads,
            word_reads=token.word_reads,
            source=source,
        )
