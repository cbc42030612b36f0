"""What Asterism's models promise, by the checks of `asterism promises`; and that the checks can fail."""

import json

import pytest

from asterism.cli.main import main
from asterism.promises import PROMISES, SUBJECTS, PromiseOutcome
from asterism.quiet import quiet_transformers

MEMORY = "memory grows linearly"
OURS = [subject for subject in SUBJECTS if subject.is_ours]
PEERS = {subject.name: subject for subject in SUBJECTS if not subject.is_ours}

BROKEN = {
    "padding changes no real token": {"Hugging Face BigBird", "Hugging Face FNet", "Hugging Face causal BigBird"},
    "a causal model reads no future": {"Hugging Face causal BigBird"},
    "cached equals uncached": {"Hugging Face causal BigBird"},
    "training reads what evaluation reads": {"Hugging Face BigBird", "Hugging Face causal BigBird"},
    "a short input changes nothing after it": {"Hugging Face BigBird", "Hugging Face causal BigBird"},
    "no global generator moves": {"Hugging Face BigBird", "Hugging Face causal BigBird"},
    MEMORY: {"Hugging Face BigBird", "Hugging Face causal BigBird", "Hugging Face Longformer"},
}
"""What the README says of peers, as seen with the transformers of the constraints file."""


@pytest.fixture(autouse=True)
def _quiet():
    with quiet_transformers():
        yield


def _marked(promise):
    return pytest.param(promise, marks=pytest.mark.slow if promise == MEMORY else ())


@pytest.mark.parametrize("subject", OURS, ids=lambda subject: subject.name)
@pytest.mark.parametrize("promise", [_marked(promise) for promise in PROMISES])
def test_ours_keep_every_promise(subject, promise):
    outcome = PROMISES[promise](subject)
    applies = subject.is_causal or promise not in ("a causal model reads no future", "cached equals uncached")
    assert outcome.kept is (True if applies else None), outcome.seen


@pytest.mark.parametrize("name", list(PEERS))
@pytest.mark.parametrize("promise", [_marked(promise) for promise in PROMISES])
def test_peers_do_what_the_readme_says(name, promise):
    """So every check is seen to fail, and a repaired peer is noticed."""
    outcome = PROMISES[promise](PEERS[name])
    assert (outcome.kept is False) == (name in BROKEN[promise]), outcome.seen


def test_the_command_prints_every_outcome(monkeypatch, capsys):
    monkeypatch.setattr("asterism.promises.report.SUBJECTS", OURS[-1:])
    monkeypatch.delitem(PROMISES, MEMORY)
    assert main(["promises"]) == 0
    shown = capsys.readouterr().out
    assert all(promise in shown for promise in PROMISES) and shown.count("kept") == len(PROMISES)
    assert main(["promises", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {row["promise"] for row in rows} == set(PROMISES) and all(row["kept"] for row in rows)


def test_bench_knows_no_promises(capsys):
    assert main(["bench", "--promises"]) == 2
    assert capsys.readouterr().err == "asterism: error: unknown flag --promises. See --help.\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["causal()"], "the name of a class of transformers, such as MistralForCausalLM"),
        (["--plot", "times.png"], "unknown flag --plot. Did you mean '--paths'?"),
        (["--output", "record.txt"], "the file name must end in .json, got 'record.txt'"),
        (["--output", "missing/record.json"], "there is no folder 'missing' to write 'record.json' into"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_checked(words, message, capsys):
    assert main(["promises", *words]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.endswith(f"{message}\n")


def test_the_command_fails_when_one_of_ours_is_broken(monkeypatch, capsys, tmp_path):
    promise = "no global generator moves"
    monkeypatch.setattr("asterism.promises.report.SUBJECTS", [OURS[0], PEERS["Hugging Face BERT"]])
    monkeypatch.setattr("asterism.promises.report.PROMISES", {promise: lambda subject: PromiseOutcome(False, "moved")})
    assert main(["promises", "--output", str(tmp_path / "record.json")]) == 1
    out, err = capsys.readouterr()
    assert out.count("BROKEN") == 2
    assert err.splitlines()[-1] == f"asterism: error: broken promises of our models: {OURS[0].name}, {promise} (moved)"
    assert (tmp_path / "record.json").exists()
