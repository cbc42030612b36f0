"""The parts of a stack, made from its configuration: blocks, their mixers, norms, and positions."""

from typing import Any

from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from asterism.errors import ConfigurationError
from asterism.layers import (
    NORMS,
    AllAttentionBlock,
    BucketedPositions,
    CrossAttention,
    FactorisedPositions,
    FeedForward,
    FourierMixing,
    GatedFeedForward,
    LearnedPositions,
    LinearMixing,
    PersistentAttention,
    PostNormBlock,
    PreNormBlock,
    RelativePositions,
    Rotary,
    SinusoidalPositions,
    SparseAttention,
)
from asterism.models.asterism.configuration import AsterismConfig
from asterism.patterns import Linear, Mixer, Pattern, Transform


class AsterismBlock(GradientCheckpointingLayer, PreNormBlock):
    """A PreNormBlock whose activations can be recomputed in the backward pass (Child 2019, section 5.4)."""


class AsterismPostNormBlock(GradientCheckpointingLayer, PostNormBlock):
    """A PostNormBlock whose activations can be recomputed in the backward pass."""


class AsterismAllAttentionBlock(GradientCheckpointingLayer, AllAttentionBlock):
    """An AllAttentionBlock whose activations can be recomputed in the backward pass."""


def make_norm(config: AsterismConfig, width: int) -> nn.Module:
    """A norm of tokens with so many features."""
    return NORMS[config.norm](width, eps=config.layer_norm_eps)


def make_block(
    config: AsterismConfig, mixer: Mixer, cross: Pattern | None
) -> AsterismBlock | AsterismPostNormBlock | AsterismAllAttentionBlock:
    """One block; with a pattern `cross`, it reads a source by it."""
    options: dict[str, Any] = {
        "dropout": config.dropout,
        "norm": config.norm,
        "layer_norm_eps": config.layer_norm_eps,
        "cross_attention": None if cross is None else _cross_attention(config, cross),
    }
    module = _attention(config, mixer) if isinstance(mixer, Pattern) else _transform(config, mixer)
    if config.block == "all_attention":
        return AsterismAllAttentionBlock(module, config.hidden_size, **options)
    kind = AsterismBlock if config.block == "pre_norm" else AsterismPostNormBlock
    layer = GatedFeedForward if config.gated_feed_forward else FeedForward
    sizes = config.hidden_size, config.intermediate_size
    return kind(module, config.hidden_size, layer(*sizes, config.hidden_act, config.feed_forward_bias), **options)


def _transform(config: AsterismConfig, mixer: Transform) -> FourierMixing | LinearMixing:
    if isinstance(mixer, Linear):
        tokens = config.max_position_embeddings + config.global_tokens
        return LinearMixing(tokens, config.hidden_size, learned=mixer.learned)
    return FourierMixing()


def _attention(config: AsterismConfig, pattern: Pattern) -> SparseAttention:
    sizes = config.hidden_size, config.num_attention_heads
    if config.block == "all_attention":
        return PersistentAttention(
            *sizes,
            pattern,
            config.persistent_vectors,
            num_key_value_heads=config.num_key_value_heads,
            query_key_dim=config.query_key_dim,
            implementation=config.implementation,
            span=config.relative_span,
            relative_positions=config.position_type == "relative",
            adaptive_span_ramp=config.adaptive_span_ramp if config.adaptive_span else None,
        )
    return SparseAttention(
        *sizes,
        pattern,
        rotary=Rotary(config.rope_theta) if config.position_type == "rotary" else None,
        global_projections=config.global_projections,
        index_dim=config.index_dim if pattern.chooses else 0,
        **_options(config),
    )


def _cross_attention(config: AsterismConfig, pattern: Pattern) -> CrossAttention:
    return CrossAttention(config.hidden_size, config.num_attention_heads, pattern, **_options(config))


def _options(config: AsterismConfig) -> dict[str, Any]:
    return {
        "num_key_value_heads": config.num_key_value_heads,
        "query_key_dim": config.query_key_dim,
        "value_dim": config.value_dim,
        "scale": config.attention_scale,
        "implementation": config.implementation,
        "bias": config.attention_bias,
    }


def make_positions(config: AsterismConfig) -> FactorisedPositions | SinusoidalPositions | None:
    """What is added to the token embedding; None when attention itself knows where tokens stand, or nothing does.

    Raises ConfigurationError for a shape of factorised positions that is too small.
    """
    if config.position_type == "sinusoidal":
        return SinusoidalPositions(config.embedding_width)
    if not config.positions_end:
        return None
    if config.position_shape is None:
        return LearnedPositions(config.max_position_embeddings, config.embedding_width)
    positions = FactorisedPositions(config.position_shape, config.embedding_width)
    if positions.capacity < config.max_position_embeddings:
        raise ConfigurationError(
            "positions-too-few",
            f"position_shape {config.position_shape} holds {positions.capacity} positions,"
            f" fewer than max_position_embeddings {config.max_position_embeddings}",
        )
    return positions


def make_distances(config: AsterismConfig, *, both_sides: bool) -> RelativePositions | BucketedPositions | None:
    """What all layers of a stack know of distances, if anything; of `both_sides` of a query, or of those before it."""
    if config.position_type == "relative":
        return RelativePositions(config.relative_span, config.query_key_dim // config.num_attention_heads)
    if config.position_type == "buckets":
        return BucketedPositions(
            config.relative_buckets,
            config.num_attention_heads,
            max_distance=config.relative_max_distance,
            bidirectional=both_sides,
        )
    return None
