"""Training, from a configuration to a finished run folder.

transformers' Trainer turns the crank (`loop.py`), a session beside it watches and records (`session.py`), the folder
keeps everything (`folder.py`). What a step computes is a function of configuration, corpus and step, so a run that was
stopped and resumed gives the same bits as one that was not, on a CPU and without a time budget (with one, elapsed time
is part of the schedule). Invariant: weights change, and checkpoints are written, only after finite losses.
"""

import platform
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from asterism.errors import CheckpointError, ConfigurationError, DataError
from asterism.files import replacing
from asterism.kernels import cpu as cpu_kernel
from asterism.randomness import derive, isolated
from asterism.training.objectives import OBJECTIVES, Objective, Report, make_objective
from asterism.training.run.build import build_model, model_config
from asterism.training.run.checkpoint import TrainingState, first_not_finite, load_checkpoint
from asterism.training.run.configuration import RunConfig, TrainingConfig
from asterism.training.run.folder import RunFolder
from asterism.training.run.loop import Loop, loop_arguments, quiet_transformers
from asterism.training.run.optimizer import make_optimizer
from asterism.training.run.picture import draw_history
from asterism.training.run.progress import make_display
from asterism.training.run.session import Session, validation_figures
from asterism.training.run.signals import held_back
from asterism.training.run.start import going_on


def train(config: RunConfig, folder: str | Path, *, resume: bool = False, progress: bool = True) -> Report:
    """Train a new model, or that of `config.start`, into a run folder, or go on with the run that is there.

    With `resume`, the configuration must be the recorded one (`data` may have moved; its hash decides), and a finished
    run is only reported. `progress` shows a bar or lines on stderr. SIGINT and SIGTERM take effect after the step that
    is running, when a checkpoint has been written. The caller's random generators are left as they are.

    Raises ConfigurationError, PatternError or DataError for what cannot be run, CheckpointError for a folder in use or
    damaged, NonFiniteLossError when training diverges; the last checkpoint stays.
    """
    run = RunFolder(folder)
    if resume:
        refuse_other_run(run.read_config(), config)
        if result := run.read_record()["result"]:
            run.tidy()
            return OBJECTIVES[config.objective].report_type(**result)
    else:
        run.refuse_existing()
    with run.held():
        if resume and (checkpoint := run.latest_checkpoint()):
            config = going_on(config, checkpoint)
        model_config(config)  # refuses what cannot work before data are read
        objective = make_objective(config, run)
        return fit(
            config,
            objective,
            lambda device: build_model(config, device),
            run,
            name=config.recipe,
            resume=resume,
            progress=progress,
        )


def fit(
    config: TrainingConfig,
    objective: Objective,
    build: Callable[[torch.device], PreTrainedModel],
    run: RunFolder,
    *,
    name: str,
    resume: bool,
    progress: bool,
) -> Report:
    """Train what `build` makes for a device on an objective, in a run folder; `train` says how.

    `name` is what the report calls the recipe. With `resume` the folder holds an unfinished run, whose data must be
    the objective's.
    """
    with quiet_transformers(), isolated(derive(config.seed)):
        arguments = loop_arguments(config, run)
        model = build(arguments.device)
        if config.recompute:
            # The old name warns where there is the new one; transformers 5.17 has only the old one.
            getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
        optimizer = make_optimizer(model, config)
        if resume:
            state = _restore(run, objective, model, optimizer)
        else:
            if weight := first_not_finite(dict(model.named_parameters())):
                raise CheckpointError(f"the model to begin with is damaged: its weight {weight} is not finite")
            run.create(_record(config, objective))
            state = TrainingState()
        with closing(make_display(progress)) as display:
            with (
                held_back() as interrupts,
                closing(Session(config, objective, run, model, optimizer, state, display, interrupts)) as session,
            ):
                if config.begins_elsewhere and not resume:
                    session.save()
                if not session.is_over():
                    if arguments.device.type == "cpu":
                        cpu_kernel.is_available()  # builds the kernel, if need be, before the run's clock starts
                    Loop(session, arguments).train()
                session.save()
            display.say("evaluating on the whole validation split")
            return _finish(objective, run, model, state, name)


def refuse_other_run(recorded: TrainingConfig, asked: TrainingConfig) -> None:
    """Raises ConfigurationError if a run that is to go on began with other settings; only data may have moved."""
    for field in fields(recorded):
        old, new = getattr(recorded, field.name), getattr(asked, field.name)
        if field.name not in ("data", "validation") and old != new:
            raise ConfigurationError(f"resume: {field.name} is {new!r}, but the run began with {old!r}")


def _restore(
    run: RunFolder, objective: Objective, model: PreTrainedModel, optimizer: torch.optim.Optimizer
) -> TrainingState:
    """Go back to the newest checkpoint, or to the beginning if there is none yet."""
    record, corpus = run.read_record(), objective.corpus_record()
    if record["result"] is not None:
        raise CheckpointError(f"{run.path} was finished by another process just now; resume it again for its report")
    if record["corpus"]["sha256"] != corpus["sha256"]:
        raise DataError(f"data: {corpus['name']} is not what the run in {run.path} began with: its hash differs")
    checkpoint = run.latest_checkpoint()
    state = TrainingState() if checkpoint is None else load_checkpoint(checkpoint, model, optimizer)
    run.keep_only(checkpoint)
    run.cut_history(state.step)
    return state


def _record(config: TrainingConfig, objective: Objective) -> dict[str, Any]:
    """What run.json says about a run that begins."""
    packages = ("asterism", "torch", "transformers", "accelerate", "numpy", "safetensors")
    return {
        "config": asdict(config),
        "corpus": objective.corpus_record(),
        "versions": {"python": platform.python_version()} | {name: version(name) for name in packages},
        "result": None,
    }


def _finish(objective: Objective, run: RunFolder, model: PreTrainedModel, state: TrainingState, name: str) -> Report:
    """Save the model, score the whole validation split, and write the result down."""
    with replacing(run.model) as folder:
        model.save_pretrained(folder)
        objective.save_files(folder)
    figures = objective.evaluate(model)
    corpus = objective.corpus_record()
    report = objective.report_type(
        folder=str(run.path),
        recipe=name,
        parameters=model.num_parameters(),
        steps=state.step,
        minutes=state.seconds / 60,
        corpus=corpus["name"],
        corpus_sha256=corpus["sha256"],
        **objective.results(figures, state.step),
    )
    run.end_history({"step": state.step, "seconds": round(state.seconds, 3), **validation_figures(figures)})
    draw_history(run.read_history(), objective.headline, run.picture)
    run.finish(asdict(report))
    run.keep_only(None)
    return report
