"""Transformers that run Turing machines: equal to the interpreter at every step, and wrong where the text is wrong."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refusing
from slow_cases import slow_except
from small_machines import SAMPLES, contents, machines

from asterism.cli.main import main
from asterism.errors import MachineError
from asterism.patterns.draw import degrees, draw
from asterism.theory import TuringMachine, simulate
from asterism.theory.machines.encoding import Construction
from asterism.theory.machines.full_decoder import full_decoder
from asterism.theory.machines.hardmax import EXACT, Attention, Decoder, HardmaxFeedForward, Hidden, LinearMap, Vector
from asterism.theory.machines.machine import sample_names
from asterism.theory.machines.normal_form import normalise
from asterism.theory.machines.simulation import Disagreement, MachineRun, Step, prepare
from asterism.theory.machines.sparse_decoder import (
    block,
    decoder_pattern,
    neighbours,
    sparse_decoder,
    triangular,
)

ATTENTIONS = ("full", "sparse")


# --- equal to the interpreter ----------------------------------------------------------------------------------------


def own_steps(steps: Sequence[Step]) -> int:
    """The machine's own steps, without the reading pass and what else only the normal form does."""
    return max(0, sum(step.exact for step in steps) - 1)


@cache
def run_samples(attention: str) -> int:
    """Run every sample on all its words; how many of the machines' own steps were checked."""
    checked = 0
    for name, (inputs, expected) in SAMPLES.items():
        for word in inputs:
            done = simulate(name, word, attention=attention, steps=130)
            accepted, left = expected(word)
            blank = done.run.normal.original.blank
            assert done.halted
            assert done.accepted == accepted
            assert left is None or contents(done.final, blank) == left
            time = len(done.steps) - 1
            assert (done.run.tokens, done.run.degree) == (
                (time, time) if attention == "full" else (triangular(time), min(time, 2))
            )
            checked += own_steps(done.steps)
    return checked


@pytest.mark.parametrize("attention", slow_except(ATTENTIONS, "full"))
def test_all_samples_on_all_short_words(attention: str):
    """Every step compares state, head, and tape with two interpreters; `simulate` raises at the first difference."""
    assert run_samples(attention) >= 2_000


def test_drift_for_as_long_as_one_likes():
    assert len(simulate("drift", steps=250).steps) == 251
    assert len(simulate("drift", steps=60, attention="sparse").steps) == 61


@pytest.mark.slow
def test_random_machines():
    """Full and sparse attention over whole runs, some of which end where the machine leaves its tape."""
    counts = {"full": 0, "sparse": 0}

    @settings(max_examples=80)
    @given(machines(), st.data())
    def run(machine: TuringMachine, data: st.DataObject) -> None:
        word = data.draw(st.text(machine.inputs, max_size=4))
        for attention, most in (("full", 30), ("sparse", 24)):
            steps = run_to_its_end(prepare(machine, word, attention=attention), most)
            counts[attention] += own_steps(steps)

    run()
    assert min(counts.values()) >= 5 * 80, counts


def run_to_its_end(run: MachineRun, most: int) -> list[Step]:
    """At most so many steps of a run; it may end earlier where the machine halts or leaves a one-way tape."""
    steps: list[Step] = []
    try:
        for step in islice(run, most + 1):
            steps.append(step)
    except MachineError as error:
        assert run.normal.original.tape == "one-way"
        assert "moves left of cell 0" in str(error)
    else:
        machine = run.normal.machine
        assert len(steps) == most + 1 or steps[-1].configuration.state in machine.halting
    return steps


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_a_machine_that_leaves_its_tape(attention: str):
    machine = replace(TuringMachine.load("increment"), tape="one-way")
    assert contents(simulate(machine, "01", attention=attention).final) == "10"
    with refusing(MachineError, "machine-left-end", "'carry'", "'1'"):
        simulate(machine, "11", attention=attention)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_a_state_may_have_the_name_of_a_symbol(attention: str):
    machine = TuringMachine.parse("start: a\naccept: z\ninput: a z\na a -> a z R\na z -> a a R\na _ -> z _ L\n")
    done = simulate(machine, "aza", attention=attention)
    assert (done.accepted, contents(done.final)) == (True, "zaz")


