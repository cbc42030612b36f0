"""`asterism show MODEL`: the attention that a model has by itself, without its weights."""

import json
from pathlib import Path

import pytest
from command_line import Run, refuses
from transformers import (
    Gemma3nTextConfig,
    Gemma3TextConfig,
    GptOssConfig,
    LlamaConfig,
    MiniMaxConfig,
    MistralConfig,
    Qwen3NextConfig,
    RecurrentGemmaConfig,
)

from asterism.models import AsterismConfig
from asterism.patterns import parse

pytestmark = pytest.mark.model

SIZES = {
    **{"vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 6, "head_dim": 8},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64},
}


def saved(config, folder: Path) -> Path:
    config.save_pretrained(folder)
    return folder


def shown(run: Run, folder: Path | str, n: int = 32) -> dict:
    return json.loads(run("show", folder, "-n", str(n), "--json").out)


def test_layer_by_layer(run: Run, tmp_path: Path):
    folder = saved(Gemma3TextConfig(**SIZES, sliding_window=5, attn_logit_softcapping=30.0), tmp_path)
    assert run("show", folder, "-n", "32").out.splitlines() == [
        "Gemma3ForCausalLM (gemma3_text), 6 layers, 32 tokens",
        "",
        "pattern         a query reads          pairs of a head  of causal()  layers",
        "window(left=4)  itself and 4 before                150       28.41%  0 to 4",
        "causal()        itself and all before              528      100.00%  5",
        "",
        "heads    4 heads, 2 of keys and values, groups of 2",
        "soft-cap scores at most 30",
        "dense    1 of 6 layers",
        "pairs    40.34% of dense attention",
        "cache    64 bytes for each token kept in a layer (2 bytes a number)",
        "         3.33 kB after 32 tokens; dense attention keeps 12.3 kB",
    ]
    document = shown(run, folder)
    assert [layer["left"] for layer in document["layers"]] == [4] * 5 + [None]
    assert [layer["cache_tokens"] for layer in document["layers"]] == [4] * 5 + [32]
    assert [layer["pairs"] for layer in document["layers"]] == [150] * 5 + [528]
    assert {layer["softcap"] for layer in document["layers"]} == {30.0}


def test_learned_sinks(run: Run, tmp_path: Path):
    document = shown(run, saved(GptOssConfig(**SIZES, num_local_experts=2, sliding_window=5), tmp_path))
    assert all(layer["learned_sinks"] for layer in document["layers"])
    assert [layer["is_dense"] for layer in document["layers"]] == [False, True] * 3


def test_layers_that_are_no_attention_are_named(run: Run, tmp_path: Path):
    folder = saved(Qwen3NextConfig(**SIZES, num_experts=2), tmp_path)
    document = shown(run, folder)
    assert [layer["pattern"] for layer in document["layers"]] == [None, None, None, "causal()", None, None]
    assert "linear_attention" in document["layers"][0]["otherwise"]
    assert "other than attention" in document["remarks"][0]
    assert "linear_attention" in run("show", folder, "-n", "32").out


@pytest.mark.parametrize(
    ("config", "layer", "pattern", "bytes_of_token"),
    [
        (MiniMaxConfig(**SIZES, num_local_experts=2), 0, "causal()", 64),
        (RecurrentGemmaConfig(**SIZES, attention_window_size=8), 2, "window(left=7)", 64),
    ],
)
def test_models_with_other_mixers_hide_the_future_all_the_same(
    run: Run, tmp_path: Path, config, layer: int, pattern: str, bytes_of_token: int
):
    folder = saved(config, tmp_path)
    told = shown(run, folder)["layers"][layer]
    assert parse(told["pattern"]) == parse(pattern)
    assert told["cache_bytes_per_token"] == bytes_of_token
    assert "reads the future" not in run("show", folder, "-n", "32").out


def test_a_gemma_that_reads_the_future(run: Run, tmp_path: Path):
    config = Gemma3TextConfig(**SIZES, sliding_window=8, use_bidirectional_attention=True)
    document = shown(run, saved(config, tmp_path))
    assert [layer["left"] for layer in document["layers"]] == [4] * 5 + [
        None
    ]  # by its masks: distances below 8 / 2 + 1
    assert [layer["right"] for layer in document["layers"]] == [4] * 5 + [None]
    assert {layer["cache_bytes_per_token"] for layer in document["layers"]} == {None}
    assert "use_bidirectional_attention" in document["remarks"][0]


def test_a_layer_that_reads_the_keys_of_another_one_keeps_none(run: Run, tmp_path: Path):
    types = ["sliding_attention", "full_attention"] * 3
    config = Gemma3nTextConfig(**SIZES, layer_types=types, sliding_window=5, num_kv_shared_layers=2)
    folder = saved(config, tmp_path)
    assert [layer["cache_bytes_per_token"] for layer in shown(run, folder)["layers"]] == [64] * 4 + [0] * 2
    assert "(2 bytes a number), of 4 layers" in run("show", folder, "-n", "32").out


@pytest.mark.parametrize(
    ("native_window", "left"),
    [("replace", [9, None]), ("intersect", [6, 6])],
)
def test_a_saved_pattern_is_shown(run: Run, tmp_path: Path, native_window: str, left: list):
    config = MistralConfig(**SIZES | {"num_hidden_layers": 2}, sliding_window=7)
    config.asterism_pattern = ["window(left=9)", "causal()"]
    config.asterism_native_window = native_window
    document = shown(run, saved(config, tmp_path))
    assert [layer["left"] for layer in document["layers"]] == left
    assert "asterism_pattern" in document["remarks"][0]


def test_our_own_models(run: Run, tmp_path: Path):
    mixers = "interleave(window(left=3), causal())"
    config = AsterismConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, mixers=mixers)
    document = shown(run, saved(config, tmp_path))
    assert document["model"] == "AsterismForCausalLM"
    assert [layer["left"] for layer in document["layers"]] == [3, None]
    assert [layer["cache_bytes_per_token"] for layer in document["layers"]] == [2 * 2 * 32] * 2


