"""A Turing machine as a transformer with full attention (Perez 2019, theorem 3.4 and appendix B).

Decoder token i holds the state q at time i, the symbol s under the head, and the move m that led there. One encoder
layer and three decoder layers compute token i + 1. Groups of a vector, 2|Q| + 4|S| + 11 slots:

    q1 s1 x1 | q2 s2 x2 x3 x4 x5 | s3 x6 s4 x7 | x8 x9 x10 x11

    token i      q1 = q(i), s1 = s(i), x1 = m(i-1)
    position     x8..x11 = 1, i+1, 1/(i+1), 1/(i+1)^2
    encoder      keys (x8, x9) = (j, -1), values s3 = the j-th symbol and x6 = j. The decoder's queries hold (1, i+1)
                 there and score -|(i+1) - j|: they read alpha, the symbol at place beta = min(i+1, n)  (lemma B.1)
    layer 1      q2, s2, x2 = q(i+1), v(i) (the symbol written), m(i); x3 = m(i-1); clears q1, s1, x1  (lemma B.2)
    layer 2      attends to all tokens alike: x4 = c(i+1)/(i+1) and x5 = c(i)/(i+1) are the means of moves so far, where
                 c is the cell of the head  (lemma B.3)
    layer 3      reads token l, the last that stood on the cell c(i+1): s4 = v(l), x7 = l + 1  (lemma B.4)
    output       s(i+1) = alpha, blank or v(l), by lemma B.6

Lemma B.4: with e_k = 1/(k+1), the query of token i is (c(i+1) e_i, e_i, e_i^2 / 3), the key of j is (e_j, -c(j) e_j,
e_j^2), and their product e_i e_j (c(i+1) - c(j) + e_i e_j / 3). Its absolute value is (e_i e_j)^2 / 3 on the same cell,
least for the latest j; on any other cell it is at least e_i e_j (1 - e_i e_j / 3), which is more. A new cell has all
others to its left, and l = i is the nearest and latest.

Beside the text: a cross-attention stands in every layer and adds alpha and beta each time, because all layers read the
same encoder values; the networks of layers 1 and 2 take them off again. The triple product of lemma B.2 and
the network after it are one layer of units here. An empty word is given to the encoder as one blank, as attention over
nothing is not defined.
"""

from fractions import Fraction

from asterism.theory.machines.encoding import Construction, Units, choose_symbol, copy, look_up_transition, slot
from asterism.theory.machines.hardmax import (
    Arithmetic,
    Attention,
    DecoderLayer,
    HardmaxFeedForward,
    LinearMap,
    Transformer,
    Vector,
)
from asterism.theory.machines.machine import TuringMachine


def full_decoder(machine: TuringMachine, arithmetic: Arithmetic) -> Construction:
    """The transformer with full attention that runs `machine`, which must be in normal form."""
    states, symbols = machine.states, machine.symbols
    transformer = Transformer(
        arithmetic=arithmetic,
        embed=lambda symbol, place: {slot("s3", symbol): arithmetic.number(1)} | _position(place, arithmetic),
        encoder_key=LinearMap({"x8": {"x9": 1}, "x9": {"x8": -1}}, arithmetic),
        encoder_value=LinearMap({**copy("s3", "s3", symbols), "x6": {"x9": 1}}, arithmetic),
        layers=(
            DecoderLayer(None, _transition(machine, arithmetic)),
            DecoderLayer(_mean_move(arithmetic), _forget_encoder(symbols, arithmetic)),
            DecoderLayer(_last_visit(symbols, arithmetic), None),
        ),
        position=lambda token: _position(token + 1, arithmetic),
        neighbours=None,
        output=choose_symbol(
            machine,
            arithmetic,
            read="s3",
            written="s4",
            reached="x6",
            latest="x7",
            outputs={slot("q1", state): slot("q2", state) for state in states} | {"x1": "x2"},
            signed=("x2",),
        ),
    )
    return Construction(
        name="full",
        machine=machine,
        transformer=transformer,
        latest="x7",
        head=lambda last: last.get("x4", 0) * last["x9"],
        width=2 * len(states) + 4 * len(symbols) + 11,
        tokens=lambda time: 1,
    )


def _position(place: int, arithmetic: Arithmetic) -> Vector:
    return arithmetic.vector({"x8": 1, "x9": place, "x10": Fraction(1, place), "x11": Fraction(1, place**2)})


def _transition(machine: TuringMachine, arithmetic: Arithmetic) -> HardmaxFeedForward:
    """Layer 1 (lemma B.2)."""
    units = Units()
    look_up_transition(units, machine, "x2")
    units.scale([slot("q1", state) for state in machine.states], -1)
    units.scale([slot("s1", symbol) for symbol in machine.symbols], -1)
    units.scale(_encoder_slots(machine.symbols), -1)
    units.signed("x1", {"x1": -1, "x3": 1})
    return units.network(arithmetic)


def _mean_move(arithmetic: Arithmetic) -> Attention:
    """Layer 2 (lemma B.3): no query and no key, so all tokens tie."""
    values = LinearMap({"x4": {"x2": 1}, "x5": {"x3": 1}}, arithmetic)
    return Attention(LinearMap({}, arithmetic), LinearMap({}, arithmetic), values)


def _last_visit(symbols: tuple[str, ...], arithmetic: Arithmetic) -> Attention:
    """Layer 3 (lemma B.4)."""
    return Attention(
        query=LinearMap({"x9": {"x4": 1}, "x10": {"x10": 1}, "x11": {"x11": Fraction(1, 3)}}, arithmetic),
        key=LinearMap({"x9": {"x10": 1}, "x10": {"x5": -1}, "x11": {"x11": 1}}, arithmetic),
        value=LinearMap({**copy("s2", "s4", symbols), "x7": {"x9": 1}}, arithmetic),
    )


def _forget_encoder(symbols: tuple[str, ...], arithmetic: Arithmetic) -> HardmaxFeedForward:
    """Layer 2: the next layer reads alpha and beta anew."""
    units = Units()
    units.scale(_encoder_slots(symbols), -1)
    return units.network(arithmetic)


def _encoder_slots(symbols: tuple[str, ...]) -> list[str]:
    return [*(slot("s3", symbol) for symbol in symbols), "x6"]
