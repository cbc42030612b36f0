"""Fine-tuning: a pretrained encoder, a file of examples and a task, to a finished run folder with predictions.

The loop, the checkpoints and the folder are those of every run (`training.fit`); the files and scores are the task's
(`tasks/`); here both are joined. A fine-tuned model folder is whole: weights, configuration with the names of the
labels, and tokenizer, as the pipelines of transformers want them.
"""

import hashlib
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedConfig, PreTrainedModel

from asterism.errors import CheckpointError, ConfigurationError, DataError
from asterism.randomness import derive
from asterism.training.objectives.labelled import Labelled, LabelledReport
from asterism.training.run.configuration import FineTuneConfig
from asterism.training.run.folder import RunFolder
from asterism.training.run.loop import quiet_transformers
from asterism.training.run.training import fit, refuse_other_run
from asterism.training.tasks import READERS, TASKS
from asterism.training.tasks.encoder import ends, labels_of, load_encoder, load_tokenizer, longest

HOLD_OUT = 2**32
"""Keys the order in which examples are held out: no pass over the examples has this number."""


def finetune(
    config: FineTuneConfig, folder: str | Path, *, resume: bool = False, progress: bool = True
) -> LabelledReport:
    """Fine-tune a model into a run folder, or go on with the run that is there; `training.train` says how.

    Predictions for the validation examples are in predictions.jsonl, in their order. Raises DataError for examples that
    cannot be used, CheckpointError for a model that cannot be read, and what `training.train` raises.
    """
    run = RunFolder(folder)
    if not resume:
        run.refuse_existing()
    with quiet_transformers():
        tokenizer, shape = load_tokenizer(config.model)
        length = _length(config, shape)
        tokenizer.model_max_length = length
        training, validation = _examples(config)
        recorded = run.read_record()["corpus"].get("task", {}) if resume else {}
        kind = TASKS[config.task]
        choices = {name: getattr(config, name) for name in kind.choices}
        task = kind.of(training, length=length, known=recorded.get("labels") or labels_of(shape), **choices)
        corpus = _corpus_record(config, training, validation) | {"task": task.record()}
        objective = Labelled(config, task, tokenizer, training, validation, corpus, run.predictions)
    steps = min(config.steps, math.ceil(config.epochs * len(objective.training) / config.batch_size))
    config = replace(config, steps=steps, length=length)
    if resume:
        refuse_other_run(read_finetune_config(run), config)
        if result := run.read_record()["result"]:
            run.tidy()
            return LabelledReport(**result)

    def build(device: torch.device) -> PreTrainedModel:
        model, new = load_encoder(config.model, task, len(tokenizer), fresh=config.from_scratch)
        if new:
            objective.notes.append(f"drawn anew, as {config.model} has none that fit: {', '.join(new)}")
        if progress:
            for note in objective.notes:
                print(f"note: {note}", file=sys.stderr, flush=True)
        return model.to(device)

    with run.held():
        return fit(
            config,
            objective,
            build,
            run,
            name=f"finetune-{config.task}",
            resume=resume,
            progress=progress,
        )


def read_finetune_config(run: RunFolder) -> FineTuneConfig:
    """The configuration of a fine-tuning run. Raises CheckpointError."""
    try:
        return FineTuneConfig(**run.read_record()["config"])
    except (ConfigurationError, TypeError) as error:
        raise CheckpointError(f"{run.run_file} is not that of a fine-tuning run: {error}") from error


def _length(config: FineTuneConfig, shape: PreTrainedConfig) -> int:
    """How many tokens are read at once. Raises ConfigurationError if the model does not say, or can read no more."""
    most = longest(shape)
    if config.length is None and most is None:
        raise ConfigurationError(f"length: the model in {config.model} does not say how many tokens it takes; give one")
    if config.length is not None and most is not None and config.length > most and ends(shape):
        raise ConfigurationError(f"length: {config.length:,} tokens were asked for, {config.model} takes {most:,}")
    return config.length or most


def _examples(config: FineTuneConfig) -> tuple[Sequence[Any], Sequence[Any]]:
    """Training and validation examples. Raises DataError if a single file is too short to hold some out."""
    read = READERS[config.task]
    examples = read(Path(config.data))
    if config.validation is not None:
        return examples, read(Path(config.validation))
    held_out = round(len(examples) * config.validation_fraction)
    if held_out < 1:
        raise DataError(
            f"data: {config.data} has {len(examples):,} examples, too few to hold {config.validation_fraction:g} of"
            " them out; give more, or a validation file"
        )
    order = np.random.Generator(np.random.Philox(derive(config.seed, HOLD_OUT))).permutation(len(examples)).tolist()
    return [examples[at] for at in sorted(order[held_out:])], [examples[at] for at in sorted(order[:held_out])]


def _corpus_record(config: FineTuneConfig, training: Sequence[Any], validation: Sequence[Any]) -> dict[str, Any]:
    """What run.json says about the data; the hash is that of the bytes of the files."""
    digest = hashlib.sha256()
    for path in (config.data, config.validation):
        digest.update(b"" if path is None else hashlib.sha256(Path(path).read_bytes()).digest())
    sizes = {"train": len(training), "validation": len(validation)}
    return {"name": config.data, "sha256": digest.hexdigest(), "examples": sizes}
