"""How well the model of a run does on data that it has not seen.

Of bytes: bits per byte, and what general compressors need for the same bytes. With a minimum context M, every scored
byte has at least M bytes before it in its window (the protocol of Child 2019, table 3). Several values of M are scored
on the same bytes, so that their numbers can be compared: the first max(1, largest M) bytes of the split, which cannot
have that much context, are left out for all of them.

Of masked tokens: nats per masked token, and what the frequencies of the training split give for the same tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from transformers import PreTrainedModel

from asterism.errors import ConfigurationError
from asterism.training.data.corpus import Corpus, Split, load_corpus, load_documents
from asterism.training.data.tokenization import load_tokenizer
from asterism.training.objectives.causal import bits_per_byte, plan_range, yardsticks
from asterism.training.objectives.masked import Rows, describe, masked_figures, read_frequencies
from asterism.training.run.build import load_model
from asterism.training.run.configuration import RunConfig
from asterism.training.run.folder import RunFolder


@dataclass(frozen=True)
class Score:
    """Bits per byte of a model when every byte has at least `minimum_context` bytes of context."""

    minimum_context: int
    bits_per_byte: float


@dataclass(frozen=True)
class ByteEvaluation:
    """Scores of a model and yardsticks (bits per byte by compressor), all on the same `bytes_scored` bytes.

    `is_training_corpus` says whether the corpus is, by its hash, the one the model was trained on.
    """

    corpus: str
    corpus_sha256: str
    is_training_corpus: bool
    split: str
    bytes_scored: int
    scores: tuple[Score, ...]
    yardsticks: dict[str, float]

    def __str__(self) -> str:
        rows = [f"{score.minimum_context:>15,}  {score.bits_per_byte:>13.4f}" for score in self.scores]
        compressed = ", ".join(f"{name} {bits:.4f}" for name, bits in self.yardsticks.items())
        return "\n".join(
            [
                f"{self.bytes_scored:,} bytes of the {self.split} split of {self.corpus}",
                "minimum context  bits per byte",
                *rows,
                f"the same bytes compressed: {compressed}",
            ]
        )


@dataclass(frozen=True)
class MaskedEvaluation:
    """Figures of a model on the same `tokens_masked` tokens, in nats per token and as shares.

    `is_training_corpus` says whether the corpus is, by its hash, the one the model was trained on;
    `next_sentence_accuracy` is None for a model without pairs.
    """

    corpus: str
    corpus_sha256: str
    is_training_corpus: bool
    split: str
    tokens_masked: int
    masked_loss: float
    masked_accuracy: float
    unigram_entropy: float
    next_sentence_accuracy: float | None

    def __str__(self) -> str:
        return describe(
            f"{self.tokens_masked:,} masked tokens of the {self.split} split of {self.corpus}",
            self.masked_loss,
            self.masked_accuracy,
            self.unigram_entropy,
            self.next_sentence_accuracy,
        )


def evaluate(
    folder: str | Path,
    *,
    data: str | Path | None = None,
    split: Split = "validation",
    minimum_context: int | Sequence[int] = 0,
    limit: int | None = None,
) -> ByteEvaluation | MaskedEvaluation:
    """Score the finished model of a run folder, or its newest checkpoint.

    `data` is a file or folder; None means the run's own. `limit` scores only the first so many bytes, at least one
    window of them. Raises CheckpointError, DataError, and ConfigurationError for a minimum context that cannot be had.
    """
    run = RunFolder(folder)
    config, model = load_model(run)
    asked = (minimum_context,) if isinstance(minimum_context, int) else tuple(minimum_context)
    _check_minimum_context(config, asked)
    if limit is not None and limit < 1:
        raise ConfigurationError(f"limit {limit}: at least one byte must be scored")
    place = config.data if data is None else data
    if config.objective == "mlm":
        return _evaluate_masked(run, config, model, load_documents(place), split, limit)
    corpus = load_corpus(place, record_length=config.record_length)
    bytes_ = corpus.require(split, config.context)
    first, stop = _scored_range(config, len(bytes_), asked, limit)
    scores = tuple(
        Score(minimum, bits_per_byte(model, bytes_, plan_range(config, minimum, first, stop), config))
        for minimum in asked
    )
    return ByteEvaluation(
        corpus=corpus.name,
        corpus_sha256=corpus.sha256,
        is_training_corpus=_is_training_corpus(run, corpus),
        split=split,
        bytes_scored=stop - first,
        scores=scores,
        yardsticks=yardsticks(bytes_[first:stop].tobytes()),
    )


def _evaluate_masked(
    run: RunFolder, config: RunConfig, model: PreTrainedModel, corpus: Corpus, split: Split, limit: int | None
) -> MaskedEvaluation:
    weights = run.weights()
    rows = Rows(config, corpus, split, load_tokenizer(weights))
    wanted = len(rows.starts)
    if limit is not None:
        wanted = max(1, wanted * min(limit, len(corpus.split(split))) // len(corpus.split(split)))
    figures = masked_figures(model, rows, np.arange(wanted), read_frequencies(weights))
    return MaskedEvaluation(
        corpus=corpus.name,
        corpus_sha256=corpus.sha256,
        is_training_corpus=_is_training_corpus(run, corpus),
        split=split,
        tokens_masked=int(figures["tokens_masked"]),
        masked_loss=figures["masked_loss"],
        masked_accuracy=figures["masked_accuracy"],
        unigram_entropy=figures["unigram_entropy"],
        next_sentence_accuracy=figures.get("next_sentence_accuracy"),
    )


def _is_training_corpus(run: RunFolder, corpus: Corpus) -> bool:
    return bool(corpus.sha256 == run.read_record()["corpus"]["sha256"])


def _check_minimum_context(config: RunConfig, asked: Sequence[int]) -> None:
    if not asked:
        raise ConfigurationError("minimum context: at least one value is needed")
    if config.record_length is not None and any(asked):
        raise ConfigurationError("minimum context: this model reads records, and a record has no bytes before it")
    if config.objective != "causal" and any(asked):
        raise ConfigurationError(
            "minimum context: this model predicts masked tokens, and all of a row is their context"
        )
    for minimum in asked:
        if not 0 <= minimum <= config.context:
            raise ConfigurationError(
                f"minimum context {minimum} is not between 0 and the model's context {config.context}"
            )


def _scored_range(config: RunConfig, size: int, asked: Sequence[int], limit: int | None) -> tuple[int, int]:
    """The first byte that is scored, and the one after the last."""
    if config.record_length is not None:
        stop = size if limit is None else min(size, max(limit, config.context))
        return 0, stop - stop % config.context
    first = max(1, *asked)
    return first, size if limit is None else min(size, max(first + limit, config.context + 1))
