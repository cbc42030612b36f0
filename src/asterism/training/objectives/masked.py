"""Predicting masked tokens, and with pairs also whether the second half of a row follows the first (Devlin 2019).

Metrics are in nats per masked token, of masks that are the same in every run: those of row r of a split are a function
of r. Beside them stands the baseline "unigram entropy": the cross-entropy of the same tokens under the frequencies of
the training split, which is what a model reaches that knows tokens but reads none. Where each token stands for so many
bytes (or bases, which are the bytes of a genome), both are also given in bits per byte of the masked tokens, as in
tables 5 and 10 of Zaheer 2020: so runs with different tokens can be compared. They are no rates of compression, since a
masked token is predicted from both sides.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.numpy import save_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from asterism.errors import CheckpointError, ConfigurationError, DataError
from asterism.files import read_tensors
from asterism.labels import IGNORED
from asterism.models import AsterismForMaskedLM, AsterismForPreTraining
from asterism.randomness import of_row
from asterism.training.data.corpora.corpus import Corpus
from asterism.training.data.corpora.packing import Epochs, TokenStream
from asterism.training.data.corpora.splits import Split, Splits
from asterism.training.data.corpora.tokenization import (
    Vocabulary,
    bytes_of_tokens,
    is_byte_level,
    load_tokenizer,
    vocabulary,
)
from asterism.training.objectives.masking import MASK_SHARE, Masking
from asterism.training.objectives.pretraining import Pretraining, first_rows
from asterism.training.run.arithmetic import arithmetic, wide
from asterism.training.run.objective import Evaluation, Metric, Outcome, Question, Report, refuse_reader
from asterism.training.run.processes import ALONE, Processes
from asterism.training.settings.configuration import RunConfig

FREQUENCIES = "unigram.safetensors"
_EVALUATION_SEED = 0


@dataclass(frozen=True, kw_only=True)
class MaskedReport(Report):
    """What a finished run on masked tokens came to, on `tokens_masked` tokens of the validation split.

    Loss and entropy are in nats per masked token; `next_sentence_accuracy` is None without pairs, and what is in bits
    per byte where it is not known how many bytes a token stands for.
    """

    tokens_trained: int
    tokens_masked: int
    validation_masked_loss: float
    validation_masked_accuracy: float
    unigram_entropy: float
    next_sentence_accuracy: float | None
    bytes_masked: int | None = None
    validation_bits_per_byte: float | None = None
    unigram_bits_per_byte: float | None = None

    def __str__(self) -> str:
        return describe(
            f"validation: {self.tokens_masked:,} masked tokens",
            self.validation_masked_loss,
            self.validation_masked_accuracy,
            self.unigram_entropy,
            self.next_sentence_accuracy,
            (self.validation_bits_per_byte, self.unigram_bits_per_byte),
        )


def describe(
    what: str,
    loss: float,
    accuracy: float,
    entropy: float,
    next_sentence: float | None,
    bits: tuple[float | None, float | None],
) -> str:
    """Metrics of masked tokens for people; `bits` per byte are those of the loss and of the entropy."""
    of_loss, of_entropy = ("" if one is None else f", {one:.4f} bits per byte of them" for one in bits)
    lines = [
        f"{what}, {loss:.4f} nats each{of_loss}, {accuracy:.1%} right",
        f"the same tokens under the frequencies of the training split: {entropy:.4f} nats{of_entropy}",
    ]
    if next_sentence is not None:
        lines.append(f"next sentence: {next_sentence:.1%} right")
    return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class MaskedEvaluation(Evaluation):
    """Metrics of a model on the same `tokens_masked` tokens, in nats per token, in bits per byte, and as shares.

    `next_sentence_accuracy` is None for a model without pairs, and what is in bits per byte where it is not known how
    many bytes a token stands for.
    """

    split: str
    tokens_masked: int
    masked_loss: float
    masked_accuracy: float
    unigram_entropy: float
    next_sentence_accuracy: float | None
    bytes_masked: int | None = None
    bits_per_byte: float | None = None
    unigram_bits_per_byte: float | None = None

    def __str__(self) -> str:
        return describe(
            f"{self.tokens_masked:,} masked tokens of the {self.split} split of {self.corpus}",
            self.masked_loss,
            self.masked_accuracy,
            self.unigram_entropy,
            self.next_sentence_accuracy,
            (self.bits_per_byte, self.unigram_bits_per_byte),
        )


class MaskedRows(Corpus[np.ndarray]):
    """The data of a run on masked tokens: the packed rows of two splits, and the order in which training reads them.

    Raises DataError for splits with too few tokens and, with pairs, with fewer than two documents.
    """

    unit: ClassVar[str] = "tokens"

    def __init__(self, config: RunConfig, corpus: Splits, tokenizer: PreTrainedTokenizerBase) -> None:
        self.corpus = corpus
        self.name, self.sha256, self.notes = corpus.name, corpus.sha256, corpus.notes
        self.train = MaskedSplit(config, corpus, "train", tokenizer)
        self.validation = MaskedSplit(config, corpus, "validation", tokenizer)
        self.epochs = Epochs(len(self.train.starts), config.seed)

    def length(self, split: Split) -> int:
        return len({"train": self.train, "validation": self.validation}[split].stream.tokens)

    def draw(self, step: int, count: int) -> np.ndarray:
        """The numbers of rows; every row is read once before any is read again."""
        return self.epochs.draw(step * count, count)

    def record(self) -> dict[str, Any]:
        """Name, hash, and of each split that is used bytes, tokens, documents, and documents without a token."""
        splits: dict[Split, MaskedSplit] = {"train": self.train, "validation": self.validation}
        sizes: dict[str, Any] = {
            name: {
                "bytes": self.corpus.length(name),
                "tokens": len(rows.stream.tokens),
                "documents": rows.stream.documents,
                "empty_documents": rows.stream.empty,
            }
            for name, rows in splits.items()
        }
        return {"name": self.name, "sha256": self.sha256} | sizes


class MaskedTokens(Pretraining[MaskedRows]):
    """15 of 100 tokens of every row are predicted from what masking has left of it.

    `frequencies`, int64 [tokens], count the tokens of the training split.
    """

    metric = Metric("masked_loss", "nats/masked token")
    report_type: ClassVar[type[Report]] = MaskedReport
    unit: ClassVar[str] = "tokens"
    instead: ClassVar[str] = (
        "it fills in what is masked: score it with `asterism evaluate`, teach it a task with `asterism finetune`, or"
        " give its model folder to the fill-mask pipeline of transformers"
    )

    tokenizer: PreTrainedTokenizerBase

    def __init__(self, config: RunConfig, tokenizer: PreTrainedTokenizerBase, frequencies: np.ndarray) -> None:
        super().__init__(config)
        self.tokenizer = tokenizer
        self.frequencies = frequencies

    @classmethod
    def vocabulary(cls, config: RunConfig, source: Path | None) -> Vocabulary:
        return vocabulary(config.tokenizer if source is None else str(source))

    @classmethod
    def model_class(cls, config: RunConfig) -> type[PreTrainedModel]:
        """A masked language model, with pairs with a second head."""
        return AsterismForPreTraining if config.next_sentence else AsterismForMaskedLM

    @classmethod
    def blank_batch(cls, config: RunConfig, sequences: int) -> dict[str, torch.Tensor]:
        """A batch of so many sequences as `MaskedSplit.read` gives it, all zeros."""
        masked = masked_per_row(config)
        shapes: dict[str, tuple[int, ...]] = {"input_ids": (config.context,), "places": (masked,), "labels": (masked,)}
        if config.next_sentence:
            shapes |= {"token_type_ids": (config.context,), "next_sentence_label": ()}
        return {name: torch.zeros(sequences, *shape, dtype=torch.int64) for name, shape in shapes.items()}

    @classmethod
    def prepare(cls, config: RunConfig, vocabulary: Vocabulary) -> tuple["MaskedTokens", MaskedRows]:
        """The tokenizer is made of the training split, unless it is there.

        Raises DataError also for splits that are too small.
        """
        corpus = config.reads().texts(config.data)
        tokenizer = vocabulary.made(corpus.documents("train"), config.context)
        rows = MaskedRows(config, corpus, tokenizer)
        return cls(config, tokenizer, rows.train.stream.counts(len(tokenizer))), rows

    @classmethod
    def restore(cls, config: RunConfig, folder: Path, decided: Mapping[str, Any]) -> "MaskedTokens":
        """Tokenizer and frequencies are in the model folder."""
        return cls(config, load_tokenizer(folder), read_frequencies(folder))

    def save_files(self, folder: Path) -> None:
        """The tokenizer, and the frequencies of its tokens in the training split."""
        super().save_files(folder)
        save_file({"frequencies": self.frequencies}, folder / FREQUENCIES)

    def batch(self, corpus: MaskedRows, step: int) -> dict[str, torch.Tensor]:
        """Rows of the training split as `Rows.read` gives them; every row is read once before any is read again."""
        count = self.config.batch_size
        return corpus.train.read(
            corpus.draw(step, count), [of_row(self.config.seed, step, place) for place in range(count)]
        )

    def training_metrics(self, loss: float) -> dict[str, float]:
        """Without pairs the loss is that of masked tokens."""
        return {} if self.config.next_sentence else {"masked_loss": loss}

    def evaluate(
        self, model: PreTrainedModel, corpus: MaskedRows, *, sample: bool = False, processes: Processes = ALONE
    ) -> Outcome:
        """Metrics of the rows of the first `report_bytes` of the validation split, or of rows spread evenly over it
        that hold about `evaluation_bytes`."""
        count, size = len(corpus.validation.starts), corpus.corpus.length("validation")
        rows = np.arange(first_rows(count, size, self.config.report_bytes))
        if sample:
            rows = np.arange(count)[:: max(1, -(-size // self.config.evaluation_bytes))]
        metrics = masked_metrics(model, corpus.validation, rows, self.frequencies, processes)
        return Outcome(metrics, notes=[] if sample else self.reported(len(rows), count, "rows"))

    def results(self, corpus: MaskedRows, metrics: Mapping[str, float], steps: int) -> dict[str, Any]:
        """The fields of MaskedReport."""
        return {
            "tokens_trained": steps * self.units_per_step,
            "tokens_masked": int(metrics["tokens_masked"]),
            "validation_masked_loss": metrics["masked_loss"],
            "validation_masked_accuracy": metrics["masked_accuracy"],
            "unigram_entropy": metrics["unigram_entropy"],
            "next_sentence_accuracy": metrics.get("next_sentence_accuracy"),
            "bytes_masked": int(metrics["bytes_masked"]) if "bytes_masked" in metrics else None,
            "validation_bits_per_byte": metrics.get("bits_per_byte"),
            "unigram_bits_per_byte": metrics.get("unigram_bits_per_byte"),
        }

    def answer(
        self, model: PreTrainedModel, question: Question, trained_on: str, processes: Processes = ALONE
    ) -> MaskedEvaluation:
        """Nats per masked token, and what the frequencies of the training split give for the same tokens."""
        refuse_reader(question)
        if any(question.minimum_context):
            raise ConfigurationError(
                "minimum context: this model predicts masked tokens, and all of a row is their context"
            )
        corpus = self.config.reads().texts(question.data or self.config.data)
        split = question.split or "validation"
        rows = MaskedSplit(self.config, corpus, split, self.tokenizer)
        wanted = first_rows(len(rows.starts), corpus.length(split), question.limit)
        metrics = masked_metrics(model, rows, np.arange(wanted), self.frequencies, processes)
        return MaskedEvaluation(
            corpus=corpus.name,
            corpus_sha256=corpus.sha256,
            is_training_corpus=corpus.sha256 == trained_on,
            split=split,
            tokens_masked=int(metrics["tokens_masked"]),
            masked_loss=metrics["masked_loss"],
            masked_accuracy=metrics["masked_accuracy"],
            unigram_entropy=metrics["unigram_entropy"],
            next_sentence_accuracy=metrics.get("next_sentence_accuracy"),
            bytes_masked=int(metrics["bytes_masked"]) if "bytes_masked" in metrics else None,
            bits_per_byte=metrics.get("bits_per_byte"),
            unigram_bits_per_byte=metrics.get("unigram_bits_per_byte"),
        )


class MaskedSplit:
    """The packed rows of one split, masked, and with pairs also paired. `starts`, int64 [rows], are those of its rows.

    Raises DataError for a split with too few tokens, with letters that tokens of DNA do not know and, with pairs, with
    fewer than two documents; ConfigurationError for tokens of bytes where bases are read.
    """

    def __init__(self, config: RunConfig, corpus: Splits, split: Split, tokenizer: PreTrainedTokenizerBase) -> None:
        what = f"the {split} split of {corpus.name}"
        if corpus.unit == "bases" and is_byte_level(tokenizer):
            raise ConfigurationError(
                "tokenizer: tokens of bytes would read the ends of lines between sentences of a genome; give bases,"
                " kmer:LENGTH, dna-bpe:SIZE, or the folder of a tokenizer of DNA"
            )
        self.config = config
        self.stream = TokenStream.of(corpus, split, tokenizer)
        self.content = content_per_row(config)
        self.stream.require(self.content, what)
        if config.next_sentence and self.stream.documents < 2:
            raise DataError(f"data: {what} has one document; next_sentence draws second parts from other documents")
        self.starts = self.stream.row_starts(self.content)
        self.masking = Masking.of(tokenizer)
        self.bytes_of_tokens = bytes_of_tokens(tokenizer)
        known = self.bytes_of_tokens is None or tokenizer.unk_token_id is None
        if unknown := 0 if known else int(self.stream.counts(len(tokenizer))[tokenizer.unk_token_id]):
            raise DataError(
                f"data: {what} has {unknown:,} letters that are none of A, C, G, T and N, the tokens of this tokenizer;"
                ' files of genomes are read with modality="genome()"'
            )
        self.masked_per_row = masked_per_row(config)
        self._first, self._separator = tokenizer.cls_token_id, tokenizer.sep_token_id

    def read(self, rows: np.ndarray, random: Sequence[np.random.Generator]) -> dict[str, torch.Tensor]:
        """The rows of these numbers, what is random about each drawn from a generator of its own.

        input_ids int64 [rows, context]; places and labels int64 [rows, masked_per_row] as `Masking.apply` gives them;
        with pairs also token_type_ids [rows, context] and next_sentence_label int64 [rows]: 1 where the second part
        is of another document.
        """
        columns: dict[str, list[Any]] = {}
        for start, generator in zip(self.starts[rows].tolist(), random, strict=True):
            for name, value in self._row(start, generator).items():
                columns.setdefault(name, []).append(value)
        return {name: torch.from_numpy(np.stack(values)) for name, values in columns.items()}

    def _row(self, start: int, random: np.random.Generator) -> dict[str, Any]:
        content = self.stream.tokens[start : start + self.content]
        if not self.config.next_sentence:
            tokens = np.concatenate([[self._first], content, [self._separator]])
            return self._masked(tokens, random)
        cut = self._draw_cut(start, random)
        first, second = content[:cut], content[cut:]
        is_other = int(random.random() < 0.5)
        if is_other:
            second = self.stream.of_another_document(start + cut - 1, len(second), random)
        tokens = np.concatenate([[self._first], first, [self._separator], second, [self._separator]])
        types = np.repeat([0, 1], [cut + 2, len(second) + 1])
        return self._masked(tokens, random) | {"token_type_ids": types, "next_sentence_label": np.int64(is_other)}

    def _masked(self, tokens: np.ndarray, random: np.random.Generator) -> dict[str, Any]:
        inputs, places, labels = self.masking.apply(tokens.astype(np.int64), self.masked_per_row, random)
        return {"input_ids": inputs, "places": places, "labels": labels}

    def _draw_cut(self, start: int, random: np.random.Generator) -> int:
        """Where the first part of a pair ends: in the middle half of the row, between two tokens of one document."""
        cuts = np.arange(self.content // 4, 3 * self.content // 4)
        return int(random.choice(cuts[~np.isin(start + cuts, self.stream.starts)]))


def content_per_row(config: RunConfig) -> int:
    """How many tokens of the text a row holds: all but the class token and a separator behind each part."""
    return config.context - (3 if config.next_sentence else 2)


def masked_per_row(config: RunConfig) -> int:
    """How many of them are predicted."""
    return round(MASK_SHARE * content_per_row(config))


@torch.no_grad()
def masked_metrics(
    model: PreTrainedModel,
    rows: MaskedSplit,
    numbers: np.ndarray,
    frequencies: np.ndarray,
    processes: Processes = ALONE,
) -> dict[str, float]:
    """Metrics of the rows of these numbers: masked_loss and unigram_entropy in nats per token, masked_accuracy,
    tokens_masked, with pairs next_sentence_accuracy, and where tokens stand for bytes those of `_per_byte`.

    The masks, and the second parts of pairs, are the same for every model. `frequencies`, int64 [tokens], count the
    tokens of the training split. Readers take turns. The model is left in evaluation mode.
    """
    model.eval()
    size = rows.config.micro_batch_size
    ordinary = frequencies[rows.masking.ordinary] + 1.0  # every token might have come once more
    unigram = np.full(len(frequencies), np.nan)
    unigram[rows.masking.ordinary] = np.log(ordinary.sum()) - np.log(ordinary)
    nats = entropy = tokens = right = pairs_right = letters = 0.0
    sizes = rows.bytes_of_tokens
    for turn, counts in processes.share(-(-len(numbers) // size)):
        part = numbers[turn * size : (turn + 1) * size]
        batch = rows.read(part, [of_row(_EVALUATION_SEED, 0, number) for number in part.tolist()])
        batch = {name: tensor.to(model.device) for name, tensor in batch.items()}
        batch = processes.tokens(model, batch)
        with processes.sharing():
            logits, answers = _predict(model, batch, rows.config)
        if not counts:
            continue
        labels = batch["labels"].flatten()
        known = labels != IGNORED
        nats += F.cross_entropy(logits, labels, reduction="none", ignore_index=IGNORED).double().sum().item()
        right += (logits.argmax(-1) == labels).sum().item()
        masked = labels[known].cpu().numpy()
        entropy += unigram[masked].sum()
        tokens += len(masked)
        letters += 0 if sizes is None else sizes[masked].sum()
        if answers is not None and processes.shard == 0:  # all who share a row say the same of it
            pairs_right += (answers.argmax(-1) == batch["next_sentence_label"]).sum().item()
    sums = [nats, entropy, tokens, right, pairs_right, letters]
    nats, entropy, tokens, right, pairs_right, letters = processes.total(sums)
    pairs = {"next_sentence_accuracy": pairs_right / len(numbers)} if rows.config.next_sentence else {}
    return {
        "masked_loss": nats / tokens,
        "masked_accuracy": right / tokens,
        "unigram_entropy": entropy / tokens,
        "tokens_masked": tokens,
        **pairs,
        **({} if sizes is None else _per_byte(nats, entropy, int(letters))),
    }


def _per_byte(nats: float, entropy: float, letters: int) -> dict[str, float]:
    """Of the tokens that are masked: their bytes, and in bits for each of these what the model and frequencies give."""
    bits = letters * math.log(2)
    return {"bytes_masked": letters, "bits_per_byte": nats / bits, "unigram_bits_per_byte": entropy / bits}


def read_frequencies(folder: Path) -> np.ndarray:
    """How often each token came in the training split, int64 [tokens], from a model folder. Raises CheckpointError."""
    tensors = read_tensors(folder / FREQUENCIES)
    if "frequencies" not in tensors:
        raise CheckpointError(f"{folder / FREQUENCIES} is damaged: it holds no frequencies")
    return tensors["frequencies"].numpy()


def _predict(
    model: PreTrainedModel, batch: Mapping[str, torch.Tensor], config: RunConfig
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Logits, float32 or wider, [rows * masked_per_row, vocabulary] of the masked places; with pairs [rows, 2]."""
    with arithmetic(config.dtype, batch["input_ids"].device):
        asked = {name: batch[name] for name in ("input_ids", "token_type_ids", "places") if name in batch}
        found = model(**asked)
    if not config.next_sentence:
        return wide(found.logits.flatten(0, 1)), None
    return wide(found.prediction_logits.flatten(0, 1)), found.seq_relationship_logits.float()
