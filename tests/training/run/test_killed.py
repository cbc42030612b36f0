"""Whichever process of a run is killed, and when: all of them end, and the run goes on to its curve."""

import os
import random
import signal
import time
from dataclasses import replace

import pytest
from launched_runs import assert_same_curve, flags, is_gone, launched, settings, steps_done, told, workers

from asterism.training import train

pytestmark = [pytest.mark.model, pytest.mark.slow]

RUNS = 30
MESHES = ("dp=2", "fsdp=2", "cp=2")
STEPS = 80
PATIENCE = 30
"""Seconds for which processes wait for one that is silent; a launcher may take as long again to kill them."""


@pytest.fixture(scope="module")
def wanted(tmp_path_factory):
    """The run that nothing happened to."""
    folder = tmp_path_factory.mktemp("wanted")
    train(_config(folder), folder / "run", progress=False)
    return folder


def _config(folder):
    return settings(folder, steps=STEPS, checkpoint_every=5, evaluation_every=20, process_timeout=PATIENCE)


@pytest.mark.parametrize("number", range(RUNS))
def test_a_run_goes_on_after_one_of_its_workers_was_killed(number, wanted, tmp_path):
    draw, config, run = random.Random(number), _config(wanted), tmp_path / "run"
    mesh, victim = MESHES[number % len(MESHES)], draw.randrange(2)
    launcher = launched(2, [*flags(config, tmp_path), "--parallel", mesh, "--folder", str(run)])
    started = workers(launcher, 2)
    if number % 5:
        step = draw.randrange(STEPS - 10)  # by steps, not seconds: fast machines are done in a few
        while (not (run / "run.json").exists() or steps_done(run) < step) and launcher.poll() is None:
            time.sleep(0.02)
        time.sleep(draw.uniform(0, 0.2))
    else:  # killed while it starts, or just after
        time.sleep(draw.uniform(0, 4))
    has_begun, began = (run / "run.json").exists(), time.monotonic()
    os.kill(started[victim], signal.SIGKILL)
    _, errors = launcher.communicate(timeout=PATIENCE + 60)
    seconds = time.monotonic() - began
    assert launcher.returncode != 0
    assert all(is_gone(worker) for worker in started)
    assert len(told(errors)) == 1 if has_begun else len(told(errors)) <= 1, errors
    goes_on = (run / "run.json").exists()
    kept = sorted(path.name for path in run.glob("checkpoints/step-*"))
    print(f"run {number}: {mesh}, process {victim} killed, all ended in {seconds:.1f} s with {kept}: {told(errors)}")
    if number % 10 == 9:
        words = [*flags(config, tmp_path), "--folder", str(run), "--parallel", "dp=2", *["--resume"] * goes_on]
        again = launched(2, words)
        _, errors = again.communicate(timeout=300)
        assert again.returncode == 0, errors
    else:
        train(replace(config, parallel="dp=1"), run, resume=goes_on, progress=False)
    assert_same_curve(run, wanted / "run")
