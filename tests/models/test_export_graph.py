"""Models as graphs of ONNX and torch.export, run without Asterism; what becomes none is refused in one line."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from refusals import refusing
from safetensors.torch import load_file, save_file
from slow_cases import slow_except
from transformers import (
    BertConfig,
    BertForMaskedLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
)

from asterism.cli.main import main
from asterism.errors import CheckpointError, ConfigurationError
from asterism.models import AsterismConfig, AsterismForCausalLM, AsterismForMaskedLM, export_graph, use_pattern
from asterism.models.exporting import alone_graph, graph

pytestmark = [pytest.mark.model, pytest.mark.filterwarnings("ignore")]

SIZES = {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
OTHERS = {"intermediate_size": 48, "num_key_value_heads": 2, "max_position_embeddings": 64}
LENGTH = 24


def ours(mixers: str, kind: type = AsterismForCausalLM, **fields: object) -> PreTrainedModel:
    return kind(AsterismConfig(**SIZES, mixers=mixers, **fields))


MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "own windows": lambda: MistralForCausalLM(MistralConfig(**SIZES, **OTHERS, sliding_window=5)),
    "saved pattern": lambda: use_pattern(LlamaForCausalLM(LlamaConfig(**SIZES, **OTHERS)), "sinks(first=2, window=4)"),
    "dense": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, **OTHERS)),
    "ours": lambda: ours("window(left=5)", implementation="cpu"),
    "our encoder": lambda: ours("longformer(window=4)", AsterismForMaskedLM),
    "by length": lambda: ours("bigbird(block=8)", AsterismForMaskedLM),
}


def in_this_process(script: Path, file: Path, given: Path, output: Path, error: float = 0.0) -> None:
    """Run the graph where Asterism is imported, which is not told, and with an error in its logits."""
    alone_graph.main(str(file), str(given), str(output))
    save_file({"logits": load_file(output)["logits"] + error}, output, metadata={"imported": "[]"})


def saved(name: str, folder: Path) -> Path:
    torch.manual_seed(0)
    model = MODELS[name]()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-0.4, 0.4)
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("suffix", [".pt2", ".onnx"])
@pytest.mark.parametrize("name", slow_except(MODELS, "own windows", "our encoder"))
def test_logits_are_those_of_the_model(name: str, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    if suffix == ".onnx":
        pytest.importorskip("onnxruntime")
        pytest.importorskip("onnxscript")
    monkeypatch.setattr(graph, "run_alone", in_this_process)
    report = export_graph(saved(name, tmp_path / "model"), tmp_path / f"graph{suffix}", length=LENGTH)
    assert report.error < 1e-5 and report.length == LENGTH
    assert report.inputs == ["input_ids"] + ["attention_mask"] * (name != "by length")
    if suffix == ".pt2":
        program = torch.export.load(tmp_path / "graph.pt2")
        assert not [node for node in program.graph.nodes if "asterism" in str(node.target)]
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"graph{suffix}", "model"]


@pytest.mark.slow
def test_without_asterism(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = saved("own windows", tmp_path / "model")
    assert main(["export", str(folder), "--torch", str(tmp_path / "a.pt2"), "--length", "24", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["error"] < 1e-5


def test_a_model_that_cannot_run_at_the_length_is_refused(tmp_path: Path):
    model = BertForMaskedLM(BertConfig(**SIZES, intermediate_size=48, max_position_embeddings=16))
    model.save_pretrained(tmp_path / "bert")
    with refusing(ConfigurationError, "not-a-graph", "BertForMaskedLM"):
        export_graph(tmp_path / "bert", tmp_path / "graph.pt2", length=17)
    assert not (tmp_path / "graph.pt2").exists()


def test_a_wrong_graph_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The check is able to fail, and then nothing is written."""
    monkeypatch.setattr(graph, "run_alone", partial(in_this_process, error=1e-2))
    with refusing(CheckpointError, "exported-logits-differ"):
        export_graph(saved("ours", tmp_path / "model"), tmp_path / "graph.pt2", length=LENGTH)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = saved("ours", tmp_path / "model")
    with refusing(ConfigurationError, "graph-suffix", "graph.bin"):
        export_graph(folder, tmp_path / "graph.bin", length=LENGTH)
    for length in (0, -3, 1.5, True):
        with refusing(ConfigurationError, "graph-length", repr(length)):
            export_graph(tmp_path, tmp_path / "graph.onnx", length=length)
    with refusing(ConfigurationError, "graph-too-large", "--length"):
        export_graph(folder, tmp_path / "graph.pt2", length=40_000)
    with refusing(ConfigurationError, "pattern-of-run"):
        export_graph(folder, tmp_path / "graph.pt2", length=LENGTH, pattern="causal()")

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("several\nlines") from ValueError("the\nreason")

    monkeypatch.setattr(torch.export, "export", fail)
    with refusing(ConfigurationError, "not-a-graph", "AsterismForCausalLM does not become a graph: the reason"):
        export_graph(folder, tmp_path / "graph.pt2", length=LENGTH)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "one of --native, --onnx FILE, --torch FILE and --merge"),
        (["--native", "--torch", "a.pt2"], "one of --native"),
        (["--native"], "--native needs --output"),
        (["--torch", "a.pt2"], "--torch needs --length"),
        (["--torch", "a.pt2", "--length", "8", "--to", "cwm"], "--to has no meaning with --torch"),
        (["--native", "--output", "x", "--length", "8"], "--length has no meaning with --native"),
        (["--torch", "a.bin", "--length", "8"], "must end in .pt2"),
    ],
)
def test_flags_that_do_not_fit(words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["export", str(tmp_path), *words]) == 2
    assert message in capsys.readouterr().err
