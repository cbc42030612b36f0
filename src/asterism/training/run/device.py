"""The device of runs: the one that the caller chose, or the accelerator if there is one."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar

import torch

from asterism.errors import ConfigurationError
from asterism.system import launched

_CHOSEN: ContextVar[str] = ContextVar("kind of device", default="auto")


@contextmanager
def computing_on(name: str) -> Iterator[None]:
    """Within the body, runs train and predict on this device: "cpu", "cuda" or "cuda:1". "auto" leaves the choice to
    us.

    Raises ConfigurationError for a GPU that PyTorch does not find. It also does so for a numbered GPU if a launcher
    started several processes, because each has its own GPU.
    """
    kind, _, number = name.partition(":")
    if kind not in ("auto", "cpu", "cuda"):
        raise ConfigurationError("unknown-device", f"device: must be auto, cpu, cuda or cuda:N, got {name!r}")
    if kind == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if not count:
            raise ConfigurationError("no-gpu", f"device {name}: PyTorch finds no GPU here; use cpu or auto")
        if number and int(number) >= count:
            raise ConfigurationError("no-such-gpu", f"device {name}: PyTorch finds {count} GPU here, numbered from 0")
        if number and launched() > 1:
            raise ConfigurationError(
                "gpu-of-several", f"device {name}: each of the {launched()} processes has its own GPU; use cuda"
            )
    token = _CHOSEN.set(kind)
    try:
        with torch.cuda.device(int(number)) if number else nullcontext():
            yield
    finally:
        _CHOSEN.reset(token)


def device_of_runs() -> torch.device:
    """The device that this process trains on."""
    if (chosen := _CHOSEN.get()) != "auto":
        return torch.device("cuda", torch.cuda.current_device()) if chosen == "cuda" else torch.device("cpu")
    found = torch.accelerator.current_accelerator(check_available=True)
    return torch.device("cpu") if found is None else torch.device(found.type, torch.accelerator.current_device_index())


def uses_cuda() -> bool:
    """Whether runs predict, and processes communicate, on CUDA GPUs."""
    chosen = _CHOSEN.get()
    return torch.cuda.is_available() if chosen == "auto" else chosen == "cuda"
