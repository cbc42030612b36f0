"""asterism report: what runs did, as one HTML page: curves, predictions, patterns, cost, environment, data, files.

A run may be finished, stopped, or being written by another process. Several runs are compared by step, time and FLOPs,
next to the settings in which they differ. The page is one file that loads nothing. A part that cannot be read is left
out, and a sentence stands in its place.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asterism.cli.output import output_file, say, written_whole
from asterism.cli.parser import Parser, UsageError, print_json
from asterism.memory import amount
from asterism.presence import require_package
from asterism.report.chart import short
from asterism.report.compared import MOST_RUNS, describe_runs, document_of

_DEFAULT = Path("report.html")
_LARGE = 2**23
"""Bytes of a file that take about a second to read."""


def run(argv: Sequence[str]) -> None:
    arguments = _parser().parse(argv)
    if len(arguments.runs) > MOST_RUNS:
        raise UsageError(
            "too-many-runs", f"{len(arguments.runs)} runs are given, and a report compares {MOST_RUNS} at most"
        )
    require_package("Jinja2", "jinja2", "train", "a report")
    from asterism.report.page import make_page

    output = arguments.output or _free()
    for folder in arguments.runs:
        if _takes_a_while(Path(folder)):
            say(f"reading {folder}")
    runs = describe_runs(arguments.runs)
    page = make_page(runs).encode("utf-8", "replace")
    with written_whole(output) as unfinished:
        unfinished.write_bytes(page)
    if arguments.json:
        print_json({**document_of(runs), "output": str(output)})
        return
    for one in runs.values():
        print(_told(one.document, one.left_out))
        print()
    print(f"report saved in {output} ({amount(len(page), 'B')})")


def _takes_a_while(folder: Path) -> bool:
    """Whether reading a run takes more than a second or two."""
    files = [folder / "history.jsonl", folder / "predictions.jsonl"]
    return any(file.is_file() and file.stat().st_size > _LARGE for file in files)


def _free() -> Path:
    """Where a page goes that nobody named: what is there is replaced if it is a page, too. Raises UsageError."""
    from asterism.report.page import is_page

    if _DEFAULT.exists() and not is_page(_DEFAULT):
        raise UsageError(
            "output-exists",
            f"{_DEFAULT} is there already, and no report made it: name the page, --output FILE.html",
        )
    return _DEFAULT


def _told(one: Mapping[str, Any], left_out: Mapping[str, str]) -> str:
    """A run in a few lines: where it stands, its score next to its baselines, and where its files are."""
    score, cost, status = one["score"], one["cost"], one["status"]
    rows = [("state", status["text"])]
    if score["value"] is not None:
        place = f" on {score['scored']}" if score["scored"] else "" if score["is_final"] else " on the way"
        rows.append((score["label"], f"{score['value']:.4f}{place}"))
        rows += [
            (name.replace("_", " "), f"{value:.4f}")
            for name, value in score["scores"].items()
            if name != score["metric"]
        ]
    if score["baselines"]:
        rows.append(("baselines", ", ".join(f"{name} {value:.4f}" for name, value in score["baselines"].items())))
    if cost["parameters"] is not None:
        rows.append(("parameters", f"{int(cost['parameters']):,}"))
    if cost["seconds"] is not None:
        rows.append(("time", f"{cost['seconds'] / 60:,.1f} minutes"))
    if cost["flops"] is not None:
        rows.append(("FLOPs", f"{'at most ' * cost['tokens_are_at_most']}{short(cost['flops'])}, estimated"))
    rows += [(name, path) for name, path in one["files"].items() if name in ("model", "checkpoint", "predictions")]
    rows += [("next", command) for command in status["next"]]
    rows += [("note", note) for note in one["notes"]]
    rows += [("left out", sentence) for sentence in left_out.values()]
    width = max(len(name) for name, _ in rows)
    return "\n".join([one["name"], *(f"  {name:<{width}}  {text}" for name, text in rows)])


def _parser() -> Parser:
    parser = Parser("report", __doc__ or "", "asterism report runs/bytes-small --output bytes-small.html")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folders of runs")
    parser.add_argument(
        "--output",
        type=output_file(".html", ".htm"),
        metavar="FILE.html",
        help="the page, which is replaced if it is there (default: report.html in the current folder, which is replaced"
        " only if it is a report)",
    )
    return parser
