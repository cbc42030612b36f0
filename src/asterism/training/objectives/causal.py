"""Predict the next token; report bits per byte, and those of simple models and compressors for the same bytes.

Without a tokenizer a token is one value of the data's modality, and so is a byte: a byte of text, one channel of a
pixel, a sample, a base. With a tokenizer a token stands for some bytes of a text, and bits per byte are the nats of the
scored tokens over the bytes of their text.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch
import torch.nn.functional as F
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from asterism.errors import ConfigurationError, DataError
from asterism.labels import IGNORED, shifted_right
from asterism.models import AsterismConfig, AsterismForCausalLM
from asterism.randomness import derive, isolated
from asterism.training.data.corpora.bytes import compressed
from asterism.training.data.corpora.modality import Modality
from asterism.training.data.corpora.splits import Pieces, Split, Splits
from asterism.training.data.corpora.tokenization import (
    ENDING,
    Vocabulary,
    encode,
    end_of,
    has_tokenizer,
    load_tokenizer,
    start_of_text,
    vocabulary,
)
from asterism.training.data.corpora.tokens import TokenPieces, TokenSplits, decoded
from asterism.training.data.corpora.windows import (
    FIRST_CLASS,
    ScoringPlan,
    WindowCorpus,
    model_inputs,
    plan_pieces,
    read_windows,
)
from asterism.training.objectives.pretraining import Pretraining, model_type_of
from asterism.training.objectives.stock import followed_shape, load_causal, new_causal, without_cache
from asterism.training.run.arithmetic import arithmetic, wide
from asterism.training.run.evaluator import Evaluator
from asterism.training.run.metrics import Evaluation, Metric, Outcome, Question, refuse_reader
from asterism.training.settings.budget import Budget
from asterism.training.settings.configuration import RunConfig
from asterism.training.settings.sampling import Sampling

PROMPT, SAMPLED, SAMPLED_TOKENS = 32, 160, 48
"""The bytes or tokens that a model reads, and the bytes, or tokens, that it then writes, at each evaluation; small
models take fractions of a second."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """Bits per byte of a model when every byte has at least `minimum_context` bytes of context."""

    minimum_context: int
    bits_per_byte: float


class CausalTokens(Pretraining[WindowCorpus]):
    """Every position of a random window predicts the next byte or token.

    `bytes_per_token` is the mean of the training split, by which training losses are told in bits per byte.
    """

    metric = Metric("bits_per_byte", "bits/byte", "validation_bits_per_byte")
    metrics: ClassVar[tuple[Metric, ...]] = (
        metric,
        Metric("bytes_scored", "bytes", "validation_bytes", is_count=True),
        Metric("baselines", "bits/byte of compressors, by name"),
    )
    unit: str = "bytes"
    instead: ClassVar[str] = "it predicts the next token: continue a prompt with `asterism generate`"

    def __init__(
        self, config: RunConfig, tokenizer: PreTrainedTokenizerBase | None = None, bytes_per_token: float = 1.0
    ) -> None:
        super().__init__(config)
        self.tokenizer = tokenizer
        if tokenizer is not None:
            self.unit = "tokens"
        self.bytes_per_token = bytes_per_token

    @classmethod
    def vocabulary(cls, config: RunConfig, source: Path | None) -> Vocabulary:
        """That of the tokenizer, or the 256 values and the classes of a modality, without a padding token."""
        if source is not None and has_tokenizer(source):
            return vocabulary(str(source), ENDING)
        if source is None and config.tokenizer != RunConfig.tokenizer:
            return vocabulary(config.tokenizer, ENDING)
        return Vocabulary(config.reads().vocabulary_size, None, is_values=True)

    @classmethod
    def counts_in(cls, vocabulary: Vocabulary) -> str:
        return cls.unit if vocabulary.is_values else "tokens"

    @classmethod
    def model_class(cls, config: RunConfig) -> type[PreTrainedModel]:
        """A causal language model."""
        return AsterismForCausalLM

    @classmethod
    def blank_batch(cls, config: RunConfig, sequences: int) -> dict[str, torch.Tensor]:
        return model_inputs(torch.zeros(sequences, config.context + 1, dtype=torch.int64))

    @classmethod
    def _initial_shape(cls, config: RunConfig, folder: Path, vocabulary: Vocabulary) -> PreTrainedConfig:
        """Also that of a causal model of transformers, which follows the pattern."""
        if model_type_of(folder) == AsterismConfig.model_type:
            return super()._initial_shape(config, folder, vocabulary)
        shape = followed_shape(folder, config.pattern, config.context, "init_from: ")
        cls.refuse_start(config, shape.vocab_size, vocabulary, folder)
        return shape

    def new_model(self, shape: PreTrainedConfig) -> PreTrainedModel:
        if isinstance(shape, AsterismConfig):
            return super().new_model(shape)
        return without_cache(new_causal(shape))

    def initial_model(self, shape: PreTrainedConfig, init_from: Path | None) -> tuple[PreTrainedModel, list[str]]:
        if init_from is None or isinstance(shape, AsterismConfig):
            return super().initial_model(shape, init_from)
        return without_cache(load_causal(init_from, torch.float32, shape, "init_from: ")), []

    @classmethod
    def refuse_start(cls, config: RunConfig, size: int, vocabulary: Vocabulary, folder: Path) -> None:
        """A model of bytes has one embedding for each; a tokenizer may have fewer tokens than the model."""
        if not vocabulary.is_values:
            super().refuse_start(config, size, vocabulary, folder)
        elif size != vocabulary.size:
            raise ConfigurationError(
                "vocabulary-differs",
                f"init_from: {folder} has no tokenizer, so objective {config.objective} predicts {vocabulary.size}"
                f" bytes, but its model has a vocabulary of {size:,}; add its tokenizer to the folder",
            )

    @classmethod
    def prepare(cls, config: RunConfig, vocabulary: Vocabulary) -> tuple["CausalTokens", WindowCorpus]:
        """Raises DataError also for a stream whose training or validation split is shorter than a window."""
        if not vocabulary.is_values:
            return cls._prepared_tokens(config, vocabulary)
        modality = config.reads()
        windows = WindowCorpus(modality.splits(config.data), config.context, config.seed)
        for pieces in (windows.train, windows.validation):
            refuse_labels(windows.name, pieces, modality.classes)
        windows.notes = (*windows.notes, *_strange_positions(config, modality))
        return cls(config), windows

    @classmethod
    def _prepared_tokens(cls, config: RunConfig, vocabulary: Vocabulary) -> tuple["CausalTokens", WindowCorpus]:
        """The tokenizer is made of the training split, unless it is there."""
        texts = config.reads().texts(config.data)
        tokenizer = vocabulary.made(texts.documents("train"), config.context)
        splits = TokenSplits(texts, tokenizer)
        windows = WindowCorpus(splits, config.context, config.seed)
        changed, compared = splits.pieces("validation").changed()
        if changed:
            windows.notes = (
                *windows.notes,
                f"the tokenizer does not restore {changed:,} of the first {compared:,} validation documents: bits per"
                " byte are too low by what it drops",
            )
        return cls(config, tokenizer, splits.length("train") / len(windows.train)), windows

    @classmethod
    def restore(cls, config: RunConfig, folder: Path, decided: Mapping[str, Any]) -> "CausalTokens":
        """The tokenizer, if there is one, is in the model folder."""
        return cls(config, load_tokenizer(folder, ENDING) if has_tokenizer(folder) else None)

    def splits(self, data: str | None) -> Splits:
        """The corpus at a path, as values or tokens. Raises DataError if it cannot be used."""
        modality = self.config.reads()
        return modality.splits(data) if self.tokenizer is None else TokenSplits(modality.texts(data), self.tokenizer)

    def batch(self, corpus: WindowCorpus, step: int) -> dict[str, torch.Tensor]:
        """Random windows of the training split: `model_inputs` of [batch_size, context + 1]."""
        return self._labelled(model_inputs(corpus.draw(step, self.config.batch_size), corpus.train.border))

    def _labelled(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """With labels for models that shift them: those of the first column, and all but the last of the others.

        Many such models use `shift_labels` where they are there; the others do not learn from the last column.
        """
        if self.model_shifts:
            batch["labels"] = shifted_right(batch["shift_labels"], IGNORED, IGNORED)
        return batch

    def training_metrics(self, loss: float) -> dict[str, float]:
        """Bits per byte instead of nats per token."""
        return {"bits_per_byte": loss / math.log(2) / self.bytes_per_token}

    @classmethod
    def describe(cls, figures: Mapping[str, Any], place: str | None = None) -> str:
        compressed = ", ".join(f"{name} {bits:.4f}" for name, bits in figures["baselines"].items())
        if place is None:
            bits, scored = figures["bits_per_byte"], figures["bytes_scored"]
            lines = [f"validation: {bits:.4f} bits per byte on {scored:,} bytes"]
        else:
            rows = [f"{score.minimum_context:>15,}  {score.bits_per_byte:>13.4f}" for score in figures["scores"]]
            column = f"minimum {figures.get('context_unit', 'context')}"
            lines = [f"{figures['bytes_scored']:,} bytes of {place}", f"{column:<15}  bits per byte", *rows]
        return "\n".join([*lines, f"the same bytes compressed: {compressed}"])

    def evaluate(self, model: PreTrainedModel, corpus: WindowCorpus, evaluator: Evaluator) -> Outcome:
        """Bits per byte."""
        pieces, budget = corpus.validation, evaluator.budget
        whole = self._plan(pieces, len(pieces))
        plan = (
            whole.thin(budget.limit)
            if budget.spread and budget.limit
            else self._plan(pieces, self._stop(pieces, budget))
        )
        bits = bits_per_byte(model, pieces, plan, self.config, evaluator)
        unit = self.config.reads().unit if self.tokenizer is None else "bytes"
        notes = self.reported(budget, plan.bytes_scored, whole.bytes_scored, unit)
        return Outcome({"bits_per_byte": bits}, samples=self._samples(model, pieces, budget), notes=notes)

    def _samples(self, model: PreTrainedModel, pieces: Pieces, budget: Budget) -> list[dict[str, Any]]:
        """What the model makes of the start of the validation split, with the run's seed; of text, the continuation.

        All processes of a run draw the same together, each the whole of it.
        """
        modality = self.config.reads()
        with isolated(derive(self.config.seed)):
            if pieces.is_stream:
                return self._text(model, pieces)
            if modality.samples_at_the_end and budget.spread:
                return []
            row = read_windows(pieces, pieces.bounds[:1], self.config.context)
            return self._sequence(model, modality, row[:, : 1 + int(pieces.bounds[1] - pieces.bounds[0])])

    def _text(self, model: PreTrainedModel, pieces: Pieces) -> list[dict[str, Any]]:
        prompt = min(PROMPT, self.config.context // 4)
        start = self._as_bytes(pieces.read(0, prompt))
        most = SAMPLED if self.tokenizer is None else SAMPLED_TOKENS
        sampling = Sampling(seed=self.config.seed).arguments(min(most, self.config.context - prompt))
        given = self.prompt(start)
        written = self.written(given, self.continued(model, given, sampling))
        return [{name: text.decode(errors="replace") for name, text in (("prompt", start), ("text", written))}]

    def _sequence(self, model: PreTrainedModel, modality: Modality, row: torch.Tensor) -> list[dict[str, Any]]:
        """Of a piece, int64 [1, values + 1] with the token before it: each value as the model expects it from the right
        ones before it, and the end as the model draws it: half of the piece at most."""
        with torch.no_grad(), arithmetic(self.config.dtype, model.device):
            logits = model(input_ids=row[:, :-1].to(model.device)).logits[0, :, :FIRST_CLASS]
        values = row[0, 1:]
        kept = modality.kept(len(values), max(0.5, 1 - modality.most_drawn / len(values)))
        drawn = values[:0]
        if kept < len(values):
            sampling = Sampling(seed=self.config.seed).arguments(len(values) - kept)
            drawn = self.continued(model, row[:, : kept + 1], sampling)[0]
        as_values = (one.cpu().numpy().astype(np.uint8) for one in (values, logits.argmax(-1), drawn))
        return modality.samples(*as_values)

    def facts(self, corpus: WindowCorpus, steps: int) -> dict[str, Any]:
        """Also the bits that compressors need for the scored bytes."""
        pieces = corpus.validation
        stop = self._stop(pieces, self.config.at_the_end)
        return {
            **super().facts(corpus, steps),
            "validation_bytes": self._plan(pieces, stop).bytes_scored,
            "baselines": self._baselines(corpus.splits, "validation", 0, stop),
        }

    def answer(self, model: PreTrainedModel, question: Question, trained_on: str, evaluator: Evaluator) -> Evaluation:
        """Bits per byte, and those of general compressors for the same bytes.

        With a minimum context M, every scored byte has at least M bytes before it in its window (the protocol of Child
        2019, table 3). Several values of M are scored on the same bytes, so that their numbers can be compared: the
        first max(1, largest M) bytes of the split, which cannot have that much context, are left out for all of them.
        """
        refuse_reader(question)
        config, asked = self.config, question.minimum_context
        _check_minimum_context(config, asked)
        splits = self.splits(question.data or config.data)
        split = question.split or "validation"
        pieces, lead = splits.require(split, config.context), max(asked)
        refuse_labels(splits.name, pieces, config.reads().classes)
        stop = self._stop(pieces, evaluator.budget, lead)
        plans = {minimum: plan_pieces(pieces, config.context, minimum, lead, stop) for minimum in asked}
        if not (scored := plans[lead].bytes_scored):
            raise ConfigurationError(
                "minimum-context-too-long", f"minimum context {lead} is longer than every piece of the {split} split"
            )
        scores = tuple(
            Score(minimum_context=minimum, bits_per_byte=bits_per_byte(model, pieces, plan, config, evaluator))
            for minimum, plan in plans.items()
        )
        baselines = self._baselines(splits, split, lead, stop)
        figures: dict[str, Any] = {"split": split, "bytes_scored": scored, "scores": scores, "baselines": baselines}
        if self.tokenizer is not None:
            figures["context_unit"] = "tokens"
        return Evaluation(
            corpus=splits.name,
            corpus_sha256=splits.sha256,
            is_training_corpus=splits.sha256 == trained_on,
            figures=figures,
            text=self.describe(figures, f"the {split} split of {splits.name}"),
        )

    def _plan(self, pieces: Pieces, stop: int) -> ScoringPlan:
        """The consecutive windows that score a split up to index `stop`, with minimum context 0."""
        return plan_pieces(pieces, self.config.context, 0, 0, stop)

    def _stop(self, pieces: Pieces, budget: Budget, lead: int = 0) -> int:
        """The index after the last scored value, counted from the beginning of a split, without the first `lead`
        values.

        A piece is scored whole if it is not longer than a window.
        """
        limit, size, context = budget.limit, len(pieces), self.config.context
        first = np.array([max(1, lead)])
        if limit is None or (not pieces.is_stream and limit >= size):
            return size
        if pieces.is_stream:
            return min(size, max(pieces.place_of(int(pieces.bytes_before(first)[0]) + limit), context + 1))
        at = int(np.searchsorted(pieces.bounds, limit, side="right")) - 1
        begin, end = int(pieces.bounds[at]), int(pieces.bounds[at + 1])
        if end - begin <= context:
            return begin if at else end
        return max(limit, begin + context)

    def _baselines(self, splits: Splits, split: Split, lead: int, stop: int) -> dict[str, float]:
        """Baselines on the scored values, or on whole pieces, because the beginning of a piece is compressed with
        it.
        """
        pieces = splits.pieces(split)
        first = max(lead, 1) if pieces.is_stream else 0
        if isinstance(pieces, TokenPieces):
            return compressed(pieces.text(*pieces.bytes_before(np.array([first, stop])).tolist()))
        return self.config.reads().baselines(splits, split, first, stop)

    def prompt(self, text: bytes) -> torch.Tensor:
        """A prompt begins as in training, where a NUL byte separates files and precedes records: an empty prompt starts
        after one, and so does every record. A prompt of tokens is the beginning of a document."""
        if self.tokenizer is not None:
            (tokens,) = encode(self.tokenizer, [text.decode(errors="replace")])
            return torch.tensor([[start_of_text(self.tokenizer), *tokens.tolist()]])
        modality = self.config.reads()
        if modality.outputs:
            raise ConfigurationError(
                "output-missing", f"generate: this model writes files: give --output FILE{modality.outputs[0]}"
            )
        return torch.tensor([list(text if text and modality.is_stream else b"\0" + text)])

    def continued(self, model: PreTrainedModel, starts: torch.Tensor, sampling: Mapping[str, Any]) -> torch.Tensor:
        """Draw what follows. The tokens of classes stand only at the beginning of sequences and are never drawn. A text
        of tokens ends with its document."""
        classes = range(FIRST_CLASS, self.config.reads().vocabulary_size)
        suppressed: dict[str, Any] = {"suppress_tokens": list(classes)} if classes else self.ending
        with arithmetic(self.config.dtype, model.device):
            output = cast(Any, model).generate(starts.to(model.device), **sampling, **suppressed)
        values: torch.Tensor = output[:, starts.shape[1] :].cpu()
        return values

    @property
    def ending(self) -> dict[str, Any]:
        if self.tokenizer is None:
            return {}
        end, padding = end_of(self.tokenizer), self.tokenizer.pad_token_id
        return {"eos_token_id": end, "pad_token_id": end if padding is None else padding}

    def written(self, start: torch.Tensor, values: torch.Tensor) -> bytes:
        """Tokens are decoded together with those before them, since some take a space from there."""
        if self.tokenizer is None:
            return super().written(start, values)
        before = self._as_bytes(start[0].numpy())
        return self._as_bytes(torch.cat([start[0], values[0]]).numpy())[len(before) :]

    def _as_bytes(self, tokens: np.ndarray) -> bytes:
        """The bytes that tokens, int [tokens], stand for."""
        if self.tokenizer is None:
            return bytes(tokens.tolist())
        return decoded(self.tokenizer, tokens).encode(errors="replace")


def refuse_labels(name: str, pieces: Pieces, classes: int | None) -> None:
    """Raise DataError if pieces for a model with classes have no labels, or labels of other classes."""
    if classes is None or pieces.labels is None:
        if classes is not None:
            raise DataError("no-classes", f"data: {name} has no classes; the model has {classes}")
        return
    if not 0 <= pieces.labels.min() <= pieces.labels.max() < classes:
        raise DataError(
            "label-range",
            f"data: {name} has labels from {pieces.labels.min()} to {pieces.labels.max()}; the model has classes 0 to"
            f" {classes - 1}",
        )


def _strange_positions(config: RunConfig, modality: Modality) -> list[str]:
    """A note if positions count rows and columns that the pieces do not have, as in a recipe for another size."""
    shape = None if config.init_from else config.model.position_shape
    if not modality.axes or shape is None or tuple(shape) == modality.axes:
        return []
    return [
        f"model.position_shape is {list(shape)}, but a piece of {modality} has {list(modality.axes)}: rows and columns"
        f' are not where the positions say; set --model.position-shape "{list(modality.axes)}"'
    ]


def _check_minimum_context(config: RunConfig, asked: Sequence[int]) -> None:
    if not asked:
        raise ConfigurationError("minimum-context-missing", "minimum context: at least one value is needed")
    if config.reads().sequence_length is not None and any(asked):
        raise ConfigurationError(
            "minimum-context-records", "minimum context: this model reads records, which have no bytes before them"
        )
    for minimum in asked:
        if not 0 <= minimum <= config.context:
            raise ConfigurationError(
                "minimum-context-range",
                f"minimum context {minimum} is not between 0 and the model's context {config.context}",
            )


def bits_per_byte(
    model: PreTrainedModel, pieces: Pieces, plan: ScoringPlan, config: RunConfig, evaluator: Evaluator
) -> float:
    """The sum of -log2 p(value) over the values that `plan` scores in a split, divided by the number of their bytes.

    The model computes in the run's arithmetic and is left in evaluation mode. Sums are in float64, so that the result
    does not depend on the number of windows.
    """
    columns = np.arange(config.context)

    def read(windows: np.ndarray) -> dict[str, torch.Tensor]:
        batch = model_inputs(read_windows(pieces, plan.starts[windows], config.context), pieces.border)
        firsts, stops = plan.firsts[windows, None], plan.stops[windows, None]
        batch["shift_labels"][torch.from_numpy((columns < firsts) | (columns >= stops))] = IGNORED
        return batch

    def measure(output: Any, batch: Mapping[str, torch.Tensor]) -> dict[str, float]:
        logits, wanted = wide(output.logits.flatten(0, 1)), batch["shift_labels"].flatten()
        losses = F.cross_entropy(logits, wanted, reduction="none", ignore_index=IGNORED)
        return {"nats": losses.double().sum().item()}

    found = evaluator.sums(
        model, config, range(len(plan.starts)), read, measure, arguments=("input_ids", "position_ids")
    )
    return found["nats"] / math.log(2) / plan.bytes_scored
