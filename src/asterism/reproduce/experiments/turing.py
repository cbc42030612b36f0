"""Zaheer 2020, appendix B: a decoder whose tokens read two each runs Turing machines, as one with all keys does."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from asterism.reproduce.experiment import Experiment, Figures, Finding, Results, Scale, Table, decided
from asterism.reproduce.trials import Computation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RUNS = (("palindromes", "0110"), ("copy", "abba"), ("increment", "1011"), ("anbn", "aabb"), ("beaver3", ""))
"""Machines of the library, and words."""
ATTENTION = ("full", "sparse")
STEPS = 60
SHOWN = {
    "layers": "decoder layers",
    "steps": "steps",
    "tokens": "tokens",
    "degree": "most keys of a token",
    "products": "products of a query and a key",
}
"""The columns of figures, by the name of the figure."""


def _name(machine: str, attention: str) -> str:
    return f"{machine}, {attention}"


def trials(scale: Scale) -> Sequence[Computation]:
    """Every machine with both decoders."""
    return [
        Computation(
            name=_name(machine, attention),
            seed=0,
            compute=_simulate,
            arguments={"machine": machine, "word": word, "attention": attention},
        )
        for machine, word in RUNS
        for attention in ATTENTION
    ]


def _simulate(machine: str, word: str, attention: str, seed: int) -> Figures:
    from asterism.theory import simulate

    found = simulate(machine, word, attention=attention, steps=STEPS)  # raises if a step is not the interpreter's
    run = found.run
    counts = {
        "layers": len(run.construction.transformer.layers),
        "steps": len(found.steps) - 1,
        "tokens": run.tokens,
        "products": run.products,
        "degree": run.degree,
    }
    return {name: float(count) for name, count in counts.items()}


def table(results: Results) -> Table:
    """What each decoder takes for the same steps."""
    rows = []
    for machine, word in RUNS:
        for attention in ATTENTION:
            name = _name(machine, attention)
            counts = [results.shown(name, figure, ",.0f") for figure in SHOWN]
            rows.append((f"{machine} {word}".strip(), attention, *counts))
    return Table(("machine and word", "attention", *SHOWN.values()), rows)


def findings(results: Results) -> Sequence[Finding]:
    """Both constructions run, and what the sparse one costs."""
    every = {_name(m, a): results.mean(_name(m, a), "steps") for m, _ in RUNS for a in ATTENTION}
    degrees = {m: results.mean(_name(m, "sparse"), "degree") for m, _ in RUNS}
    tokens = {m: results.mean(_name(m, "sparse"), "tokens") for m, _ in RUNS}
    last = RUNS[0][0]

    def triangular(of: object) -> bool:
        pairs = [(every[_name(m, "sparse")] or 0.0, tokens[m]) for m, _ in RUNS]
        return all(found == steps * (steps + 1) / 2 for steps, found in pairs)

    return [
        decided(
            "transformers with full and with sparse attention run every machine",
            every,
            lambda of: min(of.values()) > 0,
            f"In exact arithmetic all {len(every)} runs agree with an interpreter at every step, after the corrections"
            " above.",
        ),
        decided(
            "a token of the sparse decoder reads at most two",
            degrees,
            lambda of: max(of.values()) <= 2,
            f"At most {max((found or 0 for found in degrees.values()), default=0):.0f} in all machines.",
        ),
        decided(
            "T steps take T (T + 1) / 2 tokens of the sparse decoder",
            tokens,
            triangular,
            f"{every[_name(last, 'sparse')] or 0:.0f} steps of {last} take {{{last}:,.0f}} tokens.",
        ),
    ]


def draw(results: Results) -> "Figure":
    """Products of queries and keys against steps, of both decoders."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.4), layout="constrained")
    axes = figure.subplots()
    for attention, mark in zip(ATTENTION, "os", strict=True):
        names = [_name(machine, attention) for machine, _ in RUNS]
        points = [(results.mean(name, "steps"), results.mean(name, "products")) for name in names]
        some = sorted((x, y) for x, y in points if x is not None and y is not None)
        axes.plot([x for x, _ in some], [y for _, y in some], mark, label=f"{attention} attention")
    axes.set(xlabel="steps of the machine", ylabel="products of queries and keys", yscale="log")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return figure


TURING = Experiment(
    name="turing",
    paper="zaheer-2020",
    place="Appendix B",
    question="Does a decoder that reads two tokens per token run Turing machines?",
    setting={"laptop": f"Five machines for at most {STEPS} steps each, in exact arithmetic."},
    trials=trials,
    table=table,
    findings=findings,
    draw=draw,
    published=dict,
    caveats=(
        "The printed construction does not run. A sign of its keys, the numbering of its tokens, the edges of compute"
        " tokens and a test of its last layer are corrected.",
        "The sparse decoder needs more products than the full one, not fewer: step t, counted from 1, takes t tokens.",
    ),
)
