"""Zaheer 2020, appendix C: do trained sparse models find the furthest vector?

Vectors are corners of a cube, of equal length. A token is solved when all signs of its answer are right; only tokens
with a single furthest vector count. `reach` is the share of pairs of tokens that the pattern connects in so many
layers: a token whose furthest vector is out of reach has nothing left but chance.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from asterism.randomness import isolated
from asterism.reproduce.experiment import Experiment, Figures, Finding, Results, Scale, Table, decided
from asterism.reproduce.trials import Computation

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor, nn

TOKENS, LAYERS = (8, 16, 32, 64), (1, 2, 4)
PATTERNS = {
    "full": "dense()",
    "star-transformer": "star_transformer()",
    "window": "window(left=2, right=2)",
    "BigBird": "bigbird(block=1, window=3, random=2, globals=[0], seed=0)",
}
ALONE = "alone", "window()"
FEATURES, HIDDEN, HEADS = 16, 64, 4
TOKENS_PER_STEP, LEARNING_RATE, TESTED = 512, 3e-3, 8192


def _name(pattern: str, layers: int, tokens: int) -> str:
    return f"{pattern}, {layers} layer{'s' * (layers > 1)}, {tokens} tokens"


def trials(scale: Scale) -> Sequence[Computation]:
    """Every pattern at every depth and number of tokens, and a token that reads itself alone."""
    cases = [(*ALONE, 1), *((name, pattern, layers) for name, pattern in PATTERNS.items() for layers in LAYERS)]
    return [
        Computation(
            name=_name(name, layers, tokens),
            seed=seed,
            compute=train,
            arguments={"pattern": pattern, "layers": layers, "tokens": tokens, "steps": 600},
        )
        for tokens in TOKENS
        for name, pattern, layers in cases
        for seed in range(1 if scale == "laptop" else 3)
    ]


def train(pattern: str, layers: int, tokens: int, steps: int, seed: int, tested: int = TESTED) -> Figures:
    """The accuracy of one trained model on instances it has not seen, with its standard error over instances."""
    import torch
    import torch.nn.functional as F

    from asterism.theory.approximation.limits import interactions

    model = _finder(pattern, layers, seed)
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, steps)
    for step in range(steps):
        signs, answers, unique = _examples(TOKENS_PER_STEP // tokens, tokens, seed, 1 + step)
        loss = F.binary_cross_entropy_with_logits(model(signs)[unique], (answers[unique] + 1) / 2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    signs, answers, unique = _examples(tested // tokens, tokens, seed, 0)
    with torch.no_grad():
        solved = (model(signs).sign() == answers).all(-1) & unique
    counted = unique.sum(1)
    accuracy = solved.sum().item() / counted.sum().item()
    error = (solved.sum(1) - accuracy * counted).square().sum().sqrt().item() / counted.sum().item()
    reach = interactions(pattern, tokens, layers)[-1]
    return {"accuracy": accuracy, "standard error": error, "loss": loss.item(), "reach": reach}


def _finder(pattern: str, layers: int, seed: int) -> "nn.Module":
    """Signs [B, n, FEATURES] -> logits of the signs of each token's furthest vector, of the same shape.

    Every matrix is drawn from N(0, 1 / its inputs); every bias is 0.
    """
    import torch
    from torch import nn

    from asterism.layers import PreNormBlock, SparseAttention

    blocks = (PreNormBlock(SparseAttention(HIDDEN, HEADS, pattern), HIDDEN, 2 * HIDDEN) for _ in range(layers))
    with isolated(seed):
        model = nn.Sequential(nn.Linear(FEATURES, HIDDEN), *blocks, nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, FEATURES))
        for module in model.modules():
            if isinstance(module, nn.Linear):
                torch.nn.init.normal_(module.weight, std=module.in_features**-0.5)
                torch.nn.init.zeros_(module.bias)
    return model


def _examples(count: int, n: int, seed: int, step: int) -> "tuple[Tensor, Tensor, Tensor]":
    """Signs and answers, float [count, n, FEATURES], and which tokens have one furthest vector, bool [count, n]."""
    import torch

    from asterism.theory.approximation.limits import furthest

    random = np.random.Generator(np.random.Philox(key=[seed, step]))
    signs = 2 * random.integers(0, 2, (count, n, FEATURES)) - 1
    index, unique = furthest(signs)
    answers = np.take_along_axis(signs, index[..., None], axis=1)
    return torch.from_numpy(signs).float(), torch.from_numpy(answers).float(), torch.from_numpy(unique)


def table(results: Results) -> Table:
    """Tokens solved by pattern, depth and number of tokens, and the pairs in reach."""
    rows = []
    for pattern, layers in ((ALONE[0], 1), *((name, layers) for name in PATTERNS for layers in LAYERS)):
        names = [_name(pattern, layers, tokens) for tokens in TOKENS]
        cells = [f"{_share(results.mean(name, 'accuracy'))} ({_share(results.mean(name, 'reach'))})" for name in names]
        rows.append((pattern, str(layers), *cells))
    return Table(("pattern", "layers", *(f"{tokens} tokens: solved (in reach)" for tokens in TOKENS)), rows)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def findings(results: Results) -> Sequence[Finding]:
    """One full layer solves the task; sparse ones do not, within their reach or beyond it."""
    sparse = [(name, layers) for name in PATTERNS if name != "full" for layers in LAYERS]

    def accuracies(cells: Sequence[tuple[str, int]], tokens: Sequence[int]) -> dict[str, float | None]:
        names = [_name(*cell, n) for cell in cells for n in tokens]
        return {name: results.mean(name, "accuracy") for name in names}

    over = {
        f"{name} above reach": None if (of := results.mean(name, "accuracy")) is None
        else of - (results.mean(name, "reach") or 0.0) - 3 * (results.mean(name, "standard error") or 0.0)
        for name in accuracies(sparse, TOKENS)
    }  # fmt: skip
    return [
        decided(
            "ours: one full layer finds the furthest vector",
            accuracies([("full", 1)], TOKENS),
            lambda of: min(of.values()) > 0.99,
            "Solved with 64 tokens: {full, 1 layer, 64 tokens:.1%}.",
        ),
        decided(
            "ours: few layers of sparse attention do not, with 64 tokens",
            accuracies(sparse, TOKENS[-1:]),
            lambda of: max(of.values()) < 0.1,
            "With four layers: star {star-transformer, 4 layers, 64 tokens:.1%}, window"
            " {window, 4 layers, 64 tokens:.1%}, BigBird {BigBird, 4 layers, 64 tokens:.1%}.",
        ),
        decided(
            "ours: no model solves more tokens than have their furthest vector in reach",
            over,
            lambda of: max(of.values()) <= 0,
            f"{len(over)} models of sparse attention, with three standard errors.",
        ),
    ]


def draw(results: Results) -> "Figure":
    """A panel per depth: accuracy against tokens, and reach dashed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2), layout="constrained")
    panels = figure.subplots(1, len(LAYERS), sharey=True)
    for axes, layers in zip(panels, LAYERS, strict=True):
        for number, pattern in enumerate(PATTERNS):
            for figure_name, style in (("accuracy", "o-"), ("reach", "--")):
                known = {n: results.mean(_name(pattern, layers, n), figure_name) for n in TOKENS}
                some = {n: value for n, value in known.items() if value is not None}
                label = pattern if figure_name == "accuracy" else None
                axes.plot(list(some), list(some.values()), style, color=f"C{number}", markersize=4, label=label)
        axes.set_xscale("log", base=2)
        axes.set_xticks(TOKENS, [str(n) for n in TOKENS])
        axes.set(title=f"{layers} layer{'s' * (layers > 1)}", xlabel="tokens")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("tokens solved; dashed: pairs in reach", fontsize=9)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", fontsize=8, frameon=False)
    return figure


FURTHEST = Experiment(
    name="furthest",
    paper="zaheer-2020",
    place="Appendix C",
    question="Do a few layers of sparse attention learn to find the vector that is furthest from each?",
    setting={
        "laptop": "Models 64 wide with 4 heads learn from 600 steps of 512 vectors of 16 signs, and are asked about"
        " 8,192 new ones. One seed.",
        "workstation": "The same, with three seeds.",
    },
    trials=trials,
    table=table,
    findings=findings,
    draw=draw,
    published=dict,
    caveats=(
        "The paper proves a bound for transformers in general and trains nothing. The results after 600 steps are no"
        " evidence for the bound: where reach is full, more steps or features may solve the task.",
    ),
)
