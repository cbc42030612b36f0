"""Two roads to long documents: one model, fine-tuned and asked by each reader, on the tasks that need length.

    python benchmarks/readers.py runs/readers benchmarks/results/readers.json
    python benchmarks/readers.py --report benchmarks/results/readers.json

Writes the two made-up tasks (`asterism.reproduce.data.long_documents` says what they are), pretrains bigbird-tiny on
their text, fine-tunes it for each task with each reader for as many steps as take equally long, asks it about documents
it has not seen, and prints one table. What is finished in the folder is not done again, and what was stopped goes on.
About an hour on one CPU core (`OMP_NUM_THREADS=1`); the second line prints the table of what is there, in Markdown.

Columns: the score; tokens that the model read per document asked, special tokens and questions included, padding not;
seconds of the processor per document asked, alone in a process with batches of one; the most memory of that process and
of the training process, everything included; steps of training and minutes of the processor that they took. Beside the
model stand guessing, and what needs no model: for labels the nearest mean of TF-IDF vectors, for questions the last
word of the sentence that BM25 ranks best.
"""

import argparse
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from stages import ask_counted, do, spent, stage, train_counted

from asterism.bench.machine import describe
from asterism.reproduce.data.long_documents import Sizes, write_long_range
from asterism.reproduce.experiments.long_documents import GUESSING, TASKS, fine_tuning, pretraining
from asterism.training import open_run
from asterism.training.readers.bm25 import bm25, words_of
from asterism.training.tasks.scores.answers import exact_match

READERS = {
    "sparse": "cut(length=4096)",
    "cut": "cut(length=512)",
    "windows": "windows(length=512, stride=64)",
    "selected": "selected(length=512, k=4, stride=16)",
    "iterated": "iterated(length=512, k=4, stride=16)",
    "learned": "selected(length=512, k=4, stride=16, by=learned)",
}
"""The first is the sparse model's own road: all that decides stands in the first 4,096 of some 4,400 tokens."""
SHORT_STEPS = 5.4
"""How many steps of four rows of 512 tokens take as long as one of 4,096, on a core alone."""
FIELDS = {"classify": ("text", "label"), "qa": ("context", "question", "answers")}


def main() -> None:
    """Write, pretrain, fine-tune, ask, record, print."""
    do(_arguments(), _all, _stage, report)


def _all(arguments: argparse.Namespace) -> dict[str, Any]:
    """All rows; the file of results has those that there are after each."""
    folder = arguments.folder
    for seed in arguments.seeds:
        if not (data := folder / f"data-{seed}").exists():
            write_long_range(data, seed=seed, sizes=Sizes(train=arguments.examples, test=arguments.asked))
        stage("pretrain", "", "", str(seed))
    settings = ("pretraining_steps", "steps", "examples", "asked", "seeds")
    record: dict[str, Any] = {
        "machine": describe("cpu"),
        "settings": {name: getattr(arguments, name) for name in settings},
    }
    record["baselines"] = {
        task: [score(folder / f"data-{seed}") for seed in arguments.seeds] for task, score in BASELINES.items()
    }
    record["rows"] = []
    for task, name, seed in product(TASKS, READERS, arguments.seeds):
        if arguments.finished and not (folder / f"{task}-{name}-{seed}.asked.json").exists():
            continue
        stage("train", task, name, str(seed))
        row = json.loads(stage("ask", task, name, str(seed)))
        record["rows"].append({"task": task, "reader": READERS[name], "seed": seed, **row})
        if arguments.output:
            arguments.output.write_text(json.dumps(record, indent=1) + "\n")
    return record


# --- one stage, in a process of its own -----------------------------------------------------------------------------


def _stage(which: str, task: str, name: str, seed: str, arguments: argparse.Namespace) -> None:
    folder, data = arguments.folder, arguments.folder / f"data-{seed}"
    pretrained = folder / f"pretrained-{seed}"
    if which == "pretrain":
        config = replace(
            pretraining(str(data / "text")), seed=int(seed), minutes=None, steps=arguments.pretraining_steps
        )
        train_counted(config, pretrained)
        return
    run = folder / f"{task}-{name}-{seed}"
    if which == "train":
        steps = round(arguments.steps / SHORT_STEPS) if name == "sparse" else arguments.steps
        config = fine_tuning(task, None, str(data / f"{task}.train.jsonl"), str(pretrained))
        test = str(data / f"{task}.test.jsonl")
        train_counted(replace(config, validation=test, reader=READERS[name], seed=int(seed), steps=steps), run)
    else:
        print(json.dumps(_asked(run, data / f"{task}.test.jsonl", task)))


def _asked(run: Path, data: Path, task: str) -> dict[str, Any]:
    """Score, and what asking costs, of the test documents one by one."""
    asked = run.with_suffix(".asked.json")
    if asked.exists():
        return json.loads(asked.read_text())
    rows = [*_rows(data)]
    answers, costs = ask_counted(open_run(run), [{name: row[name] for name in FIELDS[task][:-1]} for row in rows])
    result = {
        "metric": TASKS[task],
        "score": sum(_is_right(task, answer, row) for answer, row in zip(answers, rows, strict=True)) / len(rows),
        **costs,
        **spent(run),
    }
    asked.write_text(json.dumps(result))
    return result


