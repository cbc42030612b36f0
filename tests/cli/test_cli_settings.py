"""Recipe, file and flags fill one configuration, and help explains all of it."""

import re
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest
from command_line import Run

from asterism import training
from asterism.cli import finetune as finetune_verb
from asterism.cli import train as train_verb
from asterism.cli.settings import settings_of
from asterism.cli.train import read_arguments
from asterism.shape import ModelConfig
from asterism.training import FineTuneConfig, RunConfig, recipe


@pytest.mark.parametrize("configuration", [RunConfig, FineTuneConfig])
def test_every_setting_says_what_it_means(run: Run, configuration: type):
    shown = " ".join(run(configuration.kind, "--help-all").out.split())
    for setting in fields(configuration):
        if setting.type is not ModelConfig:  # a table of its own, whose fields are flags
            assert " ".join(setting.metadata["help"].split()[:4]) in shown, setting.name


def test_flags_override_the_file_and_the_file_the_recipe(tmp_path: Path):
    file = tmp_path / "settings.yaml"
    file.write_text("recipe: sparse-transformer-cifar10\nsteps: 7\nseed: 5\nmodel: {dropout: 0.5}\n")
    for argv in (["--steps", "9", "--config", str(file)], [f"--config={file}", "--steps=9"]):
        _, config = read_arguments(argv)
        expected = recipe("sparse-transformer-cifar10")
        assert (config.recipe, config.steps, config.seed, config.model.dropout) == (expected.recipe, 9, 5, 0.5)
        assert config.model.position_shape == expected.model.position_shape
        assert config.learning_rate == expected.learning_rate


def test_the_objective_chooses_the_recipe_when_none_is_named():
    assert read_arguments([])[1].recipe == "bytes-small"
    arguments, config = read_arguments(["--objective", "mlm", "--next-sentence", "true"])
    assert (config.recipe, config.next_sentence, arguments.folder) == ("bigbird-tiny", True, "runs/bigbird-tiny")


def test_flags_may_have_dashes_or_underscores():
    dashed = read_arguments(["--batch-size", "8", "--model.hidden-size=32"])[1]
    assert dashed == read_arguments(["--batch_size", "8", "--model.hidden_size=32"])[1]
    assert (dashed.batch_size, dashed.model.hidden_size) == (8, 32)


@pytest.mark.parametrize("name", training.RECIPES)
def test_the_printed_configuration_reads_back(run: Run, tmp_path: Path, name: str):
    file = tmp_path / "settings.yaml"
    file.write_text(run("train", "--recipe", name, "--print-config").out)
    assert read_arguments(["--config", str(file)])[1] == recipe(name)
    assert read_arguments(["--recipe", name])[1] == recipe(name)


def test_steps_alone_lift_the_limit_of_time(tmp_path: Path):
    """`--steps 100000` is a run of so many steps, not of the ten minutes of the recipe."""
    assert recipe("bytes-small").minutes == 10
    assert read_arguments([])[1].minutes == 10
    assert read_arguments(["--steps", "100000"])[1].minutes is None
    assert read_arguments(["--steps=100000", "--minutes", "5"])[1].minutes == 5
    assert read_arguments(["--steps", str(RunConfig(recipe="").steps)])[1].minutes is None
    for text, minutes in (("steps: 9", None), ("steps: 9\nminutes: 3", 3), ("minutes: 3", 3), ("seed: 1", 10)):
        (tmp_path / "settings.yaml").write_text(text)
        assert read_arguments(["--config", str(tmp_path / "settings.yaml")])[1].minutes == minutes, text


@pytest.mark.parametrize("verb", [train_verb, finetune_verb])
def test_every_setting_belongs_to_one_group_of_the_help(verb: ModuleType):
    grouped = [name for group in verb.GROUPS for name in (*group.main, *group.more)]
    configuration = RunConfig if verb is train_verb else FineTuneConfig
    assert sorted(grouped) == sorted([*settings_of(configuration), "device"])


@pytest.mark.parametrize("verb", ["train", "finetune"])
@pytest.mark.parametrize("columns", [50, 80, 100])
def test_help_is_short_as_wide_as_the_terminal_and_tells_a_default_once(
    run: Run, monkeypatch: pytest.MonkeyPatch, verb: str, columns: int
):
    monkeypatch.setenv("COLUMNS", str(columns))
    short, whole = run(verb, "--help").out, run(verb, "--help-all").out
    assert 15 <= len(re.findall(r"^  --", short.partition("command:")[0], re.MULTILINE)) <= 16
    for text in (short, whole):
        body = text.partition("\n\nexample:")[0].splitlines()
        assert max(map(len, body)) <= columns
        rows = re.split(r"\n  (?=\S)", text)
        assert all(row.count("default: ") <= 1 for row in rows), text
        assert "null)" not in text and "(type:" not in text
    assert "--[no-]gradient-checkpointing" in whole and "--[no-]gradient-checkpointing" not in short


def test_help_shows_the_values_of_a_recipe_in_place_of_defaults(run: Run):
    shown = " ".join(run("train", "--recipe", "bigbird-itc-large", "--help-all").out.split())
    assert "--model.vocab-size N size of the vocabulary (default: 50,358)" in shown
    plain = " ".join(run("train", "--help-all").out.split())
    assert "size of the vocabulary (default: 256, the bytes; in a run, that of its tokenizer)" in plain


@pytest.mark.parametrize(
    "words", [["runs/x"], ["--folder", "runs/x"], ["--folder=runs/x"], ["runs/x", "--folder", "runs/x"]]
)
def test_the_run_is_positional_or_a_flag(words: list[str]):
    arguments, config = read_arguments([*words, "--seed", "3"])
    assert (arguments.folder, config.seed) == ("runs/x", 3)
    arguments, config = read_arguments(["--no-dense-exchange", "--seed", "3", *words, "--device", "cpu"])
    assert (arguments.folder, config.seed, arguments.device) == ("runs/x", 3, "cpu")
    asked = ["--task", "classify", "--model", "m", "--data", "d"]
    arguments, tuned = finetune_verb.read_arguments([*asked, "--from-scratch", *words])
    assert (arguments.folder, tuned.from_scratch) == ("runs/x", True)


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("--model.attention-bias", True),
        ("--model.attention-bias true", True),
        ("--model.attention-bias False", False),
        ("--model.attention_bias=false", False),
        ("--no-model.attention-bias", False),
        ("--model.no-attention-bias", False),
        ("--no-model.attention-bias --model.attention-bias", True),
    ],
)
def test_switches(tmp_path: Path, words: str, value: bool):
    assert read_arguments(words.split())[1].model.attention_bias is value
    (tmp_path / "settings.yaml").write_text("model: {attention_bias: false}\ngradient_checkpointing: true\n")
    config = read_arguments(["--config", str(tmp_path / "settings.yaml"), *words.split()])[1]
    assert (config.model.attention_bias, config.gradient_checkpointing) == (value, True)
