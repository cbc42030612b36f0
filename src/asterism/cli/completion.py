"""asterism completion: print a script by which a shell completes verbs, flags, choices and files.

In bash: `asterism completion bash > ~/.local/share/bash-completion/completions/asterism`. In zsh: `asterism completion
zsh > FOLDER/_asterism`, for a FOLDER in $fpath. New shells use it; print it again after an update of Asterism.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence
from dataclasses import Field
from types import ModuleType
from typing import Any

import shtab

from asterism.cli.main import VERBS, module_of
from asterism.cli.parser import Parser
from asterism.cli.settings import PATHS, choices_of, settings_of
from asterism.cli.waiting import waiting
from asterism.training.recipes import FINE_TUNING, RECIPES
from asterism.training.settings.configuration import KINDS
from asterism.training.settings.registry import OBJECTIVES, TASKS

_FILES = ("PATH", "FILE", "FILE.json", "MACHINE")
_FOLDERS = ("RUN", "FOLDER")

_KNOWN = {
    "recipe": RECIPES,
    "objective": OBJECTIVES.names("train"),
    "task": TASKS.names("finetune"),
}
"""Settings whose values are names of a registry."""


def run(argv: Sequence[str]) -> None:
    arguments = _parser().parse(argv)
    with waiting("reading the flags of all verbs"):
        script = shtab.complete(whole_parser(), arguments.shell)
    sys.stdout.write(script)


def whole_parser() -> argparse.ArgumentParser:
    """One parser with every verb and flag, for completion only."""
    parser = argparse.ArgumentParser(prog="asterism", allow_abbrev=False)
    parser.add_argument("--version", action="store_true", help="print versions")
    verbs = parser.add_subparsers()
    for verb, summary in VERBS.items():
        source = _flags_of(verb)
        known = verbs.add_parser(verb, help=summary, parents=[source], add_help=False)
        for action in known._actions:
            if action.metavar in _FILES:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
            elif action.metavar in _FOLDERS:
                action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    return parser


def _flags_of(verb: str) -> argparse.ArgumentParser:
    """The parser of a verb, or one like it; of a verb that needs a package which is not there, only --help."""
    plain = argparse.ArgumentParser(add_help=False)
    try:
        module = importlib.import_module(f"asterism.cli.{module_of(verb)}")
    except ModuleNotFoundError:
        plain.add_argument("-h", "--help", action="store_true", help="print this help")
        return plain
    if verb not in KINDS:
        own: argparse.ArgumentParser = module._parser()
        return own
    _add_own(plain, module)
    for name, field in settings_of(KINDS[verb]).items():
        flag = name.replace("_", "-")
        for one in [flag, f"no-{flag}"] if field.type is bool else [flag]:
            if f"--{one}" not in plain._option_string_actions:
                plain.add_argument(f"--{one}", help=field.metadata["help"], **_taken(field))
    return plain


def _taken(field: "Field[Any]") -> dict[str, Any]:
    """The arguments by which argparse gets the flag of a setting."""
    if field.type is bool:
        return {"action": "store_true"}
    if field.name in PATHS:
        return {"metavar": "PATH"}
    return {"choices": known} if (known := list(_KNOWN.get(field.name) or choices_of(field))) else {}


def _add_own(parser: argparse.ArgumentParser, module: ModuleType) -> None:
    """The flags of a verb that are no settings, from the rows that its help shows."""
    for row, meaning in module.OWN:
        flags, _, value = row.partition(" ") if not row.startswith("-h") else (row, "", "")
        if not flags.startswith("-"):
            parser.add_argument(flags.lower(), metavar=flags, nargs="?", help=meaning)
        elif value:
            known = {"choices": list(FINE_TUNING)} if flags == "--recipe" else {"metavar": value}
            parser.add_argument(flags, help=meaning, **known)
        else:
            parser.add_argument(*flags.split(", "), action="store_true", help=meaning)
    parser.add_argument("--folder", metavar="FOLDER", help="folder of the run")
    parser.add_argument("--device", metavar="NAME", help="device to compute on")


def _parser() -> Parser:
    parser = Parser("completion", __doc__ or "", "asterism completion bash")
    parser.add_argument("shell", choices=shtab.SUPPORTED_SHELLS, help="shell to complete in")
    return parser
