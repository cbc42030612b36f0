"""From nothing to a fine-tuned model: the shape of a recipe, new weights, tokens that need no text to learn from."""

import json

import numpy as np
import pytest
from small_encoders import write_lines

from asterism.errors import CheckpointError, ConfigurationError
from asterism.models import AsterismConfig
from asterism.patterns import in_full
from asterism.training import FineTuneConfig, recipe, train
from asterism.training.objectives.labelled import Labelled

pytestmark = pytest.mark.model


@pytest.fixture
def sequences(tmp_path):
    random = np.random.default_rng(0)
    rows = [{"sequence": "".join(random.choice(list("ACGT"), 30)), "label": "yes"} for _ in range(20)]
    return write_lines(tmp_path / "x.jsonl", [{**row, "label": ("yes", "no")[at % 2]} for at, row in enumerate(rows)])


def settings(data, **changes):
    given = {"task": "promoter", "model": "bigbird-tiny", "from_scratch": True, "tokenizer": "kmer:3", "length": 16}
    return FineTuneConfig(**{**given, "data": str(data), "batch_size": 4, "dtype": "float32", **changes})


def test_a_recipe_gives_the_shape(sequences):
    setup = Labelled.resolve(settings(sequences), None)
    wanted = recipe("bigbird-tiny").model
    assert isinstance(setup.shape, AsterismConfig) and setup.init_from is None
    assert in_full(setup.shape.mixers) == in_full(wanted.mixers)
    for name in ("hidden_size", "num_hidden_layers", "position_type"):
        assert getattr(setup.shape, name) == getattr(wanted, name)
    assert setup.shape.max_position_embeddings == 16 and setup.shape.vocab_size == len(setup.objective.tokenizer)
    assert setup.objective.batch(setup.corpus, 0)["input_ids"].shape == (4, 12)  # ten 3-mers between two special tokens


def test_a_recipe_of_density_gives_the_shape_for_values(tmp_path):
    for name, value in (("low", 3), ("high", 200)):
        for split in ("train", "val"):
            (tmp_path / "data" / split / name).mkdir(parents=True)
            for number in range(3):
                (tmp_path / "data" / split / name / f"{number}").write_bytes(bytes([value + number] * 8))
    config = settings(
        tmp_path / "data", task="classify", model="bytes-small", modality="bytes()", length=8, tokenizer=None
    )
    setup = Labelled.resolve(config, None)
    assert setup.shape.vocab_size == 256 and in_full(setup.shape.mixers) == in_full(recipe("bytes-small").model.mixers)
    assert setup.objective.batch(setup.corpus, 0)["input_ids"].shape == (4, 8)


@pytest.mark.slow
def test_a_run_from_a_recipe_goes_on_without_it(sequences, tmp_path):
    report = train(settings(sequences, steps=2), tmp_path / "run", progress=False)
    assert report.steps == 2
    assert json.loads((tmp_path / "run" / "run.json").read_text())["config"]["model"] == "bigbird-tiny"
    assert train(settings(sequences, steps=2), tmp_path / "run", progress=False, resume=True) == report


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"from_scratch": False}, ConfigurationError, r"bigbird-tiny is a recipe: pretrain it with `asterism train"),
        (
            {"tokenizer": None},
            ConfigurationError,
            r"the tokenizer of bigbird-tiny, bpe:4096, must first be learned from text",
        ),
        ({"model": "bigbird-tny"}, CheckpointError, r"bigbird-tny is not the folder of a model or a run"),
        ({"model": "bytes-small", "tokenizer": None}, ConfigurationError, r"bytes-small reads bytes, not tokens"),
        ({"model": "gpt-tiny", "tokenizer": "bases"}, ConfigurationError, r"gpt-tiny is a causal model"),
        ({"tokenizer": "kmer:0"}, ConfigurationError, r"tokenizer 'kmer:0'"),
    ],
)
def test_what_gives_no_start_is_refused_in_one_line(sequences, changes, error, message):
    if changes.get("model") == "bigbird-tny":
        changes = {**changes, "tokenizer": None}
    with pytest.raises(error, match=message) as refused:
        Labelled.resolve(settings(sequences, **changes), None)
    assert "\n" not in str(refused.value)


def test_a_tokenizer_is_for_recipes(sequences, tmp_path):
    with pytest.raises(ConfigurationError, match=r"tokenizer: .* has its own; 'bases' is for recipes"):
        Labelled.resolve(settings(sequences, model=str(tmp_path), tokenizer="bases"), None)
