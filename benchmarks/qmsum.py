"""Questions about meetings of ten thousand words: one model that writes, fine-tuned and asked by each reader, on QMSum.

    python benchmarks/qmsum.py qmsum.jsonl.xz runs/qmsum benchmarks/results/qmsum.json
    python benchmarks/qmsum.py --report benchmarks/results/qmsum.json

QMSum (Zhong 2021) has meetings, questions about them, and what people answered in about sixty words. Meetings are split
by a hash of their file: 80 of 100 to train, 10 to choose, 10 to test. A small encoder-decoder with a sparse encoder is
pretrained on the training meetings by the gap sentences of Pegasus, and fine-tuned by each reader for as many steps as
take about equally long; the question stands before every row. What is finished in the folder is not done again, and
what was stopped goes on. About an hour on one CPU core (`OMP_NUM_THREADS=1`).

Columns: ROUGE (F1, words stemmed); tokens that the encoder read per question, seconds of the processor per question,
the most memory of the process that asked and of the one that trained, steps and minutes of training. Beside the models
stand sentences of the meeting: the first; those that BM25 ranks best for the question; and those that come nearest to
the answer, which is about the most that can be said in sentences of the meeting.
"""

import argparse
import hashlib
import json
import lzma
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from extractive import best_count, lead, oracle, ranked
from stages import ask_counted, do, spent, stage, train_counted

from asterism.bench.machine import describe
from asterism.training import FineTuneConfig, RunConfig, open_run, recipe
from asterism.training.tasks.scores.texts import ROUGE, rouge

SPARSE = "sparse"
READERS = {
    "cut": "cut(length=512)",
    "selected": "selected(length=512, k=4)",
    SPARSE: "cut(length=8192)",
    "learned": "selected(length=512, k=4, by=learned)",
}
"""What models are fine-tuned by. That of 8,192 is the sparse model's own road: it is asked to read all of a meeting."""
ASKED = (
    ("cut", READERS["cut"]),
    ("selected", READERS["selected"]),
    (SPARSE, "whole()"),
    ("learned", READERS["learned"]),
    ("cut", "iterated(length=512)"),
)
"""Which model is asked by which reader; in the end one that learned from beginnings reads parts, and what it said."""
LONGEST = 65_536
"""Tokens of the longest meeting; rotary positions do not end."""
SHORT_STEPS = 8.0
"""How many steps with rows of 512 tokens take about as long as one with rows of 8,192."""
SPLITS = {"train": 80, "validation": 10, "test": 10}
CHECKED = 10
"""Validation questions that a run scores itself on."""

_MARK = re.compile(r"\{\w+\}|<[^>]*>")
_SPACE = re.compile(r"\s+(?=[.,?!:;%)])|(?<=[(])\s+|\s+(?='(?:s|m|re|ve|ll|d)\b)|\s+(?=n't\b)")


# --- the data -------------------------------------------------------------------------------------------------------