def test_a_run_can_be_stopped():
    done = simulate("copy", "ab", steps=6)
    assert (len(done.steps), done.halted, done.accepted) == (7, False, False)
    assert [step.time for step in simulate("copy", "ab", steps=0).steps] == [0]


def test_steps_say_where_symbols_come_from():
    steps = simulate("increment", "11").steps
    assert [step.source for step in steps] == ["blank", "word", "word", "blank", 2, 1, 0, 5, 4, 3, 8, 7, 6, 11, 10, 13]
    assert [step.reads for step in steps[5:8]] == [(1,), (0,), (5,)]
    assert [step.word_reads for step in steps[1:5]] == [(0,), (1,), (1,), (1,)]
    assert [step.view.write("_") for step in steps[-2:]] == ["[_]100", "[1]00"]
    assert [step.exact for step in steps[-3:]] == [True, False, True]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"attention": "sprase"}, r"attention must be one of full, sparse, got 'sprase'\. Did you mean 'sparse'\?"),
        ({"arithmetic": "float16"}, r"arithmetic must be one of exact, float64, float32, got 'float16'"),
        ({"word": "12"}, r"increment: the input has '2' at position 1"),
        ({"machine": "incrment"}, r"no sample machine and no file 'incrment'"),
    ],
)
def test_refusals(arguments: dict[str, str], message: str):
    with pytest.raises(MachineError, match=message):
        simulate(**{"machine": "increment", **arguments})


# --- ordinary layers: the same vectors from dense matrices ------------------------------------------------------------


class DenseDecoder:
    """The definition with dense matrices of rationals, every attention computed anew over the whole sequence."""

    def __init__(self, construction: Construction, word: Sequence[str]) -> None:
        self.transformer = model = construction.transformer
        heads = [layer.attention for layer in model.layers if layer.attention]
        networks = [model.output, *(layer.feed_forward for layer in model.layers if layer.feed_forward)]
        writing = [model.encoder_value, *(head.value for head in heads), *(net.output for net in networks)]
        reading = [linear for head in heads for linear in (head.query, head.key)]
        reading += [net.hidden[0].linear for net in networks]
        names = {slot for linear in writing for slot in linear.rows}
        names |= {slot for linear in reading for row in linear.rows.values() for slot in row}
        self.slots = sorted(names | set(model.position(0)))
        encoded = [self.dense(model.embed(symbol, place)) for place, symbol in enumerate(word, 1)]
        self.keys = [self.apply(model.encoder_key, x) for x in encoded]
        self.values = [self.apply(model.encoder_value, x, self.slots) for x in encoded]

    def dense(self, x: Vector) -> np.ndarray:
        return np.array([Fraction(x.get(slot, 0)) for slot in self.slots], dtype=object)

    def matrix(self, linear: LinearMap, targets: Sequence[str], sources: Sequence[str]) -> np.ndarray:
        rows = [[Fraction(linear.rows.get(t, {}).get(s, 0)) for s in sources] for t in targets]
        return np.array(rows, dtype=object).reshape(len(targets), len(sources))

    def apply(self, linear: LinearMap, x: np.ndarray, targets: Sequence[str] | None = None) -> np.ndarray:
        return self.matrix(linear, list(linear.rows) if targets is None else targets, self.slots) @ x

    def attend(self, query: np.ndarray, keys: list[np.ndarray], values: list[np.ndarray]) -> np.ndarray:
        scores = [-abs(sum(query * key, Fraction(0))) for key in keys]
        best = [value for score, value in zip(scores, values, strict=True) if score == max(scores)]
        return sum(best) / Fraction(len(best))

    def network(self, network: HardmaxFeedForward, x: np.ndarray) -> np.ndarray:
        sources = self.slots
        for hidden in network.hidden:
            units = list(hidden.linear.rows)
            bias = np.array([hidden.thresholds[unit] for unit in units], dtype=object)
            x = np.maximum(self.matrix(hidden.linear, units, sources) @ x - bias, Fraction(0))
            sources = units
        return self.matrix(network.output, self.slots, sources) @ x

    def last(self, tokens: list[np.ndarray]) -> np.ndarray:
        """The next token, from all tokens so far."""
        model = self.transformer
        xs = [token + self.dense(model.position(number)) for number, token in enumerate(tokens)]
        for layer in model.layers:
            if head := layer.attention:
                keys, names = [self.apply(head.key, x) for x in xs], list(head.key.rows)
                values = [self.apply(head.value, x, self.slots) for x in xs]
                mixed = []
                for number, x in enumerate(xs):
                    among = model.neighbours(number) if model.neighbours else range(number + 1)
                    query = self.apply(head.query, x, names)
                    mixed.append(x + self.attend(query, [keys[k] for k in among], [values[k] for k in among]))
                xs = mixed
            names = list(model.encoder_key.rows)
            xs = [x + self.attend(x[[self.slots.index(n) for n in names]], self.keys, self.values) for x in xs]
            xs = [x + self.network(layer.feed_forward, x) for x in xs] if layer.feed_forward else xs
        return self.network(model.output, xs[-1])


