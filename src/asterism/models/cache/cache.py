"""The key/value cache of a whole model, which forgets by the patterns of its layers (`layer.py`)."""

from collections.abc import Sequence
from typing import Any, Protocol

from transformers.cache_utils import Cache, DynamicCache

from asterism.models.cache.layer import RESTORABLE, PatternCacheLayer
from asterism.patterns import Pattern


class HasPatterns(Protocol):
    """A configuration that knows the pattern of each layer."""

    def layer_patterns(self) -> Sequence[Pattern]: ...


class PatternCache(Cache):
    """The cache of a whole model: one PatternCacheLayer for each pattern of the configuration.

    Without a configuration it is for a model with `use_pattern`, which adds the layers. The options are those of
    PatternCacheLayer.
    """

    def __init__(
        self, config: HasPatterns | None = None, *, restorable: int = RESTORABLE, max_tokens: int | None = None
    ) -> None:
        self.options: dict[str, Any] = {"restorable": restorable, "max_tokens": max_tokens}
        self._is_ours = config is not None
        patterns = [] if config is None else config.layer_patterns()
        super().__init__(layers=[])
        for pattern in patterns:
            self.add_layer(pattern)

    def add_layer(self, pattern: Pattern) -> None:
        """One more layer, which reads by this pattern."""
        self.layers.append(new_layer(self, pattern, **self.options))

    def crop(self, tokens_to_remove: int) -> None:
        """As `PatternCacheLayer.crop`, of all layers; of none where one of them cannot."""
        layers = [layer for layer in self.layers if isinstance(layer, PatternCacheLayer)]
        left = [layer.seen_after_crop(tokens_to_remove) for layer in layers]
        for layer, seen in zip(layers, left, strict=True):
            layer.seen = seen

    @property
    def is_compileable(self) -> bool:
        """Whether transformers may compile a step of `generate`, and give the model the mask for it: ours only."""
        return self._is_ours and super().is_compileable


def new_layer(cache: Cache, pattern: Pattern, **options: Any) -> PatternCacheLayer:
    """A layer for this cache, which shares what it finds out with those that are there."""
    layer = PatternCacheLayer(pattern, **options)
    for other in cache.layers:
        if isinstance(other, PatternCacheLayer):
            layer.join(other)
            break
    return layer


def is_plain(cache: Cache) -> bool:
    """Whether a cache is what transformers makes by default, without a wish that only its own layers fulfil."""
    return type(cache) is DynamicCache and not cache.offloading
