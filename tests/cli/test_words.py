"""The words of a command line, before a parser reads them."""

import pytest

from asterism.cli.errors import UsageError
from asterism.cli.words import is_flag, positional, positional_first, refuse_renamed, switched

SWITCHES = ("--dense_exchange", "--model.lm_head_bias")


@pytest.mark.parametrize(
    ("words", "read"),
    [
        ("", ""),
        ("--dense-exchange", "--dense_exchange=true"),
        ("--dense_exchange runs/x", "--dense_exchange=true runs/x"),
        ("--dense-exchange TRUE runs/x", "--dense_exchange=true runs/x"),
        ("--dense-exchange=False", "--dense_exchange=false"),
        ("--no-dense-exchange true", "--dense_exchange=false true"),
        ("--no_dense_exchange", "--dense_exchange=false"),
        ("--no-model.lm-head-bias --model.no_lm_head_bias", "--model.lm_head_bias=false --model.lm_head_bias=false"),
        ("--no-repeat-ngram-size 3", "--no-repeat-ngram-size 3"),
        ("--no-dense-exchange=true", "--no-dense-exchange=true"),
    ],
)
def test_switches(words: str, read: str):
    assert switched(words.split(), SWITCHES) == read.split()


@pytest.mark.parametrize("words", ["--dense-exchange yes", "--dense-exchange=", "--dense-exchange=maybe"])
def test_switches_are_true_or_false(words: str):
    with pytest.raises(UsageError, match="write --dense-exchange or --no-dense-exchange"):
        switched(words.split(), SWITCHES)


def test_flags_and_values_are_told_apart():
    assert [is_flag(word) for word in ("--x", "-n", "-", "-1", "-.5", "x", "")] == [True, True, *[False] * 5]
    assert positional(["--seed", "-1", "a", "--x=1", "b", "--json", "c"], ["--json"]) == (
        ["a", "b", "c"],
        ["--seed", "-1", "--x=1", "--json"],
    )
    assert positional(["--seed"], []) == ([], ["--seed"])


@pytest.mark.parametrize(
    ("words", "read"),
    [
        ("--label 1 2 RUN", "RUN --label 1 2"),
        ("--label 1 2 RUN --seed 3", "RUN --label 1 2 --seed 3"),
        ("RUN --label 1 2", "RUN --label 1 2"),
        ("--label 1 2 --seed 3 RUN", "--label 1 2 --seed 3 RUN"),
        ("--json RUN --label 1 2", "--json RUN --label 1 2"),
        ("--label RUN", "--label RUN"),
        ("--globals RUN", "RUN --globals"),
        ("--label 1 2 --globals 0 RUN", "RUN --label 1 2 --globals 0"),
        ("--label=1 RUN", "--label=1 RUN"),
        ("", ""),
    ],
)
def test_one_positional_argument_behind_several_values(words: str, read: str):
    values = {"--label": "+", "--globals": "*", "--seed": None, "--json": 0}
    assert positional_first(words.split(), values) == read.split()


def test_renamed_flags_name_the_new_one():
    with pytest.raises(UsageError, match="--old: now --new"):
        refuse_renamed(["a", "--old=3"], {"--old": "now --new"})
    refuse_renamed(["--older", "--new"], {"--old": "now --new"})
