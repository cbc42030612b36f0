"""What readers see of a meeting that a question is about, with no model: QMSum, whose questions name their turns.

    python benchmarks/selection.py qmsum.jsonl.xz benchmarks/results/selection.json
    python benchmarks/selection.py --report benchmarks/results/selection.json

Every specific question of QMSum (Zhong 2021) comes with the turns of the meeting that answer it. A reader that reads
few of their words cannot answer, whatever the model. Words stand for tokens; a row has place for so many of them, the
question not counted. Coverage: which share of the words of a question's turns is read, the mean over the questions;
focus: which share of what is read is of these turns. `windows` and `iterated` look at every word, so they are not in
the table; their cost is the length of the meeting. Beside BM25 stands what k windows drawn at random would cover, which
is the place of a row over the length of the meeting. Two minutes on one core; with `--every 3` every third meeting.
"""

import argparse
import json
import lzma
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np

from asterism.training.readers.reader import Document, Reader
from asterism.training.readers.text import parse_reader

ROWS = (512, 1024, 4096)
READERS = ("cut()", *(f"selected(k={k})" for k in (1, 4, 16)))


class Asked(NamedTuple):
    """A meeting as words, where each begins, which of them are of the turns that answer; and the question."""

    text: str
    starts: np.ndarray
    relevant: np.ndarray
    question: str


def questions(path: Path, every: int) -> Iterator[Asked]:
    """All specific questions, of each so manyth meeting, whose turns are in it."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        for line in islice(file, None, None, every):
            meeting = json.loads(line)["meeting"]
            turns = [f"{turn['speaker']}: {turn['content']}\n" for turn in meeting["meeting_transcripts"]]
            text, ends = "".join(turns), np.cumsum([len(turn) for turn in turns])
            starts = np.array([found.start() for found in re.finditer(r"\S+", text)])
            turn_of = np.searchsorted(ends, starts, side="right")
            for query in meeting["specific_query_list"]:
                relevant = np.zeros(len(starts), dtype=bool)
                for first, last in query["relevant_text_span"]:
                    relevant |= (turn_of >= int(first)) & (turn_of <= int(last))
                if relevant.any():
                    yield Asked(text, starts, relevant, query["query"])


def seen(reader: Reader, room: int, asked: Asked) -> tuple[float, float]:
    """Coverage and focus of what a reader of one row reads."""
    (row,) = reader.rows(Document(len(asked.starts), room, asked.text, asked.starts, asked.question))
    read = np.zeros(len(asked.starts), dtype=bool)
    for begin, end in row:
        read[begin:end] = True
    both = int((read & asked.relevant).sum())
    return both / int(asked.relevant.sum()), both / int(read.sum())


def measure(path: Path, each: int) -> dict[str, Any]:
    """The record: a row for each reader and place."""
    every = list(questions(path, each))
    rows = []
    for room in ROWS:
        random = fmean(min(1.0, room / len(asked.starts)) for asked in every)
        rows.append({"reader": "windows at random", "words": room, "coverage": random, "focus": None})
        for text in READERS:
            coverage, focus = zip(*(seen(parse_reader(text), room, asked) for asked in every), strict=True)
            rows.append({"reader": text, "words": room, "coverage": fmean(coverage), "focus": fmean(focus)})
    return {
        "every": each,
        "questions": len(every),
        "words_of_a_meeting": median(len(asked.starts) for asked in every),
        "words_of_the_turns": median(int(asked.relevant.sum()) for asked in every),
        "rows": rows,
    }


def report(record: Mapping[str, Any]) -> None:
    """The table in Markdown: coverage, and focus in brackets."""
    print(f"| reader | {' | '.join(f'{room:,} words' for room in ROWS)} |")
    print(f"|---|{'---|' * len(ROWS)}")
    for reader in dict.fromkeys(row["reader"] for row in record["rows"]):
        mine = [row for row in record["rows"] if row["reader"] == reader]
        cells = [f"{row['coverage']:.2f}" + ("" if row["focus"] is None else f" ({row['focus']:.2f})") for row in mine]
        name = reader if " " in reader else f"`{reader}`"
        print(f"| {name} | {' | '.join(cells)} |")
    print(
        f"\n{record['questions']:,} questions; in the middle {record['words_of_a_meeting']:,.0f} words of a meeting, "
        f"{record['words_of_the_turns']:,.0f} of the turns that answer"
    )


def main() -> None:
    """Measure and record, or print what was recorded."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path, nargs="?", help="QMSum as JSONL, compressed with xz")
    parser.add_argument("output", type=Path, nargs="?", help="a JSON file for the results")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="read every N-th meeting (default 1)")
    parser.add_argument("--report", type=Path, metavar="JSON", help="print the table of a file of results, and no more")
    arguments = parser.parse_args()
    if arguments.data is None and arguments.report is None:
        parser.error("data are needed, or --report")
    record = json.loads(arguments.report.read_text()) if arguments.report else measure(arguments.data, arguments.every)
    if arguments.output:
        arguments.output.write_text(json.dumps(record, indent=1) + "\n")
    report(record)


if __name__ == "__main__":
    main()
