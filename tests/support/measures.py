"""Functions that trials in processes of their own call; such a process imports them by name."""

import os
import threading
import time

import torch

from asterism.errors import NonFiniteLossError


def measure(how: str, seed: int) -> dict[str, float]:
    """Figures, or the end that `how` names."""
    if how == "refuse":
        raise NonFiniteLossError("not-finite", "the loss is not finite")
    if how == "bug":
        raise LookupError("nothing here")
    if how == "linger":
        threading.Thread(target=time.sleep, args=(600,)).start()
    if how == "nan":
        return {"length": float("nan")}
    if how == "die":
        os._exit(7)
    if how.startswith("wait"):
        print("waiting", os.getpid(), flush=True)
        time.sleep(600)
    return {"length": float(len(how) + seed), "threads": float(torch.get_num_threads()), "minutes": 0.5}
