"""Without what only Linux and macOS have, attention is computed all the same, and runs are refused in one line."""

import errno
import os
import subprocess
import sys

import pytest

from asterism import system

AS_ON_WINDOWS = """
import os, sys
import torch, torch.multiprocessing  # which knows Windows itself
for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[name] = None  # importing it raises ModuleNotFoundError
for name in ("register_at_fork", "getloadavg", "geteuid", "O_NONBLOCK", "statvfs", "fork"):
    delattr(os, name)

from asterism import attend, patterns
from asterism.kernels import matrix_rates

q, k, v = torch.randn(3, 1, 2, 40, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
wanted = attend(q, k, v, "window(left=7)", implementation="reference")
assert torch.allclose(attend(q, k, v, "window(left=7)"), wanted)
assert set(matrix_rates()) == {"float32", "bfloat16"}

from asterism.errors import CheckpointError, KernelError
from asterism.training.run.lock import locked
for refused, named in (
    (lambda: attend(q.float(), k.float(), v.float(), "window(left=7)", implementation="cpu"), KernelError),
    (lambda: locked(__import__("pathlib").Path("nowhere")).__enter__(), CheckpointError),
):
    try:
        refused()
    except named as error:
        print(error)
"""


def test_attention_works_and_runs_are_refused():
    environment = os.environ | {"ASTERISM_CALIBRATE": "0"}
    done = subprocess.run([sys.executable, "-c", AS_ON_WINDOWS], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    kernel, run = done.stdout.splitlines()
    assert "implementation 'cpu' needs Linux or macOS" in kernel and "eager" in kernel
    assert run == "nowhere cannot be locked: runs need Linux or macOS (on Windows: WSL)"


def test_a_lock_is_refused_where_the_system_has_none(monkeypatch, tmp_path):
    monkeypatch.setattr(system, "HAS_LOCKS", False)
    with (tmp_path / "file").open("w") as file, pytest.raises(OSError, match="Linux or macOS") as caught:
        system.lock(file)
    assert caught.value.errno == errno.ENOLCK


def test_a_lock_that_is_held_is_seen_at_once_and_ends_with_its_file(tmp_path):
    with (tmp_path / "file").open("w") as held:
        system.lock(held)
        with (tmp_path / "file").open("w") as other, pytest.raises(BlockingIOError):
            system.lock(other)
    with (tmp_path / "file").open("w") as free:
        system.lock(free)
