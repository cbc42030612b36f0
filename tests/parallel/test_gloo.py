"""The processes that other tests compute with: they end, whatever happens, and nobody outside can reach them."""

import os
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from gloo import WORKERS, Gloo


def sums(group, number):
    total = torch.tensor([group.rank() + number])
    dist.all_reduce(total, group=group)
    return os.getpid(), int(total)


def listens(group):
    """Addresses, as the kernel writes them, of the sockets of this process, and which of them listen."""
    own = {
        link.removeprefix("socket:[").rstrip("]")
        for link in (os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink())
        if link.startswith("socket:[")
    }
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]
    sockets = [(line[1].split(":")[0], line[3] == "0A") for line in lines if line[9] in own]
    return sockets


def raises_on_the_second(group):
    if group.rank() == 1:
        raise ValueError("of the second")
    dist.barrier(group=group)  # would wait for ever


def ends_on_the_first(group):
    if group.rank() == 0:
        os._exit(7)


def sleeps(group):
    time.sleep(1000)


def test_one_pool_serves_groups_of_all_sizes(gloo):
    found = [gloo.run(ranks, sums, 10) for ranks in range(1, WORKERS + 1)]
    assert [[total for _, total in one] for one in found] == [[10], [21] * 2, [33] * 3, [46] * 4]
    assert [pid for pid, _ in found[3]][:2] == [pid for pid, _ in found[1]]


def test_nothing_listens_on_an_outside_address(gloo):
    for sockets in gloo.run(WORKERS, listens):
        assert any(listening for _, listening in sockets)
        assert {address for address, _ in sockets} == {"0100007F"}  # 127.0.0.1


@pytest.mark.slow
def test_an_error_an_end_and_silence_are_told_and_the_next_call_has_new_workers():
    with Gloo() as workers:
        first = [pid for pid, _ in workers.run(2, sums, 1)]
        with pytest.raises(AssertionError, match=r"rank 0 of 2: was still(.|\n)*rank 1 of 2: Trace(.|\n)*the second"):
            workers.run(2, raises_on_the_second)
        second = [pid for pid, _ in workers.run(2, sums, 1)]
        assert not set(first) & set(second)
        with pytest.raises(AssertionError, match=r"rank 0 of 2: the process ended with 7"):
            workers.run(2, ends_on_the_first)
        with pytest.raises(AssertionError, match=r"rank 2 of 3: silent for 0.5 s"):
            workers.run(3, sleeps, patience=0.5)
        third = workers.run(4, sums, 1)
    for pid in [*first, *second, *(pid for pid, _ in third)]:
        assert not Path("/proc", str(pid)).exists()
