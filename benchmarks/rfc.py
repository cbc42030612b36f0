"""RFCs in three files, with some figures about them, and summaries of them that need no model.

`asterism/reproduce/data/rfcs.py` says how texts are cleaned and split.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from extractive import centroid, lead
from extractive import oracle as nearest

from asterism.reproduce.data.rfcs import Split, candidates, document_of, rfcs, split_of, write
from asterism.training.objectives.gap_sentences import sentences_of


def write_splits(source: Path, folder: Path) -> dict[str, Any]:
    """`{train,validation,test}.jsonl` in a folder; what is in them: documents, and their words and summaries'."""
    rows: dict[Split, list[dict[str, str]]] = {"train": [], "validation": [], "test": []}
    count = 0
    for rfc in rfcs(source):
        count += 1
        if (row := document_of(rfc)) is not None:
            rows[split_of(rfc["id"])].append(row)
    folder.mkdir(parents=True, exist_ok=True)
    for split, some in rows.items():
        write(folder / f"{split}.jsonl", some)
    every = [row for some in rows.values() for row in some]
    return {
        "given": count,
        "left": {split: len(some) for split, some in rows.items()},
        "words": {name: quantiles([len(row[name].split()) for row in every]) for name in ("document", "summary")},
        "repeating": sum(repeats(row) for row in every) / len(every),
    }


def quantiles(values: Sequence[float]) -> list[float]:
    """What a tenth, a half and nine tenths of the values are below."""
    ordered = sorted(values)
    return [ordered[int(share * (len(ordered) - 1))] for share in (0.1, 0.5, 0.9)]


def repeats(row: Mapping[str, str]) -> bool:
    """Whether the authors wrote a sentence of the abstract a second time in the body."""
    body = " ".join(row["document"].split())
    return any(sentence in body for sentence in map(str.strip, sentences_of(row["summary"])) if len(sentence) > 40)


# --- summaries without a model --------------------------------------------------------------------------------------


def _chosen(choose: Callable[[Sequence[str], int], list[int]]) -> Callable[[str, int], str]:
    """A summary of so many sentences, in lines, that a choice of their numbers makes."""

    def say(document: str, count: int) -> str:
        sentences = candidates(document)
        return "\n".join(sentences[number] for number in choose(sentences, count))

    return say


BASELINES: Mapping[str, Callable[[str, int], str]] = {"lead": _chosen(lead), "centroid": _chosen(centroid)}


def oracle(document: str, summary: str) -> str:
    """The sentences of the body that come nearest to the summary, which it reads: about the most they can say."""
    sentences = candidates(document)
    return "\n".join(sentences[number] for number in nearest(sentences, summary))
