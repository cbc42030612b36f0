"""Encoders against plain PyTorch under a dense boolean mask, in float64; padding; refusals."""

import math

import pytest
import torch
import torch.nn.functional as F
from encoder_patterns import PATTERNS, encoder, normalise, padded
from refusals import refusing
from small_models import encoder_config, random_tokens
from torch import nn

from asterism import patterns
from asterism.errors import ConfigurationError, PatternError
from asterism.models import (
    AsterismConfig,
    AsterismForCausalLM,
    AsterismForSequenceClassification,
    AsterismModel,
)
from asterism.patterns import Fourier, Pattern

# --- the oracle: BERT in plain PyTorch --------------------------------------------------------------------------------


def dense_attention(hidden: torch.Tensor, layer: nn.Module, mask: torch.Tensor, heads: int) -> torch.Tensor:
    """The output of attention for hidden [N, C] under mask bool [heads or 1, N, N]."""
    q, k, v = (
        torch.stack(F.linear(hidden, part.weight, part.bias).chunk(heads, dim=-1))
        for part in (layer.query, layer.key, layer.value)
    )
    if layer.rotary is not None:
        q, k = turned(q), turned(k)
    scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~mask, -math.inf)
    mixed = scores.softmax(dim=-1) @ v
    if layer.global_projections is not None:
        q, k, v = (
            torch.stack(part(hidden).chunk(heads, dim=-1))
            for part in (layer.global_query, layer.global_key, layer.global_value)
        )
        everything = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(dim=-1) @ v
        for place in layer.global_projections:
            if place < len(hidden):
                mixed[:, place] = everything[:, place]
    return F.linear(torch.cat(list(mixed), dim=-1), layer.output.weight, layer.output.bias)


