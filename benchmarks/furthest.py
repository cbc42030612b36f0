"""Do trained sparse models find the furthest vector? Accuracy by pattern, depth and number of tokens.

    python benchmarks/furthest.py benchmarks/results/furthest-vector.json [tokens ...]
    python benchmarks/furthest.py --report benchmarks/results/furthest-vector.json

The first trains models for these numbers of tokens, by default all, a quarter of an hour in all on one core. It writes
the file after each model and passes over those that the file has, so it can be stopped and started again. The second
prints a table in Markdown and draws the picture beside the file. Every model starts from the same seed and sees the
same batches, so on one machine its row is repeatable to the last digit.

Vectors are corners of a cube, of equal length. A token is solved when all signs of its answer are right; only tokens
with a single furthest vector count. `reach` is the share of pairs of tokens that the pattern connects in so many
layers: a token whose furthest vector is out of reach has nothing left but chance, which `alone` measures. Where reach
is full, accuracy is what this training finds, no proof of what more steps or features could.
"""

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor, nn

from asterism.bench.machine import describe
from asterism.layers import PreNormBlock, SparseAttention
from asterism.theory.approximation.limits import furthest, interactions

TOKENS = (8, 16, 32, 64)
LAYERS = (1, 2, 4)
PATTERNS = {
    "full": "dense()",
    "star-transformer": "star_transformer()",
    "window": "window(left=2, right=2)",
    "bigbird": "bigbird(block=1, window=3, random=2, globals=[0], seed=0)",
}
ALONE = "alone", "window()"
FEATURES, HIDDEN, HEADS = 16, 64, 4
STEPS, TOKENS_PER_STEP, LEARNING_RATE, TOKENS_TESTED = 600, 512, 3e-3, 8192


class Finder(nn.Module):
    """Signs [B, n, FEATURES] -> logits of the signs of each token's furthest vector, of the same shape."""

    def __init__(self, pattern: str, layers: int) -> None:
        super().__init__()
        self.embed = nn.Linear(FEATURES, HIDDEN)
        self.blocks = nn.Sequential(
            *(PreNormBlock(SparseAttention(HIDDEN, HEADS, pattern), HIDDEN, 2 * HIDDEN) for _ in range(layers))
        )
        self.norm = nn.LayerNorm(HIDDEN)
        self.answer = nn.Linear(HIDDEN, FEATURES)

    def forward(self, signs: Tensor) -> Tensor:
        return self.answer(self.norm(self.blocks(self.embed(signs))))


def draw(model: nn.Module, generator: torch.Generator) -> None:
    """Every matrix from N(0, 1 / its inputs), from a generator of its own; every bias 0. Norms keep theirs, 1 and 0."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features**-0.5, generator=generator)
            nn.init.zeros_(module.bias)


def examples(count: int, n: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Signs and answers, float [count, n, FEATURES], and which tokens have one furthest vector, bool [count, n]."""
    signs = 2 * np.random.Generator(np.random.Philox(seed)).integers(0, 2, (count, n, FEATURES)) - 1
    index, unique = furthest(signs)
    answers = np.take_along_axis(signs, index[..., None], axis=1)
    return torch.from_numpy(signs).float(), torch.from_numpy(answers).float(), torch.from_numpy(unique)


