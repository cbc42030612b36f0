"""Verbs whose flags are the fields of a configuration: flags and a YAML file to one set of values.

The parser is jsonargparse's, made from a dataclass; here its flags get dashes and its complaints become one line with
the nearest valid name.
"""

import argparse
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_args

from jsonargparse import ArgumentParser

from asterism import training
from asterism.cli.errors import UsageError
from asterism.cli.help import Rows, page
from asterism.cli.parser import DEVICE, device_name, print_json, refuse_unknown
from asterism.cli.processes import is_follower
from asterism.cli.settings_file import check_settings_file
from asterism.cli.waiting import waiting
from asterism.cli.words import positional, switched
from asterism.errors import ConfigurationError, nearest
from asterism.presence import require_data, require_model, require_run
from asterism.system import launched
from asterism.training.recipes import RECIPES
from asterism.training.settings.configuration import AnyConfig, TrainingConfig

Config = TypeVar("Config", bound=TrainingConfig)


def train_and_tell(config: AnyConfig, arguments: argparse.Namespace) -> None:
    """Train and print the report; when interrupted, print how to resume.

    `arguments` are those of the verb: folder, resume, device and json.
    """
    folder = arguments.folder
    require_what_it_names(config, folder, arguments.resume)
    try:
        with waiting("loading PyTorch and transformers"):
            from asterism.training.run.device import computing_on

            train = training.train
        with computing_on(arguments.device):
            report = train(config, folder, resume=arguments.resume)
    except KeyboardInterrupt:
        if Path(folder, "run.json").exists() and not is_follower():
            parallel = f" --parallel {config.parallel}" if config.parallel else ""
            started = f", in {launched()} processes or in any other mesh" if launched() > 1 else ""
            print(f"resume with: asterism {config.kind} {folder} --resume{parallel}{started}", file=sys.stderr)
        raise
    if is_follower():
        return
    if arguments.json:
        print_json(report.as_json())
        return
    print(report)


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
            f" resume with: asterism {config.kind} {folder} --resume",
        )
    return config


def finished_after(folder: str) -> int | None:
    """The number of steps of the run in a folder; None if it is not finished."""
    from asterism.training.run.folder import RunFolder  # takes seconds to import

    result = RunFolder(folder).read_record()["result"]
    return None if result is None else int(result["steps"])


class SettingsParser(ArgumentParser):
    """jsonargparse's parser of one verb, with a help of its own.

    Flags have underscores here, as settings have in files, and dashes on the command line.
    """

    def __init__(self, verb: str, usage: str, description: str, example: str) -> None:
        super().__init__(prog=f"asterism {verb}", exit_on_error=False, allow_abbrev=False, add_help=False)
        self.words_of_usage = f"asterism {verb} {usage}"
        self.about, self.example = description, example
        self.defaults: dict[str, Any] = {}
        self.fields: dict[str, Field[Any]] = {}
        self.add_argument("--config", action="config")
        self.add_argument("--json", action="store_true")
        self.add_argument("--folder")
        self.add_argument("--resume", action="store_true")
        self.add_argument("--device", type=device_name, default="auto")

    def add_settings(self, configuration: type, defaults: Mapping[str, Any]) -> None:
        """Add the fields of a dataclass as flags with these defaults."""
        self.add_class_arguments(configuration)
        self.fields = settings_of(configuration)
        self.set_defaults(dict(defaults))
        self.defaults = _flat(defaults)

    def parse(self, words: Sequence[str]) -> dict[str, Any]:
        """The values of all flags; flags override the file, wherever they stand. Raises UsageError."""
        try:
            return self.parse_args(_file_first(words)).as_dict()
        except argparse.ArgumentError as error:
            raise _usage_error(str(error), [_dashed(flag) for flag in self._option_string_actions]) from None
        except RecursionError:
            raise UsageError("nested-settings", "a setting is nested too deeply, and settings are flat") from None
        except (AttributeError, OverflowError, ValueError) as error:  # what YAML says of values under a tag
            raise UsageError(
                "unreadable-setting", f"a setting in the file cannot be read: {' '.join(str(error).split())[:200]}"
            ) from None

    def help(self, own: Rows, groups: Iterable["Group"], *, everything: bool) -> str:
        """The help of the verb: its own flags, then the settings that people need, or all of them."""
        shown: dict[str, Rows] = {}
        for group in groups:
            names = [*group.main, *(group.more if everything else ())]
            if names:
                shown[group.title] = [self._row(name) for name in names]
        shown["command"] = own
        return page(self.words_of_usage, self.about, shown, f"example:\n  {self.example}")

    def _row(self, name: str) -> tuple[str, str]:
        """The flag of a setting, its meaning, and its default where the meaning does not tell it."""
        if name == "device":
            return "--device NAME", DEVICE
        field, flag = self.fields[name], _dashed(name)
        default = self.defaults.get(name, field.default)
        told = "" if default is None or default is MISSING or default == "" else f" (default: {_shown(default)})"
        meaning = field.metadata["help"]
        if field.type is bool:
            return f"--[no-]{flag}", meaning + (" (default: on)" if default else "")
        meaning = meaning if not told else re.sub(_OF_TEXT, "", meaning)
        choices = choices_of(field)
        if len(listed := f"--{flag} {{{','.join(choices)}}}") > _WIDEST_FLAG:
            names = "" if all(f'"{one}"' in meaning for one in choices) else f"; one of {', '.join(choices)}"
            return f"--{flag} NAME", f"{meaning}{names}{told}"
        return listed if choices else f"--{flag} {_placeholder(field)}", meaning + told


