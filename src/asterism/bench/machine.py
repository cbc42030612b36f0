"""Describe the machine of a benchmark."""

import os
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from asterism import __version__
from asterism.kernels import cpu

_ISA = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16", "neon", "asimd", "sve", "bf16")
_PACKAGES = ("torch", "transformers", "local-attention", "xformers", "natten", "flash-attn", "triton")


def describe(device: str) -> dict[str, object]:
    """The processor, its cores and instruction sets, our kernel's instruction set and origin, memory, versions, and the
    GPU.
    """
    model, flags = _processor()
    described: dict[str, object] = {
        "processor": model,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "instructions": [name for name in _ISA if name in flags],
        "capability": torch.backends.cpu.get_cpu_capability(),
        "kernel": cpu.instruction_set() if cpu.is_available() else None,
        "kernel_origin": cpu.origin() if cpu.is_available() else None,
        "memory_bytes": memory(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": _versions(),
    }
    if device == "cuda":
        described["gpu"] = torch.cuda.get_device_name()
    return described


def kernel_in_words(machine: Mapping[str, Any]) -> str:
    """The CPU kernel of a machine that `describe` described, in words."""
    if not machine["kernel"]:
        return "no CPU kernel"
    origin = "came with asterism" if machine["kernel_origin"] == "wheel" else "built on this machine"
    return f"CPU kernel: {machine['kernel']}, {origin}"


def _processor() -> tuple[str, set[str]]:
    """The processor's name and flags, as far as the system reports them."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    flags = fields.get("flags") or fields.get("Features") or ""
    return fields.get("model name") or platform.processor() or platform.machine(), set(flags.split())


def memory() -> int | None:
    """Bytes of main memory, or None if the system does not report them."""
    names = ("SC_PAGE_SIZE", "SC_PHYS_PAGES")
    if not all(name in os.sysconf_names for name in names):
        return None
    return os.sysconf(names[0]) * os.sysconf(names[1])


def _versions() -> dict[str, str]:
    found = {"asterism": __version__}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
