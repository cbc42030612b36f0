"""How fast this machine is: measured once, in seconds, at first need, and kept beside the built kernel.

What was measured holds for a machine, a kernel, a version of PyTorch and a number of threads; the figures that come
with the library answer where nothing may be measured. Invariant: one measurement at a time, none in a forked child,
and none with ASTERISM_CALIBRATE=0.
"""

import logging
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import product
from threading import Lock
from typing import TypeVar

import torch

from asterism.compiler.cost import shipped_matrix_rates
from asterism.compiler.memo import remembering
from asterism.kernels.clock import Task, in_turns
from asterism.kernels.figures import Figures, alone, keep, kept

Result = TypeVar("Result")

_MATRICES = ((4096, 512, 512), (1024, 1024, 1024))
"""Rows, inner side and columns of products as a training step has them."""

_ROUNDS = 5

_PATIENCE = 0.1
"""Seconds after which a product is timed no more."""

_measuring = Lock()
"""Held by the thread that measures."""

_log = logging.getLogger("asterism")


def matrix_rates() -> dict[str, float]:
    """FLOP/s of matrix products on the CPU with as many threads as PyTorch has now: {"float32": ..., "bfloat16": ...}.

    Measured once in under a second, on products as a training step has them, and kept. With ASTERISM_CALIBRATE=0 and
    in a forked child, where threads may hang, the figures that come with the library.
    """
    return dict(_matrix_rates(torch.get_num_threads()) if may_measure() else shipped_matrix_rates())


def may_measure() -> bool:
    """Whether this process may measure at need."""
    return os.environ.get("ASTERISM_CALIBRATE") != "0" and not _forked


@remembering(size=16)
def _matrix_rates(threads: int) -> Mapping[str, float]:
    if found := kept(threads).matrix_rates:
        return found
    with _measuring, alone():
        if not (found := kept(threads).matrix_rates):  # else another process was faster
            found = _apart(partial(_time_products, threads))
            _keep(threads, lambda figures: replace(figures, matrix_rates=found))
    return found


def _time_products(threads: int) -> dict[str, float]:
    """FLOP/s by dtype: the operations of all products over the seconds of all."""
    torch.set_num_threads(threads)  # a new thread has PyTorch's default until it is told
    tasks = {
        (dtype, sides): Task(partial(torch.matmul, *_operands(sides, dtype)), "cpu")
        for dtype, sides in product((torch.float32, torch.bfloat16), _MATRICES)
    }
    for task in tasks.values():
        task.warm_up(_PATIENCE)
    in_turns(list(tasks.values()), _ROUNDS, _PATIENCE)
    rates = {}
    for dtype in (torch.float32, torch.bfloat16):
        own = [(2 * sides[0] * sides[1] * sides[2], task.median) for (of, sides), task in tasks.items() if of == dtype]
        rates[str(dtype).removeprefix("torch.")] = sum(flops for flops, _ in own) / sum(seconds for _, seconds in own)
    return rates


def _operands(sides: tuple[int, int, int], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    rows, inner, columns = sides
    generator = torch.Generator().manual_seed(0)  # zeros and ones would cost less power, and so less time
    left, right = (torch.randn(shape, generator=generator) for shape in ((rows, inner), (inner, columns)))
    return left.to(dtype), right.to(dtype)


def _keep(threads: int, change: Callable[[Figures], Figures]) -> None:
    """Keep what was measured; where that is impossible, this process goes on with it, and says so."""
    try:
        keep(threads, change)
    except OSError as error:
        _log.warning("what was measured on this machine cannot be kept, and serves this process alone: %s", error)


def _apart(work: Callable[[], Result]) -> Result:
    """The result of `work` in a thread of its own.

    There nothing holds that a caller may have on: autocast, transforms, modes, hooks on what is saved for gradients.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="calibration") as pool:
        return pool.submit(work).result()


_forked = False


def _mark_forked() -> None:
    global _forked
    _forked = True


os.register_at_fork(after_in_child=_mark_forked)
