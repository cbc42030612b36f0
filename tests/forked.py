"""Ranks as copies of this process, which has imported everything and computed nothing: nothing is imported again."""

import os
from collections.abc import Callable
from typing import Any

import torch.multiprocessing as mp


def forked(work: Callable[..., None], ranks: int, *arguments: Any, seconds: float | None = None) -> bool:
    """Whether work(rank, *arguments) ended well on all ranks; each may take so many seconds, and is killed then.

    Nothing listens but on the loopback.
    """
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    start = mp.get_context("fork").Process
    processes = [start(target=work, args=(rank, *arguments)) for rank in range(ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(seconds)
    for process in processes:
        process.kill()
    return all(process.exitcode == 0 for process in processes)
