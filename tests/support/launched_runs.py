"""Runs of a tiny model that a launcher starts as several processes, and what they are compared by."""

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import pytest

from asterism.training import FineTuneConfig, ModelConfig, RunConfig, train
from asterism.training.settings.configuration import config_from_dict

EXACT = 1e-9
"""How far apart the figures of two runs in float64 may be: sums are in another order."""


def settings(folder: Path, **changes) -> RunConfig:
    """A run of a tiny model in float64, on a text in the folder."""
    text = folder / "text.txt"
    if not text.exists():
        text.write_text("".join(f"{number} is not {number * number}, and {number % 7} is.\n" for number in range(900)))
    shape = ModelConfig(
        mixers="window(left=7) | columns(period=8, first=7, count=1) & causal()",
        num_hidden_layers=2,
        hidden_size=32,
        num_attention_heads=2,
        position_type="rotary",
    )
    given = {"context": 48, "batch_size": 6, "steps": 6, "optimizer": "muon", "learning_rate": 3e-3, "warmup_steps": 2}
    every = {"log_every": 1, "evaluation_every": 3, "checkpoint_every": 2, "evaluation_bytes": 1000}
    more = {"data": str(text), "dtype": "float64", "process_timeout": 60, "dense_exchange": True}
    return RunConfig(recipe="bytes-small", model=shape, **(given | every | more | changes))


def flags(config: RunConfig, folder: Path) -> list[str]:
    """The configuration for a command line, by a file."""
    folder.mkdir(exist_ok=True)
    file = folder / f"{config.kind}.json"
    file.write_text(json.dumps(asdict(config)))
    return [config.kind, "--config", str(file)]


def environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, sys.path))
    own = {"OMP_NUM_THREADS": "1", "ASTERISM_CALIBRATE": "0", "PYTHONPATH": path, "PYTHONFAULTHANDLER": "1"}
    return {**os.environ, **own}


LAUNCHERS = {
    "torchrun": "torch.distributed.run --standalone --nproc-per-node {}",
    "accelerate": "accelerate.commands.launch --multi_gpu --num_processes {} --num_machines 1",
}
"""How each of them is started, by Python, for so many processes."""


def launched(
    processes: int,
    words: list[str],
    *,
    program: tuple[str, ...] = ("-m", "asterism.cli.main"),
    launcher: str = "torchrun",
) -> subprocess.Popen:
    """The command line, as several processes."""
    command = [sys.executable, "-m", *LAUNCHERS[launcher].format(processes).split(), *program, *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environment(), **pipes)


def history(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


def assert_same_curve(found: Path, wanted: Path, within: float = EXACT) -> None:
    """Every figure of two histories, but for those that a clock decides."""
    one, other = history(found), history(wanted)
    assert [line["step"] for line in one] == [line["step"] for line in other]
    for mine, theirs in zip(one, other, strict=True):
        assert mine.keys() == theirs.keys()
        timeless = [name for name in mine if name != "seconds" and "per_second" not in name]
        assert {name: mine[name] for name in timeless} == pytest.approx(
            {name: theirs[name] for name in timeless}, abs=within
        )


def workers(launcher: subprocess.Popen, count: int) -> list[int]:
    """The processes that a launcher has started, by rank; waits until all of them are there."""
    while launcher.poll() is None:
        children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
        ranks = {_rank(child): int(child) for child in children}
        if set(range(count)) <= ranks.keys():
            return [ranks[rank] for rank in range(count)]
        time.sleep(0.05)
    raise AssertionError(launcher.communicate())


def _rank(process: str) -> int | None:
    with suppress(OSError):
        for variable in Path(f"/proc/{process}/environ").read_bytes().split(b"\0"):
            if variable.startswith(b"RANK="):
                return int(variable.removeprefix(b"RANK="))
    return None


def steps_done(folder: Path) -> int:
    """The step of the last line of a run's history; 0 where there is none yet."""
    with suppress(OSError, IndexError, ValueError):
        return json.loads((folder / "history.jsonl").read_text().splitlines()[-1])["step"]
    return 0


def told(errors: str) -> list[str]:
    """What asterism said when it ended, among what the launcher says."""
    return [line for line in errors.splitlines() if line.startswith("asterism: ")]


def is_gone(process: int) -> bool:
    """Whether a process has ended, and is no zombie either."""
    return not Path(f"/proc/{process}").exists()


def trained(processes: int, jobs: list[tuple[RunConfig | FineTuneConfig, Path]]) -> None:
    """One launch for several runs, one after the other: each is trained in its folder, or goes on there."""
    described = [[config.kind, asdict(config), str(folder)] for config, folder in jobs]
    command = [sys.executable, "-m", *LAUNCHERS["torchrun"].format(processes).split(), __file__, json.dumps(described)]
    subprocess.run(command, env=environment(), check=True, timeout=1200)


if __name__ == "__main__":
    for kind, values, folder in json.loads(sys.argv[1]):
        began = Path(folder, "run.json").exists()
        train(config_from_dict(kind, values), folder, resume=began, progress=False)
