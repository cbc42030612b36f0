"""Verbs whose flags are the fields of a configuration: flags and a YAML file to one set of values.

The parser is jsonargparse's, made from a dataclass; here its flags get dashes and its complaints become one line with
the nearest valid name.
"""

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from jsonargparse import ArgumentParser, DefaultHelpFormatter

from asterism import training
from asterism.cli.parser import SWITCH, UsageError, print_json, refuse_unknown, with_values
from asterism.cli.processes import is_follower
from asterism.cli.settings_file import check_settings_file
from asterism.errors import ConfigurationError, nearest
from asterism.presence import require_data, require_model, require_run
from asterism.system import launched
from asterism.training.recipes import RECIPES
from asterism.training.settings.configuration import AnyConfig, TrainingConfig

Config = TypeVar("Config", bound=TrainingConfig)


def train_and_tell(config: AnyConfig, folder: str, *, resume: bool, as_json: bool) -> None:
    """Train and print the report; when interrupted, print how to resume."""
    require_what_it_names(config, folder, resume)
    try:
        report = training.train(config, folder, resume=resume)
    except KeyboardInterrupt:
        if Path(folder, "run.json").exists() and not is_follower():
            parallel = f" --parallel {config.parallel}" if config.parallel else ""
            started = f", in {launched()} processes or in any other mesh" if launched() > 1 else ""
            print(f"resume with: asterism {config.kind} --folder {folder} --resume{parallel}{started}", file=sys.stderr)
        raise
    if is_follower():
        return
    if as_json:
        print_json(report.as_json())
        return
    print(report)
    print(f"{report.parameters:,} parameters, {report.steps:,} steps in {report.minutes:.1f} minutes")
    print(f"saved in {report.folder}")


def require_what_it_names(config: AnyConfig, folder: str, resume: bool) -> None:
    """Raises DataError and CheckpointError for what is not there. A run that goes on may be finished, and need nothing
    but itself.
    """
    if resume:
        require_run(Path(folder))
        return
    for setting in ("model", "init_from"):
        path = getattr(config, setting, None)
        if isinstance(path, str) and path not in RECIPES:  # of a recipe, it is the shape that is asked for
            require_model(Path(path), setting)
    for setting in ("data", "validation"):
        if (path := getattr(config, setting, None)) is not None:
            require_data(path)


def recorded(folder: str, kind: type[Config]) -> Config:
    """The configuration of the run in a folder. Raises ConfigurationError if another verb began it, and names that."""
    require_run(Path(folder))
    from asterism.training.run.folder import RunFolder  # takes seconds to import

    config = RunFolder(folder).read_config()
    if not isinstance(config, kind):
        raise ConfigurationError(
            "other-kind-of-run",
            f"resume: {folder} was not begun by `asterism {kind.kind}`;"
            f" resume with: asterism {config.kind} --folder {folder} --resume",
        )
    return config


