"""The pooler: one vector for a whole sequence, from its first token."""

import torch
from torch import nn

from asterism.layers.block import ACTIVATIONS
from asterism.models.configuration import AsterismConfig


class Pooler(nn.Module):
    """A dense layer and an activation (`pooler_act`) on the first real token of each row."""

    def __init__(self, config: AsterismConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = torch.tanh if config.pooler_act == "tanh" else ACTIVATIONS[config.pooler_act]

    def forward(self, hidden: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        """[B, N, hidden_size] and the mask [B, N] of real tokens -> [B, hidden_size]."""
        if attention_mask is None:
            first = hidden[:, 0]
        else:
            column = attention_mask.bool().int().argmax(dim=1)
            first = hidden[torch.arange(len(hidden), device=hidden.device), column]
        return self.activation(self.dense(first))
