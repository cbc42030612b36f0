"""What would need more memory than there is, is refused before it is built; what is kept stays within its bound."""

import gc
import json
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from refusals import refusing

from asterism import attend, clear_caches, compile_pattern, memory, patterns
from asterism.compiler import compile as compiling
from asterism.compiler import plan as plans
from asterism.compiler import slot_plan, tiles
from asterism.errors import CheckpointError, ConfigurationError, PatternError
from asterism.memo import KEPT, weight_of
from asterism.models import AsterismConfig, AsterismForCausalLM
from asterism.shape import ModelConfig
from asterism.training.objectives import footprint as footprint_module
from asterism.training.objectives.footprint import footprint, require_memory
from asterism.training.pipeline import resolve
from asterism.training.run.optimizer import moment_bytes, parameter_groups
from asterism.training.settings.configuration import FineTuneConfig, RunConfig
from asterism.training.settings.registry import OBJECTIVES

BERT = {"num_hidden_layers": 12, "hidden_size": 768, "intermediate_size": 3072, "vocab_size": 30_522}


def test_the_memory_of_this_machine_is_that_of_its_files():
    lines = Path("/proc/meminfo").read_text().splitlines()
    kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    assert 0 < memory.machine_memory() <= 1024 * (kilobytes["MemTotal"] + kilobytes["SwapTotal"])


def test_a_control_group_limits_it(monkeypatch):
    monkeypatch.setattr(memory, "_installed", lambda: (1000, 100))
    for limits, there in (([], 1100), ([2**63], 1100), ([500, 700], 600)):
        monkeypatch.setattr(memory, "_group_limits", lambda limits=limits: iter(limits))
        assert memory.machine_memory() == there


def test_what_does_not_fit_is_said_with_both_figures(monkeypatch):
    monkeypatch.setattr(memory, "machine_memory", lambda: 24_600_000_000)
    assert memory.shortage(24_600_000_000, "it") is None
    assert memory.shortage(2_730_000_000_000_000, "the batch") == (
        "the batch needs at least 2.73 PB of memory, and there are 24.6 GB"
    )


def test_a_published_model_is_not_overrated():
    assert 0.1 * 4 * 110e6 < memory.least_model_memory(BERT) < 4 * 110e6
    albert = {"num_hidden_layers": 12, "hidden_size": 4096, "intermediate_size": 16384, "embedding_size": 128}
    albert |= {"vocab_size": 30_000, "num_hidden_groups": 1}  # whose layers are one
    assert memory.least_model_memory(albert) < 1.3 * 4 * 223e6


@pytest.mark.parametrize(
    "changed",
    [{"num_hidden_layers": 10**7}, {"hidden_size": 10**7}, {"num_labels": 10**9}, {"vocab_size": 10**9}],
    ids=str,
)
def test_sizes_that_no_machine_holds_are_known_by_arithmetic(changed):
    assert memory.least_model_memory(BERT | changed) > 1e11
    assert memory.least_model_memory({"text_config": BERT | changed}) > 1e11


def test_any_document_can_be_asked_about():
    odd = {"hidden_size": "wide", "num_labels": None, "vocab_size": -1, "n_layer": 1.5, "d_model": {"a": [1]}}
    assert memory.least_model_memory(odd) == 0


# --- runs ------------------------------------------------------------------------------------------------------------


def has(monkeypatch: pytest.MonkeyPatch, there: int) -> None:
    """Let this machine have so many bytes."""
    for module in (memory, footprint_module):
        monkeypatch.setattr(module, "machine_memory", lambda: there)


@pytest.fixture
def usual(monkeypatch: pytest.MonkeyPatch) -> None:
    has(monkeypatch, 24_600_000_000)


def small_run(**changes: object) -> RunConfig:
    model = ModelConfig(num_hidden_layers=2, hidden_size=32, num_attention_heads=2)
    return replace(RunConfig(model=model, context=64, batch_size=4, dtype="float32"), **changes)


def with_model(**changes: object) -> RunConfig:
    return small_run(model=replace(small_run().model, **changes))