def turned(heads: torch.Tensor) -> torch.Tensor:
    """Rotary positions 0, 1, ... of [H, N, D], as complex numbers."""
    half = heads.shape[-1] // 2
    angles = torch.arange(heads.shape[1])[:, None] * 10000.0 ** (-torch.arange(half, dtype=heads.dtype) / half)
    pairs = torch.complex(heads[..., :half], heads[..., half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([pairs.real, pairs.imag], dim=-1)


def oracle(model: AsterismModel, tokens: torch.Tensor, types: torch.Tensor | None = None) -> torch.Tensor:
    """Hidden states [N, C] of one row of tokens [N], by the formulas of Devlin 2019, or with the norms in front."""
    config = model.config
    x = model.embed_tokens.weight[tokens]
    if config.type_vocab_size:
        x = x + model.embed_types.weight[torch.zeros_like(tokens) if types is None else types]
    if config.position_type == "learned":
        x = x + model.positions.weight[: len(tokens)]
    if config.global_tokens:
        x = torch.cat([model.global_tokens.weight, x])
    if config.embedding_norm:
        x = normalise(x, model.embedding_norm)
    if config.embedding_size is not None:
        x = x @ model.embedding_projection.weight.T + model.embedding_projection.bias
    for block, mixer in zip(model.layers, config.layer_mixers(), strict=True):
        if config.block == "pre_norm":  # Child 2019, section 5.2
            x = x + mix(normalise(x, block.mixer_norm), block, mixer, config)
            x = x + feed_forward(normalise(x, block.feed_forward_norm), block)
        else:
            x = normalise(x + mix(x, block, mixer, config), block.mixer_norm)
            x = normalise(x + feed_forward(x, block), block.feed_forward_norm)
    if config.block == "pre_norm":
        x = normalise(x, model.norm)
    return x[config.global_tokens :]


def mix(x: torch.Tensor, block: nn.Module, mixer: Pattern | Fourier, config: AsterismConfig) -> torch.Tensor:
    if isinstance(mixer, Fourier):
        return torch.fft.fftn(x, dim=(0, 1)).real
    return dense_attention(x, block.mixer, torch.from_numpy(mixer.dense(len(x))), config.num_attention_heads)


def feed_forward(x: torch.Tensor, block: nn.Module) -> torch.Tensor:
    """With the error function's GELU."""
    inside = x @ block.feed_forward.up_proj.weight.T + block.feed_forward.up_proj.bias
    inside = inside * 0.5 * (1 + torch.erf(inside / math.sqrt(2)))
    return inside @ block.feed_forward.down_proj.weight.T + block.feed_forward.down_proj.bias


VARIANTS: dict[str, dict] = {
    "bert": {"type_vocab_size": 2},
    "etc": {"global_tokens": 3},
    "rotary": {"global_tokens": 3, "position_type": "rotary"},
    "longformer": {"global_projections": [0, 5, 60]},
    "fnet": {"embedding_size": 24, "type_vocab_size": 4},
    "bare": {"embedding_norm": False, "position_type": "none", "attention_bias": False},
    "norms first": {"block": "pre_norm", "type_vocab_size": 2},
    "norms first, rotary": {"block": "pre_norm", "position_type": "rotary", "global_tokens": 3},
    "norms first, longformer": {"block": "pre_norm", "global_projections": [0, 5, 60]},
}


MIXERS = [*PATTERNS, "interleave(fourier(), window(left=3, right=2))", ["fourier()", PATTERNS[2], "dense()"]]


@pytest.mark.parametrize(
    ("mixers", "variant"),
    [
        *((mixers, "bert") for mixers in MIXERS),
        *((mixers, list(VARIANTS)[1 + number % 5]) for number, mixers in enumerate(MIXERS)),
        *((PATTERNS[2], variant) for variant in VARIANTS),
        *((mixers, "norms first") for mixers in (PATTERNS[5], MIXERS[-2], MIXERS[-1])),
        ("bigbird_etc(block=4, window_blocks=3, globals=3)", "etc"),
        ("bigbird_etc(block=4, window_blocks=3, random=1, globals=3)", "norms first, rotary"),
    ],
)
def test_an_encoder_is_its_formula(mixers: str | list[str], variant: str) -> None:
    model = encoder(mixers, **VARIANTS[variant])
    tokens = random_tokens(2, 23)
    types = random_tokens(2, 23, seed=4) % 2 if model.config.type_vocab_size else None
    with torch.no_grad():
        hidden = model(tokens, token_type_ids=types).last_hidden_state
    for row in range(2):
        expected = oracle(model, tokens[row], None if types is None else types[row])
        torch.testing.assert_close(hidden[row], expected, atol=1e-10, rtol=0)


def test_the_global_tokens_of_etc_are_those_in_front_and_no_others() -> None:
    """As many in the pattern as in the model: then text reads its blocks and them, and they read all."""
    n, extra, block = 21, 3, 4
    allowed = patterns.bigbird_etc(block=block, window_blocks=3, globals=extra).dense(extra + n)[0]
    number = [(place - extra) // block for place in range(extra + n)]
    for query in range(extra + n):
        for key in range(extra + n):
            near = query >= extra and key >= extra and abs(number[query] - number[key]) <= 1
            assert allowed[query, key] == (near or query < extra or key < extra)
    model, tokens = encoder(f"bigbird_etc(block={block}, globals={extra})", global_tokens=extra), random_tokens(1, n)
    assert model(tokens).last_hidden_state.shape[1] == n


def test_token_types_are_zero_by_default() -> None:
    model, tokens = encoder(type_vocab_size=2), random_tokens(2, 9)
    given = model(tokens, token_type_ids=torch.zeros_like(tokens)).last_hidden_state
    assert torch.equal(model(tokens).last_hidden_state, given)
    plain = encoder()
    assert torch.equal(
        plain(tokens, token_type_ids=torch.zeros_like(tokens)).last_hidden_state, plain(tokens).last_hidden_state
    )
    with refusing(ConfigurationError, "no-token-types"):
        plain(tokens, token_type_ids=torch.ones_like(tokens))


# --- padding ---------------------------------------------------------------------------------------------------------


def weighted(hidden: torch.Tensor) -> torch.Tensor:
    """A sum in which every token and feature counts differently."""
    return (hidden * torch.linspace(-1, 2, hidden[0].numel(), dtype=hidden.dtype).view(hidden[0].shape)).sum()


@pytest.mark.parametrize("side", ["left", "right", "holes"])
@pytest.mark.parametrize("mixers", [*PATTERNS, "fourier()", "interleave(fourier(), bigbird(block=4), dense())"])
def test_padding_changes_no_real_token(mixers: str, side: str) -> None:
    """Neither the hidden states of real tokens nor any gradient."""
    variants = {"left": "rotary", "right": "longformer", "holes": "bert"}
    model = encoder(mixers, **VARIANTS["fnet" if mixers == "fourier()" else variants[side]])
    tokens, mask, rows = padded(side)
    hidden = model(tokens, attention_mask=mask).last_hidden_state
    sum(weighted(hidden[number][mask[number].bool()][None]) for number in range(len(rows))).backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    for number, row in enumerate(rows):
        alone = model(row[None]).last_hidden_state
        torch.testing.assert_close(hidden[number][mask[number].bool()], alone[0], atol=1e-12, rtol=1e-12)
        weighted(alone).backward()
    for gradient, parameter in zip(gradients, model.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("mixers", [*PATTERNS, "fourier()"])
def test_padding_changes_no_real_token_in_float32(mixers: str) -> None:
    torch.manual_seed(0)
    model = AsterismModel(encoder_config(mixers, initializer_range=0.1)).eval()
    tokens, mask, rows = padded("left")
    with torch.no_grad():
        hidden = model(tokens, attention_mask=mask).last_hidden_state
        for number, row in enumerate(rows):
            alone = model(row[None]).last_hidden_state[0]
            torch.testing.assert_close(hidden[number][mask[number].bool()], alone, atol=1e-6, rtol=0)


def test_a_row_without_tokens_is_finite() -> None:
    tokens, mask, _ = padded("right")
    mask[1] = 0
    for mixers in ("bigbird(block=4)", "dense()", "fourier()"):
        model = encoder(mixers, AsterismForSequenceClassification)
        loss = model(tokens, attention_mask=mask, labels=torch.zeros(len(tokens), dtype=torch.int64)).loss
        loss.backward()
        assert loss.isfinite()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_a_mask_of_ones_is_no_mask() -> None:
    """Full rows must not take the slower road of padded ones."""
    for mixers in ("dense()", "bigbird(block=4)"):
        model, tokens = encoder(mixers), random_tokens(2, 20)
        seen = []
        model.layers[0].mixer.register_forward_pre_hook(
            lambda _, __, kwargs, seen=seen: seen.append(set(kwargs)), with_kwargs=True
        )
        expected = model(tokens).last_hidden_state
        assert torch.equal(model(tokens, attention_mask=torch.ones_like(tokens)).last_hidden_state, expected)
        assert seen[0] == seen[1]


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"block": "postnorm"},
            "unknown block 'postnorm'; known are pre_norm, post_norm, all_attention. Did you mean 'post_norm'?",
        ),
        (
            {"classifier_pooling": "maximum"},
            "unknown classifier_pooling 'maximum'; known are cls, mean.",
        ),
        (
            {"pooler_act": "tan"},
            "unknown pooler_act 'tan'; known are tanh, quick_gelu, gelu, gelu_new, relu, silu. Did you mean 'tanh'?",
        ),
        ({"type_vocab_size": -1}, "type_vocab_size must be an integer of at least 0, got -1"),
        ({"embedding_size": 0}, "embedding_size must be an integer of at least 1, got 0"),
        ({"global_tokens": 1.5}, "global_tokens must be an integer of at least 0, got 1.5"),
        ({"classifier_dropout": 1.0}, "classifier_dropout must be at least 0 and below 1, got 1.0"),
        ({"initializer_range": 0.0}, "initializer_range must be above 0, got 0.0"),
        (
            {"global_projections": [0, -1]},
            "global_projections must be distinct positions, counted from 0, got [0, -1]",
        ),
        (
            {"mixers": "fourier()", "position_type": "rotary"},
            "block 'post_norm' has only fourier() mixers, which support no rotary positions",
        ),
        (
            {"mixers": "fourier()", "global_projections": [0]},
            "block 'post_norm' has only fourier() mixers, which support no global_projections",
        ),
        (
            {"mixers": ["fourier()"]},
            "got 1 patterns for 3 layers: give one per layer, or one schedule for all",
        ),
    ],
)
def test_configurations_that_cannot_work(fields: dict, message: str) -> None:
    fields = {"mixers": "dense()"} | fields
    with pytest.raises(ConfigurationError) as caught:
        AsterismModel(encoder_config(**fields))
    assert str(caught.value) == message


