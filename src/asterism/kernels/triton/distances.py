"""Tiles by the distances of their pairs, and the gradient of a bias summed by distance.

The gradient of a bias is a sum over all pairs of a distance. A program of the GPU adds up tiles whose pairs have equal
distances, place by place; PyTorch adds up the places of each distance, in a fixed order.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from asterism.compiler import Plan
from asterism.kernels.triton.tables import Lists, TiledPass, lists_of

_Array = np.ndarray[Any, np.dtype[Any]]


def tabulate_by_distance(plan: Plan, device: torch.device, heads: int) -> tuple[Lists, ...]:
    """By pass, lists of the tiles whose pairs have equal distances, place by place: entries [column, kind, row].

    In the natural order these are the diagonals of tiles. Of any other order, tiles go together if their tokens are as
    far from one another, and so are their first ones.
    """
    found = []
    for part in plan.passes:
        own = list(range(heads)) if plan.heads == 1 else list(part.heads)
        which, row = part.entries()
        entries = np.stack([part.columns, plan.kinds_with_ends(part), row], axis=1).astype(np.int32)
        (q_shape, q_first), (k_shape, k_first) = (
            _shapes(index, count, plan.tile)
            for index, count in ((part.query_index, part.n_queries), (part.key_index, part.n_keys))
        )
        columns = part.columns
        kinds = np.stack([q_shape[row], k_shape[columns], q_first[row] - k_first[columns]], axis=1)
        unique, group = np.unique(kinds, axis=0, return_inverse=True)
        shape, shared = (part.lists, len(unique)), len(own) if part.lists == 1 else 1
        found.append(lists_of(which, group.reshape(-1), entries, shape, own, shared, plan.tile, False, device))
    return tuple(found)


def _shapes(index: _Array | None, count: int, tile: int) -> tuple[_Array, _Array]:
    """Per tile of a token order: a number for how far its tokens are from the first, and the first token."""
    places = np.arange(-(-count // tile) * tile).clip(max=max(count - 1, 0))
    tokens = (places if index is None else index[places].astype(np.int64)).reshape(-1, tile)
    _, shape = np.unique(tokens - tokens[:, :1], axis=0, return_inverse=True)
    return shape.reshape(-1), tokens[:, 0]


def add_by_distance(total: Tensor, partial: Tensor, part: TiledPass, lists: Lists, pieces: Tensor) -> None:
    """Add sums of tiles, float32 [shared, pieces, tile, tile], to the gradient of a bias, float64 [H, Nq + Nk - 1].

    `pieces` are some of those of `lists`, which are of a pass of `tabulate_by_distance`.
    """
    length, tile = total.shape[1], partial.shape[-1]
    places = _distances(part, lists, pieces, tile) + pieces[:, 0, None, None] * length
    found = total.new_zeros((lists.count * length, lists.shared))
    # On a GPU too, index_put_ sums in an order of its own making, always the same; index_add_ would not.
    found.index_put_((places.flatten(),), partial.flatten(1).T.double(), accumulate=True)
    total[lists.heads.long()] += found.view(lists.count, length, lists.shared).transpose(1, 2).reshape(-1, length)


def _distances(part: TiledPass, lists: Lists, pieces: Tensor, tile: int) -> Tensor:
    """Distances [pieces, tile, tile], counted from that of the first query and the last key; of no meaning where there
    is no pair.
    """
    columns, _, rows = lists.entries[pieces[:, 2]].long().unbind(dim=1)
    within = torch.arange(tile, device=columns.device)
    queries, keys = (
        (numbers[:, None] * tile + within).clamp(max=count - 1)
        for numbers, count in ((rows, part.n_queries), (columns, part.n_keys))
    )
    queries = queries if part.query_index is None else part.query_index.long()[queries]
    keys = keys if part.key_index is None else part.key_index.long()[keys]
    return queries[:, :, None] - keys[:, None, :] + (part.all_keys - 1)
