"""Asks a model the questions of the tasks, at several lengths, and scores the answers.

tasks, lengths --sample--> prompts --model--> texts --recall--> a TaskScore for each task and length
"""

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from asterism.errors import ConfigurationError
from asterism.evaluation.record import RecordFile, Scores, TaskScore
from asterism.evaluation.sample import Sample, room_for
from asterism.evaluation.scores import guess, interval, recall
from asterism.evaluation.tasks import LONGEST, SHORTEST, RulerTask, tasks_of
from asterism.randomness import derive
from asterism.training.run.progress import Display, clock, make_display

VERSION = 2
"""Of the prompts and of what is made of the answers."""

_GUESSES = 100


class Answering(Protocol):
    """What can be asked: a `CausalModel`, or anything else that counts tokens and continues texts."""

    @property
    def positions(self) -> int | None:
        """Tokens that it can read at most, prompt and continuation together; None if it has no limit."""
        ...

    def count(self, text: str) -> int:
        """How many tokens it reads of a text."""
        ...

    def continued(self, prompt: str, room: int) -> str:
        """What it writes after a prompt, in at most `room` tokens."""
        ...

    def identity(self) -> dict[str, Any]:
        """What decides its answers, as plain values."""
        ...


@dataclass(frozen=True)
class Asking:
    """How far an evaluation is, for a person: in which cell, and how many of all samples are answered."""

    task: str
    length: int
    done: int
    total: int
    seconds: float

    @property
    def fraction(self) -> float:
        return self.done / self.total

    def __str__(self) -> str:
        return f"{self.task}, {self.length:,} tokens: {self.done:,} of {self.total:,} samples in {clock(self.seconds)}"


def evaluate_ruler(
    model: Answering,
    tasks: Sequence[str] = ("all",),
    lengths: Sequence[int] = (4096,),
    *,
    samples: int = 50,
    seed: int = 0,
    record: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
) -> Scores:
    """Score a model on the tasks of RULER that need no data (Hsieh 2024, arXiv 2404.06654), at each length.

    `tasks` are names of `TASKS` and `GROUPS`; `lengths` are in tokens of the model, the room for the answer included,
    from 128 to 131,072. Each cell has `samples` prompts, a function of seed, task, length and tokenizer. With
    `record`, finished cells are kept in that JSON file, and with `resume` those that it has are not computed again.
    `progress` shows a bar or lines on stderr.

    Raises ConfigurationError for unknown tasks, for lengths that are out of range, too long for the model or too short
    for the question, and for a tokenizer that cannot write the answers, all of it before the model is asked anything.
    Raises CheckpointError for a record that exists, is damaged, or has other settings.
    """
    chosen = tasks_of(tasks)
    _check(model, lengths, samples, seed)
    settings = {**model.identity(), "ruler": VERSION, "samples": samples, "seed": seed}
    kept = RecordFile(None if record is None else Path(record), settings, resume=resume)
    asked = [(task, length) for task in chosen for length in dict.fromkeys(lengths)]
    for task, length in asked:
        _require_written(model, task, task.sample(0, length, seed, model.count))
    open_cells = [(task, length) for task, length in asked if (task.name, length) not in kept.cells]
    began = time.monotonic()
    with closing(make_display(progress)) as display:
        for number, (task, length) in enumerate(open_cells):
            display.doing(f"{task.name}, {length:,} tokens")
            done, total = number * samples, len(open_cells) * samples
            kept.add(_cell(model, task, length, samples, seed, _Shown(display, began, done, total)))
    return Scores(settings=settings, cells=tuple(kept.cells[task.name, length] for task, length in asked))


@dataclass(frozen=True)
class _Shown:
    """Shows how far it is, where `before` of `total` samples were done before this cell."""

    display: Display
    began: float
    before: int
    total: int

    def __call__(self, task: RulerTask, length: int, done: int) -> None:
        seconds = time.monotonic() - self.began
        self.display.show(Asking(task.name, length, self.before + done, self.total, seconds))


def _cell(model: Answering, task: RulerTask, length: int, samples: int, seed: int, show: _Shown) -> TaskScore:
    found, picked, tokens, seconds = [], [], [], 0.0
    for number in range(samples):
        sample = task.sample(number, length, seed, model.count)
        room = room_for(sample, model.count)
        began = time.monotonic()
        written = model.continued(sample.prompt, room)
        seconds += time.monotonic() - began
        found.append(recall(written, sample.answers))
        picked.append(_pick(sample, derive(seed, length, number)))
        tokens.append(model.count(sample.prompt) + room)
        show(task, length, number + 1)
    mean = float(np.mean(found))
    low, high = interval(mean, samples)
    return TaskScore(
        task=task.name,
        length=length,
        samples=samples,
        tokens=(min(tokens), max(tokens)),
        recall=mean,
        low=low,
        high=high,
        pick=float(np.mean(picked)),
        seconds=round(seconds, 3),
    )


def _pick(sample: Sample, seed: int) -> float:
    """The mean recall of random picks among the candidates."""
    random = np.random.Generator(np.random.Philox(key=seed))
    picks = (guess(random, sample.candidates, len(sample.answers)) for _ in range(_GUESSES))
    return float(np.mean([recall(" ".join(pick), sample.answers) for pick in picks]))


def _check(model: Answering, lengths: Sequence[int], samples: int, seed: int) -> None:
    for length in lengths:
        if not SHORTEST <= length <= LONGEST:
            raise ConfigurationError(
                "length-range", f"lengths: {length:,} is not between {SHORTEST:,} and {LONGEST:,} tokens"
            )
        if model.positions is not None and length > model.positions:
            raise ConfigurationError(
                "length-beyond-positions",
                f"lengths: the model was made for {model.positions:,} tokens, which is less than {length:,}",
            )
    if not lengths:
        raise ConfigurationError("no-length", "lengths: name at least one")
    for name, value, least in (("samples", samples, 1), ("seed", seed, 0)):
        if value < least:
            raise ConfigurationError("setting-range", f"{name} must be at least {least}, got {value}")


def _require_written(model: Answering, task: RulerTask, sample: Sample) -> None:
    """Raises ConfigurationError if the tokenizer loses an answer on its way to tokens and back."""
    tokenizer = getattr(model, "tokenizer", None)
    if tokenizer is None:
        return
    for answer in sample.answers:
        read = tokenizer(f" {answer}", verbose=False)["input_ids"]
        if not recall(tokenizer.decode(read, skip_special_tokens=True), [answer]):
            raise ConfigurationError(
                "tokenizer-loses-text",
                f"{task.name}: the tokenizer of this model cannot write {answer!r}, so no answer would be right",
            )
