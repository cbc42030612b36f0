"""Recipe, file and flags fill one configuration, and help explains all of it."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
from command_line import Run

from asterism import training
from asterism.cli.train import read_arguments
from asterism.shape import ModelConfig
from asterism.training import FineTuneConfig, RunConfig, recipe


@pytest.mark.parametrize("configuration", [RunConfig, FineTuneConfig])
def test_every_setting_says_what_it_means(run: Run, configuration: type):
    shown = " ".join(run(configuration.kind, "--help").out.split())
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


@pytest.mark.parametrize("verb", ["train", "finetune"])
def test_help_tells_a_default_once_and_switches_without_values(run: Run, verb: str):
    shown = " ".join(run(verb, "--help").out.split())
    assert re.search(r"--folder RUN where the run is written \(default: runs/\S+\) --", shown)
    assert re.search(r"by default [^()]*\(type: [^()]*\bnull\)", shown)
    assert not re.search(r"by default [^()]*\(type: [^()]*\bnull, default: null\)", shown)
    assert "--gradient-checkpointing [{true,false}] " in shown


def test_help_shows_what_a_recipe_sets_in_place_of_a_default(run: Run):
    shown = " ".join(run("train", "--recipe", "bigbird-itc-large", "--help").out.split())
    assert (
        "by default 256, the bytes, in a run as many as its tokenizer has (type: int | null, default: 50358)" in shown
    )
