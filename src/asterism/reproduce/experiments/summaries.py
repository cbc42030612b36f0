"""Zaheer 2020, Table 4 and appendix E.5: summaries by a model that reads 512 or 4,096 tokens, by length of documents.

The summaries are the abstracts of RFCs. Most RFCs begin with the content of their abstract. So the evidence does not
lie deep, unlike in the paper, where it is spread evenly over long documents.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from asterism.reproduce.data.rfcs import (
    RFCS,
    SOURCES,
    Split,
    best_count,
    candidates,
    documents,
    lead,
    oracle,
    read,
    rouge1,
    write,
    write_documents,
)
from asterism.reproduce.experiment import Experiment, Figures, Finding, Package, Results, Scale, Table, Trial, decided
from asterism.reproduce.trials import DATA, Baseline, Training, counted_run, made
from asterism.shape import ModelConfig
from asterism.training.recipes import recipe
from asterism.training.settings.configuration import FineTuneConfig, RunConfig

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CUT, WHOLE = 512, 4096
"""Tokens."""
SHORT, LONG = "at most 2,500 words", "more than 5,000 words"
WORDS = {SHORT: range(2_501), LONG: range(5_001, 1_000_000)}
"""Of documents that mostly fit into 4,096 tokens, and of documents that do not; hardly any fits into 512."""
SCORES = {"R-1": "rouge1", "R-2": "rouge2", "R-L": "rougeL"}
MARGIN = 2.0
"""Points of R-1: about the standard error of the difference of two models over 70 documents."""
LEAD, ORACLE = "first sentences", "nearest sentences"
SCRAPS, PRETRAINED = "scraps", "pretrained"
TRAIN, CHECKED, TEXT = "train.jsonl", "checked.jsonl", "text.jsonl"
CHECKED_COUNT = 40
"""Validation documents that a run scores itself on."""
CHARACTERS = 16_000
"""Of each training text that is pretrained on: more would not be reached, and take long to cut into tokens."""
LONGEST = 65_536
"""Positions; biases by distance do not end."""
PUBLISHED = {
    "Transformer base": {"XSum": 29.61, "CNN/DM": 34.89, "Arxiv": 28.52, "PubMed": 31.71, "BigPatent": 39.66},
    "RoBERTa base": {"XSum": 39.92, "CNN/DM": 39.44, "Arxiv": 31.98, "PubMed": 35.77, "BigPatent": 41.11},
    "BigBird-RoBERTa base": {"XSum": 39.52, "CNN/DM": 39.25, "Arxiv": 41.22, "PubMed": 43.70, "BigPatent": 55.69},
}
"""R-1 in the paper."""
MEDIANS = {"XSum": 359, "CNN/DM": 777, "Arxiv": 6151, "PubMed": 2715, "BigPatent": 3082}
"""Tokens of a document, in the paper."""
ALIKE = {SHORT: ("XSum", "CNN/DM"), LONG: ("Arxiv", "PubMed", "BigPatent")}
"""Where the paper's documents are short and long."""


@dataclass(frozen=True)
class Steps:
    """How long each run is: `equal_time` of a model that reads 512 tokens take about as long as `equal` of 4,096."""

    scraps: int
    pretrained: int
    equal: int
    equal_time: int


STEPS: Mapping[Scale, Steps] = {"laptop": Steps(700, 900, 300, 1000), "workstation": Steps(2800, 3600, 2000, 6800)}
READ = {"512 tokens": CUT, "4,096 tokens": WHOLE, "512 tokens, equal time": CUT}
"""Tokens that a fine-tuned model reads, by the name of its trial; the first two take equally many steps."""
EQUAL_CUT, EQUAL_WHOLE, EQUAL_TIME = READ


def trials(scale: Scale) -> Sequence[Trial]:
    """Sentences of the document; then two runs of pretraining, from which all models start."""
    steps = STEPS[scale]
    return [
        Baseline(name=LEAD, seed=0, measure=_lead, given={"data": RFCS}),
        Baseline(name=ORACLE, seed=0, measure=_oracle, given={"data": RFCS}),
        *(trial for seed in range(1 if scale == "laptop" else 3) for trial in _trainings(steps, seed)),
    ]


