"""Memory of a step that is kept for the next one, and given back."""

import mmap
import platform
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from asterism.training.pipeline import train
from asterism.training.run import allocator as allocator_module
from asterism.training.run.allocator import Heap

pytestmark = pytest.mark.model

FAULTS = """
import contextlib, ctypes, resource, sys, torch
from asterism.training.run.allocator import Heap, kept_memory

heap = Heap()

def faults(rounds):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(rounds):
        heap.tidy()
        blocks = [torch.ones(2**20) for _ in range(5)]  # of 4 MiB
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

ctypes.CDLL(None).mallopt(-3, 2**17)  # blocks are the system's, as when a process begins; else chance decides
with kept_memory() if sys.argv[1] == "kept" else contextlib.nullcontext():
    faults(3)
    print(faults(20))
print(faults(1))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told to keep memory")
def test_memory_is_kept_from_step_to_step_and_given_back_after():
    def count(how: str) -> tuple[int, int]:
        found = subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True).stdout
        within, after = map(int, found.split())
        return within, after

    pages = 5 * 2**22 // mmap.PAGESIZE
    assert count("left alone")[0] > 10 * pages
    within, after = count("kept")
    assert within < 2 * pages and after > pages / 2


HELD = """
import torch
from asterism.training.run.allocator import Heap, _resident_bytes, kept_memory

before, lives_on = _resident_bytes(), []
with kept_memory():
    blocks = []
    for _ in range(200):  # of 1 MiB, with something between them that a step leaves behind
        blocks.append(torch.ones(2**18))
        lives_on.append(torch.ones(2**10))
    del blocks
    print(_resident_bytes() - before)
    Heap().tidy()
    print(_resident_bytes() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told to keep memory")
def test_tidying_gives_back_what_is_free():
    found = subprocess.run([sys.executable, "-c", HELD], capture_output=True, text=True, check=True).stdout
    held, left = (int(count) / 2**20 for count in found.split())
    assert held > 190 and left < 50


@pytest.mark.parametrize(
    ("held", "given_back"),
    [
        ([100] * 6, [0]),
        ([100, 100, 150, 150], [0]),
        ([100, 100, 151, 100, 150], [0, 3]),
        ([200, 301, 100, 300, 300], [0, 2]),
        ([100, 151, 200, 300, 301, 100, 300], [0, 2, 5]),
    ],
    ids=["alike", "half as much again", "more than that", "need does not shrink", "need grows"],
)
def test_only_what_steps_do_not_need_is_given_back(monkeypatch, held, given_back):
    """`held`: bytes beyond the first ones after each step; `given_back`: before which steps."""
    heap, found, extra, step = Heap(), [], 0, 0

    def give_back(_: int) -> None:
        nonlocal extra
        extra = 0
        found.append(step)

    heap.library, heap.can_tidy = SimpleNamespace(malloc_trim=give_back), True
    monkeypatch.setattr(allocator_module, "_resident_bytes", lambda: 1000 + extra)
    for extra_after in held:
        heap.tidy()
        extra = extra_after
        step += 1
    assert found == given_back


def test_the_heap_is_tidied_between_steps(tiny, tmp_path, monkeypatch):
    tidied = []
    monkeypatch.setattr(Heap, "tidy", lambda heap: tidied.append(heap))
    train(replace(tiny, steps=3), tmp_path / "run", progress=False)
    assert len(tidied) >= 3 and len(set(tidied)) == 1
