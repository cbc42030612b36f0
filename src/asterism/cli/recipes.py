"""asterism recipes: list the recipes of `asterism train`: name, parameters, the paper it follows, description.

Recipes marked with * also have published settings for `asterism finetune --recipe`. `asterism train --recipe NAME
--dry-run` prints the cost of a recipe on this machine.
"""

import re
import shutil
import sys
from collections.abc import Sequence
from inspect import getdoc
from typing import Any

from asterism.cli.parser import Parser, print_json
from asterism.training.recipes import FINE_TUNING, RECIPES
from asterism.training.recipes.sizes import PARAMETERS

_PAPER = re.compile(r" \((\w[\w-]+ (?:19|20)\d\d(?:, [^()]*)?)\)")
_SIZE = re.compile(r", \d+M parameters\b")


def run(argv: Sequence[str]) -> None:
    arguments = _parser().parse(argv)
    rows = [_row(name) for name in RECIPES]
    if arguments.json:
        print_json({"recipes": rows})
        return
    names = [row["name"] + "*" * row["fine_tuning"] for row in rows]
    papers = [(row["paper"] or "").partition(",")[0] for row in rows]
    for name, paper, row in zip(names, papers, rows, strict=True):
        line = f"{name:<{max(map(len, names))}}  {_millions(row['parameters']):>5}  {paper:<{max(map(len, papers))}}  "
        print(_fitted(line + row["description"]))


def _row(name: str) -> dict[str, Any]:
    """What a recipe is, from the summary line of its function."""
    summary = " ".join((getdoc(RECIPES[name]) or "").split("\n\n")[0].split())
    paper = _PAPER.search(summary)
    return {
        "name": name,
        "description": _SIZE.sub("", _PAPER.sub("", summary)).rstrip("."),
        "parameters": PARAMETERS[name],
        "paper": paper[1] if paper else None,
        "fine_tuning": name in FINE_TUNING,
    }


def _millions(parameters: int) -> str:
    """A number of parameters, such as 1.8M or 110M."""
    millions = parameters / 1e6
    return f"{millions:.0f}M" if millions >= 10 else f"{millions:.1f}M"


def _fitted(line: str) -> str:
    """The line, cut where a terminal would break it; files and pipes get all of it."""
    width = shutil.get_terminal_size().columns
    return line if len(line) <= width or not sys.stdout.isatty() else f"{line[: width - 3].rstrip()}..."


def _parser() -> Parser:
    return Parser("recipes", __doc__ or "", "asterism recipes")
