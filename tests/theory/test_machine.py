"""Turing machines: the samples do what they say, the text form is strict, the normal form keeps every configuration."""

import re
from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refusing
from small_machines import SAMPLES, contents, cyclic_tag_data, machines

from asterism.errors import MachineError
from asterism.theory import TuringMachine
from asterism.theory.machines.machine import Configuration, Transition, sample_names
from asterism.theory.machines.normal_form import MARK, READ, NormalForm, normalise

ADDER = """
start: right          ; adds one
accept: done
input: 0 1
right 0 -> right 0 R
right 1 -> right 1 R
right _ -> carry _ L
carry 1 -> carry 0 L
carry 0 -> done  1 S
carry _ -> done  1 S
"""


def last(machine: TuringMachine, word: str) -> Configuration:
    *_, final = islice(machine.run(word), 10_000)
    return final


# --- samples ---------------------------------------------------------------------------------------------------------


def test_every_sample_is_tested():
    assert {*SAMPLES, "drift"} == set(sample_names())
    assert len(sample_names()) >= 8


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_compute_what_they_say(name: str):
    machine = TuringMachine.load(name)
    inputs, expected = SAMPLES[name]
    for word in inputs:
        final = last(machine, word)
        accepted, left = expected(word)
        assert (final.state in machine.accept) == accepted, word
        assert left is None or contents(final, machine.blank) == left, word


@pytest.mark.parametrize(("name", "steps", "ones"), [("beaver3", 14, 6), ("beaver4", 107, 13)])
def test_busy_beavers(name: str, steps: int, ones: int):
    """Rado's scores, and how long these champions run."""
    run = list(TuringMachine.load(name).run(""))
    assert (len(run) - 1, len(run[-1].tape)) == (steps, ones)


@pytest.mark.parametrize("program", ["[11,0,10:1", "[010,000,1111:11001", "[1,:1", "[,0:0110", "[:1111", "[110,:1"])
def test_the_universal_machine_runs_cyclic_tag_systems(program: str):
    """Whenever the machine looks for the next digit, the digits left are the data of the system."""
    machine = TuringMachine.load("universal")
    seen = []
    for now in islice(machine.run(program), 4_000):
        arrived = now.state == "first" and now.tape.get(now.head) not in ("x", ":")
        if arrived:
            tape = "".join(now.tape.get(cell, "") for cell in range(max(now.tape) + 1))
            seen.append(tape.split(":")[1].lstrip("x"))
    assert len(seen) >= 5 or seen[-1] == ""
    assert seen == cyclic_tag_data(program, len(seen) - 1)


def test_drift_never_halts_and_keeps_its_tape_short():
    run = list(islice(TuringMachine.load("drift").run(""), 3_000))
    assert len(run) == 3_000
    assert max(len(now.tape) for now in run) == 2
    assert [run[time].head for time in (0, 3, 2997)] == [0, 1, 999]


# --- the text form ---------------------------------------------------------------------------------------------------


def test_a_text_is_a_machine():
    machine = TuringMachine.parse(ADDER)
    assert machine == replace(TuringMachine.load("increment"), name="machine")
    assert machine.transitions["right", "_"] == Transition("carry", "_", -1)
    assert machine.states == ("right", "carry", "done")
    assert machine.symbols == ("_", "0", "1")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "right 1 -> right 1 R",
            "right 1 -> rihgt 1 R",
            r"adder, line 6: state 'rihgt' is undefined.* Did you mean 'ri",
        ),
        (
            "right 1 -> right 1 R",
            "right 2 -> right 1 R",
            r"adder, line 6: symbol '2' is undefined: list it under 'input:'",
        ),
        ("right 1 -> right 1 R", "right 1 -> right 2 R", r"adder, line 6: symbol '2' is undefined"),
        ("right 1 -> right 1 R", "right 1 -> right 1 X", r"adder, line 6: the move must be L, R or S, got 'X'"),
        ("right 1 -> right 1 R", "right 1 -> right 1", r"adder, line 6: expected 'STATE SYMBOL -> STATE SYMBOL MOVE'"),
        ("right 1 -> right 1 R", "right 1", r"adder, line 6: expected 'STATE SYMBOL -> STATE SYMBOL MOVE' or 'HEADER"),
        (
            "right 1 -> right 1 R",
            "right 0 -> right 1 R",
            r"line 6: state 'right' on symbol '0' has .* already, in line 5",
        ),
        ("right 1 -> right 1 R", "done 1 -> right 1 R", r"adder, line 6: state 'done' halts"),
        ("right 1 -> right 1 R", "right 10 -> right 1 R", r"adder, line 6: a symbol is a single character, got '10'"),
        ("start: right", "strat: right", r"adder, line 2: unknown header 'strat'\. Did you mean 'start'\?"),
        ("start: right", "start: left", r"adder: the start state 'left' is undefined"),
        ("start: right", "start: right left", r"adder: a machine needs exactly one 'start: \.\.\.', got 2"),
        ("start: right", "accept: right", r"adder, line 3: header 'accept' is given a second time"),
        ("start: right", "", r"adder: a machine needs exactly one 'start: \.\.\.', got 0"),
        (
            "accept: done",
            "reject: done",
            r"adder: there is no accept state, so no run could accept; say 'accept: STATE'",
        ),
        ("accept: done", "accept: done\nreject: done", r"adder: state 'done' both accepts and rejects"),
        ("input: 0 1", "input: 0 1 _", r"adder: the blank '_' cannot be an input symbol"),
        ("input: 0 1", "input: 0 1 1", r"adder: a symbol is listed twice among _ 0 1 1"),
        ("input: 0 1", "input: 0 1\ntape: oneway", r"the tape must be two-way or one-way, got 'oneway'\. Did you mean"),
        ("input: 0 1", "input: 01", r"adder, line 4: a symbol is a single character, got '01'"),
    ],
)
def test_errors_name_the_line(old: str, new: str, message: str):
    with pytest.raises(MachineError, match=message):
        TuringMachine.parse(ADDER.replace(old, new), "adder")


