"""asterism bench --calibrate: what it measures, keeps and says."""

import json

import pytest
from priced import RATES, start_again, taken, the_file

from asterism.bench.calibration import break_even
from asterism.cli.main import main
from asterism.compiler.cost import Curve
from asterism.kernels.choice import measure
from asterism.kernels.cpu import instruction_set

pytest_plugins = ("priced",)
pytestmark = pytest.mark.usefixtures("unmeasured")


@pytest.fixture
def bench(capsys, priced, counted):
    def call(*words):
        code = main(["bench", *words])
        return code, *capsys.readouterr()

    return call


def test_the_verb_renews_and_keeps_and_says_what_it_chose(bench, priced, monkeypatch):
    assert taken("causal()", 8192) == "causal"
    priced.tiles_are_cheap = True
    code, out, err = bench("--calibrate")
    assert code == 0 and f"stored in {the_file()}" in err
    assert taken("causal()", 8192) == "cpu"
    start_again(monkeypatch)
    assert taken("causal()", 8192) == "cpu" and json.loads(the_file().read_text())["matrix_rates"] == RATES
    lines = {line[:33].strip(): line[33:].split() for line in out.splitlines()}
    assert lines["auto for causal() at 1024 tokens"] == lines["auto for dense() at 8192 tokens"] == ["cpu"] * 4
    assert lines["tiles beat a mask at 1024 tokens"] == ["always"] * 4
    assert f"float32 3, bfloat16 5; CPU kernel: {instruction_set()}, built on this machine" in out


def test_the_record_of_the_verb(bench, priced, monkeypatch, tmp_path):
    """Also where what is kept would be ignored: who asks for it sees what was measured."""
    monkeypatch.setenv("ASTERISM_CALIBRATE", "0")
    code, out, _ = bench("--calibrate", "--json", "--output", str(tmp_path / "record.json"))
    record = json.loads(out)
    assert code == 0 and record == json.loads((tmp_path / "record.json").read_text())
    assert record["kept"] == str(the_file()) and record["matrix_rates"] == RATES
    assert [(one["dtype"], one["direction"]) for one in record["choices"]] == [
        (dtype, direction) for dtype in ("float32", "bfloat16") for direction in ("forward", "training")
    ]
    for one in record["choices"]:
        assert set(one["auto"].values()) == {"dense"} and set(one["ways"]) == set(measure.WAYS)
        assert one["ways"]["cpu"] == {"launch_nanoseconds": 40, "pair_nanoseconds": 0.04}


def test_what_cannot_be_kept_is_shown_and_a_failure(bench, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ASTERISM_CACHE", str(tmp_path / "file" / "cache"))
    code, out, err = bench("--calibrate")
    assert code == 1 and "auto for causal()" in out
    (line,) = [line for line in err.splitlines() if line.startswith("asterism: error: ")]
    assert "cannot be stored" in line and str(tmp_path / "file") in line and "ASTERISM_CACHE" in line


@pytest.mark.parametrize(
    ("words", "named"),
    [(("causal()",), "patterns"), (("-n", "64"), "--lengths"), (("--no-peers",), "--no-peers")],
)
def test_it_does_only_that(bench, priced, words, named):
    code, out, err = bench("--calibrate", *words)
    assert (code, out) == (2, "") and f"leave out {named}\n" in err and not priced.asked


def test_the_density_at_which_tiles_and_dense_attention_break_even():
    """By hand: 40 nanoseconds a pair in tiles, weighted 0.95, and 10 in dense attention."""
    prices = {"cpu": Curve(((0, 0),), 40), "dense full": Curve(((0, 0),), 10)}
    assert break_even(prices, "cpu", "dense full", 8192) == pytest.approx(10 / 40 / 0.95, abs=1e-4)
    assert break_even(prices | {"cpu": prices["dense full"]}, "cpu", "dense full", 8192) == 1
