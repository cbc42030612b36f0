"""Models with windows, written as stock models: logits in transformers without Asterism, and all that is refused."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from refusals import refusing
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from test_import_folders import save_tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from asterism.cli.main import main
from asterism.errors import CheckpointError, ConfigurationError, PatternError
from asterism.models import AsterismConfig, AsterismForCausalLM, AsterismForMaskedLM, export_native, use_pattern
from asterism.models.exporting import check
from asterism.models.exporting.families import FAMILIES, TARGETS

pytestmark = pytest.mark.model

SIZES = {
    **{"vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "head_dim": 8},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0},
    **{"bos_token_id": 1, "eos_token_id": 2},
}
EVERY = "window(left=6)"
TURNS = "interleave(window(left=6), causal(), window(left=6))"
EXPERTS = {"num_local_experts": 2, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
ENCODER = {"cls_token_id": 1, "sep_token_id": 2, "num_key_value_heads": None, "head_dim": None}


@dataclass(frozen=True)
class Case:
    """What a stock family is written from: a class, fields, a pattern, and the class that comes of it."""

    source: str
    target: str
    pattern: str | None = TURNS
    to: str | None = None
    fields: Mapping[str, Any] | None = None


CASES = {
    "mistral": Case("LlamaForCausalLM", "MistralForCausalLM", EVERY),
    "ministral": Case("LlamaForCausalLM", "MinistralForCausalLM"),
    "cwm": Case("LlamaForCausalLM", "CwmForCausalLM", to="cwm"),
    "smollm3": Case("LlamaForCausalLM", "SmolLM3ForCausalLM", fields={"attention_bias": True, "mlp_bias": True}),
    "qwen2": Case("Qwen2ForCausalLM", "Qwen2ForCausalLM"),
    "qwen3": Case("Qwen3ForCausalLM", "Qwen3ForCausalLM"),
    "gemma2": Case("Gemma2ForCausalLM", "Gemma2ForCausalLM"),
    "gemma3_text": Case(
        "Gemma3ForCausalLM", "Gemma3ForCausalLM", None, fields={"sliding_window": 7, "sliding_window_pattern": 3}
    ),
    "olmo3": Case("Olmo2ForCausalLM", "Olmo3ForCausalLM"),
    "modernbert": Case(
        "ModernBertForMaskedLM", "ModernBertForMaskedLM", None, fields={"local_attention": 6, **ENCODER}
    ),
    "modernbert-decoder": Case(
        "ModernBertDecoderForCausalLM",
        "ModernBertDecoderForCausalLM",
        "native & window(left=2)",
        fields={"local_attention": 8, "layer_types": ["sliding_attention"] * 3, **ENCODER},
    ),
    "gpt_oss": Case(
        "GptOssForCausalLM", "GptOssForCausalLM", fields=EXPERTS | {"rope_parameters": {"rope_theta": 1e4}}
    ),
    "phi3": Case("Phi3ForCausalLM", "Phi3ForCausalLM", EVERY, fields={"num_key_value_heads": 4}),
    "starcoder2": Case("Starcoder2ForCausalLM", "Starcoder2ForCausalLM", EVERY),
    "mixtral": Case("MixtralForCausalLM", "MixtralForCausalLM", EVERY, fields=EXPERTS),
    "qwen3_moe": Case("Qwen3MoeForCausalLM", "Qwen3MoeForCausalLM", EVERY, fields=EXPERTS),
}
IN_ITS_OWN_PROCESS = ("mistral",)
"""The one that the default run checks in a new process, as users do, which takes seconds."""


def built(name: str, fields: Mapping[str, Any] | None = None) -> PreTrainedModel:
    kind = getattr(transformers, name)
    torch.manual_seed(0)
    known = {**SIZES, **(fields or {})}
    model = kind(kind.config_class(**{name: value for name, value in known.items() if value is not None}))
    with torch.no_grad():
        for parameter in model.parameters():  # so large that every token matters
            parameter.uniform_(-0.4, 0.4)
    return model


def saved(folder: Path, name: str = "LlamaForCausalLM", fields: Mapping[str, Any] | None = None) -> Path:
    built(name, fields).save_pretrained(folder)
    return folder


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check runs in this process."""

    def run(folder: Path, kind: str, inputs: dict[str, torch.Tensor], dtype: str):
        given, output = folder.parent / "inputs.safetensors", folder.parent / "output.safetensors"
        save_file(inputs, given, metadata={"class": kind, "dtype": dtype})
        check.alone.main(str(folder), str(given), str(output))
        with safe_open(output, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, {**file.metadata(), "imported": "[]"}  # noqa: SIM118

    monkeypatch.setattr(check, "_in_a_process", run)


def exported(case: Case, folder: Path) -> dict[str, Any]:
    """Export a case; the configuration that was written."""
    report = export_native(
        saved(folder / "model", case.source, case.fields), folder / "out", pattern=case.pattern, to=case.to
    )
    assert report.model == case.target
    assert report.checked.errors and max(report.checked.errors.values()) < 1e-5
    document = json.loads((folder / "out" / "config.json").read_text())
    assert not [name for name in document if "asterism" in name or name == "attn_implementation"]
    assert document["architectures"] == [case.target]
    return document


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_the_model(name: str, tmp_path: Path, here: None):
    document = exported(CASES[name], tmp_path)
    assert document["model_type"] == name


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", IN_ITS_OWN_PROCESS)
def test_without_asterism(name: str, tmp_path: Path):
    exported(CASES[name], tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(CASES.keys() - set(IN_ITS_OWN_PROCESS)))
def test_every_family_without_asterism(name: str, tmp_path: Path):
    exported(CASES[name], tmp_path)


def test_every_family_has_a_case():
    assert FAMILIES.keys() <= CASES.keys()
    assert {target for targets in TARGETS.values() for target in targets} <= FAMILIES.keys()


def test_a_wrong_width_is_noticed(tmp_path: Path, here: None, monkeypatch: pytest.MonkeyPatch):
    """The check is able to fail, and then nothing is written."""
    monkeypatch.setattr("asterism.models.exporting.families.Family.width_of", lambda self, left: left)
    with refusing(CheckpointError, "exported-logits-differ", "MistralForCausalLM"):
        export_native(saved(tmp_path / "model"), tmp_path / "out", pattern=EVERY)
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".out*"))