def test_files_and_names(tmp_path):
    file = tmp_path / "adder.tm"
    file.write_text(ADDER)
    assert TuringMachine.load(file).transitions == TuringMachine.load("increment").transitions
    with refusing(MachineError, "unknown-machine", "'incremnt'", " Did you mean 'increment'"):
        TuringMachine.load("incremnt")
    with pytest.raises(MachineError, match="The samples are anbn, beaver3"):
        TuringMachine.load("xyz")
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(MachineError, match=f"{re.escape(str(file))} is not text in UTF-8"):
        TuringMachine.load(file)


def test_a_word_of_other_symbols():
    with refusing(MachineError, "machine-input", "increment", "'2'", "1", "0 1"):
        TuringMachine.load("increment").begin("12")


def test_the_left_end_of_a_one_way_tape():
    machine = replace(TuringMachine.parse(ADDER, "adder"), tape="one-way")
    assert last(machine, "01").tape == {0: "1", 1: "0"}
    with refusing(MachineError, "machine-left-end", "adder", "'carry'", "'1'"):
        last(machine, "11")
    assert contents(last(replace(machine, tape="two-way"), "11")) == "100"


# --- the normal form -------------------------------------------------------------------------------------------------


def corresponds(machine: TuringMachine, word: str, steps: int) -> None:
    """The configurations of the normal form that stand for the machine's are the machine's, in order, none missing."""
    normal = normalise(machine)
    seen, now = [], normal.begin(word)
    for _ in range(steps):
        assert now.head >= 0
        if normal.stands_for(now):
            seen.append(normal.view(now))
        following = normal.machine.step(now)
        if following is None:
            assert seen == list(machine.run(word))
            assert (now.state in normal.machine.accept) == (seen[-1].state in machine.accept)
            return
        assert abs(following.head - now.head) == 1
        now = following
    assert seen == list(islice(machine.run(word), len(seen)))
    assert len(seen) >= steps // 3 - 2 * len(word) - 3


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_in_normal_form(name: str):
    for word in SAMPLES[name][0]:
        corresponds(TuringMachine.load(name), word, 500)


@given(machines(), st.data())
def test_random_machines_in_normal_form(machine: TuringMachine, data: st.DataObject):
    word = data.draw(st.text(machine.inputs, max_size=4))
    try:
        corresponds(machine, word, 60)
    except MachineError as error:
        assert machine.tape == "one-way"
        assert "moves left of cell 0" in str(error)


def test_states_may_have_the_names_of_the_form():
    text = "start: q_init\naccept: q_back\ninput: 1\nTAPE\nq_init 1 -> q_read 1 R\nq_read 1 -> q_init _ S\n"
    for tape in ("", "tape: one-way"):
        machine = TuringMachine.parse(text.replace("TAPE", tape))
        for word in ("", "1", "11", "111"):
            corresponds(machine, word, 60)


@pytest.mark.parametrize("state", ["1", "_"])
def test_a_state_may_have_the_name_of_a_symbol(state: str):
    text = f"start: {state}\naccept: done\ninput: 1\n{state} 1 -> {state} _ R\n{state} _ -> done 1 L\n"
    for word in ("", "1", "11"):
        corresponds(TuringMachine.parse(text), word, 60)


def broken(change: dict[tuple[str, str], Transition | None]) -> NormalForm:
    normal = normalise(TuringMachine.load("increment"))
    table = {key: value for key, value in (dict(normal.machine.transitions) | change).items() if value}
    return replace(normal, machine=replace(normal.machine, transitions=table))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({("right up", "0"): Transition("right up", "0", 0)}, "the head stands still in state 'right up' on '0'"),
        ({("right up", "0"): Transition("q_init", "0", 1)}, "goes back to the first state"),
        ({("q_init", "_"): Transition(READ, "_", 1)}, "the first step does not mark cell 0"),
        ({("q_init", "_"): Transition(READ, MARK, -1)}, "the first step does not mark cell 0"),
        ({(READ, "0"): Transition(READ, "1", 1)}, "the reading pass stops or writes on '0'"),
        (
            {("carry up", MARK): Transition("carry up", MARK, -1)},
            "in state 'carry up' the head may move left of cell 0",
        ),
        ({("carry up", "0"): None}, "state 'carry up' has no transition on '0'"),
    ],
)
def test_what_is_not_in_normal_form_is_refused(change: dict, message: str):
    with pytest.raises(MachineError, match=f"not in normal form: .*{re.escape(message)}"):
        broken(change)


def test_a_normal_form_needs_plain_names():
    machine = TuringMachine.load("increment")
    table = {
        **machine.transitions,
        ("right", "0"): Transition("to left", "0", 1),
        ("to left", "0"): Transition("done", "0", 1),
    }
    with refusing(MachineError, "machine-name", "'to left'"):
        normalise(replace(machine, transitions=table))
    with refusing(MachineError, "machine-name", "'10'"):
        normalise(replace(machine, symbols=(*machine.symbols, "10")))
