"""asterism explore: open a page on which to type patterns and see their masks, costs and certificates.

The page is served on 127.0.0.1 until you press Ctrl-C, and loads nothing from elsewhere. To see it on another machine,
forward the same port: ssh -L 8765:127.0.0.1:8765 HOST.
"""

import argparse
import webbrowser
from collections.abc import Sequence

from asterism.cli.output import say
from asterism.cli.parser import Parser, print_json, whole_number
from asterism.presence import require_package

PORT = 8765


def run(argv: Sequence[str]) -> None:
    arguments = _parser().parse(argv)
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

    serve(arguments.port, arguments.patience, ready)


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
