"""Published models: their sizes, their patterns, and that the twins are what they are twins of."""

from dataclasses import fields

import pytest
import torch
from refusals import refusing
from small_models import random_tokens
from transformers import (
    BigBirdConfig,
    BigBirdModel,
    BigBirdPegasusConfig,
    BigBirdPegasusForConditionalGeneration,
    LEDConfig,
    LEDForConditionalGeneration,
    PreTrainedConfig,
)

from asterism import patterns
from asterism.errors import ConfigurationError
from asterism.models import (
    AsterismConfig,
    AsterismForCausalLM,
    AsterismForConditionalGeneration,
    AsterismForMaskedLM,
)
from asterism.models.asterism.published import PUBLISHED, published, transformer_base

SIZES = {
    "bert-base": 110e6,
    "bigbird-itc-base": 128e6,
    "bigbird-itc-large": 358e6,
    "longformer-base": 149e6,
    "fnet-base": 83e6,
    "fnet-large": 238e6,
    "fnet-hybrid-base": 88e6,
    "transformer-base": 65e6,
    "bigbird-pegasus-large": 577e6,
    "led-base": 162e6,
    "all-attention-enwik8-small": 38.5e6,
    "all-attention-enwik8-large": 114e6,
}
"""Parameters, as papers and released checkpoints count them (docstrings of `asterism.models.asterism.published`)."""

UNPUBLISHED = {
    "bigbird-etc-base": 128e6,
    "bigbird-genomics-base": 114e6,
    "star-base": 112e6,
    "bigbird-roberta-base-summarization": 155e6,
}
"""Sizes that follow from those of their relatives."""


def head_of(name: str) -> type:
    if published(name).is_encoder_decoder:
        return AsterismForConditionalGeneration
    return AsterismForCausalLM if name.startswith("all-attention") else AsterismForMaskedLM


def count(name: str) -> int:
    return count_of(head_of(name), published(name))


def count_of(kind: type, config: PreTrainedConfig, **options: object) -> int:
    with torch.device("meta"):
        model = kind(config, **options)
    model.tie_weights()
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.model
@pytest.mark.parametrize("name", SIZES | UNPUBLISHED)
def test_sizes_within_two_percent(name: str) -> None:
    assert count(name) == pytest.approx((SIZES | UNPUBLISHED)[name], rel=0.02)


OWN_SHAPES = {
    "transformer-base": (512, 6, 8, 2048),
    "bigbird-pegasus-large": (1024, 16, 16, 4096),
    "led-base": (768, 6, 12, 3072),
}


@pytest.mark.model
def test_as_many_parameters_as_hugging_faces_models() -> None:
    assert count("bigbird-pegasus-large") == count_of(BigBirdPegasusForConditionalGeneration, BigBirdPegasusConfig())
    both = {f"{stack}_layers": 6 for stack in ("encoder", "decoder")}
    both |= {f"{stack}_attention_heads": 12 for stack in ("encoder", "decoder")}
    both |= {f"{stack}_ffn_dim": 3072 for stack in ("encoder", "decoder")}
    assert count("led-base") == count_of(LEDForConditionalGeneration, LEDConfig(d_model=768, **both))
    # One stack that also reads another: of both stacks, all but cross attention is the same.
    shared = BigBirdConfig(attention_type="original_full", is_decoder=True, add_cross_attention=True)
    assert count("bigbird-roberta-base-summarization") == count_of(BigBirdModel, shared, add_pooling_layer=False)


@pytest.mark.model
@pytest.mark.parametrize(
    ("millions", "changes"),
    [
        (65, {}),
        (58, {"query_key_dim": 8 * 16}),
        (60, {"query_key_dim": 8 * 32}),
        (36, {"num_hidden_layers": 2}),
        (50, {"num_hidden_layers": 4}),
        (80, {"num_hidden_layers": 8}),
        (28, {"hidden_size": 256, "intermediate_size": 2048}),
        (168, {"hidden_size": 1024, "intermediate_size": 2048}),
        (53, {"intermediate_size": 1024}),
        (90, {"intermediate_size": 4096}),
    ],
)
def test_the_sizes_of_table_3(millions: int, changes: dict[str, int]) -> None:
    """Vaswani 2017: they say how many tokens there were, which section 5.1 puts at about 37,000."""
    sizes = [count_of(AsterismForConditionalGeneration, transformer_base(rows, **changes)) for rows in (41_100, 37_000)]
    assert round(sizes[0] / 1e6) == millions
    assert round(sizes[1] / 1e6) < millions


