"""From a plan to numbers: functions of (q, k, v, pattern) that know nothing of models."""

from asterism.kernels.attend import IMPLEMENTATIONS, attend, decode, readable

__all__ = ["IMPLEMENTATIONS", "attend", "decode", "readable"]
