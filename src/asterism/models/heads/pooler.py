"""The pooler: one vector for a whole sequence, from its first token or from the mean of all."""

import torch
from torch import nn

from asterism.layers.block import ACTIVATIONS
from asterism.models.asterism.configuration import AsterismConfig
from asterism.parallel import SequenceParallel, sharding
from asterism.parallel.collectives import summed
from asterism.parallel.context import own_range, shards_of


class Pooler(nn.Module):
    """A dense layer and an activation (`pooler_act`) on the first real token of each row, or on the mean of all."""

    def __init__(self, config: AsterismConfig) -> None:
        super().__init__()
        self.pool = {"cls": _first, "mean": _mean}[config.classifier_pooling]
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = torch.tanh if config.pooler_act == "tanh" else ACTIVATIONS[config.pooler_act]

    def forward(self, hidden: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        """[B, N, hidden_size] and the mask [B, N] of real tokens -> [B, hidden_size]; the same on all ranks of a
        sharded sequence."""
        context = sharding()
        pooled = (
            self.pool(hidden, attention_mask) if context is None else self._pool_shards(context, hidden, attention_mask)
        )
        return self.activation(self.dense(pooled))

    def _pool_shards(
        self, context: SequenceParallel, hidden: torch.Tensor, attention_mask: torch.Tensor | None
    ) -> torch.Tensor:
        """As `pool`. Every rank adds what it holds, also nothing, so that all of them are asked for gradients."""
        real = hidden.new_ones(hidden.shape[:2], dtype=torch.bool) if attention_mask is None else attention_mask.bool()
        if self.pool is _first:
            before = own_range(shards_of(hidden), hidden.shape[1])[0]
            real = real & (torch.arange(before, before + hidden.shape[1], device=hidden.device) == 0)
        wide = torch.promote_types(hidden.dtype, torch.float32)
        total = summed(hidden.masked_fill(~real[..., None], 0).sum(dim=1, dtype=wide), context.group)
        return (total / summed(real.sum(dim=1), context.group)[:, None].clamp(min=1)).to(hidden.dtype)


def _first(hidden: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
    if attention_mask is None:
        return hidden[:, 0]
    column = attention_mask.bool().int().argmax(dim=1)
    return hidden[torch.arange(len(hidden), device=hidden.device), column]


def _mean(hidden: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
    """A row without a real token gets zeros."""
    if attention_mask is None:
        return hidden.mean(dim=1)
    real = attention_mask.bool()[..., None]
    total = hidden.masked_fill(~real, 0).sum(dim=1, dtype=torch.promote_types(hidden.dtype, torch.float32))
    return (total / real.sum(dim=1).clamp(min=1)).to(hidden.dtype)
