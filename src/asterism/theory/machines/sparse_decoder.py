"""A Turing machine as a transformer whose decoder tokens read at most two tokens each (Zaheer 2020, appendix B).

The decoder tokens, from 1, stand in blocks: block g has the g + 1 tokens T(g) + 1, ..., T(g + 1), with T(k) = k(k+1)/2.
Its last token, the compute token, makes the machine's step g; the tokens before it search. All tokens of a block hold
the state q(g), the symbol s(g) and the cell c(g), so each of them knows the cell c(g+1) that comes next; token by token
they keep the best of two candidates for the last step that wrote there: "the latest write is an associative minimum".
T steps of the machine take T(T+1)/2 tokens. Who reads whom, for the k-th token i of block g:

    k = 1            T(1) and i - 1    the writes of steps 0 and g - 1
    1 < k <= g       T(k) and i        the write of step k - 1, and the best so far
    k = g + 1        i and i - 1       the write of step g, and the best of the steps before

Groups of a vector, 2|Q| + 4|S| + 15 slots:

    q1 s1 x1 | q2 s2 x2 x3 x4 x5 x6 | s3 x7 s4 | x8 .. x15

    token i      q1 = q(g), s1 = s(g), x1 = c(g); the best so far, written at a time l: s4 = v(l),
                 (x13, x14, x15) = u = (l+1, 1/(l+1), c(l))
    position     x8..x12 = 1, g+1, 1/(g+1), h, h(g+1), with h = 1 at compute tokens and else 0
    encoder      as in the full construction: s3 and x7 are alpha and beta at place g + 1, read anew in every layer
    layer 1      q2, s2, x2 = q(g+1), v(g), c(g+1)
    layer 2      the switch on h. Compute tokens: q1, x1 = q(g+1), c(g+1); s1, x6 = alpha, beta; they offer their own
                 write s2 = v(g), (x3, x4, x5) = (g+1, 1/(g+1), c(g)). The others: q1, x1, s1 stay, x6 = g + 1; they
                 offer what they carry, s2 = s4 and (x3, x4, x5) = u
    layer 3      reads the better of two offers into s4 and x13, x14, x15: query (x2, 1, 1/3), key (1, -x5, x4), that is
                 |c(g+1) - c(l) + 1 / (3(l+1))|, least for the latest write to the same cell, else at least 2/3
    output       s(g+1) at compute tokens as in the full construction; s(g) at the others, for which x6 = g + 1

Corrected against the text, which does not run as printed:

 1. The key's entry of c(l) is negative (as in Perez 2019); the text has it positive.
 2. g is the block of token i, g(i - 1) by the text's own formula; the text's g(i) is one token early.
 3. A compute token reads i and i - 1; in the text it reads itself alone and loses the best so far.
 4. The output compares beta with g + 1, which the text's tokens cannot read once u_1 stands in its slot; g + 1 keeps a
    slot of its own here.

Made exact: the text's second layer multiplies c by 1/(g+1), and its switch gates numbers without bound; ReLU units can
do neither for all lengths. Here cells stay whole numbers, which makes the product, and its layer, unnecessary. The
switch between a and b, both at most g + 1, is relu(a - (g+1) + h(g+1)) + relu(b - h(g+1)): a gate whose bound the
position brings along.
"""

from collections.abc import Sequence
from fractions import Fraction
from math import isqrt

from asterism.patterns import Pattern, explicit
from asterism.theory.machines.encoding import (
    Construction,
    Units,
    Weights,
    choose_symbol,
    copy,
    look_up_transition,
    slot,
)
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

CARRIED = ("x13", "x14", "x15")


def sparse_decoder(machine: TuringMachine, arithmetic: Arithmetic) -> Construction:
    """The transformer with sparse attention that runs `machine`, which must be in normal form."""
    states, symbols = machine.states, machine.symbols
    carried = [*(slot("q1", state) for state in states), "x1", *(slot("s4", symbol) for symbol in symbols), *CARRIED]
    transformer = Transformer(
        arithmetic=arithmetic,
        embed=lambda symbol, place: arithmetic.vector({slot("s3", symbol): 1, "x8": 1, "x9": place}),
        encoder_key=LinearMap({"x8": {"x9": 1}, "x9": {"x8": -1}}, arithmetic),
        encoder_value=LinearMap({**copy("s3", "s3", symbols), "x7": {"x9": 1}}, arithmetic),
        layers=(
            DecoderLayer(None, _transition(machine, arithmetic)),
            DecoderLayer(None, _switch(machine, arithmetic)),
            DecoderLayer(_better_offer(symbols, arithmetic), None),
        ),
        position=lambda token: position(token + 1, arithmetic),
        neighbours=lambda token: [node - 1 for node in neighbours(token + 1)],
        output=choose_symbol(
            machine,
            arithmetic,
            read="s1",
            written="s4",
            reached="x6",
            latest="x13",
            outputs={name: name for name in carried},
        ),
    )
    return Construction(
        name="sparse",
        machine=machine,
        transformer=transformer,
        latest="x13",
        head=lambda last: last.get("x1", 0),
        width=2 * len(states) + 4 * len(symbols) + 15,
        tokens=lambda time: time + 1,
    )


