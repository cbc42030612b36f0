"""From a setup to a finished run folder.

The loop takes the steps (`loop.py`), a session watches and records (`session.py`), and the folder stores everything
(`folder.py`). A step is a function of configuration, corpus and step number. So a stopped and resumed run gives the
same bits as an uninterrupted one, on a CPU and without a time budget (with one, elapsed time is part of the schedule).
Invariant: weights change, and checkpoints are written, only after finite losses.
"""

import platform
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from asterism import __version__
from asterism.errors import CheckpointError
from asterism.files import replacing, write_text
from asterism.kernels import cpu as cpu_kernel
from asterism.kernels.choice.prices import pinned, prices_for
from asterism.randomness import derive, isolated
from asterism.training.data.records.formats import json_line
from asterism.training.run.allocator import kept_memory
from asterism.training.run.arithmetic import notes_on_dtype, undisturbed
from asterism.training.run.checkpoint import (
    TrainingState,
    first_not_finite,
    gathered_weights,
    load_checkpoint,
    save_model,
)
from asterism.training.run.device import device_of_runs
from asterism.training.run.division import refuse_undivided, weighed
from asterism.training.run.evaluator import Evaluator
from asterism.training.run.folder import RunFolder
from asterism.training.run.loaders import refuse_other_versions, versions_of
from asterism.training.run.loop import take_steps
from asterism.training.run.machine import machine_facts, peak_memory
from asterism.training.run.metrics import Outcome, Report
from asterism.training.run.optimizer import make_optimizer
from asterism.training.run.picture import draw_history, require_matplotlib
from asterism.training.run.processes import Processes
from asterism.training.run.progress import Display, clock, watching
from asterism.training.run.schedule import notes_at_the_end
from asterism.training.run.session import Session, validation_metrics
from asterism.training.run.setup import Setup
from asterism.training.run.sharding import in_parts, shard_weights
from asterism.training.run.signals import held_back
from asterism.training.settings.configuration import config_to_dict


def fit(setup: Setup, run: RunFolder, processes: Processes, display: Display, *, resume: bool) -> Report:
    """Train the model of a setup in a run folder. With `resume`, the folder holds an unfinished run of the same setup.

    All processes of the run call it together. Raises DataError if the run began with other data, and what `train`
    raises.
    """
    config = setup.config
    require_matplotlib()
    refuse_undivided(setup, processes)
    processes = weighed(config, setup.shape, setup.objective.longest, processes)
    with undisturbed(), kept_memory(), isolated(derive(config.seed)), ExitStack() as stack:
        display.doing("making the model")
        device = device_of_runs()
        prices = processes.decided(lambda: dict(run.read_prices() if resume else _prices(setup, device)))
        stack.enter_context(pinned(prices))
        with processes.agreed():
            model, notes = _first_model(setup, device)
        processes.broadcast([*model.parameters(), *model.buffers()])
        shard_weights(model, processes, config)
        optimizer = make_optimizer(model, config)
        if resume:
            state = _restore(setup, run, model, optimizer, processes, display)
        else:
            with processes.agreed():
                if processes.leads:
                    run.create(_record(setup, notes, prices))
            state = TrainingState()
        if processes.leads:
            for line in setup.corpus.summary:
                display.say(line)
            for note in [*run.read_record()["notes"], *_of_this_session(state, processes)]:
                display.say(f"note: {note}")
        with (
            held_back() as interrupts,
            closing(Session(setup, run, model, optimizer, state, display, interrupts, processes)) as session,
        ):
            if setup.init_from is not None:
                session.save()  # from here on the run no longer needs the model it began with, but for an adapter
            if device.type == "cpu" and not session.is_over():
                display.doing("making the CPU kernel ready")
                cpu_kernel.is_available()  # builds the kernel, if need be, before the run's clock starts
            take_steps(session)
            session.end()
        return _finish(setup, run, model, state, display, processes)


def _of_this_session(state: TrainingState, processes: Processes) -> list[str]:
    """The facts of this session: where it runs, and on how many processes; both may differ from earlier sessions."""
    goes_on = [f"goes on after step {state.step:,}"] if state.step else []
    return goes_on if processes.alone else [*goes_on, f"{processes.shape.processes} processes: {processes.shape}"]


def _first_model(setup: Setup, device: torch.device) -> tuple[PreTrainedModel, list[str]]:
    """The model of the first step, and notes on it. Raises CheckpointError if it is damaged."""
    model, notes = setup.build(device)
    if setup.config.gradient_checkpointing:
        # The old name warns if the new one exists; transformers 5.17 has only the old one.
        getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
    if weight := first_not_finite(dict(model.named_parameters())):
        raise CheckpointError("weights-not-finite", f"the initial model is damaged: its weight {weight} is not finite")
    return model, notes