@pytest.mark.parametrize(
    "config",
    [
        with_model(num_hidden_layers=10**7),
        with_model(hidden_size=10**7),
        with_model(vocab_size=10**9),
        small_run(batch_size=10**9),
        small_run(batch_size=10**9, gradient_accumulation_steps=10**9),
        with_model(decoder_mixers="causal()", num_decoder_layers=10**7),
    ],
    ids=["layers", "hidden", "vocabulary", "batch", "slices", "decoder"],
)
def test_a_run_that_no_machine_holds_is_refused_before_data_are_read(usual, config, tmp_path):
    config = replace(config, data=str(tmp_path / "nothing"))
    if config.model.decoder_mixers is not None:
        config = replace(config, objective="span_corruption", tokenizer="bpe:300")
    with pytest.raises(
        ConfigurationError, match=r"needs at least .*B of memory, and there are 24.6 GB.*: make the mod"
    ):
        resolve(config)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"type_vocab_size": 10**9}, "type_vocab_size=1,000,000,000"),
        ({"vocab_size": 10**9}, "vocab_size=1,000,000,000"),
        ({"num_hidden_layers": 10**7}, "num_hidden_layers=10,000,000"),
    ],
)
def test_the_size_that_takes_most_is_named(usual, changed, named):
    with pytest.raises(ConfigurationError, match=f"24.6 GB, most of it for {named}: make the model"):
        resolve(with_model(**changed))


def test_a_size_of_a_part_is_not_named():
    assert memory.heaviest_size({"text_config": BERT, "n": 3}) == memory.heaviest_size({}) == "its sizes"


def test_what_a_run_needs_is_said_part_by_part(monkeypatch):
    config, objective = small_run(), OBJECTIVES.load("causal")
    shape = objective.foundations(config)[2]
    found = footprint(config, objective, shape)
    cases = ((found.memory, "note"), (found.memory - 1, "refusal"), (1000 * found.memory, "nothing"))
    for there, expected in cases:
        has(monkeypatch, there)
        if expected == "refusal":
            with pytest.raises(ConfigurationError, match=r"\(weights .* gradients .* moments .* activations .*\)"):
                require_memory(config, objective, shape)
        else:
            assert len(require_memory(config, objective, shape)) == (expected == "note")


@pytest.mark.parametrize("mixers", ["causal()", "interleave(window(left=7), causal(), fourier())"])
@pytest.mark.parametrize("layers", [1, 5])
def test_what_is_predicted_of_a_model_is_what_it_has(mixers, layers):
    config = with_model(num_hidden_layers=layers, mixers=mixers, tie_word_embeddings=True)
    config = replace(config, objective="mlm", optimizer="muon")
    objective = OBJECTIVES.load("mlm")
    shape = objective.foundations(config)[2]
    model = objective.model_class(config)(shape)
    found = footprint(config, objective, shape)
    assert found.parameters == model.num_parameters() == found.weights // 4
    assert found.moments == moment_bytes(parameter_groups(model, config))


@pytest.mark.parametrize("changed", [{"num_hidden_layers": 10**7}, {"num_labels": 10**9}, {"vocab_size": 10**10}])
@pytest.mark.parametrize("verb", ["finetune", "train"])
def test_a_model_folder_of_such_sizes_is_refused_at_once(usual, tmp_path, verb, changed):
    document = {"model_type": "bert", "architectures": ["BertModel"], **BERT, **changed}
    (tmp_path / "config.json").write_text(json.dumps(document))
    with pytest.raises((CheckpointError, ConfigurationError), match="needs at least .*B of memory, and there are"):
        if verb == "train":
            resolve(small_run(model=ModelConfig(), init_from=str(tmp_path)))
        else:
            resolve(FineTuneConfig(task="classify", model=str(tmp_path), data="none"))


@pytest.mark.parametrize("verb", ["finetune", "train"])
def test_more_labels_than_can_be_named_in_a_moment_are_refused(tmp_path, verb):
    document = {"model_type": "bert", "architectures": ["BertModel"], **BERT, "num_labels": 2**20 + 1, "hidden_size": 8}
    (tmp_path / "config.json").write_text(json.dumps(document))
    with refusing(CheckpointError, "too-many-labels", "1,048,577", "1,048,576"):
        if verb == "train":
            resolve(small_run(model=ModelConfig(), init_from=str(tmp_path)))
        else:
            resolve(FineTuneConfig(task="classify", model=str(tmp_path), data="none"))


def test_a_model_of_ten_million_layers_is_refused(usual):
    config = AsterismConfig(num_hidden_layers=10**7, hidden_size=8, num_attention_heads=1)
    with pytest.raises(ConfigurationError, match="a model of 10,000,000 layers needs at least 164 GB of memory"):
        AsterismForCausalLM(config)


# --- what is kept ----------------------------------------------------------------------------------------------------


def test_fresh_patterns_fill_no_memory(monkeypatch):
    """Plans, programs, masks, tables of a cache: together they stay within the budget, and can all be freed."""
    clear_caches()
    monkeypatch.setattr(KEPT, "_budget", 2**21)
    q = torch.randn(3, 1, 1, 400, 8, generator=torch.Generator().manual_seed(0))
    for number in range(40):
        edges = np.random.Generator(np.random.Philox(number)).integers(400, size=(2000, 2))
        for implementation in ("eager", "reference"):
            attend(*q, patterns.explicit(edges, 400), implementation=implementation)
        slot_plan(patterns.window(left=100 + number), 8).table(300, 200)
        heaviest = sorted(weight for _, weight in KEPT.results.values())[-4:]
        assert KEPT.weight <= max(KEPT.budget, sum(heaviest))
    kinds = {key[0].__name__ for key in KEPT.results}
    assert {"_compile", "_program", "_mask", "tabulate"} <= kinds
    clear_caches()
    assert not KEPT.results and KEPT.weight == 0


