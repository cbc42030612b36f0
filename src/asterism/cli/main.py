"""The entry point: chooses the verb, and turns every way of ending into one line on stderr and an exit code.

0 success, 1 failure, 2 usage, 3 data, 4 checkpoint, 5 loss not finite, 130 interrupted, 143 terminated. Only the chosen
verb's module is imported, so that `show` and `plan` start without torch.
"""

import importlib
import keyword
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from asterism import __version__
from asterism.cli.parser import UsageError
from asterism.errors import AsterismError, nearest

VERBS = {
    "show": "draw a pattern; say how many keys its queries read and what it costs",
    "plan": "explain how a pattern is computed: passes, layouts, tiles, FLOPs, memory",
    "certify": "which universality theorems hold for a pattern, with witnesses or counterexamples",
    "simulate": "run a Turing machine as a transformer, in exact arithmetic, and check every step",
    "train": "train a model from a recipe; show progress and bits per byte; save it",
    "finetune": "teach a pretrained encoder to classify, to tag, or to answer questions",
    "evaluate": "measure a trained model in bits per byte",
    "generate": "continue a prompt with a trained model",
    "import": "turn a Hugging Face checkpoint into an Asterism model, longer and sparse if asked",
    "bench": "time attention over patterns, beside dense attention and other libraries",
}

_EXTRAS = {
    "transformers": "train",
    "accelerate": "train",
    "tensorboard": "train",
    "matplotlib": "plot",
    "scipy": "scipy",
}


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code. Errors are one line on stderr."""
    try:
        with _terminable():
            _dispatch(sys.argv[1:] if argv is None else argv)
            sys.stdout.flush()
    except SystemExit as stop:  # --help
        return int(stop.code or 0)
    except Terminated:
        return _fail("terminated", 143)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except BrokenPipeError:  # the reader of stdout has gone, as in `asterism show ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except AsterismError as error:
        return _fail(f"error: {error}", error.exit_code)
    except OSError as error:
        return _fail(f"error: {error.strerror or error}: {error.filename}" if error.filename else f"error: {error}", 1)
    return 0


def _dispatch(argv: Sequence[str]) -> None:
    verb = argv[0] if argv else ""
    if verb in ("-h", "--help"):
        print(_help())
    elif verb == "--version":
        print(f"asterism {__version__}")
    elif verb in VERBS:
        _run(verb, argv[1:])
    else:
        hint = nearest(verb, VERBS) or f" The verbs are {', '.join(VERBS)}."
        raise UsageError(f"unknown verb {verb!r}.{hint}" if verb else f"a verb is missing.{hint}")


def _run(verb: str, argv: Sequence[str]) -> None:
    try:
        importlib.import_module(f"asterism.cli.{_module(verb)}").run(argv)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRAS:
            raise
        raise AsterismError(f"{verb} needs {package}: pip install 'asterism[{_EXTRAS[package]}]'") from None


def _module(verb: str) -> str:
    """The module of a verb; a name that is a keyword of Python gets an underscore."""
    return f"{verb}_" if keyword.iskeyword(verb) else verb


def _help() -> str:
    verbs = "\n".join(f"  {verb:<10}{summary}" for verb, summary in VERBS.items())
    return (
        "usage: asterism VERB ...\n\n"
        "Transformers whose attention is sparse: say who attends to whom.\n\n"
        f"verbs:\n{verbs}\n\n"
        "`asterism VERB --help` explains a verb. Results go to stdout, progress to stderr; every verb knows --json.\n\n"
        'example:\n  asterism show "fixed(stride=8, summary=2)" -n 32'
    )


@contextmanager
def _terminable() -> Iterator[None]:
    """Make SIGTERM raise Terminated, so that files are closed and temporary folders removed on the way out."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread receives signals
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise Terminated

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _fail(message: str, code: int) -> int:
    print(f"asterism: {message.splitlines()[0]}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
