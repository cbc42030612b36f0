"""Learning from labelled examples: the loss of a model with a task's head, and the task's scores."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from asterism.files import write_text
from asterism.training.data.packing import Epochs
from asterism.training.objectives.objective import Headline, Objective, Report
from asterism.training.run.build import arithmetic
from asterism.training.run.configuration import FineTuneConfig
from asterism.training.tasks import Predictor, Task, as_fields
from asterism.training.tasks.predictor import model_inputs


@dataclass(frozen=True, kw_only=True)
class LabelledReport(Report):
    """What a finished run came to, on `validation_examples` examples. Scores are from 0 to 1, the higher the better.

    `training_features` and `validation_features` are the rows that the model reads: more than there are examples when
    documents are read through windows. `notes` are what a user should know, one line each.
    """

    training_examples: int
    validation_examples: int
    training_features: int
    validation_features: int
    headline: str
    scores: dict[str, float]
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        rows = [f"{name:<24}{value:.4f}" for name, value in self.scores.items()]
        return "\n".join([f"validation: {self.validation_examples:,} examples", *rows])


class Labelled(Objective):
    """A task's loss on batches of training features, and its scores on validation examples.

    Features come in a new order on each pass, a function of (seed, pass); a batch may span two passes. A full
    evaluation also writes `predictions_file`: one JSON object per validation example, with place and id of its record.
    `notes` are for the report; what builds the model adds its own.

    Raises DataError for an example that the task cannot use.
    """

    report_type: ClassVar[type[Report]] = LabelledReport
    unit: ClassVar[str] = "examples"

    def __init__(
        self,
        config: FineTuneConfig,
        task: Task,
        tokenizer: PreTrainedTokenizerFast,
        training: Sequence[Any],
        validation: Sequence[Any],
        corpus: dict[str, Any],
        predictions_file: Path,
    ) -> None:
        self.headline = Headline(task.headline, task.headline.replace("_", " "), lower_is_better=False)
        self.config = config
        self.task = task
        self.tokenizer = tokenizer
        self.training_examples = len(training)
        features = list(task.features(training, tokenizer))
        self.training = [one for some in features for one in some]
        self.notes = task.notes(training, features)
        self.validation = validation
        self.corpus = corpus
        self.predictions_file = predictions_file
        self.units_per_step = config.batch_size
        self.validation_features = list(task.features(validation, tokenizer))
        self.epochs = Epochs(len(self.training), config.seed)

    def batch(self, step: int) -> dict[str, torch.Tensor]:
        """The model's inputs, int64 [batch_size, longest row], and the task's targets."""
        size = self.config.batch_size
        features = [self.training[number] for number in self.epochs.draw(step * size, size)]
        inputs = model_inputs(features, self.tokenizer)
        return {**inputs, **self.task.targets(features, inputs["input_ids"].shape[1])}

    def loss(self, model: PreTrainedModel, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The loss of the model's own head."""
        with arithmetic(self.config.dtype, model.device):
            return model(**batch).loss.float()

    def training_figures(self, loss: float) -> dict[str, float]:
        """Nothing: a loss is no score."""
        return {}

    def evaluate(self, model: PreTrainedModel, *, sample: bool = False) -> dict[str, float]:
        """The task's scores of the validation examples, or of `evaluation_examples` of them, spread evenly."""
        every = max(1, -(-len(self.validation) // self.config.evaluation_examples)) if sample else 1
        examples, task = self.validation[::every], self.task
        predictor = Predictor(
            model=model,
            tokenizer=self.tokenizer,
            task=task,
            dtype=self.config.dtype,
            batch_size=self.config.batch_size // self.config.accumulation,
        )
        predictions = list(predictor.predict(examples, self.validation_features[::every]))
        if not sample:
            self._write(predictions)
        return task.score([one[task.answer] for one in predictions], [task.gold(example) for example in examples])

    def results(self, figures: Mapping[str, float], steps: int) -> dict[str, Any]:
        """The fields of LabelledReport."""
        return {
            "training_examples": self.training_examples,
            "validation_examples": len(self.validation),
            "training_features": len(self.training),
            "validation_features": sum(map(len, self.validation_features)),
            "headline": self.headline.name,
            "scores": dict(figures),
            "notes": self.notes,
        }

    def corpus_record(self) -> dict[str, Any]:
        """Name, hash, and the examples of each split."""
        return self.corpus

    def save_files(self, folder: Path) -> None:
        """The tokenizer."""
        self.tokenizer.save_pretrained(folder)

    def _write(self, predictions: Sequence[dict[str, Any]]) -> None:
        lines = []
        for example, prediction in zip(self.validation, predictions, strict=True):
            record = example.record
            identity = {"id": record.fields["id"]} if "id" in record.fields else {}
            line = {"record": record.place, **identity, **as_fields(prediction)}
            lines.append(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")
        write_text(self.predictions_file, "".join(lines))
