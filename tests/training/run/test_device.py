"""The device of runs: chosen for a body, and refused where it is not there."""

import pytest
import torch
from refusals import refusing

from asterism.errors import ConfigurationError
from asterism.training.run.device import computing_on, device_of_runs, uses_cuda


def with_gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> list[int]:
    """So many GPUs, as far as anybody asks; the numbers of those that are made the current one."""
    current: list[int] = [0]

    class Device:
        def __init__(self, number: int) -> None:
            self.number = number

        def __enter__(self) -> None:
            current.append(self.number)

        def __exit__(self, *_: object) -> None:
            current.pop()

    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "device", Device)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[-1])
    return current


def test_the_choice_holds_within_the_body(monkeypatch: pytest.MonkeyPatch):
    with_gpus(monkeypatch, 2)
    with computing_on("cuda:1"):
        assert (device_of_runs(), uses_cuda()) == (torch.device("cuda", 1), True)
        with computing_on("cpu"):
            assert (device_of_runs(), uses_cuda()) == (torch.device("cpu"), False)
        assert device_of_runs() == torch.device("cuda", 1)
    with computing_on("cuda"):
        assert device_of_runs() == torch.device("cuda", 0)
    with computing_on("auto"):
        assert uses_cuda()


def test_auto_without_a_gpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: None)
    with_gpus(monkeypatch, 0)
    with computing_on("auto"):
        assert (device_of_runs(), uses_cuda()) == (torch.device("cpu"), False)


@pytest.mark.parametrize(
    ("name", "gpus", "code"),
    [("cuda", 0, "no-gpu"), ("cuda:0", 0, "no-gpu"), ("cuda:2", 2, "no-such-gpu"), ("tpu", 2, "unknown-device")],
)
def test_devices_that_are_not_there(monkeypatch: pytest.MonkeyPatch, name: str, gpus: int, code: str):
    with_gpus(monkeypatch, gpus)
    with refusing(ConfigurationError, code), computing_on(name):
        raise AssertionError


def test_processes_have_a_gpu_each(monkeypatch: pytest.MonkeyPatch):
    with_gpus(monkeypatch, 2)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with computing_on("cuda"):
        pass
    with refusing(ConfigurationError, "gpu-of-several"), computing_on("cuda:0"):
        raise AssertionError
