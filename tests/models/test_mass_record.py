"""What a recorder of attention mass sees: against transformers' own attention weights, and against dense weights of the
layer's queries and keys; what it refuses; and that it leaves the model as it was."""

import math

import pytest
import torch
from followed_models import CAUSAL
from refusals import refusing
from small_models import encoder_config, random_tokens, small_config, small_model

from asterism.errors import ConfigurationError, KernelError
from asterism.models import (
    AsterismForConditionalGeneration,
    AsterismForMaskedLM,
    AsterismModel,
    record_mass,
    use_pattern,
)

IDS = random_tokens(2, 24)


def weights_of_transformers(name: str) -> list[torch.Tensor]:
    """The attention weights of each layer, [B, H, N, N], by transformers' own plain attention."""
    torch.manual_seed(3)
    model = CAUSAL[name]().double().eval()
    model.set_attn_implementation("eager")
    return [weights.detach() for weights in model(IDS, output_attentions=True).attentions]


@pytest.mark.parametrize(
    ("name", "pattern"),
    [("llama", "causal()"), ("qwen3", "causal()"), ("gpt2", "causal()"), ("mistral, own window", "native"),
     ("gemma3", "native")],
)  # fmt: skip
@pytest.mark.parametrize("block", (1, 5))
def test_masses_are_those_of_transformers(name, pattern, block):
    expected = weights_of_transformers(name)
    torch.manual_seed(3)
    model = use_pattern(CAUSAL[name]().double().eval(), pattern)
    with record_mass(model, block=block) as record:
        model(IDS)
    assert len(record.layers) == len(expected)
    for found, weights in zip(record.layers, expected, strict=True):
        size = -(-24 // block) * block - 24
        sums = torch.nn.functional.pad(weights, (0, size, 0, size))
        sums = sums.unflatten(3, (-1, block)).unflatten(2, (-1, block)).sum(dim=(3, 5))
        assert torch.allclose(found.mass.dense(), sums, atol=1e-9)


def dense_weights(model: AsterismModel, layer: int, hidden: torch.Tensor) -> torch.Tensor:
    """The weights [B, H, N, N] of a layer of ours that reads these states."""
    mixer = model.layers[layer].mixer
    positions = torch.arange(hidden.shape[1])[None]
    q, k, _ = mixer._project(hidden, positions, (mixer.query, mixer.key, mixer.value))
    k = k.repeat_interleave(mixer.num_heads // mixer.num_key_value_heads, dim=1)
    allowed = torch.from_numpy(mixer.pattern.dense(hidden.shape[1]))
    return torch.softmax((q @ k.transpose(2, 3) / q.shape[3] ** 0.5).masked_fill(~allowed, -math.inf), dim=3)


def test_masses_of_models_of_ours_and_the_shares_of_parts():
    """With rotary positions, grouped heads, and a schedule."""
    schedule = "interleave(window(left=3) | columns(period=6, count=2) & causal(), fixed(stride=8, summary=2))"
    model = small_model(schedule, position_type="rotary", num_key_value_heads=2)
    states, before = [], model(IDS).logits
    hooks = [
        block.mixer.register_forward_pre_hook(lambda _, given: states.append(given[0])) for block in model.model.layers
    ]
    with record_mass(model, block=1) as record:
        logits = model(IDS).logits
    assert torch.equal(logits, before)
    for hook in hooks:
        hook.remove()
    for layer, found in enumerate(record.layers):
        expected = dense_weights(model.model, layer, states[layer])
        assert torch.allclose(found.mass.dense(), expected, atol=1e-9)
        assert found.pattern == model.model.layers[layer].mixer.pattern
        assert len(found.parts) == 2
        for part, share in zip(found.parts, found.shares, strict=True):
            within = expected * torch.from_numpy(part.dense(24))
            assert torch.allclose(share, within.sum(dim=(2, 3)) / 24, atol=1e-9)


def test_layers_without_attention_are_named_and_others_recorded():
    model = AsterismModel(encoder_config("interleave(fourier(), window(2, 2))"))
    with record_mass(model, block=8) as record:
        model(IDS)
    assert [layer is None for layer in record.layers] == [True, False, True]
    assert set(record.without) == {0, 2} and "fourier()" in record.without[0]


def test_global_tokens_of_the_model_stand_in_front():
    model = AsterismModel(encoder_config("bigbird_etc(block=4, globals=4)", global_tokens=4))
    with record_mass(model, block=4) as record:
        model(IDS)
    assert record.layers[0].mass.n_queries == 28


def refused(code: str, model: torch.nn.Module, *values: str, **arguments):
    with refusing(ConfigurationError, code, *values), record_mass(model) as record:
        model(IDS, **arguments)
        assert record


def test_models_that_cannot_be_recorded_are_refused_by_name():
    masked = AsterismForMaskedLM(encoder_config("fourier()"))
    refused("mass-without-attention", masked, "AsterismForMaskedLM", "fourier()")
    all_attention = small_model("causal()", block="all_attention", persistent_vectors=4, attention_bias=False)
    refused("mass-without-attention", all_attention, "persistent vectors")
    longformer = AsterismModel(encoder_config("longformer(window=8)", global_projections=[0]))
    refused("mass-without-attention", longformer, "global_projections")
    two = AsterismForConditionalGeneration(small_config("dense()", decoder_mixers="causal()"))
    refused("mass-of-two-stacks", two, "AsterismForConditionalGeneration")
    refused("mass-without-pattern", CAUSAL["llama"](), "LlamaForCausalLM", "use_pattern")
    refused("not-a-model", torch.nn.Linear(3, 3), "Linear")


def test_calls_that_cannot_be_recorded_are_refused():
    model = small_model("window(left=3)")
    mask = torch.ones_like(IDS)
    mask[0, :3] = 0
    refused("mass-of-padding", model, attention_mask=mask)
    refused("mass-of-padding", use_pattern(CAUSAL["llama"](), "causal()"), attention_mask=mask)
    with refusing(ConfigurationError, "mass-second-call"), record_mass(model):
        model(IDS)
        model(IDS)
    with refusing(ConfigurationError, "mass-not-seen", "layer 0"), record_mass(model):
        pass
    dropping = small_model("causal()", attention_dropout=0.2).train()
    with refusing(KernelError, "mass-dropout"), record_mass(dropping):
        dropping(IDS, dropout_seed=1)
    with record_mass(model, block=8) as record:  # refusals leave no hook behind
        model(IDS)
    assert record.layers[2].mass.block == 8
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())
