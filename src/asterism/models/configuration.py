"""The configuration of an Asterism model: widths, depth, and the patterns as text.

A configuration is plain data. It always loads, so that a file can be looked at and repaired; what cannot work is
refused when a model is built from it.
"""

import difflib
from dataclasses import fields
from typing import Any

from transformers import PreTrainedConfig

from asterism.errors import ConfigurationError, nearest
from asterism.kernels import IMPLEMENTATIONS
from asterism.layers import within_span
from asterism.layers.block import ACTIVATIONS
from asterism.layers.fourier import NOT_CAUSAL
from asterism.models.mixers import Fourier, parse_mixers
from asterism.patterns import Pattern, require_causal

BLOCKS = ("pre_norm", "post_norm", "all_attention")
POOLINGS = ("cls", "mean")
POSITION_TYPES = ("learned", "factorised", "rotary", "relative", "none")


class AsterismConfig(PreTrainedConfig):
    """What a transformer with sparse attention is made of; it is causal when its patterns are.

    mixers                   who attends to whom: the text of a pattern or schedule for all layers, such as
                             "interleave(window(left=127), stride(period=128) & causal())", or a list with one text per
                             layer. A Pattern or Schedule is turned into its text. "fourier()" is Fourier mixing in the
                             place of attention.
    block                    "pre_norm" (Child 2019, with one more norm after the last block), "post_norm" (BERT) or
                             "all_attention" (Sukhbaatar 2019: no feed-forward part, no bias in attention)
    persistent_vectors       keys and values that every head of an all-attention block has of its own
    adaptive_span            whether every head of an all-attention block learns how far it reads, up to relative_span,
                             with a ramp of adaptive_span_ramp tokens at the end. In training, the sum over the layers
                             of the mean span in tokens, times adaptive_span_penalty, is added to the loss.
    num_key_value_heads      key and value heads, shared by groups of query heads; by default one per query head
    query_key_dim            width of the queries over all heads; by default hidden_size
    intermediate_size        width of the feed-forward part, if the block has one; by default 4 * hidden_size
    max_position_embeddings  how many tokens learned and factorised positions reach. Rotary positions do not end: there
                             it says for which length the model is meant, and refuses nothing.
    position_type            "learned", "factorised", "rotary", "relative" (all-attention blocks: a key embedding for
                             each distance up to relative_span, shared by all layers and heads), or "none"
    relative_span            the furthest distance that an all-attention block with relative positions or an adaptive
                             span reads; its patterns must be causal
    position_shape           the axes of factorised positions, last axis fastest; their product must reach
                             max_position_embeddings. Only for position_type "factorised".
    type_vocab_size          how many token types are embedded; 0 for none
    embedding_size           width of the embeddings of tokens, positions and types, when a linear layer brings them to
                             hidden_size (FNet has one, of equal width); by default hidden_size, without that layer
    embedding_norm           a LayerNorm on the sum of the embeddings, before that layer, and dropout after it
    global_tokens            learned tokens in front of every sequence, as in BigBird-ETC. The patterns cover
                             global_tokens + N tokens; positions and outputs leave them out. bigbird_etc(globals=g)
                             is meant for global_tokens=g: of fewer or more, tokens of the text are global, or some of
                             these are not.
    attention_bias           whether the projections of attention have a bias
    global_projections       places of tokens that ask through projections of their own and read every key (Longformer)
    hidden_act               "quick_gelu" (x * sigmoid(1.702 x)), "gelu", "gelu_new", "relu" or "silu"
    pooler_act               what the pooled token goes through: "tanh" or one of hidden_act
    classifier_pooling       which token speaks for a whole sequence: the first real one, "cls", or the mean of the real
                             ones, "mean", which learns faster when what decides is spread over a long document
    dropout                  at the end of each residual branch; there is none inside attention
    classifier_dropout       before the last layer of a classifier; by default dropout
    initializer_gain         standard deviation of a weight times sqrt(d_in); see `asterism.layers.initialisation`
    initializer_range        standard deviation of every matrix, in place of initializer_gain
    implementation           which kernel computes attention, as in `asterism.attend`

    Defaults that depend on other fields are filled in at once, so they can be read. Raises ConfigurationError for an
    argument that looks like a misspelt field; everything else is checked when a model is built.
    """

    model_type = "asterism"
    keys_to_ignore_at_inference = ["past_key_values"]

    vocab_size: int = 256
    hidden_size: int = 256
    num_hidden_layers: int = 4
    num_attention_heads: int = 8
    num_key_value_heads: int | None = None
    query_key_dim: int | None = None
    intermediate_size: int | None = None
    max_position_embeddings: int = 1024
    mixers: str | list[str] = "causal()"
    block: str = "pre_norm"
    persistent_vectors: int = 0
    adaptive_span: bool = False
    adaptive_span_ramp: int = 32
    adaptive_span_penalty: float = 1e-7
    position_type: str = "learned"
    position_shape: list[int] | None = None
    relative_span: int | None = None
    rope_theta: float = 10000.0
    type_vocab_size: int = 0
    embedding_size: int | None = None
    embedding_norm: bool = False
    global_tokens: int = 0
    attention_bias: bool = True
    global_projections: list[int] | None = None
    hidden_act: str = "quick_gelu"
    pooler_act: str = "tanh"
    classifier_pooling: str = "cls"
    dropout: float = 0.0
    classifier_dropout: float | None = None
    layer_norm_eps: float = 1e-5
    initializer_gain: float = 0.125
    initializer_range: float | None = None
    implementation: str = "auto"
    tie_word_embeddings: bool = False
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        names = {field.name for field in fields(self)}
        for name in kwargs:
            if meant := difflib.get_close_matches(name, names, n=1, cutoff=0.85):
                raise ConfigurationError(f"AsterismConfig has no field {name!r}. Did you mean {meant[0]!r}?")
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads
        if self.query_key_dim is None:
            self.query_key_dim = self.hidden_size
        if self.intermediate_size is None:
            self.intermediate_size = 4 * self.hidden_size
        mixers = self.mixers
        self.mixers = [str(mixer) for mixer in mixers] if isinstance(mixers, list | tuple) else str(mixers)
        super().__post_init__(**kwargs)

    def layer_mixers(self) -> list[Pattern | Fourier]:
        """What mixes the tokens of each layer.

        Raises PatternError for a text that cannot be read, ConfigurationError for a list whose length is not the number
        of layers.
        """
        return parse_mixers(self.mixers, self.num_hidden_layers)

    def layer_patterns(self) -> list[Pattern]:
        """The pattern that each layer reads by, for what needs one in every layer, such as a cache.

        Raises what `layer_mixers` raises, and ConfigurationError when a layer mixes without a pattern or when
        relative_span limits one that is not causal.
        """
        mixers = self.layer_mixers()
        if any(isinstance(mixer, Fourier) for mixer in mixers):
            raise ConfigurationError(NOT_CAUSAL)
        if self.relative_span is None:
            return mixers
        return [within_span(pattern, self.relative_span) for pattern in mixers]

    def require_causal(self) -> None:
        """Raises ConfigurationError or PatternError for what a causal model cannot have."""
        for pattern in dict.fromkeys(self.layer_patterns()):
            require_causal(pattern)
        for name in ("global_tokens", "global_projections"):
            if getattr(self, name):
                raise ConfigurationError(
                    f"{name}={getattr(self, name)} cannot be used by a causal model or with a cache:"
                    " such tokens read the future"
                )

    @property
    def embedding_width(self) -> int:
        """The width of the embeddings before they are brought to hidden_size."""
        return self.hidden_size if self.embedding_size is None else self.embedding_size

    @property
    def positions_end(self) -> bool:
        """Whether no more than max_position_embeddings tokens can be read: each has a position in a table."""
        return self.position_type in ("learned", "factorised")

    def check(self) -> None:
        """Raises ConfigurationError for values that no model can have; layers check what concerns only them."""
        self._check_numbers()
        for name, known in _CHOICES.items():
            choice = getattr(self, name)
            if choice not in known:
                raise ConfigurationError(
                    f"unknown {name} {choice!r}; known are {', '.join(known)}.{nearest(str(choice), known)}"
                )
        if (self.position_shape is not None) != (self.position_type == "factorised"):
            raise ConfigurationError(
                f"position_shape belongs to position_type 'factorised', which needs it;"
                f" got position_type {self.position_type!r} and position_shape {self.position_shape}"
            )
        if (self.relative_span is not None) != (self.position_type == "relative" or self.adaptive_span):
            raise ConfigurationError(
                f"relative_span belongs to position_type 'relative' and to adaptive_span, which need it;"
                f" got position_type {self.position_type!r}, adaptive_span {self.adaptive_span}"
                f" and relative_span {self.relative_span}"
            )
        self._check_block()

    def _check_numbers(self) -> None:
        for name in _COUNTS:
            self._check_count(name, 1)
        for name in ("type_vocab_size", "global_tokens", "persistent_vectors"):
            self._check_count(name, 0)
        for name in ("embedding_size", "relative_span"):
            if getattr(self, name) is not None:
                self._check_count(name, 1)
        for name in ("dropout", "classifier_dropout"):
            rate = getattr(self, name)
            if rate is not None and not 0 <= rate < 1:
                raise ConfigurationError(f"{name} must be at least 0 and below 1, got {rate}")
        if self.initializer_range is not None and not self.initializer_range > 0:
            raise ConfigurationError(f"initializer_range must be positive, got {self.initializer_range}")
        if not self.adaptive_span_penalty >= 0:
            raise ConfigurationError(f"adaptive_span_penalty must not be negative, got {self.adaptive_span_penalty}")

    def _check_block(self) -> None:
        """Raises ConfigurationError for options of attention and of blocks that do not go together."""
        attends = [isinstance(mixer, Pattern) for mixer in self.layer_mixers()]
        if self.block == "all_attention":
            refused = {
                "no feed-forward part, so fourier() cannot be its mixer": not all(attends),
                "no bias in its attention: set attention_bias=False": self.attention_bias,
                "persistent vectors: set persistent_vectors to 1 or more": self.persistent_vectors == 0,
                "no rotary positions: use position_type 'relative', 'learned', 'factorised' or 'none'": (
                    self.position_type == "rotary"
                ),
                "no global_projections": self.global_projections is not None,
            }
        else:
            refused = {
                "no persistent_vectors: they are for block 'all_attention'": self.persistent_vectors > 0,
                "no adaptive_span: it is for block 'all_attention'": self.adaptive_span,
                "no relative positions: they are for block 'all_attention'": self.position_type == "relative",
            }
            if not any(attends):
                refused |= {
                    "only fourier() for its mixers, which knows no rotary positions": self.position_type == "rotary",
                    "only fourier() for its mixers, which knows no global_projections": (
                        self.global_projections is not None
                    ),
                }
        for reason, holds in refused.items():
            if holds:
                raise ConfigurationError(f"block {self.block!r} has {reason}")

    def _check_count(self, name: str, least: int) -> None:
        size = getattr(self, name)
        if not isinstance(size, int) or size < least:
            raise ConfigurationError(f"{name} must be an integer of at least {least}, got {size!r}")


_COUNTS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "query_key_dim",
    "intermediate_size",
    "max_position_embeddings",
    "adaptive_span_ramp",
)

_CHOICES = {
    "block": BLOCKS,
    "position_type": POSITION_TYPES,
    "pooler_act": ("tanh", *ACTIVATIONS),
    "classifier_pooling": POOLINGS,
    "implementation": IMPLEMENTATIONS,
}
