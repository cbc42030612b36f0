"""Where the CPU kernel's library is kept: who is trusted, where it goes instead, and who needs a compiler.

Nothing is compiled here: a stand-in for the compiler copies the library that this process uses.
"""

import _ctypes
import errno
import hashlib
import logging
import multiprocessing
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from kernel_cases import has_compiler
from test_kernels_build import REFUSAL, start

from asterism.errors import KernelError
from asterism.kernels.cpu import build, cache, compiling

pytestmark = pytest.mark.skipif(not has_compiler(), reason="no C++ compiler on this machine")

STAND_IN = """#!/bin/sh
case " $* " in *" -c "*) exit 0 ;; esac
echo run >> "{runs}"
while [ "$1" != -o ]; do shift; done
cp "{library}" "$2"
"""


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """A file with a line for each library that the compiler made; the cache is empty, at tmp_path / "cache"."""
    library, compiler = build.library()._name, tmp_path / "c++"
    compiler.write_text(STAND_IN.format(runs=tmp_path / "runs", library=library))
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("ASTERISM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "runs"


@pytest.fixture
def warm(runs, tmp_path, monkeypatch):
    """The cache with a library, and no compiler any more."""
    found()
    monkeypatch.setenv("CXX", "/missing/c++")
    return tmp_path / "cache"


def found() -> Path:
    """The library that a fresh process would use."""
    return Path(build.library.__wrapped__()._name)


def seal(library: Path) -> None:
    """The digest that a builder of these bytes would have left."""
    library.with_name("kernel.sha256").write_text(hashlib.sha256(library.read_bytes()).hexdigest())


def refusal(monkeypatch, caplog) -> str:
    """How a named kernel is refused; "auto" must do without it, and say the same in one line."""
    with pytest.raises(KernelError) as error:
        found()
    monkeypatch.setattr(build, "library", build.library.__wrapped__)
    caplog.clear()
    assert build._can_be_had.__wrapped__() is False
    (record,) = (record for record in caplog.records if record.levelno == logging.WARNING and "eager" in record.message)
    assert str(error.value) in record.message and "\n" not in record.message
    return str(error.value)


def test_a_warm_cache_needs_no_compiler(warm):
    assert found().is_relative_to(warm)


def test_a_second_process_does_not_run_the_compiler(runs):
    first = found()
    assert runs.read_text() == "run\n"
    assert found() == first and runs.read_text() == "run\n"


def test_another_compiler_builds_its_own(runs, monkeypatch):
    first = found()
    monkeypatch.setenv("CXX", f"{os.environ['CXX']} -mno-avx512f")
    assert found() != first and runs.read_text() == "run\nrun\n"
    compiler = Path(os.environ["CXX"].split()[0])
    compiler.write_text(compiler.read_text() + "# a new version\n")
    assert found() != first and runs.read_text() == "run\n" * 3


def waits_first(runs: Path) -> None:
    """The first run of the compiler does not end by itself; its process is named in a file."""
    compiler, waits = (
        Path(os.environ["CXX"]),
        f'mkdir "{runs}-first" && echo $$ > "{runs}-first/process" && exec sleep 60',
    )
    head, *rest = compiler.read_text().splitlines(keepends=True)
    compiler.write_text("".join([head, f"{waits} 2> /dev/null\n", *rest]))


def builders(count: int) -> list[multiprocessing.process.BaseProcess]:
    """Processes that need the library."""
    started = [multiprocessing.get_context("fork").Process(target=found) for _ in range(count)]
    for process in started:
        process.start()
    return started


def wait_for(file: Path) -> str:
    end = time.monotonic() + 60
    while not (file.exists() and file.read_text()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return file.read_text()


def test_of_processes_that_start_at_once_one_builds(runs):
    compiler = Path(os.environ["CXX"])
    compiler.write_text(compiler.read_text() + "sleep 0.3\n")
    for process in builders(6):
        process.join(60)
        assert process.exitcode == 0
    assert runs.read_text() == "run\n"
    assert found() and runs.read_text() == "run\n"


@pytest.mark.parametrize("killed", ("builder", "compiler"))
def test_after_a_builder_that_was_killed_the_next_one_builds(runs, killed, monkeypatch):
    monkeypatch.setattr(build, "_has_amx", lambda: True)  # then a refusal leads to a build without
    waits_first(runs)
    (first,) = builders(1)
    compiler = int(wait_for(Path(f"{runs}-first", "process")))
    others = builders(2)
    try:
        others[0].join(0.5)
        assert all(process.is_alive() for process in others), "they wait for the first"
        os.kill(compiler if killed == "compiler" else first.pid, signal.SIGKILL)
        for process in others:
            process.join(60)
            assert process.exitcode == 0
        first.join(60)
        assert first.exitcode == (1 if killed == "compiler" else -signal.SIGKILL)
    finally:
        with suppress(ProcessLookupError):
            os.kill(compiler, signal.SIGKILL)
        for process in (first, *others):
            process.kill()
            process.join()
    assert runs.read_text() == "run\n"


@pytest.mark.parametrize("end", ("kill -9 $$", "echo 'c++: fatal error: Killed signal terminated program' >&2; exit 1"))
def test_a_compiler_that_was_killed_is_not_called_broken(runs, end, monkeypatch, caplog):
    Path(os.environ["CXX"]).write_text(f"#!/bin/sh\n{end}\n")
    line = refusal(monkeypatch, caplog)
    assert "was killed while compiling" in line and "Run again" in line and "Set CXX" not in line


def test_without_locks_it_is_built_all_the_same(runs, monkeypatch, caplog):
    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(build, "lock", refused)
    assert found() and runs.read_text() == "run\n"
    assert "no locks" in caplog.text


@pytest.mark.parametrize("mode", (0o777, 0o1777, 0o770))
def test_a_folder_that_others_can_write_to_is_refused(warm, mode, monkeypatch, caplog):
    if mode == 0o770:
        os.chown(warm, -1, other_group())
    warm.chmod(mode)
    assert f"{warm} can be written by other users (mode {mode:o})" in refusal(monkeypatch, caplog)


def other_group():
    own = os.getgroups() if os.geteuid() else [12345]
    groups = [group for group in own if group != os.getegid()]
    return groups[0] if groups else pytest.skip("this user has no second group")


@pytest.mark.parametrize("part", ("kernel.so", "."))
def test_a_library_that_others_can_write_to_is_refused(warm, part, monkeypatch, caplog):
    folder = found().parent
    (folder / part).chmod(0o702)
    assert str(folder / part) in refusal(monkeypatch, caplog)


def test_a_folder_below_one_that_others_can_write_to_is_refused(warm, monkeypatch, caplog):
    warm.parent.chmod(0o1777)  # as /tmp: others cannot remove what is ours
    assert found().is_relative_to(warm)
    warm.parent.chmod(0o777)
    assert f"{warm.parent} can be written" in refusal(monkeypatch, caplog)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("linked", (False, True))
def test_what_belongs_to_others_is_refused(warm, linked, tmp_path, monkeypatch, caplog):
    os.chown(warm, 12345, -1)
    (tmp_path / "link").symlink_to(warm)
    monkeypatch.setenv("ASTERISM_CACHE", str(tmp_path / "link" if linked else warm))
    assert f"{warm} belongs to another user (12345)" in refusal(monkeypatch, caplog)


def test_without_a_home_the_temporary_folder_serves(warm, tmp_path, monkeypatch, caplog):
    """It must be the user's own, whatever lies there already."""
    own = tmp_path / f"asterism-{os.geteuid()}"
    warm.rename(own)
    monkeypatch.delenv("ASTERISM_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/dev/null")
    monkeypatch.setattr(cache.tempfile, "gettempdir", lambda: str(tmp_path))
    assert found().is_relative_to(own)
    own.chmod(0o777)
    said = refusal(monkeypatch, caplog)
    assert "/dev/null" in said and f"{own} can be written" in said


def test_places(monkeypatch):
    monkeypatch.delenv("ASTERISM_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    temporary = Path(cache.tempfile.gettempdir(), f"asterism-{os.geteuid()}")
    monkeypatch.setenv("HOME", "/home/me")
    assert list(cache.places()) == [Path("/home/me/.cache/asterism"), temporary]
    monkeypatch.setenv("XDG_CACHE_HOME", "/fast")
    assert list(cache.places()) == [Path("/fast/asterism"), temporary]
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(cache.os.path, "expanduser", lambda path: path)  # neither $HOME nor an entry in the users' file
    assert list(cache.places()) == [temporary]
    monkeypatch.setenv("ASTERISM_CACHE", "/mine")
    assert list(cache.places()) == [Path("/mine")]


def test_a_library_that_cannot_be_loaded_is_refused(warm, monkeypatch, caplog):
    """As on a machine without libgomp: the library is whole, and the loader refuses it."""
    (library,) = warm.rglob("kernel.so")
    source = warm.parent / "needy.cpp"
    source.write_text("int missing(); int needed() { return missing(); }")
    library.unlink()  # not written over: this process has it loaded
    subprocess.run([shutil.which("c++"), "-shared", "-fPIC", "-Wl,-z,now", "-o", library, source], check=True)
    seal(library)
    monkeypatch.setenv("ASTERISM_CACHE", str(warm.rename(warm.parent / "unknown to the loader")))
    assert "missing" in refusal(monkeypatch, caplog)


def test_a_compiler_that_cannot_be_run(runs, monkeypatch, caplog):
    Path(os.environ["CXX"]).write_bytes(b"\0not a program")
    assert "does not run" in refusal(monkeypatch, caplog)


def test_a_compiler_that_hangs_is_stopped_with_all_that_it_started(runs, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(compiling, "_LONGEST", 0.2)
    Path(os.environ["CXX"]).write_text(f'#!/bin/sh\nsleep 60 &\necho $! >> "{tmp_path}/started"\nwait\n')
    assert "did not end within 0.2 seconds" in refusal(monkeypatch, caplog)
    for process in (tmp_path / "started").read_text().split():
        end = time.monotonic() + 30
        while Path("/proc", process).exists() and " Z " not in Path("/proc", process, "stat").read_text():
            assert time.monotonic() < end, "it still runs"
            time.sleep(0.01)


def test_a_complaint_that_is_no_text(runs, monkeypatch, caplog):
    Path(os.environ["CXX"]).write_text("#!/bin/sh\nprintf '\\377\\376 error: \\200' >&2; exit 1\n")
    assert "\ufffd error: \ufffd" in refusal(monkeypatch, caplog)


def test_a_command_that_is_none(runs, monkeypatch, caplog):
    monkeypatch.setenv("CXX", "g++ '")
    assert "CXX=g++ ' is not a command (No closing quotation)" in refusal(monkeypatch, caplog)


@pytest.mark.parametrize("loads", (True, False))
def test_what_a_compiler_made_and_is_not_the_kernel_is_not_kept(runs, loads, tmp_path, monkeypatch, caplog):
    compiler, foreign = Path(os.environ["CXX"]), tmp_path / "foreign.so"
    foreign.write_bytes(Path(_ctypes.__file__).read_bytes() if loads else b"a library of somebody else")
    compiler.write_text(compiler.read_text().replace(build.library()._name, str(foreign)))
    assert "is not the kernel" in refusal(monkeypatch, caplog)
    assert not list((tmp_path / "cache").rglob("kernel.so"))


def unfit(folder: Path, how: str) -> None:
    """Makes what is kept there something that must not be loaded, or be read to its end."""
    library, sealed = folder / "kernel.so", folder / "kernel.sha256"
    if how != "pipe":
        library.unlink()  # its bytes are in use
    if how == "foreign":
        library.write_bytes(Path(_ctypes.__file__).read_bytes())
        seal(library)
    elif how == "device":
        library.symlink_to("/dev/zero")
    else:
        sealed.unlink()
        os.mkfifo(sealed)


@pytest.mark.parametrize("how", ("foreign", "device", "pipe"))
def test_what_is_not_a_library_of_ours_is_built_anew(runs, how, monkeypatch):
    unfit(found().parent, how)
    assert found().stat().st_size == Path(build.library()._name).stat().st_size
    assert runs.read_text() == "run\n" * 2
    unfit(found().parent, how)
    monkeypatch.setenv("CXX", "/etc/passwd")
    with pytest.raises(KernelError, match="/etc/passwd is not a program"):
        found()


def test_what_a_killed_build_left_is_removed(runs, tmp_path):
    for name, age in (("building-old", 7200), ("building-now", 0)):
        (tmp_path / "cache" / name).mkdir(parents=True)
        changed = (tmp_path / "cache" / name).stat().st_mtime - age
        os.utime(tmp_path / "cache" / name, (changed, changed))
    (tmp_path / "cache").chmod(0o700)
    found()
    assert [file.name for file in (tmp_path / "cache").glob("building-*")] == ["building-now"]


# The process mounts the folder for itself alone.
MOUNT = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
NEWNS, NOEXEC, PRIVATE = 0x20000, 8, 0x44000
folder = os.environ["ASTERISM_CACHE"].encode()
if os.geteuid() or libc.unshare(NEWNS) or libc.mount(None, b"/", None, PRIVATE, None):
    sys.exit(77)
if libc.mount(b"tmpfs", folder, b"tmpfs", NOEXEC, b"mode=700"):
    sys.exit(77)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mounts as Linux does")
def test_a_file_system_that_runs_no_programs(tmp_path):
    process = start(MOUNT + REFUSAL + "print(digest('auto') == digest('eager'))", ASTERISM_CACHE=str(tmp_path))
    out, err = process.communicate(timeout=180)
    if process.returncode == 77:
        pytest.skip("this user cannot mount")
    assert process.returncode == 0, err
    first, _, agree = out.splitlines()
    assert first.startswith("KernelError") and "noexec" in first and str(tmp_path) in first and "eager" in first
    assert agree == "True" and "noexec" in err and "building" not in err


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_the_key_holds_the_instruction_set():
    """Machines that share a home may differ in what their processors understand."""
    machine = list(build._machine())
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = {line.split(":")[1].strip() for line in lines if line.startswith(("flags", "Features"))}
    assert platform.machine() in machine and flags & set(machine)
