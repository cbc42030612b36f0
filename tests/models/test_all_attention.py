"""All-attention models (Sukhbaatar 2019) against their formulas written densely; cache, padding, loss."""

import math

import pytest
import torch
import torch.nn.functional as F
from small_models import VOCABULARY, random_tokens, randomise
from torch import nn

from asterism.errors import ConfigurationError
from asterism.models import AsterismConfig, AsterismForCausalLM, AsterismForMaskedLM, AsterismModel

SPAN = 11

VARIANTS = {
    "context": {"position_type": "learned"},
    "relative": {"position_type": "relative", "relative_span": SPAN},
    "adaptive": {"adaptive_span": True, "adaptive_span_ramp": 4, "relative_span": SPAN},
    "both": {
        "position_type": "relative",
        "adaptive_span": True,
        "adaptive_span_ramp": 4,
        "relative_span": SPAN,
        "num_key_value_heads": 2,
    },
}


def all_attention(
    mixers: str | list[str] = "causal() & ~window()", kind: type = AsterismForCausalLM, **fields: object
) -> nn.Module:
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
    manner = {"block": "all_attention", "attention_bias": False, "persistent_vectors": 6}
    config = AsterismConfig(mixers=mixers, max_position_embeddings=64, **(sizes | manner | fields))
    model = randomise(kind(config))
    for name, parameter in model.named_parameters():
        if name.endswith("shares"):
            parameter.data.copy_(torch.tensor([0.1, 0.35, 0.6, 1.0]))
    return model


