"""The configuration of an Asterism model: the fields of `asterism.shape`, and the patterns as text.

A configuration is plain data. Every file loads, so that it can be inspected and repaired. The constructor refuses a
field that cannot work by itself; building a model refuses the rest.
"""

import copy
import difflib
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Self

from transformers import PreTrainedConfig

from asterism.errors import ConfigurationError, PatternError
from asterism.layers import within_span
from asterism.layers.fourier import not_causal
from asterism.patterns import Mixer, Pattern, Transform, in_full, layer_mixers, mixer_counts, require_causal
from asterism.shape import MIXERS, RULES, check_values, complaint, described


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
    """The configuration of a transformer with sparse attention; it is causal if its patterns are.

    With `decoder_mixers` it is an encoder-decoder: `mixers` is for the encoder, and all other fields are for both,
    except those that name one of them. Types, global tokens and global projections belong to the encoder.

    Defaults that depend on other fields are filled in at once, so they can be read. A Pattern or Schedule in `mixers`
    is turned into its text, which is read when a model is built.

    Raises ConfigurationError for an argument that looks like a misspelt field and for a value that no model can have.
    Files and dictionaries (`from_pretrained`, `from_dict`) always load; then building the model raises the error.
    """

    model_type = "asterism"
    keys_to_ignore_at_inference = ["past_key_values", "cache"]

    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    decoder_start_token_id: int | None = None

    if TYPE_CHECKING:
        mixers: str | list[str]
        decoder_mixers: str | list[str] | None
        cross_mixers: str | list[str]
        num_decoder_layers: int | None
        decoder_max_position_embeddings: int | None

        def __init__(self, **fields: Any) -> None: ...

    def __post_init__(self, **kwargs: Any) -> None:
        names = {field.name for field in fields(self)}
        for name in kwargs:
            if meant := difflib.get_close_matches(name, names, n=1, cutoff=0.85):
                raise ConfigurationError(
                    "unknown-field", f"AsterismConfig has no field {name!r}. Did you mean {meant[0]!r}?"
                )
        check_values(vars(self))
        for name, value in {
            "vocab_size": 256,
            "max_position_embeddings": 1024,
            "num_key_value_heads": self.num_attention_heads,
            "query_key_dim": self.hidden_size,
            "value_dim": self.hidden_size,
            "intermediate_size": 4 * self.hidden_size,
        }.items():
            if getattr(self, name) is None:
                setattr(self, name, value)
        self.mixers, self.cross_mixers = _texts(self.mixers), _texts(self.cross_mixers)
        if self.decoder_mixers is not None:
            self.decoder_mixers = _texts(self.decoder_mixers)
            if self.num_decoder_layers is None:
                self.num_decoder_layers = self.num_hidden_layers
            if self.decoder_max_position_embeddings is None:
                self.decoder_max_position_embeddings = self.max_position_embeddings
        self.is_encoder_decoder = self.decoder_mixers is not None
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

    def to_dict(self) -> dict[str, Any]:
        """The fields as a file holds them: patterns with every argument."""
        written: dict[str, Any] = super().to_dict()
        return written | {name: in_full(written[name]) for name in MIXERS if written.get(name) is not None}

    def layer_mixers(self) -> tuple[Mixer, ...]:
        """The mixer of each layer.

        Raises PatternError for a text that cannot be read, ConfigurationError for a list whose length is not the number
        of layers.
        """
        return layer_mixers(self.mixers, self.num_hidden_layers)

    def mixer_counts(self) -> dict[Mixer, int]:
        """Number of layers of each mixer. Raises the errors of `layer_mixers`."""
        return mixer_counts(self.mixers, self.num_hidden_layers)

    def layer_patterns(self) -> list[Pattern]:
        """The pattern of each layer, for users that need one in every layer, such as a cache.

        Raises the errors of `layer_mixers`, and ConfigurationError if a layer has no pattern or relative_span limits
        one that is not causal.
        """
        read = {mixer: self.pattern_of(mixer) for mixer in self.mixer_counts()}
        return [read[mixer] for mixer in self.layer_mixers()]

    def pattern_of(self, mixer: Mixer) -> Pattern:
        """The pattern of layers with this mixer. Raises the errors of `layer_patterns`."""
        if isinstance(mixer, Transform):
            raise ConfigurationError("reads-future", not_causal(mixer))
        return mixer if self.relative_span is None else within_span(mixer, self.relative_span)

    def encoder_config(self) -> Self:
        """The encoder alone, as the configuration of a model without a decoder."""
        encoder = copy.deepcopy(self)
        encoder.decoder_mixers, encoder.is_encoder_decoder = None, False
        if not any(mixer.has_pairs for mixer in encoder.mixer_counts()):
            encoder.attention_dropout = 0.0  # that of the decoder: there are no pairs to drop
        return encoder

    def decoder_config(self) -> Self:
        """The decoder alone, without its cross attention, as the configuration of a causal model.

        Raises ConfigurationError if the configuration has no decoder.
        """
        if self.decoder_mixers is None:
            raise ConfigurationError(
                "no-decoder",
                'this configuration has no decoder: give it one with decoder_mixers, such as decoder_mixers="causal()"',
            )
        decoder = copy.deepcopy(self)
        decoder.decoder_mixers, decoder.is_encoder_decoder = None, False
        decoder.mixers, decoder.num_hidden_layers = self.decoder_mixers, self.num_decoder_layers
        decoder.max_position_embeddings = self.decoder_max_position_embeddings
        decoder.type_vocab_size = decoder.global_tokens = 0
        decoder.global_projections = None
        return decoder

    def require_one_stack(self, model: str) -> None:
        """Raises ConfigurationError for an encoder-decoder, where a model of one stack is built."""
        if self.decoder_mixers is not None:
            raise ConfigurationError(
                "has-decoder",
                f"{model} has one stack, but this configuration has a decoder"
                f" (decoder_mixers={self.decoder_mixers!r}): build AsterismForConditionalGeneration, or pass"
                " config.encoder_config() or config.decoder_config()",
            )

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> Self:
        """One side of an encoder-decoder, for transformers; otherwise the configuration itself."""
        if self.decoder_mixers is None or bool(decoder) == bool(encoder):
            return self
        return self.decoder_config() if decoder else self.encoder_config()

    def cross_patterns(self) -> list[Pattern]:
        """The pattern of cross attention of each decoder layer. Raises the errors of `layer_mixers`."""
        self._check_cross()
        return list(layer_mixers(self.cross_mixers, self.num_decoder_layers or self.num_hidden_layers))  # type: ignore[arg-type]

    def _check_cross(self) -> None:
        for mixer in mixer_counts(self.cross_mixers, self.num_decoder_layers or self.num_hidden_layers):
            if isinstance(mixer, Transform):
                raise ConfigurationError(
                    "cross-needs-patterns",
                    f"cross_mixers must be patterns, but {mixer} is not a pattern: it mixes the tokens of one sequence",
                )

    def require_causal(self) -> None:
        """Raises ConfigurationError or PatternError for fields that a causal model cannot have."""
        for pattern in dict.fromkeys(map(self.pattern_of, self.mixer_counts())):
            require_causal(pattern)
        for name in ("global_tokens", "global_projections"):
            if getattr(self, name):
                raise ConfigurationError(
                    "field-reads-future",
                    f"{name}={getattr(self, name)} cannot be used by a causal model or with a cache:"
                    " such tokens read the future",
                )

    @property
    def embedding_width(self) -> int:
        """The width of the embeddings before they are brought to hidden_size."""
        return self.hidden_size if self.embedding_size is None else self.embedding_size

    @property
    def positions_end(self) -> bool:
        """Whether at most max_position_embeddings tokens can be read, because positions come from a table."""
        return self.position_type in ("learned", "factorised")

    def check(self) -> None:
        """Raises ConfigurationError for values that no model can have; layers check their own fields."""
        check_values(vars(self))
        if (self.position_shape is not None) != (self.position_type == "factorised"):
            raise ConfigurationError(
                "position-shape-unused",
                "position_shape and position_type 'factorised' need each other, got position_type"
                f" {self.position_type!r} and position_shape {self.position_shape}",
            )
        if (self.relative_span is not None) != (self.position_type == "relative" or self.adaptive_span):
            raise ConfigurationError(
                "relative-span-unused",
                "relative_span needs position_type 'relative' or adaptive_span, and both need it; got position_type"
                f" {self.position_type!r}, adaptive_span {self.adaptive_span} and relative_span {self.relative_span}",
            )
        if self.position_type == "buckets" and (
            self.relative_buckets % 4 or self.relative_max_distance <= self.relative_buckets // 2
        ):
            raise ConfigurationError(
                "relative-buckets",
                "relative_buckets must be a multiple of 4, and relative_max_distance more than half of it;"
                f" got {self.relative_buckets} and {self.relative_max_distance}",
            )
        if self.index_dim:
            self._check_index()
        if self.decoder_mixers is None:
            self._check_block()
        else:
            self.encoder_config().check()
            self._check_decoder()

    def _check_index(self) -> None:
        """Raises ConfigurationError for index branches in models that cannot have them."""
        refused = {
            "is for models of one stack, without decoder_mixers": self.decoder_mixers is not None,
            "is not for block 'all_attention'": self.block == "all_attention",
            'needs a layer with selected(...), such as mixers="selected(block=64, topk=16) & causal()"': not any(
                isinstance(mixer, Pattern) and mixer.chooses for mixer in self.mixer_counts()
            ),
        }
        for reason, holds in refused.items():
            if holds:
                raise ConfigurationError("index-field", f"index_dim {self.index_dim} {reason}")

    def _check_decoder(self) -> None:
        """Raises ConfigurationError or PatternError for a decoder that cannot work beside this encoder."""
        decoder = self.decoder_config()
        try:
            decoder.check()
            decoder.require_causal()
        except (ConfigurationError, PatternError) as error:
            raise type(error)(error.code, f"decoder_mixers {self.decoder_mixers!r}: {error}") from error
        self._check_cross()
        if not self.tie_encoder_decoder:
            return
        if without := [mixer for mixer in self.mixer_counts() if not mixer.has_pairs]:
            raise ConfigurationError(
                "tied-transform",
                f"tie_encoder_decoder needs the weights of attention in every mixer, but {without[0]} has none",
            )
        for name in ("num_hidden_layers", "max_position_embeddings"):
            if getattr(self, name) != getattr(decoder, name):
                raise ConfigurationError(
                    "tied-stacks-differ",
                    f"tie_encoder_decoder needs stacks of equal shape: {name} is {getattr(self, name)} in the encoder"
                    f" and {getattr(decoder, name)} in the decoder",
                )
        if not self.share_embeddings:
            raise ConfigurationError(
                "tied-embeddings", "tie_encoder_decoder ties the embeddings too: leave share_embeddings at True"
            )

    def _check_block(self) -> None:
        """Raises ConfigurationError for options of attention and of blocks that do not go together."""
        transforms = [mixer for mixer in self.mixer_counts() if not mixer.has_pairs]
        names = " and ".join(map(str, transforms))
        if self.block == "all_attention":
            refused = {
                f"has no feed-forward layer, so {names} cannot be its mixer": bool(transforms),
                "takes no bias in its attention: set attention_bias=False": self.attention_bias,
                "needs persistent vectors: set persistent_vectors to 1 or more": self.persistent_vectors == 0,
                "takes no rotary positions: use position_type 'relative', 'learned', 'factorised' or 'none'": (
                    self.position_type == "rotary"
                ),
                "takes no global_projections": self.global_projections is not None,
                "takes no buckets: use position_type 'relative', 'learned', 'factorised' or 'none'": (
                    self.position_type == "buckets"
                ),
                "takes no attention_scale: leave it out": self.attention_scale is not None,
                "needs values as wide as its hidden states: leave value_dim out": self.value_dim != self.hidden_size,
                "has no feed-forward layer, so it takes no gate": self.gated_feed_forward,
            }
        else:
            refused = {
                "takes no persistent_vectors: they are for block 'all_attention'": self.persistent_vectors > 0,
                "takes no adaptive_span: it is for block 'all_attention'": self.adaptive_span,
                "takes no relative positions: they are for block 'all_attention'": self.position_type == "relative",
                "takes no buckets together with global_projections, which read keys at any distance": (
                    self.position_type == "buckets" and self.global_projections is not None
                ),
            }
            if len(transforms) == len(self.mixer_counts()):
                refused |= {
                    f"has only {names} mixers, which support no {self.position_type} positions": (
                        self.position_type in ("rotary", "buckets")
                    ),
                    f"has only {names} mixers, which support no attention_dropout": self.attention_dropout > 0,
                    f"has only {names} mixers, which support no global_projections": (
                        self.global_projections is not None
                    ),
                }
        for reason, holds in refused.items():
            if holds:
                raise ConfigurationError("block-field", f"block {self.block!r} {reason}")


def _texts(mixers: Any) -> str | list[str]:
    """Patterns and schedules as their texts."""
    return [str(mixer) for mixer in mixers] if isinstance(mixers, list | tuple) else str(mixers)