def _restore(
    setup: Setup,
    run: RunFolder,
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    processes: Processes,
    display: Display,
) -> TrainingState:
    """Go back to the newest checkpoint, or to the beginning if there is none yet.

    The leader finds and checks it. Every process reads it, so all must see the run folder.
    """
    found = processes.decided(lambda: str(_newest(setup, run) or ""))
    with processes.agreed():
        state = load_checkpoint(Path(found), model, optimizer) if found else TrainingState()
    with processes.agreed():
        if processes.leads:
            if run.is_renewed(setup.asked):
                run.renew(setup.asked, setup.objective.decided())
            run.keep_only(Path(found) if found else None)
            for damage in run.cut_history(state.step):
                display.say(f"note: {damage}; the line is left out")
    return state


def _newest(setup: Setup, run: RunFolder) -> Path | None:
    """The newest checkpoint, if there is one, of a run that can be resumed."""
    record = run.read_record()
    if record["result"] is not None:
        raise CheckpointError(
            "run-finished", f"{run.path} was just finished by another process; resume it again for its report"
        )
    run.refuse_other_data(setup.corpus.record())
    refuse_other_versions(setup.config, record)
    return run.latest_checkpoint()


def _prices(setup: Setup, device: torch.device) -> Mapping[str, Any]:
    """The prices of attention on this machine. They choose the kernels, so they must not change before the run ends."""
    return prices_for(setup.config.dtype) if device.type == "cpu" else {}


def _record(setup: Setup, notes: list[str], prices: Mapping[str, Any]) -> dict[str, Any]:
    """The contents of run.json for a run that begins."""
    packages = ["torch", "transformers", "numpy", "safetensors"]
    packages += ["peft"] if getattr(setup.config, "lora", None) is not None else []
    return {
        "kind": setup.asked.kind,
        "config": config_to_dict(setup.asked),
        "dtype": setup.config.dtype,
        "decided": setup.objective.decided(),
        "corpus": setup.corpus.record(),
        "readers": versions_of(setup.config),
        "notes": [*notes_on_dtype(setup.asked.dtype, setup.config.dtype), *setup.objective.notes, *notes],
        "prices": prices,
        "versions": {"python": platform.python_version(), "asterism": __version__}
        | {name: version(name) for name in packages},
        "machine": machine_facts(device_of_runs()),
        "result": None,
    }


def _finish(
    setup: Setup,
    run: RunFolder,
    model: PreTrainedModel,
    state: TrainingState,
    display: Display,
    processes: Processes,
) -> Report:
    """Save the model, score the validation split (or the configured part of it), and record the result."""
    for note in notes_at_the_end(setup.config, state.step, state.seconds, state.begun):
        display.say(f"note: {note}")
    began = time.monotonic()
    display.say(f"trained for {clock(state.seconds)}; saving the model, and evaluating on the validation split")
    display.doing("saving the model")
    weights = gathered_weights(model, processes)
    with processes.agreed():
        if processes.leads:
            with replacing(run.model) as folder:
                save_model(folder, model, weights)
                setup.objective.save_files(folder)
    with in_parts(model):
        evaluator = Evaluator(setup.config.at_the_end, processes, watching(display))
        outcome = setup.objective.evaluate(model, setup.corpus, evaluator)
    for note in outcome.notes:
        display.say(f"note: {note}")
    display.doing("writing the report")
    result = processes.decided(lambda: _written(setup, run, model, state, outcome))
    display.say(f"saving and the final evaluation took {clock(time.monotonic() - began)}, after the training time")
    return setup.objective.report(result)


def _written(
    setup: Setup, run: RunFolder, model: PreTrainedModel, state: TrainingState, outcome: Outcome
) -> dict[str, Any]:
    """Write the run folder and return the result as in run.json."""
    if outcome.predictions is not None:
        write_text(run.predictions, "".join(f"{json_line(one)}\n" for one in outcome.predictions))
    if outcome.page is not None:
        write_text(run.page, outcome.page)
    record, corpus = run.read_record(), setup.corpus.record()
    result = {
        "folder": str(run.path),
        "recipe": setup.config.name,
        "parameters": model.num_parameters(),
        "steps": state.step,
        "minutes": state.seconds / 60,
        "corpus": corpus["name"],
        "corpus_sha256": corpus["sha256"],
        "notes": [
            *record["notes"],
            *notes_at_the_end(setup.config, state.step, state.seconds, state.begun),
            *outcome.notes,
        ],
        **setup.objective.results(setup.corpus, outcome.metrics, state.step),
    }
    run.append_samples(state.step, outcome.samples)
    metrics = validation_metrics(outcome.metrics)
    run.end_history({"step": state.step, "seconds": round(state.seconds, 3), **metrics})
    draw_history(run.read_history(), setup.objective.metric, run.picture)
    run.finish(result, peak_memory(device_of_runs()))
    run.keep_only(None)
    return result
