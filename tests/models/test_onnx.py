"""Models in ONNX, which knows no operators of this library: a pattern becomes a mask of one length.

Without the packages of ONNX, the graph that would be translated is looked at.
"""

import pytest
import torch
from refusals import refusing
from slow_cases import slow_except
from transformers import LlamaConfig, LlamaForCausalLM

from asterism.errors import KernelError
from asterism.models import AsterismConfig, AsterismForCausalLM, AsterismForMaskedLM, use_pattern

pytestmark = pytest.mark.model

SIZES = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
IDS = torch.randint(40, (1, 70), generator=torch.Generator().manual_seed(0))


class Logits(torch.nn.Module):
    """The logits of a model, for tokens and nothing else."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        options = {"use_cache": False} if self.model.can_generate() else {}
        return self.model(input_ids=ids, **options).logits


def foreign(**_: object) -> torch.nn.Module:
    own = {"intermediate_size": 24, "num_key_value_heads": 1, "max_position_embeddings": 128}
    return use_pattern(LlamaForCausalLM(LlamaConfig(**SIZES, **own)), "window(left=20)")


def ours(mixers: str, kind: type = AsterismForMaskedLM, **fields: object) -> torch.nn.Module:
    return kind(AsterismConfig(**SIZES, mixers=mixers, max_position_embeddings=128, **fields))


MODELS = {
    "dense": lambda **fields: ours("dense()", **fields),
    "bigbird": lambda **fields: ours("bigbird(block=8)", **fields),
    "window": lambda **fields: ours("window(left=9)", AsterismForCausalLM, **fields),
    "buckets": lambda **fields: ours("bigbird(block=8)", position_type="buckets", **fields),
    "llama": foreign,
}


@pytest.fixture
def in_onnx_export(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `torch.onnx.export` says while it traces a model."""
    monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)


@pytest.mark.parametrize("name", MODELS)
def test_the_graph_for_onnx_has_none_of_our_operators(name, in_onnx_export):
    model = Logits(MODELS[name]().eval())
    program = torch.export.export(model, (IDS,), strict=False)
    operators = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert not [target for target in operators if target.startswith("asterism")]
    with torch.no_grad():
        assert (program.module()(IDS) - model(IDS)).abs().max() < 1e-5


def test_other_exports_keep_our_operators():
    program = torch.export.export(Logits(ours("window(left=9)").eval()), (IDS,), strict=False)
    assert any("asterism" in str(node.target) for node in program.graph.nodes)


@pytest.mark.parametrize("implementation", ["cpu", "eager"])
def test_what_onnx_does_not_have_is_refused_by_name(implementation, in_onnx_export):
    model = Logits(ours("window(left=9)", implementation=implementation).eval())
    with refusing(KernelError, "not-in-onnx"):
        torch.export.export(model, (IDS,), strict=False)


def test_a_length_that_is_not_fixed_is_refused(in_onnx_export):
    tokens = torch.export.Dim("tokens", min=8, max=128)
    with refusing(KernelError, "onnx-one-length"):
        torch.export.export(Logits(ours("window(left=9)").eval()), (IDS,), dynamic_shapes=({1: tokens},), strict=False)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", slow_except(MODELS, "buckets", "llama"))
def test_onnx_runtime_gives_the_same_logits(name, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = Logits(MODELS[name]().eval())
    torch.onnx.export(model, (IDS,), dynamo=True, verbose=False).save(tmp_path / "model.onnx")
    session = runtime.InferenceSession(tmp_path / "model.onnx")
    (seen,) = session.run(None, {session.get_inputs()[0].name: IDS.numpy()})
    with torch.no_grad():
        assert (torch.tensor(seen) - model(IDS)).abs().max() < 1e-5
