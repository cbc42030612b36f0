"""The entry point: finds the verb, and turns every way of ending into one line on stderr and an exit code.

0 success, 1 failure, 2 usage, 3 data, 4 checkpoint, 5 loss not finite, 130 interrupted, 143 terminated. Only the
chosen verb's module is imported, so that `show` and `plan` start without torch.
"""

import importlib
import io
import keyword
import os
import platform
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, TextIO

from asterism import __version__
from asterism.cli.errors import UsageError
from asterism.cli.help import filled, listed
from asterism.cli.processes import may_print
from asterism.cli.waiting import waiting
from asterism.errors import AsterismError, nearest
from asterism.system import launched

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

VERBS = {
    "show": "draw a pattern; count the keys that its queries read, and its cost",
    "plan": "explain how a pattern is computed: passes, layouts, tiles, FLOPs, memory",
    "explore": "open a page to type patterns and see masks, costs and certificates",
    "certify": "decide which universality theorems hold for a pattern, with witnesses or counterexamples",
    "simulate": "run a Turing machine as a transformer, in exact arithmetic, and check every step",
    "recipes": "list the recipes of train: name, size, description, paper",
    "train": "train a model from a recipe, and save it",
    "finetune": "teach a pretrained model to label, tag, answer questions, write, or answer in conversations",
    "evaluate": "score a trained model on data that it has not seen",
    "search": "find the pattern that a task deserves at equal cost, by training small models",
    "reproduce": "run an experiment of a paper again, and see which of its claims hold",
    "predict": "label, tag, answer or write for the examples of a file with a fine-tuned model",
    "generate": "continue a prompt, or draw pictures, sounds and sequences, with a trained model",
    "report": "make a page of runs: curves, predictions, patterns, cost, and how they compare",
    "import": "convert a Hugging Face checkpoint to an Asterism model, longer and sparser on request",
    "sparsify": "make a dense model sparse within a budget: which layers and heads need all keys",
    "export": "write a model for programs without Asterism: a stock model of transformers, or a graph",
    "bench": "time attention over patterns, compared with dense attention and other libraries",
    "promises": "check the promises of models, ours and Hugging Face's: padding, causality, caches, memory",
    "doctor": "check this installation: versions, kernel, GPU, cache; explain how to get what is missing",
    "completion": "print a script that completes commands in bash, zsh or tcsh",
}

_SHARED = ("train", "finetune", "evaluate", "generate")
"""Verbs whose work several processes divide."""

