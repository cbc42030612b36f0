"""Learn the scorer that ranks the windows of a document, from a task's training documents; it is stored with the model.

The task defines the preferred windows of a document (`RankedRows.wanted`), and the scorer learns them
(`readers/learned.py`). A document whose windows are all read teaches nothing. At most `STUDIED` examples are used,
evenly spread.
"""

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerFast

from asterism.errors import ConfigurationError, DataError
from asterism.training.readers.bm25 import bm25
from asterism.training.readers.learned import FEWEST, Bags, Lesson, Scorer, learn
from asterism.training.readers.reader import Reader
from asterism.training.readers.selected import Selected, counted, words_in
from asterism.training.tasks.rows import ExampleRows, RankedRows, Studied

STUDIED = 2_000
"""The most examples that are used; more take long and teach little."""


def learned_scorer(
    rows: ExampleRows[Any], examples: Sequence[Any], tokenizer: PreTrainedTokenizerFast, seed: int
) -> tuple[Scorer, str]:
    """Learn the scorer of rows whose reader `learns`, from training examples. Also returns a line on its quality.

    Raises DataError for examples that cannot be read, or too few that teach something.
    """
    reader = rows.reading
    assert isinstance(reader, Selected)
    assert isinstance(rows, RankedRows)
    every = max(1, -(-len(examples) // STUDIED))
    studied = [one for one in _studied(rows, reader, examples[::every], tokenizer) if len(one.windows) > reader.k]
    wanted = rows.wanted(studied)
    bags: dict[Any, Bags] = {}  # several questions may be asked about one document; the longer, the shorter its windows
    lessons, documents = [], []
    for one, shares in zip(studied, wanted, strict=True):
        if shares is None:
            continue
        text, question = one.encoded.text, one.encoded.question
        key = text, *one.windows
        if key not in bags:
            bags[key] = Bags.of(one.words)
        asked = counted(text if question is None else question)
        scores = bm25(asked, one.words, k1=reader.k1, b=reader.b)
        lessons.append(Lesson.of(None if question is None else asked, bags[key], scores, shares))
        documents.append(text)
    if len(lessons) < FEWEST:
        raise DataError(
            "no-ranking-examples",
            f"data: reader {rows.reader} learns from training examples of more than {reader.k} windows with a known"
            f" answer; got {len(lessons)}, but {FEWEST} are needed: give more or longer ones, or by=bm25",
        )
    scorer, found = learn(lessons, documents, seed)
    return scorer, (
        f"selected(by=learned) learned from {len(lessons):,} training examples; in the {found['lessons']:,} that were"
        f" kept apart the window that it ranks best is wanted in {found['scorer']:.0%}, that of BM25 in"
        f" {found['bm25']:.0%}"
    )


def _studied(
    rows: RankedRows[Any], reader: Selected, examples: Sequence[Any], tokenizer: PreTrainedTokenizerFast
) -> list[Studied]:
    found = []
    for example, encoded in zip(examples, rows.encoded(examples, tokenizer), strict=True):
        document = rows.document(example, encoded)
        windows = reader.windows(document)
        found.append(Studied(example, encoded, windows, words_in(document, windows), reader))
    return found


def require_scorer(reader: Reader, rows: ExampleRows[Any]) -> None:
    """Raise ConfigurationError if a reader needs a scorer that these rows have not learned."""
    if reader.learns and rows.scorer is None:
        raise ConfigurationError(
            "scorer-missing",
            f"reader: {reader} needs a scorer learned in fine-tuning, but this run was fine-tuned with {rows.reader}:"
            f" fine-tune with {reader}, or use by=bm25",
        )
