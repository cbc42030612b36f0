"""Tay 2020, Table 1, in small: accuracy on a task of Long Range Arena against the width of a window.

The tasks were designed to require distant tokens. A later study (arXiv 2501.14850) finds that most of the accuracy
comes from near ones. Here models that differ only in their pattern learn the same rows in the same order. A window of 1
reads only the token itself, so that model can do no more than count tokens; dense attention reads all. Positions are
rotary: attention sees distances between tokens, not absolute positions. FNet, which has no attention and learned
positions, is beside them (Lee-Thorp 2021, on the same tasks).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from asterism.reproduce.experiment import (
    Experiment,
    Figures,
    Finding,
    Package,
    Results,
    Scale,
    Source,
    Table,
    Trial,
    decided,
)
from asterism.reproduce.plots import draw_seeds
from asterism.reproduce.trials import Baseline, Training
from asterism.shape import ModelConfig
from asterism.training.settings.configuration import Dtype, FineTuneConfig, RunConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTHS = (1, 5, 17, 65, 257)
PATTERNS = {f"window of {width}": f"window(left={width // 2}, right={width // 2})" for width in WIDTHS} | {
    "dense": "dense()"
}
"""A window counts the token itself."""
SHAPE: Mapping[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 128,
    "position_type": "rotary",
    "initializer_gain": 1.0,
    "embedding_scale": 8.0,
}
MODELS: Mapping[str, Mapping[str, Any]] = {
    **{name: {**SHAPE, "mixers": pattern} for name, pattern in PATTERNS.items()},
    "FNet": {**SHAPE, "mixers": "fourier()", "position_type": "learned", "block": "post_norm"},
}
"""Shapes by the name of the model; FNet's is as published."""
RATES = {"FNet": 3e-3}
"""Where it is not RATE, which is for norms in front."""
RATE = 1e-2
CLASS, LEARNING = "the most frequent class", "dense attention that learns the task"
LEARNT, NOISE, KEPT, BEHIND = 0.05, 0.02, 0.9, 0.03
"""The least gain over the most frequent class that counts as learning; a difference that chance may explain (about two
standard errors of 2,000 answers); the fraction of a gain that counts as keeping it; and how far FNet may be behind: in
Lee-Thorp 2021 it is at most 2.8 points behind the transformer (pictures)."""


