"""What choosing keys by content buys at equal cost: window, BigBird-like union, chosen blocks and dense attention.

    python benchmarks/search.py benchmarks/results/search.json runs/search --picture docs/images/search.svg

Models of two layers, 64 wide, are trained from scratch on the made-up tasks of `asterism search`, with three seeds.
Attention reads a quarter, or half, of the pairs of causal dense attention, which is trained next to the others. The
searches are kept in the folder, and continue where they stopped; the record and the picture are written from them.
"""

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any

from asterism.search import SearchSettings, search, table
from asterism.search.plot import draw_panel

STEPS = {"recall": 600, "needles": 400}
BUDGETS = ("flops=25%", "flops=50%")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--picture", type=Path)
    arguments = parser.parse_args()
    records: dict[str, Any] = {}
    for task, steps in STEPS.items():
        settings = SearchSettings(task=task, budgets=BUDGETS, steps=steps, candidates=3, rungs=1, seeds=3)
        records[task] = search(settings, arguments.folder / task, lambda text: print(text, flush=True))
        print(table(records[task]), flush=True)
        command = f"python benchmarks/search.py {shlex.join(sys.argv[1:])}"
        arguments.record.write_text(json.dumps({"command": command, "searches": records}, indent=1) + "\n")
    if arguments.picture:
        draw(records, arguments.picture)


def draw(records: dict[str, Any], path: Path) -> None:
    """A panel for each task."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    panels = figure.subplots(1, len(records))
    for axes, record in zip(panels, records.values(), strict=True):
        draw_panel(axes, record)
    panels[-1].legend(fontsize=8)
    figure.savefig(path)


if __name__ == "__main__":
    main()
