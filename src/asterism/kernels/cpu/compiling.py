"""Runs the C++ compiler: translation units side by side, then the linker, each within a limit of time.

A compiler is whatever CXX names. It may fail, be killed, hang, or complain in bytes that are no text: each ends in one
line.
"""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from asterism.errors import KernelError

OTHERWISE = "or use implementation='eager'"

_LONGEST = 600.0
"""Seconds for one run of the compiler. The longest unit takes 8 on an idle core."""

_KILLED = "signal terminated program"
"""What a compiler says of a program of its own that was killed."""

_REST = 0.02
"""Seconds between two looks at what has ended."""


class Killed(KernelError):
    """The compiler was killed, or did not end, which says nothing of what it knows."""


def compile_and_link(command: Sequence[str], units: Sequence[Path], library: Path, cores: int) -> None:
    """Makes the shared library of the units, `cores` of them at a time. Raises KernelError if that fails."""
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        objects = [str(Path(folder, unit.name).with_suffix(".o")) for unit in units]
        made = zip(units, objects, strict=True)
        _run(([*command, "-c", "-o", to, str(unit)] for unit, to in made), cores)
        _run([[*command, "-shared", "-o", str(library), *objects]], 1)


def _run(commands: Iterable[list[str]], at_a_time: int) -> None:
    """Runs all of them. Raises KernelError if one fails, and leaves none running, however it ends."""
    waiting, running = list(commands), list[_CompilerRun]()
    try:
        while waiting or running:
            while waiting and len(running) < at_a_time:
                running.append(_CompilerRun(waiting.pop(0)))
            time.sleep(_REST)
            running = [run for run in running if not run.has_ended()]
    finally:
        for run in running:
            run.stop()


class _CompilerRun:
    """One run of the compiler, in a process group of its own: it is several processes, which end together."""

    def __init__(self, command: list[str]) -> None:
        self._name = command[0]
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  # closed when the run has ended or is stopped
        self._deadline = time.monotonic() + _LONGEST
        quiet, spoken = subprocess.DEVNULL, os.environ | {"LC_ALL": "C"}
        try:
            self._process = subprocess.Popen(
                command, stdin=quiet, stdout=quiet, stderr=self._stderr, env=spoken, start_new_session=True
            )
        except OSError as error:
            self._stderr.close()
            raise KernelError(
                "compiler-does-not-run",
                f"the CPU kernel cannot be built: {command[0]} does not run ({error}), {OTHERWISE}",
            ) from error

    def has_ended(self) -> bool:
        """Whether it ended well. Raises KernelError if it failed, or takes too long."""
        if self._process.poll() is None:
            if time.monotonic() < self._deadline:
                return False
            raise Killed(
                "kernel-build-slow",
                f"the CPU kernel cannot be built: {self._name} did not end within {_LONGEST:g} seconds and was"
                f" stopped. Set CXX to another compiler, {OTHERWISE}",
            )
        self._stderr.seek(0)
        complaint = self._stderr.read().decode(errors="replace")
        self._stderr.close()
        if self._process.returncode < 0 or _KILLED in complaint:
            raise Killed(
                "kernel-build-killed",
                f"the CPU kernel cannot be built: {self._name} was killed while compiling (out of memory?)."
                f" Run again, {OTHERWISE}",
            )
        if self._process.returncode:
            line = next((line for line in complaint.splitlines() if "error" in line), complaint.strip()[-200:])
            raise KernelError(
                "kernel-build-failed",
                f"the CPU kernel cannot be built: {self._name} reports {line!r}. Set CXX to a C++17 compiler with"
                f" OpenMP (g++ 11 or newer), {OTHERWISE}",
            )
        return True

    def stop(self) -> None:
        """Ends whatever still runs of it."""
        if self._process.poll() is None:  # else its number may be another's by now
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._stderr.close()