class Data(NamedTuple):
    """The name of a file or folder, which says what decides its contents, and the function that makes it."""

    name: str
    write: Callable[[Path], None]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The size of the data and of the training.

    length  most tokens of a row
    rows    to learn from; `tested` are others to test on
    steps   of `batch` rows each
    """

    length: int
    rows: int
    tested: int
    steps: int
    batch: int
    seeds: int = 1


class Counting(NamedTuple):
    """A model without attention: its name, the most rows that it learns from, and its figures.

    Figures are a function of the folder of data, the sizes and those rows.
    """

    name: str
    rows: int
    score: Callable[..., Figures]


@dataclass(frozen=True, kw_only=True)
class Arena:
    """A task of the arena.

    title      as tables name it
    sizes      by scale; those of `paper` are the published ones
    data       what a run learns from and is tested on, at some sizes
    modality   the reader of files of values; None for rows of text
    simple     a model without attention
    published  accuracies in percent
    """

    title: str
    sizes: Mapping[Scale, Sizes]
    data: Callable[[Sizes], tuple[Data, Data]]
    modality: str | None = None
    simple: Counting
    published: Mapping[str, float]


def trials(task: Arena, scale: Scale) -> Sequence[Trial]:
    """The simple model, then every pattern."""
    sizes = task.sizes[scale]
    dtype: Dtype = "float32" if scale == "laptop" else "bfloat16"  # which many processors have no instructions for
    return [
        _simple(task, sizes),
        *(_training(task, sizes, dtype, name, seed) for seed in range(sizes.seeds) for name in MODELS),
    ]


def _simple(task: Arena, sizes: Sizes) -> Baseline:
    train, test = task.data(sizes)
    name, rows, score = task.simple
    given = {"rows": rows, "data": train.name, "validation": test.name}
    return Baseline(name=name, seed=0, measure=partial(score, sizes=sizes, rows=rows), given=given)


def _training(task: Arena, sizes: Sizes, dtype: Dtype, name: str, seed: int) -> Training:
    train, test = task.data(sizes)
    kind = "text" if task.modality is None else "values"
    config = FineTuneConfig(
        task="classify",
        model=f"{name.replace(' ', '-')}-{kind}-{sizes.length}",
        from_scratch=True,
        data=train.name,
        validation=test.name,
        length=sizes.length,
        modality=task.modality,
        pooling="mean",
        batch_size=sizes.batch,
        steps=sizes.steps,
        epochs=1000.0,
        optimizer="muon",
        learning_rate=RATES.get(name, RATE),
        beta2=0.98,
        warmup_steps=sizes.steps // 10,
        dtype=dtype,
        group_by_length=task.modality is None,
        evaluation_every=sizes.steps,
        checkpoint_every=300,
    )
    model = partial(write_model, shape=MODELS[name], length=sizes.length, of_text=task.modality is None)
    files: dict[str, Callable[[Path], None]] = {"data": train.write, "validation": test.write, "model": model}
    return Training(
        name=name,
        seed=seed,
        config=config,
        reported=("accuracy",),
        files=files,
        decisive={"shape": MODELS[name]},
    )


def write_model(path: Path, shape: Mapping[str, Any], length: int, of_text: bool) -> None:
    """Write the architecture that a run gives new weights, with a tokenizer of bytes if its rows are text."""
    from asterism.models import AsterismConfig
    from asterism.training.data.corpora.tokenization import make_tokenizer

    vocabulary: dict[str, Any] = {"vocab_size": 256}
    if of_text:
        tokenizer = make_tokenizer("bytes", [], length)
        vocabulary = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
        tokenizer.save_pretrained(path)
    AsterismConfig(**shape, **vocabulary, max_position_embeddings=length).save_pretrained(path)


def frequent(labels: Sequence[str], tested: Sequence[str]) -> float:
    """The share of tested labels that are the most frequent label."""
    names, counts = np.unique(labels, return_counts=True)
    return float(np.mean(np.array(tested) == names[counts.argmax()]))


def regression(features: np.ndarray, labels: Sequence[str], tested: np.ndarray) -> list[str]:
    """The likeliest labels of `tested` by a logistic regression of labels on features, float64 [rows, features].

    Features are scaled to mean 0 and variance 1; weights have a normal prior of variance 1.
    """
    from scipy.optimize import minimize
    from scipy.special import logsumexp

    mean, spread = features.mean(0), features.std(0)
    names, index = np.unique(labels, return_inverse=True)
    right = np.eye(len(names))[index]

    def scaled(rows: np.ndarray) -> np.ndarray:
        return np.hstack([(rows - mean) / np.where(spread > 0, spread, 1.0), np.ones((len(rows), 1))])

    known = scaled(features)

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        weights = flat.reshape(known.shape[1], len(names))
        logits = known @ weights
        total = logsumexp(logits, axis=1, keepdims=True)
        slope = known.T @ (np.exp(logits - total) - right) + weights
        return float((total[:, 0] - (logits * right).sum(1)).sum() + (weights**2).sum() / 2), slope.ravel()

    start = np.zeros(known.shape[1] * len(names))
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 100}).x
    chosen = (scaled(tested) @ found.reshape(-1, len(names))).argmax(1)
    return [str(name) for name in names[chosen]]


def simple_figures(predicted: Sequence[str], labels: Sequence[str], tested: Sequence[str]) -> Figures:
    """The share of `tested` labels that are predicted, and the share of the class most frequent among `labels`."""
    return {
        "accuracy": float(np.mean(np.array(predicted) == np.array(tested))),
        "most frequent": frequent(labels, tested),
    }


# --- what was found ---------------------------------------------------------------------------------------------------


def table(task: Arena, results: Results) -> Table:
    """Accuracy and minutes of every pattern, then the published accuracies."""
    simple = task.simple.name
    rows = [
        ("most frequent class", results.shown(simple, "most frequent", ".1%"), "-", "-"),
        (simple, results.shown(simple, "accuracy", ".1%"), "-", "-"),
    ]
    for name in MODELS:
        minutes = results.shown_minutes(name)
        rows.append((name, results.shown(name, "accuracy", ".1%"), "-", minutes))
    rows += [(name, "-", f"{percent:.1f}%", "-") for name, percent in task.published.items()]
    return Table(("model", "right here", "published", "minutes"), rows)


def findings(task: Arena, results: Results) -> Sequence[Finding]:
    """Whether near tokens are enough, and checks that make this meaningful."""
    simple = task.simple.name
    right = {name: results.mean(name, "accuracy") for name in PATTERNS}
    base, dense = results.mean(simple, "most frequent"), right["dense"]
    able = {LEARNING: None if base is None or dense is None or dense - base < LEARNT else dense}
    return [
        decided(
            f"dense attention learns {task.title}: at least {100 * LEARNT:.0f} points above {CLASS}",
            {"dense attention": dense, CLASS: base},
            lambda of: of["dense attention"] - of[CLASS] >= LEARNT,
            f"Dense {{dense attention:.1%}}, {CLASS} {{{CLASS}:.1%}}.",
        ),
        *(_keeps(width, {**able, CLASS: base, "the window": right[f"window of {width}"]}) for width in (17, 65)),
        decided(
            f"ours: no window is more than {100 * NOISE:.0f} points better than dense attention",
            right,
            lambda of: of["dense"] >= max(of.values()) - NOISE,
            "Dense {dense:.1%}, windows " + ", ".join(f"{{window of {width}:.1%}}" for width in WIDTHS) + ".",
        ),
        decided(
            f"ours: near tokens help: a window of 17 is more than {100 * NOISE:.0f} points better than a window of 1",
            {name: right[name] for name in ("window of 17", "window of 1")},
            lambda of: of["window of 17"] > of["window of 1"] + NOISE,
            "{window of 17:.1%} and {window of 1:.1%}.",
        ),
        decided(
            f"ours: dense attention is better than {simple}",
            {"dense attention": dense, simple: results.mean(simple, "accuracy")},
            lambda of: of["dense attention"] > of[simple],
            f"{{dense attention:.1%}} and {{{simple}:.1%}}.",
        ),
        decided(
            f"FNet (Lee-Thorp 2021): at most {100 * BEHIND:.0f} points behind dense attention",
            {**able, "FNet": results.mean("FNet", "accuracy")},
            lambda of: of["FNet"] >= of[LEARNING] - BEHIND,
            f"Dense {{{LEARNING}:.1%}}, FNet {{FNet:.1%}}.",
        ),
    ]


def _keeps(width: int, values: Mapping[str, float | None]) -> Finding:
    """Whether a window has most of what dense attention has above the most frequent class."""
    return decided(
        f"ours: a window of {width} keeps at least {KEPT:.0%} of the gain of dense attention over {CLASS}",
        values,
        lambda of: of["the window"] - of[CLASS] >= KEPT * (of[LEARNING] - of[CLASS]),
        f"The window has {{the window:.1%}}, dense attention {{{LEARNING}:.1%}}, {CLASS} {{{CLASS}:.1%}}.",
    )


def draw(task: Arena, results: Results) -> "Figure":
    """Accuracy against the width of the window, and of every seed; lines for dense attention and models without any."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.6), layout="constrained")
    axes = figure.subplots()
    found = {width: results.mean(f"window of {width}", "accuracy") for width in WIDTHS}
    known = {width: 100 * mean for width, mean in found.items() if mean is not None}
    axes.plot(list(known), list(known.values()), "o-", label="window")
    draw_seeds(axes, "C0", {width: results.values(f"window of {width}", "accuracy") for width in WIDTHS}, times=100)
    simple = task.simple.name
    lines = [(name, name, "accuracy") for name in ("dense", "FNet", simple)] + [
        ("most frequent", simple, "most frequent")
    ]
    for number, (label, trial, name) in enumerate(lines, 1):
        if (mean := results.mean(trial, name)) is not None:
            ends = [100 * end for end in (min(results.values(trial, name)), max(results.values(trial, name)))]
            axes.axhspan(*ends, color=f"C{number}", alpha=0.1, linewidth=0)
            axes.axhline(100 * mean, color=f"C{number}", linestyle="--", label=label)
    axes.set_xscale("log")
    axes.set_xticks(WIDTHS, [str(width) for width in WIDTHS])
    axes.minorticks_off()
    axes.set(xlabel="tokens of the window", ylabel="answers right, %", title=task.title)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right center", frameon=False, fontsize=8)
    return figure


