"""Layers whose queries choose blocks of keys by an index branch of the model's own (MiniMax-M3).

The model computes which blocks, as it does for transformers, and says so to its attention; the attention reads them
without the mask [batch, heads, tokens, tokens] of transformers. The branch keeps its keys beside those of attention, in
the model's own cache, which never forgets.
"""

from typing import Any

import torch
from torch import Tensor, nn

from asterism.errors import ConfigurationError
from asterism.kernels import Choice, Terms, attend
from asterism.layers.rows.padding import is_known_full
from asterism.models.drop_in.places import ChosenBlocks, Place, place_of
from asterism.models.drop_in.tokens import LayerTokens

Rest = tuple[tuple[int, ...] | None, float | None, Terms | None]
"""The lengths of documents, the scale of scores, and terms."""


def attend_chosen(
    operands: tuple[Tensor, Tensor, Tensor], indices: Tensor | None, place: Place, tokens: LayerTokens, rest: Rest
) -> Tensor:
    """q [B, H, N, D], k [B, Hkv, S + N, D] and v [B, Hkv, S + N, Dv], of one dtype -> [B, H, N, Dv], of that dtype.

    `indices` int [B, heads, N, K] are the blocks that the model chose, -1 for none. Raises ConfigurationError for what
    a choice cannot be used with.
    """
    own, (documents, scale, terms) = place.local, rest
    if not isinstance(own, ChosenBlocks) or indices is None:
        raise ConfigurationError(
            "choice-not-native",
            f"layer {place.number} of the model and its pattern do not agree whether queries choose: call"
            " use_pattern(model) again",
        )
    _check(tokens, documents)
    q, k, v = operands
    pattern = f"selected(block={own.block}, topk={own.topk}, score='given', first=0, local={own.local}) & causal()"
    if indices.shape[1] not in (
        1,
        k.shape[1],
    ):  # each is shared by a group of query heads, of another size than keys are
        indices = indices.repeat_interleave(q.shape[1] // indices.shape[1], dim=1)
    indices = indices.to(torch.int32)
    choice = Choice(indices, (indices >= 0).sum(dim=-1, dtype=torch.int32), own.block)
    mixed: Tensor = attend(q, k, v, pattern, choice=choice, key_mask=tokens.real, scale=scale, terms=terms)
    return mixed


def _check(tokens: LayerTokens, documents: tuple[int, ...] | None) -> None:
    if documents is not None or tokens.call is not None:
        what = "documents packed into a row" if documents is not None else "sequence_parallel"
        raise ConfigurationError(
            "choice-of-documents",
            f"the model chooses blocks among all tokens of a row, which is wrong with {what}: give each document a row",
        )
    real = tokens.real
    if real is not None and not is_known_full(real[:, :1]):
        raise ConfigurationError(
            "choice-padded-left",
            "the model counts blocks from the first column of a row, so padding on the left changes what is chosen:"
            " pad on the right, or give each text by itself",
        )


def keeps_itself(module: nn.Module, cache: Any) -> bool:
    """Whether a module's keys stay in the cache that the model made: those of an index branch have a place there.

    Raises ConfigurationError for a cache without one.
    """
    place = place_of(module)
    if not isinstance(place.local, ChosenBlocks):
        return False
    layers = getattr(cache, "layers", [])
    if cache is not None and not (place.number < len(layers) and hasattr(layers[place.number], "update_index")):
        raise ConfigurationError(
            "cache-without-index",
            f"the cache, of type {type(cache).__name__}, has no place for the keys of the index branch: leave it out,"
            " or pass DynamicCache(config=model.config)",
        )
    return True
