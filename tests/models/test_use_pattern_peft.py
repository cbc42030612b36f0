"""Adapters of PEFT keep the pattern. Skipped where PEFT is not installed."""

import json
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from asterism.errors import ConfigurationError
from asterism.models import drop_pattern, use_pattern
from asterism.patterns import in_full

peft = pytest.importorskip("peft")
pytestmark = [pytest.mark.model, pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")]

SIZES = {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
TEXT = "interleave(window(left=3), sinks(first=2, window=4))"
TOKENS = torch.randint(0, 40, (2, 19), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def folder(tmp_path):
    """A dense base model, saved."""
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SIZES)).save_pretrained(tmp_path / "base")
    return tmp_path


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder / "base")


def adapted(model, task_type: str | None = "CAUSAL_LM"):
    adapter = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj"], task_type=task_type))
    with torch.no_grad():
        for name, parameter in adapter.named_parameters():
            if "lora_B" in name:
                parameter.normal_(generator=torch.Generator().manual_seed(1))
    return adapter


@pytest.mark.parametrize("task_type", ["CAUSAL_LM", None])
@pytest.mark.parametrize("before", [True, False])
def test_an_adapter_keeps_the_pattern(folder, before: bool, task_type: str | None) -> None:
    model = adapted(use_pattern(load(folder), TEXT), task_type) if before else adapted(load(folder), task_type)
    dense = model(TOKENS).logits if not before else None
    if not before:
        assert use_pattern(model, TEXT) is model
    expected = model(TOKENS).logits
    assert dense is None or not torch.allclose(dense, expected)
    model.save_pretrained(folder / "adapter")
    written = json.loads((folder / "adapter" / "adapter_config.json").read_text())
    assert (written["asterism_pattern"], written["asterism_native_window"]) == (in_full(TEXT), "replace")
    for loaded in (
        peft.PeftModel.from_pretrained(load(folder), folder / "adapter"),
        peft.PeftModel.from_pretrained(use_pattern(load(folder), TEXT), folder / "adapter"),
        peft.AutoPeftModelForCausalLM.from_pretrained(folder / "adapter"),
    ):
        torch.testing.assert_close(loaded(TOKENS).logits, expected)
    inside = load(folder)
    inside.load_adapter(str(folder / "adapter"))
    torch.testing.assert_close(inside(TOKENS).logits, expected)


def test_an_adapter_of_another_pattern_is_refused(folder) -> None:
    adapted(use_pattern(load(folder), TEXT)).save_pretrained(folder / "adapter")
    with pytest.raises(ConfigurationError, match=r"trained with the pattern interleave\(.* but the model has window"):
        peft.PeftModel.from_pretrained(use_pattern(load(folder), "window(left=9)"), folder / "adapter")


def test_a_pattern_is_taken_from_an_adapter(folder) -> None:
    model = adapted(load(folder))
    dense = model(TOKENS).logits
    use_pattern(model, TEXT)
    torch.testing.assert_close(drop_pattern(model)(TOKENS).logits, dense)
    model.save_pretrained(folder / "adapter")
    assert "asterism_pattern" not in json.loads((folder / "adapter" / "adapter_config.json").read_text())


def test_an_adapter_trains_and_generates_by_the_pattern(folder) -> None:
    model = adapted(use_pattern(load(folder), TEXT))
    model(TOKENS, labels=TOKENS).loss.backward()
    assert all(p.grad is not None for name, p in model.named_parameters() if "lora" in name)
    texts = [model.generate(input_ids=TOKENS, max_new_tokens=6, use_cache=use_cache) for use_cache in (True, False)]
    assert torch.equal(*texts)


LATE = """
import sys, torch, asterism.models
from transformers import AutoModelForCausalLM
base = AutoModelForCausalLM.from_pretrained({base!r})
assert "peft" not in sys.modules
from importlib.util import find_spec
assert find_spec("peft")  # as transformers asks whether it is there
from peft import PeftModel
model = PeftModel.from_pretrained(base, {adapter!r})
torch.save(model(torch.load({tokens!r})).logits, {found!r})
"""


@pytest.mark.slow
def test_peft_may_be_imported_last(folder, tmp_path) -> None:
    """After a base model was loaded, too."""
    model = adapted(use_pattern(load(folder), TEXT))
    model.save_pretrained(folder / "adapter")
    torch.save(TOKENS, tmp_path / "tokens.pt")
    names = {"base": "base", "adapter": "adapter", "tokens": "tokens.pt", "found": "found.pt"}
    script = LATE.format(**{name: str(tmp_path / file) for name, file in names.items()})
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True)
    torch.testing.assert_close(torch.load(tmp_path / "found.pt"), model(TOKENS).logits.detach())
