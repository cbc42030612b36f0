"""Processes of their own without the seconds that importing torch takes: forks of one that has imported it.

It has computed nothing, so that threads, kernels and what the environment decides at their first use are the fork's.
What libraries read when they are loaded (the system's malloc, OpenMP) is that of the tests: who sets such a variable
starts a process.
"""

import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

PATIENCE = 60
"""Seconds after which a fork is taken for one that hangs."""

IMPORTED = "import torch._dynamo, numpy, hypothesis, asterism, asterism.kernels.cpu"


def in_a_fork(function: Callable[[], Any]) -> Any:
    """What function() returns in a fork of this very process, with all that it has imported and computed.

    A pool of processes would wait for ever for a child that ends early or hangs; this one says so.
    """
    read, write = os.pipe()
    if not (child := os.fork()):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(PATIENCE)
        status = 1
        try:
            with os.fdopen(write, "wb") as pipe:
                pickle.dump(function(), pipe)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        answer = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == 0, f"the fork ended with {status}" + " (it hung)" * (status == -signal.SIGALRM)
    return pickle.loads(answer)


class Forked:
    """The process that forks. One fork at a time."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", f"{IMPORTED}\nimport forked\nforked.serve()"]
        path = os.pathsep.join([os.path.dirname(__file__), *filter(None, [os.environ.get("PYTHONPATH")])])
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, text=True, env=os.environ | {"PYTHONPATH": path}
        )

    def run(self, code: str, environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess:
        """As `subprocess.run([sys.executable, "-c", code, *arguments], env=environment, capture_output=True)`."""
        with tempfile.TemporaryDirectory() as folder:
            asked = {"code": code, "environment": dict(environment), "arguments": arguments, "folder": folder}
            print(json.dumps(asked), file=self._process.stdin, flush=True)
            status = int(self._process.stdout.readline())
            out, err = (Path(folder, name).read_text() for name in ("out", "err"))
        return subprocess.CompletedProcess(["forked", *arguments], status, out, err)

    def close(self) -> None:
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


def serve() -> None:
    """Forks for each line asked, and answers with the exit status."""
    for line in sys.stdin:
        if not (child := os.fork()):
            _become(**json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _become(code: str, environment: dict[str, str], arguments: list[str], folder: str) -> None:
    os.setsid()
    for number, name in enumerate(("out", "err"), 1):
        file = os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(file, number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.clear()
    os.environ.update(environment)
    # Python reads PYTHONPATH as it starts, which was before the fork.
    sys.path[1:1] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.argv, status = ["-c", *arguments], 1
    try:
        exec(code, {"__name__": "__main__"})
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
