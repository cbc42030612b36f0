"""Files that a model makes, stopped on the way and gone on with: the same bytes, and only what is missing is drawn."""

import os
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from refusals import refusing

from asterism.cli.main import main
from asterism.errors import CheckpointError
from asterism.training.ask.generation import AT_ONCE, Wanted, generate_file
from asterism.training.objectives.causal import CausalTokens
from asterism.training.pipeline import train
from asterism.training.settings.configuration import ModelConfig, RunConfig
from asterism.training.settings.sampling import Sampling

pytestmark = pytest.mark.model

SIZE = 16
THREE = Wanted(count=3 * AT_ONCE)
HOW = Sampling(seed=1)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs that differ by their seed."""
    folder = tmp_path_factory.mktemp("runs")
    random = np.random.default_rng(0)
    (folder / "records").write_bytes(random.integers(0, 256, 300 * SIZE, dtype=np.uint8).tobytes())
    config = RunConfig(
        model=ModelConfig(mixers="causal()", hidden_size=32, num_hidden_layers=1, num_attention_heads=2),
        data=str(folder / "records"),
        modality=f"bytes(record_length={SIZE})",
        context=SIZE,
        batch_size=4,
        steps=1,
        dtype="float32",
    )
    for seed in (0, 1):
        train(replace(config, seed=seed), folder / str(seed), progress=False)
    return folder / "0", folder / "1"


@pytest.fixture(scope="module")
def whole(runs, tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "made"
    generate_file(runs[0], path, THREE, HOW, progress=False)
    return path.read_bytes()


@pytest.fixture
def drawn(monkeypatch):
    """How many batches were drawn; the third raises KeyboardInterrupt, once."""
    counts, draw = [], CausalTokens.continued

    def continued(self, *arguments):
        if len(counts) == 2 and None not in counts:
            counts.append(None)
            raise KeyboardInterrupt
        counts.append(len(arguments[1]))
        return draw(self, *arguments)

    monkeypatch.setattr(CausalTokens, "continued", continued)
    return counts


@pytest.fixture
def begun(runs, drawn, tmp_path):
    """An output of which two of three batches are drawn."""
    with pytest.raises(KeyboardInterrupt):
        generate_file(runs[0], tmp_path / "made", THREE, HOW, progress=False)
    drawn[:] = [None]
    return tmp_path / "made"


def test_only_what_is_missing_is_drawn(runs, whole, begun, drawn):
    assert not begun.exists()
    made = generate_file(runs[0], begun, THREE, HOW, resume=True, progress=False)
    assert begun.read_bytes() == whole and drawn == [None, AT_ONCE]
    assert (made.values, made.values_before) == (3 * AT_ONCE * SIZE, 2 * AT_ONCE * SIZE)
    assert [path.name for path in begun.parent.iterdir()] == ["made"]
    with refusing(CheckpointError, "output-exists", "made"):
        generate_file(runs[0], begun, THREE, HOW, resume=True, progress=False)


def test_with_nothing_to_go_on_with_all_is_drawn(runs, whole, tmp_path):
    generate_file(runs[0], tmp_path / "made", THREE, HOW, resume=True, progress=False)
    assert (tmp_path / "made").read_bytes() == whole


@pytest.mark.parametrize("damage", [lambda kept: kept[:-5], lambda kept: kept[:-5] + b"\0" * 5])
def test_what_was_cut_off_or_is_damaged_is_drawn_again(runs, whole, begun, drawn, damage):
    beside = begun.with_name("made.resume")
    beside.write_bytes(damage(beside.read_bytes()))
    generate_file(runs[0], begun, THREE, HOW, resume=True, progress=False)
    assert begun.read_bytes() == whole and drawn == [None, AT_ONCE, AT_ONCE]


def test_others_do_not_go_on_with_it(runs, begun, drawn, tmp_path):
    (tmp_path / "prompt").write_bytes(b"abc")
    for run, wanted, how, message in (
        (runs[1], THREE, HOW, "another model"),
        (runs[0], replace(THREE, count=4), HOW, "count 48, not 4"),
        (runs[0], replace(THREE, prompt=str(tmp_path / "prompt")), HOW, "another prompt"),
        (runs[0], THREE, replace(HOW, seed=2), "seed 1, not 2"),
        (runs[0], THREE, replace(HOW, top_k=3), "top_k None, not 3"),
    ):
        with pytest.raises(CheckpointError, match=f"^resume: .*made was started with {message}"):
            generate_file(run, begun, wanted, how, resume=True, progress=False)
    with refusing(CheckpointError, "output-begun", "made"):
        generate_file(runs[0], begun, THREE, HOW, progress=False)
    begun.with_name("made.resume").write_bytes(b"{")
    with refusing(CheckpointError, "damaged-file"):
        generate_file(runs[0], begun, THREE, HOW, resume=True, progress=False)
    assert drawn == [None]


def test_the_verb_says_how_to_go_on(runs, whole, drawn, tmp_path, capsys):
    command = ["generate", str(runs[0]), "--output", str(tmp_path / "made"), "--count", "48", "--seed", "1"]
    assert main(command) == 130
    words = capsys.readouterr().err.partition("resume with: asterism ")[2].split()
    assert words[: len(command) + 1] == [*command, "--resume"]
    assert main([*command, "--resume"]) == 0
    assert (tmp_path / "made").read_bytes() == whole and "512 were there before" in capsys.readouterr().out


def test_a_resumed_text_is_refused(capsys):
    assert main(["generate", "run", "--prompt", "x", "--resume"]) == 2
    assert "--resume needs --output" in capsys.readouterr().err


KILLED = f"""
import os, signal, sys
from asterism.training.objectives.causal import CausalTokens
from asterism.training.ask.generation import Sampling, Wanted, generate_file
draw, batches = CausalTokens.continued, []
def continued(self, *arguments):
    batches.append(1)
    if len(batches) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return draw(self, *arguments)
CausalTokens.continued = continued
generate_file(sys.argv[1], sys.argv[2], Wanted(count={3 * AT_ONCE}), Sampling(seed=1), progress=False)
"""


@pytest.mark.slow
def test_a_killed_process_loses_one_batch(runs, whole, drawn, tmp_path):
    output = tmp_path / "made"
    killed = subprocess.run([sys.executable, "-c", KILLED, str(runs[0]), str(output)], env=os.environ, check=False)
    assert killed.returncode == -signal.SIGKILL and not output.exists()
    drawn[:] = [None]
    generate_file(runs[0], output, THREE, HOW, resume=True, progress=False)
    assert output.read_bytes() == whole and drawn == [None, AT_ONCE]