@pytest.mark.parametrize("name", ["mistral", "MistralConfig", "MistralForCausalLM"])
def test_names_of_classes(run: Run, name: str):
    layers = shown(run, name)["layers"]
    assert len(layers) == 32 and {layer["left"] for layer in layers} == {4095}


def test_what_is_no_model_is_one_line(run: Run, tmp_path: Path):
    refuses(run("show", tmp_path, "-n", "8"), 4, "neither config.json nor run.json")
    refuses(run("show", "no/where", "-n", "8"), 4, "no/where is not the folder")
    refuses(run("show", "mistrial", "-n", "8"), 2, "unknown pattern 'mistrial'")
    refuses(run("show", "mistral", "-n", "8", "--head", "1"), 2, "--head is for a pattern")
    refuses(run("show", "T5Config", "-n", "8"), 2, "one stack of self-attention")
    refuses(run("show", "musicgen", "-n", "8"), 2, "several models of text")
    refuses(run("show", "lxmert", "-n", "8"), 2, "attention")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"layer_types": ["sliding_attention"]}, "number of `layer_types`"),
        ({"sliding_window": 0, "layer_types": ["sliding_attention"] * 6}, "sliding_window"),
        ({"num_attention_heads": "four"}, "cannot be read"),
        ({"model_type": "nonesuch"}, "cannot be read.*nonesuch"),
        ({"num_hidden_layers": 10**9}, "memory"),
    ],
)
def test_configurations_that_contradict_themselves(run: Run, tmp_path: Path, fields: dict, message: str):
    saved(Gemma3TextConfig(**SIZES, sliding_window=5), tmp_path)
    path = tmp_path / "config.json"
    document = json.loads(path.read_text()) | fields
    if "num_hidden_layers" in fields:
        document.pop("layer_types")
        document = LlamaConfig(**SIZES).to_dict() | fields
    path.write_text(json.dumps(document))
    result = run("show", tmp_path, "-n", "8")
    refuses(result, result.code, message)
    assert result.code in (2, 4)


def test_an_index_branch_is_named_and_its_keys_are_counted(run, tmp_path):
    shape = dict(hidden_size=32, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2)
    mixers = "interleave(window(left=7), window(left=7) | selected(block=16, topk=2, first=0) & causal())"
    for name, more in (("plain", {}), ("indexed", {"index_dim": 8})):
        AsterismConfig(mixers=mixers, position_type="rotary", **shape, **more).save_pretrained(tmp_path / name)
    plain, indexed = (run("show", tmp_path / name, "-n", "64").out for name in ("plain", "indexed"))
    assert "an index branch of 8 features for each key head" in indexed and "index branch" not in plain
    assert "cache    64 bytes for each token kept in a layer" in plain
    assert "64 to 96 bytes for each token kept in a layer" in indexed  # two key heads of 8 numbers of 2 bytes more
