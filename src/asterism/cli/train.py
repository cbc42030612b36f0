"""asterism train: train a model from a recipe, a YAML file and flags, or say what that would cost.

A recipe gives every setting; --config overrides the recipe, and flags override both, wherever they stand. All three
fill the same configuration, whose fields are the flags below. --steps without --minutes lifts the recipe's limit of
time. With --init-from, the training of a model continues.
"""

import argparse
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from inspect import getdoc
from typing import Any

from asterism.cli.parser import print_json
from asterism.cli.processes import is_follower
from asterism.cli.settings import SettingsParser, recorded, require_what_it_names, train_and_tell, underscored
from asterism.memory import amount
from asterism.patterns import as_schedule
from asterism.training.recipes import RECIPES, recipe
from asterism.training.settings.configuration import ModelConfig, RunConfig, config_from_dict
from asterism.training.settings.registry import OBJECTIVES

_MEMORY = ("weight", "gradient", "optimizer", "activation", "plan")


def run(argv: Sequence[str]) -> None:
    arguments, config = read_arguments(argv)
    if arguments.dry_run:
        require_what_it_names(config, arguments.folder, arguments.resume)
        if not is_follower():
            _tell_cost(config, arguments.folder if arguments.resume else None, arguments.json)
        return
    train_and_tell(config, arguments.folder, resume=arguments.resume, as_json=arguments.json)


def _tell_cost(config: RunConfig, resumed: str | None, as_json: bool) -> None:
    """Print what a run will cost; of one that is resumed, what it costs from its newest checkpoint."""
    from asterism.training.ask.estimate import estimate
    from asterism.training.run.checkpoint import read_state  # takes seconds to import
    from asterism.training.run.folder import RunFolder

    own, asked = None, config.dtype
    if resumed is not None:
        own = RunFolder(resumed).latest_checkpoint()
        config = replace(config, dtype=RunFolder(resumed).read_settled().dtype)
    done = 0 if own is None else read_state(own).step
    cost = estimate(config, own)
    if as_json:
        print_json({"recipe": config.recipe, **asdict(cost), "memory": cost.memory, "steps_done": done})
        return
    mixing = cost.mixing_flops_per_step / cost.flops_per_step
    parts = [f"{part} {amount(getattr(cost, f'{part}_memory'), 'B')}" for part in _MEMORY]
    known = config.recipe in RECIPES
    title = getdoc(RECIPES[config.recipe]) if known else f"Settings of its own: recipe {config.recipe}."
    is_changed = known and replace(recipe(config.recipe), data=config.data, parallel=config.parallel) != config
    print(f"{title}\nWith other settings than the recipe's; what follows is for them." if is_changed else title)
    print()
    if own is not None:
        print(f"resumes     {own}, after {done:,} steps")
    elif config.init_from is not None:
        print(f"init from   {config.init_from}, in place of the recipe's model and tokenizer")
    print(f"mixers      {_summary(cost.mixers)}")
    print(f"parameters  {cost.parameters:,}")
    print(f"dtype       {cost.dtype}{' (auto)' if asked == 'auto' else ''}")
    flops = amount(cost.flops_per_step, "FLOP")
    print(f"step        {cost.tokens_per_step:,} {cost.unit}, {flops} ({mixing:.0%} mixing)")
    limit = "" if config.minutes is None else f"; ends after {config.minutes:g} minutes at the latest"
    left = cost.steps - done
    print(f"run         {left:,} {'more ' if done else ''}steps, {amount(cost.flops_per_step * left, 'FLOP')}{limit}")
    if cost.seconds_per_step is not None:
        hours = cost.seconds_per_step * left / 3600
        begins = "at least" if cost.is_measured else "a guess, as nothing was measured here: at least"
        seconds = f"{cost.seconds_per_step:.3g} s a step"
        print(f"time        {begins} {seconds} on this machine, {hours:,.1f} hours for all steps")
    print(f"memory      {amount(cost.memory, 'B')}: {', '.join(parts)}")


def _summary(mixers: str | list[str]) -> str:
    """The mixers in a line, in the short form: one text, or the first and the last of a list."""
    texts = [str(as_schedule(mixer)) for mixer in ([mixers] if isinstance(mixers, str) else mixers)]
    return texts[0] if len(set(texts)) == 1 else f"{texts[0]} ... {texts[-1]}"


# --- recipe, file and flags to one configuration ---------------------------------------------------------------------


def read_arguments(argv: Sequence[str]) -> tuple[argparse.Namespace, RunConfig]:
    """The verb's own arguments and the run's configuration.

    Raises UsageError for flags and settings that do not exist or cannot be read, ConfigurationError for values that
    cannot work.
    """
    words = [underscored(word) for word in argv]
    without_exits = [word for word in words if word not in ("-h", "--help") and not word.startswith("--print_config")]
    asked = _parser(asdict(RunConfig(recipe="")) | {"steps": _NOT_GIVEN}).parse(without_exits)
    name = asked["recipe"] or OBJECTIVES[asked["objective"]].recipe
    folder = asked["folder"] or f"runs/{name}"
    base = recorded(folder, RunConfig) if asked["resume"] else recipe(name)
    if asked["init_from"] and not asked["resume"]:
        base = replace(base, init_from=asked["init_from"], model=ModelConfig(), tokenizer=RunConfig.tokenizer)
    if asked["steps"] != _NOT_GIVEN and asked["minutes"] is None and not asked["resume"]:
        base = replace(base, minutes=None)  # else a run of 100,000 steps would end with the ten minutes of its recipe
    values = _parser(asdict(base)).parse(words)
    own = {name: values.pop(name) for name in ("dry_run", "resume", "json", "folder", "config")}
    return argparse.Namespace(**own | {"folder": folder}), config_from_dict(RunConfig.kind, values)


_NOT_GIVEN = 0
"""No run has so many steps."""


def _parser(defaults: Mapping[str, Any]) -> SettingsParser:
    parser = SettingsParser(
        "train",
        "[--recipe NAME] [--data PATH] [--folder RUN] [--dry-run] [--resume] [SETTING ...]",
        __doc__ or "",
        "asterism train --minutes 10 --model.mixers 'strided(stride=128)' --folder runs/strided",
    )
    parser.add_argument("--folder", metavar="RUN", help="where the run is written (default: runs/RECIPE)")
    parser.add_argument("--dry_run", action="store_true", help="print parameters, FLOPs, memory, time; train nothing")
    parser.add_argument("--resume", action="store_true", help="resume the run in the folder, with its settings")
    known = textwrap.fill(f"settings of the run; recipes: {', '.join(RECIPES)}", 80, break_on_hyphens=False)
    parser.add_settings(RunConfig, {"RunConfig": known, "model": "settings of the model"}, defaults)
    return parser
