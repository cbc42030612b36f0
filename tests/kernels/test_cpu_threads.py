"""The CPU kernel with threads, many plans, forks and little memory. In processes of their own: faults end them."""

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
    return words_of(done)


def forked_run(forked, code, *arguments):
    """The same, in a fork of a process that has computed nothing."""
    return words_of(forked.run(code, dict(os.environ), *map(str, arguments)))


def words_of(done):
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


# Children of a process that has run parallel regions, by fork and as PyTorch's loaders start them. Threads are not
# copied, and OpenMP waits for them in the child. PyTorch's own loops do so too: the children leave them alone.
FORKS = """
import os, signal, sys, torch
from asterism import attend
from asterism.kernels import decode_slots

torch.set_num_threads(3)
generator = torch.Generator().manual_seed(0)
tensors = [torch.randn(2, 4, 300, 40, generator=generator) for _ in range(3)]
mask = torch.arange(600).reshape(2, 300) % 7 != 0

def results(dtype):
    *leaves, weights = (x.detach() for x in given[dtype])
    leaves = [x.requires_grad_() for x in leaves]
    out, lse = attend(*leaves, "bigbird(16)", key_mask=mask, implementation="cpu", return_lse=True)
    found = [out.detach(), lse.detach(), *torch.autograd.grad([out, lse], leaves, [weights, lse_weights])]
    q, k, v = given[dtype][:3]
    found.append(decode_slots(q[:, :, :1], k, v, mask[:, None, None], implementation="cpu"))
    return [x.view(torch.int16).numpy().tobytes() for x in found]

def child():
    return all(results(dtype) == expected[dtype] for dtype in given)

tensors.append(torch.randn(2, 4, 300, 40, generator=generator))
given = {dtype: [x.to(dtype) for x in tensors] for dtype in (torch.float32, torch.bfloat16)}
lse_weights = tensors[3][..., 0].contiguous()
expected = {dtype: results(dtype) for dtype in given}
(torch.randn(500, 500) @ torch.randn(500, 500)).sum()
for number in range(int(sys.argv[1])):
    if not (forked := os.fork()):
        signal.alarm(30)
        os._exit(0 if child() else 1)
    assert os.waitpid(forked, 0)[1] == 0, number
    if number % 10 == 0:
        assert child()
print("agree")
"""


@pytest.mark.slow
def test_fifty_forks_after_parallel_regions(forked):
    assert forked_run(forked, FORKS, 50) == ["agree"]


# The library is first loaded in the child; OpenMP has been used before, by PyTorch, which shares it.
FORK_BEFORE_LOADING = """
import os, signal, torch

torch.set_num_threads(3)
for _ in range(3):
    (torch.randn(400, 400) @ torch.randn(400, 400)).add_(1).sum()
if not (forked := os.fork()):
    signal.alarm(60)
    from asterism import attend
    q = torch.ones(1, 6, 300, 8)
    out = attend(q, q, q, "causal()", implementation="cpu")
    os._exit(0 if abs(out.numpy() - 1).max() < 1e-6 else 1)
assert os.waitpid(forked, 0)[1] == 0
print("agree")
"""


def test_a_fork_before_the_kernel_is_loaded(forked):
    assert forked_run(forked, FORK_BEFORE_LOADING) == ["agree"]


LOADER = """
import torch
from asterism import attend

class Attended(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, number):
        torch.set_num_threads(3)
        q = torch.full((1, 6, 300, 8), float(number))
        return attend(q, q, q, "causal()", implementation="cpu")

torch.set_num_threads(3)
data = Attended()
expected = [data[number] for number in range(4)]
loader = torch.utils.data.DataLoader(data, batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=60)
assert all(map(torch.equal, loader, expected))
print("agree")
"""


def test_workers_of_a_loader(forked):
    assert forked_run(forked, LOADER) == ["agree"]


# Ever more memory is allowed, until the call succeeds: on the way, each allocation has failed once.
LITTLE_MEMORY = """
import resource, sys, torch
from asterism import attend
from asterism.errors import KernelError

heads, tokens, width, step = map(int, sys.argv[1:])
torch.set_num_threads(2)
q = torch.ones(1, heads, tokens, width, dtype=torch.bfloat16, requires_grad=True)
grad = torch.ones_like(q)
few = [q.detach()[..., :8].contiguous().requires_grad_() for _ in range(3)]

def attended(*tensors):
    return attend(*tensors, "window(1)", implementation="cpu")

attended(*few).backward(torch.ones_like(few[0]))  # starts the threads, makes the plan: NumPy does not survive this
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
before = resource.getrlimit(resource.RLIMIT_AS)
refused = set()
for more in range(1000):
    resource.setrlimit(resource.RLIMIT_AS, (used + more * step, before[1]))
    phase = "forward"
    try:
        out = attended(q, q, q)
        phase = "backward"
        out.backward(grad)
        break
    except KernelError as error:
        assert "memory" in str(error), error
        refused.add(phase)
    except (RuntimeError, MemoryError):
        pass  # PyTorch found none for the results
    resource.setrlimit(resource.RLIMIT_AS, before)
    out = None
resource.setrlimit(resource.RLIMIT_AS, before)
assert torch.allclose(attended(q, q, q), q)
print(*sorted(refused))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(
    ("size", "refused"),
    (((1, 2**14, 128, 2**20), ["backward"]), ((4, 256, 256, 2**18), ["backward", "forward"])),
    ids=("sums", "scratch memory"),
)
def test_too_little_memory_is_an_error(size, refused):
    """The backward pass keeps sums of whole heads. Where memory ends decides whether the forward pass fails as well."""
    assert set(refused) <= set(run(LITTLE_MEMORY, *size, MALLOC_MMAP_THRESHOLD_="16384"))
