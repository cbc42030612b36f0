"""Store weights, optimiser state and counters in files of data only: safetensors and JSON, never pickle.

Reading checks everything. A CheckpointError names a file that is missing, cut off, unparsable, or of another model.
Nothing is changed before everything is read.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel

from asterism.errors import CheckpointError, NonFiniteLossError
from asterism.files import DAMAGED, LOCAL, read_tensors, replacing
from asterism.models import AsterismConfig
from asterism.quiet import quiet_transformers
from asterism.training.run import adapters
from asterism.training.run.adapters import has_adapter, refuse_other_base, save_beside_adapter
from asterism.training.run.folder import STATE
from asterism.training.run.integrity import SEAL, read_sealed, seal, sums_of
from asterism.training.run.optimizer import MOMENTS, moment_shape
from asterism.training.run.processes import Processes
from asterism.training.run.sharding import like, reshard, whole

WEIGHTS = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"


@dataclass
class TrainingState:
    """The state of a run besides tensors. Data and dropout are functions of (seed, step), so no generator is stored.

    `seconds` is training time over all resumes; `loss_sum` is in nats, over the `loss_steps` steps since the
    last line of the history. A run that is trained further (`further.py`) began anew after `begun_step` steps and
    `begun_seconds` seconds.
    """

    step: int = 0
    seconds: float = 0.0
    loss_sum: float = 0.0
    loss_steps: int = 0
    begun_step: int = 0
    begun_seconds: float = 0.0

    @property
    def begun(self) -> tuple[int, float]:
        """The steps and seconds before the schedule began."""
        return self.begun_step, self.begun_seconds

    def recorded(self) -> dict[str, float]:
        """The fields as in state.json: without a second beginning where there was none."""
        return {name: value for name, value in asdict(self).items() if value or name not in _SECOND_BEGINNING}


_SECOND_BEGINNING = ("begun_step", "begun_seconds")


@dataclass(frozen=True, eq=False)
class Tensors:
    """The complete tensors of a checkpoint: the weights by their names in the model, and the optimiser's moments."""

    weights: dict[str, torch.Tensor]
    moments: dict[str, torch.Tensor]


def gathered(model: PreTrainedModel, optimizer: torch.optim.Optimizer, processes: Processes) -> Tensors | None:
    """Gather the tensors of a checkpoint in the leading process. All processes must call it; the others get None.

    Sharded tensors are gathered one after the other, into the leader's host memory. The leader needs room there for all
    weights and moments, and the others for the largest tensor.
    """
    weights = gathered_weights(model, processes)
    moments = _gathered(_optimizer_tensors(model, optimizer), processes)
    return Tensors(weights, moments) if processes.leads else None


def gathered_weights(model: PreTrainedModel, processes: Processes) -> dict[str, torch.Tensor]:
    """Gather the weights [...] by their names in the model, each in its dtype, in the leading process. All processes
    must call it."""
    reshard(model)
    return _gathered(model.state_dict(keep_vars=True), processes)


def _gathered(tensors: Mapping[str, torch.Tensor], processes: Processes) -> dict[str, torch.Tensor]:
    """Tensors that have two names stay one."""
    if processes.shape.fsdp == 1:
        return {name: tensor.detach() for name, tensor in tensors.items()}
    kept: dict[int, torch.Tensor] = {}
    for tensor in tensors.values():
        if id(tensor) not in kept:
            one = whole(tensor.detach())
            kept[id(tensor)] = one.cpu() if processes.leads else one.new_empty(0)
    return {name: kept[id(tensor)] for name, tensor in tensors.items()}


def save_checkpoint(
    folder: Path,
    model: PreTrainedModel,
    tensors: Tensors,
    state: TrainingState,
    save_files: Callable[[Path], None],
) -> None:
    """Write model, optimiser and state to a new folder, atomically. The folder is also a Hugging Face model folder.

    `save_files` writes the other files of the model, such as a tokenizer. state.json holds the SHA-256 of every file.
    Raises NonFiniteLossError, before anything is written, for a tensor that is not finite.
    """
    parameters = {name: tensors.weights[name] for name, _ in model.named_parameters()}
    for what, kept in (("the weight", parameters), ("the optimiser's", tensors.moments)):
        if name := first_not_finite(kept):
            raise NonFiniteLossError(
                "weights-not-finite",
                f"step {state.step}: {what} {name} is not finite; no checkpoint was written, the previous one is"
                " kept. Use a lower learning rate or a longer warm-up",
            )
    with replacing(folder) as temporary:
        save_model(temporary, model, tensors.weights)
        save_files(temporary)
        save_file(tensors.moments, temporary / OPTIMIZER)
        record = state.recorded() | {"files": sums_of(temporary)}
        (temporary / STATE).write_text(json.dumps(seal(record)))


def save_model(folder: Path, model: PreTrainedModel, weights: dict[str, torch.Tensor]) -> None:
    """Write a model with weights [axis, ...] of any dtype, by their names, as transformers does; of a model with an
    adapter, that alone."""
    model.save_pretrained(folder, state_dict=weights)
    if has_adapter(model):
        save_beside_adapter(folder, model)


