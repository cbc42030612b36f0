"""asterism bench: time the implementations on this machine, compared with dense attention and installed peer libraries.

The output and gradients of each contender are first checked against float64; a contender that fails is not timed. Times
are medians; the contenders take turns. With --calibrate, bench instead measures and stores the prices by which
implementation="auto" chooses on this machine, and prints its choices.
"""

from argparse import Namespace
from collections.abc import Sequence
from functools import partial

import torch

from asterism.bench import OURS, BenchSettings, choices_table, measure, recalibrate, table
from asterism.bench.case import DTYPES
from asterism.bench.machine import memory
from asterism.cli.errors import UsageError
from asterism.cli.mixers import MOST_TOKENS
from asterism.cli.output import add_plot, add_record, say, write_record, written_whole
from asterism.cli.parser import Parser, print_json, whole_number
from asterism.cli.waiting import waiting
from asterism.errors import AsterismError, nearest
from asterism.kernels import IMPLEMENTATIONS
from asterism.patterns import parse, require_self_attention

_DEFAULT = BenchSettings()

_OF_CALIBRATION = ("calibrate", "threads", "json", "record")
"""The flags that --calibrate takes."""


def run(argv: Sequence[str]) -> None:
    arguments = _parser().parse(argv)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    if arguments.calibrate:
        _calibrate(arguments)
        return
    settings, file = _settings(arguments), arguments.record
    with waiting("measuring"):
        record = measure(settings, say, partial(write_record, file) if file else None)
    if arguments.plot:
        from asterism.bench.picture import draw_times  # needs matplotlib

        with written_whole(arguments.plot) as unfinished:
            draw_times(record, unfinished)
    if arguments.json:
        print_json(record)
    else:
        print(table(record))


def _calibrate(arguments: Namespace) -> None:
    """Raises UsageError for flags of the other benchmark, and AsterismError if the figures cannot be kept."""
    for name, value in vars(arguments).items():
        if name not in _OF_CALIBRATION and value not in ([], _parser().get_default(name)):
            told = "patterns" if name == "patterns" else f"--{'no-' * (value is False)}{name.replace('_', '-')}"
            raise UsageError("calibrate-alone", f"--calibrate always measures the same: leave out {told}")
    with waiting("measuring"):
        record = recalibrate(say)
    if arguments.record:
        write_record(arguments.record, record)
    if arguments.json:
        print_json(record)
    else:
        print(choices_table(record))
    if record["kept"] is None:
        raise AsterismError(
            "figures-not-kept",
            f"the prices cannot be stored: {record['reason']}; set ASTERISM_CACHE to a folder that can be written",
        )
    say(f"stored in {record['kept']}")


def _settings(arguments: Namespace) -> BenchSettings:
    """The settings that the flags ask for; raises UsageError and PatternError for what cannot be measured."""
    for name in arguments.implementations:
        if name not in IMPLEMENTATIONS:
            known = ", ".join(IMPLEMENTATIONS)
            raise UsageError(
                "unknown-implementation",
                f"unknown implementation {name!r}: use {known}.{nearest(name, IMPLEMENTATIONS)}",
            )
    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise UsageError("no-gpu", "--device cuda: PyTorch finds no GPU here")
    _check_memory(arguments)
    patterns = tuple(str(parse(text)) for text in arguments.patterns) or _DEFAULT.patterns
    for text in patterns:
        parse(text).check_heads(arguments.heads)
        require_self_attention(parse(text), "bench, which measures self-attention")
    return BenchSettings(
        patterns=patterns,
        lengths=tuple(arguments.lengths),
        dtypes=tuple(dict.fromkeys(arguments.dtypes)),
        implementations=tuple(dict.fromkeys(arguments.implementations)),
        peers=arguments.peers,
        heads=arguments.heads,
        head_dim=arguments.head_dim,
        batch=arguments.batch,
        backward=arguments.backward,
        memory=arguments.memory,
        repeats=arguments.repeats,
        patience=float(arguments.patience),
        device=arguments.device,
    )


def _check_memory(arguments: Namespace) -> None:
    """Refuse operands that do not fit: PyTorch would fail during a measurement, or the system kill it."""
    tokens = max(arguments.lengths)
    features = arguments.batch * arguments.heads * arguments.head_dim
    needed, there = 4 * 4 * tokens * features, memory()
    if arguments.device == "cpu" and there is not None and needed > there:
        raise UsageError(
            "too-much-memory",
            f"q, k, v and the gradient of {tokens:,} tokens with {features:,} features take {needed / 2**30:,.0f} GiB,"
            f" and the machine has {there / 2**30:,.0f} GiB: ask for less",
        )


def _parser() -> Parser:
    example = 'asterism bench "window(left=63)" -n 256 512 --implementations eager --no-peers --no-memory'
    parser = Parser("bench", __doc__ or "", example)
    count = whole_number(1, MOST_TOKENS)
    parser.add_argument(
        "patterns", nargs="*", metavar="PATTERN", help=f"patterns (default: {', '.join(_DEFAULT.patterns)})"
    )
    parser.add_argument(
        "-n", "--lengths", type=count, nargs="+", default=_DEFAULT.lengths, metavar="N", help="numbers of tokens"
    )
    parser.add_argument("--dtypes", choices=DTYPES, nargs="+", default=_DEFAULT.dtypes, help="dtypes of the operands")
    parser.add_argument(
        "--implementations",
        nargs="*",
        default=OURS,
        metavar="NAME",
        help=f"Asterism's implementations to time (default: {', '.join(OURS)})",
    )
    parser.add_argument("--heads", type=count, default=_DEFAULT.heads, help="query heads (default: 8)")
    parser.add_argument("--head-dim", type=count, default=_DEFAULT.head_dim, help="features per head (default: 64)")
    parser.add_argument("--batch", type=count, default=_DEFAULT.batch, help="sequences per batch (default: 1)")
    parser.add_argument("--threads", type=whole_number(1, 4096), help="CPU threads (default: PyTorch's choice)")
    parser.add_argument(
        "--calibrate",
        action="store_true",
        help="measure the prices of auto on this machine again, and print its choices",
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="device (default: cpu)")
    parser.add_argument("--repeats", type=count, default=_DEFAULT.repeats, help="samples per measurement (default: 7)")
    parser.add_argument(
        "--patience",
        type=count,
        default=int(_DEFAULT.patience),
        metavar="SECONDS",
        help="rough limit for one contender in one case and direction; slow ones get fewer samples (default: 60)",
    )
    parser.add_switch("--backward", "time the backward pass, too (default: yes)", default=True)
    parser.add_switch("--memory", "measure peak memory, in a process per row (default: yes)", default=True)
    parser.add_switch("--peers", "time other libraries, besides dense attention (default: yes)", default=True)
    add_record(parser, "after every case")
    add_plot(parser, "time against length")
    return parser
