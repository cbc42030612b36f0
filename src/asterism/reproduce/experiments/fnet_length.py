"""Lee-Thorp 2021, the efficiency on Long Range Arena: seconds and memory of a training step by length."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from asterism.reproduce.experiment import Experiment, Finding, Results, Scale, Table, decided
from asterism.reproduce.step import SHAPE, training_step
from asterism.reproduce.trials import Computation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LENGTHS = (512, 1024, 2048, 4096, 8192)
FNET, HYBRID, BERT, PAIRS = "FNet", "hybrid", "BERT", "BERT, all pairs in memory"
MODELS = {
    FNET: ("fourier()", "auto"),
    HYBRID: ("interleave(fourier(), dense())", "auto"),
    BERT: ("dense()", "auto"),
    PAIRS: ("dense()", "reference"),
}
"""Mixers, and what computes attention: the kernel for this machine, or the definition with all pairs at once."""
MOST_PAIRS = 4096
"""The longest row of which all pairs are held; twice that takes four times the memory, about 9 GB."""
PUBLISHED = {FNET: (0.8, 1.3, 2.2, 3.9, 7.4), PAIRS: (1.6, 4.0, 12.2, None, None)}
"""Peak GB of a GPU with 16 GB, by length; None did not fit."""


def _name(model: str, length: int) -> str:
    return f"{model}, {length:,} tokens"


def trials(scale: Scale) -> Sequence[Computation]:
    """Every model at every length that it is measured at."""
    return [
        Computation(
            name=_name(model, length),
            seed=0,
            compute=training_step,
            arguments={"mixers": mixers, "implementation": implementation, "length": length},
        )
        for length in LENGTHS
        for model, (mixers, implementation) in MODELS.items()
        if model != PAIRS or length <= MOST_PAIRS
    ]


def _values(results: Results, model: str, figure: str) -> dict[int, float | None]:
    return {length: results.mean(_name(model, length), figure) for length in LENGTHS}


def table(results: Results) -> Table:
    """Seconds and megabytes by length, and the paper's gigabytes."""
    rows = []
    for model in MODELS:
        cells = []
        for length in LENGTHS:
            seconds, size = (results.mean(_name(model, length), figure) for figure in ("seconds", "bytes"))
            cells.append("-" if seconds is None or size is None else f"{seconds:.2f} s, {size / 1e6:,.0f} MB")
        rows.append((model, *cells))
    for model, sizes in PUBLISHED.items():
        name = "FNet, in the paper, not verified" if model == FNET else "Transformer, in the paper, not verified"
        rows.append((name, *("out of memory" if size is None else f"{size} GB" for size in sizes)))
    return Table(("model", *(f"{length:,} tokens" for length in LENGTHS)), rows)


