"""What a fresh process must import before it can read what another one has saved."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from slow_cases import slow_except
from small_models import random_tokens, small_model

PROGRAM = """
{imports}
program = torch.export.load({path!r})
tokens, expected = torch.load({values!r})
assert torch.allclose(program.module()(tokens), expected, atol=1e-9, rtol=0)
assert "transformers" not in sys.modules
"""


class Logits(torch.nn.Module):
    """A model whose answer is a tensor: classes of transformers must be imported where they are read."""

    def __init__(self, model) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens):
        return self.model(tokens, use_cache=False).logits


def fresh(program: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> tuple[Path, Path]:
    model, tokens = small_model("sinks(window=8)", implementation="eager"), random_tokens(2, 20)
    folder = tmp_path_factory.mktemp("exported")
    with torch.no_grad():
        torch.save((tokens, model(tokens).logits), folder / "values.pt")
    torch.export.save(torch.export.export(Logits(model), (tokens,)), folder / "model.pt2")
    return folder / "model.pt2", folder / "values.pt"


@pytest.mark.model
@pytest.mark.parametrize(
    "imports",
    slow_except(
        (
            "import sys, torch, asterism",
            "import sys, asterism, torch",
            "import sys, torch, torch._export.serde.serialize, asterism",
        ),
        "import sys, asterism, torch",
    ),
)
def test_an_exported_program_runs_where_asterism_is_imported(exported, imports: str) -> None:
    path, values = map(str, exported)
    done = fresh(PROGRAM.format(imports=imports, path=path, values=values))
    assert done.returncode == 0, done.stderr[-2000:]


def test_importing_asterism_loads_nothing_of_torch_and_torch_nothing_of_the_kernels() -> None:
    done = fresh(
        "import sys, asterism; assert 'torch' not in sys.modules;"
        " import torch; assert 'asterism.kernels' not in sys.modules"
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.model
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_an_adapter_with_a_pattern_is_refused_where_asterism_is_not_imported(tmp_path) -> None:
    peft = pytest.importorskip("peft")
    from transformers import LlamaConfig, LlamaForCausalLM

    from asterism.models import use_pattern

    sizes = {"vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    base = LlamaForCausalLM(LlamaConfig(**sizes, intermediate_size=8))
    base.save_pretrained(tmp_path / "base")
    adapter = peft.get_peft_model(use_pattern(base, "window(left=3)"), peft.LoraConfig(task_type="CAUSAL_LM"))
    adapter.save_pretrained(tmp_path / "adapter")
    done = fresh(
        "import peft, transformers\n"
        f"base = transformers.AutoModelForCausalLM.from_pretrained({str(tmp_path / 'base')!r})\n"
        f"peft.PeftModel.from_pretrained(base, {str(tmp_path / 'adapter')!r})"
    )
    assert done.returncode == 1
    assert "none without asterism: the adapter follows a pattern, so import asterism.models" in done.stderr
    again = peft.PeftConfig.from_pretrained(tmp_path / "adapter")
    assert (again.task_type, again.peft_type) == ("CAUSAL_LM", "LORA")
    assert json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["peft_type"] == "LORA"