# --- weights, dtypes, tokenizers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [True, False])
def test_tensors_stay_as_they_are(tied: bool, tmp_path: Path, here: None):
    """bfloat16 weights in shards with tied embeddings keep their bits."""
    model = built("LlamaForCausalLM", {"tie_word_embeddings": tied}).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "model", max_shard_size="20kB")
    assert len(list((tmp_path / "model").glob("*.safetensors"))) > 1
    export_native(tmp_path / "model", tmp_path / "out", pattern=TURNS)
    before = {}
    for file in (tmp_path / "model").glob("*.safetensors"):
        before |= load_file(file)
    after = load_file(tmp_path / "out" / "model.safetensors")
    assert before.keys() == after.keys() and ("lm_head.weight" in after) is not tied
    assert all(torch.equal(tensor, after[name]) and tensor.dtype == torch.bfloat16 for name, tensor in before.items())
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"


def test_tokenizer_and_generation_come_along(tmp_path: Path, here: None):
    folder = saved(tmp_path / "model")
    save_tokenizer(folder)
    (folder / "chat_template.jinja").write_text("{% for one in messages %}{{ one.content }}{% endfor %}")
    settings = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps(settings | {"max_new_tokens": 7}))
    report = export_native(folder, tmp_path / "out", pattern=EVERY)
    assert "chat_template.jinja" in report.tokenizer
    assert AutoTokenizer.from_pretrained(tmp_path / "out").tokenize("far near") == ["far", "near"]
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text())["max_new_tokens"] == 7


def test_a_template_that_is_another_file_is_refused(tmp_path: Path):
    folder = saved(tmp_path / "model")
    save_tokenizer(folder)
    (tmp_path / "secret").write_text("user = me")
    (folder / "chat_template.jinja").symlink_to(tmp_path / "secret")
    with refusing(CheckpointError, "damaged-file", "chat_template.jinja"):
        export_native(folder, tmp_path / "out", pattern=EVERY)