@pytest.mark.parametrize("mixers", ["fourier() | dense()", "interleave(fourier(2), dense())", "split_heads(fourier())"])
def test_fourier_is_no_pattern(mixers: str) -> None:
    with refusing(PatternError, "transform-not-alone") as caught:
        AsterismModel(encoder_config(mixers))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"mixers": "interleave(fourier(), causal())"},
            r"fourier\(\) cannot be used by a causal model or with a cache",
        ),
        ({"mixers": "bigbird(block=4)"}, r"use bigbird_causal\(...\) instead"),
        ({"mixers": "causal()", "global_tokens": 2}, "global_tokens=2 cannot be used by a causal model"),
        ({"mixers": "causal()", "global_projections": [0]}, r"global_projections=\[0\] cannot be used by a causal"),
    ],
)
def test_an_encoder_neither_generates_nor_caches(fields: dict, message: str) -> None:
    with pytest.raises((ConfigurationError, PatternError), match=message):
        AsterismForCausalLM(encoder_config(**fields))
    with pytest.raises((ConfigurationError, PatternError), match=message):
        AsterismModel(encoder_config(**fields))(random_tokens(1, 5), use_cache=True)


def test_a_narrow_embedding_cannot_be_tied_to_a_causal_head() -> None:
    with refusing(ConfigurationError, "tied-width"):
        AsterismForCausalLM(AsterismConfig(embedding_size=64, tie_word_embeddings=True))


def test_mixers_take_turns_with_fourier() -> None:
    config = encoder_config("interleave(fourier(), window(left=2) | star(), fourier())", num_hidden_layers=5)
    texts = ["fourier()", "window(left=2) | star()", "fourier()", "fourier()", "window(left=2) | star()"]
    assert [str(mixer) for mixer in config.layer_mixers()] == texts
    assert [str(mixer) for mixer in encoder_config(texts, num_hidden_layers=5).layer_mixers()] == texts
    assert encoder_config(patterns.star()).layer_patterns() == [patterns.star()] * 3
