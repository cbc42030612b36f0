"""What all verbs share: a parser whose errors are one line that names the nearest flag, number formats, JSON output."""

import argparse
import json
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from asterism.errors import AsterismError, nearest

SWITCH = "[{true,false}]"
"""How help shows the value of a flag that is a switch."""


class UsageError(AsterismError):
    """The command line asks for something that does not exist or does not fit."""

    exit_code = 2


class Parser(argparse.ArgumentParser):
    """argparse's parser of one verb; it raises UsageError instead of printing the usage and exiting."""

    def __init__(self, verb: str, description: str, example: str) -> None:
        super().__init__(
            prog=f"asterism {verb}",
            description=description,
            epilog=f"example:\n  {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self.add_argument("--json", action="store_true", help="print one JSON document instead of text")

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """The arguments. Raises UsageError, also for flags that the verb does not know."""
        arguments, unknown = self.parse_known_args(with_values(self._folder_first(argv), ["--dense-exchange"]))
        refuse_unknown(unknown, self._option_string_actions)
        return arguments

    def _folder_first(self, words: Sequence[str]) -> Sequence[str]:
        """`--label 1 2 RUN` as `RUN --label 1 2`: a flag of several values would take the folder for one of them."""
        flags = [word for word in words if word.startswith("-")]
        last = self._option_string_actions.get(flags[-1]) if flags and words[0] in flags else None
        if last is None or last.nargs != "+" or not Path(words[-1]).is_dir():
            return words
        return [words[-1], *words[:-1]]

    def options(self, argv: Sequence[str]) -> tuple[dict[str, Any], bool]:
        """The arguments by name, for a function whose parameters the flags are, and whether to print JSON."""
        options = vars(self.parse(argv))
        as_json = options.pop("json")
        return options, as_json

    def error(self, message: str) -> NoReturn:
        raise UsageError("usage", message)


def add_dense_exchange(parser: argparse.ArgumentParser) -> None:
    """The flag of verbs that several processes share by --parallel."""
    parser.add_argument(
        "--dense-exchange",
        type=_true_or_false,
        default=False,
        metavar=SWITCH,
        help="with cp, compute also patterns for which as much moves between processes as for dense attention",
    )


def _true_or_false(text: str) -> bool:
    """An argument type."""
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"must be true or false, got {text[:40]!r}")
    return text.lower() == "true"


def with_values(words: Sequence[str], switches: Collection[str]) -> list[str]:
    """The words, with `true` for each switch that has no value: `--x` means `--x true` to every verb."""
    given = []
    for word, following in zip(words, [*words, ""][1:], strict=True):
        has_value = following.lower() in ("true", "false")
        given.append(f"{word}=true" if word in switches and not has_value else word)
    return given


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
