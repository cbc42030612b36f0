"""The picture of a certificate: which pairs are connected after how many layers."""

from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import BoundaryNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from asterism.theory.certificates.reach import first_layers
from asterism.theory.certificates.universality import Certificate

CELLS = 256
"""The most cells along a side; longer sequences are shown in cells of several tokens."""

_COLOURS = 256


def draw_reach(certificate: Certificate, path: Path) -> None:
    """Write a PNG or SVG, by the suffix of `path`: the layer at which each pair is connected, and the share by layer.

    A cell of several tokens has the colour of the layer after which all of its pairs are connected.
    """
    reach, n = certificate.reach, certificate.n
    layers = max(reach.layers, 1)
    figure = Figure(figsize=(11, 5), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(_title(certificate), fontsize=10)
    map_axes, curve_axes = figure.subplots(1, 2)
    connected = first_layers(certificate.graphs, CELLS, layers)
    edges = np.linspace(0.5, layers + 0.5, min(layers, _COLOURS) + 1)
    shown = map_axes.imshow(
        np.ma.masked_equal(connected, 0),
        cmap=colormaps["viridis_r"].with_extremes(bad="0.85"),
        norm=BoundaryNorm(edges, _COLOURS),
        extent=(0, n, n, 0),
        interpolation="nearest",
    )
    map_axes.set(xlabel="key", ylabel="query")
    map_axes.set_title(
        "layer after which the query depends on the key" + "; grey: none" * bool((connected == 0).any()), fontsize=9
    )
    bar = figure.colorbar(shown, ax=map_axes, ticks=MaxNLocator(integer=True), format="%d", shrink=0.8)
    bar.minorticks_off()
    shares = [1 / n, *reach.fractions]
    curve_axes.plot(range(len(shares)), shares, "o-" if layers <= 40 else "-", markersize=4)
    curve_axes.set(xlabel="layers", ylabel="share of pairs connected", ylim=(0, 1.03))
    curve_axes.set_title(_ending(certificate), fontsize=9)
    curve_axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    curve_axes.grid(alpha=0.3)
    figure.savefig(path, dpi=130)


def _title(certificate: Certificate) -> str:
    words = {True: "yes", False: "no", None: "not decided"}
    text = str(certificate.schedule)
    text = text if len(text) <= 110 else f"{text[:107]}..."
    return (
        f"{text}, {certificate.n:,} tokens\n"
        f"star: {words[certificate.star]}    Yun's Assumption 1: {words[certificate.yun]}"
    )


def _ending(certificate: Certificate) -> str:
    reach = certificate.reach
    if reach.hops is not None:
        return f"all pairs after {reach.hops:,} layer{'s' * (reach.hops > 1)}"
    if reach.never is not None:
        return f"never all pairs: {reach.never.query} does not depend on {reach.never.key}"
    return "never all pairs at once" if reach.repeats else "not decided"
