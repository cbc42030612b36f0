"""Zaheer 2020, Tables 2 and 15: the same model reads documents whole, and cut to 512 tokens, by how long they are."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from asterism.reproduce.data.long_documents import Shape, anywhere, write_examples, write_texts
from asterism.reproduce.experiment import Experiment, Figures, Finding, Results, Scale, Table, decided
from asterism.reproduce.trials import DATA, Training, made
from asterism.training.recipes import recipe
from asterism.training.settings.configuration import FineTuneConfig, RunConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

READ = (4096, 512)
WORDS = (300, 1000, 2000, 3600)
"""Of a document: with a token for each word and mark, the first is read whole in 512 tokens, and the last but for a few
tokens in 4,096."""
TASKS = {"classify": "accuracy", "qa": "exact_match"}
GUESSING = {"classify": 1 / 4, "qa": 1 / 16}
"""One label of four, one place of sixteen."""
TEXTS, EXAMPLES, ASKED = 6_000, 2_000, 100
PRETRAINED = "pretrained"
PUBLISHED = {
    "IMDb": (0.14, 95.0, 95.2),
    "Yelp-5": (0.04, 71.75, 72.16),
    "Hyperpartisan": (0.53, 87.8, 92.2),
    "Patents": (0.90, 67.07, 69.30),
    "Arxiv": (1.00, 87.42, 92.31),
}
"""Table 15: the share of documents of more than 512 tokens, and micro F1 of RoBERTa at 512 and of BigBird at 4,096."""


def _name(task: str, read: int) -> str:
    return f"{task}, {read:,} tokens"


def trials(scale: Scale) -> Sequence[Training]:
    """One model that both tasks start from, and each task with each length."""
    seeds = range(1 if scale == "laptop" else 3)
    return [
        trial
        for seed in seeds
        for trial in (
            Training(
                name=PRETRAINED,
                seed=seed,
                config=replace(pretraining(f"text-{TEXTS}"), steps=600, minutes=None, dtype="float32"),
                files={"data": partial(write_texts, seed=0, count=TEXTS)},
            ),
            *(_asked(task, read, seed) for task in TASKS for read in READ),
        )
    ]


def _asked(task: str, read: int, seed: int) -> Training:
    """As many steps as take about as long: those of 512 tokens are four times as many."""
    write = partial(write_examples, purpose=f"{task}.train", seed=0, count=EXAMPLES, shapes=_shapes())
    steps = 200 if read == max(READ) else 800
    config = fine_tuning(task, read, f"{task}-{EXAMPLES}-anywhere.jsonl", "")
    return Training(
        name=_name(task, read),
        seed=seed,
        config=replace(config, steps=steps, evaluation_every=steps, dtype="float32"),
        files={"data": write},
        start=PRETRAINED,
        score=partial(_score, task=task),
    )


def _shapes() -> list[Shape]:
    return [anywhere(words) for words in WORDS]


def pretraining(text: str) -> RunConfig:
    """bigbird-tiny over 4,096 tokens of the text in a folder."""
    return replace(recipe("bigbird-tiny"), data=text, tokenizer="bpe:768", context=max(READ), batch_size=1)


def fine_tuning(task: str, read: int | None, data: str, model: str) -> FineTuneConfig:
    """A pretrained model on one task, reading `read` tokens (None: as many as it can)."""
    return FineTuneConfig(
        task=task,
        model=model,
        data=data,
        length=read,
        pooling="mean" if task == "classify" else None,
        batch_size=4,
        epochs=1000.0,
        optimizer="muon",
        learning_rate=3e-3,
        warmup_steps=30,
        evaluation_every=200,
        evaluation_examples=50,
        checkpoint_every=200,
    )


def _score(folder: Path, task: str) -> Figures:
    """The score on new documents of each length."""
    from asterism.training import evaluate, open_run

    run, found = open_run(folder), {}
    for words in WORDS:
        path = folder.parents[1] / DATA / f"{task}-{words}.test.jsonl"
        made(path, partial(write_examples, purpose=f"{task}.test", seed=0, count=ASKED, shapes=[anywhere(words)]))
        scores = evaluate(run, data=path, progress=False).figures["scores"]
        found[f"score of {words} words"] = float(scores[TASKS[task]])
    return found


def _figure(words: int) -> str:
    return f"score of {words} words"


def _gains(results: Results, task: str) -> dict[int, float | None]:
    """By how much reading the whole is better than a cut, for each length of documents."""
    whole, cut = ({words: results.mean(_name(task, read), _figure(words)) for words in WORDS} for read in READ)
    return {
        words: None if (long := whole[words]) is None or (short := cut[words]) is None else long - short
        for words in WORDS
    }


def table(results: Results) -> Table:
    """Scores by task, tokens read and length of documents; then the gain in the paper."""
    rows = [
        (f"{_name(task, read)} (guessing: {GUESSING[task]:.2f})", *_cells(results, task, read))
        for task in TASKS
        for read in READ[::-1]
    ]
    return Table(("task", *(f"documents of {words:,} words" for words in WORDS)), rows)


def _cells(results: Results, task: str, read: int) -> list[str]:
    return [results.shown(_name(task, read), _figure(words), ".2f") for words in WORDS]


def findings(results: Results) -> Sequence[Finding]:
    """The gain of reading all, by length."""
    gains = {f"{task} {words}": gain for task in TASKS for words, gain in _gains(results, task).items()}
    whole = {task: results.mean(_name(task, READ[0]), _figure(WORDS[-1])) for task in TASKS}
    short, long = WORDS[0], WORDS[-1]
    return [
        decided(
            "documents that fit into 512 tokens gain nothing from a longer reader",
            {name: gains[name] for name in gains if name.endswith(f" {short}")},
            lambda of: max(of.values()) < 0.1,
            f"Gain: classification {{classify {short}:+.2f}}, questions {{qa {short}:+.2f}}.",
        ),
        decided(
            "the gain grows with the length of documents",
            gains,
            lambda of: (
                all(
                    of[f"{task} {a}"] < of[f"{task} {b}"] + 0.02
                    for task in TASKS
                    for a, b in zip(WORDS[:-1], WORDS[1:], strict=True)
                )
                and all(of[f"{task} {long}"] > of[f"{task} {short}"] + 0.1 for task in TASKS)
            ),
            "; ".join(f"{task} " + ", ".join(f"{{{task} {words}:+.2f}}" for words in WORDS) for task in TASKS) + ".",
        ),
        decided(
            "a reader of 4,096 tokens answers nearly all questions about the longest documents, more than nine of ten",
            whole,
            lambda of: min(of.values()) > 0.9,
            "Classification {classify:.2f}, questions {qa:.2f}.",
        ),
    ]


def draw(results: Results) -> "Figure":
    """Scores against the length of documents, and the gain in the paper against the share of long documents."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 3.4), layout="constrained")
    here, paper = figure.subplots(1, 2)
    for number, task in enumerate(TASKS):
        for read, style in zip(READ, ("o-", "o--"), strict=True):
            known = {words: results.mean(_name(task, read), _figure(words)) for words in WORDS}
            some = {words: value for words, value in known.items() if value is not None}
            size = 9 - 4 * number  # where lines lie on each other, both are seen
            here.plot(list(some), list(some.values()), style, color=f"C{number}", ms=size, label=_name(task, read))
    here.set(title="here", xlabel="words of a document", ylabel="score", ylim=(0, 1.03))
    here.legend(fontsize=8, loc="upper right", bbox_to_anchor=(1, 0.95), handlelength=3)
    for name, (share, cut, whole) in PUBLISHED.items():
        paper.plot([share], [whole - cut], "D", color="0.3")
        right = name == "IMDb"  # of two that are near each other
        paper.annotate(
            name,
            (share, whole - cut),
            (6 if right else -6, 2),
            textcoords="offset points",
            ha="left" if right else "right",
            fontsize=8,
        )
    paper.set(title="in the paper", xlabel="documents longer than 512 tokens", ylabel="gain in F1", xlim=(-0.3, 1.1))
    for axes in (here, paper):
        axes.grid(alpha=0.3)
    return figure


