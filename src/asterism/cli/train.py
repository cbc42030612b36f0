"""asterism train: train a model from a recipe, a YAML file and flags, or say what that would cost.

A recipe gives every setting; --config overrides the recipe, and flags override both, wherever they stand. All three
fill the same configuration, whose fields are the flags below.
"""

import argparse
import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from jsonargparse import ArgumentParser, DefaultHelpFormatter

from asterism.cli.parser import UsageError, print_json, refuse_unknown
from asterism.errors import nearest
from asterism.training.recipes import RECIPES, RunConfig, config_from_dict, recipe

DEFAULT_RECIPE = "bytes-small"


def run(argv: Sequence[str]) -> None:
    arguments, config = read_arguments(argv)
    print(arguments, config)


# --- recipe, file and flags to one configuration ---------------------------------------------------------------------


def read_arguments(argv: Sequence[str]) -> tuple[argparse.Namespace, RunConfig]:
    """The verb's own arguments and the run's configuration.

    Raises UsageError for flags and settings that do not exist or cannot be read, ConfigurationError for values that
    cannot work.
    """
    words = [_underscored(word) for word in argv]
    settings = [word for word in words if word not in ("-h", "--help") and not word.startswith("--print_config")]
    chosen = _parse(_parser(recipe(DEFAULT_RECIPE)), settings)["recipe"]
    values = _parse(_parser(recipe(chosen)), words)
    own = {name: values.pop(name) for name in ("folder", "dry_run", "resume", "json")}
    del values["config"]
    return argparse.Namespace(**own), config_from_dict(values)


class _Formatter(DefaultHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """jsonargparse's types and defaults; description and example as they are written."""


class _FlagParser(ArgumentParser):
    """jsonargparse's parser; its help shows flags with dashes, as they are written on the command line."""

    def format_help(self) -> str:
        return re.sub(r"--[a-z_.]+", lambda flag: _dashed(flag.group()), super().format_help())


def _parser(base: RunConfig) -> ArgumentParser:
    parser = _FlagParser(
        prog="asterism train",
        usage="asterism train [--recipe NAME] [--data PATH] [--folder RUN] [--dry-run] [--resume] [SETTING ...]",
        description=__doc__,
        epilog="example:\n  asterism train --minutes 10 --model.mixers 'strided(stride=128)' --folder runs/strided",
        formatter_class=_Formatter,
        exit_on_error=False,
        allow_abbrev=False,
    )
    parser.add_argument("--config", action="config", metavar="PATH", help="a YAML or JSON file of settings")
    parser.add_argument("--folder", metavar="RUN", help="where the run is written (default: runs/RECIPE)")
    parser.add_argument("--dry_run", action="store_true", help="print parameters, FLOPs and memory; train nothing")
    parser.add_argument("--resume", action="store_true", help="go on with the run in the folder")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of text")
    parser.add_class_arguments(RunConfig)
    parser.groups["RunConfig"].title = f"settings of the run (recipes: {', '.join(RECIPES)})"
    parser.groups["model"].title = "settings of the model"
    parser.set_defaults(asdict(base))
    return parser


def _parse(parser: ArgumentParser, words: Sequence[str]) -> dict[str, Any]:
    try:
        return parser.parse_args(_file_first(words)).as_dict()
    except argparse.ArgumentError as error:
        raise _usage_error(str(error), [_dashed(flag) for flag in parser._option_string_actions]) from None


def _file_first(words: Sequence[str]) -> list[str]:
    """The words with the configuration file in front, so that flags before it override it too."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--config")
    found, rest = parser.parse_known_args(words)
    return rest if found.config is None else [f"--config={found.config}", *rest]


def _underscored(word: str) -> str:
    """`--batch-size=4` as the parser knows it, `--batch_size=4`; other words as they are."""
    flag, equals, value = word.partition("=")
    return flag[:2] + flag[2:].replace("-", "_") + equals + value if word.startswith("--") else word


def _dashed(flag: str) -> str:
    return flag.replace("_", "-")


def _usage_error(message: str, flags: Sequence[str]) -> UsageError:
    """jsonargparse's complaint in one line, with the nearest valid name."""
    text = " ".join(message.split())
    if found := re.match(r"unrecognized arguments: (\S+)", text):
        refuse_unknown([_dashed(found[1])], flags)
    if found := re.match(r"(?:Group '(?P<group>.+)' does not accept option|Option) '(?P<name>.+?)'", text):
        name = f"{found['group']}.{found['name']}" if found["group"] else found["name"]
        settings = [flag.removeprefix("--").replace("-", "_") for flag in flags]
        return UsageError(f"the configuration file has an unknown setting {name!r}.{nearest(name, settings)}")
    text = re.sub(r"<class '(\w+)'>", r"\1", text).replace("NoneType", "null").replace("typing.Literal", "one of ")
    text = re.sub(
        r"Does not validate .*? Subtypes: \[(.*)\] Errors: .* Given value: ", r"Expected \1. Got value: ", text
    )
    text = re.sub(r'Parser key "(.+?)":', lambda key: f"--{_dashed(key[1])}:", text)
    return UsageError(re.sub(r"Expected (?:a )?(.+)\. Got value: ", r"expected \1, got ", text))
