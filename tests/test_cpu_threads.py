"""The CPU kernel with threads and many plans. In processes of their own: memory freed too early ends the process."""

import os
import subprocess
import sys

import pytest
from kernel_cases import has_compiler

pytestmark = pytest.mark.skipif(not has_compiler(), reason="no C++ compiler on this machine")

EAGER_FREEING = {"MALLOC_PERTURB_": "165", "MALLOC_MMAP_THRESHOLD_": "1024"}
"""glibc gives memory back when it is freed, or fills it with rubbish: who reads it dies or gets wrong numbers."""


def run(code, *arguments, **environment):
    """What a process prints that must succeed."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, f"exit status {done.returncode}:\n{done.stderr[-3000:]}"
    return done.stdout.split()


# Two threads at one barrier meet each new plan at the same time: both make the kernel's program, and one is kept.
MEETING = """
import sys, threading, torch
from asterism import attend
from asterism.compiler import compile_pattern

sys.setswitchinterval(1e-5)
torch.set_num_threads(1)
generator = torch.Generator().manual_seed(0)
q, k, v = (torch.randn(1, 2, 2000, 8, generator=generator) for _ in range(3))
texts = [f"window({left + 1}) | global_tokens({left})" for left in range(60)]
for text in texts:
    compile_pattern(text, 2000, 2000, query_offset=0)
barrier, results, errors = threading.Barrier(2), [[], []], []

def work(number):
    try:
        for text in texts:
            barrier.wait(60)
            results[number].append(attend(q, k, v, text, implementation="cpu"))
    except BaseException as error:
        errors.append(error)
        barrier.abort()

threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not errors, errors
for text, *both in zip(texts, *results, strict=True):
    assert all(torch.equal(one, attend(q, k, v, text, implementation="cpu")) for one in both), text
print("agree")
"""


def test_two_threads_that_meet_at_a_new_plan():
    assert run(MEETING, **EAGER_FREEING) == ["agree"]


# More plans than any cache keeps, so that every thread pushes out what another one computes with.
MANY_PLANS = """
import threading, torch
from asterism import attend

torch.set_num_threads(1)
generator = torch.Generator().manual_seed(0)
q, k, v = (torch.randn(1, 2, 250, 8, generator=generator) for _ in range(3))
texts = [f"window({left})" for left in range(200)]

def results(text):
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    out, lse = attend(*leaves, text, implementation="cpu", return_lse=True)
    return [out.detach(), lse.detach(), *torch.autograd.grad(out.sum() + lse.sum(), leaves)]

expected, found, errors = {}, [{} for _ in range(4)], []
for text in texts:
    expected[text] = results(text)

def work(number):
    try:
        for step in range(len(texts)):
            text = texts[(step + 50 * number) % len(texts)]
            found[number][text] = results(text)
    except BaseException as error:
        errors.append(error)

threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not errors, errors
for own in found:
    for text in texts:
        assert all(map(torch.equal, own[text], expected[text])), text
print("agree")
"""


def test_two_hundred_plans_in_four_threads():
    assert run(MANY_PLANS, **EAGER_FREEING) == ["agree"]
