"""asterism plan --devices: what moves between devices, in words and numbers."""

import json

import pytest

from asterism.cli.main import main
from asterism.compiler.devices import RowShape, Shards, communicate, refusal


@pytest.fixture
def run(capsys):
    def call(*argv: str) -> tuple[int, str, str]:
        code = main(list(argv))
        return (code, *capsys.readouterr())

    return call


GLOBALS = "window(left=4096) | global_tokens(positions=(0,), block=128)"


def test_bytes_and_messages_of_a_layer(run):
    """The figures are those of test_communication.py, which counts them row by row."""
    widths = ["--heads", "32", "--key-heads", "8", "--head-dim", "128"]
    code, out, _ = run("plan", GLOBALS, "-n", "1048576", "--devices", "64", *widths)
    lines = out.splitlines()
    assert code == 0 and lines[0] == GLOBALS
    assert lines[1] == "devices:   64, with at most 16,384 of 1,048,576 keys each"
    assert "128 that most ranks need go to all in two hops" in lines[2]
    assert "128 queries that read nearly everything ask every rank" in lines[2]
    assert "forward:   at most 19.4 MB come to a rank and 20.9 MB leave one" in out
    assert (
        "beside:    all-gather 4.2 GB, ring 4.2 GB, Ulysses impossible: 64 devices do not divide 32 heads" in lines[-1]
    )
    record = json.loads(run("plan", GLOBALS, "-n", "1048576", "--devices", "64", *widths, "--json")[1])
    (row,) = record["mixers"]
    assert row["plan"]["forward"]["most_received"] == 19_398_400
    assert row["plan"]["without_pattern"]["all-gather"] == 1048576 * 63 // 64 * 4096
    shares = row["plan"]["shares"][0]["collectives"].values()
    assert sum(moved["sent"] for moved in shares) == row["plan"]["forward"]["sent"]


def test_what_is_as_much_as_dense_is_said(run):
    out = run("plan", "causal()", "-n", "4096", "--devices", "4", "--dtype", "float32")[1]
    assert out.splitlines()[-1].startswith(
        "dense:     no way that uses this pattern moves less than bringing every key"
    )
    assert "dense:" not in run("plan", "window(left=8)", "-n", "4096", "--devices", "4")[1]


def test_refusal_names_bytes_and_what_to_do():
    shape, shards = RowShape(4, 4, 64, 64, 4), Shards.even(4096, 4)
    text = refusal(communicate("dense()", shards, shards, shape), shape)
    bytes_of_ulysses, bytes_of_all_keys = 1024 * 3 // 4 * (3 * 1024 + 1040), 3 * 1024 * 2048
    assert text == (
        f"'dense()' over 4 ranks would move {bytes_of_ulysses:,} bytes from or to one rank in each forward pass, where"
        f" bringing it every key takes {bytes_of_all_keys:,}: use a sparser pattern or longer sequences, or"
        " ask for it: dense_exchange=True (a run: --dense-exchange)"
    )


def test_more_intervals_than_a_plan_lists(run):
    """131,072 runs of summary cells, for each of 2,048 devices."""
    code, out, err = run("plan", "fixed(stride=128, summary=8)", "-n", "16777216", "--devices", "2048")
    assert (code, out) == (2, "")
    assert "may list 268,435,456 intervals, more than the limit of 8,388,608: use fewer ranks" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--devices 0", "--devices: must be a whole number from 1 to 4,096, got '0'"),
        ("--devices 4 --tile 64", "--tile is for the plan of one device"),
        ("--heads 4", "--heads sets the bytes of a token that moves between devices: give --devices, too"),
        ("--dtype float32", "--dtype sets the bytes of a token"),
        ("--devices 4 --heads 6 --key-heads 4", "--key-heads must divide the heads, got 4 and 6"),
        ("--devices 4 --dtype int8", "--dtype: invalid choice: 'int8'"),
    ],
)
def test_refusals(run, words, message):
    code, out, err = run("plan", "window(left=8)", "-n", "64", *words.split())
    assert (code, out) == (2, "")
    assert message in err and err.count("\n") == 1


def test_heads_are_those_of_the_pattern(run):
    text = "fixed(stride=16, summary=4, heads=4)"
    record = json.loads(run("plan", text, "-n", "4096", "--devices", "4", "--json")[1])
    assert record["mixers"][0]["plan"]["without_pattern"]["ring"] == 4096 * 3 // 4 * 4 * 2 * 64 * 2
    code, _, err = run("plan", text, "-n", "4096", "--devices", "4", "--heads", "6")
    assert code == 2 and "is for 4 heads, but the attention has 6" in err


def test_queries_of_another_sequence(run):
    text = "across(window(left=64, right=64), step=4)"
    record = json.loads(run("plan", text, "-n", "4096", "--devices", "4", "--json")[1])
    plan = record["mixers"][0]["plan"]
    assert (plan["queries"], plan["keys"]) == (1024, 4096)
    assert plan["shares"][0]["collectives"]["keys"]["most_received"] == (64 + 61) * 8 * 128 * 2
