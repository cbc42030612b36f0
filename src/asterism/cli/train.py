"""asterism train: train a model from a recipe, a YAML file and flags, or say what that would cost.

A recipe gives every setting; --config overrides the recipe, and flags override both, wherever they stand. All three
fill the same configuration, whose fields are the flags below.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from inspect import getdoc
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, DefaultHelpFormatter

from asterism import training
from asterism.cli.parser import UsageError, amount, print_json, refuse_unknown
from asterism.errors import nearest
from asterism.training.configuration import RunConfig, config_from_dict
from asterism.training.recipes import RECIPES, recipe

DEFAULT_RECIPES = {"causal": "bytes-small", "mlm": "bigbird-tiny"}
"""For each objective."""

_MEMORY = ("weight", "gradient", "optimizer", "activation", "plan")


def run(argv: Sequence[str]) -> None:
    arguments, config = read_arguments(argv)
    if arguments.dry_run:
        _tell_cost(config, arguments.json)
        return
    try:
        report = training.train(config, arguments.folder, resume=arguments.resume)
    except KeyboardInterrupt:
        if Path(arguments.folder, "run.json").exists():
            print(f"go on with: asterism train --folder {arguments.folder} --resume", file=sys.stderr)
        raise
    if arguments.json:
        print_json(asdict(report))
        return
    print(report)
    print(f"{report.parameters:,} parameters, {report.steps:,} steps in {report.minutes:.1f} minutes")
    print(f"saved in {report.folder}")


def _tell_cost(config: RunConfig, as_json: bool) -> None:
    from asterism.training.estimate import estimate  # takes seconds to import

    cost = estimate(config)
    unit = "bytes" if config.objective == "causal" else "tokens"
    if as_json:
        print_json({"recipe": config.recipe, **asdict(cost), "memory": cost.memory})
        return
    mixing = cost.mixing_flops_per_step / cost.flops_per_step
    parts = [f"{part} {amount(getattr(cost, f'{part}_memory'), 'B')}" for part in _MEMORY]
    print(getdoc(RECIPES[config.recipe]))
    print()
    print(f"mixers      {_summary(config.model.mixers)}")
    print(f"parameters  {cost.parameters:,}")
    print(f"step        {cost.tokens_per_step:,} {unit}, {amount(cost.flops_per_step, 'FLOP')} ({mixing:.0%} mixing)")
    limit = "" if config.minutes is None else f"; ends after {config.minutes:g} minutes at the latest"
    print(f"run         {cost.steps:,} steps, {amount(cost.flops_per_step * cost.steps, 'FLOP')}{limit}")
    print(f"memory      {amount(cost.memory, 'B')}: {', '.join(parts)}")


def _summary(mixers: str | tuple[str, ...]) -> str:
    """The mixers in a line: one text, or the first and the last of a list."""
    if isinstance(mixers, str):
        return mixers
    return mixers[0] if len(set(mixers)) == 1 else f"{mixers[0]} ... {mixers[-1]}"


# --- recipe, file and flags to one configuration ---------------------------------------------------------------------


def read_arguments(argv: Sequence[str]) -> tuple[argparse.Namespace, RunConfig]:
    """The verb's own arguments and the run's configuration.

    Raises UsageError for flags and settings that do not exist or cannot be read, ConfigurationError for values that
    cannot work.
    """
    words = [_underscored(word) for word in argv]
    without_exits = [word for word in words if word not in ("-h", "--help") and not word.startswith("--print_config")]
    asked = _parse(_parser(RunConfig(recipe="")), without_exits)
    name = asked["recipe"] or DEFAULT_RECIPES[asked["objective"]]
    folder = asked["folder"] or f"runs/{name}"
    values = _parse(_parser(_recorded(folder) if asked["resume"] else recipe(name)), words)
    own = {name: values.pop(name) for name in ("dry_run", "resume", "json", "folder", "config")}
    return argparse.Namespace(**own | {"folder": folder}), config_from_dict(values)


def _recorded(folder: str) -> RunConfig:
    from asterism.training.folder import RunFolder  # takes seconds to import

    return RunFolder(folder).read_config()


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
    parser.add_argument("--resume", action="store_true", help="go on with the run in the folder, with its settings")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of text")
    parser.add_class_arguments(RunConfig)
    groups = parser.groups or {}
    groups["RunConfig"].title = f"settings of the run (recipes: {', '.join(RECIPES)})"
    groups["model"].title = "settings of the model"
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