LONG_DOCUMENTS = Experiment(
    name="long-documents",
    paper="zaheer-2020",
    place="Tables 2 and 15",
    question="How much does reading 4,096 tokens gain over a cut to 512, by the length of documents?",
    setting={
        "laptop": "bigbird-tiny learns from 600 steps of masked text, and then to classify documents, or to find"
        " answers in them: 200 steps of four whole documents, or 800 of four cut ones. Both are asked about 100 new"
        " documents of each length.",
        "workstation": "The same, with three seeds.",
    },
    trials=trials,
    table=table,
    findings=findings,
    draw=draw,
    published=lambda: {"BigBird-ITC": (recipe("bigbird-itc-base"), None)},
    caveats=(
        "Documents are made up, from a vocabulary of a few hundred words, so that it is known where the evidence"
        " stands: anywhere, with equal probability. Both readers get about equal time.",
        "In the paper, classification gains 4.9 points on Arxiv, where all documents are longer than 512 tokens, and"
        " 0.2 on IMDb, where 14% are. Length is not all: Hyperpartisan, where 53% are, gains 4.4, and Patents, where"
        " 90% are, 2.2.",
        "Real summaries, meetings and searches of long documents are in [Summaries](../summaries.md) and"
        " [Readers](../readers.md).",
    ),
)
