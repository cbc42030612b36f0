"""Experiments that train language models: sizes and costs that are said to be equal, findings, and plots."""

from collections.abc import Mapping

import pytest
import torch

from asterism.reproduce.costs import costs
from asterism.reproduce.experiment import SCALES, Experiment, Results
from asterism.reproduce.experiments import blocks_512, heads, mlm_length, persistent
from asterism.reproduce.page import write_plot
from asterism.reproduce.trials import Training
from asterism.search.budget import keys_read
from asterism.training.objectives.pretraining import Pretraining
from asterism.training.settings.configuration import RunConfig, config_from_dict
from asterism.training.settings.registry import OBJECTIVES

ALL = (persistent.PERSISTENT, blocks_512.BUILDING_BLOCKS, mlm_length.CONTEXT_MLM, heads.HEADS_COMBINED)
every_experiment = pytest.mark.parametrize("one", ALL, ids=lambda one: one.name)


def made_up(figures: Mapping[str, Mapping[str, float]], seeds: int = 2) -> Results:
    """Equal figures of every seed, by trial."""
    return Results(
        [{"trial": name, "seed": seed, "figures": found} for seed in range(seeds) for name, found in figures.items()]
    )


def verdicts(one: Experiment, figures: Mapping[str, Mapping[str, float]]) -> list[bool | None]:
    return [finding.holds for finding in one.findings(made_up(figures))]


def parameters(config: RunConfig) -> int:
    """Those of the model, built without memory for its weights, which also checks its configuration."""
    objective = OBJECTIVES.load(config.objective)
    assert issubclass(objective, Pretraining)
    _, _, shape = objective.foundations(config, None)
    with torch.device("meta"):
        return objective.model_class(config)(shape).num_parameters()


# --- trials -----------------------------------------------------------------------------------------------------------


@every_experiment
def test_trials_of_every_scale_are_runs_of_valid_models(one: Experiment):
    for scale in SCALES:
        if scale not in one.setting:
            continue
        trials = one.trials(scale)
        assert len({(trial.name, trial.seed) for trial in trials}) == len(trials)
        assert len({trial.seed for trial in trials}) == (1 if scale == "laptop" else 3)
        for trial in trials:
            assert isinstance(trial, Training)
            assert config_from_dict("train", trial.settings()).seed == trial.seed
            assert trial.config.minutes is None and trial.config.data is None
            if trial.seed == 0:
                assert parameters(trial.config) > 0


@every_experiment
def test_settings_say_the_steps_of_the_trials(one: Experiment):
    for scale, text in one.setting.items():
        trials = one.trials(scale)
        steps = {trial.config.steps for trial in trials if isinstance(trial, Training)}
        assert [f"{count:,} steps" for count in steps] == [f"{max(steps):,} steps"]
        assert f"{max(steps):,} steps" in text


@every_experiment
def test_published_sizes_are_those_of_the_paper(one: Experiment):
    published = one.published()
    assert published
    for config, count in published.values():
        if count is not None:
            assert parameters(config) == pytest.approx(count, rel=0.03)


# --- equal sizes, equal costs -----------------------------------------------------------------------------------------


def trained(one: Experiment) -> dict[str, RunConfig]:
    return {trial.name: trial.config for trial in one.trials("laptop") if isinstance(trial, Training)}


def test_vectors_and_feed_forward_layers_have_equal_parameters():
    sizes = {name: parameters(config) for name, config in trained(persistent.PERSISTENT).items()}
    assert sizes[persistent.FULL] == pytest.approx(sizes[persistent.FEED_FORWARD], rel=0.01)
    assert sizes[persistent.ADAPTIVE] == sizes[persistent.FULL] + persistent.LAYERS * persistent.HEADS


def test_all_ways_of_heads_cost_equally_many_keys():
    keys = [keys_read(mixers, heads.CONTEXT, heads.LAYERS) for mixers in heads.PATTERNS.values()]
    assert max(keys) < 1.03 * min(keys)
    assert f"{min(keys):.1f} to {max(keys):.1f} keys" in heads.HEADS_COMBINED.setting["laptop"]
    assert len({parameters(config) for config in trained(heads.HEADS_COMBINED).values()}) == 1


