"""Under torch.autocast, as the Trainer's bf16=True turns it on, attention casts as PyTorch's own does."""

from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import VOCABULARY, encoder_config, random_tokens, small_config
from torch import nn
from transformers import BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from asterism.models import AsterismForCausalLM, AsterismForMaskedLM, use_pattern

SIZES = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"intermediate_size": 64, "max_position_embeddings": 64}
WINDOW = "window(left=5) | sinks()"


def llama() -> nn.Module:
    return use_pattern(LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=2)), WINDOW)


def bert() -> nn.Module:
    config = BertConfig(**SIZES, attention_probs_dropout_prob=0.0, pad_token_id=0)
    return use_pattern(BertForMaskedLM(config), "bigbird(block=4)")


def ours(mixers: str, **fields: Any) -> nn.Module:
    return AsterismForCausalLM(small_config(mixers, **fields))


def all_attention(**fields: Any) -> nn.Module:
    bare = {"block": "all_attention", "attention_bias": False, "persistent_vectors": 7}
    return ours("window(left=9)", **bare, **fields)


def encoder(mixers: str, **fields: Any) -> nn.Module:
    return AsterismForMaskedLM(encoder_config(mixers, **fields))


MODELS = {
    "llama": llama,
    "bert": bert,
    "learned positions": lambda: ours(WINDOW),
    "rotary": lambda: ours(WINDOW, position_type="rotary", num_key_value_heads=2),
    "all attention": all_attention,
    "by distance": lambda: all_attention(position_type="relative", relative_span=9, adaptive_span=True),
    "lengths": lambda: encoder("bigbird(block=4)"),
    "global projections": lambda: encoder("longformer(window=4)", global_projections=[0]),
    "global tokens": lambda: encoder("bigbird_etc(block=4, globals=2)", global_tokens=2),
    "fourier": lambda: encoder("interleave(fourier(), dense())"),
}
CAUSAL = ("llama", "learned positions", "rotary", "all attention", "by distance")


def build(name: str) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name]()


def batch(rows: int = 3) -> dict[str, torch.Tensor]:
    """Rows of 24 tokens, the second padded."""
    tokens, mask = random_tokens(rows, 24), torch.ones(rows, 24, dtype=torch.int64)
    mask[1, 17:] = 0
    return {"input_ids": tokens, "attention_mask": mask, "labels": torch.where(mask.bool(), tokens, -100)}


@pytest.mark.parametrize("name", MODELS)
def test_training_in_bfloat16_by_the_trainer(name: str, tmp_path: Path) -> None:
    model = build(name)
    before = {key: parameter.clone() for key, parameter in model.named_parameters()}
    rows = [{key: value[row] for key, value in batch().items()} for row in range(3)]
    arguments = TrainingArguments(
        tmp_path, max_steps=2, bf16=True, use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True
    )
    trainer = Trainer(model, arguments, train_dataset=rows, eval_dataset=rows)
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < 10
    after = dict(model.named_parameters())
    assert all(parameter.dtype == torch.float32 and parameter.isfinite().all() for parameter in after.values())
    assert any(not torch.equal(parameter, before[key]) for key, parameter in after.items())


@pytest.mark.parametrize("name", MODELS)
def test_autocast_computes_the_same_to_bfloat16(name: str) -> None:
    """Logits and gradients differ from those in float32 by what bfloat16 rounds, and from nothing else."""
    model = build(name).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    exact = model(**batch())
    exact.loss.backward()
    gradients = {key: parameter.grad for key, parameter in model.named_parameters() if parameter.grad is not None}
    model.zero_grad(set_to_none=True)
    with torch.autocast("cpu", torch.bfloat16):
        cast = model(**batch())
    cast.loss.backward()
    real = batch()["attention_mask"].bool()
    error = (cast.logits - exact.logits)[real].norm() / exact.logits[real].norm()
    assert 0 < error < 0.02
    for key, gradient in gradients.items():
        found = model.get_parameter(key).grad
        assert found.dtype == torch.float32
        assert (found - gradient).norm() < 0.1 * gradient.norm() + 1e-3, key


@pytest.mark.parametrize("name", CAUSAL)
def test_generation_under_autocast(name: str) -> None:
    """With a cache as without."""
    model, tokens = build(name).eval(), random_tokens(2, 9)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        whole = model(tokens).logits
        first = model(tokens[:, :6], use_cache=True)
        rest = model(tokens[:, 6:], past_key_values=first.past_key_values, use_cache=True)
        torch.testing.assert_close(torch.cat([first.logits, rest.logits], dim=1), whole, atol=0.02, rtol=0.02)
        model.generate(tokens, max_new_tokens=4, do_sample=False, pad_token_id=0)