_WIDEST_FLAG = 46
"""Columns of a flag with its choices."""

_OF_TEXT = r" \(default: .*\)$"
"""A default at the end of a meaning: the value that replaces it is shown instead."""


class Group(NamedTuple):
    """Settings that help shows together: those that people need, and more that --help-all shows."""

    title: str
    main: Sequence[str] = ()
    more: Sequence[str] = ()


OPTIMIZER = (
    "optimizer",
    "schedule",
    "warmup_steps",
    "beta1",
    "beta2",
    "weight_decay",
    "gradient_clip",
    "gradient_accumulation_steps",
    "gradient_checkpointing",
)
EVERY = ("log_every", "evaluation_every", "checkpoint_every")
MACHINE = Group("machine", ("device", "dtype", "parallel"), ("dense_exchange", "process_timeout"))
"""Settings that all verbs share which train."""


def settings_of(configuration: type, prefix: str = "") -> dict[str, "Field[Any]"]:
    """The fields of a configuration by name; those of a field that is a dataclass as "model.hidden_size"."""
    found: dict[str, Field[Any]] = {}
    for field in fields(configuration):
        if is_dataclass(field.type):
            found |= settings_of(field.type, f"{prefix}{field.name}.")  # type: ignore[arg-type]
        else:
            found[prefix + field.name] = field
    return found


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return flat


def choices_of(field: "Field[Any]") -> list[str]:
    """The words that a setting can be chosen from; empty if it is no choice."""
    kinds = (field.type, *get_args(field.type))
    return list(dict.fromkeys(one for kind in kinds for one in get_args(kind) if isinstance(one, str)))


def _placeholder(field: "Field[Any]") -> str:
    """How help shows the value of a flag."""
    kinds = get_args(field.type) or (field.type,)
    if int in kinds or float in kinds:
        return "N" if int in kinds else "X"
    if field.name in PATHS:
        return "PATH"
    return "LIST" if str not in kinds else "NAME" if field.name in _NAMES else "TEXT"


_NAMES = ("recipe", "objective", "task")

PATHS = ("data", "validation", "model", "init_from", "label_table", "genome", "column_groups")


def _shown(value: Any) -> str:
    """A default, for people."""
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, int):
        return f"{value:,}" if value >= 10_000 else str(value)
    text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# --- the words of the command line -----------------------------------------------------------------------------------

_ALONE = ("--json", "--resume", "--dry_run", "--help", "-h", "--help_all", "--print_config")
"""Flags without a value."""

HELP = ("-h", "--help", "--help_all")


class Words(NamedTuple):
    """A command line: the folder of the run, if it is given, and the flags, with underscores."""

    run: str | None
    flags: list[str]


def read_words(verb: str, argv: Sequence[str], configuration: type) -> Words:
    """RUN, which may stand anywhere and be given as --folder, and the flags. Raises UsageError."""
    switches = [f"--{name}" for name, field in settings_of(configuration).items() if field.type is bool]
    found, flags = positional(switched([underscored(word) for word in argv], switches), _ALONE)
    if len(found) > 1:
        raise UsageError("unexpected-argument", f"unexpected argument {found[1]!r} after RUN {found[0]!r}; see --help")
    if found:
        _refuse_as_run(verb, found[0])
    return Words(found[0] if found else None, flags)


def _refuse_as_run(verb: str, word: str) -> None:
    """Raises UsageError for a word that is no folder of a run but probably the value of a flag."""
    name = repr(word)
    if word in RECIPES and not Path(word).exists():
        raise UsageError(
            "recipe-as-run", f"{name} is a recipe, and RUN is a folder: {verb} --recipe {word}, or the folder ./{word}"
        )
    if Path(word).is_file():
        raise UsageError("file-as-run", f"{name} is a file, and RUN is a folder: give files with --config or --data")


def print_help(
    parser: SettingsParser, words: Sequence[str], own: Sequence[tuple[str, str]], groups: Sequence[Group]
) -> None:
    """Print the help and end the program, where the words ask for it."""
    if not any(word in HELP for word in words):
        return
    rows = [(flags, meaning.format(settings=len(parser.fields))) for flags, meaning in own]
    print(parser.help(rows, groups, everything="--help_all" in words), end="")
    raise SystemExit(0)


def folder_of(run: str | None, folder: str | None) -> str | None:
    """RUN or --folder. Raises UsageError if both are given and differ."""
    if run is not None and folder is not None and Path(run) != Path(folder):
        raise UsageError("given-twice", f"RUN is {run!r} and --folder is {folder!r}: give one of them")
    return folder if run is None else run


def underscored(word: str) -> str:
    """`--batch-size=4` as the parser has it, `--batch_size=4`; other words as they are."""
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
