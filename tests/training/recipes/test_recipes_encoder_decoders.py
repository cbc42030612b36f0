"""Recipes of encoder-decoders: what they cost, that their twins train, and what they are fine-tuned with."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from slow_cases import slow_except
from torch.utils.flop_counter import FlopCounterMode

from asterism.cli.main import main
from asterism.errors import ConfigurationError
from asterism.models.asterism.published import PUBLISHED, published
from asterism.shape import ModelConfig
from asterism.training import RunConfig, recipe, train
from asterism.training.ask.estimate import estimate
from asterism.training.recipes import FINE_TUNING, RECIPES, fine_tuning
from asterism.training.settings.configuration import FineTuneConfig
from asterism.training.settings.registry import OBJECTIVES, TASKS

TWINS = [name for name in FINE_TUNING if name.endswith("-tiny")]
LARGE = [name for name in FINE_TUNING if not name.endswith("-tiny")]


def test_every_published_encoder_decoder_says_what_it_is_fine_tuned_with() -> None:
    with_decoder = {name for name in PUBLISHED if published(name).is_encoder_decoder}
    assert set(FINE_TUNING) == with_decoder and with_decoder <= set(RECIPES)
    for name in FINE_TUNING:
        config = FineTuneConfig(model="a", data="b", **fine_tuning(name))
        assert config.task in TASKS.names("finetune") and config.label_smoothing == 0.1


def test_the_published_lengths() -> None:
    for name in ("bigbird-roberta-base-summarization", "bigbird-pegasus-large"):
        settings = fine_tuning(name)
        assert (settings["length"], settings["target_length"], settings["num_beams"]) == (3072, 256, 5)
        assert (settings["batch_size"], settings["warmup_steps"], settings["schedule"]) == (128, 10_000, "inverse_sqrt")
        config = published(name)
        assert config.max_position_embeddings >= 3072 and config.decoder_max_position_embeddings >= 256
    assert fine_tuning("bigbird-pegasus-large")["optimizer"] == "adafactor"
    assert published("led-base").max_position_embeddings == fine_tuning("led-base")["length"] == 16_384
    peak = fine_tuning("transformer-base")["learning_rate"]
    assert peak == pytest.approx(512**-0.5 * 4000**-0.5, rel=0.01)


def test_a_recipe_without_settings_names_the_nearest() -> None:
    with pytest.raises(ConfigurationError, match="has no settings for fine-tuning. Did you mean 'led-tiny'"):
        fine_tuning("led-tny")


@pytest.mark.model
@pytest.mark.parametrize("name", LARGE)
def test_the_tokenizer_fills_the_published_vocabulary(name: str) -> None:
    _, vocabulary, shape = OBJECTIVES.load(recipe(name).objective).foundations(recipe(name))
    assert vocabulary.size == shape.vocab_size == published(name).vocab_size


@pytest.mark.model
def test_a_dry_run_counts_both_stacks() -> None:
    model = ModelConfig(
        mixers="window(left=7, right=8)",
        decoder_mixers="causal()",
        hidden_size=32,
        num_hidden_layers=3,
        num_decoder_layers=2,
        num_attention_heads=2,
        initializer_gain=0.35,
        position_type="rotary",
    )
    settings = {"context": 64, "target_length": 16, "batch_size": 4, "tokenizer": "bpe:300", "dtype": "float32"}
    config = RunConfig(model=model, objective="gap_sentences", **settings)
    costs = estimate(config)
    objective = OBJECTIVES.load("gap_sentences")
    network = objective.model_class(config)(objective.foundations(config)[2])
    assert costs.parameters == sum(parameter.numel() for parameter in network.parameters())
    with FlopCounterMode(display=False) as counter:
        network(**objective.blank_batch(config, 4)).loss.backward()
    counts = counter.get_flop_counts()["Global"].items()
    linear = sum(count for name, count in counts if "mm" in str(name) and "bmm" not in str(name))
    assert costs.flops_per_step - costs.mixing_flops_per_step == linear
    # Keys of 64 queries of the source less the corners, of 16 of the target, and of these in the source.
    pairs = 3 * (64 * 16 - 7 * 8 // 2 - 8 * 9 // 2) + 2 * (16 * 17 // 2) + 2 * 16 * 64
    assert costs.mixing_flops_per_step == 14 * pairs * 32 * 4
    tied = replace(config, model=replace(model, num_decoder_layers=None, tie_encoder_decoder=True))
    apart = replace(config, model=replace(model, num_decoder_layers=None))
    assert estimate(tied).activation_memory == estimate(apart).activation_memory
    assert estimate(tied).parameters < estimate(apart).parameters
    recomputed = estimate(replace(config, gradient_checkpointing=True))
    assert recomputed.activation_memory < costs.activation_memory
    if not torch.accelerator.is_available():
        assert costs.seconds_per_step is not None and recomputed.seconds_per_step > costs.seconds_per_step > 0


@pytest.fixture(scope="module")
def prose(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "prose.jsonl"
    draw = random.Random(0)
    names, places = ("Ann", "Ben", "Cid", "Dot"), ("mill", "barn", "tower", "river")
    said = [" ".join(f"{draw.choice(names)} is at the {draw.choice(places)}." for _ in range(150)) for _ in range(80)]
    path.write_text("".join(json.dumps({"text": one}) + "\n" for one in said))
    return path


@pytest.mark.model
@pytest.mark.parametrize("name", slow_except(TWINS, "transformer-tiny"))
def test_a_twin_takes_a_step_and_is_fine_tuned(name: str, prose: Path, tmp_path: Path) -> None:
    """As the recipe says, but for the data, and as short as can be."""
    config = replace(recipe(name), data=str(prose), tokenizer="bpe:300", steps=1, minutes=None, evaluation_bytes=2_000)
    report = train(config, tmp_path / "run", progress=False)
    assert report.steps == 1 and 0 < report.validation_target_loss < 20
    one, other = ("document", "summary") if FINE_TUNING[name]["task"] == "summarize" else ("source", "target")
    rows = [{one: f"{person} is here.", other: person} for person in ("Ann", "Ben", "Cid", "Dot") for _ in range(5)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["finetune", "--recipe", name, "--model", str(tmp_path / "run"), "--data", str(tmp_path / "rows.jsonl")]
    words += ["--steps", "1", "--target-length", "4", "--validation-fraction", "0.1"]
    assert main([*words, "--folder", str(tmp_path / "tuned")]) == 0
    kept = json.loads((tmp_path / "tuned" / "run.json").read_text())["config"]
    settings = fine_tuning(name) | {"steps": 1, "target_length": 4}
    assert {field: kept[field] for field in settings} == settings
