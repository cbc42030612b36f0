"""The machine of a run in run.json, for people who compare runs. No number depends on it."""

import os
import platform
import sys

import torch

from asterism.kernels.cpu.processor import processor, processor_class
from asterism.memory import amount, machine_memory


def machine_facts(device: torch.device) -> dict[str, str]:
    """The processor, instruction set, cores, threads, memory, system and device, in words, by name."""
    known = processor()
    facts = {
        "processor": known.get("model name") or platform.processor() or platform.machine(),
        "instruction_set": processor_class(),
        "cores": str(os.cpu_count() or "not known"),
        "threads": str(torch.get_num_threads()),
        "memory": amount(machine_memory(), "B"),
        "system": platform.platform(),
    }
    return facts if device.type == "cpu" else {**facts, "device": _name(device)}


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def peak_memory(device: torch.device) -> int:
    """The most bytes that this process has held so far: of tensors on a GPU, else of the whole process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource  # which Windows lacks: there nobody trains, but other verbs read this file

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most  # Linux counts in KiB
