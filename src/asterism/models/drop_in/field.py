"""`config.asterism_pattern`: which pattern a transformers model follows, kept in its configuration as text.

The field is what makes a pattern last. It travels through `save_pretrained`, `config.json` and `from_pretrained`
together with the name of the attention implementation, which transformers reads from a configuration but does not
write. So a saved model never turns dense by itself: with `asterism.models` imported, the class of transformers loads it
with its pattern, and without, transformers refuses to build it, because no attention of that name is known.
"""

from collections.abc import Sequence

from transformers import PreTrainedConfig

from asterism.errors import ConfigurationError
from asterism.patterns import Pattern, Schedule, as_schedule, layer_mixers

IMPLEMENTATION = "asterism"
"""The name of the attention function in transformers. Names with "sdpa", "flex" or "flash" in them change the model."""


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
            return
        fields[self.name] = text
        fields["attn_implementation"] = IMPLEMENTATION  # what is saved
        config._attn_implementation = IMPLEMENTATION  # what is used

    @classmethod
    def register(cls) -> None:
        """Give the field to all configurations, also to those read from files."""
        setattr(PreTrainedConfig, cls.name, cls())


def write_patterns(given: Pattern | Schedule | str | Sequence[Pattern | str]) -> str | list[str]:
    """What the field holds for a pattern or schedule, or for one pattern per layer. Raises PatternError for others."""
    schedule = as_schedule(given)
    texts = [pattern.text for pattern in schedule.patterns]
    return str(schedule) if isinstance(given, str | Pattern | Schedule) else texts


def read_patterns(texts: str | Sequence[str] | None, layers: int) -> tuple[Pattern, ...]:
    """The pattern of each layer, from what the field holds.

    Raises PatternError for a text that cannot be read and for a mixer that is no pattern, ConfigurationError for an
    empty field and for a list whose length is not the number of layers.
    """
    if texts is None:
        raise ConfigurationError(
            "the model's configuration names no pattern (asterism_pattern); give one, use_pattern(model, pattern)"
        )
    return Schedule(layer_mixers(texts, layers)).patterns
