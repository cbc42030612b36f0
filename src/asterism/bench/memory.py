"""Measure the peak memory of one call beyond its operands and results; on CPUs in a separate process."""

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from asterism.bench.case import Case
from asterism.bench.contenders import Contender
from asterism.system import run_module

_WARM_LENGTH = 256
"""Tokens of the warm-up call, which loads what is loaded once. Contenders that compile for a length warm up at that
one.
"""

Peaks = dict[str, int | None]


def peaks(contender: Contender, case: Case, backward: bool, threads: int, timeout: float) -> Peaks:
    """Peak bytes beyond q, k, v, the output and, with `backward`, the gradients; None if they cannot be measured."""
    if case.device != "cpu":
        return _measure(contender, case, backward)
    if sys.platform != "linux":
        return {"forward": None, "forward_backward": None}
    request = {"contender": contender.name, "case": asdict(case), "backward": backward, "threads": threads}
    # With a fixed threshold freed arrays go back to the system at once and cannot hide what the next call takes.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": str(threads)}
    try:
        done = run_module(__name__, request, environment, timeout)
    except subprocess.TimeoutExpired:
        return {"forward": None, "forward_backward": None}
    if done.returncode:
        return {"forward": None, "forward_backward": None}
    return json.loads(done.stdout.splitlines()[-1])


def _measure(contender: Contender, case: Case, backward: bool) -> Peaks:
    if not contender.compiles and case.length > _WARM_LENGTH:
        _calls(contender, replace(case, length=max(_WARM_LENGTH, contender.checked_length(case))), backward)
    forward, both = _calls(contender, case, backward, warm=contender.compiles)
    return {"forward": forward, "forward_backward": both}


def _calls(contender: Contender, case: Case, backward: bool, warm: bool = False) -> tuple[int, int | None]:
    """Extra bytes of a forward call, and of a forward and backward call."""
    compute = contender.prepare(case).compute
    q, k, v, grad = case.operands()

    def forward() -> None:
        with torch.no_grad():
            compute(q, k, v)

    def both() -> None:
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        torch.autograd.grad(compute(*leaves), leaves, grad)

    if warm:
        forward()
    forward_bytes = extra_bytes(forward, case.device) - case.bytes
    if not backward:
        return max(0, forward_bytes), None
    if warm:
        both()
    return max(0, forward_bytes), max(0, extra_bytes(both, case.device) - 4 * case.bytes)


def extra_bytes(call: Callable[[], None], device: str) -> int:
    """Peak bytes during a call, beyond those held before it."""
    gc.collect()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        return torch.cuda.max_memory_allocated() - before
    Path("/proc/self/clear_refs").write_text("5")  # makes the peak start anew
    before = _status("VmRSS")
    call()
    return _status("VmHWM") - before


def _status(field: str) -> int:
    """A size in bytes from Linux's status of this process."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field)) * 1024


def main(asked: Mapping[str, Any]) -> None:
    """Print the peaks of a request of `peaks`, as JSON."""
    from asterism.bench.record import contender_named

    torch.set_num_threads(asked["threads"])
    print(json.dumps(_measure(contender_named(asked["contender"]), Case(**asked["case"]), asked["backward"])))