@pytest.mark.parametrize(("attention", "tokens"), [("full", 9), ("sparse", 10)])
def test_the_layers_are_ordinary(attention: str, tokens: int):
    """Sparse vectors and kept keys change nothing: dense matrices over the whole sequence give the same tokens."""
    table = "start: a\naccept: z\ninput: 1\ntape: one-way\na 1 -> a _ R\na _ -> z 1 L"
    normal = normalise(TuringMachine.parse(table))
    construction = (full_decoder if attention == "full" else sparse_decoder)(normal.machine, EXACT)
    dense, decoder = DenseDecoder(construction, "1"), Decoder(construction.transformer, "1")
    token, sequence = construction.first_token, []
    for _ in range(tokens):
        sequence.append(dense.dense(token))
        token = decoder.step(token).following
        assert (dense.last(sequence) == dense.dense(token)).all()
    assert len(dense.slots) == construction.width


def test_widths_are_the_formulas():
    normal = normalise(TuringMachine.load("anbn"))
    sizes = 2 * len(normal.machine.states) + 4 * len(normal.machine.symbols)
    assert full_decoder(normal.machine, EXACT).width == sizes + 11
    assert sparse_decoder(normal.machine, EXACT).width == sizes + 15


def test_a_unit_that_is_active_without_input_is_refused():
    with pytest.raises(ValueError, match="negative threshold"):
        Hidden({"unit": {"x": 1}}, {"unit": -1}, EXACT)


# --- who reads whom --------------------------------------------------------------------------------------------------


def test_the_attention_graph_of_the_sparse_decoder():
    assert draw(decoder_pattern(4), 10).splitlines()[1:-1] == [
        "█·········",
        "█·········",
        "·██·······",
        "█·█·······",
        "··█·█·····",
        "····██····",
        "█····█····",
        "··█····█··",
        "·····█··█·",
        "········██",
    ]


def test_the_graph_is_causal_sparse_and_covers_every_write():
    pattern = decoder_pattern(60)
    assert pattern.is_causal
    assert degrees(pattern, triangular(60)).maximum == 2
    for g in range(2, 60):
        own = range(triangular(g) + 1, triangular(g + 1) + 1)
        seen = {node for reader in own for node in neighbours(reader)}
        assert {triangular(k) for k in range(1, g + 2)} <= seen
        assert {block(node) for node in own} == {g}


# --- what is wrong in print, and what each part is for --------------------------------------------------------------

RUNS = [("increment", "11"), ("palindromes", "010"), ("copy", "ab"), ("beaver4", "")]


def outcome(name: str, word: str, construct: Callable, change: Callable[[Construction], Construction]) -> bool:
    """Whether a construction, changed, still agrees with the interpreter over the first 30 steps."""
    normal = normalise(TuringMachine.load(name))
    run = iter(MachineRun(change(construct(normal.machine, EXACT)), normal, word))
    try:
        for step in run:
            if step.time == 30:
                break
    except (Disagreement, KeyError):
        return False
    return True


