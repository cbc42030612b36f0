"""asterism generate: continue a prompt with a trained model, or write pictures, sounds or sequences to a file.

Without --output the prompt is text. Its continuation goes to standard output: raw bytes to a file or pipe, readable
text to a terminal. A model of tokens stops where it ends the text. With --chat, the lines of standard input are the
messages of a user.

With --output the prompt is a file, and a model of pictures (.png), sounds (.wav), genomes (.fasta) or bytes writes a
new one: new sequences, a longer file, or held-out pieces next to their completion by the model (--complete). Finished
draws are stored next to FILE until it is written: after an interruption, --resume draws only the missing ones.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from asterism import training
from asterism.cli.errors import UsageError
from asterism.cli.parser import Parser, add_dense_exchange, print_json, whole_number
from asterism.cli.processes import is_follower, print_how_to_resume
from asterism.cli.waiting import waiting
from asterism.presence import require_run
from asterism.system import launched

_LENGTH = 500
"""Bytes that continue a prompt of text, where no number is given."""


def run(argv: Sequence[str]) -> None:
    options, as_json = _parser().options(argv)
    if options["output"] is not None and (options["parallel"] or options["dense_exchange"]):
        raise UsageError(
            "prompt-only-flags",
            "--parallel and --dense-exchange are for a text prompt; one process writes files",
        )
    if launched() > 1 and not options["parallel"]:
        raise UsageError(
            "one-process-only",
            f"generate is the work of one process, and WORLD_SIZE is {launched()}: start it without a launcher, or"
            f" share a text prompt by --parallel cp={launched()}",
        )
    is_chat = options.pop("chat")
    if is_chat:
        _refuse_beside_chat(options, as_json)
    elif options["output"] is None:
        _refuse_what_files_take(options)
    require_run(Path(options["run"]))
    with waiting("loading PyTorch and transformers"):
        from asterism.training.run.device import computing_on

        make = training.generate if options["output"] is None else training.generate_file
    with computing_on(options.pop("device")):
        if is_chat:
            _chat(options)
            return
        if options["output"] is None:
            _write_text(make, options, as_json)
            return
        try:
            _write_file(make, options, as_json)
        except KeyboardInterrupt:
            print_how_to_resume("generate", argv, options["output"])
            raise


def _refuse_what_files_take(options: dict[str, Any]) -> None:
    """Remove the options of files. Raises UsageError for one that is given, and for a missing prompt."""
    for name in ("complete", "keep", "count", "label", "data", "resume"):
        value = options.pop(name)
        if value is not False and value not in (None, []):
            raise UsageError("flag-needs-output", f"--{name} needs --output, a file for the results")
    if options["prompt"] is None:
        raise UsageError(
            "missing-argument", "the following arguments are required: --prompt, or --output for models of files"
        )


def _refuse_beside_chat(options: dict[str, Any], as_json: bool) -> None:
    """Raises UsageError for options that a conversation does not take."""
    others = ("prompt", "output", "complete", "keep", "count", "label", "data", "resume", "parallel", "dense_exchange")
    given = [name for name in others if options[name]] + ["json"] * as_json
    if given:
        raise UsageError("chat-flag-unused", f"--{given[0].replace('_', '-')} has no meaning with --chat; leave it out")


def _chat(options: dict[str, Any]) -> None:
    """Answer each line of standard input, until it ends."""
    from asterism.training.ask.chat import Chat
    from asterism.training.settings.sampling import Sampling

    how = Sampling(**{name: options[name] for name in ("temperature", "top_k", "top_p", "seed")})
    with waiting("loading the model"):
        chat = Chat(training.open_run(options["run"]), how, options["length"] or _LENGTH)
    is_person = sys.stdin.isatty()

    def write(piece: str) -> None:
        sys.stdout.write(_printable(piece) if sys.stdout.isatty() else piece)
        sys.stdout.flush()

    while True:
        if is_person:
            print("> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        if line.strip():
            chat.answer(line.strip(), write)
            write("\n")


def _printable(text: str) -> str:
    """The text without what would command a terminal."""
    return "".join(glyph if glyph.isprintable() or glyph in "\n\t" else "\ufffd" for glyph in text)


def _write_text(generate: Callable[..., bytes], options: dict[str, Any], as_json: bool) -> None:
    del options["output"]
    options["length"] = options["length"] or _LENGTH
    with waiting("generating"):
        continuation = generate(**options)
    if is_follower():
        return
    written = options["prompt"] + continuation
    text = written.decode(errors="replace")
    if as_json:
        print_json({"run": options["run"], "seed": options["seed"], "text": text, "bytes": list(continuation)})
    elif sys.stdout.isatty():
        print(_printable(text))
    else:
        sys.stdout.buffer.write(written)


def _write_file(generate_file: Callable[..., Any], options: dict[str, Any], as_json: bool) -> None:
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
    report = generate_file(options["run"], options["output"], wanted, how, resume=options["resume"])
    if as_json:
        print_json(asdict(report))
    else:
        print(report)


def _parser() -> Parser:
    parser = Parser("generate", __doc__ or "", 'asterism generate runs/bytes-small --prompt "def " --add 300')
    parser.add_argument("run", metavar="RUN", help="folder of the run")
    parser.add_argument("--prompt", type=os.fsencode, metavar="TEXT", help="text to continue; with --output, a file")
    parser.add_argument("--output", metavar="FILE", help="new file for the results")
    parser.add_argument("--resume", action="store_true", help="continue an unfinished output")
    parser.add_argument(
        "--chat",
        action="store_true",
        help="answer each line of standard input in one conversation, with a run of `finetune --task instruct`",
    )
    parser.add_argument(
        "--complete",
        type=whole_number(1),
        metavar="N",
        help="complete N pieces of the test split and write them next to the originals",
    )
    parser.add_argument(
        "--keep", type=float, metavar="X", help="fraction of a prompt or piece to keep (default: half a picture)"
    )
    parser.add_argument(
        "--count", type=whole_number(1), metavar="N", help="results per prompt, piece or label (default: 1)"
    )
    parser.add_argument("--label", nargs="+", default=[], metavar="L", help="classes to draw, by name or number")
    parser.add_argument("--data", metavar="PATH", help="data with the test split (default: the run's data)")
    parser.add_argument(
        "--add",
        dest="length",
        type=whole_number(1),
        metavar="N",
        help="bytes, tokens, samples, pixels or bases to add (default: 500; to a file, up to the context)",
    )
    former = {"type": whole_number(1), "default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
    parser.add_argument("--length", **former)  # the name of --add in older commands
    parser.add_argument(
        "--temperature", type=float, default=1.0, metavar="X", help="0 takes the most probable value (default: 1)"
    )
    parser.add_argument("--top-k", type=whole_number(1), metavar="K", help="draw only from the K most probable values")
    parser.add_argument(
        "--top-p", type=float, metavar="P", help="draw only from the most probable values that together reach P"
    )
    parser.add_argument("--seed", type=whole_number(0), default=0, metavar="N", help="random seed (default: 0)")
    parser.add_argument(
        "--parallel",
        default="",
        metavar="TEXT",
        help="cp=N: N launched processes share the tokens of a text prompt",
    )
    add_dense_exchange(parser)
    parser.add_device()
    return parser