def test_every_model_that_is_not_tiny_has_a_size() -> None:
    assert {name for name in PUBLISHED if not name.endswith("-tiny")} == set(SIZES | UNPUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_ends_of_names_say_the_shape(name: str) -> None:
    config = published(name)
    if name.endswith(("-base", "-large")) and not name.startswith("all-attention"):
        shape = (768, 12, 12, 3072) if name.endswith("-base") else (1024, 24, 16, 4096)
        shape = OWN_SHAPES.get(name, shape)
        seen = (config.hidden_size, config.num_hidden_layers, config.num_attention_heads, config.intermediate_size)
        assert seen == shape
    if name.endswith("-tiny"):
        assert (config.hidden_size, config.num_hidden_layers) == (192, 4)


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name.endswith("-tiny")])
def test_a_twin_differs_in_sizes_only(name: str) -> None:
    """Every field that is no size and no text of mixers is that of the model it is a twin of."""
    other_names = {
        "all-attention-tiny": "all-attention-enwik8-small",
        "bigbird-tiny": "bigbird-itc-base",
        "bigbird-pegasus-tiny": "bigbird-pegasus-large",
        "bigbird-roberta-summarization-tiny": "bigbird-roberta-base-summarization",
    }
    big = published(other_names.get(name, f"{name.removesuffix('-tiny')}-base"))
    tiny = published(name)
    numbers = {
        "hidden_size",
        "vocab_size",
        "intermediate_size",
        "max_position_embeddings",
        "query_key_dim",
        "value_dim",
    }
    numbers |= {"num_hidden_layers", "num_attention_heads", "num_key_value_heads", "embedding_size", "global_tokens"}
    numbers |= {"persistent_vectors", "relative_span", "dropout", "mixers"}
    numbers |= {"num_decoder_layers", "decoder_max_position_embeddings"}
    if name.startswith(("transformer", "bigbird-pegasus")):
        numbers |= {"embedding_scale", "initializer_range"}  # which follow from hidden_size
    for field in fields(AsterismConfig):
        if field.name not in numbers:
            assert getattr(tiny, field.name) == getattr(big, field.name), field.name
    kinds = [{mixer.text.split("(")[0] for mixer in config.layer_mixers()} for config in (tiny, big)]
    assert kinds[0] == kinds[1]


def test_an_ordinary_query_of_bigbird_reads_512_keys() -> None:
    """(2 global + 3 window + 3 random blocks) * 64, and no two layers or heads draw the same blocks."""
    layers = published("bigbird-itc-base").layer_patterns()
    pictures = [layer.allows([[2000], [2063]], range(4096), 4096, head) for layer in layers for head in (0, 11)]
    assert all((picture.sum(axis=-1) == 512).all() for picture in pictures)
    assert len({picture.tobytes() for picture in pictures}) == len(pictures)


def test_the_etc_model_covers_its_global_tokens() -> None:
    config = published("bigbird-etc-base")
    (pattern,) = set(config.layer_patterns())
    assert pattern == patterns.bigbird_etc()
    assert config.global_tokens == 256 and config.max_position_embeddings == 4096


def test_unknown_names_are_refused() -> None:
    with refusing(ConfigurationError, "unknown-published-model", "'bigbird-base'", " Did you mean 'bigbird-"):
        published("bigbird-base")


@pytest.mark.model
@pytest.mark.parametrize("name", [name for name in PUBLISHED if name.endswith("-tiny")])
def test_a_twin_learns(name: str) -> None:
    torch.manual_seed(0)
    config = published(name)
    config.dropout = config.attention_dropout = 0.0
    config.pad_token_id = config.decoder_start_token_id = 0
    model = head_of(name)(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    tokens = random_tokens(2, 48)
    labels = torch.where(torch.rand(2, 48, generator=torch.Generator().manual_seed(0)) < 0.3, tokens, -100)
    mask = torch.ones_like(tokens)
    mask[1, 40:] = 0
    losses = []
    for _ in range(3):
        loss = model(tokens, attention_mask=mask, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[2] < losses[1] < losses[0]