def _trainings(steps: Steps, seed: int) -> list[Training]:
    fine_tuned = [
        Training(
            name=name,
            seed=seed,
            config=fine_tuning(tokens, steps.equal_time if name == EQUAL_TIME else steps.equal),
            files={
                "data": partial(_write, split="train"),
                "validation": partial(_write, split="validation", count=CHECKED_COUNT),
            },
            decisive={"checked": CHECKED_COUNT},
            start=PRETRAINED,
            score=_score,
        )
        for name, tokens in READ.items()
    ]
    return [
        _pretraining(SCRAPS, scraps(steps.scraps), None, seed),
        _pretraining(PRETRAINED, pretraining(steps.pretrained), SCRAPS, seed),
        *fine_tuned,
    ]


def _pretraining(name: str, config: RunConfig, start: str | None, seed: int) -> Training:
    return Training(
        name=name,
        seed=seed,
        config=config,
        reported=("validation_target_loss",),
        files={"data": _write_text},
        decisive={"characters": CHARACTERS},
        start=start,
    )


def scraps(steps: int) -> RunConfig:
    """Gap sentences of stretches of 64 tokens, most of which stay in the input: so a small model learns to copy."""
    shape = {
        "mixers": "bigbird(block=32, random=2)",
        "position_type": "buckets",
        "max_position_embeddings": LONGEST,
        "hidden_size": 128,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
    }
    return counted_run(
        "gap-sentences-tiny",
        shape,
        steps,
        data=TEXT,
        tokenizer="bpe:8000",
        kept_sentences=0.8,
        context=64,
        batch_size=32,
        learning_rate=6e-3,
    )


def pretraining(steps: int) -> RunConfig:
    """Gap sentences of stretches of 512 tokens, half of which stay, by the model that read scraps."""
    return replace(
        scraps(steps),
        model=ModelConfig(),
        tokenizer="bytes",
        init_from=SCRAPS,
        kept_sentences=0.5,
        context=512,
        batch_size=4,
        learning_rate=3e-3,
    )


def fine_tuning(tokens: int, steps: int) -> FineTuneConfig:
    """The pretrained model on abstracts, reading so many tokens."""
    return FineTuneConfig(
        task="summarize",
        model=PRETRAINED,
        data=TRAIN,
        validation=CHECKED,
        reader=f"cut(length={tokens})",
        target_length=192,
        num_beams=1,
        no_repeat_ngram_size=3,
        batch_size=4,
        steps=steps,
        epochs=1000.0,
        optimizer="muon",
        learning_rate=2e-3,
        warmup_steps=30,
        weight_decay=0.1,
        evaluation_every=steps,
        evaluation_examples=10,
        checkpoint_every=100,
        dtype="float32",
    )


def _write(path: Path, split: Split, count: int | None = None, words: range | None = None) -> None:
    write_documents(path, path.parent / RFCS, split, count, words)


def _write_text(path: Path) -> None:
    write_beginnings(path, made(path.parent / TRAIN, partial(_write, split="train")))


def write_beginnings(path: Path, documents: Path) -> None:
    """Write the texts to pretrain on: the beginnings of documents, as JSONL with `text`."""
    write(path, ({"text": row["document"][:CHARACTERS]} for row in read(documents)))


def _test(data: Path, length: str) -> Path:
    """The test documents of a length."""
    words = WORDS[length]
    return made(data / f"test-{words.start}-{words.stop}.jsonl", partial(_write, split="test", words=words))


def _score(folder: Path) -> Figures:
    """ROUGE of the test documents of each length, from 0 to 100."""
    from asterism.training import evaluate, open_run

    run, data = open_run(folder), folder.parents[1] / DATA
    return _figures(
        {length: evaluate(run, data=_test(data, length), progress=False).figures["scores"] for length in WORDS}
    )


def _figures(scores: Mapping[str, Mapping[str, float]]) -> Figures:
    """Figures of the scores of each length."""
    return {_of(name, length): 100 * scores[length][key] for length in WORDS for name, key in SCORES.items()}


def _of(score: str, length: str) -> str:
    return f"{score}, {length}"


def _lead(data: Path) -> Figures:
    """Scores of the first sentences, as many as have the best R-1 on validation documents."""
    validation = documents(data / RFCS, "validation")
    sentences = [candidates(row["document"]) for row in validation]

    def mean(count: int) -> float:
        said = ["\n".join(some[number] for number in lead(some, count)) for some in sentences]
        return fmean(rouge1(one, row["summary"]) for one, row in zip(said, validation, strict=True))

    count = best_count(mean)
    return {**_score_sentences(data, lambda sentences, summary: lead(sentences, count)), "sentences": count}


def _oracle(data: Path) -> Figures:
    """Scores of the sentences that come nearest to the summary: about the most that a document's sentences can say."""
    return _score_sentences(data, oracle)


