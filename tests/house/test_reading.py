"""Who follows a run's configuration to the first step reads the files that docs/architecture.md lists, in its order."""

import re
import sys
from pathlib import Path
from types import FrameType

import pytest

from asterism.training import pipeline
from asterism.training.run.session import Session
from asterism.training.run.setup import Setup
from asterism.training.settings.configuration import ModelConfig, RunConfig

pytestmark = pytest.mark.model

TRAINING = Path(pipeline.__file__).parent
PAGE = (TRAINING.parents[2] / "docs" / "architecture.md").read_text()
CONDUCTORS = {
    *("pipeline.py", "run/fitting.py", "run/processes.py", "settings/configuration.py", "run/arithmetic.py"),
    *("objectives/pretraining.py", "objectives/causal.py", "objectives/footprint.py"),
    *("run/setup.py", "run/session.py", "run/loop.py", "run/schedule.py"),
}
"""Who is seen again: the files that lead through the others, the processes, who join at the beginning and say at a step
with whom tokens are shared, a property of the configuration, its dtype, which the leader of several processes settles
for all and each then finds settled, an objective, which its base class asks for what only it knows, the setup, which
says the configuration, and the session, which the loop asks whether it goes on, by what the schedule says."""


def way_to_the_first_step(config: RunConfig, folder: Path) -> list[str]:
    """The files of training/ in which a function takes the configuration, or what holds it, in turn."""
    way: list[str] = []

    def watch(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(str(TRAINING)):
            return
        if code.co_name == "_backward":
            sys.setprofile(None)
            return
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        carries = any(isinstance(frame.f_locals.get(name), RunConfig | Setup | Session) for name in names)
        file = Path(code.co_filename).relative_to(TRAINING).as_posix()
        if carries and (not way or way[-1] != file):
            way.append(file)

    sys.setprofile(watch)
    try:
        pipeline.train(config, folder, progress=False)
    finally:
        sys.setprofile(None)
    return way


def test_the_page_shows_the_way_of_a_configuration(tmp_path: Path):
    text = tmp_path / "text"
    text.write_text("who attends to whom\n" * 400)
    small = ModelConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1)
    config = RunConfig(data=str(text), model=small, context=16, steps=1, batch_size=1, evaluation_bytes=64)
    way = way_to_the_first_step(config, tmp_path / "run")
    listed = re.findall(r"^\d+\. `([a-z_/]+\.py)`", PAGE, re.MULTILINE)
    assert list(dict.fromkeys(way)) == listed
    assert {file for file in way if way.count(file) > 1} <= CONDUCTORS
