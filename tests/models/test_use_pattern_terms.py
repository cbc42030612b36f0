"""Models of transformers that follow a pattern keep what else changes their scores: caps, sinks, biases, dropout."""

import pytest
import torch
from followed_models import (
    ALTERNATING,
    CAUSAL,
    CAUSAL_PATTERNS,
    GPT2_SIZES,
    GROUPED,
    SIZES,
    VOCABULARY,
    DenseWithMasks,
    assert_close,
    batch,
    build,
    enable_checkpointing,
    real_logits,
)
from transformers import (
    BertConfig,
    BertForMaskedLM,
    ElectraConfig,
    ElectraForMaskedLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

from asterism.models import use_pattern

pytestmark = pytest.mark.model

# --- terms of the score ----------------------------------------------------------------------------------------------

TERMS = {
    "gemma2": lambda: Gemma2ForCausalLM(
        Gemma2Config(**GROUPED, head_dim=8, attn_logit_softcapping=1.5, sliding_window=6)
    ),
    "gpt-oss": lambda: GptOssForCausalLM(
        GptOssConfig(
            **GROUPED, head_dim=8, sliding_window=6, num_local_experts=2, num_experts_per_tok=2, layer_types=ALTERNATING
        )
    ),
}


@pytest.fixture(params=TERMS)
def with_terms(request, monkeypatch) -> str:
    monkeypatch.setitem(CAUSAL, request.param, TERMS[request.param])
    return request.param


class EagerWithMasks:
    """A stock model with attention in plain PyTorch, whose layers get masks of their own."""

    def __init__(self, name: str, schedule: str, side: str) -> None:
        self.model = DenseWithMasks(build(name), schedule, side).model
        self.model.set_attn_implementation("eager")  # transformers 5.17 lets Gemma 2 lose its soft cap in another
        if hasattr(self.model, "set_experts_implementation"):
            self.model.set_experts_implementation("eager")  # others know no float64
        for module in self.model.modules():
            if hasattr(module, "layer_idx") and hasattr(module, "is_causal"):
                module.register_forward_pre_hook(self.as_numbers, with_kwargs=True)

    @staticmethod
    def as_numbers(module, arguments, named):
        mask = named["attention_mask"]
        return arguments, named | {"attention_mask": torch.zeros(mask.shape).double().masked_fill(~mask, -1e30)}


@pytest.mark.parametrize("side", ["none", "left"])
@pytest.mark.parametrize("text", CAUSAL_PATTERNS[2:])
def test_soft_capping_and_sinks_are_terms_of_the_score(with_terms: str, text: str, side: str) -> None:
    inputs, gradients = batch(side), []
    models = EagerWithMasks(with_terms, text, side).model, use_pattern(build(with_terms), text, native_window="replace")
    for model in models:
        if hasattr(model, "set_experts_implementation"):
            model.set_experts_implementation("eager")
        logits = real_logits(model, inputs, use_cache=False)
        (logits * torch.arange(VOCABULARY)).sum().backward()
        gradients.append(
            (logits.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None})
        )
    (expected, expected_gradients), (got, own) = gradients
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)  # eager attention has its softmax in float32
    largest = max(gradient.abs().max() for gradient in expected_gradients.values())
    for name, gradient in expected_gradients.items():
        torch.testing.assert_close(own[name], gradient, atol=float(largest) * 1e-5, rtol=1e-3)
    assert any("sinks" in name for name in own) == (with_terms == "gpt-oss")


def test_a_model_with_terms_generates_the_same_with_the_cache_and_without(with_terms: str) -> None:
    # Per head, so that sinks are those of the heads that keep the same keys.
    text = "interleave(fixed(stride=6, summary=1, heads=4), split_heads(window(left=4), causal(), heads=4))"
    model, inputs = use_pattern(build(with_terms), text, native_window="replace"), batch("left")
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    texts = [model.generate(**inputs, max_new_tokens=20, use_cache=use_cache) for use_cache in (True, False)]
    assert torch.equal(*texts)


DROPPING = {
    "gpt2": lambda rate: GPT2LMHeadModel(GPT2Config(**GPT2_SIZES, attn_pdrop=rate, resid_pdrop=0, embd_pdrop=0)),
    "bert": lambda rate: BertForMaskedLM(
        BertConfig(**SIZES, attention_probs_dropout_prob=rate, hidden_dropout_prob=0.0)
    ),
    "electra": lambda rate: ElectraForMaskedLM(
        ElectraConfig(**SIZES, attention_probs_dropout_prob=rate, hidden_dropout_prob=0.0)
    ),
    "llama": lambda rate: LlamaForCausalLM(LlamaConfig(**SIZES, attention_dropout=rate)),
}


def dropping(name: str, rate: float) -> PreTrainedModel:
    torch.manual_seed(0)
    model = DROPPING[name](rate).double()
    return use_pattern(model, "window(left=4)" if name in ("gpt2", "llama") else "window(4, 4)").train()


@pytest.mark.parametrize("name", DROPPING)
def test_attention_drops_in_training_by_torchs_generator(name: str) -> None:
    model, inputs = dropping(name, 0.3), batch("right")
    torch.manual_seed(1)
    first, second = real_logits(model, inputs), real_logits(model, inputs)
    torch.manual_seed(1)
    assert torch.equal(real_logits(model, inputs), first)
    assert not torch.allclose(first, second)
    without = real_logits(dropping(name, 0.0), inputs)
    state = torch.get_rng_state()
    assert_close(real_logits(model.eval(), inputs), without)
    assert torch.equal(torch.get_rng_state(), state)  # nothing is drawn where nothing is dropped


@pytest.mark.parametrize("name", DROPPING)
def test_checkpointing_drops_the_same_pairs_again(name: str) -> None:
    gradients = []
    for checkpointing in (False, True):
        model, inputs = dropping(name, 0.3), batch("right")
        if checkpointing:
            enable_checkpointing(model)
        torch.manual_seed(1)
        real_logits(
            model, inputs, **({"use_cache": False} if name in ("gpt2", "llama") else {})
        ).square().sum().backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    for name, gradient in gradients[0].items():
        if gradient is not None:
            torch.testing.assert_close(gradients[1][name], gradient, atol=1e-12, rtol=1e-9)


@torch.no_grad()
def test_dropout_is_unbiased() -> None:
    """A single layer whose output is linear in its weights of attention, before the residual sum is normalised."""
    torch.manual_seed(0)
    model, inputs = dropping("bert", 0.25), batch("none")["input_ids"]
    attention = model.bert.encoder.layer[0].attention.self
    seen = []
    attention.register_forward_hook(lambda module, arguments, output: seen.append(output[0]))
    for _ in range(200):
        model(inputs)
    model.eval()(inputs)
    draws, expected = torch.stack(seen[:-1]), seen[-1]
    error = (draws.mean(dim=0) - expected) / (draws.std(dim=0) / len(draws) ** 0.5)
    assert error.abs().max() < 5.5 and 0.8 < error.square().mean() < 1.2