class _Formatter(DefaultHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """jsonargparse's types and defaults; description and example as they are written."""

    def _expand_help(self, action: argparse.Action) -> str:
        """Without `default: null` where the meaning says what the default is."""
        text = super()._expand_help(action)
        if "default" not in (action.help or "").lower():
            return text
        return re.sub(r"(, | \()default: (null)?\)$", lambda found: ")" if found[1] == ", " else "", text)


class SettingsParser(ArgumentParser):
    """jsonargparse's parser of one verb; its help shows flags with dashes, as they are written on the command line."""

    def __init__(self, verb: str, usage: str, description: str, example: str) -> None:
        super().__init__(
            prog=f"asterism {verb}",
            usage=f"asterism {verb} {usage}",
            description=description,
            epilog=f"example:\n  {example}",
            formatter_class=_Formatter,
            exit_on_error=False,
            allow_abbrev=False,
        )
        self.switches: list[str] = []
        self.add_argument("--config", action="config", metavar="PATH", help="a YAML or JSON file of settings")
        self.add_argument("--json", action="store_true", help="print one JSON document instead of text")

    def add_settings(self, configuration: type, titles: Mapping[str, str], defaults: Mapping[str, Any]) -> None:
        """Add the fields of a dataclass as flags, in groups with these titles, and with these defaults."""
        self.add_class_arguments(configuration)
        groups = self.groups or {}
        for name, title in titles.items():
            groups[name].title = title
        for flag, meaning in _meanings(configuration).items():
            self._option_string_actions[flag].help = meaning
        self.switches = _switches(configuration)
        self.set_defaults(dict(defaults))

    def format_help(self) -> str:
        text = re.sub(r"--[a-z_.]+", lambda flag: _dashed(flag.group()), super().format_help())
        return text.replace("{true,false}", SWITCH)

    def parse(self, words: Sequence[str]) -> dict[str, Any]:
        """The values of all flags; flags override the file, wherever they stand. Raises UsageError."""
        try:
            return self.parse_args(_file_first(with_values(words, self.switches))).as_dict()
        except argparse.ArgumentError as error:
            raise _usage_error(str(error), [_dashed(flag) for flag in self._option_string_actions]) from None
        except RecursionError:
            raise UsageError("nested-settings", "a setting is nested too deeply, and settings are flat") from None
        except (AttributeError, OverflowError, ValueError) as error:  # what YAML says of values under a tag
            raise UsageError(
                "unreadable-setting", f"a setting in the file cannot be read: {' '.join(str(error).split())[:200]}"
            ) from None


def _meanings(configuration: type, prefix: str = "--") -> dict[str, str]:
    """The help of flags whose fields have one (`metadata["help"]`), those of fields that are dataclasses included."""
    meanings = {}
    for field in fields(configuration):
        if is_dataclass(field.type):
            meanings |= _meanings(field.type, f"{prefix}{field.name}.")
        elif "help" in field.metadata:
            meanings[prefix + field.name] = field.metadata["help"]
    return meanings


def _switches(configuration: type, prefix: str = "--") -> list[str]:
    """The flags of fields that are true or false, those of fields that are dataclasses included."""
    switches = []
    for field in fields(configuration):
        if is_dataclass(field.type):
            switches += _switches(field.type, f"{prefix}{field.name}.")
        elif field.type is bool:
            switches.append(prefix + field.name)
    return switches


def underscored(word: str) -> str:
    """`--batch-size=4` as the parser knows it, `--batch_size=4`; other words as they are."""
    flag, equals, value = word.partition("=")
    return flag[:2] + flag[2:].replace("-", "_") + equals + value if word.startswith("--") else word


def _file_first(words: Sequence[str]) -> list[str]:
    """The words with the configuration file in front, so that flags before it override it too."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--config")
    found, rest = parser.parse_known_args(words)
    if found.config is not None:
        check_settings_file(found.config)
    return rest if found.config is None else [f"--config={found.config}", *rest]


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
        return UsageError(
            "unknown-setting", f"the configuration file has an unknown setting {name!r}.{nearest(name, settings)}"
        )
    if found := re.match(r"the following arguments are required: (.+)", text):
        return UsageError(
            "missing-argument",
            f"required: {', '.join(f'--{_dashed(name)}' for name in found[1].split(', '))}; see --help",
        )
    text = re.sub(r"<class '(\w+)'>", r"\1", text).replace("NoneType", "null").replace("typing.Literal", "one of ")
    text = re.sub(
        r"Does not validate .*? Subtypes: \[(.*)\] Errors: .* Given value: ", r"Expected \1. Got value: ", text
    )
    text = re.sub(r'Parser key "(.+?)":', lambda key: f"--{_dashed(key[1])}:", text)
    return UsageError("unreadable-setting", re.sub(r"Expected (?:a )?(.+)\. Got value: ", r"expected \1, got ", text))
