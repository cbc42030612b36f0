"""Patterns of encoders, small encoders with them, and padded batches."""

import torch
from small_models import encoder_config, random_tokens, randomise
from torch import nn

from asterism.models import AsterismModel

PATTERNS = (
    "dense()",
    "window(left=3, right=2)",
    "bigbird(block=4, window_blocks=3, random=1)",
    "bigbird(block=4, window_blocks=3, random=1, heads=4, seed=3)",
    "bigbird_etc(block=4, window_blocks=3, random=1, globals=2)",
    "longformer(window=6, globals=(0, 5))",
    "longformer(window=4, dilation=2, globals=(0, -1))",
    "star()",
    "star_transformer()",
    "yun_star()",
    "yun_strided(w=5)",
    "yun_fixed(w=5)",
    "yun_window(w=4)",
    "yun_random(count=3)",
    "split_heads(window(left=3, right=3), dense(), heads=4)",
    "global_tokens(positions=(-1,)) & causal() | window()",
)
"""Every bidirectional pattern of the literature, one over heads, and a causal one that depends on the length."""


def encoder(mixers: str | list[str] = PATTERNS[2], kind: type = AsterismModel, **fields: object) -> nn.Module:
    return randomise(kind(encoder_config(mixers, **fields)))


def normalise(x: torch.Tensor, norm: nn.LayerNorm) -> torch.Tensor:
    centred = x - x.mean(dim=-1, keepdim=True)
    return centred / (centred.square().mean(dim=-1, keepdim=True) + norm.eps).sqrt() * norm.weight + norm.bias


LENGTHS = (19, 7, 1, 12, 22, 7)


def padded(side: str) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """A batch padded with a token that also occurs as text, its mask, and its rows alone."""
    rows = [random_tokens(length, seed=length + number) for number, length in enumerate(LENGTHS)]
    mask = torch.zeros(len(LENGTHS), 22, dtype=torch.int64)
    for number, length in enumerate(LENGTHS):
        places = torch.randperm(22, generator=torch.Generator().manual_seed(number))[:length]
        mask[number, {"left": slice(22 - length, 22), "right": slice(length), "holes": places}[side]] = 1
    tokens = torch.full(mask.shape, 3)
    tokens[mask.bool()] = torch.cat(rows)
    return tokens, mask, rows
