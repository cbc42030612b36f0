"""What each head would lose of its attention at each level: the mass outside, in the model as it is."""

from typing import Any

import torch
from torch import Tensor, nn

from asterism.kernels.mass import lse_of, shares_of
from asterism.kernels.operands import Operands
from asterism.kernels.watching import watching
from asterism.models import use_pattern
from asterism.models.drop_in.places import find_attention
from asterism.quiet import quiet_transformers
from asterism.sparsify.grid import Grid


@torch.no_grad()
def lost_mass(model: Any, grid: Grid, ids: Tensor) -> list[list[list[float]]]:
    """Mean shares of attention that lie outside of each level, from 0 to 1: [layers][key heads][levels].

    ids int64 [1, N]. The share of a key head is the mean of its query heads. The time is that of one run of the model,
    and for each level that of its attention.
    """
    use_pattern(model, list(grid.patterns(grid.own)), native_window="replace")
    found: dict[int, list[list[float]]] = {}
    here: list[int] = []

    def see(operands: Operands) -> None:
        layer = here[-1]
        shares = shares_of(operands, grid.ladders[layer][1:], lse_of(operands))
        lost = (1 - shares.double()).clamp(0, 1).mean(dim=1)  # [levels, query heads]
        of_keys = lost.unflatten(1, (grid.key_heads[layer], -1)).mean(dim=2)
        found[layer] = [[0.0, *row] for row in of_keys.T.tolist()]

    def enter(layer: int) -> Any:
        def hook(module: nn.Module, given: Any, named: Any) -> None:
            here.append(layer)

        return hook

    hooks = [
        module.register_forward_pre_hook(enter(layer), with_kwargs=True)
        for layer, module in enumerate(find_attention(model))
    ]
    try:
        with watching(see), quiet_transformers():
            model(input_ids=ids.to(model.device), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return [found[layer] for layer in grid.layers]
