"""The pooler: one vector for a whole sequence, from its first token or from the mean of all."""

import torch
from torch import nn

from asterism.layers import Rows
from asterism.layers.block import ACTIVATIONS
from asterism.models.asterism.configuration import AsterismConfig


class Pooler(nn.Module):
    """A dense layer and an activation (`pooler_act`) on the first real token of each row, or on the mean of all."""

    def __init__(self, config: AsterismConfig) -> None:
        super().__init__()
        self.reads_first = {"cls": True, "mean": False}[config.classifier_pooling]
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = torch.tanh if config.pooler_act == "tanh" else ACTIVATIONS[config.pooler_act]

    def forward(self, hidden: torch.Tensor, rows: Rows) -> torch.Tensor:
        """[B, N, hidden_size] of the tokens of `rows` -> [B, hidden_size] of the same dtype, equal on all ranks."""
        pooled = rows.first(hidden) if self.reads_first else rows.mean(hidden)
        return self.activation(self.dense(pooled))
