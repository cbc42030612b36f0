"""The optimisers of a run: AdamW or Adafactor for everything, or Muon for the matrices of the blocks and AdamW for the
rest.

Muon (`muon.py`) makes the update of each matrix orthogonal, scaled to the size of an AdamW update, so that both share
one learning rate. Weight decay is decoupled and on matrices only, not on biases and norms.
"""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from asterism.training.run.arithmetic import computed_in
from asterism.training.run.muon import Muon
from asterism.training.settings.configuration import TrainingConfig

_IN_BLOCK = re.compile(r"model\.(encoder\.|decoder\.)?layers\.")

MOMENTS = {
    "adamw": ("step", "exp_avg", "exp_avg_sq"),
    "muon": ("momentum_buffer",),
    "adafactor": ("step", "row_var", "col_var"),
    "adafactor_vectors": ("step", "variance"),
}
"""The moments of each kind of parameter group, with shapes from `moment_shape`."""


def moment_shape(moment: str, shape: Sequence[int]) -> list[int]:
    """The shape of a moment for a parameter of this shape. Adafactor keeps means over one of the last two axes."""
    if moment == "step":
        return []
    if moment == "row_var":
        return [*shape[:-1], 1]
    return [*shape[:-2], 1, *shape[-1:]] if moment == "col_var" else list(shape)


class MuonAndAdamW(torch.optim.Optimizer):
    """Two optimisers that look like one: parameter groups of kind "muon" and of kind "adamw"."""

    def __init__(self, muon_groups: list[dict[str, Any]], adamw_groups: list[dict[str, Any]], config: TrainingConfig):
        rate, betas = config.learning_rate, (config.beta1, config.beta2)
        self.muon = Muon(muon_groups, rate, computed_in(config.dtype))
        self.adamw = torch.optim.AdamW(adamw_groups, lr=rate, betas=betas, fused=True)
        super().__init__([*self.muon.param_groups, *self.adamw.param_groups], {})
        self._share()

    def _share(self) -> None:
        """Let both optimisers work on the groups and the state of this one."""
        count = len(self.muon.param_groups)
        self.muon.param_groups, self.adamw.param_groups = self.param_groups[:count], self.param_groups[count:]
        self.muon.state = self.adamw.state = self.state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._share()

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # closures are refused
        """Step both; `closure` is accepted because optimisers have it, and refused when given."""
        if closure is not None:
            raise ValueError("MuonAndAdamW does not evaluate closures: compute the gradients before the step")
        self.muon.step()
        self.adamw.step()


def make_optimizer(model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """Make the optimiser of a run, over all parameters of a model. dtype "auto" must be settled."""
    groups = parameter_groups(model, config)
    muon, adamw = ([group for group in groups if group["kind"] == kind] for kind in ("muon", "adamw"))
    if muon:
        return MuonAndAdamW(muon, adamw, config)
    if config.optimizer == "adafactor":
        return torch.optim.Adafactor(groups, lr=config.learning_rate)
    return torch.optim.AdamW(adamw, lr=config.learning_rate, betas=(config.beta1, config.beta2), fused=True)


def parameter_groups(model: nn.Module, config: TrainingConfig) -> list[dict[str, Any]]:
    """Divide the parameters that learn among optimisers. The blocks of the model are those in `model.model.layers`, or
    in the layers of its encoder and decoder.
    """
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    matrices = [(name, parameter) for name, parameter in named if parameter.ndim >= 2]
    vectors = [parameter for _, parameter in named if parameter.ndim < 2]
    if config.optimizer == "adafactor":
        kept = [_group([parameter for _, parameter in matrices], "adafactor", config.weight_decay)]
        return [*kept, _group(vectors, "adafactor_vectors", 0.0)]
    adamw = [_group(vectors, "adamw", 0.0)]
    if config.optimizer == "adamw":
        return [_group([parameter for _, parameter in matrices], "adamw", config.weight_decay), *adamw]
    in_block = {name for name, parameter in matrices if _IN_BLOCK.match(name) and parameter.ndim == 2}
    hidden = [parameter for name, parameter in matrices if name in in_block]
    outer = [parameter for name, parameter in matrices if name not in in_block]
    return [_group(hidden, "muon", config.weight_decay), _group(outer, "adamw", config.weight_decay), *adamw]


def moment_bytes(groups: list[dict[str, Any]]) -> int:
    """Bytes of the moments of an optimiser for these groups, in the dtype of the weights, without counters."""
    return sum(
        parameter.element_size() * math.prod(moment_shape(moment, parameter.shape))
        for group in groups
        for parameter in group["params"]
        for moment in MOMENTS[group["kind"]]
        if moment != "step"
    )


def _group(parameters: list[nn.Parameter], kind: str, weight_decay: float) -> dict[str, Any]:
    return {"params": parameters, "kind": kind, "weight_decay": weight_decay}
