"""asterism train: train a model from a recipe, a YAML file and flags, or estimate the cost.

A recipe has a value for every setting; --config overrides the recipe, and flags override both, in any order. `asterism
recipes` lists the recipes. Most of them end after a time limit, which --steps without --minutes removes.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from inspect import getdoc
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asterism.cli.parser import print_json
from asterism.cli.processes import is_follower
from asterism.cli.settings import (
    EVERY,
    HELP,
    MACHINE,
    OPTIMIZER,
    Group,
    SettingsParser,
    finished_after,
    folder_of,
    print_help,
    read_words,
    recorded,
    require_what_it_names,
    settings_of,
    train_and_tell,
)
from asterism.cli.waiting import waiting
from asterism.cli.words import refuse_renamed
from asterism.memory import amount
from asterism.patterns import as_schedule
from asterism.training.recipes import RECIPES, recipe
from asterism.training.settings.configuration import ModelConfig, RunConfig, config_from_dict
from asterism.training.settings.registry import OBJECTIVES

if TYPE_CHECKING:
    from asterism.training.ask.estimate import Estimate

_MEMORY = ("weight", "gradient", "optimizer", "activation", "plan")


def run(argv: Sequence[str]) -> None:
    arguments, config = read_arguments(argv)
    if arguments.dry_run:
        require_what_it_names(config, arguments.folder, arguments.resume)
        if not is_follower():
            _print_cost(config, arguments)
        return
    train_and_tell(config, arguments)


def _estimated(config: RunConfig, arguments: argparse.Namespace) -> tuple["Estimate", Path | None, int]:
    """The cost of a run; for a resumed one its newest checkpoint, and how many steps are done."""
    with waiting("loading PyTorch and transformers"):
        from asterism.training.ask.estimate import estimate
        from asterism.training.run.checkpoint import read_state
        from asterism.training.run.device import computing_on
        from asterism.training.run.folder import RunFolder

    own = None
    if arguments.resume:
        folder = RunFolder(arguments.folder)
        own = folder.latest_checkpoint()
        config = replace(config, dtype=folder.read_settled().dtype)
    done = 0 if own is None else read_state(own).step
    with computing_on(arguments.device), waiting("counting operations and memory"):
        return estimate(config, own), own, done


def _print_cost(config: RunConfig, arguments: argparse.Namespace) -> None:
    """Print the cost of a run; for a resumed one, the cost from its newest checkpoint."""
    cost, own, done = _estimated(config, arguments)
    if arguments.json:
        print_json({"recipe": config.recipe, **asdict(cost), "memory": cost.memory, "steps_done": done})
        return
    mixing = cost.mixing_flops_per_step / cost.flops_per_step
    parts = [f"{part} {amount(getattr(cost, f'{part}_memory'), 'B')}" for part in _MEMORY]
    known = config.recipe in RECIPES
    title = getdoc(RECIPES[config.recipe]) if known else f"No published recipe: {config.recipe}."
    is_changed = known and replace(recipe(config.recipe), data=config.data, parallel=config.parallel) != config
    print(f"{title}\nThis estimate is for your settings, which differ from the recipe's." if is_changed else title)
    print()
    if own is not None:
        print(f"resumes     {own}, after {done:,} steps")
    elif config.init_from is not None:
        print(f"init from   {config.init_from}, in place of the recipe's model and tokenizer")
    print(f"mixers      {_summary(cost.mixers)}")
    print(f"parameters  {cost.parameters:,}")
    print(f"dtype       {cost.dtype}{' (auto)' if config.dtype == 'auto' else ''}")
    flops = amount(cost.flops_per_step, "FLOP")
    print(f"step        {cost.tokens_per_step:,} {cost.unit}, {flops} ({mixing:.0%} mixing)")
    limit = "" if config.minutes is None else f"; training ends after {config.minutes:g} minutes at the latest"
    left = cost.steps - done
    print(f"run         {left:,} {'more ' if done else ''}steps, {amount(cost.flops_per_step * left, 'FLOP')}{limit}")
    if cost.seconds_per_step is not None:
        hours = cost.seconds_per_step * left / 3600
        begins = "at least" if cost.is_measured else "a guess, without measurements of this machine: at least"
        seconds = f"{cost.seconds_per_step:.3g} s a step"
        print(f"time        {begins} {seconds} on this machine, {hours:,.1f} hours for all steps")
    print(f"memory      {amount(cost.memory, 'B')}: {', '.join(parts)}")


def _summary(mixers: str | list[str]) -> str:
    """The mixers in a line, in the short form: one text, or the first and the last of a list."""
    texts = [str(as_schedule(mixer)) for mixer in ([mixers] if isinstance(mixers, str) else mixers)]
    return texts[0] if len(set(texts)) == 1 else f"{texts[0]} ... {texts[-1]}"


# --- recipe, file and flags to one configuration ---------------------------------------------------------------------

GROUPS = (
    Group(
        "data and task",
        ("recipe", "data", "objective", "tokenizer", "init_from"),
        ("pattern", "modality", "record_length", "next_sentence", "kept_sentences", "target_length"),
    ),
    Group(
        "model",
        ("model.mixers", "context"),
        tuple(name for name in settings_of(RunConfig) if name.startswith("model.") and name != "model.mixers"),
    ),
    Group(
        "training",
        ("steps", "minutes", "batch_size", "learning_rate", "seed"),
        OPTIMIZER,
    ),
    Group(
        "evaluation and checkpoints",
        more=(*EVERY, "evaluation_bytes", "report_bytes"),
    ),
    MACHINE,
)
"""The settings as help shows them."""

OWN = (
    ("RUN", "folder of the run (default: runs/RECIPE); --folder RUN is the same"),
    ("--config PATH", "YAML or JSON file of settings"),
    ("--resume", "continue the run in RUN with its settings; with --steps MORE, train a finished run further"),
    ("--dry-run", "print parameters, FLOPs, memory and time; train nothing"),
    ("--print-config", "print all settings as YAML for --config"),
    ("--json", "print one JSON document instead of text"),
    ("-h, --help", "print this help; with --recipe, the defaults are those of the recipe"),
    ("--help-all", "print all {settings} settings"),
)


def read_arguments(argv: Sequence[str]) -> tuple[argparse.Namespace, RunConfig]:
    """The verb's own arguments and the run's configuration.

    Raises UsageError for flags and settings that do not exist or cannot be read, ConfigurationError for values that
    cannot work.
    """
    refuse_renamed(argv, _RENAMED)
    run, words = read_words("train", argv, RunConfig)
    without_exits = [word for word in words if word not in HELP and not word.startswith("--print_config")]
    asked = _parser(asdict(RunConfig(recipe="")) | {"steps": _NOT_GIVEN}).parse(without_exits)
    name = asked["recipe"] or OBJECTIVES[asked["objective"]].recipe
    folder = folder_of(run, asked["folder"]) or f"runs/{name}"
    with waiting("reading the settings"):
        base = recorded(folder, RunConfig) if asked["resume"] else recipe(name)
        done = finished_after(folder) if asked["resume"] else 0
    if asked["init_from"] and not asked["resume"]:
        base = replace(base, init_from=asked["init_from"], model=ModelConfig(), tokenizer=RunConfig.tokenizer)
    if asked["minutes"] is None and done is not None and asked["steps"] > done:
        base = replace(base, minutes=None)  # else a run of 100,000 steps would end with the ten minutes of its recipe
    parser = _parser(asdict(base))
    print_help(parser, words, OWN, GROUPS)
    values = parser.parse(words)
    own = {name: values.pop(name) for name in ("dry_run", "resume", "json", "folder", "config", "device")}
    return argparse.Namespace(**own | {"folder": folder}), config_from_dict(RunConfig.kind, values)


_NOT_GIVEN = 0
"""No run has so many steps."""

_RENAMED = {
    "--model": "in train, the fields of the model are flags such as --model.hidden-size, or `model:` in --config FILE;"
    " to train on from the weights of a model, use --init-from FOLDER",
    "--length": "in train, the tokens of a sequence are --context N",
}


def _parser(defaults: Mapping[str, Any]) -> SettingsParser:
    parser = SettingsParser(
        "train",
        "[RUN] [--recipe NAME] [--data PATH] [--dry-run] [--resume] [--SETTING VALUE ...]",
        __doc__ or "",
        "asterism train runs/strided --minutes 10 --model.mixers 'strided(stride=128)'",
    )
    parser.add_argument("--dry_run", action="store_true")
    parser.add_settings(RunConfig, defaults)
    return parser
