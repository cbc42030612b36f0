"""Yun 2020, section 2.6: after how many layers does every token depend on every token?"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from asterism.reproduce.experiment import Experiment, Figures, Finding, Results, Scale, Table, decided
from asterism.reproduce.trials import Computation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LENGTH, MOST = 256, 16
"""Tokens, and the layers whose share of pairs is kept."""

_NEAR, _FAR = "window(left=8, right=8)", "stride(period=16)"
_BLOCK, _LAST = "blocks(size={w})", "window() | columns(period={w}, first={last}, count=1)"
PATTERNS = {
    "star": ("yun_star()", 2),
    "fixed": (f"interleave({_BLOCK}, {_LAST})".format(w=16, last=15), 2),
    "fixed, w = 15": (f"interleave({_BLOCK}, {_LAST})".format(w=15, last=14), 2),
    "fixed, other order": (f"interleave({_LAST}, {_BLOCK})".format(w=16, last=15), None),
    "strided": (f"interleave({_NEAR}, {_FAR})", 2),
    "strided, window of 16": (f"interleave(window(left=16, right=16), {_FAR})", None),
    "window": ("yun_window(16)", 32),
    "bare star": ("star()", None),
}
"""A pattern with w = 16 unless it says otherwise, and the s of the paper, if it gives one (ceil((n - 1) / floor(w / 2))
of a window)."""


def trials(scale: Scale) -> Sequence[Computation]:
    """A certificate of every pattern."""
    return [
        Computation(name=name, seed=0, compute=_certify, arguments={"pattern": pattern, "length": LENGTH})
        for name, (pattern, _) in PATTERNS.items()
    ]


def _certify(pattern: str, length: int, seed: int) -> Figures:
    from asterism.theory import certify

    found = certify(pattern, length)
    found.check()
    fractions = found.reach.fractions
    figures = {f"pairs after {layers}": fractions[min(layers, len(fractions)) - 1] for layers in range(1, MOST + 1)}
    return figures | {"layers": float(found.hops or 0), "covered": float(bool(found.yun))}


def table(results: Results) -> Table:
    """Layers, pairs after two, and whether the theorem covers the pattern."""
    rows = []
    for name, (pattern, published) in PATTERNS.items():
        layers, covered = results.mean(name, "layers"), results.mean(name, "covered")
        pairs = results.mean(name, "pairs after 2")
        rows.append(
            (
                name,
                f"`{pattern}`",
                "-" if published is None else str(published),
                "-" if layers is None else f"{layers:.0f}" if layers else "never",
                "-" if pairs is None else f"{pairs:.1%}",
                "-" if covered is None else "yes" if covered else "no",
            )
        )
    headings = (
        "pattern",
        "written",
        "s in the paper, not verified",
        "s here",
        "pairs after two layers",
        "Theorem 1 covers it",
    )
    return Table(headings, rows)


def findings(results: Results) -> Sequence[Finding]:
    """The claims about s, and what Assumption 1 needs."""
    layers = {name: results.mean(name, "layers") for name in PATTERNS}
    covered = {name: results.mean(name, "covered") for name in PATTERNS}

    def said(name: str) -> str:
        return f"s = {layers[name]:.0f}." if layers[name] else "Never."

    def claim(text: str, name: str, expected: int, note: str = "") -> Finding:
        return decided(text, {name: layers[name]}, lambda of: of[name] == expected, f"{said(name)}{note}")

    return [
        claim("two layers of star connect all", "star", 2),
        claim("two layers of fixed connect all", "fixed", 2, " The layers must come in this order, else s = 3."),
        claim(
            "two layers of fixed connect all for any width w",
            "fixed, w = 15",
            2,
            " 15 does not divide 256, and nobody reads the tokens behind the last whole block.",
        ),
        claim(
            "two layers of strided connect all",
            "strided",
            2,
            " At both ends there is no token of the right residue within half a window. A window of w tokens on each"
            " side, twice that of the paper, gives 2.",
        ),
        claim("a window needs ceil((n - 1) / floor(w / 2)) layers", "window", 32),
        decided(
            "the theorem covers star, fixed, strided and window",
            {name: covered[name] for name in ("star", "fixed", "strided", "window", "bare star")},
            lambda of: min(of["star"], of["fixed"], of["strided"], of["window"]) == 1 and of["bare star"] == 0,
            "All four, with w = 16. Not so the bare star, a hub without the ring, by which BigBird's proof goes: it has"
            " no Hamiltonian path, which this theorem asks for.",
        ),
    ]


def draw(results: Results) -> "Figure":
    """The share of pairs that do not depend on each other yet, against layers."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 3.4), layout="constrained")
    axes = figure.subplots()
    for number, name in enumerate(PATTERNS):
        shares = {at: results.mean(name, f"pairs after {at}") for at in range(1, MOST + 1)}
        some = {at: 100 * (1 - share) for at, share in shares.items() if share is not None}
        size = 2 * (len(PATTERNS) - number) + 2  # rings inside one another, where curves have the same values
        axes.plot(
            list(some), list(some.values()), "o-", linewidth=1, markersize=size, markerfacecolor="none", label=name
        )
    axes.set_yscale("symlog", linthresh=0.1)
    axes.set(xlabel="layers", ylabel="pairs not connected yet, %", xticks=range(1, MOST + 1), ylim=(-0.03, 200))
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right center", fontsize=8, frameon=False, labelspacing=1.0)
    return figure


REACH = Experiment(
    name="reach",
    paper="yun-2020",
    place="Section 2.6",
    question="After how many layers (s in the paper) does each of 256 tokens depend on all of them?",
    setting={"laptop": "Certificates of every pattern, each checked against its rule."},
    trials=trials,
    table=table,
    findings=findings,
    draw=draw,
    published=dict,
    caveats=(
        "The paper's text was not at hand: its definitions are from memory. So a claim that fails may be misstated"
        " here. What follows from the definitions was found by executing them.",
    ),
    tried=(
        "Fixed: of the widths from 2 to 32, s = 2 holds for 2, 4, 8, 16 and 32 alone, at 64 and at 256 tokens.",
        "Strided: s = 3 for each w from 4 to 32 at 256 tokens; with a window of w on each side s = 2 for each of them.",
    ),
)