_EXTRAS = {
    "transformers": "train",
    "huggingface_hub": "train",
    "jsonargparse": "train",
    "shtab": "completion",
    "rich": "train",
    "tensorboard": "train",
    "matplotlib": "plot",
}


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code. Errors are one line on stderr."""
    if not _prepare_streams():
        return _fail("error: stdout is closed, so there is nowhere to print the result; redirect it to a file", 1)
    try:
        with _terminable():
            code = _dispatch(sys.argv[1:] if argv is None else argv)
            sys.stdout.flush()
    except Terminated:
        return _fail("terminated", 143)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except BrokenPipeError:  # the reader of stdout has gone, as in `asterism show ... | head`
        _discard(sys.stdout)
        return 1
    except AsterismError as error:
        return _fail(f"error: {error}", error.exit_code)
    except MemoryError as error:
        told = f" ({error})" if str(error) else ""
        return _fail(f"error: there is not enough memory{told}; ask for a shorter length or a smaller pattern", 1)
    except RuntimeError as error:
        # So Python 3.11 wraps what a signal raises while a class is made, which libraries do as they are imported.
        if isinstance(error.__cause__, KeyboardInterrupt):
            is_terminated = isinstance(error.__cause__, Terminated)
            return _fail("terminated", 143) if is_terminated else _fail("interrupted", 130)
        if not _is_lack_of_memory(error):
            raise
        return _fail("error: there is not enough memory; ask for a smaller model, batch or length", 1)
    except OSError as error:
        if not _can_flush(sys.stdout):  # a full disk: what is buffered would be written, and fail, again at exit
            _discard(sys.stdout)
        reason = error.strerror or str(error)
        return _fail(f"error: {reason}: {error.filename}" if error.filename else f"error: {reason}", 1)
    return code


def _dispatch(argv: Sequence[str]) -> int:
    verb = argv[0] if argv else ""
    if verb in ("-h", "--help"):
        print(_help())
    elif verb == "--version":
        print(_versions())
    elif verb in VERBS:
        if verb not in _SHARED:
            _refuse_many(verb)
        try:
            _run(verb, argv[1:])
        except SystemExit as stop:  # argparse has printed --help
            return int(stop.code or 0)
    else:
        hint = nearest(verb, VERBS) or f" The verbs are {', '.join(VERBS)}."
        raise UsageError("unknown-verb", f"unknown verb {verb!r}.{hint}" if verb else f"a verb is missing.{hint}")
    return 0


def _versions() -> str:
    """The versions of Asterism and what it computes with, in one line; nothing is imported for it."""
    from asterism.cli.installed import Requirement

    found = [Requirement.of(name) for name in ("torch", "transformers")]
    others = [f"{one.name} {one.found or 'not installed'}" for one in found]
    return ", ".join([f"asterism {__version__}", *others, f"Python {platform.python_version()}"])


def _refuse_many(verb: str) -> None:
    """Raises UsageError where a launcher has started several processes, of which each would do the same."""
    if launched() > 1:
        raise UsageError(
            "one-process-only",
            f"{verb} is the work of one process, and WORLD_SIZE is {launched()}: start it without a launcher; only"
            f" {', '.join(_SHARED)} share work",
        )


def _run(verb: str, argv: Sequence[str]) -> None:
    try:
        with waiting("loading"):
            module = importlib.import_module(f"asterism.cli.{module_of(verb)}")
        module.run(argv)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRAS:
            raise
        raise AsterismError(
            "package-missing", f"{verb} needs {package}: pip install '.[{_EXTRAS[package]}]' in a checkout"
        ) from None


def module_of(verb: str) -> str:
    """The module of a verb; a name that is a keyword of Python gets an underscore."""
    return f"{verb}_" if keyword.iskeyword(verb) else verb


_CLOSING = """`asterism VERB --help` explains a verb, `asterism --version` prints versions. Results go to stdout and
progress to stderr. Nearly every verb has --json."""


def _help() -> str:
    verbs = listed(VERBS.items(), 14)
    return (
        "usage: asterism VERB ...\n\n"
        "Transformers with sparse attention: you define who attends to whom.\n\n"
        f"verbs:\n{verbs}\n\n"
        f"{filled(_CLOSING)}\n\n"
        'example:\n  asterism show "fixed(stride=8, summary=2)" -n 32'
    )


@contextmanager
def _terminable() -> Iterator[None]:
    """Make SIGTERM raise Terminated, so that files are closed and temporary folders removed on the way out.

    Python ignores what a signal raises while an object is finalised. Then the signal is sent once more.
    """
    if threading.current_thread() is not threading.main_thread():  # only the main thread receives signals
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise Terminated

    def send_again(ignored: "UnraisableHookArgs") -> None:
        if issubclass(ignored.exc_type, KeyboardInterrupt):
            number = signal.SIGTERM if issubclass(ignored.exc_type, Terminated) else signal.SIGINT
            main_thread = threading.main_thread().ident  # whose waiting the signal ends, if it is sent there
            threading.Timer(0.05, signal.pthread_kill, (main_thread, number)).start()
        else:
            hook(ignored)

    previous, hook = signal.signal(signal.SIGTERM, stop), sys.unraisablehook
    sys.unraisablehook = send_again
    try:
        yield
    finally:
        sys.unraisablehook = hook
        signal.signal(signal.SIGTERM, previous)


def _prepare_streams() -> bool:
    """Make stdout and stderr safe to print to; whether stdout is open.

    Python sets a stream to None when its descriptor is closed, and then `print(..., file=sys.stderr)` prints to
    stdout. The null device takes the free descriptor, lest the next file that is opened gets it and what libraries
    print. A stream in another encoding than UTF-8 gets escapes instead of characters that it cannot hold.
    """
    is_open = sys.stdout is not None
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")
    return is_open


def _is_lack_of_memory(error: RuntimeError) -> bool:
    """Whether torch could not allocate: on a CPU that is no error of a class of its own."""
    return type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)


def _can_flush(stream: TextIO) -> bool:
    try:
        stream.flush()
    except OSError:
        return False
    return True


def _discard(stream: TextIO) -> None:
    """Send what is still buffered, and all that follows, to the null device."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _fail(message: str, code: int) -> int:
    if not may_print():
        return code
    try:
        print(f"asterism: {message.splitlines()[0]}", file=sys.stderr, flush=True)
    except OSError:  # nobody reads stderr, or its disk is full: the exit code says it all
        _discard(sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
