"""The fields of a model in one table: type, default, meaning and limits of each.

`AsterismConfig` takes its fields and their documentation from here, runs their `model`, the command line its flags.
This is plain data: importing it loads neither torch nor transformers.
"""

import operator
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Literal, get_args

from asterism.errors import ConfigurationError, nearest

Activation = Literal["quick_gelu", "gelu", "gelu_new", "relu", "silu"]
Block = Literal["pre_norm", "post_norm", "all_attention"]
Implementation = Literal["auto", "reference", "eager", "cpu", "triton", "dense"]
Pooling = Literal["cls", "mean"]
PoolerActivation = Literal["tanh", "quick_gelu", "gelu", "gelu_new", "relu", "silu"]
Norm = Literal["layer", "rms"]
PositionType = Literal["learned", "sinusoidal", "factorised", "rotary", "buckets", "relative", "none"]


def _field(default: Any, meaning: str, **limits: float) -> Any:
    """A field of the table. Limits: `least` of a whole number; `minimum`, `above` and `below` of any number."""
    return field(default=default, metadata={"help": " ".join(meaning.split()), **limits})


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The architecture of a model. A field that is None takes the default that its meaning names.

    Raises ConfigurationError for a value that no model can have. The model checks how fields fit each other.
    """

    mixers: str | tuple[str, ...] = _field(
        "causal()",
        """who attends to whom: a pattern, or a schedule such as "interleave(window(left=127), stride(period=128) &
        causal())", for all layers, or one text per layer; "fourier()" and "linear()" mix tokens without attention""",
    )
    decoder_mixers: str | tuple[str, ...] | None = _field(
        None,
        """causal patterns of a decoder's layers, written as `mixers`, which then describes the encoder (default: no
        decoder; with one, the model is AsterismForConditionalGeneration)""",
    )
    cross_mixers: str | tuple[str, ...] = _field(
        "dense()",
        """which source tokens the tokens of the decoder read, for all its layers or one text per layer; "across(...)"
        defines the source position of a decoder token""",
    )
    block: Block = _field(
        "pre_norm",
        """"pre_norm" (Child 2019, plus a norm after the last block), "post_norm" (BERT), or "all_attention"
        (Sukhbaatar 2019: no feed-forward layer, no bias in attention)""",
    )
    vocab_size: int | None = _field(
        None, "size of the vocabulary (default: 256, the bytes; in a run, that of its tokenizer)", least=1
    )
    hidden_size: int = _field(256, "width of the hidden states", least=1)
    num_hidden_layers: int = _field(4, "number of blocks", least=1)
    num_decoder_layers: int | None = _field(
        None, "number of blocks of the decoder, if there is one (default: num_hidden_layers)", least=1
    )
    num_attention_heads: int = _field(4, "number of query heads", least=1)
    num_key_value_heads: int | None = _field(
        None, "key and value heads, each shared by a group of query heads (default: one per query head)", least=1
    )
    query_key_dim: int | None = _field(
        None, "width of the queries over all heads, a multiple of the number of heads (default: hidden_size)", least=1
    )
    value_dim: int | None = _field(
        None, "width of the values over all heads, a multiple of the number of heads (default: hidden_size)", least=1
    )
    index_dim: int = _field(
        0,
        """width of an index branch in each layer whose pattern has selected(...): queries and keys of its own, which
        choose the blocks and learn from attention in training; 0 for none""",
        least=0,
    )
    attention_scale: float | None = _field(
        None, "factor of the attention scores (default: 1 / sqrt(width of a query head))", above=0
    )
    intermediate_size: int | None = _field(
        None, "width inside the feed-forward layer, if the block has one (default: 4 * hidden_size)", least=1
    )
    attention_bias: bool = _field(True, "add a bias to the projections of attention")
    feed_forward_bias: bool = _field(True, "add a bias to the matrices of the feed-forward layer")
    gated_feed_forward: bool = _field(
        False, "use a gated feed-forward layer, W_2 (f(W_g x) * W_1 x), in place of W_2 f(W_1 x) (Shazeer 2020)"
    )
    persistent_vectors: int = _field(0, "learned keys and values of every head of an all-attention block", least=0)
    adaptive_span: bool = _field(
        False, "every head of an all-attention block learns how far it reads, up to relative_span"
    )
    adaptive_span_ramp: int = _field(
        32, "tokens at the end of a span over which the weight of a key falls to 0", least=1
    )
    adaptive_span_penalty: float = _field(
        1e-7, "loss per token of span: the mean over the heads of each layer, summed over layers", minimum=0
    )
    relative_span: int | None = _field(
        None,
        """largest distance read by an all-attention block with relative positions or an adaptive span; its patterns
        must be causal (default: none, for other blocks)""",
        least=1,
    )
    max_position_embeddings: int | None = _field(
        None,
        """tokens that learned and factorised positions cover; for other positions the intended length, which is not
        enforced (default: 1024; in a run, its context)""",
        least=1,
    )
    decoder_max_position_embeddings: int | None = _field(
        None, "the same for the decoder, if there is one (default: max_position_embeddings)", least=1
    )
    position_type: PositionType = _field(
        "learned",
        """"learned"; "sinusoidal" (Vaswani 2017, sines in the first half of the features); "factorised"; "rotary";
        "buckets" (T5: a bias per head and range of distances, shared by the layers of a stack); "relative"
        (all-attention blocks: a key embedding per distance up to relative_span, shared by all layers and heads); or
        "none\"""",
    )
    relative_buckets: int = _field(
        32, 'number of ranges of distances with a bias each, where position_type is "buckets"', least=4
    )
    relative_max_distance: int = _field(
        128, "distance beyond which all tokens share a bucket, in each direction", least=2
    )
    position_shape: tuple[int, ...] | None = _field(
        None,
        """axes of factorised positions, the last one fastest; their product must be at least max_position_embeddings
        (default: none, for other positions)""",
    )
    rope_theta: float = _field(10000.0, "base of the angles of rotary positions", above=0)
    type_vocab_size: int = _field(0, "number of token types; 0 for none", least=0)
    embedding_size: int | None = _field(
        None,
        """width of the embeddings of tokens, positions and types, which a linear layer maps to hidden_size; FNet has
        one of equal width (default: hidden_size, without that layer)""",
        least=1,
    )
    share_embeddings: bool = _field(True, "encoder and decoder, if there is one, share the token embedding")
    embedding_scale: float = _field(1.0, "factor of the token embedding: sqrt(hidden_size) in Vaswani 2017", above=0)
    embedding_norm: bool = _field(
        False,
        "put a norm on the sum of the embeddings, before the linear layer of embedding_size, and dropout after it",
    )
    global_tokens: int = _field(
        0,
        """learned tokens in front of every sequence, as in BigBird-ETC; patterns cover them and the sequence,
        positions and outputs leave them out; bigbird_etc(globals=g) expects g of them""",
        least=0,
    )
    global_projections: tuple[int, ...] | None = _field(
        None,
        """positions of tokens that attend through separate projections and read every key, as in Longformer (default:
        none)""",
    )
    hidden_act: Activation = _field(
        "quick_gelu", 'activation of the feed-forward layer; "quick_gelu" is x * sigmoid(1.702 x)'
    )
    pooler_act: PoolerActivation = _field("tanh", "activation of the pooled token")
    classifier_pooling: Pooling = _field(
        "cls",
        """how a classifier represents a sequence: by its first real token, "cls", or by the mean of the real tokens,
        "mean", which learns faster when the evidence is spread over a long document""",
    )
    dropout: float = _field(0.0, "dropout at the end of each residual branch", minimum=0, below=1)
    attention_dropout: float = _field(
        0.0,
        """dropout of attended pairs in training, where each call of `forward` requires a dropout_seed; equal seeds
        drop equal pairs on every machine and in every implementation""",
        minimum=0,
        below=1,
    )
    classifier_dropout: float | None = _field(
        None, "dropout before the last layer of a classifier (default: dropout)", minimum=0, below=1
    )
    norm: Norm = _field(
        "layer", 'type of every norm: "layer" (LayerNorm) or "rms" (RMSNorm, which subtracts no mean and has no bias)'
    )
    layer_norm_eps: float = _field(1e-5, "term that every norm adds to the variance or the mean square", minimum=0)
    initializer_gain: float = _field(0.125, "standard deviation of a new weight times sqrt(d_in) (Child 2019)", above=0)
    initializer_range: float | None = _field(
        None,
        "standard deviation of every new matrix, in place of initializer_gain, as in BERT (default: by the gain)",
        above=0,
    )
    tie_word_embeddings: bool = _field(False, "use the token embedding as the last layer")
    tie_encoder_decoder: bool = _field(
        False, "encoder and decoder share all weights except those of cross attention (BigBird base, summarising)"
    )
    logit_scale: float = _field(
        1.0, "factor of the last hidden states before the last layer of a model that generates", above=0
    )
    lm_head_bias: bool = _field(False, "add a bias to the last layer of a model that generates")
    implementation: Implementation = _field("auto", "kernel that computes attention, as in asterism.attend")

    def __post_init__(self) -> None:
        check_values(vars(self))