def test_blocks_hold_the_shares_of_a_row_that_the_base_model_has_at_4096():
    base = {"R": 3 * 64, "W": 3 * 64, "R+W": 6 * 64}
    for name, keys in base.items():
        here = keys_read(blocks_512.PATTERNS[name], blocks_512.CONTEXT, blocks_512.LAYERS)
        assert here / blocks_512.CONTEXT == pytest.approx(keys / 4096, rel=0.02)


def test_steps_of_all_models_of_512_and_4096_have_equal_tokens():
    configs = trained(mlm_length.CONTEXT_MLM)
    assert {config.batch_size * config.context for config in configs.values()} == {mlm_length.TOKENS}
    flops = {cost.name: cost.flops for cost in costs(mlm_length.CONTEXT_MLM, "laptop")}
    assert max(flops.values()) < 1.3 * min(flops.values())


@pytest.mark.parametrize(
    ("mixers", "keys"),
    [("dense()", 8), ("causal()", 4.5), ("interleave(dense(), window())", 4.5), (("dense()", "causal()"), 6.25)],
)
def test_keys_are_the_mean_over_queries_and_layers(mixers, keys):
    assert keys_read(mixers, 8, 2) == keys


# --- findings ---------------------------------------------------------------------------------------------------------


def in_bits(values: Mapping[str, float], **more: float) -> dict[str, dict[str, float]]:
    return {name: {"validation_bits_per_byte": bits, **more} for name, bits in values.items()}


def test_findings_of_persistent_vectors():
    def found(feed_forward: float, full: float, quarter: float, one: float, adaptive: float, span: float):
        bits = (feed_forward, full, quarter, one, adaptive)
        figures = in_bits(dict(zip(persistent.NAMES, bits, strict=True)))
        figures[persistent.ADAPTIVE]["mean span"] = span
        return verdicts(persistent.PERSISTENT, figures)

    assert found(2.50, 2.52, 2.6, 3.0, 2.53, 60) == [True] * 4
    assert found(2.50, 2.60, 2.6, 2.6, 2.53, 200) == [False] * 4
    assert found(2.50, 2.40, 2.3, 2.5, 2.60, 60) == [True, False, False, False]


def test_findings_of_building_blocks():
    def found(entropy: float, **right: float):
        figures = {
            name.replace("_", "+"): {
                "validation_masked_accuracy": share,
                "validation_masked_loss": 4.0,
                "unigram_entropy": entropy,
            }
            for name, share in right.items()
        }
        return verdicts(blocks_512.BUILDING_BLOCKS, figures)

    assert found(5.0, dense=0.64, R=0.60, W=0.58, R_W=0.62, R_W_G=0.63) == [True] * 5
    assert found(3.0, dense=0.61, R=0.57, W=0.63, R_W=0.62, R_W_G=0.60) == [False] * 5


def test_findings_of_context():
    def found(entropy: float, *bits: float):
        figures = in_bits(dict(zip(mlm_length.MODELS, bits, strict=True)), unigram_bits_per_byte=entropy)
        return verdicts(mlm_length.CONTEXT_MLM, figures)

    assert found(2.0, 1.846, 1.705, 1.678, 1.611) == [True] * 4
    assert found(1.5, 1.600, 1.705, 1.710, 1.611) == [False] * 4


def test_findings_of_heads():
    def found(*bits: float):
        return verdicts(heads.HEADS_COMBINED, in_bits(dict(zip(heads.PATTERNS, bits, strict=True))))

    assert found(2.40, 2.41, 2.42, 2.43, 2.44, 2.40, 2.60) == [True] * 4
    assert found(2.40, 2.60, 2.42, 2.43, 2.44, 2.60, 2.50) == [False] * 4


@every_experiment
def test_some_results_leave_the_rest_open(one: Experiment, tmp_path):
    first = one.trials("laptop")[0]
    assert isinstance(first, Training)
    row = {"trial": first.name, "seed": 0, "figures": {name: 1.0 for name in first.reported} | {"minutes": 1.0}}
    for rows in ([], [row]):
        assert [finding.holds for finding in one.findings(Results(rows))] == [None] * len(one.findings(Results(rows)))
        table = one.table(Results(rows))
        assert all(len(cells) == len(table.headings) for cells in table.rows)
    path = tmp_path / "plot.svg"
    write_plot(one, {"rows": [row]}, path)
    assert "<svg" in path.read_text()
