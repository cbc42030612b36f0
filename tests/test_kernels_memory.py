"""Working memory grows with the tiles kept, not with n x n; measured in processes of their own."""

import subprocess
import sys

import pytest
from test_compiler import PEAK, needs_proc

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
