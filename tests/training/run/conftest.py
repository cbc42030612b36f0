"""A tiny run that most tests of this folder share: to be made, finished, and interrupted."""

import shutil
from pathlib import Path

import pytest
from stopping import at_step
from tiny_run import TEXT

from asterism.training.pipeline import train
from asterism.training.settings.configuration import ModelConfig, RunConfig


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "code.txt"
    path.write_bytes(TEXT)
    return path


@pytest.fixture(scope="session")
def tiny(text):
    model = ModelConfig(
        mixers="window(left=15) | stride(period=16) & causal()",
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        dropout=0.1,
    )
    return RunConfig(
        model=model,
        data=str(text),
        context=64,
        batch_size=8,
        steps=30,
        learning_rate=1e-2,
        warmup_steps=5,
        dtype="float32",
        log_every=7,
        evaluation_every=10,
        evaluation_bytes=640,
        checkpoint_every=12,
    )


@pytest.fixture(scope="session")
def finished(tiny, tmp_path_factory):
    """A finished run; tests must not change it."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    report = train(tiny, folder, progress=False)
    return folder, report


@pytest.fixture(scope="session")
def stopped(tiny, tmp_path_factory):
    """A run that SIGINT stopped while step 14 was recorded; tests must not change it."""
    folder = tmp_path_factory.mktemp("runs") / "stopped"
    with pytest.raises(KeyboardInterrupt), at_step(14):
        train(tiny, folder)
    return folder


@pytest.fixture
def interrupted(stopped, tmp_path):
    """A copy of the run that was stopped."""
    return Path(shutil.copytree(stopped, tmp_path / "interrupted"))