def load_checkpoint(folder: Path, model: PreTrainedModel, optimizer: torch.optim.Optimizer) -> TrainingState:
    """Restore the files of `save_checkpoint`. Raises CheckpointError for anything damaged, missing or left over.

    `RunFolder.latest_checkpoint` has compared the files with their sums.
    """
    state = read_state(folder)
    tensors = read_tensors(folder / OPTIMIZER)
    moments = _moment_names(model, optimizer)
    shapes = {name: list(parameter.shape) for name, parameter in model.named_parameters()}
    expected = {f"{moment}.{name}": moment_shape(moment, shapes[name]) for name, kept in moments for moment in kept}
    has_moments = state.step > state.begun_step
    _compare(folder / OPTIMIZER, tensors, expected if has_moments else {})
    load_weights(folder, model)
    if has_moments:
        parameters = dict(model.named_parameters())
        values = [
            {moment: like(parameters[name], tensors[f"{moment}.{name}"]) for moment in kept} for name, kept in moments
        ]
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": dict(enumerate(values)), "param_groups": groups})
    return state


def load_weights(folder: Path, model: PreTrainedModel, unused: tuple[str, ...] = ()) -> None:
    """Fill the model with the weights in `folder`. Raises CheckpointError if they are damaged or another model's.

    Tensors that the model does not have are allowed if their names begin with one of `unused`.
    """
    if has_adapter(model):
        _load_adapter(folder, model)
        return
    tensors, state = read_tensors(folder / WEIGHTS), model.state_dict(keep_vars=True)
    tensors = {name: tensor for name, tensor in tensors.items() if name in state or not name.startswith(unused)}
    written = {id(state[name]): name for name in tensors.keys() & state.keys()}
    for name in state.keys() - tensors.keys():  # a tensor that has two names in the model is written under one
        if twin := written.get(id(state[name])):
            tensors[name] = tensors[twin]
    if tensors.keys() != state.keys() and not isinstance(model.config, AsterismConfig):
        tensors = _as_transformers_reads(folder, model) or tensors
    _compare(folder / WEIGHTS, tensors, {name: list(value.shape) for name, value in state.items()})
    model.load_state_dict({name: like(state[name], tensor) for name, tensor in tensors.items()})


def _as_transformers_reads(folder: Path, model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The weights in a folder by their names in the model; {} if some are missing or left over.

    Some models of transformers, such as GPT-NeoX, store weights under other names than they have in memory.
    """
    dtype, kind = next(model.parameters()).dtype, type(model)
    with quiet_transformers():
        try:
            loaded: Any = kind.from_pretrained(
                folder, **LOCAL, use_safetensors=True, dtype=dtype, output_loading_info=True
            )
        except (OSError, RuntimeError, *DAMAGED):
            return {}
    read, found = loaded
    unread = any(found[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return {} if unread else dict(read.state_dict())


def _load_adapter(folder: Path, model: PreTrainedModel) -> None:
    refuse_other_base(folder, model)
    path, own = folder / adapters.WEIGHTS, adapters.adapter_parameters(model)
    tensors = read_tensors(path)
    _compare(path, tensors, {name: list(value.shape) for name, value in own.items()})
    values = {adapters.name_in_model(name): like(own[name], tensor) for name, tensor in tensors.items()}
    model.load_state_dict(values, strict=False)


def read_state(folder: Path) -> TrainingState:
    """The counters of a checkpoint. Raises CheckpointError."""
    values = read_sealed(folder / STATE)
    names = [field.name for field in fields(TrainingState) if field.name not in _SECOND_BEGINNING]
    if set(values) - set(_SECOND_BEGINNING) != {*names, "files", SEAL}:
        raise CheckpointError(
            "damaged-fields", f"{folder / STATE} is damaged: its fields must be {', '.join(sorted(names))}"
        )
    return TrainingState(**{name: value for name, value in values.items() if name not in ("files", SEAL)})


def first_not_finite(tensors: Mapping[str, torch.Tensor]) -> str | None:
    """The name of the first tensor [...], of any dtype, that holds an infinity or NaN, or None. Waits for the device
    once."""
    names = [name for name, tensor in tensors.items() if tensor.is_floating_point()]
    if not names:
        return None
    device = tensors[names[-1]].device  # an optimiser may keep its counters on the CPU
    sound = torch.stack([tensors[name].isfinite().all().to(device) for name in names]).tolist()
    return next((name for name, good in zip(names, sound, strict=True) if not good), None)


def _moment_names(model: PreTrainedModel, optimizer: torch.optim.Optimizer) -> list[tuple[str, tuple[str, ...]]]:
    """The optimiser's parameters by name, in its order, and the names of its moments for each."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = optimizer.param_groups
    return [(names[id(parameter)], MOMENTS[group["kind"]]) for group in groups for parameter in group["params"]]


def _optimizer_tensors(model: PreTrainedModel, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    state = optimizer.state_dict()["state"]
    names = [name for name, _ in _moment_names(model, optimizer)]
    return {f"{moment}.{names[index]}": tensor for index, one in state.items() for moment, tensor in one.items()}


def _compare(path: Path, tensors: Mapping[str, torch.Tensor], expected: Mapping[str, list[int]]) -> None:
    for name in expected.keys() - tensors.keys():
        raise CheckpointError("tensor-missing", f"{path} does not fit the run: it lacks the tensor {name}")
    for name in tensors.keys() - expected.keys():
        raise CheckpointError("tensor-unknown", f"{path} does not fit the run: the model has no tensor {name}")
    for name, shape in expected.items():
        if list(tensors[name].shape) != shape:
            seen = list(tensors[name].shape)
            raise CheckpointError(
                "tensor-shape", f"{path} does not fit the run: {name} has shape {seen}, but the model needs {shape}"
            )