# --- the experiment ---------------------------------------------------------------------------------------------------


def published(task: Arena) -> Mapping[str, tuple[RunConfig, None]]:
    """The small setting with dense attention and with a window of 257, counted as runs that restore masked tokens.

    These have the same layers and rows, and an output of 256 values for each token in place of one for each row.
    """
    sizes = task.sizes["paper"]
    return {
        name: (
            RunConfig(
                model=ModelConfig(**MODELS[name]),
                objective="mlm",
                context=sizes.length,
                batch_size=sizes.batch,
                steps=sizes.steps,
                learning_rate=1e-4,
            ),
            None,
        )
        for name in ("window of 257", "dense")
    }


def arena(
    name: str,
    task: Arena,
    setting: Mapping[Scale, str],
    *,
    sources: Sequence[Source] = (),
    packages: Sequence[Package] = (),
    caveats: Sequence[str] = (),
    tried: Sequence[str] = (),
) -> Experiment:
    """The experiment of a task."""
    return Experiment(
        name=name,
        paper="tay-2020",
        place="Table 1",
        question=f"How wide a window does {task.title} of Long Range Arena need?",
        setting=setting,
        trials=partial(trials, task),
        table=partial(table, task),
        findings=partial(findings, task),
        draw=partial(draw, task),
        published=partial(published, task),
        sources=sources,
        packages=packages,
        caveats=(*caveats, *CAVEATS),
        tried=tried,
    )