def _is_right(task: str, answer: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    if task == "classify":
        return answer["predicted_label"] == row["label"]
    return exact_match(answer["predicted_answer"], row["answers"]["text"]) == 1


# --- without a model ------------------------------------------------------------------------------------------------


def nearest_mean(data: Path) -> float:
    """Accuracy of the label whose training documents have the nearest mean of TF-IDF vectors, by the cosine."""
    training, test = ([*_rows(data / f"classify.{split}.jsonl")] for split in ("train", "test"))
    counts = [Counter(word for word, _ in words_of(row["text"])) for row in training]
    having = Counter(word for one in counts for word in one)

    def vector(words: Mapping[str, int]) -> dict[str, float]:
        weights = {word: count * math.log((1 + len(counts)) / (1 + having[word])) for word, count in words.items()}
        return of_length_one(weights)

    sums: dict[str, dict[str, float]] = {}
    for row, words in zip(training, counts, strict=True):
        mean = sums.setdefault(row["label"], {})
        for word, weight in vector(words).items():
            mean[word] = mean.get(word, 0.0) + weight
    means = {label: of_length_one(mean) for label, mean in sums.items()}
    right = 0
    for row in test:
        mine = vector(Counter(word for word, _ in words_of(row["text"])))
        near = {label: sum(mine[word] * mean.get(word, 0) for word in mine) for label, mean in means.items()}
        right += max(near, key=near.__getitem__) == row["label"]
    return right / len(test)


def of_length_one(weights: Mapping[str, float]) -> dict[str, float]:
    """The same vector, its length made 1."""
    norm = math.sqrt(sum(weight**2 for weight in weights.values())) or 1.0
    return {word: weight / norm for word, weight in weights.items()}


def last_word(data: Path) -> float:
    """How often the last word of the sentence that BM25 ranks best for the question is the answer."""
    rows = [*_rows(data / "qa.test.jsonl")]
    right = 0
    for row in rows:
        sentences = re.findall(r"[^.]+", row["context"])
        texts = [Counter(word for word, _ in words_of(sentence)) for sentence in sentences]
        scores = bm25(Counter(word for word, _ in words_of(row["question"])), texts, k1=1.2, b=0.75)
        best = sentences[max(range(len(scores)), key=scores.__getitem__)]
        right += words_of(best)[-1][0] in row["answers"]["text"]
    return right / len(rows)


BASELINES = {"classify": nearest_mean, "qa": last_word}


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    return (json.loads(line) for line in path.read_text().splitlines())


# --- the table ------------------------------------------------------------------------------------------------------


def report(record: Mapping[str, Any]) -> None:
    """The comparison in Markdown; where there are several seeds, means, and the least score behind."""
    print(
        "| task | reader | score | tokens read | CPU s / document "
        "| MiB, prediction | MiB, training | steps | CPU minutes |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for task in TASKS:
        for reader in READERS.values():
            rows = [row for row in record["rows"] if (row["task"], row["reader"]) == (task, reader)]
            if rows:
                print(_line(task, reader, rows))
        lowest = min(record["baselines"][task])
        kind = "TF-IDF, nearest mean" if task == "classify" else "BM25, last word of the sentence"
        print(f"| {task} | no model: {kind} | {lowest:.3f} | | | | | | |")
        print(f"| {task} | guessing | {GUESSING[task]:.2f} | | | | | | |")
    settings = record["settings"]
    print(f"\nseeds {settings['seeds']}, {settings['asked']} documents asked about")


def _line(task: str, reader: str, rows: Sequence[Mapping[str, Any]]) -> str:
    def mean(name: str) -> float:
        return sum(row[name] for row in rows) / len(rows)

    least = f" (least {min(row['score'] for row in rows):.3f})" if len(rows) > 1 else ""
    cells = (
        f"{mean('score'):.3f}{least}",
        f"{mean('tokens_per_document'):,.0f}",
        f"{mean('seconds_per_document'):.3f}",
        f"{mean('peak_bytes') / 2**20:,.0f}",
        f"{mean('training_peak_bytes') / 2**20:,.0f}",
        f"{mean('steps'):,.0f}",
        f"{mean('training_seconds') / 60:.1f}",
    )
    return f"| {task} | `{reader}` | {' | '.join(cells)} |"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", help="where tasks and runs are kept")
    parser.add_argument("output", type=Path, nargs="?", help="a JSON file for the results")
    parser.add_argument("--report", type=Path, metavar="JSON", help="print the table of a file of results, and no more")
    parser.add_argument("--pretraining-steps", type=int, default=600)
    parser.add_argument("--steps", type=int, default=540, help="of each run with rows of 512 tokens (default 540)")
    parser.add_argument("--examples", type=int, default=Sizes.train, help="documents to train on, of each task")
    parser.add_argument("--asked", type=int, default=Sizes.test, help="documents to ask about, of each task")
    parser.add_argument("--finished", action="store_true", help="record what is finished, and train no more")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--stage", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.folder is None and arguments.report is None:
        parser.error("a folder is needed, or --report")
    return arguments


if __name__ == "__main__":
    main()
