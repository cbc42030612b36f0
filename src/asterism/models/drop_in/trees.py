"""Trees of tokens in models of transformers: the pattern says which token follows which, and so must positions.

A model takes the positions of its tokens from `position_ids`, which have to be the depths in the tree that the pattern
holds. Transformers takes positions that do not count on for the borders of documents, and so does this library; where
they are exactly the depths of the tree, they are no borders.
"""

import inspect
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from asterism.errors import ConfigurationError
from asterism.kernels import Terms
from asterism.memo import remembering_few
from asterism.models.cache.naming import cache_in
from asterism.models.drop_in.field import IMPLEMENTATION
from asterism.patterns import Pattern, parse, parse_schedule
from asterism.patterns.forest import Forest
from asterism.patterns.pattern import Moved
from asterism.patterns.tree import Tree


def trees_of(pattern: Pattern) -> list[Tree]:
    """The trees over the tokens of the whole row that a pattern is made of."""
    if isinstance(pattern, Tree):
        return [pattern]
    if isinstance(pattern, Moved):
        return []
    return [found for child in pattern.children for found in trees_of(child)]


@remembering_few(128)
def _forest_of(text: str) -> Forest:
    """The trees of the pattern that a text means. Raises ConfigurationError for different ones."""
    forests = [found.forest for found in trees_of(parse(text))]
    if any(other.text != forests[0].text or other.size != forests[0].size for other in forests):
        raise ConfigurationError(
            "several-trees",
            "the pattern of a layer is made of different trees, but tokens have one position each: give the layer one"
            " tree",
        )
    return forests[0]


def check_tree_pattern(pattern: Pattern, model: PreTrainedModel, hides_future: bool, intersects: bool) -> None:
    """Raises ConfigurationError for a tree that a model cannot follow.

    `hides_future` says whether the model is causal, `intersects` whether its windows are counted along the row.
    """
    if not trees_of(pattern):
        return
    if not hides_future:
        raise ConfigurationError(
            "tree-not-causal",
            "a tree is for causal models: this one reads the future, which differs among the sequences that share a"
            " token; give each sequence a row",
        )
    if any(hasattr(part, "create_position_ids_from_input_ids") for part in model.modules()):
        raise ConfigurationError(
            "tree-shifted-positions",
            f"{type(model).__name__} numbers its tokens from padding_idx + 1, as RoBERTa does, and a tree from 0: give"
            " each sequence a row",
        )
    if intersects:
        raise ConfigurationError(
            "tree-window",
            'native_window="intersect" counts the model\'s own window along the row, not along the paths of a tree:'
            ' write tree(..., pattern=native), as packed.pattern("native") does for tree_of',
        )


def check_tree(
    text: str,
    documents: tuple[int, ...] | None,
    shape: tuple[int, int],
    tokens: Any,
    terms: Terms | None,
    has_cache: bool,
) -> None:
    """Raises ConfigurationError for a call that the tree in a layer's pattern, given as text, does not fit.

    documents  what positions say of documents: the runs of tokens whose positions count on
    shape      how many rows of how many tokens
    tokens     the LayerTokens of the call
    terms      what changes the scores of the layer
    has_cache  whether the call extends a cache
    """
    if has_cache or tokens.seen or tokens.real is not None:
        raise ConfigurationError(
            "tree-with-cache",
            "a tree holds all of its tokens, so it takes no cache and no padding: set use_cache=False, in the call or"
            " in the model's configuration, and leave out attention_mask",
        )
    if tokens.call is not None:
        raise ConfigurationError(
            "tree-in-shards",
            "the pattern is a tree, which a model of transformers cannot follow within sequence_parallel: call it"
            " outside of it, or divide the trees among processes",
        )
    if terms is not None and (terms.bias is not None or terms.relative is not None):
        raise ConfigurationError(
            "tree-distances",
            "the model has a bias by distance, which counts the tokens of the row and not those of a tree's path: give"
            " each sequence a row",
        )
    (rows, width), forest = shape, _forest_of(text)
    if width != forest.size:
        raise ConfigurationError(
            "tree-length",
            f"the pattern is a tree of {forest.size} tokens, but the row has {width}: give the model the pattern of"
            " this row, use_pattern(model, packed.pattern())",
        )
    if documents != _documents(forest, rows):
        raise _not_depths()


def check_depths(model: PreTrainedModel) -> None:
    """Have a model, and those inside of it, refuse position_ids that are not the depths of its tree.

    Attention learns from positions only where they do not count on; the model alone has their values.
    """
    for part in model.modules():
        if isinstance(part, PreTrainedModel) and _check_depths not in part._forward_pre_hooks.values():
            part.register_forward_pre_hook(_check_depths, with_kwargs=True)


def _check_depths(model: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    field: Any = getattr(model.config, "asterism_pattern", None)
    follows = field is not None and model.config._attn_implementation == IMPLEMENTATION
    if not follows or torch.compiler.is_compiling() or cache_in(named) is not None:
        return  # caches and graphs are refused by attention
    given = named.get("position_ids")
    names = list(inspect.signature(model.forward).parameters)
    if given is None and "position_ids" in names and names.index("position_ids") < len(arguments):
        given = arguments[names.index("position_ids")]
    if not isinstance(given, torch.Tensor):
        return
    for forest in _forests_in(tuple(field) if isinstance(field, list) else (field,)):
        if given.shape[-1] != forest.size:
            continue  # refused by its length
        depths = torch.from_numpy(forest.depth(np.arange(forest.size))).to(given.device)
        if not bool((given == depths).all()):
            raise _not_depths()


@remembering_few(128)
def _forests_in(texts: tuple[str, ...]) -> tuple[Forest, ...]:
    """The trees that the texts of patterns or schedules hold."""
    patterns = [one for text in texts for one in parse_schedule(text).mixers if isinstance(one, Pattern)]
    return tuple(found.forest for one in patterns for found in trees_of(one))


def _not_depths() -> ConfigurationError:
    return ConfigurationError(
        "tree-positions",
        "the pattern is a tree, so position_ids must be the depths of its tokens, which tree_of returns:"
        " model(input_ids=packed.input_ids, position_ids=packed.position_ids, use_cache=False)",
    )


@remembering_few(128)
def _documents(forest: Forest, rows: int) -> tuple[int, ...] | None:
    """The runs of tokens whose depths count on, in rows laid end to end; None where each row is one."""
    depths = forest.depth(np.arange(forest.size))
    starts = np.append(0, np.flatnonzero(np.diff(depths) != 1) + 1)
    return None if len(starts) == 1 else tuple(np.diff(starts, append=forest.size).tolist()) * rows
