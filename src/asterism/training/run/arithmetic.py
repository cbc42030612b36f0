"""The arithmetic that a run computes in, in training and ever after."""

import torch

from asterism.training.run.configuration import Dtype


def arithmetic(dtype: Dtype, device: torch.device) -> torch.autocast:
    """The context in which a model computes: as it is for float32, autocast for bfloat16."""
    return torch.autocast(device.type, torch.bfloat16, enabled=dtype == "bfloat16")
