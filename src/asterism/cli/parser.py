"""Shared by all verbs: a parser whose errors are one line that names the nearest flag, number formats, JSON output."""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from asterism.cli.errors import UsageError
from asterism.cli.help import filled, terminal_width
from asterism.cli.words import positional_first, refuse_renamed, switched
from asterism.errors import nearest

DEVICE = "cpu, cuda, cuda:N, or auto (default): the GPU if there is one"
"""The help of --device."""


class Parser(argparse.ArgumentParser):
    """argparse's parser of one verb; it raises UsageError instead of printing the usage and exiting."""

    def __init__(self, verb: str, description: str, example: str) -> None:
        super().__init__(
            prog=f"asterism {verb}",
            description=filled(description),
            epilog=f"example:\n  {example}",
            formatter_class=_formatter,
            allow_abbrev=False,
            add_help=False,
        )
        self.renamed: dict[str, str] = {}
        self.add_argument("-h", "--help", action="help", help="print this help")
        self.add_argument("--json", action="store_true", help="print one JSON document instead of text")

    def add_switch(self, flag: str, meaning: str, *, default: bool) -> None:
        """Add a flag that is on or off: `--x` and `--no-x`, also `--x true` and `--x false`."""
        action = self.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=meaning)
        action.default = default  # given above, older versions of argparse would add it to the meaning

    def add_device(self) -> None:
        """Add the flag of verbs that compute with a model."""
        self.add_argument("--device", type=device_name, default="auto", metavar="NAME", help=DEVICE)

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """The arguments. Raises UsageError, also for flags that the verb does not have."""
        refuse_renamed(argv, self.renamed)
        arguments, unknown = self.parse_known_args(self._read(argv))
        refuse_unknown(unknown, self._option_string_actions)
        return arguments

    def _read(self, argv: Sequence[str]) -> list[str]:
        """The words as argparse reads them: switches without values, and a positional argument in front."""
        flags = self._option_string_actions
        switches = [flag for action in self._actions if _is_switch(action) for flag in action.option_strings[:1]]
        words = []
        for word in switched(argv, switches):
            flag, _, value = word.partition("=")
            words.append((flag if value == "true" else f"--no-{flag[2:]}") if flag in switches else word)
        if any(not action.option_strings and action.nargs is None for action in self._actions):
            values = {flag: 0 if _is_switch(action) else action.nargs for flag, action in flags.items()}
            return positional_first(words, values)
        return words

    def options(self, argv: Sequence[str]) -> tuple[dict[str, Any], bool]:
        """The arguments by name, for a function whose parameters the flags are, and whether to print JSON."""
        options = vars(self.parse(argv))
        as_json = options.pop("json")
        return options, as_json

    def error(self, message: str) -> NoReturn:
        raise UsageError("usage", message)


def _formatter(prog: str) -> argparse.HelpFormatter:
    return argparse.RawDescriptionHelpFormatter(prog, max_help_position=28, width=terminal_width())


def _is_switch(action: argparse.Action) -> bool:
    return isinstance(action, argparse.BooleanOptionalAction)


def device_name(text: str) -> str:
    """An argument type: the name of a device."""
    kind, colon, number = text.partition(":")
    if text in ("auto", "cpu", "cuda") or (kind == "cuda" and colon and number.isascii() and number.isdecimal()):
        return text
    raise argparse.ArgumentTypeError(f"must be auto, cpu, cuda or cuda:N, got {text[:40]!r}")


def add_dense_exchange(parser: Parser) -> None:
    """The flag of verbs that several processes share by --parallel."""
    meaning = "with cp: also allow patterns that move as much data between processes as dense attention"
    parser.add_switch("--dense-exchange", meaning, default=False)


def refuse_unknown(unknown: Sequence[str], flags: Iterable[str]) -> None:
    """Raise UsageError for the first unknown argument, with the flag most like it."""
    if not unknown:
        return
    name = unknown[0].split("=", 1)[0]
    if name.startswith("-"):
        raise UsageError("unknown-flag", f"unknown flag {name}.{nearest(name, flags) or ' See --help.'}")
    raise UsageError("unexpected-argument", f"unexpected argument {name!r}; see --help")


def whole_number(minimum: int, maximum: int | None = None) -> Callable[[str], int]:
    """An argument type: a whole number that is at least `minimum`, and at most `maximum` if there is one."""
    rule = f"of at least {minimum}" if maximum is None else f"from {minimum:,} to {maximum:,}"

    def convert(text: str) -> int:
        try:
            value = int(text.replace("_", ""))
        except ValueError:  # also for more than 4,300 digits
            value = minimum - 1
        if value < minimum or (maximum is not None and value > maximum):
            shown = text if len(text) <= 40 else f"{text[:37]}..."
            raise argparse.ArgumentTypeError(f"must be a whole number {rule}, got {shown!r}")
        return value

    return convert


def percent(share: float) -> str:
    """A share as a percentage with two decimals, or with two digits where decimals would hide it: 0.0005%."""
    return f"{share:.2%}" if share == 0 or share >= 0.001 else f"{100 * share:.2g}%"


def print_json(document: object) -> None:
    """Write one JSON document to stdout; in escapes where stdout cannot hold every character."""
    ascii_only = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    json.dump(document, sys.stdout, indent=2, allow_nan=False, ensure_ascii=ascii_only)
    sys.stdout.write("\n")