def findings(results: Results) -> Sequence[Finding]:
    """FNet against BERT: time, memory, and how both grow."""
    times = {model: _values(results, model, "seconds") for model in MODELS}
    sizes = {
        model: {at: None if size is None else size / 1e6 for at, size in _values(results, model, "bytes").items()}
        for model in MODELS
    }
    half, whole = MOST_PAIRS // 2, MOST_PAIRS
    return [
        decided(
            "FNet trains faster than the hybrid, and the hybrid than BERT, at every length",
            {f"{model} {length}": times[model][length] for model in (FNET, HYBRID, BERT) for length in LENGTHS},
            lambda of: all(
                of[f"{FNET} {length}"] < of[f"{HYBRID} {length}"] < of[f"{BERT} {length}"] for length in LENGTHS
            ),
            f"The hybrid's time as a multiple of FNet's: {_ratios(times[HYBRID], times[FNET])}.",
        ),
        decided(
            "FNet trains faster than BERT, the more so the longer the text",
            {f"{model} {length}": times[model][length] for model in (FNET, BERT) for length in LENGTHS},
            lambda of: _rises([of[f"BERT {length}"] / of[f"FNet {length}"] for length in LENGTHS]),
            f"BERT's time as a multiple of FNet's: {_ratios(times[BERT], times[FNET])}.",
        ),
        decided(
            "FNet takes less than half the memory of attention that holds all pairs",
            {f"{model} {length}": sizes[model][length] for model in (FNET, PAIRS) for length in LENGTHS[:4]},
            lambda of: all(of[f"FNet {length}"] < of[f"{PAIRS} {length}"] / 2 for length in LENGTHS[:4]),
            f"MB with {LENGTHS[0]:,} tokens: {{FNet {LENGTHS[0]}:,.0f}} and {{{PAIRS} {LENGTHS[0]}:,.0f}}; with"
            f" {whole:,}: {{FNet {whole}:,.0f}} and {{{PAIRS} {whole}:,.0f}}.",
        ),
        decided(
            "with twice the tokens, FNet takes twice the memory, and attention that holds all pairs four times",
            {f"{model} {length}": sizes[model][length] for model in (FNET, PAIRS) for length in (half, whole)},
            lambda of: (
                of[f"FNet {whole}"] < 2.5 * of[f"FNet {half}"] and of[f"{PAIRS} {whole}"] > 3.5 * of[f"{PAIRS} {half}"]
            ),
            f"MB from {half:,} to {whole:,} tokens: FNet {{FNet {half}:,.0f}} to {{FNet {whole}:,.0f}}, all pairs"
            f" {{{PAIRS} {half}:,.0f}} to {{{PAIRS} {whole}:,.0f}}.",
        ),
        decided(
            "ours: attention by the kernel of this library takes at most twice FNet's memory, at every length",
            {f"{model} {length}": sizes[model][length] for model in (FNET, BERT) for length in LENGTHS},
            lambda of: all(of[f"BERT {length}"] <= 2 * of[f"FNet {length}"] for length in LENGTHS),
            f"So many times FNet's memory: {_ratios(sizes[BERT], sizes[FNET])}.",
        ),
    ]


def _ratios(ours: Mapping[int, float | None], theirs: Mapping[int, float | None]) -> str:
    """Of what was measured, by length."""
    known = [(one, other) for length, one in ours.items() if one is not None and (other := theirs[length]) is not None]
    return ", ".join(f"{one / other:.1f}" for one, other in known)


def _rises(ratios: Sequence[float]) -> bool:
    return ratios[0] > 1 and all(a < b for a, b in pairwise(ratios))


def draw(results: Results) -> "Figure":
    """Seconds and bytes of a step against length."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 3.4), layout="constrained")
    for axes, (name, label, unit) in zip(
        figure.subplots(1, 2), (("seconds", "seconds of a step", 1.0), ("bytes", "peak MB of a step", 1e6)), strict=True
    ):
        for number, model in enumerate(MODELS):
            known = {at: value / unit for at, value in _values(results, model, name).items() if value is not None}
            axes.plot(list(known), list(known.values()), "o-", color=f"C{number}", label=model)
        axes.set_xscale("log", base=2)
        if any(line.get_xdata().size for line in axes.lines):  # of nothing there is no logarithm
            axes.set_yscale("log")
        axes.set_xticks(LENGTHS, [f"{length:,}" for length in LENGTHS])
        axes.set(xlabel="tokens", ylabel=label)
        axes.grid(alpha=0.3)
    axes.legend(fontsize=8, frameon=False)
    return figure


FNET_LENGTH = Experiment(
    name="fnet-length",
    paper="lee-thorp-2021",
    place="Speed and memory by length",
    question="How much time and memory do Fourier transforms save in place of attention, by the length of the text?",
    setting={
        "laptop": f"One training step, forward and backward, of encoders of two layers, {SHAPE['hidden_size']} wide"
        " with four heads, with one row of text in float32. Memory is the peak beyond what a first short step left.",
    },
    trials=trials,
    table=table,
    findings=findings,
    draw=draw,
    published=dict,
    caveats=(
        "The paper measures a GPU of 16 GB on the text task of Long Range Arena, with the batches of that task; here it"
        " is one row on a CPU. With 512 tokens of pretraining FNet is 1.8 times as fast as BERT there, and the hybrid"
        " 1.5 times. Its figures are from summaries, and which table has them is not verified.",
        f"Attention that holds all pairs is not measured with {2 * MOST_PAIRS:,} tokens, where it takes about 9 GB.",
        "Every second layer of the hybrid is attention; in the paper, the last 2 of 12 are.",
        "The last claim is ours: attention need not hold all pairs, so most of what the paper saves in memory is saved"
        " by the kernel, too.",
    ),
)
