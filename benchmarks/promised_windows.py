"""Which windows, chunks and documents the models of transformers apply, refuse, or drop without a word.

    python benchmarks/promised_windows.py benchmarks/results/promised_windows.json [--classes MistralForCausalLM ...]

Each class is built small (`asterism.promises.small_model`) and checked by `asterism.promises.check_windows`. Without
--classes: every class of docs/reference/native.md. The file is written after every class, and classes that it has from
the same versions, on all paths, are not run again. --peers prints what the layers of local-attention read. --page
writes the table of docs/results/windows.md from the file, and runs nothing.
"""

import argparse
import json
import platform
import re
import sys
import time
import warnings
from collections import Counter
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

PAGES = Path(__file__).parents[1] / "docs"
PACKAGES = ("asterism-attention", "torch", "transformers")
ATTENTION = ("eager", "sdpa")
LONG = ("NeoMMEForMaskedLM",)
"""Left out unless named: windows of 1,024 tokens in small models, too."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--classes", nargs="+")
    parser.add_argument("--attention", nargs="+", default=ATTENTION)
    parser.add_argument("--paths", nargs="+", help="names of paths; all by default")
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--peers", action="store_true", help="check local-attention instead, if it is installed")
    arguments = parser.parse_args()
    if arguments.page:
        write_page(json.loads(arguments.output.read_text()))
        return
    versions = {name: version(name) for name in PACKAGES}
    document = json.loads(arguments.output.read_text()) if arguments.output.exists() else {}
    if document.get("versions") != versions:
        document = {"versions": versions, "python": platform.python_version(), "models": {}}
    if arguments.peers:
        print(json.dumps(_peer(), indent=1))
        return
    for name in arguments.classes or classes_of_page():
        found = document["models"].setdefault(name, {})
        for attention in arguments.attention:
            if attention not in found or (found[attention].get("selection") and not arguments.paths):
                found[attention] = _check(name, attention, arguments.paths)
                document["date"] = datetime.now(UTC).date().isoformat()
                arguments.output.write_text(json.dumps(document, indent=1) + "\n")


def _check(name: str, attention: str, paths: list[str] | None) -> dict[str, Any]:
    from asterism.errors import AsterismError
    from asterism.promises import check_windows, small_model

    start = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            report = check_windows(small_model(name).model, attention=[attention], paths=paths)
    except AsterismError as error:
        return {"error": str(error)}
    verdicts = [one._asdict() for one in report.verdicts if one.state not in ("applied", "none")]
    applied = sum(one.state == "applied" for one in report.verdicts)
    print(f"{name}, {attention}: {applied} applied, {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    for one in report.verdicts:
        if one.state in ("dropped", "undecided"):
            print(f"  {one.path}: {one.pattern}: {one.state}: {one.seen}", file=sys.stderr, flush=True)
    whole = {one.path for one in report.verdicts if one.state != "none"} - {one["path"] for one in verdicts}
    checked = len({one.path for one in report.verdicts if one.state != "none"})
    found = {"applied": len(whole), "checked": checked, "tokens": report.tokens, "others": verdicts}
    return found | ({"selection": True} if paths else {})


def _peer() -> dict[str, Any]:
    """What the layers of local-attention read, with a window of 8 and a causal model."""
    import torch
    from local_attention import LocalTransformer

    from asterism.promises import check_windows

    torch.manual_seed(0)
    sizes = dict(num_tokens=48, dim=32, depth=2, causal=True, max_seq_len=64)
    model = LocalTransformer(**sizes, local_attn_window_size=8)
    layers = [part for part in model.modules() if type(part).__name__ == "LocalMHA"]
    found: dict[str, Any] = {"version": version("local-attention")}
    for pattern in ("window(left=7)", "window(left=8)"):
        report = check_windows(model, layers=layers, patterns=[pattern] * 2, tokens=24, paths=["prefill"])
        found[pattern] = [one.state for one in report.verdicts]
    return found


def classes_of_page() -> list[str]:
    """The classes of the table of native patterns, each once."""
    rows = re.findall(r"^\| [\w.-]+ \| (\w+) \| \d x", (PAGES / "reference" / "native.md").read_text(), re.MULTILINE)
    return [name for name in dict.fromkeys(rows) if name not in LONG]


def write_page(document: dict[str, Any]) -> None:
    """Put the rows of all models into the page."""
    page = PAGES / "results" / "windows.md"
    head, _, _ = page.read_text().partition("## The table")
    rows = [
        f"| {name} | {attention} | {_applied(found)} | {_paths(found, 'refused')} | {_paths(found, 'dropped')} |\n"
        for name, engines in document["models"].items()
        for attention, found in engines.items()
    ]
    checked = [max(found.get("checked", 0) for found in engines.values()) for engines in document["models"].values()]
    counts = ", ".join(
        f"{number} on {paths}" for paths, number in sorted(Counter(checked).items(), reverse=True) if paths
    )
    some = [name for name, engines in document["models"].items() if any("selection" in one for one in engines.values())]
    if some:
        counts += f". {len(some)} of them have results of a selection of paths: {', '.join(some)}"
    packages = ", ".join(f"{name} {number}" for name, number in document["versions"].items() if "asterism" not in name)
    page.write_text(
        f"{head}## The table\n\n{len(document['models'])} classes, {packages}, {document['date']}. By the number of"
        f" paths that were checked: {counts}.\n\n"
        "| class | attention | paths applied | refused | silently dropped |\n|---|---|---|---|---|\n" + "".join(rows)
    )


def _applied(found: dict[str, Any]) -> str:
    if "error" in found:
        return "not checked: " + found["error"].replace("|", "\\|")
    return f"{found['applied']} of {found['checked']}"


def _paths(found: dict[str, Any], state: str) -> str:
    """The paths with a state; for refusals, with the first reason."""
    ones = [one for one in found.get("others", ()) if one["state"] == state]
    names = list(dict.fromkeys(one["path"] for one in ones))
    if state == "refused" and names:
        reason = ones[0]["seen"].replace("|", "\\|")
        return f"{'all' if len(names) == found['checked'] else ', '.join(names)}: {reason[:100]}"
    return ", ".join(names)


if __name__ == "__main__":
    main()