def with_model(construction: Construction, **changes: object) -> Construction:
    return replace(construction, transformer=replace(construction.transformer, **changes))


def with_key(construction: Construction, rows: dict[str, dict[str, int]]) -> Construction:
    """The last layer's keys, changed."""
    *layers, last = construction.transformer.layers
    head = last.attention
    head = Attention(head.query, LinearMap({**head.key.rows, **rows}, EXACT), head.value)
    return with_model(construction, layers=(*layers, replace(last, attention=head)))


def printed_edges(node: int) -> list[int]:
    g = block(node)
    k = node - triangular(g)
    return sorted({triangular(k), node if k > 1 else max(1, triangular(g))})


def printed_position(node: int) -> Vector:
    """g(i) + 1 and h(i) = g(i + 1) - g(i) as printed, one token early: the corrected ones have g(i - 1)."""
    time = block(node + 1) + 1
    last = block(node + 2) - block(node + 1)
    return EXACT.vector({"x8": 1, "x9": time, "x10": Fraction(1, time), "x11": last, "x12": last * time})


def printed_test(construction: Construction) -> Construction:
    """F compares beta with what stands in the slot that u_1 has overwritten, instead of with g + 1."""
    flags, choice = construction.transformer.output.hidden
    rows = {
        unit: {("x13" if source == "x9" and unit.startswith("not read") else source): w for source, w in row.items()}
        for unit, row in flags.linear.rows.items()
    }
    output = HardmaxFeedForward((Hidden(rows, flags.thresholds, EXACT), choice), construction.transformer.output.output)
    return with_model(construction, output=output)


SLIPS = {
    "the sign of the key": lambda c: with_key(c, {"minus": {"x5": 1}}),
    "the edges of compute tokens": lambda c: with_model(c, neighbours=lambda t: [n - 1 for n in printed_edges(t + 1)]),
    "the block of a token": lambda c: with_model(c, position=lambda t: printed_position(t + 1)),
    "the test of beta": printed_test,
}

PARTS = {
    "full": {
        "the tie-breaking third": lambda c: with_key(c, {"x11": {}}),
        "the sign of the key": lambda c: with_key(c, {"x10": {"x5": 1}}),
    },
    "sparse": {"the tie-breaking third": lambda c: with_key(c, {"third": {}})},
}


@pytest.mark.parametrize("slip", SLIPS)
def test_the_sparse_construction_fails_as_printed(slip: str):
    assert [outcome(name, word, sparse_decoder, lambda c: c) for name, word in RUNS] == [True] * len(RUNS)
    assert [outcome(name, word, sparse_decoder, SLIPS[slip]) for name, word in RUNS] == [False] * len(RUNS)


@pytest.mark.parametrize(("attention", "part"), [(a, part) for a, parts in PARTS.items() for part in parts])
def test_every_part_is_needed(attention: str, part: str):
    construct = {"full": full_decoder, "sparse": sparse_decoder}[attention]
    assert not any(outcome(name, word, construct, PARTS[attention][part]) for name, word in RUNS)


def test_a_wrong_interpreter_is_noticed():
    """The comparison can fail: the table of the machine, changed behind the transformer's back."""
    normal = normalise(TuringMachine.load("increment"))
    construction = full_decoder(normal.machine, EXACT)
    other = normalise(replace(TuringMachine.load("increment"), start="carry"))
    with pytest.raises(Disagreement, match="at time 7 the transformer is wrong: it is in"):
        list(MachineRun(construction, other, "11"))


# --- where rounding goes wrong ---------------------------------------------------------------------------------------


def first_wrong_time(*machine: str, steps: int, **options: str) -> int | None:
    wrong = simulate(*machine, steps=steps, **options).wrong
    return None if wrong is None else wrong.time


def test_float32_goes_wrong_where_the_sparse_construction_does_not():
    assert first_wrong_time("drift", arithmetic="float32", steps=200) == 105
    assert first_wrong_time("counter", "1000000", arithmetic="float32", steps=200) == 139
    assert first_wrong_time("drift", arithmetic="exact", steps=200) is None
    assert first_wrong_time("drift", arithmetic="float32", attention="sparse", steps=70) is None