@pytest.mark.slow
def test_a_thousand_fresh_patterns_masks_and_lengths_fill_no_memory(monkeypatch):
    """Whatever is kept of them, weighed or not: what Python and NumPy hold stops to grow."""
    clear_caches()
    monkeypatch.setattr(KEPT, "_budget", 2**19)
    q = torch.randn(3, 1, 1, 64, 8, generator=torch.Generator().manual_seed(0))
    held = {}
    tracemalloc.start()
    try:
        for number in range(1000):
            x, tokens = q[:, :, :, : 30 + number % 30], 30 + number % 30
            drawn = np.random.Generator(np.random.Philox(number))
            fresh = patterns.explicit(drawn.integers(tokens, size=(60, 2)), tokens)
            mask = torch.from_numpy(drawn.random((1, tokens)) > 0.1)
            for implementation in ("eager", "reference"):
                attend(*x, fresh, implementation=implementation, key_mask=mask)
            slot_plan(patterns.window(left=number), 8).table(30, 20)
            if number in (300, 999):
                gc.collect()
                held[number], _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held[999] - held[300] < 3 * 2**20, "a result of each would be tens of megabytes"


def test_a_value_weighs_what_it_is_made_of():
    arrays = np.zeros(1000), torch.zeros(500)
    assert 10_000 <= weight_of(arrays) <= 10_500
    assert weight_of((arrays, arrays)) <= 10_700
    assert weight_of("x" * 10**6) >= 10**6
    pattern = patterns.explicit(np.tri(200, dtype=bool))
    plan = compile_pattern(pattern, 200)
    assert weight_of(plan) >= plan.bytes + len(pattern.text)
    assert weight_of(test_fresh_patterns_fill_no_memory) == 0


@pytest.mark.parametrize("text", ["dense()", "causal()"])
def test_a_plan_that_no_machine_holds_is_refused_before_tokens_are_ordered(usual, monkeypatch, text):
    monkeypatch.setattr(compiling, "_best_tile", None)
    with pytest.raises(PatternError, match=r"^a plan of about [\d,]+ pairs needs at least \d+ GB of memory, and there"):
        compile_pattern(text, 2**24)


def test_tiles_that_no_machine_holds_are_refused_before_they_are_found(monkeypatch):
    """Scattered keys: few pairs, in many tiles. What the first and last tokens read says nothing of the others."""
    monkeypatch.setattr(compiling, "_MANY_TILES", 2**8)
    monkeypatch.setattr(compiling.Tiling, "find", lambda *_: pytest.fail("tiles were looked for"))
    scattered = patterns.random_blocks(block=1, count=64)
    monkeypatch.setattr(memory, "machine_memory", lambda: 2**13)
    with pytest.raises(PatternError, match=r"^a plan of about [\d,]+ tiles needs at least .* kB of memory, and there"):
        compile_pattern(scattered, 5000)


def test_global_tokens_do_not_make_a_long_plan_look_dense(monkeypatch):
    monkeypatch.setattr(compiling, "_MANY_TILES", 1)
    pattern = patterns.window(left=8) | patterns.global_tokens((0, 700, -1))
    plan = compile_pattern(pattern, 2000, tile=16)
    monkeypatch.setattr(memory, "machine_memory", lambda: 2 * plan.bytes)
    clear_caches()
    again = compile_pattern(pattern, 2000, tile=16)
    assert again is not plan and again.tiles == plan.tiles


def test_the_memory_that_is_predicted_of_a_plan_is_what_making_it_takes(monkeypatch):
    """In small steps, so that what a step takes does not count: 60 bytes a tile were taken, and 16 predicted."""
    monkeypatch.setattr(tiles, "_CHUNK", 2**12)
    monkeypatch.setattr(plans, "_COUNTED", 2**12)
    compile_pattern("causal()", 2**17, tile=128)  # what is kept of tokens in their order is there
    clear_caches()
    tracemalloc.start()
    try:
        plan = compile_pattern("causal()", 2**17, tile=128)
        plan.describe()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    of_tokens = 24 * 2**17  # their order, of which long sequences have little beside their tiles
    assert plan.bytes < peak < 1.1 * compiling._BYTES_OF_TILE * plan.tiles + of_tokens
