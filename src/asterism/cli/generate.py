"""asterism generate: continue a prompt with a trained model. Written raw to a file or pipe, readable to a terminal."""

import os
import sys
from collections.abc import Sequence

from asterism import training
from asterism.cli.parser import Parser, print_json, whole_number


def run(argv: Sequence[str]) -> None:
    options, as_json = _parser().options(argv)
    continuation = training.generate(**options)
    written = options["prompt"] + continuation
    text = written.decode(errors="replace")
    if as_json:
        print_json({"run": options["run"], "seed": options["seed"], "text": text, "bytes": list(continuation)})
    elif sys.stdout.isatty():
        print("".join(glyph if glyph.isprintable() or glyph in "\n\t" else "\ufffd" for glyph in text))
    else:
        sys.stdout.buffer.write(written)


def _parser() -> Parser:
    parser = Parser("generate", __doc__ or "", 'asterism generate runs/bytes-small --prompt "def " --length 300')
    parser.add_argument("run", metavar="RUN", help="the folder of a run")
    parser.add_argument("--prompt", type=os.fsencode, required=True, metavar="TEXT", help="what to continue")
    parser.add_argument("--length", type=whole_number(1), default=500, help="how many bytes to add (default 500)")
    parser.add_argument("--temperature", type=float, default=1.0, help="0 takes the likeliest byte (default 1)")
    parser.add_argument("--top-k", type=whole_number(1), metavar="K", help="draw among the K likeliest bytes only")
    parser.add_argument(
        "--top-p", type=float, metavar="P", help="draw among the likeliest bytes that have probability P"
    )
    parser.add_argument("--seed", type=whole_number(0), default=0, help="what the draws depend on (default 0)")
    return parser