def test_a_saved_pattern_is_exported(tmp_path: Path, here: None):
    model = use_pattern(built("MistralForCausalLM", {"sliding_window": 9}), "native & window(left=4)")
    model.save_pretrained(tmp_path / "model")
    report = export_native(tmp_path / "model", tmp_path / "out")
    assert (report.model, report.windows) == ("MistralForCausalLM", {"sliding_window": 5})


@pytest.mark.parametrize(("native_window", "width"), [("replace", 7), ("intersect", 5)])
def test_a_saved_choice_about_windows_is_followed(native_window: str, width: int, tmp_path: Path, here: None):
    model = use_pattern(built("MistralForCausalLM", {"sliding_window": 5}), EVERY, native_window=native_window)
    model.save_pretrained(tmp_path / "model")
    assert export_native(tmp_path / "model", tmp_path / "out").windows == {"sliding_window": width}


def test_windows_longer_than_the_positions(tmp_path: Path, here: None):
    report = export_native(saved(tmp_path / "model"), tmp_path / "out", pattern="window(left=99)")
    assert report.windows == {"sliding_window": 100} and report.checked.tokens > 100


def test_the_export_reads_as_the_same_windows(tmp_path: Path, here: None):
    """Its own pattern is the schedule."""
    export_native(saved(tmp_path / "model"), tmp_path / "out", pattern=TURNS)
    model = use_pattern(AutoModelForCausalLM.from_pretrained(tmp_path / "out"))
    assert [text.partition(",")[0] for text in model.config.asterism_pattern] == [
        "window(left=6",
        "causal()",
        "window(left=6",
    ]


# --- models of Asterism -----------------------------------------------------------------------------------------------

LLAMA_LIKE = {
    **{"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2},
    **{"norm": "rms", "position_type": "rotary", "gated_feed_forward": True, "hidden_act": "silu"},
    **{"attention_bias": False, "feed_forward_bias": False, "rope_theta": 500.0, "intermediate_size": 48},
}


def ours(folder: Path, kind: type = AsterismForCausalLM, **fields: Any) -> Path:
    torch.manual_seed(0)
    model = kind(AsterismConfig(**LLAMA_LIKE | {"mixers": EVERY} | fields))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-0.4, 0.4)
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("fields", "target"),
    [
        ({}, "MistralForCausalLM"),
        ({"mixers": TURNS}, "MinistralForCausalLM"),
        ({"tie_word_embeddings": True, "query_key_dim": 64, "value_dim": 64}, "MistralForCausalLM"),
        ({"hidden_act": "gelu", "layer_norm_eps": 1e-3}, "MistralForCausalLM"),
        ({"attention_bias": True, "feed_forward_bias": True}, "SmolLM3ForCausalLM"),
    ],
)
def test_our_own_llamas(fields: dict[str, Any], target: str, tmp_path: Path, here: None):
    report = export_native(ours(tmp_path / "model", **fields), tmp_path / "out")
    assert report.model == target and set(report.checked.errors) == {"eager", "sdpa"}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"norm": "layer"}, ["norm is 'layer'"]),
        (
            {"position_type": "learned", "gated_feed_forward": False},
            ["position_type is 'learned'", "gated_feed_forward"],
        ),
        ({"block": "post_norm"}, ["block is 'post_norm'"]),
        ({"embedding_scale": 2.0, "logit_scale": 0.5}, ["embedding_scale is 2.0", "logit_scale is 0.5"]),
        ({"query_key_dim": 16}, ["value_dim is 32"]),
        ({"attention_scale": 1.0}, ["attention_scale is 1"]),
        ({"kind": AsterismForMaskedLM, "global_tokens": 2}, ["AsterismForMaskedLM", "global_tokens is 2"]),
        ({"kind": AsterismForMaskedLM}, ["AsterismForMaskedLM"]),
    ],
)
def test_others_of_ours_are_refused_by_what_differs(fields: dict[str, Any], words: list[str], tmp_path: Path):
    with refusing(ConfigurationError, "no-stock-counterpart", *words):
        export_native(ours(tmp_path / "model", **fields), tmp_path / "out")


