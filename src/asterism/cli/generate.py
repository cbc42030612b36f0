"""asterism generate: continue a prompt with a trained model, or write pictures, sounds or sequences to a file.

Without --output the prompt is text, and what follows it is written raw to a file or pipe, readable to a terminal. With
--output the prompt is a file, and the model of pictures (.png), sounds (.wav), genomes (.fasta) or bytes writes one:
new sequences, a longer file, or held-out pieces next to those that the model completes from their first half. Draws
are kept next to FILE until that is written: after a stop, --resume draws only what is missing.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from asterism import training
from asterism.cli.parser import Parser, UsageError, add_dense_exchange, print_json, whole_number
from asterism.cli.processes import is_follower, print_how_to_resume
from asterism.presence import require_run
from asterism.system import launched


def run(argv: Sequence[str]) -> None:
    options, as_json = _parser().options(argv)
    if options["output"] is not None and (options["parallel"] or options["dense_exchange"]):
        raise UsageError(
            "prompt-only-flags",
            "--parallel and --dense-exchange are for a prompt of text: files are made by one process",
        )
    if launched() > 1 and not options["parallel"]:
        raise UsageError(
            "one-process-only",
            f"generate is the work of one process, and WORLD_SIZE says that there are {launched()}: start it without a"
            f" launcher, or divide a prompt of text by --parallel cp={launched()}",
        )
    if options["output"] is None:
        _refuse_what_files_take(options)
    require_run(Path(options["run"]))
    if options["output"] is not None:
        try:
            _write_file(options, as_json)
        except KeyboardInterrupt:
            print_how_to_resume("generate", argv, options["output"])
            raise
        return
    options["length"] = options["length"] or 500
    del options["output"]
    _write_text(options, as_json)


def _refuse_what_files_take(options: dict[str, Any]) -> None:
    """Takes the options of files out; raises UsageError for one that is given, and for a missing prompt."""
    for name in ("complete", "keep", "count", "label", "data", "resume"):
        value = options.pop(name)
        if value is not False and value not in (None, []):
            raise UsageError("flag-needs-output", f"--{name} needs --output: what is made is written to a file")
    if options["prompt"] is None:
        raise UsageError(
            "missing-argument", "the following arguments are required: --prompt, or --output for models of files"
        )


def _write_text(options: dict[str, Any], as_json: bool) -> None:
    continuation = training.generate(**options)
    if is_follower():
        return
    written = options["prompt"] + continuation
    text = written.decode(errors="replace")
    if as_json:
        print_json({"run": options["run"], "seed": options["seed"], "text": text, "bytes": list(continuation)})
    elif sys.stdout.isatty():
        print("".join(glyph if glyph.isprintable() or glyph in "\n\t" else "\ufffd" for glyph in text))
    else:
        sys.stdout.buffer.write(written)


def _write_file(options: dict[str, Any], as_json: bool) -> None:
    from asterism.training.ask.generation import Wanted  # takes seconds to import
    from asterism.training.settings.sampling import Sampling

    prompt = options["prompt"]
    wanted = Wanted(
        prompt=None if prompt is None else os.fsdecode(prompt),
        complete=options["complete"],
        keep=options["keep"],
        count=options["count"] or 1,
        length=options["length"],
        labels=options["label"],
        data=options["data"],
    )
    how = Sampling(**{name: options[name] for name in ("temperature", "top_k", "top_p", "seed")})
    report = training.generate_file(options["run"], options["output"], wanted, how, resume=options["resume"])
    if as_json:
        print_json(asdict(report))
    else:
        print(report)


def _parser() -> Parser:
    parser = Parser("generate", __doc__ or "", 'asterism generate runs/bytes-small --prompt "def " --length 300')
    parser.add_argument("run", metavar="RUN", help="the folder of a run")
    parser.add_argument("--prompt", type=os.fsencode, metavar="TEXT", help="what to continue; a file, with --output")
    parser.add_argument("--output", metavar="FILE", help="a file that is not there yet, for what is made")
    parser.add_argument("--resume", action="store_true", help="resume an output that is not finished")
    parser.add_argument(
        "--complete",
        type=whole_number(1),
        metavar="N",
        help="complete N pieces of the test split, next to the originals",
    )
    parser.add_argument(
        "--keep", type=float, metavar="SHARE", help="how much of a prompt or piece is given (default: half a picture)"
    )
    parser.add_argument(
        "--count", type=whole_number(1), metavar="N", help="sequences for each prompt, piece or label (default 1)"
    )
    parser.add_argument("--label", nargs="+", default=[], metavar="L", help="classes, by name or number")
    parser.add_argument("--data", metavar="PATH", help="where the test split is (default: the run's data)")
    parser.add_argument(
        "--length", type=whole_number(1), metavar="N", help="values to add (default 500 bytes; a file: the context)"
    )
    parser.add_argument("--temperature", type=float, default=1.0, help="0 takes the likeliest value (default 1)")
    parser.add_argument("--top-k", type=whole_number(1), metavar="K", help="draw among the K likeliest values only")
    parser.add_argument(
        "--top-p", type=float, metavar="P", help="draw among the likeliest values that have probability P"
    )
    parser.add_argument("--seed", type=whole_number(0), default=0, help="what the draws depend on (default 0)")
    parser.add_argument(
        "--parallel",
        default="",
        metavar="TEXT",
        help="cp=N: the N processes that a launcher starts share the tokens of a prompt of text",
    )
    add_dense_exchange(parser)
    return parser
