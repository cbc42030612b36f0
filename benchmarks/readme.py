"""The README's pictures, and the lines of it that hold figures: all of them from benchmarks/results.

    python benchmarks/readme.py

Writes docs/images/speed.svg, docs/images/gallery.svg, and the lines of README.md between `<!-- figures: NAME -->` and
`<!-- end of NAME -->`. Nothing is measured here. `make bench` and `python benchmarks/training_step.py` measure, and
tests/pages/test_readme.py fails where the page and the results differ.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from asterism.patterns import parse
from asterism.reproduce import EXPERIMENTS
from asterism.reproduce.kept import kept

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
IMAGES = ROOT / "docs" / "images"
GIB = 2**30

Points = dict[str, list[tuple[int, float]]]
"""For each line of a panel: tokens, and seconds or bytes."""

# --- figures ---------------------------------------------------------------------------------------------------------

PATTERN = "bigbird(block=64)"
_ATTENTION, _STEP, _DIRECTIONS = "cpu-epyc-avx512", "cpu-epyc-avx512-training-step", ("forward", "forward_backward")
ATTENTION = {
    "Asterism": "cpu",
    "PyTorch dense (SDPA)": "sdpa",
    "FlexAttention, compiled": "FlexAttention",
    "Hugging Face BigBird": "HF BigBird",
}
"""Names in the README, and those of the contenders of `asterism bench`."""
STEPS = {
    "Asterism": "Asterism, bigbird(block=64)",
    "PyTorch dense (SDPA)": "BERT, SDPA",
    "PyTorch dense (eager)": "BERT, eager",
    "Hugging Face BigBird": "Hugging Face BigBird",
}
"""Names in the README, and those of the models of training_step.py."""


def load(name: str) -> Mapping[str, Any]:
    """A record of benchmarks/results."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def attention(direction: str) -> Points:
    """Seconds of attention in float32, `forward` or `forward_backward`, by tokens."""
    rows = [
        row
        for row in load(_ATTENTION)["rows"]
        if (row["status"], row["dtype"]) == ("timed", "float32") and parse(row["pattern"]) == parse(PATTERN)
    ]
    return {
        name: [(row["length"], row[direction]["seconds"]) for row in rows if row["contender"] == of and row[direction]]
        for name, of in ATTENTION.items()
    }


def training_step(what: str) -> Points:
    """CPU `seconds` or peak `bytes` of a training step of two layers, by tokens."""
    rows = load(_STEP)["rows"]
    return {
        name: [(row["length"], row["figures"][what]) for row in rows if row["name"] == of and row["figures"]]
        for name, of in STEPS.items()
    }


def tokens_per_second() -> dict[tuple[str, int], float]:
    """Tokens a second of a Llama, by pattern and context."""
    contenders = load("cpu-epyc-avx512-decoding")["contenders"]
    return {(one["name"], one["context"]): one["tokens_per_second"] for one in contenders}


def accuracies() -> dict[str, float]:
    """Accuracy of a classifier of documents of 3,600 words, by the trial that says how many tokens it reads."""
    return {row["trial"]: row["figures"]["score of 3600 words"] for row in _documents() if "class" in row["trial"]}


def _documents() -> list[Mapping[str, Any]]:
    """The rows of `asterism reproduce long-documents`."""
    record = kept(EXPERIMENTS["long-documents"])
    assert record is not None
    return record["rows"]


def machine(name: str) -> str:
    """On what a record was measured."""
    return _described(load(name)["machine"])


def _described(on: Mapping[str, Any]) -> str:
    cores, kind = on["threads"], on["capability"].replace("AVX512", "AVX-512")
    processor = on["processor"].replace("(R)", "").removesuffix(" Processor")
    return f"{cores} core{'s' * (cores > 1)} of an {processor}, {kind}"


# --- lines of the README ---------------------------------------------------------------------------------------------


def blocks() -> dict[str, str]:
    """The lines between the markers of README.md, by name."""
    return {"picture": _picture(), "short": _short(), "claims": _claims()}


def _picture() -> str:
    """Both pictures, and what they show."""
    attention_on, step_on = machine(_ATTENTION), machine(_STEP)
    return (
        '<img src="docs/images/speed.svg" width="49%" alt="Time and memory against tokens">\n'
        '<img src="docs/images/gallery.svg" width="49%" alt="Twelve patterns: who attends to whom">\n\n'
        f"*Left: `{PATTERN}`, float32 (Hugging Face BigBird: transformers' code for it). Attention: 8 heads of 64,\n"
        f"{attention_on}. Training step: two layers of BERT base, {step_on}.\n"
        "Right: rows are queries, columns are keys.*"
    )


