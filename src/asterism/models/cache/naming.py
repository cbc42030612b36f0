"""The name that the installed transformers has for a cache, in arguments and outputs of models.

Since 5.24 it is `cache`. Before, it was `past_key_values`, which newer versions still take, with a deprecation warning
for each class. Models of ours take both names with every version, without a warning.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutputWithPast

from asterism.errors import ConfigurationError

CACHE_NAMES = ("past_key_values", "cache")
"""The names of a cache in all versions."""

CACHE = next(one.name for one in fields(BaseModelOutputWithPast) if one.name in CACHE_NAMES)
"""The name in this version."""


def name_of_cache(named: Mapping[str, Any]) -> str:
    """The name by which arguments hold a cache, or would hold one."""
    return next((name for name in CACHE_NAMES if named.get(name) is not None), CACHE)


def cache_in(named: Mapping[str, Any]) -> Any:
    """The cache among arguments, or None."""
    return named.get(name_of_cache(named))


def one_cache(past_key_values: Cache | None, cache: Cache | None) -> Cache | None:
    """The cache of a call that has two names for it. Raises ConfigurationError if both are given."""
    if past_key_values is not None and cache is not None:
        raise ConfigurationError(
            "two-caches", "past_key_values and cache are two names of one argument, and both are given: leave one out"
        )
    return past_key_values if cache is None else cache


def with_own_name(named: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments for functions of transformers: the cache, if there is one, has the name of this version."""
    others = {name: value for name, value in named.items() if name not in CACHE_NAMES}
    cache = one_cache(*(named.get(name) for name in CACHE_NAMES))
    return others if cache is None else {**others, CACHE: cache}


def with_cache(cache: Cache | None) -> dict[str, Any]:
    """The argument by which `generate` and outputs of transformers are given a cache."""
    return {CACHE: cache}


def cache_of(output: Any) -> Any:
    """The cache in the output of a model or of `generate`, or None."""
    return getattr(output, CACHE, None)
