"""Train a finished run further: its model becomes a checkpoint, from which the run is resumed.

A finished run has no optimiser state, so its second part begins like a new run with these weights: the moments of the
optimiser are empty, and the schedule of the learning rate starts again at that step and ends with the new `steps`.
Steps, batches and dropout count on, so no batch is drawn twice.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file

from asterism.errors import ConfigurationError
from asterism.files import remove_folder, replacing, write_json
from asterism.training.run.checkpoint import OPTIMIZER, TrainingState
from asterism.training.run.folder import STATE, RunFolder
from asterism.training.run.integrity import seal, sums_of
from asterism.training.settings.configuration import AnyConfig, RunConfig, config_to_dict

LIMITS = ("steps", "minutes")
"""The settings that say where a run ends."""


def goes_further(run: RunFolder, asked: AnyConfig) -> bool:
    """Whether a run is finished and is to take more steps.

    Raises ConfigurationError for limits that it has reached.
    """
    result, recorded = run.read_record()["result"], run.read_config()
    if result is None or not isinstance(asked, RunConfig) or not isinstance(recorded, RunConfig):
        return False
    if all(getattr(asked, name) == getattr(recorded, name) for name in LIMITS):
        return False
    if asked.steps <= result["steps"]:
        raise ConfigurationError(
            "steps-reached",
            f"resume: got steps={asked.steps:,}, but {run.path} is finished after {result['steps']:,} steps: give more"
            " --steps to train further",
        )
    if asked.minutes is not None and asked.minutes <= result["minutes"]:
        raise ConfigurationError(
            "minutes-reached",
            f"resume: got minutes={asked.minutes:g}, but {run.path} took {result['minutes']:.1f} minutes: give more"
            " --minutes, or --minutes null",
        )
    return True


def reopen(run: RunFolder, asked: RunConfig) -> None:
    """Make a finished run one that was stopped after its last step, and is to go on to the end of `asked`.

    A process killed on the way leaves a finished run, or one that can be resumed. The earlier result is kept in
    run.json under "earlier". Raises CheckpointError for a damaged model.
    """
    record, model = run.read_record(), run.weights()
    steps, seconds = record["result"]["steps"], 60 * record["result"]["minutes"]
    state = TrainingState(step=steps, seconds=seconds, begun_step=steps, begun_seconds=seconds)
    _write(run.checkpoint(steps), model, state)
    ended = {"model_files", "peak_memory"}
    changes = {
        "config": config_to_dict(replace(run.read_config(), **{name: getattr(asked, name) for name in LIMITS})),
        "notes": [*record["notes"], _note(asked, steps)],
        "result": None,
        "earlier": [*record.get("earlier", []), record["result"]],
    }
    write_json(run.run_file, seal({name: record[name] for name in record if name not in ended} | changes))
    remove_folder(run.model)


def _write(checkpoint: Path, model: Path, state: TrainingState) -> None:
    """The checkpoint of a state that the optimiser has no moments for."""
    with replacing(checkpoint) as temporary:
        shutil.copytree(model, temporary, dirs_exist_ok=True)
        nothing: dict[str, torch.Tensor] = {}
        save_file(nothing, temporary / OPTIMIZER)
        (temporary / STATE).write_text(json.dumps(seal(state.recorded() | {"files": sums_of(temporary)})))


def _note(asked: RunConfig, steps: int) -> str:
    falls = f"falls to 0 at step {asked.steps:,}"
    if asked.minutes is not None:
        falls += f" or after {asked.minutes:g} minutes in all"
    if asked.schedule == "inverse_sqrt":
        falls = f"falls as 1 / sqrt(step - {steps})"
    return (
        f"trained further from step {steps:,}: the learning rate rises from 0 to {asked.learning_rate:g} again in"
        f" {asked.warmup_steps:,} steps, then {falls}; the optimizer begins with empty moments"
    )
