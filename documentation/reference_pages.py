"""Writes the pages of docs/reference that the code dictates: verbs, settings, error codes, the gallery of patterns.

    python documentation/reference_pages.py     writes them; `make reference` does the same

The pages are committed, so that they are read on GitHub as well and every builder of the site takes them as they are.
A test compares them with the code.
"""

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, Field, fields
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin
from unittest import mock

from error_codes import error_codes
from pattern_pictures import gallery, pictures

from asterism.cli.main import VERBS, main
from asterism.shape import ModelConfig
from asterism.training.settings.configuration import FineTuneConfig, RunConfig, TrainingConfig

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"

WRITTEN = "This page is written by `make reference`.\n"

_CONFIGURED = {kind.kind: {one.name for one in fields(kind)} for kind in (RunConfig, FineTuneConfig)}
"""The settings that are flags of a verb; a page of its own lists them."""

_SETTINGS = {RunConfig.kind: "training-a-model", FineTuneConfig.kind: "fine-tuning"}
"""Where that page lists them."""

_NEEDS_NOTHING = ("show", "plan", "certify", "simulate")
"""Verbs whose examples run anywhere."""


def pages() -> dict[Path, str]:
    """The text of every file that is written, by its path."""
    drawn = {REFERENCE / "pictures" / f"{name}.svg": text for name, text in pictures().items()}
    return {
        REFERENCE / "verbs.md": verbs(),
        REFERENCE / "settings.md": settings(),
        REFERENCE / "error-codes.md": error_codes(),
        REFERENCE / "gallery.md": gallery(),
        **drawn,
    }


# --- verbs -----------------------------------------------------------------------------------------------------------


def verbs() -> str:
    """The page of verbs, from their --help."""
    lines = [
        "# Verbs\n",
        "`asterism VERB ...` does everything that the library does from a shell. Results go to stdout, progress to"
        " stderr. Every verb takes `--json`, which prints one JSON document instead of text, and `--help`. A command"
        " ends with one of these [exit codes](errors.md#exit-codes).\n",
        WRITTEN,
        "| verb | purpose |\n|---|---|",
        *(f"| [`{verb}`](#{verb}) | {_cell(purpose)} |" for verb, purpose in VERBS.items()),
        "",
    ]
    for verb in VERBS:
        lines += [f"## {verb}\n", *_section(verb)]
    return "\n".join(lines)


def _section(verb: str) -> list[str]:
    """What --help prints: as tables where argparse prints it, else as the text that it is."""
    with _helping() as asked, contextlib.redirect_stdout(io.StringIO()) as printed:
        code = main([verb, "--help"])
    if code != 0:
        raise SystemExit(f"asterism {verb} --help ended with {code}: install what it names")
    if asked:
        return [_description(verb, asked[-1]), *_example(verb, asked[-1]), *_arguments(verb, asked[-1])]
    anchor = _SETTINGS.get(verb)
    more = [f"[Settings](settings.md#{anchor}) lists every setting. `--help` prints the most useful ones:\n"]
    return [*(more if anchor else []), "```text", printed.getvalue().strip(), "```\n"]


@contextlib.contextmanager
def _helping() -> Iterator[list[argparse.ArgumentParser]]:
    """Within the body, parsers are noted where they would print their help, and others print 90 columns."""
    asked: list[argparse.ArgumentParser] = []
    noted = mock.patch.object(argparse.ArgumentParser, "print_help", lambda self, file=None: asked.append(self))
    with noted, mock.patch.dict(os.environ, {"COLUMNS": "90"}):
        yield asked


def _description(verb: str, parser: argparse.ArgumentParser) -> str:
    text = (parser.description or "").strip().removeprefix(f"asterism {verb}: ")
    return f"{text[:1].upper()}{text[1:]}\n"


def _example(verb: str, parser: argparse.ArgumentParser) -> list[str]:
    """The example of the help, as a block that runs, or says why it does not."""
    examples = [line.strip() for line in (parser.epilog or "").splitlines() if line.strip().startswith("asterism ")]
    reason = [] if verb in _NEEDS_NOTHING else ["<!-- not run: an example for a run, a file or an hour of yours -->"]
    return [*reason, "```sh", *examples, "```\n"] if examples else []


def _arguments(verb: str, parser: argparse.ArgumentParser) -> list[str]:
    rows = ["| argument | meaning |\n|---|---|"]
    for action in parser._actions:
        name = action.dest.partition(".")[0]
        if action.dest in ("help", "json") or action.help == argparse.SUPPRESS or name in _CONFIGURED.get(verb, ()):
            continue
        rows.append(f"| {_flags(action)} | {_cell(_meaning(action))} |")
    if verb in _CONFIGURED:
        rows.append(f"| [every setting](settings.md#{_SETTINGS[verb]}) | `--batch-size 8` sets `batch_size` |")
    return [*rows, ""] if len(rows) > 1 else []


