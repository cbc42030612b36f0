"""Rows that hold trees of tokens, given by the parent of each."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from asterism.errors import ConfigurationError
from asterism.kernels import Terms
from asterism.kernels.packed import read_bounds
from asterism.layers.rows.documents import check_positions
from asterism.memo import remembering_few
from asterism.patterns import Pattern, parents_in_row
from asterism.patterns.forest import Forest
from asterism.patterns.tree import along_paths, read_parents

Parents = Tensor | np.ndarray | Sequence[int]


class PackedTrees(NamedTuple):
    """The trees of a batch [B, N].

    forest     they, through all rows laid end to end
    positions  int64 [B, N]: how many ancestors each token has
    """

    forest: Forest
    positions: Tensor


def find_trees(
    parents: Parents,
    cu_seqlens: Tensor | Sequence[int] | None,
    position_ids: Tensor | None,
    real: Tensor | None,
    like: Tensor,
) -> PackedTrees:
    """The trees in a batch `like` [B, N, ...].

    parents       [N], equal in every row, or [B, N]: columns of the parents, -1 for roots; with `cu_seqlens`
                  [trees + 1], borders of trees in every row, they count from the first token of each tree
    position_ids  int64 [B or 1, N], which must be the numbers of ancestors
    real          bool [B, N]: what an attention_mask says, if one is given

    Raises PatternError for parents that are none, KernelError for `cu_seqlens` that are no numbers, ConfigurationError
    for another number of parents, other positions, and padding.
    """
    batch, tokens = like.shape[:2]
    try:
        array = np.asarray(parents.cpu() if isinstance(parents, Tensor) else parents)
    except ValueError:  # rows of unequal lengths
        array = np.zeros(0)
    if array.shape not in ((tokens,), (1, tokens), (batch, tokens)):
        raise ConfigurationError(
            "parents-shape",
            f"parents must be [{tokens}] or [{batch}, {tokens}], one for each token, got {list(array.shape)}",
        )
    if real is not None and not bool(real.all()):
        raise ConfigurationError(
            "trees-padded",
            "parents are given, but the batch is padded (attention_mask): leave the mask out and let each token of"
            " padding be a root, with the parent -1",
        )
    each = array.reshape(-1, tokens)
    if cu_seqlens is None:
        rows = [read_parents(row) for row in each]
    else:
        bounds = read_bounds(cu_seqlens, like.device)
        rows = [parents_in_row(row, bounds) for row in each]
    starts = np.repeat(np.arange(batch) * tokens, tokens)
    laid = np.concatenate(rows if len(rows) == batch else rows * batch)
    forest = Forest.of_parents(np.where(laid < 0, -1, laid + starts))
    depth = torch.from_numpy(forest.depth(np.arange(len(laid))).reshape(batch, tokens)).to(like.device)
    if position_ids is not None:
        check_positions(position_ids, batch, tokens)
        if not bool((position_ids == depth).all()):
            raise ConfigurationError(
                "tree-positions",
                "position_ids must be the number of ancestors of each token where parents are given: leave them out",
            )
    return PackedTrees(forest, depth)


@remembering_few(128)
def in_trees(pattern: Pattern, forest: Forest) -> Pattern:
    """The pattern along the paths of trees. It is kept, as the backward pass has only its text."""
    return along_paths(forest, pattern)


def refuse_distances(terms: Terms | None) -> None:
    """Raises ConfigurationError for terms by the distance of tokens, which kernels count along the row."""
    if terms is not None and (terms.bias is not None or terms.relative is not None):
        raise ConfigurationError(
            "tree-distances",
            "a bias or a vector by distance counts the tokens of the row between two tokens, not those of a tree's"
            " path: use position_type 'rotary' or another one that goes by the positions of tokens",
        )
