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
from asterism.patterns import Pattern, parse, parse_schedule, require_causal

POSITION_TYPES = ("learned", "factorised", "rotary")


class AsterismConfig(PreTrainedConfig):
    """What a causal transformer with sparse attention is made of.

    mixers                   who attends to whom: the text of a pattern or schedule for all layers, such as
                             "interleave(window(left=127), stride(period=128) & causal())", or a list with one text per
                             layer. A Pattern or Schedule is turned into its text.
    num_key_value_heads      key and value heads, shared by groups of query heads; by default one per query head
    query_key_dim            width of the queries over all heads; by default hidden_size
    intermediate_size        width of the feed-forward part; by default 4 * hidden_size
    max_position_embeddings  how many tokens learned and factorised positions reach. Rotary positions do not end: there
                             it says for which length the model is meant, and refuses nothing.
    position_shape           the axes of factorised positions, last axis fastest; their product must reach
                             max_position_embeddings. Only for position_type "factorised".
    hidden_act               "quick_gelu" (x * sigmoid(1.702 x)), "gelu", "relu" or "silu"
    dropout                  at the end of each residual branch; there is none inside attention
    initializer_gain         standard deviation of a weight times sqrt(d_in); see `asterism.layers.initialisation`
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
    position_type: str = "learned"
    position_shape: list[int] | None = None
    rope_theta: float = 10000.0
    hidden_act: str = "quick_gelu"
    dropout: float = 0.0
    layer_norm_eps: float = 1e-5
    initializer_gain: float = 0.125
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

    def layer_patterns(self) -> list[Pattern]:
        """The pattern of each layer, checked for use in a causal model.

        Raises PatternError for a text that cannot be read and for a pattern that is not causal or not prefix-stable,
        ConfigurationError for a list whose length is not the number of layers.
        """
        if isinstance(self.mixers, str):
            schedule = parse_schedule(self.mixers)
            patterns = [schedule.layer(number) for number in range(self.num_hidden_layers)]
        else:
            if len(self.mixers) != self.num_hidden_layers:
                raise ConfigurationError(
                    f"mixers lists {len(self.mixers)} patterns for {self.num_hidden_layers} layers;"
                    " give one per layer, or one schedule for all"
                )
            patterns = [parse(text) for text in self.mixers]
        for pattern in dict.fromkeys(patterns):
            require_causal(pattern)
        return patterns

    def check(self) -> None:
        """Raises ConfigurationError for values that no model can have; layers check what concerns only them."""
        for name in (
            "vocab_size",
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "query_key_dim",
            "intermediate_size",
            "max_position_embeddings",
        ):
            size = getattr(self, name)
            if not isinstance(size, int) or size < 1:
                raise ConfigurationError(f"{name} must be an integer of at least 1, got {size!r}")
        if not 0 <= self.dropout < 1:
            raise ConfigurationError(f"dropout must be at least 0 and below 1, got {self.dropout}")
        for name, known in (("position_type", POSITION_TYPES), ("implementation", IMPLEMENTATIONS)):
            choice = getattr(self, name)
            if choice not in known:
                raise ConfigurationError(
                    f"unknown {name} {choice!r}; known are {', '.join(known)}.{nearest(choice, known)}"
                )
        if (self.position_shape is not None) != (self.position_type == "factorised"):
            raise ConfigurationError(
                f"position_shape belongs to position_type 'factorised', which needs it;"
                f" got position_type {self.position_type!r} and position_shape {self.position_shape}"
            )
