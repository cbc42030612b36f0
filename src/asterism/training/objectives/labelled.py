"""Learn from labelled examples: the loss of a model with a task's head, and the task's scores.

The model and its tokenizer exist already: `FineTuneConfig.model` is a folder that transformers can read. A fine-tuned
model folder is complete: weights, configuration with the names of the labels, and tokenizer, as the pipelines of
transformers require.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from asterism.errors import ConfigurationError
from asterism.lazy import imported
from asterism.randomness import derive
from asterism.training.data.records.record import Record
from asterism.training.objectives.footprint import require_memory_to_tune
from asterism.training.objectives.start import start_of
from asterism.training.readers.learned import Scorer
from asterism.training.readers.text import parse_reader
from asterism.training.run.adapters import add_adapter, require_peft
from asterism.training.run.arithmetic import arithmetic
from asterism.training.run.evaluator import Evaluator
from asterism.training.run.folder import model_folder
from asterism.training.run.metrics import Evaluation, Metric, Outcome, Question
from asterism.training.run.objective import Objective
from asterism.training.run.progress import Watch
from asterism.training.run.schedule import within
from asterism.training.run.setup import Setup
from asterism.training.settings.configuration import FineTuneConfig
from asterism.training.settings.lora import parse_lora
from asterism.training.settings.registry import FILE_TASKS, TASKS
from asterism.training.tasks.answers import NoScoreError, WrittenAnswers
from asterism.training.tasks.comparison import baselines_of, notes_on_sameness, score_lines
from asterism.training.tasks.corpus import AskedFeatures, LabelledCorpus, identity
from asterism.training.tasks.models import (
    ends,
    labels_of,
    load_model,
    load_tokenizer,
    load_values,
    longest,
    model_shape,
    new_model,
    refuse_tokens,
)
from asterism.training.tasks.predictor import Predictor, as_fields, model_inputs
from asterism.training.tasks.ranking import learned_scorer, require_scorer
from asterism.training.tasks.task import Kind, Task

Said = TypeVar("Said")
"""A prediction for an example, perhaps with the parts of the document from which it was made."""
SAMPLES, SAMPLED = 2, 1_000
"""The number of texts stored at an evaluation, and the most characters of each."""
RANKING = 2**33
"""The key of the random draws of a learned reader; no pass over the examples has this number."""


class Labelled(Objective[LabelledCorpus]):
    """A task's loss on batches of training features, and its scores on validation examples."""

    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("examples", "examples", "validation_examples", is_count=True),
        Metric("metric", "the score to judge by"),
        Metric("scores", "scores by name", lower_is_better=False),
        Metric("baselines", "scores of what needs no model, by name", lower_is_better=False),
    )
    unit: str = "examples"
    instead: ClassVar[str] = "ask it with `asterism predict`, score it with `asterism evaluate`"
    config: FineTuneConfig
    tokenizer: PreTrainedTokenizerFast

    def __init__(
        self, config: FineTuneConfig, task: Task[Any], tokenizer: PreTrainedTokenizerFast, notes: Sequence[str] = ()
    ) -> None:
        metric = task.answers.metric
        self.metric = Metric(metric, metric.replace("_", " "), lower_is_better=False)
        self.config = config
        self.task = task
        self.tokenizer = tokenizer
        self.notes = notes
        self.units_per_step = config.batch_size
        self.label_smoothing = config.label_smoothing
        self.positive_weight = task.answers.positive_weight
        self.arguments = task.answers.arguments

    @classmethod
    def resolve(cls, config: FineTuneConfig, own: Path | None) -> Setup:
        """Fill in the steps and the length, which the examples and the model decide."""
        with nullcontext(own) if own is not None else start_of(config) as source:
            return cls._resolved(config, own, source)

    @classmethod
    def _resolved(cls, config: FineTuneConfig, own: Path | None, source: Path) -> Setup:
        if config.lora is not None:
            require_peft()
        require_memory_to_tune(config, source)
        tokenizer, encoder = load_tokenizer(source) if config.modality is None else load_values(source)
        reader = parse_reader(config.reader)
        length = _row_length(reader.length or config.length, encoder, config.model)
        tokenizer.model_max_length = length
        kind = _kind(config)
        if own is None:
            tokenizer = kind.answers.fitted(config, tokenizer)
        choices = kind.choices(config, encoder, tokenizer)
        training, validation = kind.examples.divided(config)
        task = kind.of(training, known=labels_of(encoder), length=length, **choices)
        task = task.changed(**task.rows.measured(training, tokenizer))
        notes = []
        if task.rows.reading.learns:
            if own is None:
                scorer, note = learned_scorer(task.rows, training, tokenizer, derive(config.seed, RANKING))
                notes.append(note)
            else:
                scorer = Scorer.load(own)
            task = task.changed(scorer=scorer)
        examples = LabelledCorpus(config, training, validation, task, tokenizer)
        steps = math.ceil(config.epochs * examples.training_features / config.batch_size)
        known = replace(within(config, steps), length=length, reader=task.rows.reader)
        if known.warmup_steps != config.warmup_steps:
            sooner = f", or a tenth of {config.minutes:g} minutes if they end sooner" if config.minutes else ""
            notes.append(
                f"warm-up takes {known.warmup_steps:,} of the {steps:,} steps, not {config.warmup_steps:,}{sooner}"
            )
        return Setup(
            asked=config,
            shape=model_shape(source, task.answers),
            corpus=examples,
            init_from=source if own is None and not config.from_scratch else None,
            objective=cls(known, task, tokenizer, [*notes, *examples.notes]),
        )

    @classmethod
    def restore(cls, config: FineTuneConfig, folder: Path, decided: Mapping[str, Any]) -> "Labelled":
        """The task stands in run.json, the tokenizer, and the scorer of a reader that learns, in the model folder."""
        task = _kind(config).from_record(decided)
        if task.rows.reading.learns:
            task = task.changed(scorer=Scorer.load(folder))
        return cls(config, task, load_tokenizer(folder)[0])

    def decided(self) -> dict[str, Any]:
        """The task: the decisions of its training examples, such as the labels, and the length of rows."""
        return self.task.record()

    def save_files(self, folder: Path) -> None:
        """Save the tokenizer, and the scorer of a reader that learns."""
        super().save_files(folder)
        if self.task.rows.scorer is not None:
            self.task.rows.scorer.save(folder)

    @property
    def longest(self) -> tuple[int, ...]:
        """As the task says."""
        return self.task.rows.longest

    def new_model(self, shape: PreTrainedConfig) -> PreTrainedModel:
        """If the run trains an adapter, the model is its base, with a new adapter."""
        if self.config.lora is None:
            return self._prepared(new_model(shape, self.task.answers))
        base = model_folder(self.config.model, "model")
        model = self._prepared(load_model(base, shape, self.task.answers)[0])
        add_adapter(model, parse_lora(self.config.lora), base)
        return model

    def _prepared(self, model: PreTrainedModel) -> PreTrainedModel:
        """The model, whose own `generate` answers as it does here, if it writes."""
        if isinstance(self.task.answers, WrittenAnswers):
            model.generation_config = self.task.answers.generation(model.config, self.tokenizer)
        return model

    def initial_model(self, shape: PreTrainedConfig, init_from: Path | None) -> tuple[PreTrainedModel, list[str]]:
        """Raises ConfigurationError also for a tokenizer that the model has no embeddings for."""
        new: list[str] = []
        if init_from is None:
            model = self.new_model(shape)
        else:
            model, new = load_model(init_from, shape, self.task.answers)
            model = self._prepared(model)
        refuse_tokens(model, len(self.tokenizer), self.config.model)
        self.task.answers.prepare(model, self.config)
        notes = [f"drawn anew, as {self.config.model} has none that fit: {', '.join(new)}"] if new else []
        if self.config.lora is not None:
            if init_from is not None:
                add_adapter(model, parse_lora(self.config.lora), init_from)
            trained = sum(one.numel() for one in model.parameters() if one.requires_grad)
            notes.append(f"lora: {trained:,} of {model.num_parameters():,} parameters are trained")
        return model, notes

    def batch(self, corpus: LabelledCorpus, step: int) -> dict[str, torch.Tensor]:
        """The model's inputs, int64 [batch_size, longest row], and the task's targets."""
        features = corpus.draw(step, self.config.batch_size)
        inputs = model_inputs(features, self.tokenizer)
        return {**inputs, **self.task.rows.targets(features, inputs["input_ids"].shape[1])}

    def training_metrics(self, loss: float) -> dict[str, float]:
        """Nothing: a loss is no score."""
        return {}

    def evaluate(self, model: PreTrainedModel, corpus: LabelledCorpus, evaluator: Evaluator) -> Outcome:
        """The task's scores on validation examples; empty for a sample without a score, such as one without a positive.

        Predictions carry the place and id of their record and, at the end of a run, `read`: the characters that a
        reader chose. Every process predicts all examples.
        """
        sample, predictor = evaluator.budget.spread, self.predictor(model)
        examples, features = evaluator.budget.of(corpus.validation), evaluator.budget.of(corpus.validation_features)
        answered = list(_watched(predictor.answered(examples, features), predictor, len(examples), evaluator.watch))
        predictions = [prediction for prediction, _ in answered]
        try:
            scores = {**self._score(examples, predictions), **predictor.losses(examples)}
        except NoScoreError:
            if not sample:  # all of them have one, which was seen to before the first step
                raise
            scores = {}
        chosen: Sequence[Any] = [None] * len(examples)
        if not sample:
            chosen = self.task.rows.chosen(examples, [rows for _, rows in answered], self.tokenizer)
        return Outcome(
            scores,
            [
                _line(example.record, {**self._beside(example, read), **as_fields(prediction)})
                for example, read, prediction in zip(examples, chosen, predictions, strict=True)
            ],
            None if sample else self.task.answers.page(scores, examples, predictions),
            self._samples(examples, predictions),
            [*self._reported(corpus, sample), *notes_on_sameness(self._said(predictions), self._gold(examples))],
        )

    def _reported(self, corpus: LabelledCorpus, sample: bool) -> list[str]:
        """A note if the final report covers less than all validation examples."""
        scored, whole = len(corpus.reported), len(corpus.validation)
        if sample or scored == whole:
            return []
        return [f"the report is of the first {scored:,} of {whole:,} validation examples, by report_examples"]

    def _samples(self, examples: Sequence[Any], predictions: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The texts that the model wrote for the first examples, next to the targets."""
        if not isinstance(self.task.answers, WrittenAnswers):
            return []
        return [
            {
                "record": example.record.place,
                "text": prediction[self.task.answers.answer][:SAMPLED],
                "expected": self.task.examples.gold(example)[:SAMPLED],
            }
            for example, prediction in zip(examples[:SAMPLES], predictions, strict=False)
        ]

    def _beside(self, example: Any, read: Any) -> dict[str, Any]:
        """The fields next to a prediction: those that the task stores, and the stretches that a reader chose."""
        kept = self.task.examples.beside(example)
        return kept if read is None else {**kept, "read": read}

    def facts(self, corpus: LabelledCorpus, steps: int) -> dict[str, Any]:
        """Features are the rows that the model reads. If documents are read through windows, there are more features
        than examples.

        `baselines` are scores without a model, by name, on the same examples (`tasks/scores/baselines.py`).
        """
        return {
            "training_examples": corpus.length("train"),
            "validation_examples": len(corpus.reported),
            "training_features": corpus.training_features,
            "validation_features": corpus.asked_features,
            "metric": self.metric.name,
            "baselines": self.task.answers.baselines(corpus.examples, corpus.reported, self._gold(corpus.reported)),
        }

    def results(self, corpus: LabelledCorpus, metrics: Mapping[str, float], steps: int) -> dict[str, Any]:
        """The figures of the report, with the scores in one group, because the task chooses their names."""
        return {**self.facts(corpus, steps), "scores": dict(metrics)}

    @classmethod
    def describe(cls, figures: Mapping[str, Any], place: str | None = None) -> str:
        examples, judged = f"{figures['examples']:,} examples", figures["metric"]
        lines = [f"validation: {examples}" if place is None else f"{examples} of {place}"]
        notes = figures["notes"] if place is not None else ()  # those of a run are printed before its report
        lines += score_lines(judged, figures["scores"], figures.get("baselines", {}), notes)
        return "\n".join(lines)

    def answer(self, model: PreTrainedModel, question: Question, trained_on: str, evaluator: Evaluator) -> Evaluation:
        """The task's scores, of a file of examples, or of the run's validation examples. Every process asks about all
        of them."""
        unused = {"split": question.split is None, "minimum context": not any(question.minimum_context)}
        for name, is_default in unused.items():
            if not is_default:
                raise ConfigurationError(
                    "no-labels", f"{name}: a fine-tuned model is scored on examples, which need labels"
                )
        self.task.kind.require_scorer()
        if question.data is None:
            examples = self.task.examples.divided(self.config)[1]
            name, sha256 = self.config.data, identity(*self.task.examples.files(self.config))
        else:
            examples = self.task.examples.read(Path(question.data), self.config)
            name, sha256 = question.data, identity(question.data)
        examples = evaluator.budget.of(examples)
        predictor = self.predictor(model, reader=question.reader)
        asked = predictor.predict(examples, AskedFeatures(predictor.task.rows, examples, self.tokenizer))
        predictions = list(_watched(asked, predictor, len(examples), evaluator.watch))
        scores = {**self._score(examples, predictions), **predictor.losses(examples)}
        there = self._gold(examples)
        baselines, notes = baselines_of(self.task, self.config, trained_on, examples, there)
        figures = {
            "examples": len(examples),
            "metric": self.metric.name,
            "scores": scores,
            "baselines": baselines,
            "notes": [*notes, *notes_on_sameness(self._said(predictions), there)],
            "reader": predictor.task.rows.reader,
            "length": predictor.task.rows.length,
        }
        return Evaluation(
            corpus=name,
            corpus_sha256=sha256,
            is_training_corpus=sha256 == trained_on,
            figures=figures,
            text=self.describe(figures, name),
        )

    def prompt(self, text: bytes) -> torch.Tensor:
        """A prompt as the task asks it: to be completed, or as the message of a user. It is read as UTF-8."""
        tokens = self.task.rows.typed(text.decode(errors="replace"), self.tokenizer)
        if tokens is None:
            raise self._continues_nothing()
        return torch.from_numpy(tokens.astype(np.int64))[None]

    def conversation(self, messages: Sequence[Mapping[str, str]]) -> torch.Tensor:
        """As the chat template of the tokenizer renders it."""
        tokens = self.task.rows.conversed(messages, self.tokenizer)
        return super().conversation(messages) if tokens is None else torch.from_numpy(tokens.astype(np.int64))[None]

    def continued(self, model: PreTrainedModel, starts: torch.Tensor, sampling: Mapping[str, Any]) -> torch.Tensor:
        """The tokens of answers, which may end before the length that `sampling` says."""
        generating: Any = model
        starts = starts.to(model.device)
        with arithmetic(self.config.dtype, model.device):
            found = generating.generate(starts, attention_mask=torch.ones_like(starts), **self.ending, **sampling)
        values: torch.Tensor = found[:, starts.shape[1] :].cpu()
        return values

    @property
    def ending(self) -> dict[str, Any]:
        """Those of the task's own search, without beams."""
        answers = self.task.answers
        return dict(answers.sampled(self.tokenizer)) if isinstance(answers, WrittenAnswers) else {}

    def written(self, start: torch.Tensor, values: torch.Tensor) -> bytes:
        """The text of an answer; that of a conversation begins on a line of its own."""
        answers = self.task.answers
        assert isinstance(answers, WrittenAnswers)
        return answers.following(values[0].tolist(), self.tokenizer).encode(errors="replace")

    def predictor(self, model: PreTrainedModel, batch_size: int | None = None, reader: str | None = None) -> Predictor:
        """The predictor of the model; by default with the batch size and the reader of training."""
        return Predictor(
            model=model,
            tokenizer=self.tokenizer,
            task=self.task if reader is None else self._read_by(reader, model.config),
            dtype=self.config.dtype,
            batch_size=batch_size or self.config.micro_batch_size,
        )

    def _read_by(self, text: str, shape: PreTrainedConfig) -> Task[Any]:
        """The task with another reader. Rows have the length of that reader if it has one, else that of the run.

        Nothing is cut by whole(), so its rows are as long as the model takes.
        """
        reader = parse_reader(text)
        require_scorer(reader, self.task.rows)
        wanted = reader.length or (longest(shape) if reader.name == "whole" else None) or self.task.rows.length
        return self.task.changed(reader=text, length=_row_length(wanted, shape, self.config.model))

    def _score(self, examples: Sequence[Any], predictions: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        answers = [prediction[self.task.answers.answer] for prediction in predictions]
        return self.task.answers.score(answers, self._gold(examples))

    def _said(self, predictions: Sequence[Mapping[str, Any]]) -> list[Any]:
        """What the model says of each example: its label if it has one, not the probability that is scored."""
        return [one.get("label", one[self.task.answers.answer]) for one in predictions]

    def _gold(self, examples: Sequence[Any]) -> list[Any]:
        return [self.task.examples.gold(example) for example in examples]


def _kind(config: FineTuneConfig) -> Kind[Any]:
    """The kind of the run's task; tasks on files have a separate kind, with a modality that reads them."""
    kind: Kind[Any] = TASKS.load(config.task) if config.modality is None else imported(FILE_TASKS[config.task])
    return kind


def _watched(predictions: Iterable[Said], predictor: Predictor, examples: int, watch: Watch) -> Iterator[Said]:
    """The predictions for so many examples, and how many batches of them are done."""
    size = predictor.batch_size
    watch(0, -(-examples // size))
    for number, prediction in enumerate(predictions):
        if number % size == 0:
            watch(number // size, -(-examples // size))
        yield prediction


def _line(record: Record, fields: Mapping[str, Any]) -> dict[str, Any]:
    """A prediction, and what stands beside it, as the run folder keeps it."""
    identity = {"id": record.fields["id"]} if "id" in record.fields else {}
    return {"record": record.place, **identity, **fields}


def _row_length(wanted: int | None, shape: PreTrainedConfig, model: str) -> int:
    """The number of tokens of a row: the setting's, or the limit of the model.

    Raises ConfigurationError if the model does not say how many, or takes fewer.
    """
    most = longest(shape)
    if wanted is None:
        if most is None:
            raise ConfigurationError("length-unsaid", f"length: the model in {model} has no maximum length; give one")
        return most
    if most is not None and wanted > most and ends(shape):
        raise ConfigurationError(
            "length-beyond-model", f"length: got {wanted:,} tokens, but {model} takes at most {most:,}"
        )
    return wanted
