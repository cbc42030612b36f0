"""Working memory grows with the tiles kept, not with n x n; measured in processes of their own."""

import os
import subprocess
import sys

import pytest
from kernel_cases import has_compiler
from plans import PEAK, needs_proc

MEASURE = f"""{PEAK}
import sys, torch
from asterism import attend
torch.set_num_threads(1)

def work(n):
    q, k, v = (torch.randn(1, 1, n, 16, requires_grad=True) for _ in range(3))
    attend(q, k, v, sys.argv[1], implementation=sys.argv[2]).sum().backward()

work(512)
before = peak()
for n in (8192, 32768):
    work(n)
    print(peak() - before)
"""


@needs_proc
@pytest.mark.parametrize(
    ("text", "implementation"),
    [
        ("bigbird(block=64)", "eager"),
        ("window(left=127)", "auto"),
        pytest.param("window(left=127)", "eager", marks=pytest.mark.slow),
        pytest.param("bigbird(block=64)", "auto", marks=pytest.mark.slow),
    ],
)
def test_memory_grows_with_the_tiles_kept(text, implementation):
    """At 32,768 tokens a square of booleans alone is 1 GiB. Forward and backward, in a process of their own."""
    command = [sys.executable, "-c", MEASURE, text, implementation]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    short, long = map(float, output.split())
    assert long < 400
    assert long < 4 * short * 1.5 + 64


EXTRA = f"""{PEAK}
import sys, torch
from asterism import attend, compile_pattern
torch.set_num_threads(2)
text, implementation, dtype, n, backward = *sys.argv[1:3], getattr(torch, sys.argv[3]), int(sys.argv[4]), sys.argv[5:]

def operands(n):
    q, k, v, d_out = (torch.randn(1, 8, n, 64, dtype=dtype) for _ in range(4))
    return [x.requires_grad_(bool(backward)) for x in (q, k, v)], d_out

def work(tensors, d_out):
    out, lse = attend(*tensors, text, return_lse=True, implementation=implementation)
    return [out, lse, *(torch.autograd.grad(out, tensors, d_out) if backward else [])]

def size(tensors):
    return sum(x.numel() * x.element_size() for x in tensors) / 2**20

work(*operands(1024))
compile_pattern(text, n)
tensors, d_out = operands(n)
work([x[:, :, :1024] for x in tensors], d_out[:, :, :1024])
with open("/proc/self/clear_refs", "w") as reset:
    reset.write("5")
before = peak()
results = work(tensors, d_out)
print((peak() - before - size(results)) / size(tensors[:1]))
"""


@needs_proc
@pytest.mark.slow
@pytest.mark.skipif(not has_compiler(), reason="no C++ compiler on this machine")
@pytest.mark.parametrize(("backward", "limit"), [((), 1.5), (("backward",), 3.0)], ids=("forward", "and backward"))
@pytest.mark.parametrize("dtype", ("float32", "bfloat16"))
@pytest.mark.parametrize(
    ("text", "n"),
    [
        ("window(left=511, right=0)", 8192),
        ("bigbird(block=64)", 8192),
        ("strided(stride=128)", 8192),
        ("fixed(stride=128, summary=8)", 8192),
        ("fixed(stride=128, summary=8)", 65536),
    ],
)
def test_extra_memory_of_the_fused_kernel(text, n, dtype, backward, limit):
    """Beyond q, k, v, what comes from above and all results, in sizes of q, with 8 heads of 64 on 2 threads.

    The C library gives freed memory back at once, so that none of it is used again unseen. Scratch memory is not
    poisoned: what is never touched costs nothing.
    """
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0", "ASTERISM_POISON": ""}
    command = [sys.executable, "-c", EXTRA, text, "cpu", dtype, str(n), *backward]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert -0.01 <= float(done.stdout) <= limit