def _flags(action: argparse.Action) -> str:
    """The flags with what follows them, as on a command line."""
    value = "" if action.nargs == 0 else _value(action)
    names = [name.replace("_", "-") for name in action.option_strings] or [""]
    shown = f"{', '.join(names)}{' ' * bool(names[0] and value)}{value}"
    return f"`{shown}`".replace("|", r"\|")


def _value(action: argparse.Action) -> str:
    if action.choices is not None:
        return "|".join(map(str, action.choices))
    name = action.metavar or action.dest.upper()
    return f"{name} [{name} ...]" if action.nargs == "+" else f"[{name} ...]" if action.nargs == "*" else str(name)


def _meaning(action: argparse.Action) -> str:
    values = {name: getattr(action, name, None) for name in ("default", "dest", "metavar", "choices")}
    return (action.help or "") % values if "%" in (action.help or "") else action.help or ""


# --- settings --------------------------------------------------------------------------------------------------------


def settings() -> str:
    """The page of settings, from the fields of the configurations."""
    shared, own = _names(TrainingConfig), {one.name for one in fields(FineTuneConfig) if _overrides(one)}
    lines = [
        "# Settings\n",
        "A run is decided by its settings. In Python they are the fields of `RunConfig` and `FineTuneConfig`"
        " ([runs in Python](runs-api.md)); in a file for `--config`, the keys of YAML or JSON; on the command line,"
        " flags with dashes: `batch_size` is `--batch-size`, and `hidden_size` of the model is `--model.hidden-size`."
        " A recipe replaces these defaults. The [run folder](run-folder.md) records all of them.\n",
        WRITTEN,
        "## Training a model\n",
        "The fields of `RunConfig`, for `asterism train`; besides them, those of [all runs](#all-runs).\n",
        *_table(one for one in fields(RunConfig) if one.name not in shared),
        "## Fine-tuning\n",
        "The fields of `FineTuneConfig`, for `asterism finetune`; besides them, those of [all runs](#all-runs).\n",
        *_table(one for one in fields(FineTuneConfig) if one.name not in shared or one.name in own),
        "## All runs\n",
        "Fields of both configurations: how a run learns, and when it stops.\n",
        *_table(fields(TrainingConfig)),
        "## Model\n",
        "The fields of `ModelConfig`: `model` of a `RunConfig`, `--model.NAME` on the command line, and the arguments"
        " of `AsterismConfig` ([models in Python](models-api.md)).\n",
        *_table(fields(ModelConfig)),
    ]
    return "\n".join(lines)


def _names(kind: type) -> set[str]:
    return {one.name for one in fields(kind)}


def _overrides(one: Field[Any]) -> bool:
    """Whether fine-tuning has another default than training in general."""
    shared = {shared.name: shared for shared in fields(TrainingConfig)}
    return one.name in shared and shared[one.name].default != one.default


def _table(rows: Iterable[Field[Any]]) -> list[str]:
    lines = ["| setting | values | default | meaning |\n|---|---|---|---|"]
    for one in rows:
        meaning = one.metadata.get("help", "the shape of the model: [its settings](#model)")
        default = (
            "required" if one.default is MISSING else "" if one.type is ModelConfig else f"`{_shown(one.default)}`"
        )
        lines.append(f"| `{one.name}` | {_cell(_values(one.type))} | {_cell(default)} | {_cell(meaning)} |")
    return [*lines, ""]


def _values(kind: Any) -> str:
    """A type as people call it."""
    if get_origin(kind) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(kind))
    names = {bool: "true or false", int: "whole number", float: "number", str: "text", NoneType: "null"}
    if kind in names:
        return names[kind]
    if get_origin(kind) is tuple:
        return f"list of {'whole numbers' if int in get_args(kind) else 'texts'}"
    if kind is ModelConfig:
        return "settings"
    return " or ".join(_values(part) for part in get_args(kind))


def _shown(default: object) -> str:
    """A default as it is written in a file of settings; empty where it is a table of its own."""
    if isinstance(default, ModelConfig):
        return ""
    if isinstance(default, bool) or default is None:
        return f"`{str(default).lower()}`" if default is not None else "`null`"
    if isinstance(default, int):
        return f"`{default:_}`" if default >= 10_000 else f"`{default}`"
    return f'`"{default}"`' if isinstance(default, str) else f"`{default}`"


def _cell(text: str) -> str:
    """Text as a cell of a table."""
    return " ".join(text.split()).replace("|", r"\|").replace("*", r"\*")


def write() -> None:
    """Write every file, and remove pictures of patterns that are gone."""
    every = pages()
    (REFERENCE / "pictures").mkdir(exist_ok=True)
    for path in (REFERENCE / "pictures").glob("*.svg"):
        if path not in every:
            path.unlink()
    for path, text in every.items():
        path.write_text(text, encoding="utf-8")
    print(f"{len(every)} files in {REFERENCE}", file=sys.stderr)


if __name__ == "__main__":
    write()