def _short() -> str:
    """From which length a step with the pattern is faster than one with dense attention."""
    ours, dense = (dict(training_step("seconds")[name]) for name in ("Asterism", "PyTorch dense (SDPA)"))
    slower = max(length for length in ours.keys() & dense.keys() if ours[length] >= dense[length])
    faster = min(length for length in ours.keys() & dense.keys() if length > slower)
    return (
        f"- **short sequences**: PyTorch's SDPA. The plot's training step: {ours[slower]:.1f} s at {slower:,} tokens"
        f" (SDPA {dense[slower]:.1f}), {ours[faster]:.1f} at {faster:,} (SDPA {dense[faster]:.1f})."
    )


def _claims() -> str:
    """The table of claims: each with a figure, what it is compared with, and the machine."""
    forward, both = ({name: dict(line) for name, line in attention(of).items()} for of in _DIRECTIONS)
    gib = {name: {n: f"{size / GIB:.1f}" for n, size in line} for name, line in training_step("bytes").items()}
    seconds = {name: {n: f"{time:.0f}" for n, time in line} for name, line in training_step("seconds").items()}
    pace, right = tokens_per_second(), accuracies()
    dense, flex, bigbird = "PyTorch dense (SDPA)", "FlexAttention, compiled", "Hugging Face BigBird"
    ms = {name: f"{line[16_384] * 1e3:,.0f} ms" for name, line in forward.items()}
    back = {name: f"{line[16_384] * 1e3:,.0f} ms" for name, line in both.items() if 16_384 in line}
    rows = [
        (
            f"**Fast**: `{PATTERN}` over 16,384 tokens, forward and with backward",
            f"{ms['Asterism']} and {back['Asterism']}",
            f"dense {ms[dense]} and {back[dense]}; FlexAttention {ms[flex]}, no backward;"
            f" Hugging Face BigBird {ms[bigbird]} and {back[bigbird]}",
            machine(_ATTENTION),
        ),
        (
            "**Long**: the training step of the plot, 16,384 tokens",
            f"{seconds['Asterism'][16_384]} s, {gib['Asterism'][16_384]} GiB",
            f"SDPA {seconds[dense][16_384]} s, {gib[dense][16_384]} GiB; "
            f"Hugging Face BigBird {seconds[bigbird][16_384]} s, {gib[bigbird][16_384]} GiB",
            machine(_STEP),
        ),
        _native(),
        (
            "**Whole documents**: accuracy on made-up documents of 3,600 words, four labels",
            f"{right['classify, 4,096 tokens']:.2f} read whole",
            f"{right['classify, 512 tokens']:.2f} cut to 512 tokens",
            _described(_documents()[0]["machine"]),
        ),
        (
            "**Generation**: a Llama of 8 layers, after 16,000 tokens",
            f"{pace['window(left=511)', 16_000]:.0f} tokens/s, `window(left=511)`",
            f"dense {pace['dense', 16_000]:.0f} tokens/s",
            machine("cpu-epyc-avx512-decoding"),
        ),
    ]
    heading = ("| claim | Asterism | compared with | measured on |", "|---|---|---|---|")
    return "".join(f"{line}\n" for line in (*heading, *(f"| {' | '.join(row)} |" for row in rows)))


def _native() -> tuple[str, ...]:
    """The claim of a Hugging Face model with windows of its own."""
    rows = {
        (row["model"], row["tokens"], row["step"]): row for row in load("native")["rows"] if row["dtype"] == "float32"
    }
    short, long, step = (rows["mistral", *of] for of in ((8192, "forward"), (32_768, "forward"), (8192, "training")))

    ours, theirs = ([f"{row[who]['seconds']:.0f} s" for row in (short, long, step)] for who in ("asterism", "sdpa"))
    return (
        "**Drop-in**: a Mistral of 6 layers with its own window of 512",
        f"8,192 tokens in {ours[0]}, 32,768 in {ours[1]}, a training step of 8,192 in {ours[2]}",
        f"SDPA: 8,192 in {theirs[0]}, 32,768 in {theirs[1]}, the step in {theirs[2]}",
        machine("native"),
    )


def with_figures(text: str) -> str:
    """A page with its lines between markers made anew. A name without its two markers is an error."""
    for name, block in blocks().items():
        start, end = f"<!-- figures: {name} -->\n", f"<!-- end of {name} -->"
        if (text.count(start), text.count(end)) != (1, 1):
            raise SystemExit(f"README.md needs one {start.strip()} and one {end.strip()}")
        text = re.sub(f"{start}.*?{end}", lambda _, new=f"{start}{block}{end}": new, text, flags=re.DOTALL)
    return text


# --- the plot --------------------------------------------------------------------------------------------------------

STYLES = {
    "Asterism": ("#0072b2", "o-"),
    "PyTorch dense (SDPA)": ("#d55e00", "s--"),
    "PyTorch dense (eager)": ("#7f7f7f", "D--"),
    "FlexAttention, compiled": ("#009e73", "^:"),
    "Hugging Face BigBird": ("#cc79a7", "v-."),
}