# --- the verb ---------------------------------------------------------------------------------------------------------


def test_what_the_verb_prints(tmp_path: Path, here: None, capsys: pytest.CaptureFixture[str]):
    folder = saved(tmp_path / "model")
    words = ["export", str(folder), "--native", "--output", str(tmp_path / "out")]
    assert main([*words, "--pattern", TURNS]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("LlamaForCausalLM -> MinistralForCausalLM, ")
    assert lines[1:6] == [
        "layers     0  window(left=6)",
        "layers     1  causal()",
        "layers     2  window(left=6)",
        "windows    sliding_window 7, layer_types",
        "tokenizer  none in the model",
    ]
    assert [line.split()[:2] for line in lines[6:]] == [["checked", "eager"], ["checked", "sdpa"], ["saved", "in"]]
    assert main([*words, "--pattern", TURNS]) == 4
    assert "is not an empty folder" in capsys.readouterr().err
    assert main(["export", str(folder), "--output", str(tmp_path / "other")]) == 2
    assert "export needs one of --native" in capsys.readouterr().err


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "values"),
    [
        (
            "interleave(window(left=2), (window(left=2) | global_keys(0)) & causal())",
            ["layer 1: (window(left=2) | global_keys", "global keys have no field in any stock configuration"],
        ),
        ("interleave(window(left=2), window(left=3), window(left=2))", ["layer 1: window(left=3)", "that of layer 0"]),
        ("window(left=2, dilation=2)", ["layers 0, 1, 2: window(left=2, dilation=2)", "strides"]),
        ("blocks(size=4) & causal()", ["blocks have no field"]),
        ("interleave(sinks(first=1, window=4), causal(), stride(period=2) & causal())", ["layer 0:", "layer 2:"]),
    ],
)
def test_what_no_configuration_says_is_refused_by_layer(pattern: str, values: list[str], tmp_path: Path):
    with refusing(ConfigurationError, "schedule-unfit", *values):
        export_native(saved(tmp_path / "model"), tmp_path / "out", pattern=pattern)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "fields", "options", "error", "code"),
    [
        ("LlamaForCausalLM", {}, {}, ConfigurationError, "no-windows"),
        ("LlamaForCausalLM", {}, {"pattern": TURNS, "to": "mistral"}, ConfigurationError, "schedule-unfit"),
        ("LlamaForCausalLM", {}, {"pattern": EVERY, "to": "mistrl"}, ConfigurationError, "target-unfit"),
        ("LlamaForCausalLM", {"mlp_bias": True}, {"pattern": EVERY, "to": "cwm"}, ConfigurationError, "schedule-unfit"),
        ("LlamaForCausalLM", {}, {"pattern": "window(left=1, right=1)"}, PatternError, "reads-future"),
        ("LlamaForCausalLM", {}, {"pattern": [EVERY] * 2}, ConfigurationError, "patterns-per-layer"),
        ("LlamaForCausalLM", {}, {"pattern": f"interleave({', '.join([EVERY] * 3)}, causal())"}, None, "too-long"),
        ("LlamaForSequenceClassification", {}, {"pattern": EVERY}, ConfigurationError, "head-not-exported"),
        ("LlamaForCausalLM", {"quantization_config": {"quant_method": "awq"}}, {}, ConfigurationError, "quantised"),
        ("GPT2LMHeadModel", {"head_dim": None}, {"pattern": EVERY}, ConfigurationError, "not-exported"),
        (
            "ModernBertForMaskedLM",
            {"local_attention": 6, **ENCODER},
            {"pattern": "native & window(left=2, right=2)"},
            ConfigurationError,
            "schedule-unfit",
        ),
        (
            "ModernBertForMaskedLM",
            {"local_attention": 6, **ENCODER},
            {"pattern": "interleave(dense(), window(left=3, right=2), window(left=3, right=3))"},
            ConfigurationError,
            "schedule-unfit",
        ),
    ],
)
def test_refusals(name: str, fields: dict, options: dict, error: type, code: str, tmp_path: Path):
    folder = saved(tmp_path / "model", name, fields)
    with pytest.raises(error or ConfigurationError) as caught:
        export_native(folder, tmp_path / "out", **options)
    assert code in caught.value.code, (caught.value.code, str(caught.value))
    assert "\n" not in str(caught.value) and not (tmp_path / "out").exists()


