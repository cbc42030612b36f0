"""asterism recipes: one line for each recipe, and true sizes."""

import json
from dataclasses import replace
from functools import partial

import pytest
from command_line import Run

from asterism.training.recipes import FINE_TUNING, RECIPES, recipe
from asterism.training.recipes.sizes import PARAMETERS


def test_every_recipe_has_a_line(run: Run):
    lines = run("recipes").out.splitlines()
    assert [line.split()[0].rstrip("*") for line in lines] == list(RECIPES) == list(PARAMETERS)
    assert {line.split()[0] for line in lines if "*" in line.split()[0]} == {f"{name}*" for name in FINE_TUNING}
    (enwik8,) = [line for line in lines if line.startswith("sparse-transformer-enwik8")]
    assert enwik8.split()[1:4] == ["95M", "Child", "2019"] and enwik8.endswith("Enwik8 in bytes, 0.99 bits per byte")


def test_as_json(run: Run):
    rows = {row["name"]: row for row in json.loads(run("recipes", "--json").out)["recipes"]}
    assert rows["bert-base"] == {
        "name": "bert-base",
        "description": "BERT: 1,000,000 steps of 256 pairs of 512 tokens",
        "parameters": 110_106_428,
        "paper": "Devlin 2019, appendix A.2",
        "fine_tuning": False,
    }
    assert rows["led-tiny"]["paper"] is None and rows["led-tiny"]["fine_tuning"]


@pytest.mark.model
@pytest.mark.parametrize("name", RECIPES)
def test_sizes_are_those_of_the_models(name: str):
    from asterism.training.ask.estimate import _foundations
    from asterism.training.objectives.footprint import _grown, _parameters

    config = replace(recipe(name), dtype="float32")
    objective, _, shape = _foundations(config, None)
    of_layers = partial(_parameters, config, objective, shape)
    assert _grown(of_layers, shape, shape.tie_encoder_decoder)[0][0] == PARAMETERS[name]
