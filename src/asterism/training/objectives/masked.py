"""Predict masked tokens and, with pairs, whether the second half of a row follows the first (Devlin 2019).

Metrics are in nats per masked token. The masks are the same in every run, because those of row r of a split are a
function of r. The baseline "unigram entropy" is the cross-entropy of the same tokens under the frequencies of the
training split, which a model reaches without reading. If each token stands for a number of bytes (or bases, the bytes
of a genome), both are also given in bits per byte of the masked tokens, as in tables 5 and 10 of Zaheer 2020. So runs
with different tokens can be compared. These figures are not rates of compression, because a masked token is predicted
from both sides.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
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
from asterism.training.data.corpora.packing import TokenStream
from asterism.training.data.corpora.splits import Split, Splits
from asterism.training.data.corpora.tokenization import (
    Vocabulary,
    bytes_of_tokens,
    is_byte_level,
    load_tokenizer,
    vocabulary,
)
from asterism.training.objectives.masking import MASK_SHARE, Masking
from asterism.training.objectives.rows import RowCorpus, RowObjective, SplitRows
from asterism.training.run.arithmetic import wide
from asterism.training.run.evaluator import Evaluator
from asterism.training.run.metrics import Metric
from asterism.training.settings.configuration import RunConfig

FREQUENCIES = "unigram.safetensors"


SHOWN = 40
"""How many places of a row a sample shows: at 15 of 100 tokens, about 270 tokens of text."""


class MaskedTokens(RowObjective["MaskedRows"]):
    """15 of 100 tokens of every row are predicted from the masked row.

    `frequencies`, int64 [tokens], count the tokens of the training split. Figures in bits per byte are None if the
    number of bytes of a token is unknown. `next_sentence_accuracy` is None for a model without pairs.
    """

    metric = Metric("masked_loss", "nats/masked token", "validation_masked_loss")
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("tokens_masked", "masked tokens", is_count=True),
        metric,
        Metric("masked_accuracy", "share of masked tokens that is right", "validation_masked_accuracy"),
        Metric("unigram_entropy", "nats/masked token under the frequencies of the training split"),
        Metric("next_sentence_accuracy", "share of pairs that is told right"),
        Metric("bytes_masked", "bytes of masked tokens", is_count=True),
        Metric("bits_per_byte", "bits/byte of masked tokens", "validation_bits_per_byte"),
        Metric("unigram_bits_per_byte", "bits/byte of masked tokens under the frequencies of the training split"),
    )
    no_minimum: ClassVar[str] = "predicts masked tokens, and all of a row is their context"
    instead: ClassVar[str] = (
        "it fills in what is masked: score it with `asterism evaluate`, teach it a task with `asterism finetune`, or"
        " give its model folder to the fill-mask pipeline of transformers"
    )

    def __init__(self, config: RunConfig, tokenizer: PreTrainedTokenizerBase, frequencies: np.ndarray) -> None:
        super().__init__(config)
        self.tokenizer = tokenizer
        self.frequencies = frequencies

    @classmethod
    def vocabulary(cls, config: RunConfig, source: Path | None) -> Vocabulary:
        return vocabulary(config.tokenizer if source is None else str(source))

    @classmethod
    def model_class(cls, config: RunConfig) -> type[PreTrainedModel]:
        """A masked language model; with pairs it has a second head."""
        return AsterismForPreTraining if config.next_sentence else AsterismForMaskedLM

    @classmethod
    def blank_batch(cls, config: RunConfig, sequences: int) -> dict[str, torch.Tensor]:
        """A batch of so many sequences as `MaskedRows.read` gives it, all zeros."""
        masked = masked_per_row(config)
        shapes: dict[str, tuple[int, ...]] = {"input_ids": (config.context,), "places": (masked,), "labels": (masked,)}
        if config.next_sentence:
            shapes |= {"token_type_ids": (config.context,), "next_sentence_label": ()}
        return {name: torch.zeros(sequences, *shape, dtype=torch.int64) for name, shape in shapes.items()}

    @classmethod
    def prepare(cls, config: RunConfig, vocabulary: Vocabulary) -> tuple["MaskedTokens", RowCorpus["MaskedRows"]]:
        """The tokenizer is made of the training split, unless it is there.

        Raises DataError also for splits that are too small.
        """
        corpus = config.reads().texts(config.data)
        tokenizer = vocabulary.made(corpus.documents("train"), config.context)
        train, validation = (MaskedRows(config, corpus, split, tokenizer) for split in ("train", "validation"))
        objective = cls(config, tokenizer, train.stream.counts(len(tokenizer)))
        return objective, RowCorpus(corpus, train, validation, config.seed)

    @classmethod
    def restore(cls, config: RunConfig, folder: Path, decided: Mapping[str, Any]) -> "MaskedTokens":
        """Tokenizer and frequencies are in the model folder."""
        return cls(config, load_tokenizer(folder), read_frequencies(folder))

    def save_files(self, folder: Path) -> None:
        """Save the tokenizer, and the frequencies of its tokens in the training split."""
        super().save_files(folder)
        save_file({"frequencies": self.frequencies}, folder / FREQUENCIES)

    def splits(self, data: str | None) -> Splits:
        return self.config.reads().texts(data)

    def rows(self, corpus: Splits, split: Split) -> "MaskedRows":
        return MaskedRows(self.config, corpus, split, self.tokenizer)

    def read(
        self, rows: "MaskedRows", numbers: np.ndarray, random: Sequence[np.random.Generator]
    ) -> dict[str, torch.Tensor]:
        return rows.read(numbers, random)

    def training_metrics(self, loss: float) -> dict[str, float]:
        """Without pairs the loss is that of masked tokens."""
        return {} if self.config.next_sentence else {"masked_loss": loss}

    @classmethod
    def describe(cls, figures: Mapping[str, Any], place: str | None = None) -> str:
        def bits(name: str) -> str:
            return "" if figures[name] is None else f", {figures[name]:.4f} bits per byte of them"

        tokens = f"{figures['tokens_masked']:,} masked tokens"
        lines = [
            f"{f'validation: {tokens}' if place is None else f'{tokens} of {place}'},"
            f" {figures['masked_loss']:.4f} nats each{bits('bits_per_byte')}, {figures['masked_accuracy']:.1%} right",
            "the same tokens under the frequencies of the training split:"
            f" {figures['unigram_entropy']:.4f} nats{bits('unigram_bits_per_byte')}",
        ]
        if figures["next_sentence_accuracy"] is not None:
            lines.append(f"next sentence: {figures['next_sentence_accuracy']:.1%} right")
        return "\n".join(lines)

    def samples(self, model: PreTrainedModel, batch: Mapping[str, torch.Tensor]) -> list[dict[str, Any]]:
        """The beginning of a row: the text `between` places that were chosen, and what was read, guessed and wanted
        there. `between` has one text more than there are places."""
        given = {name: one for name, one in batch.items() if name in ("input_ids", "token_type_ids", "places")}
        output = model(**given)
        logits = output.prediction_logits if self.config.next_sentence else output.logits
        chosen = int((batch["labels"][0] != IGNORED).sum())
        known = slice(min(chosen, SHOWN))
        tokens, places = batch["input_ids"][0].tolist(), batch["places"][0].tolist()
        ends = [*places[known], places[SHOWN] if chosen > SHOWN else len(tokens)]
        starts = [0, *(place + 1 for place in places[known])]
        columns = {
            "between": [tokens[start:end] for start, end in zip(starts, ends, strict=True)],
            "read": [[tokens[place]] for place in places[known]],
            "guessed": [[token] for token in logits[0].argmax(-1)[known].tolist()],
            "expected": [[token] for token in batch["labels"][0][known].tolist()],
        }
        return [{name: [self.tokenizer.decode(one) for one in each] for name, each in columns.items()}]

    def measured(
        self, model: PreTrainedModel, rows: "MaskedRows", numbers: range, evaluator: Evaluator
    ) -> dict[str, float]:
        """The metrics of the rows with these indices, without those that do not apply.

        Entropies are under the frequencies of the training split, with one added to the count of every token.
        """
        ordinary = self.frequencies[rows.masking.ordinary] + 1.0
        unigram = np.full(len(self.frequencies), np.nan)
        unigram[rows.masking.ordinary] = np.log(ordinary.sum()) - np.log(ordinary)
        sizes, pairs = rows.bytes_of_tokens, self.config.next_sentence

        def measure(output: Any, batch: Mapping[str, torch.Tensor]) -> dict[str, float]:
            logits = wide((output.prediction_logits if pairs else output.logits).flatten(0, 1))
            labels = batch["labels"].flatten()
            losses = F.cross_entropy(logits, labels, reduction="none", ignore_index=IGNORED)
            masked = labels[labels != IGNORED].cpu().numpy()
            found = {
                "nats": losses.double().sum().item(),
                "entropy": unigram[masked].sum(),
                "tokens": len(masked),
                "right": (logits.argmax(-1) == labels).sum().item(),
                "letters": 0 if sizes is None else sizes[masked].sum(),
            }
            if not pairs:
                return found
            told = output.seq_relationship_logits.float().argmax(-1) == batch["next_sentence_label"]
            return {**found, "pairs right": told.sum().item()}

        found = evaluator.sums(
            model,
            self.config,
            numbers,
            partial(self.read_scored, rows),
            measure,
            arguments=("input_ids", "token_type_ids", "places"),
            of_rows=("pairs right",),
        )
        tokens = found["tokens"]
        metrics = {
            "masked_loss": found["nats"] / tokens,
            "masked_accuracy": found["right"] / tokens,
            "unigram_entropy": found["entropy"] / tokens,
            "tokens_masked": tokens,
        }
        if pairs:
            metrics["next_sentence_accuracy"] = found["pairs right"] / len(numbers)
        if sizes is not None:
            bits = found["letters"] * math.log(2)
            metrics["bytes_masked"] = int(found["letters"])
            metrics |= {"bits_per_byte": found["nats"] / bits, "unigram_bits_per_byte": found["entropy"] / bits}
        return metrics


class MaskedRows(SplitRows):
    """The packed rows of one split, masked and, with pairs, also paired. `starts`, int64 [rows], holds the start of
    each row.

    Raises DataError for a split with too few tokens, with letters that tokens of DNA do not have or, with pairs, with
    fewer than two documents. Raises ConfigurationError for byte tokens of a genome.
    """

    def __init__(self, config: RunConfig, corpus: Splits, split: Split, tokenizer: PreTrainedTokenizerBase) -> None:
        what = f"the {split} split of {corpus.name}"
        if corpus.unit == "bases" and is_byte_level(tokenizer):
            raise ConfigurationError(
                "tokenizer-of-genome",
                "tokenizer: bytes would read the line ends of a genome's file as tokens; give bases, kmer:LENGTH,"
                " dna-bpe:SIZE, or the folder of a tokenizer of DNA",
            )
        self.config = config
        self.stream = TokenStream.of(corpus, split, tokenizer)
        self.content = content_per_row(config)
        self.stream.require(self.content, what)
        if config.next_sentence and self.stream.documents < 2:
            raise DataError(
                "one-document",
                f"data: {what} has one document, but next_sentence draws second parts from other documents",
            )
        self.starts = self.stream.row_starts(self.content)
        self.count, self.tokens, self.documents = len(self.starts), len(self.stream.tokens), self.stream.documents
        self.masking = Masking.of(tokenizer)
        self.bytes_of_tokens = bytes_of_tokens(tokenizer)
        known = self.bytes_of_tokens is None or tokenizer.unk_token_id is None
        if unknown := 0 if known else int(self.stream.counts(len(tokenizer))[tokenizer.unk_token_id]):
            raise DataError(
                "unknown-letters",
                f"data: {what} has {unknown:,} letters other than A, C, G, T and N, the tokens of this tokenizer;"
                ' files of genomes are read with modality="genome()"',
            )
        self.masked_per_row = masked_per_row(config)
        self._first, self._separator = tokenizer.cls_token_id, tokenizer.sep_token_id

    def record(self) -> dict[str, int]:
        """Also documents without a token."""
        return {**super().record(), "empty_documents": self.stream.empty}

    def read(self, rows: np.ndarray, random: Sequence[np.random.Generator]) -> dict[str, torch.Tensor]:
        """The rows with these indices, int64 [rows]; each row draws from its own generator.

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
        """Draw the end of the first part of a pair: in the middle half of the row, between two tokens of one
        document.
        """
        cuts = np.arange(self.content // 4, 3 * self.content // 4)
        return int(random.choice(cuts[~np.isin(start + cuts, self.stream.starts)]))


def content_per_row(config: RunConfig) -> int:
    """The number of text tokens of a row: all but the class token and a separator after each part."""
    return config.context - (3 if config.next_sentence else 2)


def masked_per_row(config: RunConfig) -> int:
    """The number of predicted tokens of a row."""
    return round(MASK_SHARE * content_per_row(config))


def read_frequencies(folder: Path) -> np.ndarray:
    """Read the count of each token in the training split, int64 [tokens], from a model folder. Raises
    CheckpointError.
    """
    tensors = read_tensors(folder / FREQUENCIES)
    if "frequencies" not in tensors:
        raise CheckpointError("damaged-frequencies", f"{folder / FREQUENCIES} is damaged: it holds no frequencies")
    return tensors["frequencies"].numpy()