CAVEATS = (
    "The model is that of the small setting (2 layers, 64 wide, 2 heads, feed-forward 128, mean of all tokens), but"
    " with rotary positions, muon and a higher learning rate, and it learns far fewer rows than in the paper.",
    "FNet has Fourier transforms in place of attention and, as published, learned positions and norms behind. A third"
    " of the learning rate was chosen by the figures of `lra-text`: 60.9%, with the whole rate 59.5%, with norms in"
    " front 56.8%.",
    "Published accuracies are of full training, with learned positions: `small setting` is that of Nyströmformer's"
    " code (2 layers, 64 wide), the others are of Long Range Arena's README and of FNet. They are not a target here.",
    "Of Long Range Arena, retrieval and Path-X are missing.",
    "Two layers of a window of w reach w - 1 tokens to each side, and the mean over all tokens collects the results of"
    " every position.",
)

PUBLISHED: Mapping[str, Mapping[str, float]] = {
    "small setting, softmax": {"listops": 37.1, "text": 65.0, "image": 38.2, "pathfinder": 74.2},
    "Transformer": {"listops": 36.37, "text": 64.27, "image": 42.44, "pathfinder": 71.40},
    "Sparse Transformer": {"listops": 17.07, "text": 63.58, "image": 44.24, "pathfinder": 71.71},
    "Longformer": {"listops": 35.63, "text": 62.85, "image": 42.22, "pathfinder": 69.71},
    "BigBird": {"listops": 36.05, "text": 64.02, "image": 40.83, "pathfinder": 74.87},
    "FNet": {"listops": 35.33, "text": 65.11, "image": 38.67, "pathfinder": 77.80},
}


def published_of(task: str) -> dict[str, float]:
    """The published accuracies of a task, by model."""
    return {name: row[task] for name, row in PUBLISHED.items()}