def write_splits(data: Path, folder: Path, most: int) -> dict[str, Any]:
    """A file of questions for each split, and `text.jsonl` of the training meetings; what there is in them.

    Of the training questions there are `most` at most, evenly spread.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows: dict[str, list[dict[str, str]]] = {name: [] for name in SPLITS}
    texts: dict[str, str] = {}
    with lzma.open(data, "rt", encoding="utf-8") as file:
        for line in file:
            found = json.loads(line)
            split = split_of(found["file"])
            rows[split] += (mine := questions(found["file"], found["meeting"]))
            if split == "train":
                texts[found["file"]] = mine[0]["document"]
    rows["train"] = spread(rows["train"], most)
    for name, some in rows.items():
        _write(folder / f"{name}.jsonl", some)
    _write(folder / "checked.jsonl", spread(rows["validation"], CHECKED))
    _write(folder / "text.jsonl", [{"text": text} for text in texts.values()])
    every = [row for some in rows.values() for row in some]
    return {
        "questions": {name: len(some) for name, some in rows.items()},
        "words": {
            name: median(len(row[name].split()) for row in every) for name in ("document", "question", "summary")
        },
    }


def split_of(file: str) -> str:
    """Where a meeting belongs."""
    bucket = int.from_bytes(hashlib.sha256(file.encode()).digest()[:8], "big") % 100
    return "train" if bucket < 80 else "validation" if bucket < 90 else "test"


def questions(file: str, meeting: Mapping[str, Any]) -> list[dict[str, str]]:
    """`id`, `document`, `question` and `summary` of all questions about a meeting, those about all of it first."""
    turns = [f"{turn['speaker']}: {clean(turn['content'])}" for turn in meeting["meeting_transcripts"]]
    document = "\n".join(turn for turn in turns if turn[-1] != " ")
    queries = [*meeting["general_query_list"], *meeting["specific_query_list"]]
    return [
        {"id": f"{file}#{number}", "document": document, "question": one["query"], "summary": one["answer"].strip()}
        for number, one in enumerate(queries)
    ]


def clean(said: str) -> str:
    """What was said, without marks such as {vocalsound}, and with no space before a full stop."""
    return _SPACE.sub("", " ".join(_MARK.sub(" ", said).split()))


def spread(rows: Sequence[Any], count: int) -> list[Any]:
    """So many of the rows, evenly spread, or all."""
    return [rows[at * len(rows) // min(count, len(rows))] for at in range(min(count, len(rows)))]


def _write(path: Path, rows: Sequence[Mapping[str, str]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _read(path: Path) -> Iterator[dict[str, str]]:
    return (json.loads(line) for line in path.read_text().splitlines())


# --- the models -----------------------------------------------------------------------------------------------------


def pretraining(arguments: argparse.Namespace) -> RunConfig:
    """gap-sentences-tiny with a bigbird encoder over 1,024 tokens."""
    base = recipe("gap-sentences-tiny")
    return replace(
        base,
        model=replace(base.model, mixers="bigbird(block=32, random=2)", max_position_embeddings=LONGEST),
        data=str(arguments.folder / "data" / "text.jsonl"),
        tokenizer="bpe:8000",
        context=1024,
        batch_size=4,
        minutes=None,
        steps=arguments.pretraining_steps,
        evaluation_every=500,
        evaluation_bytes=65_536,
        checkpoint_every=100,
        seed=arguments.seed,
    )


def fine_tuning(name: str, arguments: argparse.Namespace) -> FineTuneConfig:
    """The pretrained model on the answers, by one of the readers."""
    steps = round(arguments.steps / SHORT_STEPS) if name == SPARSE else arguments.steps
    data = arguments.folder / "data"
    return FineTuneConfig(
        task="summarize",
        model=str(arguments.folder / "pretrained"),
        data=str(data / "train.jsonl"),
        validation=str(data / "checked.jsonl"),
        reader=READERS[name],
        target_length=160,
        no_repeat_ngram_size=3,
        batch_size=4,
        steps=steps,
        epochs=1000.0,
        optimizer="muon",
        learning_rate=1e-3,
        warmup_steps=30,
        weight_decay=0.1,
        evaluation_every=steps,
        checkpoint_every=50,
        seed=arguments.seed,
    )


def asked(name: str, reader: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Scores, and what asking costs, of questions of the test meetings, evenly spread; answers are kept beside it."""
    run = arguments.folder / name
    kept = run.with_name(f"{name}.{reader.partition('(')[0]}.json")
    if kept.exists():
        found: dict[str, Any] = json.loads(kept.read_text())
        return found
    rows = spread(list(_read(arguments.folder / "data" / "test.jsonl")), arguments.asked)
    bare = [{name: row[name] for name in ("document", "question")} for row in rows]
    answers, costs = ask_counted(open_run(run), bare, reader)
    said = [answer["predicted_summary"] for answer in answers]
    result = {
        "scores": rouge(said, [row["summary"] for row in rows]),
        "words": fmean(len(one.split()) for one in said),
        **costs,
        **spent(run),
    }
    _write(kept.with_suffix(".jsonl"), [{**row, "written": one} for row, one in zip(rows, said, strict=True)])
    kept.write_text(json.dumps(result))
    return result


# --- without a model ------------------------------------------------------------------------------------------------


def sentences_of(document: str) -> list[str]:
    """Sentences of five words or more, without the speaker's name."""
    turns = (line.partition(": ")[2] for line in document.split("\n"))
    found = [sentence for turn in turns for sentence in re.split(r"(?<=[.?!])\s+", turn)]
    return [sentence for sentence in found if len(sentence.split()) >= 5]