def _score_sentences(data: Path, choose: Callable[[Sequence[str], str], list[int]]) -> Figures:
    """Scores of the sentences whose numbers are chosen, of the test documents of each length."""
    from asterism.training.tasks.scores.texts import rouge

    scores = {}
    for length in WORDS:
        rows = list(read(_test(data, length)))
        said = []
        for row in rows:
            sentences = candidates(row["document"])
            said.append("\n".join(sentences[number] for number in choose(sentences, row["summary"])))
        scores[length] = rouge(said, [row["summary"] for row in rows])
    return _figures(scores)


def _r1(results: Results, name: str, length: str) -> float | None:
    return results.mean(name, _of("R-1", length))


def _gain(results: Results, less: str, more: str, length: str) -> float | None:
    """By how many points of R-1 a trial is better than another."""
    low, high = (_r1(results, name, length) for name in (less, more))
    return None if low is None or high is None else high - low


def _best_gain(results: Results, length: str) -> float | None:
    """That of the best model over the first sentences; None unless all are measured."""
    gains = [_gain(results, LEAD, name, length) for name in READ]
    known = [gain for gain in gains if gain is not None]
    return max(known) if len(known) == len(gains) else None


def table(results: Results) -> Table:
    """ROUGE by what is read and by the length of documents; then R-1 of the paper's models."""
    rows = [
        (
            _shown_name(results, name),
            *(" / ".join(results.shown(name, _of(score, length), ".1f") for score in SCORES) for length in WORDS),
            results.shown_minutes(name),
        )
        for name in (LEAD, ORACLE, *READ)
    ]
    for name, scores in PUBLISHED.items():
        cells = (", ".join(f"{data} {scores[data]:.2f}" for data in ALIKE[length]) for length in WORDS)
        rows.append((f"{name}, in the paper: R-1", *cells, "-"))
    for name in (SCRAPS, PRETRAINED):
        loss = results.shown(name, "validation_target_loss")
        told = "pretraining 1, pieces of 64 tokens" if name == SCRAPS else "pretraining 2, pieces of 512 tokens"
        rows.append((f"{told}, {loss} nats for each to restore", "-", "-", results.shown_minutes(name)))
    headings = ("read", *(f"{' / '.join(SCORES)}, documents of {length}" for length in WORDS), "minutes")
    return Table(headings, rows)


def _shown_name(results: Results, name: str) -> str:
    count = results.mean(name, "sentences")
    return name if count is None else f"{name}: {count:.0f}"


def findings(results: Results) -> Sequence[Finding]:
    """What a longer row gains, by the length of documents, and what a model gains over the document's sentences."""
    gains = {length: _gain(results, EQUAL_CUT, EQUAL_WHOLE, length) for length in WORDS}
    in_time = {length: _gain(results, EQUAL_WHOLE, EQUAL_TIME, length) for length in WORDS}
    over_lead = {length: _best_gain(results, length) for length in WORDS}
    seen = f"{SHORT}: {{{SHORT}:+.1f}}, {LONG}: {{{LONG}:+.1f}} points of R-1."
    return [
        decided(
            f"long documents: reading 4,096 tokens gains more than {MARGIN:g} points over 512",
            {LONG: gains[LONG]},
            lambda of: of[LONG] > MARGIN,
            f"{{{LONG}:+.1f}} points of R-1.",
        ),
        decided(
            f"short documents: both are equally good, within {MARGIN:g} points",
            {SHORT: gains[SHORT]},
            lambda of: abs(of[SHORT]) <= MARGIN,
            f"{{{SHORT}:+.1f}} points of R-1.",
        ),
        decided(
            f"long documents gain more than short ones, by more than {MARGIN:g} points",
            gains,
            lambda of: of[LONG] > of[SHORT] + MARGIN,
            f"Gain: {seen}",
        ),
        decided(
            "ours: at equal time, reading 512 tokens is better than 4,096",
            in_time,
            lambda of: min(of.values()) > 0,
            f"Gain of 512 tokens: {seen}",
        ),
        decided(
            "ours: the best model is better than the first sentences of the document",
            over_lead,
            lambda of: min(of.values()) > 0,
            f"Gain: {seen}",
        ),
    ]