def oracle(model: AsterismModel, tokens: torch.Tensor) -> torch.Tensor:
    """Hidden states [N, C] of one row of tokens [N]."""
    config, n = model.config, len(tokens)
    heads, width = config.num_attention_heads, config.hidden_size // config.num_attention_heads
    x = model.embed_tokens.weight[tokens]
    if config.position_type == "learned":
        x = x + model.positions.weight[:n]
    distance = torch.arange(n)[:, None] - torch.arange(n)
    for block, pattern in zip(model.layers, config.layer_patterns(), strict=True):
        layer = block.mixer
        q, k, v = (
            torch.stack((x @ part.weight.T).split(width, dim=-1)) for part in (layer.query, layer.key, layer.value)
        )
        k, v = (part.repeat_interleave(heads // len(part), dim=0) for part in (k, v))
        scores = q @ k.mT
        if config.position_type == "relative":
            scores = scores + torch.einsum("hqd,qkd->hqk", q, model.relative.weight[distance.clamp(0, SPAN)])
        soft = torch.from_numpy(pattern.dense(n)).double()
        if config.adaptive_span:
            reach = layer.adaptive_span.shares * SPAN
            soft = soft * ((reach[:, None, None] + 1 - distance) / 4 + 1).clamp(0, 1)
        stored = layer.persistent
        memory = q @ (stored.keys * math.sqrt(width)).mT
        weights = torch.cat([scores, memory], dim=-1).div(math.sqrt(width)).exp()
        weights = weights * torch.cat([soft.expand(heads, n, n), torch.ones_like(memory)], dim=-1)
        values = torch.cat([v, stored.values * math.sqrt(stored.values.shape[1])], dim=1)
        mixed = weights / weights.sum(dim=-1, keepdim=True) @ values
        mixed = torch.cat(list(mixed), dim=-1) @ layer.output.weight.T
        norm = block.mixer_norm
        x = F.layer_norm(x + mixed, (x.shape[-1],), norm.weight, norm.bias, norm.eps)
    return x


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("mixers", ["causal() & ~window()", "interleave(causal(), window(left=5), strided(stride=4))"])
def test_an_all_attention_model_is_its_formula(mixers: str, variant: str) -> None:
    model, tokens = all_attention(mixers, AsterismModel, **VARIANTS[variant]), random_tokens(2, 23)
    with torch.no_grad():
        hidden = model(tokens).last_hidden_state
        for row in range(2):
            torch.testing.assert_close(hidden[row], oracle(model, tokens[row]), atol=1e-11, rtol=0)


@pytest.mark.parametrize("mixers", ["dense()", "bigbird(block=4)"])
def test_an_all_attention_encoder_is_its_formula(mixers: str) -> None:
    model, tokens = all_attention(mixers, AsterismModel), random_tokens(3, 21)
    mask = torch.ones_like(tokens)
    mask[0, :4] = mask[2, 9:] = 0
    with torch.no_grad():
        hidden = model(tokens, attention_mask=mask).last_hidden_state
        for row in range(3):
            real = mask[row].bool()
            torch.testing.assert_close(hidden[row, real], oracle(model, tokens[row, real]), atol=1e-11, rtol=0)


@pytest.mark.parametrize("variant", VARIANTS)
def test_generation_with_cache_equals_generation_without(variant: str) -> None:
    model, tokens = all_attention(**VARIANTS[variant]), random_tokens(2, 13)
    mask = torch.ones_like(tokens)
    mask[1, :5] = 0
    options = {"attention_mask": mask, "max_new_tokens": 12, "do_sample": False}
    cached = model.generate(tokens, **options)
    assert torch.equal(cached, model.generate(tokens, use_cache=False, **options))
    alone = model.generate(tokens[1:, 5:], max_new_tokens=12, do_sample=False)
    assert torch.equal(cached[1, 13:], alone[0, 8:])
    cache = model(tokens, use_cache=True).past_key_values
    kept = max(len(kept) for layer in cache.layers for kept in layer.kept().values())
    assert kept == (13 if variant == "context" else SPAN)


def test_the_penalty_of_spans_is_added_in_training_once_per_step() -> None:
    model = all_attention(**VARIANTS["both"], adaptive_span_penalty=0.01)
    tokens = random_tokens(2, 20)
    spans = sum(block.mixer.adaptive_span.shares.mean() * SPAN for block in model.model.layers)
    plain = model(tokens, labels=tokens).loss
    trained = model.train()(tokens, labels=tokens).loss
    torch.testing.assert_close((trained - plain).double(), 0.01 * spans, atol=1e-5, rtol=0)
    with torch.no_grad():
        whole = model(tokens, labels=tokens, num_items_in_batch=40).loss
        parts = [model(row[None], labels=row[None], num_items_in_batch=40).loss for row in tokens]
    torch.testing.assert_close((whole - plain * 38 / 40).double(), 0.01 * spans, atol=1e-5, rtol=0)
    torch.testing.assert_close(sum(parts), whole)
    trained.backward()
    assert all(block.mixer.adaptive_span.shares.grad.all() for block in model.model.layers)
    masked = all_attention("causal()", AsterismForMaskedLM, **VARIANTS["both"], adaptive_span_penalty=0.01)
    difference = masked.train()(tokens, labels=tokens).loss - masked.eval()(tokens, labels=tokens).loss
    torch.testing.assert_close(difference.double(), 0.01 * spans.detach(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_gives_the_same_gradients(reentrant: bool) -> None:
    model, tokens = all_attention(**VARIANTS["both"], dropout=0.3).train(), random_tokens(2, 20)

    def gradients() -> list[torch.Tensor]:
        model.zero_grad()
        torch.manual_seed(3)
        model(tokens, labels=tokens).loss.backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    expected = gradients()
    with pytest.MonkeyPatch.context() as patch:
        # transformers 5.17 knows only the older of the two names, and later versions warn about it.
        patch.setattr("warnings.warn", lambda *_, **__: None)
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    for gradient, plain in zip(gradients(), expected, strict=True):
        torch.testing.assert_close(gradient, plain, atol=1e-12, rtol=0)


def test_save_and_load(tmp_path) -> None:
    model, tokens = all_attention(**VARIANTS["both"]), random_tokens(1, 20)
    model.save_pretrained(tmp_path)
    loaded = AsterismForCausalLM.from_pretrained(tmp_path, dtype=torch.float64)
    torch.testing.assert_close(loaded(tokens).logits, model(tokens).logits, atol=1e-13, rtol=0)


def test_a_new_model_starts_with_spans_of_zero_and_vectors_of_unit_size() -> None:
    torch.manual_seed(0)
    config = AsterismConfig(
        mixers="causal()", block="all_attention", attention_bias=False, persistent_vectors=64, **VARIANTS["adaptive"]
    )
    mixer = AsterismForCausalLM(config).model.layers[2].mixer
    assert not mixer.adaptive_span.shares.any()
    assert mixer.persistent.keys.norm(dim=-1).mean().item() == pytest.approx(1, rel=0.05)
    assert mixer.persistent.values.norm(dim=1).mean().item() == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"persistent_vectors": 0}, "needs persistent vectors: set persistent_vectors to 1 or more"),
        ({"attention_bias": True}, "takes no bias in its attention: set attention_bias=False"),
        ({"position_type": "rotary"}, "takes no rotary positions: use position_type 'relative', "),
        ({"global_projections": [0]}, "takes no global_projections"),
        (
            {"mixers": "interleave(causal(), fourier())"},
            r"has no feed-forward layer, so fourier\(\) cannot be its mixer",
        ),
        ({"block": "pre_norm"}, "block 'pre_norm' takes no persistent_vectors: they are for block 'all_attention'"),
        (
            {"block": "post_norm", "persistent_vectors": 0, **VARIANTS["adaptive"]},
            "block 'post_norm' takes no adaptive_span: it is for block 'all_attention'",
        ),
        (
            {"block": "post_norm", "persistent_vectors": 0, **VARIANTS["relative"]},
            "block 'post_norm' takes no relative positions: they are for block 'all_attention'",
        ),
        (
            {"position_type": "relative"},
            "relative_span needs position_type 'relative' or adaptive_span, and both",
        ),
        ({"relative_span": 5}, "got position_type 'learned', adaptive_span False and relative_span 5"),
        ({"adaptive_span_ramp": 0}, "adaptive_span_ramp must be an integer of at least 1, got 0"),
        ({"adaptive_span_penalty": -1.0}, "adaptive_span_penalty must be at least 0, got -1.0"),
        (
            {"mixers": "dense()", **VARIANTS["relative"]},
            r"a span of 11 tokens is for causal patterns, but dense\(\) may",
        ),
    ],
)
def test_configurations_that_cannot_work(fields: dict, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        all_attention(kind=AsterismModel, **fields)
    assert "\n" not in str(caught.value)