def panels() -> dict[str, Points]:
    """The lines of the plot, by the title of their panel, in the units of the title."""
    forward = {name: [(n, s * 1e3) for n, s in line] for name, line in attention("forward").items()}
    held = {name: [(n, size / GIB) for n, size in line] for name, line in training_step("bytes").items()}
    return {
        "Attention, forward: milliseconds": forward,
        "Training step: seconds of CPU time": training_step("seconds"),
        "Training step: GiB at its peak": held,
    }


def draw_speed(path: Path) -> None:
    """Write the plot as SVG. Its description holds the points, so that a test can compare them with the results."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    shown = panels()
    figure = Figure(figsize=(5.2, 7.4), layout="constrained")
    FigureCanvasSVG(figure)
    for axes, (title, lines) in zip(figure.subplots(len(shown), 1, sharex=True), shown.items(), strict=True):
        for name, points in lines.items():
            colour, style = STYLES[name]
            axes.plot(*zip(*points, strict=True), style, color=colour, label=name, markersize=4, linewidth=1.5)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_title(title, fontsize=10, loc="left")
        axes.yaxis.set_major_locator(LogLocator(subs=(1,)))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.3)
    lengths = sorted({n for lines in shown.values() for points in lines.values() for n, _ in points})
    axes.set_xticks(lengths, [f"{n:,}" for n in lengths], rotation=30)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("tokens", fontsize=9)
    handles = {line.get_label(): line for axes in figure.axes for line in axes.get_lines()}
    figure.legend([handles[name] for name in STYLES], STYLES, loc="outside upper center", ncols=2, fontsize=8)
    with matplotlib.rc_context({"svg.hashsalt": "asterism"}):
        figure.savefig(path, format="svg", metadata={"Date": None, "Description": json.dumps(shown)})


# --- the gallery -----------------------------------------------------------------------------------------------------

GALLERY = (
    "causal()",
    "window(left=7)",
    "sinks(first=4, window=8)",
    "strided(stride=8)",
    "fixed(stride=8, summary=2)",
    "longformer(window=8)",
    "bigbird(block=2, random=1)",
    "star_transformer()",
    "window(2, 2, dilation=4)",
    "grid(width=8, radius=1)",
    "documents(causal(), 12, 20)",
    "(blocks(8) | global_keys(0)) & causal()",
)
TOKENS, CELL, COLUMNS = 32, 4.5, 3
GAP, TITLE = 18, 34


def gallery(texts: Sequence[str] = GALLERY) -> str:
    """An SVG with a panel for each pattern: a row is a query, a column a key, dark where the query reads the key."""
    side = TOKENS * CELL
    width, height = COLUMNS * (side + GAP) + GAP, -(-len(texts) // COLUMNS) * (side + TITLE) + GAP
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" font-family="monospace">',
        "<title>Twelve patterns, 32 tokens: rows are queries, columns are keys</title>",
        f'<rect width="{width:g}" height="{height:g}" fill="#ffffff"/>',
    ]
    for number, text in enumerate(texts):
        down, across = divmod(number, COLUMNS)
        left, top = GAP + across * (side + GAP), TITLE + down * (side + TITLE)
        lines += [f'<g transform="translate({left:g} {top:g})">', *_panel(text), "</g>"]
    return "\n".join([*lines, "</svg>\n"])


def _panel(text: str) -> list[str]:
    """The title of a pattern, a frame, and a line for each run of keys."""
    side = TOKENS * CELL
    first, *others = text.split(" & ")
    title = [first, *(f"& {other}" for other in others)]
    lines = [
        f'<text x="0" y="{-5 - 10 * (len(title) - 1 - place)}" font-size="9" fill="#222222">{escape(line)}</text>'
        for place, line in enumerate(title)
    ]
    lines.append(f'<rect width="{side:g}" height="{side:g}" fill="#eef2f6"/>')
    runs = []
    for row, keys in enumerate(parse(text).dense(TOKENS)[0].tolist()):
        edges = [key for key in range(TOKENS + 1) if (keys + [False])[key] != ([False] + keys)[key]]
        runs += [
            f"M{start * CELL:g} {row * CELL:g}h{(stop - start) * CELL:g}v{CELL:g}H{start * CELL:g}z"
            for start, stop in zip(edges[::2], edges[1::2], strict=True)
        ]
    return [*lines, f'<path fill="#0b3d6b" d="{"".join(runs)}"/>']


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    draw_speed(IMAGES / "speed.svg")
    (IMAGES / "gallery.svg").write_text(gallery())
    page = ROOT / "README.md"
    page.write_text(with_figures(page.read_text()))


if __name__ == "__main__":
    main()