def triangular(k: int) -> int:
    """T(k) = 1 + 2 + ... + k."""
    return k * (k + 1) // 2


def block(node: int) -> int:
    """The block g of a decoder token, counted from 1: T(g) < node <= T(g + 1)."""
    return (isqrt(8 * node - 7) - 1) // 2


def neighbours(node: int) -> Sequence[int]:
    """The decoder tokens that token `node` reads, all counted from 1: one or two of them."""
    g = block(node)
    k = node - triangular(g)
    if k == 1 and g > 0:
        return sorted({1, node - 1})
    if k <= g:
        return [triangular(k), node]
    return [node - 1, node] if node > 1 else [node]


def decoder_pattern(steps: int) -> Pattern:
    """The attention graph of the decoder tokens of that many machine steps, as a causal pattern of degree at most 2."""
    nodes = triangular(steps)
    return explicit([(node - 1, key - 1) for node in range(1, nodes + 1) for key in neighbours(node)], size=nodes)


def position(node: int, arithmetic: Arithmetic) -> Vector:
    """The position slots of a decoder token, counted from 1."""
    time = block(node) + 1
    last = int(node == triangular(time))
    return arithmetic.vector({"x8": 1, "x9": time, "x10": Fraction(1, time), "x11": last, "x12": last * time})


def _transition(machine: TuringMachine, arithmetic: Arithmetic) -> HardmaxFeedForward:
    """Layer 1: the transition (Perez 2019, lemma B.2) and c(g+1) = c(g) + m(g). Layer 2 reads alpha and beta anew."""
    units = Units()
    look_up_transition(units, machine, "x2")
    units.add("x2", units.unit("cell", {"x1": 1}))
    units.scale([*(slot("s3", symbol) for symbol in machine.symbols), "x7"], -1)
    return units.network(arithmetic)


def _switch(machine: TuringMachine, arithmetic: Arithmetic) -> HardmaxFeedForward:
    """Layer 2: each slot takes its first source at compute tokens and its second at the others."""
    units = Units()
    for state in machine.states:
        _choose(units, slot("q1", state), {slot("q2", state): 1}, {slot("q1", state): 1}, one_hot=True)
    for symbol in machine.symbols:
        _choose(units, slot("s1", symbol), {slot("s3", symbol): 1}, {slot("s1", symbol): 1}, one_hot=True)
        _choose(units, slot("s2", symbol), {slot("s2", symbol): 1}, {slot("s4", symbol): 1}, one_hot=True)
    for target, computed, kept in (
        ("x1", "x2", "x1"),
        ("x3", "x9", "x13"),
        ("x4", "x10", "x14"),
        ("x5", "x1", "x15"),
    ):
        _choose(units, target, {computed: 1}, {kept: 1})
    _choose(units, "x6", {"x7": 1}, {"x9": 1})
    cleared = [slot(group, symbol) for group in ("s1", "s2", "s4") for symbol in machine.symbols]
    units.scale([*(slot("q1", state) for state in machine.states), *cleared, "x1", *CARRIED], -1)
    return units.network(arithmetic)


def _choose(units: Units, target: str, computed: Weights, kept: Weights, *, one_hot: bool = False) -> None:
    """Add `computed` to the target if h = 1 and `kept` if h = 0. Both are at most g + 1, or 1 in a one-hot group."""
    if one_hot:
        take = units.unit(f"computed {target}", {**computed, "x11": 1}, 1)
        keep = units.unit(f"kept {target}", {**kept, "x11": -1})
    else:
        take = units.unit(f"computed {target}", _sum(computed, {"x9": -1, "x12": 1}))
        keep = units.unit(f"kept {target}", _sum(kept, {"x12": -1}))
    units.add(target, take)
    units.add(target, keep)


def _sum(first: Weights, second: Weights) -> Weights:
    return {name: first.get(name, 0) + second.get(name, 0) for name in (*first, *second)}


def _better_offer(symbols: tuple[str, ...], arithmetic: Arithmetic) -> Attention:
    """Layer 3: the latest write to the cell c(g+1), of two."""
    values = dict(zip(CARRIED, ("x3", "x4", "x5"), strict=True))
    return Attention(
        query=LinearMap({"cell": {"x2": 1}, "minus": {"x8": 1}, "third": {"x8": Fraction(1, 3)}}, arithmetic),
        key=LinearMap({"cell": {"x8": 1}, "minus": {"x5": -1}, "third": {"x4": 1}}, arithmetic),
        value=LinearMap(
            {**copy("s2", "s4", symbols), **{to: {source: 1} for to, source in values.items()}}, arithmetic
        ),
    )