def baselines(validation: Sequence[Mapping[str, str]], test: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
    """ROUGE of sentences of the meeting, as many as score best on the validation questions; and of the best there are.

    How many is chosen among at most ten.
    """

    def first(row: Mapping[str, str], count: int) -> str:
        sentences = sentences_of(row["document"])
        return "\n".join(sentences[number] for number in lead(sentences, count))

    def best(row: Mapping[str, str], count: int) -> str:
        sentences = sentences_of(row["document"])
        return "\n".join(sentences[number] for number in ranked(sentences, row["question"], count))

    def scores(rows: Sequence[Mapping[str, str]], say: Any) -> dict[str, float]:
        return rouge([say(row) for row in rows], [row["summary"] for row in rows])

    found = []
    for name, say in (("first sentences", first), ("BM25's best sentences", best)):
        count = best_count(lambda many, say=say: scores(validation, lambda row: say(row, many))["rougeLsum"])
        said = scores(test, lambda row, say=say, count=count: say(row, count))
        found.append({"name": f"{name}, {count}", "scores": said})

    def nearest(row: Mapping[str, str]) -> str:
        sentences = sentences_of(row["document"])
        return "\n".join(sentences[number] for number in oracle(sentences, row["summary"]))

    return [*found, {"name": "sentences nearest to the answer", "scores": scores(test, nearest)}]


def _baselines(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    kept = arguments.folder / "baselines.json"
    if not kept.exists():
        data = arguments.folder / "data"
        validation, test = (
            spread(list(_read(data / f"{one}.jsonl")), arguments.asked) for one in ("validation", "test")
        )
        kept.write_text(json.dumps(baselines(validation, test)))
    found: list[dict[str, Any]] = json.loads(kept.read_text())
    return found


# --- all of it ------------------------------------------------------------------------------------------------------


def main() -> None:
    """Write, score what needs no model, pretrain, fine-tune, ask, record, print."""
    do(_arguments(), _all, _stage, report)


def _all(arguments: argparse.Namespace) -> dict[str, Any]:
    """The record; the file of results has what there is after each row."""
    folder = arguments.folder
    if not (summary := folder / "data.json").exists():
        found = write_splits(arguments.data, folder / "data", arguments.questions)
        summary.write_text(json.dumps(found))
    settings = ("pretraining_steps", "steps", "questions", "asked", "seed")
    record: dict[str, Any] = {
        "machine": describe("cpu"),
        "settings": {name: getattr(arguments, name) for name in settings},
        "data": json.loads(summary.read_text()),
        "baselines": json.loads(stage("baselines", "", "")),
        "rows": [],
    }
    record["pretrained"] = json.loads(stage("pretrain", "", ""))
    for name, reader in ASKED:
        stage("train", name, "")
        row = json.loads(stage("ask", name, reader))
        record["rows"].append({"reader": READERS[name], "asked_by": reader, **row})
        if arguments.output:
            arguments.output.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    return record


def _stage(which: str, name: str, reader: str, arguments: argparse.Namespace) -> None:
    pretrained = arguments.folder / "pretrained"
    if which == "baselines":
        print(json.dumps(_baselines(arguments)))
    elif which == "pretrain":
        train_counted(pretraining(arguments), pretrained)
        print(json.dumps(spent(pretrained)))
    elif which == "train":
        train_counted(fine_tuning(name, arguments), arguments.folder / name)
    else:
        print(json.dumps(asked(name, reader, arguments)))


def report(record: Mapping[str, Any]) -> None:
    """The comparison in Markdown."""
    print(
        f"| model and reader | {' | '.join(ROUGE)} | tokens read | CPU s / question "
        "| MiB, prediction | MiB, training | steps | CPU minutes |"
    )
    print(f"|{'---|' * (len(ROUGE) + 7)}")
    for row in record["rows"]:
        name = f"`{row['reader']}`" + ("" if row["asked_by"] == row["reader"] else f", asked by `{row['asked_by']}`")
        costs = (
            f"{row['tokens_per_document']:,.0f}",
            f"{row['seconds_per_document']:.2f}",
            f"{row['peak_bytes'] / 2**20:,.0f}",
            f"{row['training_peak_bytes'] / 2**20:,.0f}",
            f"{row['steps']:,}",
            f"{row['training_seconds'] / 60:.1f}",
        )
        print(f"| {name} | {_scores(row)} | {' | '.join(costs)} |")
    for row in record["baselines"]:
        print(f"| no model: {row['name']} | {_scores(row)} | | | | | | |")
    print(f"\n{record['rows'][0]['documents'] if record['rows'] else 0} questions, seed {record['settings']['seed']}")


def _scores(row: Mapping[str, Any]) -> str:
    return " | ".join(f"{row['scores'][name]:.3f}" for name in ROUGE)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path, nargs="?", help="QMSum as JSONL, compressed with xz")
    parser.add_argument("folder", type=Path, nargs="?", help="where data and runs are kept")
    parser.add_argument("output", type=Path, nargs="?", help="a JSON file for the results")
    parser.add_argument("--report", type=Path, metavar="JSON", help="print the table of a file of results, and no more")
    parser.add_argument("--pretraining-steps", type=int, default=800)
    parser.add_argument("--steps", type=int, default=800, help="of each run with rows of 512 tokens (default 800)")
    parser.add_argument("--questions", type=int, default=2000, help="to train on, at most (default 2000)")
    parser.add_argument("--asked", type=int, default=50, help="questions to ask of the test meetings (default 50)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stage", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.folder is None and arguments.report is None:
        parser.error("data and a folder are needed, or --report")
    return arguments


if __name__ == "__main__":
    main()