def test_a_layer_keeps_its_rotary_base(tmp_path: Path):
    """Gemma 3 has another base in layers with windows, so a full layer cannot become one."""
    folder = saved(tmp_path / "model", "Gemma3ForCausalLM", {"sliding_window": 7, "sliding_window_pattern": 3})
    with refusing(ConfigurationError, "schedule-unfit", "layer 2", "base 1e+06", "base 10000"):
        export_native(folder, tmp_path / "out", pattern=EVERY)


def test_taken_folders_are_refused(tmp_path: Path):
    folder = saved(tmp_path / "model")
    for output in (folder, folder / "config.json"):
        with refusing(CheckpointError, "output-not-empty"):
            export_native(folder, output, pattern=EVERY)
    with refusing(CheckpointError, "not-a-model-folder"):
        export_native(tmp_path / "nowhere", tmp_path / "out")


def change_configuration(folder: Path, **fields: Any) -> None:
    document = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(document | fields))


def cut(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", 1000)


def lose(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors.pop("model.layers.1.mlp.up_proj.weight")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    "damage",
    [
        cut,
        lose,
        lambda folder: (folder / "model.safetensors").unlink(),
        lambda folder: change_configuration(folder, hidden_size=64),
        lambda folder: change_configuration(folder, num_hidden_layers="three"),
        lambda folder: change_configuration(folder, vocab_size=10**9),
        lambda folder: change_configuration(folder, layer_types=["sliding_attention"]),
        lambda folder: change_configuration(folder, auto_map={"AutoConfig": "evil.Config"}, model_type="evil"),
    ],
)
def test_damaged_folders_are_one_line(damage: Callable[[Path], object], tmp_path: Path, here: None):
    folder = saved(tmp_path / "model")
    damage(folder)
    with pytest.raises((CheckpointError, ConfigurationError)) as caught:
        export_native(folder, tmp_path / "out", pattern=EVERY)
    assert "\n" not in str(caught.value) and not (tmp_path / "out").exists()


def test_a_mistral_with_types_of_layers_is_read_as_ministral(tmp_path: Path, here: None):
    """Transformers does so, and MistralForCausalLM itself would have a window in every layer."""
    folder = saved(tmp_path / "model", "MistralForCausalLM", {"sliding_window": 7})
    change_configuration(folder, layer_types=["full_attention", "sliding_attention", "full_attention"])
    assert export_native(folder, tmp_path / "out").model == "MinistralForCausalLM"


@pytest.mark.slow
def test_killed_while_writing(tmp_path: Path):
    """Killed at any moment after it began to write: the output is not there, and the next export makes it."""
    folder, output = saved(tmp_path / "model"), tmp_path / "out"
    words = [sys.executable, "-m", "asterism.cli.main", "export", folder, "--native", "--pattern", EVERY]
    for seconds, how in ((0, signal.SIGKILL), (0.02, signal.SIGKILL), (1, signal.SIGKILL), (1, signal.SIGTERM)):
        process = subprocess.Popen([*words, "--output", output], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not (left := list(tmp_path.glob(".out-*"))):
            assert process.poll() is None
            time.sleep(0.002)
        time.sleep(seconds)
        process.send_signal(how)
        assert process.wait() == (143 if how is signal.SIGTERM else -how)
        assert not output.exists() and (how is signal.SIGKILL) == any(path.exists() for path in left)
        for path in left:
            shutil.rmtree(path, ignore_errors=True)
    assert main(["export", str(folder), "--native", "--pattern", EVERY, "--output", str(output)]) == 0
    assert AutoConfig.from_pretrained(output).sliding_window == 7