@pytest.mark.slow
def test_float64_goes_wrong_later():
    assert first_wrong_time("drift", arithmetic="float64", steps=11_000) == 10_185


# --- the command line ------------------------------------------------------------------------------------------------


def run_command(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(["simulate", *argv])
    return code, *capsys.readouterr()


def test_the_trace(capsys: pytest.CaptureFixture[str]):
    code, out, err = run_command(capsys, "increment", "--input", "1", "--attention", "sparse", "--trace")
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert lines[0].split() == ["time", "own", "state", "symbol", "from", "token", "reads", "word", "tape"]
    assert lines[1].split() == ["0", "q_init", "blank", "[_]1"]
    assert lines[6].split() == ["5", "0", "right", "time", "3", "14", "13", "0", "[1]"]
    assert lines[-3].startswith("increment on '1': accepted after 11 steps, 4 of them the machine's own; tape [1]0")
    assert "66 decoder tokens" in lines[-2]
    assert "a token reads at most 2" in lines[-2]
    assert lines[-1] == "every configuration matches the interpreter's"


@pytest.mark.parametrize(
    ("argv", "facts"),
    [
        (["copy", "--input", "a"], {"result": "accepted", "tape": "a[.]a", "wrong_at": None, "trace": []}),
        (["anbn", "--input", "b", "--attention", "sparse"], {"result": "rejected", "own_steps": 1, "degree": 2}),
        (["drift", "--steps", "9"], {"result": "running", "steps": 9, "tokens": 9}),
        (["drift", "--arithmetic", "float32"], {"result": "wrong", "wrong_at": 105, "steps": 104}),
    ],
)
def test_json(capsys: pytest.CaptureFixture[str], argv: list[str], facts: dict[str, object]):
    code, out, _ = run_command(capsys, *argv, "--json")
    document = json.loads(out)
    assert code == 0
    assert {key: document[key] for key in facts} == facts


def test_json_with_a_trace(capsys: pytest.CaptureFixture[str]):
    trace = json.loads(run_command(capsys, "copy", "--input", "a", "--json", "--trace")[1])["trace"]
    assert [row["time"] for row in trace] == list(range(len(trace)))
    assert trace[0]["token"] is None
    assert trace[-1]["tape"] == "a[.]a"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["incremnt"], "no sample machine and no file 'incremnt'. Did you mean 'increment'?"),
        (["increment", "--input", "x"], "increment: the input has 'x' at position 0; its symbols are 0 1"),
        (["increment", "--attention", "dense"], "invalid choice: 'dense'"),
        (["increment", "--steps", "-1"], "must be a whole number from 0 to 1,000,000,000, got '-1'"),
        ([], "the following arguments are required: MACHINE"),
    ],
)
def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], argv: list[str], message: str):
    code, out, err = run_command(capsys, *argv)
    assert (code, out) == (2, "")
    assert re.fullmatch(f"asterism: error: .*{re.escape(message)}.*\n", err)


def test_a_file_is_a_machine(capsys: pytest.CaptureFixture[str], tmp_path):
    file = tmp_path / "mine.tm"
    file.write_text("start: a\naccept: z\ninput: 1\na 1 -> a 1 R\na _ -> b _ R\n")
    code, _, err = run_command(capsys, str(file))
    assert (code, err.count("\n")) == (2, 1)
    assert "mine.tm, line 5: state 'b' is undefined: it has no transitions and does not halt" in err
    file.write_text("start: a\naccept: z\ninput: 1\na 1 -> a 1 R\na _ -> z 1 S\n")
    code, out, _ = run_command(capsys, str(file), "--input", "11")
    assert code == 0
    assert "tape 11[1]" in out


def test_samples_are_named_in_the_help(capsys: pytest.CaptureFixture[str]):
    assert main(["simulate", "--help"]) == 0
    text = "".join(capsys.readouterr().out.split())
    assert all(name in text for name in sample_names())