def draw(results: Results) -> "Figure":
    """R-1 against the tokens read, by the length of documents; and the paper's gain by that length."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 4.2), layout="constrained")
    here, paper = figure.subplots(1, 2)
    for number, length in enumerate(WORDS):
        _draw_length(here, results, length, f"C{number}")
        for data in ALIKE[length]:
            gain = PUBLISHED["BigBird-RoBERTa base"][data] - PUBLISHED["RoBERTa base"][data]
            paper.plot([MEDIANS[data]], [gain], "D", color=f"C{number}")
            paper.annotate(data, (MEDIANS[data], gain), (6, 2), textcoords="offset points", fontsize=8)
    here.set_xscale("log", base=2)
    here.set(title="here", xlabel="tokens read", ylabel="R-1", xticks=[CUT, WHOLE], xticklabels=["512", "4,096"])
    figure.legend(*here.get_legend_handles_labels(), loc="outside lower left", fontsize=7, frameon=False, ncols=2)
    paper.set_xscale("log")
    paper.set(title="in the paper", xlabel="tokens of a document, median", ylabel="gain in R-1", xlim=(250, 20_000))
    for axes in (here, paper):
        axes.grid(alpha=0.3)
    return figure


def _draw_length(axes: "Axes", results: Results, length: str, color: str) -> None:
    """Models of equal steps in a line, that of equal time as a triangle; sentences of the document as a dotted line."""
    known = {READ[name]: _r1(results, name, length) for name in (EQUAL_CUT, EQUAL_WHOLE)}
    some = {tokens: value for tokens, value in known.items() if value is not None}
    axes.plot(list(some), list(some.values()), "o-", color=color, label=length)
    if (value := _r1(results, EQUAL_TIME, length)) is not None:
        axes.plot([CUT], [value], "^", color=color, label=f"{length}, equal time")
    if (value := _r1(results, LEAD, length)) is not None:
        axes.axhline(value, color=color, linestyle=":", label=f"{length}, {LEAD}")


def _setting(scale: Scale) -> str:
    steps = STEPS[scale]
    return (
        "A model with two layers in its encoder and two in its decoder, 128 wide with two heads, learns to restore"
        f" sentences left out of RFCs: {steps.scraps:,} steps of 32 pieces of 64 tokens, then {steps.pretrained:,} of"
        f" four pieces of 512. Then it learns to write abstracts: {steps.equal:,} steps of four documents cut to 512 or"
        f" to 4,096 tokens, or {steps.equal_time:,} steps with 512 tokens, which take a CPU about as long as those with"
        " 4,096. Scores are of greedy summaries of the test documents."
    )


SUMMARIES = Experiment(
    name="summaries",
    paper="zaheer-2020",
    place="Table 4, appendix E.5",
    question="How much do summaries gain if the model reads 4,096 tokens instead of 512, by the length of documents?",
    setting={scale: _setting(scale) for scale in STEPS},
    trials=trials,
    table=table,
    findings=findings,
    draw=draw,
    published=lambda: {"BigBird-Pegasus large": (recipe("bigbird-pegasus-large"), None)},
    sources=SOURCES,
    packages=(Package("rouge-score", "rouge_score", "seq2seq"),),
    tried=(
        "A likely cause: what an abstract says stands in the first 512 tokens, and long rows give a new model more"
        " places to look for it.",
        "500 steps in place of 300 (2026-11-22, bfloat16, 100 documents of all lengths): 33.4 points of R-1 with 512"
        " tokens, 33.2 with 4,096. So both are equal there; documents and data type are not those of the table.",
        "Whole documents, 7,627 tokens on average, read by the model that learned with 4,096 (the same day): 33.4. The"
        " reader `selected(length=512, k=4)`: 26.2.",
        "1,700 steps with 512 tokens (the same day): 39.7, and the first five sentences 40.2. So a longer run comes"
        " near the first sentences.",
    ),
    caveats=(
        "In the paper, BigBird-RoBERTa gains 8 to 15 points of R-1 over RoBERTa on long documents, and loses 0.2 to 0.4"
        " on short ones. Both start from published weights, and RoBERTa is dense; we do not know how many tokens it"
        " reads there. Here both models have BigBird's pattern and are pretrained on the training texts alone.",
        "Most RFCs begin with the content of their abstract. So reading on gains less than in the paper, where the"
        " content of long documents is spread evenly.",
        "Short documents are longer here: those of at most 2,500 words mostly fit into 4,096 tokens, but hardly any"
        " fits into 512. In the paper, the medians are 359 and 777 tokens.",
        "About 70 test documents have each length. Two points are about one standard error of a difference, so one"
        " below four points may be chance.",
        "First sentences: the number with the best R-1 on validation documents. Nearest sentences: chosen one by one by"
        " ROUGE with the abstract at hand, about the upper bound for copying.",
        "The paper searches with five beams. We do not know which of the two scores named ROUGE-L it reports; ours"
        " compares whole texts.",
    ),
)
