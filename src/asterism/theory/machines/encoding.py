"""The parts shared by the full and the sparse construction: configurations as vectors, and a machine's table as units.

A vector consists of groups. A group of states or symbols is one-hot: slot "q1:right" is 1 where group q1 holds the
state "right". The other slots hold numbers.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from asterism.theory.machines.hardmax import Arithmetic, HardmaxFeedForward, Hidden, LinearMap, Transformer, Vector
from asterism.theory.machines.machine import TuringMachine

TIME = "x9"
"""The slot of the time r + 1, in both constructions."""


@dataclass(frozen=True)
class Construction:
    """A machine as a transformer, and how to read it.

    In the vectors of the next token, groups q1 and s1 are the state and the symbol under the head. In the last layer's
    vector, group s2 is the symbol that was written, slot TIME the machine's next time r + 1, `latest` the time after
    that at which the head's cell was last written (r + 1 when it is new), and `head` makes the head's cell of it.
    `tokens` says how many decoder tokens it takes to get from a time to the next.
    """

    name: str
    machine: TuringMachine
    transformer: Transformer
    latest: str
    head: Callable[[Vector], object]
    width: int
    tokens: Callable[[int], int]

    @property
    def first_token(self) -> Vector:
        """The machine's start: its first state, on a blank."""
        start = {slot("q1", self.machine.start): 1, slot("s1", self.machine.blank): 1}
        return self.transformer.arithmetic.vector(start)


def slot(group: str, member: str) -> str:
    """The slot that is 1 where a one-hot group holds `member`."""
    return f"{group}:{member}"


def copy(source: str, target: str, members: Sequence[str]) -> dict[str, dict[str, int]]:
    """The rows that carry a one-hot group into another."""
    return {slot(target, member): {slot(source, member): 1} for member in members}


def read_group(x: Vector, group: str, members: Sequence[str], arithmetic: Arithmetic) -> str | None:
    """The member that a one-hot group holds, or None where the group is not one-hot."""
    held = [member for member in members if arithmetic.whole(x.get(slot(group, member), 0)) != 0]
    return held[0] if len(held) == 1 and arithmetic.whole(x[slot(group, held[0])]) == 1 else None


Weights = Mapping[str, int | Fraction]


class Units:
    """One hidden layer while it is written down: its units, and what they add to which slot."""

    def __init__(self) -> None:
        self.rows: dict[str, Weights] = {}
        self.thresholds: dict[str, int] = {}
        self.outputs: dict[str, dict[str, int | Fraction]] = {}

    def unit(self, name: str, weights: Weights, threshold: int = 0) -> str:
        """Define the unit relu(<weights, x> - threshold)."""
        assert name not in self.rows, name
        self.rows[name], self.thresholds[name] = weights, threshold
        return name

    def add(self, target: str, unit: str, weight: int | Fraction = 1) -> None:
        """Add a multiple of a unit to a slot of the result."""
        row = self.outputs.setdefault(target, {})
        row[unit] = row.get(unit, 0) + weight

    def scale(self, slots: Iterable[str], weight: int | Fraction) -> None:
        """Add a multiple of slots, which are never negative, to themselves: -1 clears them."""
        for name in slots:
            self.add(name, self.unit(f"itself {name}", {name: 1}), weight)

    def signed(self, source: str, weights: Weights) -> None:
        """Add multiples of a slot of either sign to slots, as relu(x) - relu(-x)."""
        plus, minus = self.unit(f"+{source}", {source: 1}), self.unit(f"-{source}", {source: -1})
        for target, weight in weights.items():
            self.add(target, plus, weight)
            self.add(target, minus, -weight)

    def hidden(self, arithmetic: Arithmetic) -> Hidden:
        """The layer's units."""
        return Hidden(self.rows, self.thresholds, arithmetic)

    def network(self, arithmetic: Arithmetic, *before: Hidden) -> HardmaxFeedForward:
        """The network that ends with this layer."""
        return HardmaxFeedForward((*before, self.hidden(arithmetic)), LinearMap(self.outputs, arithmetic))


def look_up_transition(units: Units, machine: TuringMachine, move: str) -> None:
    """q2, s2 and the slot `move` from the state in q1 and the symbol in s1 (Perez 2019, lemma B.2).

    One unit per pair, relu(q1 + s1 - 1), is 1 for the pair that stands there and 0 for all others.
    """
    for (state, symbol), (target, written, step) in machine.transitions.items():
        pair = units.unit(f"on {state}, {symbol}", {slot("q1", state): 1, slot("s1", symbol): 1}, 1)
        units.add(slot("q2", target), pair)
        units.add(slot("s2", written), pair)
        units.add(move, pair, step)


def choose_symbol(
    machine: TuringMachine,
    arithmetic: Arithmetic,
    *,
    read: str,
    written: str,
    reached: str,
    latest: str,
    outputs: dict[str, str],
    signed: Sequence[str] = (),
) -> HardmaxFeedForward:
    """The function F: the symbol under the head at time r + 1, and what else is carried on (Perez 2019, lemma B.6).

    read     group of alpha, its symbol     reached  slot of beta, the place that cross-attention has found
    written  group of the symbol written    latest   slot of l + 1: the head's cell was last written at time l

    The symbol is alpha if beta = r + 1, which means that the word is still being read; else a blank if l = r, which
    means that the cell is new, because the head always moves; else the symbol written. `outputs` maps slots of the next
    token to those that they take, which are never negative unless they are among `signed`.
    """
    choices = [slot(group, symbol) for group in (read, written) for symbol in machine.symbols]
    flags, choice = Units(), Units()
    for name in dict.fromkeys([*choices, *(source for source in outputs.values() if source not in signed)]):
        flags.unit(name, {name: 1})
    for name in signed:
        flags.unit(f"+{name}", {name: 1})
        flags.unit(f"-{name}", {name: -1})
    for flag, other in (("not read", reached), ("not new", latest)):  # min(1, time - other)
        flags.unit(f"{flag} +", {TIME: 1, other: -1})
        flags.unit(f"{flag} -", {TIME: 1, other: -1}, 1)
    not_read, not_new = ({f"{flag} +": 1, f"{flag} -": -1} for flag in ("not read", "not new"))
    # Each unit is a conjunction of values that are 0 or 1: what must not hold counts -1, and the threshold leaves 1
    # where all is as it must be, at most 0 elsewhere. So one of the three cases passes its symbol, without a product of
    # slots, which ReLU units could not form.
    for symbol in machine.symbols:
        target = slot("s1", symbol)
        choice.add(target, choice.unit(f"read {symbol}", {slot(read, symbol): 1} | _times(not_read, -1)))
        choice.add(target, choice.unit(f"old {symbol}", {slot(written, symbol): 1} | not_read | not_new, 2))
    choice.add(slot("s1", machine.blank), choice.unit("new", not_read | _times(not_new, -1)))
    for target, source in outputs.items():
        for sign, weight in (("+", 1), ("-", -1)) if source in signed else (("", 1),):
            choice.add(target, choice.unit(f"{target} from {sign}{source}", {sign + source: 1}), weight)
    return choice.network(arithmetic, flags.hidden(arithmetic))


def _times(weights: dict[str, int], factor: int) -> dict[str, int]:
    return {name: factor * weight for name, weight in weights.items()}
