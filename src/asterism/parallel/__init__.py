"""Attention over a sequence that is sharded over several devices, by torch.distributed."""

from asterism.compiler.devices import needed_keys
from asterism.parallel.attention import attend
from asterism.parallel.batches import shard
from asterism.parallel.context import SequenceParallel, sequence_parallel, sharding
from asterism.parallel.turns import share

__all__ = ["SequenceParallel", "attend", "needed_keys", "sequence_parallel", "shard", "share", "sharding"]
