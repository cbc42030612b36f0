"""`config.asterism_pattern`: the pattern of a transformers model, stored in its configuration as text.

The field is what makes a pattern last. It travels through `save_pretrained`, `config.json` and `from_pretrained`
together with the name of the attention implementation, which transformers reads from a configuration but does not
write. So a saved model never turns dense by itself: with `asterism.models` imported, the class of transformers loads it
with its pattern, and without, transformers refuses to build it, because no attention of that name is known.
"""

from collections.abc import Sequence
from functools import wraps
from typing import Any, Literal, get_args

from transformers import PreTrainedConfig

from asterism.errors import ConfigurationError, shown
from asterism.patterns import Pattern, Schedule, as_schedule, in_full, layer_mixers

IMPLEMENTATION = "asterism"
"""The name of the attention function in transformers. Names with "sdpa", "flex" or "flash" in them change the model."""


NativeWindow = Literal["replace", "intersect"]
"""What becomes of a window of the model's own: the pattern takes its place, or a query reads what both allow."""

INCLUDED = "included"
"""What is written for patterns that are made with the model's own (`native`), which holds its windows already."""

WINDOW_FIELD = "asterism_native_window"
"""Where it stands in a configuration, next to the pattern."""

Positions = Literal["original", "cache"]
"""Where a rotary model sees its keys: where they stood in the text, or among those that are read (positions.py)."""

POSITIONS_FIELD = "asterism_positions"
"""Where this stands in a configuration; it is left out for the original ones."""

OWN_FIELD = "asterism_native_patterns"
"""Next to a pattern that is made with the model's own: the texts of these, one per layer."""


_BESIDE = (WINDOW_FIELD, OWN_FIELD, POSITIONS_FIELD)
"""What goes with the pattern when it goes."""


class PatternField:
    """A field of every configuration of transformers: a text for all layers, or a list with one text per layer.

    None, and not saved, when the model follows no pattern. Setting a text selects the attention implementation, too.
    """

    name = "asterism_pattern"

    def __get__(self, config: PreTrainedConfig | None, owner: type) -> "str | list[str] | None | PatternField":
        return self if config is None else vars(config).get(self.name)

    def __set__(self, config: PreTrainedConfig, text: str | list[str] | None) -> None:
        fields = vars(config)
        if text is None:
            fields.pop(self.name, None)
            fields.pop("attn_implementation", None)
            for name in _BESIDE:
                fields.pop(name, None)
            return
        fields[self.name] = text
        fields["attn_implementation"] = IMPLEMENTATION  # what is saved
        config._attn_implementation = IMPLEMENTATION  # what is used

    @classmethod
    def register(cls) -> None:
        """Give the field to all configurations, also to those read from files. Calling it again changes nothing."""
        if hasattr(PreTrainedConfig, cls.name):
            return
        setattr(PreTrainedConfig, cls.name, cls())
        _let_another_attention_be_asked_for(PreTrainedConfig)


def _let_another_attention_be_asked_for(kind: Any) -> None:
    """`from_pretrained(..., attn_implementation="sdpa")` selects it, and a pattern that is set aside is not saved.

    One that is saved has every argument.
    """
    read, write = kind.from_dict, kind.to_dict

    def from_dict(cls: Any, /, config_dict: dict[str, Any], **given: Any) -> Any:
        result = read.__func__(cls, config_dict, **given)
        if (asked := given.get("attn_implementation")) is not None:
            config = result[0] if isinstance(result, tuple) else result
            config._attn_implementation = asked  # the pattern, read after it, has selected its own
        return result

    @wraps(write)
    def to_dict(self: Any) -> dict[str, Any]:
        written: dict[str, Any] = write(self)
        if PatternField.name in written and is_set_aside(self):
            for name in (PatternField.name, *_BESIDE, "attn_implementation"):
                written.pop(name, None)
        if PatternField.name in written:
            written[PatternField.name] = in_full(written[PatternField.name])
        return written

    kind.from_dict, kind.to_dict = classmethod(from_dict), to_dict


def is_set_aside(config: PreTrainedConfig) -> bool:
    """Whether another attention is selected than that by patterns."""
    return config._attn_implementation not in (None, IMPLEMENTATION)


def read_native_window(config: PreTrainedConfig) -> NativeWindow | Literal["included"]:
    """What the configuration says about windows of the model's own; "replace" where it says nothing.

    A model that has one is refused at its first call then (`require_native_window`).

    Raises ConfigurationError for anything else that stands there.
    """
    said = vars(config).get(WINDOW_FIELD, "replace")
    if said not in (*get_args(NativeWindow), INCLUDED):
        raise ConfigurationError(
            "native-window-choice", f'native_window must be "replace" or "intersect", got {shown(said)}'
        )
    return said


def write_native_window(config: PreTrainedConfig, native_window: str) -> None:
    """Keep it next to the pattern, so that a saved model reads the same keys."""
    vars(config)[WINDOW_FIELD] = native_window
    read_native_window(config)


def read_positions(config: PreTrainedConfig) -> Positions:
    """Which positions keys have, as the configuration says. Raises ConfigurationError for anything else there."""
    said = vars(config).get(POSITIONS_FIELD, "original")
    if said not in get_args(Positions):
        raise ConfigurationError("positions-choice", f'positions must be "original" or "cache", got {shown(said)}')
    return said


def write_positions(config: PreTrainedConfig, positions: str) -> None:
    """Keep it next to the pattern."""
    vars(config)[POSITIONS_FIELD] = positions
    if read_positions(config) == "original":
        del vars(config)[POSITIONS_FIELD]


def require_native_window(config: PreTrainedConfig, window: int) -> None:
    """Raises ConfigurationError for a window of the model's own where nobody said what becomes of it."""
    if WINDOW_FIELD not in vars(config):
        raise ConfigurationError(
            "native-window-unsaid",
            f'the model has its own window of {window} tokens: use_pattern(model, pattern, native_window="intersect")'
            ' reads where both the window and the pattern allow, native_window="replace" follows the pattern alone;'
            " choose one",
        )


def write_patterns(given: Pattern | Schedule | str | Sequence[Pattern | str]) -> str | list[str]:
    """What the field holds for a pattern or schedule, or for one pattern per layer. Raises PatternError for others."""
    schedule = as_schedule(given)
    texts = [str(pattern) for pattern in schedule.patterns]
    return str(schedule) if isinstance(given, str | Pattern | Schedule) else texts


def read_patterns(texts: str | Sequence[str] | None, layers: int) -> tuple[Pattern, ...]:
    """The pattern of each layer, from what the field holds.

    Raises PatternError for a text that cannot be read and for a mixer that is no pattern, ConfigurationError for an
    empty field, for a list whose length is not the number of layers, and for a schedule with more patterns than layers,
    the last of which would never be used.
    """
    if texts is None:
        raise ConfigurationError(
            "no-pattern-in-configuration",
            "the model's configuration names no pattern (asterism_pattern); give one, use_pattern(model, pattern)",
        )
    patterns = Schedule(layer_mixers(texts, layers)).patterns
    if (period := as_schedule(texts).period) > layers:
        raise ConfigurationError(
            "schedule-too-long",
            f"the schedule has {period} patterns and the model {layers} layers of attention, so some would never be"
            f" used; give at most {layers}",
        )
    return patterns