RULES = MappingProxyType({one.name: one for one in fields(ModelConfig)})
"""The rows of the table by name."""

MIXERS = ("mixers", "decoder_mixers", "cross_mixers")
"""The fields that hold patterns."""


_HOLDS = {"minimum": operator.ge, "above": operator.gt, "below": operator.lt}
_WORDS = {"minimum": "at least {}", "above": "above {}", "below": "below {}"}


def check_values(values: Mapping[str, object]) -> None:
    """Raises ConfigurationError for the first value that the field of its name cannot have; other names pass."""
    for name in RULES:
        if name in values and (reason := complaint(name, values[name])):
            raise ConfigurationError("field-refused", reason)


def complaint(name: str, value: object) -> str | None:
    """Why the field cannot have the value, or None if it can."""
    rule, limits = RULES[name], RULES[name].metadata
    if value is None and rule.default is None:
        return None
    if choices := choices_of(name):
        known = f"known are {', '.join(choices)}.{nearest(str(value), choices)}"
        return None if value in choices else f"unknown {name} {value!r}; {known}"
    if "least" in limits and not (isinstance(value, int) and value >= limits["least"]):
        return f"{name} must be an integer of at least {limits['least']}, got {value!r}"
    bounds = [key for key in ("minimum", "above", "below") if key in limits]
    if bounds and not (isinstance(value, int | float) and all(_HOLDS[key](value, limits[key]) for key in bounds)):
        return f"{name} must be {' and '.join(_WORDS[key].format(limits[key]) for key in bounds)}, got {value!r}"
    return None


def choices_of(name: str) -> tuple[str, ...]:
    """What a field can be chosen from; empty if it is no choice."""
    return tuple(choice for choice in get_args(RULES[name].type) if isinstance(choice, str))


def described() -> str:
    """The table as lines of a docstring: name and meaning."""
    column = 4 + max(map(len, RULES)) + 2
    lines = []
    for name, rule in RULES.items():
        first, *others = textwrap.wrap(rule.metadata["help"], 120 - column)
        lines += [f"    {name}".ljust(column) + first, *(" " * column + other for other in others)]
    return "\n".join(lines)
