"""asterism explore: open a page on which to type patterns and see their masks, costs and certificates.

With a run, or a folder of Hugging Face (--model), the page also shows what the model reads in a text: how much of the
attention of each layer and head lies in which blocks of its pattern.

The page is served on 127.0.0.1 until you press Ctrl-C, and loads nothing from elsewhere. To see it on another machine,
forward the same port: ssh -L 8765:127.0.0.1:8765 HOST.
"""

import argparse
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from asterism.cli.errors import UsageError
from asterism.cli.output import say
from asterism.cli.parser import Parser, print_json, whole_number
from asterism.errors import DataError
from asterism.explore.subject import Subject
from asterism.presence import require_model, require_package, require_run

PORT = 8765


def run(argv: Sequence[str]) -> None:
    arguments = _parser().parse(argv)
    subject = _subject(arguments)
    for package in ("starlette", "uvicorn"):
        require_package(package, package, "explore", "explore")
    from asterism.explore.server import serve

    def ready(address: str) -> None:
        if arguments.json:
            print_json({"address": address})
        else:
            print(f"asterism explore: {address} (Ctrl-C ends it)", flush=True)
        if arguments.browser and not webbrowser.open(address):
            say("no browser was found: open the address yourself")

    serve(arguments.port, arguments.patience, ready, subject)


def _subject(arguments: argparse.Namespace) -> Subject | None:
    """The model of the page. Raises UsageError for flags that do not go together, and where a folder holds none."""
    run, model, pattern, text = arguments.run, arguments.model, arguments.pattern, arguments.text
    if run is not None and model is not None:
        raise UsageError("run-and-model", f"explore shows one model: give the run {run} or --model {model}, not both")
    if pattern is not None and model is None:
        raise UsageError("flag-needs-model", "--pattern needs --model: the patterns of a run are part of it")
    if run is None and model is None:
        if text is not None:
            raise UsageError("flag-needs-model", "--text needs a run or --model, whose model reads it")
        return None
    if run is not None:
        require_run(Path(run))
    else:
        require_model(Path(model), "--model")
    if text is not None and not Path(text).is_file():
        raise DataError("missing-data", f"--text: there is no file {text}")
    return Subject(run=run, model=model, pattern=pattern, text=text)


def _seconds(text: str) -> float:
    """An argument type."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 600:
        raise argparse.ArgumentTypeError(f"must be a number of seconds from 0.1 to 600, got {text[:40]!r}")
    return seconds


def _parser() -> Parser:
    parser = Parser("explore", __doc__ or "", "asterism explore --port 0 --no-browser")
    parser.add_argument("run", metavar="RUN", nargs="?", help="folder of a run whose attention is shown")
    parser.add_argument("--model", metavar="FOLDER", help="instead of a run, a model and tokenizer of Hugging Face")
    parser.add_argument(
        "--pattern",
        metavar="TEXT",
        help="with --model, the pattern it follows (default: its own, its windows, or all pairs)",
    )
    parser.add_argument("--text", metavar="FILE", help="text that the model can read besides what you type")
    parser.add_argument(
        "--port", type=whole_number(0, 65535), default=PORT, help=f"the port, 0 for any that is free (default: {PORT})"
    )
    parser.add_argument(
        "--browser",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="open the page in a browser (default: yes)",
    )
    parser.add_argument(
        "--patience", type=_seconds, default=1.0, help="seconds after which a question is refused (default: 1)"
    )
    return parser
