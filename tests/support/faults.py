"""A small run that dies at every call to the file system, and what comes of it: `python tests/faults.py --help`.

A process with `faults.c` preloaded imports everything once; each attempt is a fork of it. After each death the run is
begun again or resumed, as a person would do it, and must end with the bits of the run that was left alone and with
nothing left over in its folder.
"""

import argparse
import ctypes
import gc
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

HERE = Path(__file__).parent
DIE, FULL, READ_ONLY = 1, 2, 3
DIED = 99
TEXT = b"".join(b"def f%d(x):\n    return x + %d\n\n" % (number, number % 7) for number in range(400))


def preloaded(library: Path, *words: str) -> dict:
    """The JSON that this file prints when run as a program, in a fresh process in which calls can be made to fail."""
    if not library.exists():
        source = str(HERE / "faults.c")
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", str(library), source], check=True)
    environment = os.environ | {"LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, __file__, *words]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(result.stdout.splitlines()[-1])


def configuration(data: Path):
    """Four steps, a checkpoint after two, figures at every step."""
    from asterism.training.settings.configuration import ModelConfig, RunConfig

    return RunConfig(
        model=ModelConfig(
            mixers="window(left=7)",
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=1,
            implementation="eager",
        ),
        data=str(data),
        context=16,
        batch_size=2,
        steps=4,
        warmup_steps=1,
        dtype="float32",
        log_every=1,
        evaluation_every=3,
        evaluation_bytes=64,
        checkpoint_every=2,
    )


class Ground:
    """A folder for runs, the configuration of all of them, and the run that was left alone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = folder / "runs" / "run"
        data = folder / "text.txt"
        data.write_bytes(TEXT)
        self.config = configuration(data)
        self.library = ctypes.CDLL(None)
        self.go_on(self.run)
        self.truth = self.bits()
        gc.freeze()  # else every attempt looks through all that is imported for garbage, and copies it

    def go_on(self, folder: Path) -> None:
        """Begin the run in this folder, or go on with it."""
        from asterism.training.pipeline import train

        train(self.config, folder, resume=(folder / "run.json").exists(), progress=False)

    def bits(self) -> dict:
        """What must be equal after every way to the end."""
        history = [json.loads(line) for line in (self.run / "history.jsonl").read_text().splitlines()]
        result = json.loads((self.run / "run.json").read_text())["result"]
        return {
            "model": {path.name: _sha256(path) for path in (self.run / "model").iterdir()},
            "history": [{name: value for name, value in line.items() if "second" not in name} for line in history],
            "result": result | {"minutes": 0},
            "names": sorted(path.name for path in self.run.parent.rglob("*") if path.parent.name != "tensorboard"),
        }

    def attempt(self, fault: int = 0, at: int = 0, log: Path | None = None) -> tuple[int, str]:
        """Go on with the run in a process of its own, in which call number `at` goes wrong: its exit code and words."""
        words = self.folder / "words"
        if child := os.fork():
            _, status = os.waitpid(child, 0)
            return os.waitstatus_to_exitcode(status), words.read_text()
        with words.open("w", buffering=1) as out:
            os.dup2(out.fileno(), 2)
            self.library.faults_arm(str(self.run.parent).encode(), at, fault, _descriptor(log))
            try:
                self.go_on(self.run)
                os._exit(0)
            except BaseException as error:
                self.library.faults_arm(b"", 0, 0, -1)
                print(f"{type(error).__name__}: {error}", file=out)
                if os.environ.get("FAULTS_TRACE"):
                    traceback.print_exc(file=out)
                os._exit(1)

    def restore(self, state: Path | None) -> None:
        """The folder as it was in `state`; None is no folder at all."""
        shutil.rmtree(self.run.parent, ignore_errors=True)
        if state is not None:
            shutil.copytree(state, self.run.parent)

    def calls(self, state: Path | None) -> list[str]:
        """The calls of a run from this state to its end."""
        self.restore(state)
        log = self.folder / "log"
        log.write_text("")
        code, words = self.attempt(log=log)
        assert code == 0, words
        return log.read_text().splitlines()

    def recovers(self) -> str | None:
        """Go on from what is there to the end: None if all is as it should be, else what is wrong."""
        code, words = self.attempt()
        if code:
            return words.strip().splitlines()[-1]
        found = self.bits()
        return next((f"{name} differs" for name, truth in self.truth.items() if found[name] != truth), None)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _descriptor(log: Path | None) -> int:
    return -1 if log is None else os.open(log, os.O_WRONLY | os.O_APPEND)


def deaths(ground: Ground, state: Path | None, stride: int, first: int = 1) -> Iterator[tuple[int, str, str | None]]:
    """For every `stride`-th call of a run from this state: its number, the call, and what came of a death there."""
    calls = ground.calls(state)
    for at in range(first, len(calls) + 1, stride):
        ground.restore(state)
        code, words = ground.attempt(DIE, at)
        assert code == DIED, f"{calls[at - 1]}: {words}"
        yield at, calls[at - 1], ground.recovers()


def states(ground: Ground) -> dict[str, Path | None]:
    """Where runs begin that are killed: nowhere, between two checkpoints, and while the run finishes."""
    found: dict[str, Path | None] = {"a new run": None}
    calls = ground.calls(None)
    last_checkpoint = max(at for at, call in enumerate(calls, 1) if call.startswith("rename") and "/step-" in call)
    result = max(at for at, call in enumerate(calls, 1) if call.startswith("rename") and call.endswith("run.json"))
    first_checkpoint = min(at for at, call in enumerate(calls, 1) if call.startswith("rename") and "/step-" in call)
    for name, at in (
        ("killed after its first checkpoint", first_checkpoint + 3),
        ("killed after its last checkpoint", last_checkpoint + 2),
        ("killed before its result", result),
    ):
        ground.restore(None)
        assert ground.attempt(DIE, at)[0] == DIED
        found[name] = Path(shutil.copytree(ground.run.parent, ground.folder / name))
    return found


def count_deaths(ground: Ground, stride: int) -> dict:
    """Kill points and those after which the run did not come to its end, by where the killed run began."""
    table = {}
    for number, (name, state) in enumerate(states(ground).items()):
        results = list(deaths(ground, state, stride, first=1 + number % stride))
        bad = [f"{at} {call}: {wrong}" for at, call, wrong in results if wrong]
        table[name] = {"points": len(results), "lost": bad}
    return {"calls": ground.calls(None), "deaths": table}


def count_refusals(ground: Ground, fault: int, stride: int) -> dict:
    """For every `stride`-th call: from it on, nothing can be written. What the run said, and whether it recovers."""
    calls, said, lost, silent = ground.calls(None), {}, [], []
    for at in range(1, len(calls) + 1, stride):
        ground.restore(None)
        code, words = ground.attempt(fault, at)
        needs = ("open", "write", "truncate", "mkdir")  # a full disk still renames and removes
        if code == 0 and (fault == READ_ONLY or any(call.startswith(needs) for call in calls[at - 1 :])):
            silent.append(calls[at - 1])
        for line in words.splitlines():
            said.setdefault(line, calls[at - 1])
        if wrong := ground.recovers():
            lost.append(f"{at} {calls[at - 1]}: {wrong}")
    return {"points": len(range(1, len(calls) + 1, stride)), "lost": lost, "silent": silent, "said": said}


def main(words: Iterable[str] | None = None) -> None:
    tasks: dict[str, Callable[[Ground, int], object]] = {
        "deaths": count_deaths,
        "full": lambda ground, stride: count_refusals(ground, FULL, stride),
        "read-only": lambda ground, stride: count_refusals(ground, READ_ONLY, stride),
    }
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=tasks)
    parser.add_argument("--stride", type=int, default=1)
    arguments = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(tasks[arguments.what](Ground(Path(folder)), arguments.stride)))


if __name__ == "__main__":
    main()
