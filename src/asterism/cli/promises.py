"""asterism promises: check that models keep their promises, with the same checks for ours and Hugging Face's.

Without MODEL, every check runs a small model with random weights and compares two of its answers. The last check
measures peak memory in a separate process. The exit code is 1 if one of our models breaks a promise.

With MODEL, each layer's windows and chunks are measured: a token is perturbed, and the outputs that move are compared
with the configuration. Each path of tokens into the model (at once, padded, packed, through caches, in pieces) is
applied, refused, or silently dropped. A small model with random weights and the same types of layers stands for MODEL,
because a rule shows in small windows too; with --full the folder's own weights and windows are measured. The exit code
is 1 if anything is silently dropped.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asterism.cli.errors import UsageError
from asterism.cli.output import add_record, say, write_record
from asterism.cli.parser import Parser, print_json, whole_number
from asterism.cli.waiting import waiting
from asterism.errors import AsterismError

_DEFAULT = "eager,sdpa"


def run(argv: Sequence[str]) -> None:
    arguments = _parser().parse(argv)
    if arguments.model is None:
        _refuse_flags_of_models(arguments)
        _run_ours(arguments)
        return
    _refuse_no_model(arguments.model, arguments.full)
    _run_windows(arguments)


def _run_ours(arguments: Any) -> None:
    with waiting("loading PyTorch and transformers"):
        from asterism.promises import broken, check_promises, table
    with waiting("checking"):
        record = check_promises(say)
    if arguments.record:
        write_record(arguments.record, record)
    if arguments.json:
        print_json(record)
    else:
        print(table(record))
    if ours := broken(record):
        raise AsterismError("promises-broken", f"broken promises of our models: {'; '.join(ours)}")


def _run_windows(arguments: Any) -> None:
    with waiting("loading PyTorch and transformers"):
        from asterism.promises import check_windows, small_model, windows_table
        from asterism.promises.twins import whole_model
    with waiting("checking"):
        model, notes = (whole_model if arguments.full else small_model)(arguments.model)
        report = check_windows(
            model,
            attention=_names(arguments.attention or _DEFAULT),
            paths=_names(arguments.paths),
            tokens=arguments.tokens,
            notes=notes,
        )
    record = report.record()
    if arguments.record:
        write_record(arguments.record, record)
    if arguments.json:
        print_json(record)
    else:
        print(windows_table(report))
    if dropped := report.dropped:
        where = dict.fromkeys(f"{one.attention}, {one.path}" for one in dropped)
        raise AsterismError("windows-dropped", f"{report.model} silently dropped a rule: {'; '.join(where)}")


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",")]


def _refuse_flags_of_models(arguments: Any) -> None:
    given = {name: getattr(arguments, name) for name in ("attention", "paths", "tokens", "full")}
    if named := [name for name, value in given.items() if value]:
        raise UsageError("flag-needs-model", f"--{named[0]} needs MODEL: asterism promises MistralForCausalLM")


def _refuse_no_model(name: str, full: bool) -> None:
    """Before anything is imported: a folder with a configuration, or what looks like the name of a class."""
    is_folder = Path(name).is_dir()
    if is_folder and not (Path(name) / "config.json").exists():
        raise UsageError("not-a-model-folder", f"{name} is not the folder of a model: it has no config.json")
    if not is_folder and not (name.isidentifier() and name[0].isupper()):
        raise UsageError(
            "no-such-model",
            f"{name[:60]!r} is neither a folder with a config.json nor the name of a class of transformers, such as"
            " MistralForCausalLM",
        )
    if full and not is_folder:
        raise UsageError("full-needs-folder", f"--full measures the weights of a folder, but {name} is a class")


def _parser() -> Parser:
    parser = Parser("promises", __doc__ or "", "asterism promises MistralForCausalLM --attention eager,sdpa")
    parser.add_argument(
        "model", metavar="MODEL", nargs="?", help="a folder with a config.json, or a class of transformers"
    )
    parser.add_argument(
        "--attention",
        metavar="NAMES",
        help=f"joined by commas: eager, sdpa, flex_attention, asterism, ... (default: {_DEFAULT})",
    )
    parser.add_argument(
        "--paths", metavar="NAMES", help='paths, joined by commas: "prefill,static cache" (default: all)'
    )
    parser.add_argument("--tokens", type=whole_number(24), metavar="N", help="length of the rows (default: by window)")
    parser.add_argument("--full", action="store_true", help="measure the folder's own weights and windows")
    add_record(parser, "with the versions of all libraries")
    return parser
