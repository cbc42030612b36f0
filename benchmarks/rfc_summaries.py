"""Real summaries: what an RFC says, in the words of its abstract, by small models that read much of it or little.

    python benchmarks/rfc_summaries.py rfc-sample.jsonl.xz runs/rfc-summaries benchmarks/results/rfc-summaries.json
    python benchmarks/rfc_summaries.py --report benchmarks/results/rfc-summaries.json

The file has an RFC in each line: `id`, `title`, `abstract`, `text`. `rfc.py` says how texts are cleaned and split, and
what is said without a model. An encoder-decoder with a bigbird encoder is pretrained on gap sentences of the training
texts, and fine-tuned on their abstracts, reading 4,096 tokens (`long`) or 512: for as many seconds of processor time
(`short`), and for as many steps (`short-steps`). Then each is asked about the same RFCs by several readers. What is
finished in the folder is not done again, and what was stopped goes on. Runs are counted in steps, not in minutes, so
equal commands give equal models.

Columns: ROUGE (F1, words stemmed); tokens that the model read per document asked, padding not counted; seconds of the
processor per document, alone in a process, one row at a time but eight of `iterated`; the most memory of that process.
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

from rfc import BASELINES, oracle, write_splits
from stages import ask_counted, do, spent, stage, train_counted

from asterism.bench.machine import describe
from asterism.reproduce.data.rfcs import best_count, read, rouge1, write
from asterism.reproduce.experiments import summaries
from asterism.training import FineTuneConfig, RunConfig, open_run
from asterism.training.tasks.scores.texts import ROUGE, rouge

LONG, SHORT = 4096, 512
PARTS = 8
"""Rows that are read at once of documents of many, which are those of iterated()."""
RUNS = {"long": LONG, "short": SHORT, "short-steps": SHORT}
READERS = {
    "whole": "whole()",
    "cut-long": f"cut(length={LONG})",
    "cut-short": f"cut(length={SHORT})",
    "selected": f"selected(length={SHORT}, k=4)",
    "iterated": f"iterated(length={SHORT})",
}
ASKED = (
    *(("long", reader) for reader in ("cut-long", "cut-short", "whole", "selected")),
    *(("short", reader) for reader in ("cut-short", "cut-long", "selected", "iterated")),
    ("short-steps", "cut-short"),
)
"""Which model is asked by which reader."""


def main() -> None:
    """Write, score what needs no model, pretrain, fine-tune, ask, record, print."""
    do(_arguments(), _all, _stage, report)


def _all(arguments: argparse.Namespace) -> dict[str, Any]:
    """The record; the file of results has what there is after each row."""
    folder = arguments.folder
    if not (summary := folder / "data.json").exists():
        summary.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(write_splits(arguments.data, folder / "data"))
        _write_pretraining(folder / "data")
        summary.write_text(text)
    settings = ("scraps_steps", "pretraining_steps", "steps", "short_steps", "beams", "asked", "seed")
    record: dict[str, Any] = {
        "machine": describe("cpu"),
        "date": date.today().isoformat(),
        "settings": {name: getattr(arguments, name) for name in settings},
        "data": json.loads(summary.read_text()),
        "baselines": json.loads(stage("baselines", "", "")),
        "trained": {name: json.loads(stage("pretrain", name, "")) for name in ("scraps", "pretrained")},
        "rows": [],
    }
    for name, reader in ASKED:
        if name not in record["trained"]:
            record["trained"][name] = json.loads(stage("train", name, ""))
        record["rows"].append({"model": name, "reader": READERS[reader], **json.loads(stage("ask", name, reader))})
        if arguments.output:
            arguments.output.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    return record


def _write_pretraining(data: Path) -> None:
    """What is read without abstracts, the beginnings of the training texts; and what a run scores itself on."""
    summaries.write_beginnings(data / "text.jsonl", data / "train.jsonl")
    write(data / "checked.jsonl", islice(read(data / "validation.jsonl"), summaries.CHECKED_COUNT))


# --- one stage, in a process of its own -----------------------------------------------------------------------------


def _stage(stage: str, name: str, reader: str, arguments: argparse.Namespace) -> None:
    if stage == "baselines":
        result = _baselines(arguments.folder / "data", arguments.asked)
    elif stage == "pretrain":
        result = _trained(pretraining(name, arguments), arguments.folder / name)
    elif stage == "train":
        result = _trained(fine_tuning(name, arguments), arguments.folder / name)
    else:
        result = _asked(name, reader, arguments)
    print(json.dumps(result))


def pretraining(name: str, arguments: argparse.Namespace) -> RunConfig:
    """Gap sentences, most of which stay in the input: first in scraps of a few sentences, then in longer texts.

    A small model sees sooner in scraps that what it is to write stands before it; biases by distance, which any length
    has, let it see what stands behind a word.
    """
    first = name == summaries.SCRAPS
    config = summaries.scraps(arguments.scraps_steps) if first else summaries.pretraining(arguments.pretraining_steps)
    return replace(
        config,
        init_from=None if first else str(arguments.folder / summaries.SCRAPS),
        data=str(arguments.folder / "data" / "text.jsonl"),
        evaluation_every=10_000,
        checkpoint_every=100,
        dtype="bfloat16",
        seed=arguments.seed,
    )


def fine_tuning(name: str, arguments: argparse.Namespace) -> FineTuneConfig:
    """The pretrained model on the abstracts, by a reader of so many tokens."""
    data, steps = arguments.folder / "data", arguments.short_steps if name == "short" else arguments.steps
    return replace(
        summaries.fine_tuning(RUNS[name], steps),
        model=str(arguments.folder / summaries.PRETRAINED),
        data=str(data / "train.jsonl"),
        validation=str(data / "checked.jsonl"),
        num_beams=arguments.beams,
        checkpoint_every=50,
        dtype="bfloat16",
        seed=arguments.seed,
    )


def _trained(config: RunConfig | FineTuneConfig, run: Path) -> dict[str, Any]:
    """Train, or go on, or nothing if all is done: what it cost, all processes together that did it, and the scores."""
    train_counted(config, run)
    result = json.loads((run / "run.json").read_text())["result"]
    names = ("scores", "validation_target_loss", "validation_target_accuracy")
    return {**spent(run), **{name: result[name] for name in names if name in result}}


def _asked(name: str, reader: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Scores, and what asking costs, of the first test documents one by one."""
    kept = arguments.folder / f"{name}.{reader}.asked.json"
    if kept.exists():
        found: dict[str, Any] = json.loads(kept.read_text())
        return found
    rows = list(islice(read(arguments.folder / "data" / "test.jsonl"), arguments.asked))
    bare = [{"document": row["document"]} for row in rows]
    together = PARTS if reader == "iterated" else 1
    said, costs = ask_counted(open_run(arguments.folder / name), bare, READERS[reader], together)
    answers = [answer["predicted_summary"] for answer in said]
    result = {
        "scores": rouge(answers, [row["summary"] for row in rows]),
        **costs,
        "words_per_summary": fmean(len(answer.split()) for answer in answers),
        "copied": fmean(copied(answer, row["document"]) for answer, row in zip(answers, rows, strict=True)),
        "examples": [
            {"id": row["id"], "written": answer}
            for row, answer in list(zip(rows, answers, strict=True))[:: -(-len(rows) // 5)]
        ],
    }
    kept.with_suffix(".jsonl").write_text("".join(json.dumps(answer) + "\n" for answer in answers))
    kept.write_text(json.dumps(result))
    return result


def copied(answer: str, document: str, size: int = 4) -> float:
    """The share of the sequences of so many words of an answer that stand in the document."""
    words, there = answer.lower().split(), document.lower().split()
    have = set(zip(*(there[at:] for at in range(size)), strict=False))
    mine = list(zip(*(words[at:] for at in range(size)), strict=False))
    return sum(one in have for one in mine) / len(mine) if mine else 0.0


# --- without a model ------------------------------------------------------------------------------------------------


def _baselines(data: Path, asked: int) -> list[dict[str, Any]]:
    """Each with as many sentences as have the best ROUGE-1 on the validation documents; and the oracle."""
    kept = data.parent / "baselines.json"
    if kept.exists():
        found: list[dict[str, Any]] = json.loads(kept.read_text())
        return found
    validation, test = (list(islice(read(data / f"{one}.jsonl"), asked)) for one in ("validation", "test"))
    wanted = [row["summary"] for row in test]
    rows = []
    for name, say in BASELINES.items():
        best = _best_count(say, validation)
        rows.append(_row(name, best, [say(row["document"], best) for row in test], wanted))
    best_there_are = [oracle(row["document"], row["summary"]) for row in test]
    rows.append(_row("oracle", None, best_there_are, wanted))
    rows.append(_row("title", None, [row["document"].partition("\n")[0] for row in test], wanted))
    kept.write_text(json.dumps(rows))
    return rows


def _best_count(say: Callable[[str, int], str], rows: Sequence[Mapping[str, str]]) -> int:
    return best_count(lambda count: fmean(rouge1(say(row["document"], count), row["summary"]) for row in rows))


def _row(name: str, sentences: int | None, said: Sequence[str], wanted: Sequence[str]) -> dict[str, Any]:
    words = fmean(len(one.split()) for one in said)
    return {"name": name, "sentences": sentences, "words_per_summary": words, "scores": rouge(said, wanted)}


# --- the table ------------------------------------------------------------------------------------------------------


def report(record: Mapping[str, Any]) -> None:
    """What came out, in Markdown."""
    print(f"| model | reader | {' | '.join(ROUGE)} | words | copied | tokens read | CPU s / document | MiB |")
    print(f"|{'---|' * (len(ROUGE) + 7)}")
    for row in record["baselines"]:
        name = row["name"] + (f", {row['sentences']} sentences" if row["sentences"] else "")
        print(f"| {name} | | {_scores(row)} | {row['words_per_summary']:.0f} | | | | |")
    for row in record["rows"]:
        costs = (
            f"{row['words_per_summary']:.0f}",
            f"{row['copied']:.2f}",
            f"{row['tokens_per_document']:,.0f}",
            f"{row['seconds_per_document']:.2f}",
            f"{row['peak_bytes'] / 2**20:,.0f}",
        )
        print(f"| `{row['model']}` | `{row['reader']}` | {_scores(row)} | {' | '.join(costs)} |")
    print("\n| run | steps | CPU minutes | MiB |\n|---|---|---|---|")
    for name, run in record["trained"].items():
        minutes, memory = run["training_seconds"] / 60, run["training_peak_bytes"] / 2**20
        print(f"| {name} | {run['steps']:,} | {minutes:.1f} | {memory:,.0f} |")
    print(f"\n{record['date']}, {record['settings']}")


def _scores(row: Mapping[str, Any]) -> str:
    return " | ".join(f"{row['scores'][name]:.3f}" for name in ROUGE)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path, nargs="?", help="RFCs as JSONL, compressed with xz")
    parser.add_argument("folder", type=Path, nargs="?", help="where data and runs are kept")
    parser.add_argument("output", type=Path, nargs="?", help="a JSON file for the results")
    parser.add_argument("--report", type=Path, metavar="JSON", help="print the table of a file of results, and no more")
    parser.add_argument("--scraps-steps", type=int, default=700, help="of pretraining on 64 tokens (default 700)")
    parser.add_argument("--pretraining-steps", type=int, default=900, help="then on 512 tokens (default 900)")
    parser.add_argument("--steps", type=int, default=500, help="of the model that reads much (default 500)")
    parser.add_argument(
        "--short-steps", type=int, default=1700, help="that take as long, reading little (default 1700)"
    )
    parser.add_argument("--beams", type=int, default=1, help="of the answers (default 1: the likeliest token)")
    parser.add_argument("--asked", type=int, default=100, help="test documents to ask about (default 100)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stage", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.folder is None and arguments.report is None:
        parser.error("data and a folder are needed, or --report")
    return arguments


if __name__ == "__main__":
    main()
