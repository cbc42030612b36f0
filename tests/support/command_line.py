"""What tests of the command line share: a run that takes a second, and what a refusal looks like."""

import re
import shlex
from collections.abc import Callable
from typing import NamedTuple

TINY = shlex.split(
    "--batch-size 4 --steps 3 --warmup-steps 1 --dtype float32 --model.hidden-size 16 --model.num-hidden-layers 1"
    " --model.num-attention-heads 2 --model.mixers 'fixed(stride=32, summary=4)' --model.position-type learned"
)

SHORT = [*TINY, "--context", "32"]


class Result(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Result]


def refuses(result: Result, code: int, message: str) -> None:
    """Exactly one line on stderr, nothing on stdout, and the right exit code."""
    assert re.fullmatch(f"asterism: error: .*{message}.*\n", result.err), result.err
    assert (result.code, result.out) == (code, "")
