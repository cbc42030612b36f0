"""asterism bench: how fast the implementations are here, beside dense attention and the peers that are installed.

Every contender's output and gradients are checked against float64 first; what fails is not timed. Times are medians of
samples taken in turns.
"""

import json
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from asterism.bench import OURS, Settings, measure, table
from asterism.bench.case import DTYPES
from asterism.cli.parser import Parser, UsageError, print_json, whole_number
from asterism.errors import AsterismError, nearest
from asterism.kernels import IMPLEMENTATIONS
from asterism.patterns import parse

_DEFAULT = Settings()


def run(argv: Sequence[str]) -> None:
    arguments = _parser().parse(argv)
    if arguments.promises:
        return _promises(arguments)
    settings = _settings(arguments)
    output, plot = _file(arguments.output, ".json"), _file(arguments.plot, ".png")
    draw = _drawing() if plot else None
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    record = measure(settings, _say, _keeper(output) if output else None)
    if plot and draw:
        draw(record, plot)
    if arguments.json:
        print_json(record)
    else:
        print(table(record))


def _promises(arguments: Namespace) -> None:
    """Check all promises; AsterismError when one of ours is broken."""
    from asterism.promises import broken, promises, promises_table  # needs transformers, which only models do

    defaults = vars(_parser().parse(["--promises"]))
    given = [name for name, value in vars(arguments).items() if value != defaults[name]]
    if unread := [name for name in given if name not in ("output", "json")]:
        what = "a pattern" if unread[0] == "patterns" else f"--{unread[0].replace('_', '-')}"
        raise UsageError(f"--promises checks models of its own, so {what} says nothing there; leave it out")
    output = _file(arguments.output, ".json")
    record = promises(_say)
    if output:
        _keeper(output)(record)
    if arguments.json:
        print_json(record)
    else:
        print(promises_table(record))
    if ours := broken(record):
        raise AsterismError(f"broken promises of ours: {'; '.join(ours)}")


def _settings(arguments: Namespace) -> Settings:
    """The settings that the flags ask for; raises UsageError and PatternError for what cannot be measured."""
    for name in arguments.implementations:
        if name not in IMPLEMENTATIONS:
            known = ", ".join(IMPLEMENTATIONS)
            raise UsageError(f"unknown implementation {name!r}: use {known}.{nearest(name, IMPLEMENTATIONS)}")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: PyTorch finds no GPU here")
    patterns = tuple(parse(text).text for text in arguments.patterns) or _DEFAULT.patterns
    for text in patterns:
        parse(text).check_heads(arguments.heads)
    return Settings(
        patterns=patterns,
        lengths=tuple(arguments.lengths),
        dtypes=tuple(dict.fromkeys(arguments.dtypes)),
        implementations=tuple(dict.fromkeys(arguments.implementations)),
        peers=not arguments.no_peers,
        heads=arguments.heads,
        head_dim=arguments.head_dim,
        batch=arguments.batch,
        backward=not arguments.no_backward,
        memory=not arguments.no_memory,
        repeats=arguments.repeats,
        patience=float(arguments.patience),
        device=arguments.device,
    )


def _file(name: str | None, suffix: str) -> Path | None:
    """A file to write, refused before anything is measured if it could not be written."""
    if name is None:
        return None
    path = Path(name)
    if path.suffix != suffix:
        raise UsageError(f"the file must end in {suffix}, got {name!r}")
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {str(path.parent)!r} to write {path.name} into")
    return path


def _drawing() -> Callable[[Mapping[str, Any], Path], None]:
    from asterism.bench.picture import draw_times  # needs matplotlib, which only plots do

    return draw_times


def _keeper(path: Path) -> Callable[[Mapping[str, Any]], None]:
    """Writes the record so far, whole or not at all."""

    def keep(record: Mapping[str, Any]) -> None:
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        unfinished.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n")
        unfinished.replace(path)

    return keep


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _parser() -> Parser:
    example = 'asterism bench "window(left=63)" -n 256 512 --implementations eager --no-peers --no-memory'
    parser = Parser("bench", __doc__ or "", example)
    count = whole_number(1)
    parser.add_argument(
        "patterns", nargs="*", metavar="PATTERN", help=f"rules (default: {', '.join(_DEFAULT.patterns)})"
    )
    parser.add_argument("-n", "--lengths", type=count, nargs="+", default=_DEFAULT.lengths, metavar="N", help="tokens")
    parser.add_argument("--dtypes", choices=DTYPES, nargs="+", default=_DEFAULT.dtypes, help="number formats")
    parser.add_argument(
        "--implementations", nargs="*", default=OURS, metavar="NAME", help=f"which of ours (default: {', '.join(OURS)})"
    )
    parser.add_argument("--heads", type=count, default=_DEFAULT.heads, help="query heads (default 8)")
    parser.add_argument("--head-dim", type=count, default=_DEFAULT.head_dim, help="features a head (default 64)")
    parser.add_argument("--batch", type=count, default=_DEFAULT.batch, help="sequences (default 1)")
    parser.add_argument("--threads", type=count, help="CPU threads (default: PyTorch's choice)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where (default cpu)")
    parser.add_argument("--repeats", type=count, default=_DEFAULT.repeats, help="samples of each time (default 7)")
    parser.add_argument(
        "--patience",
        type=count,
        default=int(_DEFAULT.patience),
        metavar="SECONDS",
        help="about how long one contender may take in one case and direction; it then has fewer samples (default 60)",
    )
    parser.add_argument("--no-backward", action="store_true", help="time forward only")
    parser.add_argument("--no-memory", action="store_true", help="leave out peak memory, which takes a process per row")
    parser.add_argument("--no-peers", action="store_true", help="leave other libraries out; dense attention stays")
    parser.add_argument(
        "--promises", action="store_true", help="check instead what models promise, ours and other libraries'"
    )
    parser.add_argument("--output", metavar="FILE.json", help="also write the record, after every case")
    parser.add_argument("--plot", metavar="FILE.png", help="also draw time against length")
    return parser
