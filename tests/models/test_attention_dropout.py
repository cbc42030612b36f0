"""Dropout inside the attention of models: an explicit seed for each step decides it, in every layer another way."""

import pytest
import torch
from refusals import refusing
from small_models import VOCABULARY, random_tokens, randomise

from asterism.errors import ConfigurationError
from asterism.kernels import Dropout
from asterism.layers import SparseAttention, rows_of
from asterism.models import AsterismConfig, AsterismForCausalLM, AsterismForMaskedLM
from asterism.models.cache.layer import PatternCacheLayer

pytestmark = pytest.mark.model


def model_of(kind=AsterismForCausalLM, mixers="strided(stride=4)", rate=0.3, **fields):
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "max_position_embeddings": 64}
    config = AsterismConfig(vocab_size=VOCABULARY, mixers=mixers, attention_dropout=rate, **(sizes | fields))
    return randomise(kind(config)).train()


ALL_ATTENTION = {
    "mixers": "causal()",
    "block": "all_attention",
    "attention_bias": False,
    "persistent_vectors": 6,
    "position_type": "relative",
    "relative_span": 9,
}
MODELS = {
    "causal": (AsterismForCausalLM, {}),
    "encoder": (AsterismForMaskedLM, {"mixers": "bigbird(block=4)", "block": "post_norm"}),
    "global": (AsterismForMaskedLM, {"mixers": "longformer(window=4, globals=(0,))", "global_projections": [0]}),
    "hybrid": (AsterismForMaskedLM, {"mixers": ["fourier()", "fourier()", "dense()"]}),
    "all attention": (AsterismForCausalLM, ALL_ATTENTION),
}


def loss_of(model, tokens, seed, **arguments):
    return model(input_ids=tokens, labels=tokens, dropout_seed=seed, **arguments).loss


@pytest.mark.parametrize("name", MODELS)
def test_the_seed_decides_and_nothing_else(name):
    kind, fields = MODELS[name]
    model, tokens = model_of(kind, **fields), random_tokens(2, 24)
    torch.manual_seed(1)
    first = loss_of(model, tokens, 5)
    torch.manual_seed(2)
    assert torch.equal(first, loss_of(model, tokens, 5))
    assert not torch.equal(first, loss_of(model, tokens, 6))
    evaluated = loss_of(model.eval(), tokens, None)
    assert torch.equal(evaluated, loss_of(model, tokens, 5))
    assert not torch.equal(first, evaluated)


@pytest.mark.parametrize("name", MODELS)
def test_implementations_train_alike(name):
    kind, fields = MODELS[name]
    tokens = random_tokens(2, 24)
    results = []
    for implementation in ("reference", "eager"):
        model = model_of(kind, **fields, implementation=implementation)
        loss = loss_of(model, tokens, 11)
        results.append([loss, *torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)])
    for one, other in zip(*results, strict=True):
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_gradient_checkpointing_drops_the_same_pairs(name):
    kind, fields = MODELS[name]
    model, tokens = model_of(kind, **fields), random_tokens(2, 24)
    plain = torch.autograd.grad(loss_of(model, tokens, 9), model.model.embed_tokens.weight)
    getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
    checkpointed = torch.autograd.grad(loss_of(model, tokens, 9), model.model.embed_tokens.weight)
    torch.testing.assert_close(checkpointed, plain, rtol=1e-5, atol=1e-6)


def test_layers_and_rows_of_any_length_drop_other_pairs():
    """Rows of different lengths are attended to as one; two of them that are equal must not lose the same pairs."""
    seeds = []

    model = model_of(AsterismForMaskedLM, mixers="bigbird(block=4)", num_hidden_layers=2)
    for block in model.model.layers:
        original = block.mixer._attend

        def attend(heads, rows, dropout, *rest, _original=original, **terms):
            seeds.append(dropout.seed)
            return _original(heads, rows, dropout, *rest, **terms)

        block.mixer._attend = attend
    tokens = random_tokens(3, 24)
    mask = torch.ones_like(tokens)
    mask[1, 20:] = 0
    loss_of(model, tokens, 3, attention_mask=mask)
    assert len(seeds) == len(set(seeds))
    assert {seed % 2**32 for seed in seeds} == {3}
    mixer = model.model.layers[0].mixer
    hidden = torch.randn(1, 24, mixer.query.in_features, dtype=mixer.query.weight.dtype).expand(2, -1, -1)
    one, other = mixer(hidden, rows=rows_of(hidden, lengths=[20, 20]), dropout=Dropout(0.3, 3))
    assert not torch.isclose(one[:20], other[:20]).all(dim=1).any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, r"training with attention_dropout 0.3 needs forward\(dropout_seed=...\)"),
        ({"dropout_seed": -1}, r"dropout_seed must be a whole number in \[0, 2\^48\), got -1"),
        ({"dropout_seed": 2**48}, r"dropout_seed must be a whole number in \[0, 2\^48\)"),
        ({"dropout_seed": "3"}, r"dropout_seed must be a whole number in \[0, 2\^48\), got '3'"),
        ({"dropout_seed": 1.5}, r"dropout_seed must be a whole number in \[0, 2\^48\), got 1.5"),
    ],
)
def test_training_without_a_seed_is_refused(arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        model_of()(input_ids=random_tokens(1, 8), **arguments)


def test_what_cannot_drop_is_refused():
    with pytest.raises(ConfigurationError, match="fourier.* support no attention_dropout"):
        model_of(AsterismForMaskedLM, mixers="fourier()")
    layer = SparseAttention(16, 2, "causal()")
    (dropout, *_) = model_of().model._dropouts(1)
    with refusing(ConfigurationError, "dropout-with-cache"):
        layer(torch.zeros(1, 3, 16), cache=PatternCacheLayer(layer.pattern), dropout=dropout)


def test_a_model_without_dropout_needs_no_seed():
    model, tokens = model_of(rate=0.0), random_tokens(1, 9)
    assert torch.equal(loss_of(model, tokens, None), loss_of(model, tokens, 4))