def train(pattern: str, layers: int, n: int) -> dict[str, Any]:
    """The accuracy of one trained model, on instances it has not seen, with its standard error over instances."""
    model = Finder(pattern, layers)
    draw(model, torch.Generator().manual_seed(0))
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, STEPS)
    for step in range(STEPS):
        signs, answers, unique = examples(TOKENS_PER_STEP // n, n, seed=1 + step)
        loss = F.binary_cross_entropy_with_logits(model(signs)[unique], (answers[unique] + 1) / 2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    signs, answers, unique = examples(TOKENS_TESTED // n, n, seed=0)
    with torch.no_grad():
        solved = (model(signs).sign() == answers).all(-1) & unique
    counted = unique.sum(1)
    accuracy = solved.sum().item() / counted.sum().item()
    residuals = solved.sum(1) - accuracy * counted
    error = residuals.square().sum().sqrt().item() / counted.sum().item()
    return {"accuracy": accuracy, "standard_error": error, "loss": loss.item()}


def measure(path: Path, tokens: Sequence[int]) -> None:
    """Train the models that the file lacks, and write it after each."""
    cases = [(*ALONE, 1), *((name, pattern, layers) for name, pattern in PATTERNS.items() for layers in LAYERS)]
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    have = {(row["tokens"], row["pattern"], row["layers"]) for row in rows}
    for n in tokens:
        for name, pattern, layers in cases:
            if (n, pattern, layers) in have:
                continue
            row = {"tokens": n, "name": name, "pattern": pattern, "layers": layers}
            rows.append(row | {"reach": interactions(pattern, n, layers)[-1]} | train(pattern, layers, n))
            print(*rows[-1].values(), file=sys.stderr)
            write(path, rows)


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """The file: when and where, the settings, a row per model."""
    record = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe("cpu"),
        "settings": {
            "features": FEATURES,
            "hidden_size": HIDDEN,
            "heads": HEADS,
            "steps": STEPS,
            "tokens_per_step": TOKENS_PER_STEP,
            "learning_rate": LEARNING_RATE,
            "tokens_tested": TOKENS_TESTED,
        },
        "rows": rows,
    }
    path.write_text(json.dumps(record, indent=1) + "\n")


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown: a line per pattern and depth, a column per number of tokens; reach in parentheses."""
    tokens = sorted({row["tokens"] for row in rows})
    lines = [f"| pattern | layers | {' | '.join(f'n = {n}' for n in tokens)} |", "|---" * (2 + len(tokens)) + "|"]
    cells = {(row["name"], row["layers"], row["tokens"]): row for row in rows}
    for name, layers in dict.fromkeys((row["name"], row["layers"]) for row in rows):
        shown = [cells.get((name, layers, n)) for n in tokens]
        texts = [f"{row['accuracy']:.1%} ({row['reach']:.0%})" if row else "" for row in shown]
        lines.append(f"| {name} | {layers} | {' | '.join(texts)} |")
    return "\n".join(lines)


def draw_accuracy(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """A panel per depth: accuracy against tokens with two standard errors, and reach dashed."""
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, layers in zip(figure.subplots(1, len(LAYERS), sharey=True), LAYERS, strict=True):
        for name, colour in zip(PATTERNS, ("#0072b2", "#d55e00", "#009e73", "#cc79a7"), strict=True):
            points = [row for row in rows if (row["name"], row["layers"]) == (name, layers)]
            tokens, accuracy, error, reach = (
                [row[key] for row in points] for key in ("tokens", "accuracy", "standard_error", "reach")
            )
            errors = [2 * value for value in error]
            axes.errorbar(tokens, accuracy, errors, color=colour, marker="o", markersize=4, capsize=2, label=name)
            axes.plot(tokens, reach, "--", color=colour, linewidth=1)
        axes.set_xscale("log", base=2)
        axes.set_xticks(TOKENS, [str(n) for n in TOKENS])
        axes.set_title(f"{layers} layer{'s' if layers > 1 else ''}", fontsize=10)
        axes.set_xlabel("tokens")
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("tokens solved; dashed: pairs in reach", fontsize=9)
    figure.axes[-1].legend(fontsize=8)
    figure.savefig(path, dpi=120, format="png")


def main(arguments: Sequence[str]) -> None:
    """Measure into a file, or report one."""
    if arguments[0] == "--report":
        path = Path(arguments[1])
        rows = json.loads(path.read_text())["rows"]
        print(table(rows))
        draw_accuracy(rows, path.with_suffix(".png"))
    else:
        torch.set_num_threads(1)
        measure(Path(arguments[0]), [int(text) for text in arguments[1:]] or TOKENS)


if __name__ == "__main__":
    main(sys.argv[1:])
