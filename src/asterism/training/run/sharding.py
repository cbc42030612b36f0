"""Shard weights and moments among processes with FSDP2 (`fully_shard`), and gather whole tensors.

Every block is gathered just before it is computed, and its gradient is summed and sharded just after. Everything else
is one more group. Gradients are summed, not averaged, because the loss of a process is its part of the mean.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from asterism.errors import ConfigurationError
from asterism.training.run.processes import Processes
from asterism.training.settings.configuration import TrainingConfig


def shard_weights(model: nn.Module, processes: Processes, config: TrainingConfig) -> None:
    """Shard the parameters of a model by rows among the processes of the axis `fsdp`, if it has several.

    Raises ConfigurationError for an optimiser that needs whole matrices.
    """
    if processes.mesh is None or processes.shape.fsdp == 1:
        return
    if config.optimizer == "adafactor":
        raise ConfigurationError(
            "adafactor-sharded",
            "parallel: fsdp divides the rows of matrices, but adafactor needs their means: use adamw or muon, or dp",
        )
    # The penalty of adaptive spans is read behind the blocks: all is one group then, which stays until the end.
    blocks = [] if getattr(getattr(model, "config", None), "adaptive_span", False) else list(_blocks(model))
    for module in (*blocks, model):
        made = fully_shard(module, mesh=processes.mesh["fsdp"])
        made.set_gradient_divide_factor(1.0)
        made.set_force_sum_reduction_for_comms(True)  # gloo knows no sum that divides, of float32


def reshard(model: nn.Module) -> None:
    """Reshard the parameters; after an evaluation some are still gathered."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


@contextmanager
def in_parts(model: nn.Module) -> Iterator[None]:
    """Within the body, parts of a model can be called by themselves, as `generate` calls an encoder.

    Parameters outside of blocks are gathered; blocks gather theirs. All processes enter together.
    """
    if isinstance(model, FSDPModule):
        model.unshard()
    try:
        yield
    finally:
        reshard(model)


def whole(tensor: Tensor) -> Tensor:
    """The tensor [...] itself, of any dtype, or what all processes hold of one that is shared out: all of them must
    ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def like(tensor: Tensor, values: Tensor) -> Tensor:
    """Whole values [...], of any dtype, shared out as `tensor` [...] is: this process keeps its own, and nothing is
    sent."""
    if not isinstance(tensor, DTensor) or values.ndim == 0:
        return values
    return distribute_tensor(values.to(tensor.device), tensor.device_mesh, tensor.placements, src_data_rank=None)


def _blocks(model: nn.Module) -> Iterator[nn.Module]:
    """The blocks of a model's stacks, without those whose parameters are also used elsewhere."""
    uses = Counter(id(one) for module in model.modules() for one in module.parameters(recurse=False))
    named = Counter(id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False))
    inside: set[nn.Module] = set()
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and module not in inside:
            inside.update(part for block in module for part in block.modules())
            for block in module:
                if all(uses[id(one)] == named[id(one)] == 1 for one in block.parameters()):
                    yield block
