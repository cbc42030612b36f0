"""Yun 2020, Figure 1: language modelling by pattern, by how its two parts are arranged, and by keys per query."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from asterism.reproduce.experiment import Experiment, Finding, Results, Scale, Table, decided
from asterism.reproduce.experiments.copy_task import HEADS, LENGTH, patterns
from asterism.reproduce.trials import Training, counted_run
from asterism.search.budget import keys_read
from asterism.training.settings.configuration import RunConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTHS = {16: 24, 32: 36, 64: 66}
"""The w of strided and fixed, and the keys that star and random read at most, about as many as strided union."""
KINDS = tuple(patterns(16, 24))
BITS = "validation_bits_per_byte"
DENSE = "dense"
SIZES = {"laptop": (64, 4, 900), "workstation": (512, 12, 20_000)}
"""Width, layers and steps. That of a workstation has the depth of the paper."""


def _name(kind: str, width: int) -> str:
    return f"{kind}, w = {width}"


def _mixers(kind: str, width: int) -> str:
    return patterns(width, WIDTHS[width])[kind]


def _keys(mixers: str) -> float:
    """Keys per query, the mean over two layers, which take turns at the parts of a schedule."""
    return keys_read(mixers, LENGTH, 2)


def trials(scale: Scale) -> Sequence[Training]:
    """Every pattern at every width, and dense attention."""
    schedules = {DENSE: "causal()"} | {_name(kind, width): _mixers(kind, width) for width in WIDTHS for kind in KINDS}
    width, layers, steps = SIZES.get(scale, SIZES["workstation"])
    return [
        Training(
            name=name,
            seed=seed,
            config=text_config(mixers, width=width, layers=layers, steps=steps),
            reported=(BITS,),
        )
        for seed in range(1 if scale == "laptop" else 3)
        for name, mixers in schedules.items()
    ]


def text_config(mixers: str, *, width: int, layers: int, steps: int) -> RunConfig:
    """A run that learns Python's standard library, in windows of 256 bytes."""
    return counted_run(
        "bytes-small",
        {"mixers": mixers, "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": HEADS},
        steps,
        context=LENGTH,
        batch_size=16,
        evaluation_every=steps,
        report_bytes=2**18,
    )


def _published() -> RunConfig:
    width, layers, steps = SIZES["workstation"]
    return text_config(_mixers("strided, union", 16), width=width, layers=layers, steps=steps)


def table(results: Results) -> Table:
    """Bits per byte by pattern and width, and keys per query."""
    rows = [(DENSE, *[results.shown(DENSE, BITS)] * len(WIDTHS), f"{_keys('causal()'):.0f}")]
    for kind in KINDS:
        keys = ", ".join(f"{_keys(_mixers(kind, width)):.0f}" for width in WIDTHS)
        rows.append((kind, *(results.shown(_name(kind, width), BITS) for width in WIDTHS), keys))
    return Table(("pattern", *(f"bits per byte, w = {width}" for width in WIDTHS), "keys per query"), rows)


def findings(results: Results) -> Sequence[Finding]:
    """What the paper reads from its figure."""
    bits = {_name(kind, width): results.mean(_name(kind, width), BITS) for width in WIDTHS for kind in KINDS}
    others = [kind for kind in KINDS if kind != "random"]

    def best(of: Mapping[str, float], width: int) -> str:
        return min(KINDS, key=lambda kind: of[_name(kind, width)])

    return [
        decided(
            "random is worse than every other pattern, at every sparsity",
            bits,
            lambda of: all(of[_name("random", w)] > max(of[_name(kind, w)] for kind in others) for w in WIDTHS),
            "Random {random, w = 16:.3f}, {random, w = 32:.3f}, {random, w = 64:.3f}; the worst of the others at w = 64"
            f" {_worst(results, others, 64)}.",
        ),
        decided(
            "the best is strided or star, at every sparsity",
            bits,
            lambda of: all(best(of, width).startswith(("strided", "star")) for width in WIDTHS),
            "Star {star, w = 16:.3f}, {star, w = 32:.3f}, {star, w = 64:.3f}; strided union"
            " {strided, union, w = 16:.3f}, {strided, union, w = 32:.3f}, {strided, union, w = 64:.3f}.",
        ),
        decided(
            "ours: every pattern predicts better at w = 64 than at w = 16",
            bits,
            lambda of: all(of[_name(kind, 16)] > of[_name(kind, 64)] for kind in KINDS),
            "From w = 16 to w = 64: strided union {strided, union, w = 16:.3f} to {strided, union, w = 64:.3f}, strided"
            " sequential {strided, sequential, w = 16:.3f} to {strided, sequential, w = 64:.3f}, random"
            " {random, w = 16:.3f} to {random, w = 64:.3f}.",
        ),
    ]


def _worst(results: Results, kinds: Sequence[str], width: int) -> str:
    known = [(results.mean(_name(kind, width), BITS) or 0.0, kind) for kind in kinds]
    return f"{max(known)[0]:.3f} ({max(known)[1]})"


def draw(results: Results) -> "Figure":
    """Bits per byte against keys per query."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 3.8), layout="constrained")
    axes = figure.subplots()
    for number, kind in enumerate(KINDS):
        known = {width: results.mean(_name(kind, width), BITS) for width in WIDTHS}
        some = {_keys(_mixers(kind, width)): value for width, value in known.items() if value is not None}
        axes.plot(list(some), list(some.values()), marker="o", color=f"C{number}", label=kind)
    if (dense := results.mean(DENSE, BITS)) is not None:
        axes.axhline(dense, color="0.3", linestyle=":", label=f"dense, {_keys('causal()'):.0f} keys")
    axes.set(xlabel="keys per query", ylabel="bits per byte")
    axes.grid(alpha=0.3)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right center", fontsize=8, frameon=False)
    return figure


LANGUAGE = Experiment(
    name="language",
    paper="yun-2020",
    place="Figure 1",
    question="Which sparse patterns predict text best, and how many keys do they read?",
    setting={
        "laptop": "Models of 4 layers, 64 wide with 4 heads, learn from 900 steps of 16 x 256 bytes of Python's"
        " standard library.",
        "workstation": "Models of 12 layers, 512 wide with 4 heads, learn from 20,000 steps of 16 x 256 bytes of"
        " Python's standard library.",
    },
    trials=trials,
    table=table,
    findings=findings,
    draw=draw,
    published=lambda: {_name("strided, union", 16): (_published(), None)},
    tried=(
        "A third of the steps: dense attention had 2.78 bits per byte, behind all patterns but random, and fewer keys"
        " were better for every regular pattern. So short runs reward few and near keys. Now only strided sequential is"
        " worse at w = 64 than at w = 16.",
        "Another seed of strided sequential: 1.669 at w = 16 and 1.697 at w = 64. A likely cause: half of its layers"
        " read only places w apart.",
    ),
    caveats=(
        "The paper's figure has curves without numbers, of words of the One Billion Word benchmark; its text was not at"
        " hand, and its claims are from summaries. Here the text is the bytes of Python's standard library.",
        "Of its other tasks, `translation` and `sentence-pairs` are experiments of their own.",
    ),
)
