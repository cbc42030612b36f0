"""The configuration of an Asterism model: the fields of `asterism.shape`, and the patterns as text.

A configuration is plain data. What a file holds always loads, so that it can be looked at and repaired. What cannot
work is refused by the constructor where one field alone shows it, and otherwise when a model is built.
"""

import difflib
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Self

from transformers import PreTrainedConfig

from asterism.errors import ConfigurationError
from asterism.layers import within_span
from asterism.layers.fourier import NOT_CAUSAL
from asterism.patterns import Fourier, Mixer, Pattern, layer_mixers, require_causal
from asterism.shape import RULES, check_values, complaint, described


class _FromTable(PreTrainedConfig):
    """Gives a subclass the fields of the table, before transformers makes a dataclass of it, and their help."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        if _FromTable in cls.__bases__:  # and not a subclass of that one, which has its own defaults and words
            for name, rule in RULES.items():
                cls.__annotations__[name] = rule.type
                setattr(cls, name, rule.default)
            cls.__doc__ = f"{cls.__doc__}\n{described()}\n"
        super().__init_subclass__(**arguments)


class AsterismConfig(_FromTable):
    """What a transformer with sparse attention is made of; it is causal when its patterns are.

    Defaults that depend on other fields are filled in at once, so they can be read. A Pattern or Schedule in `mixers`
    is turned into its text, which is read when a model is built.

    Raises ConfigurationError for an argument that looks like a misspelt field and for a value that no model can have.
    What is read from a file or a dictionary (`from_pretrained`, `from_dict`) always loads; then the model refuses it.
    """

    model_type = "asterism"
    keys_to_ignore_at_inference = ["past_key_values"]

    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None

    if TYPE_CHECKING:
        mixers: str | list[str]

        def __init__(self, **fields: Any) -> None: ...

    def __post_init__(self, **kwargs: Any) -> None:
        names = {field.name for field in fields(self)}
        for name in kwargs:
            if meant := difflib.get_close_matches(name, names, n=1, cutoff=0.85):
                raise ConfigurationError(f"AsterismConfig has no field {name!r}. Did you mean {meant[0]!r}?")
        check_values(vars(self))
        for name, value in {
            "vocab_size": 256,
            "max_position_embeddings": 1024,
            "num_key_value_heads": self.num_attention_heads,
            "query_key_dim": self.hidden_size,
            "intermediate_size": 4 * self.hidden_size,
        }.items():
            if getattr(self, name) is None:
                setattr(self, name, value)
        mixers = self.mixers
        self.mixers = [str(mixer) for mixer in mixers] if isinstance(mixers, list | tuple) else str(mixers)
        super().__post_init__(**kwargs)

    @classmethod
    def from_dict(cls, config_dict: Mapping[str, Any], **kwargs: Any) -> Self:
        """The configuration that `to_dict` gave, also where its values cannot work: they are set unchecked.

        Arguments of transformers are as there; those that replace fields are checked. Raises ConfigurationError.
        """
        check_values(kwargs)
        damaged = {name: config_dict[name] for name in RULES if name in config_dict}
        damaged = {name: value for name, value in damaged.items() if complaint(name, value)}
        rest = {name: value for name, value in config_dict.items() if name not in damaged}
        loaded = super().from_dict(rest, **kwargs)
        config = loaded[0] if isinstance(loaded, tuple) else loaded
        for name in damaged.keys() - kwargs.keys():
            setattr(config, name, damaged[name])
        return loaded

    def layer_mixers(self) -> tuple[Mixer, ...]:
        """What mixes the tokens of each layer.

        Raises PatternError for a text that cannot be read, ConfigurationError for a list whose length is not the number
        of layers.
        """
        return layer_mixers(self.mixers, self.num_hidden_layers)

    def layer_patterns(self) -> list[Pattern]:
        """The pattern that each layer reads by, for what needs one in every layer, such as a cache.

        Raises what `layer_mixers` raises, and ConfigurationError when a layer mixes without a pattern or when
        relative_span limits one that is not causal.
        """
        patterns = []
        for mixer in self.layer_mixers():
            if isinstance(mixer, Fourier):
                raise ConfigurationError(NOT_CAUSAL)
            patterns.append(mixer if self.relative_span is None else within_span(mixer, self.relative_span))
        return patterns

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
        check_values(vars(self))
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

    def _check_block(self) -> None:
        """Raises ConfigurationError for options of attention and of blocks that do not go together."""
        attends = [isinstance(mixer, Pattern) for mixer in self.layer_mixers()]
        if self.block == "all_attention":
            refused = {
                "no feed-forward layer, so fourier() cannot be its mixer": not all(attends),
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
                    "only fourier() for its mixers, which knows no attention_dropout": self.attention_dropout > 0,
                    "only fourier() for its mixers, which knows no global_projections": (
                        self.global_projections is not None
                    ),
                }
        for reason, holds in refused.items():
            if holds:
                raise ConfigurationError(f"block {self.block!r} has {reason}")
