"""Attention over a sequence whose tokens lie on several devices, by torch.distributed."""

from asterism.parallel.attention import attend
from asterism.parallel.context import SequenceParallel, sequence_parallel, sharding

__all__ = ["SequenceParallel", "attend", "sequence_parallel", "sharding"]
