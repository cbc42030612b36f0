"""asterism train: train a model from a recipe, a YAML file and flags, or say what that would cost.

A recipe gives every setting; --config overrides the recipe, and flags override both, wherever they stand. All three
fill the same configuration, whose fields are the flags below. With --start, a model that is there is trained on.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from inspect import getdoc
from pathlib import Path

from asterism import training
from asterism.cli.parser import amount, print_json
from asterism.cli.settings import SettingsParser, underscored
from asterism.training.recipes import RECIPES, recipe
from asterism.training.run.configuration import ModelConfig, RunConfig, config_from_dict

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
    from asterism.training.run.build import model_config  # takes seconds to import
    from asterism.training.run.estimate import estimate

    cost = estimate(config)
    unit = "bytes" if config.objective == "causal" else "tokens"
    if as_json:
        print_json({"recipe": config.recipe, **asdict(cost), "memory": cost.memory})
        return
    mixing = cost.mixing_flops_per_step / cost.flops_per_step
    parts = [f"{part} {amount(getattr(cost, f'{part}_memory'), 'B')}" for part in _MEMORY]
    print(getdoc(RECIPES[config.recipe]))
    print()
    if config.start is not None:
        print(f"start       {config.start}, in place of the recipe's model and tokenizer")
    print(f"mixers      {_summary(model_config(config).mixers)}")
    print(f"parameters  {cost.parameters:,}")
    print(f"step        {cost.tokens_per_step:,} {unit}, {amount(cost.flops_per_step, 'FLOP')} ({mixing:.0%} mixing)")
    limit = "" if config.minutes is None else f"; ends after {config.minutes:g} minutes at the latest"
    print(f"run         {cost.steps:,} steps, {amount(cost.flops_per_step * cost.steps, 'FLOP')}{limit}")
    print(f"memory      {amount(cost.memory, 'B')}: {', '.join(parts)}")


def _summary(mixers: str | list[str]) -> str:
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
    words = [underscored(word) for word in argv]
    without_exits = [word for word in words if word not in ("-h", "--help") and not word.startswith("--print_config")]
    asked = _parser(RunConfig(recipe="")).parse(without_exits)
    name = asked["recipe"] or DEFAULT_RECIPES[asked["objective"]]
    folder = asked["folder"] or f"runs/{name}"
    base = _recorded(folder) if asked["resume"] else recipe(name)
    if asked["start"] and not asked["resume"]:
        base = replace(base, start=asked["start"], model=ModelConfig(), tokenizer=RunConfig.tokenizer)
    values = _parser(base).parse(words)
    own = {name: values.pop(name) for name in ("dry_run", "resume", "json", "folder", "config")}
    return argparse.Namespace(**own | {"folder": folder}), config_from_dict(values)


def _recorded(folder: str) -> RunConfig:
    from asterism.training.run.folder import RunFolder  # takes seconds to import

    return RunFolder(folder).read_config()


def _parser(base: RunConfig) -> SettingsParser:
    parser = SettingsParser(
        "train",
        "[--recipe NAME] [--data PATH] [--folder RUN] [--dry-run] [--resume] [SETTING ...]",
        __doc__ or "",
        "asterism train --minutes 10 --model.mixers 'strided(stride=128)' --folder runs/strided",
    )
    parser.add_argument("--folder", metavar="RUN", help="where the run is written (default: runs/RECIPE)")
    parser.add_argument("--dry_run", action="store_true", help="print parameters, FLOPs and memory; train nothing")
    parser.add_argument("--resume", action="store_true", help="go on with the run in the folder, with its settings")
    titles = {
        "RunConfig": f"settings of the run (recipes: {', '.join(RECIPES)})",
        "model": "settings of the model",
    }
    parser.add_settings(RunConfig, titles, asdict(base))
    return parser
