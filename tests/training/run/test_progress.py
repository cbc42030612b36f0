"""What a person sees of a run while a step, or an evaluation, takes long."""

import sys
import threading
from dataclasses import replace

import pytest

from asterism.training import ModelConfig, RunConfig, evaluate, pipeline, train
from asterism.training.objectives.causal import CausalTokens
from asterism.training.run.progress import Bar, LogLines, Scoring, Silence, Status, clock, make_display, rate


class Awaited:
    """A stream that can be waited on until a text has been written to it."""

    def __init__(self, text):
        self.text, self.written, self.came = text, "", threading.Event()

    def write(self, text):
        self.written += text
        if self.text in self.written:
            self.came.set()

    def flush(self):
        pass

    def isatty(self):
        return False


class Recording(Silence):
    def __init__(self):
        self.moments = []

    def show(self, status):
        self.moments.append(status)


@pytest.fixture
def tiny(tmp_path):
    (tmp_path / "text").write_bytes(b"to be or not to be, that is the question\n" * 100)
    model = ModelConfig(mixers="window(left=7)", hidden_size=8, num_hidden_layers=1, num_attention_heads=1)
    return RunConfig(model=model, data=str(tmp_path / "text"), context=16, batch_size=4, steps=3, dtype="float32")


def test_what_takes_long_is_told_again_and_again(monkeypatch):
    monkeypatch.setattr(sys, "stderr", stream := Awaited(" so far\nreading: 0:"))
    display = LogLines(every=0.01)
    display.doing("reading")
    assert stream.came.wait(60)
    display.close()
    told = stream.written
    assert not display.heart.is_alive() and stream.written == told


def test_a_first_step_that_takes_long_is_told_of(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stderr", stream := Awaited("\nstep 1: 0:"))
    monkeypatch.setattr(pipeline, "make_display", lambda enabled: LogLines(every=0.01))
    batch = CausalTokens.batch

    def slow(self, corpus, step):
        assert stream.came.wait(60)
        return batch(self, corpus, step)

    monkeypatch.setattr(CausalTokens, "batch", slow)
    train(replace(tiny, steps=1), tmp_path / "run")


def test_the_first_step_has_a_line_however_seldom_figures_are_recorded(tiny, tmp_path, capsys):
    train(replace(tiny, steps=3, log_every=1000), tmp_path / "run")
    told = capsys.readouterr().err
    assert "step 1  loss" in told and "step 3  loss" in told


def test_evaluations_show_how_far_they_are(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline, "make_display", lambda enabled: display)
    display = Recording()
    train(replace(tiny, steps=2, evaluation_every=1), tmp_path / "run")
    seen = [one for one in display.moments if isinstance(one, Scoring)]
    on_the_way = [one for one in seen if one.of_run is not None]
    assert {one.fraction for one in on_the_way} == {0.5}
    at_the_end = seen[len(on_the_way) :]
    assert [one.done for one in at_the_end] == list(range(at_the_end[0].total)) and at_the_end[-1].fraction < 1
    display = Recording()
    evaluate(tmp_path / "run")
    assert [(one.done, one.total) for one in display.moments] == [(one.done, one.total) for one in at_the_end]


def test_an_evaluation_says_how_much_time_is_left():
    assert str(Scoring(0, 8, 0.0)) == "evaluating: 0 of 8 batches"
    assert str(Scoring(2, 8, 20.0)) == "evaluating: 2 of 8 batches  1:00 left"


def test_nothing_is_left_of_a_bar_on_which_nothing_was_shown(monkeypatch):
    bar = Bar()
    bar.doing("reading the data")
    assert bar.bar.live.transient
    bar.show(Scoring(1, 2, 1.0))
    assert not bar.bar.live.transient
    bar.close()


STATUS = Status(
    step=1200,
    fraction=0.5,
    seconds_left=75.0,
    loss=1.386,
    metric="bits/byte",
    training=2.0,
    validation=2.25,
    speed=12345.0,
    unit="bytes",
)


def test_progress_is_plain_lines_where_stderr_is_no_terminal(capsys):
    display = make_display(True)
    assert isinstance(display, LogLines) and isinstance(make_display(False), Silence)
    display.show(STATUS)
    display.show(STATUS)
    display.show(replace(STATUS, fraction=1.0))
    output = capsys.readouterr()
    line = "step 1,200  loss 1.386  bits/byte 2.000 (validation 2.250)  12,345 bytes/s  1:15 left"
    assert output.err.splitlines() == [f" 50.0%  {line}", f"100.0%  {line}"] and output.out == ""


def test_progress_is_a_bar_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    display = make_display(True)
    assert isinstance(display, Bar)
    display.show(STATUS)
    display.say("a line [with brackets]")
    display.close()
    assert "a line [with brackets]" in capsys.readouterr().err


def test_slow_runs_have_a_speed_too():
    speeds = (0.0, 0.0432, 0.4, 5.0, 9.96, 12_345.2)
    assert [rate(speed) for speed in speeds] == ["0", "0.043", "0.4", "5", "10", "12,345"]


def test_clock():
    assert [clock(seconds) for seconds in (0, 61.4, 3723)] == ["0:00", "1:01", "1:02:03"]


def test_training_prints_to_stderr_only(tiny, tmp_path, capsys):
    train(replace(tiny, steps=3), tmp_path / "run")
    output = capsys.readouterr()
    assert output.out == "" and "step 3" in output.err
