"""Fourier mixing of sequences on several devices.

A sequence is transformed over the features where its tokens are; then each rank gets a share of the features of all
tokens, transforms it over tokens, and what it computed goes back: two all-to-alls.
"""

from itertools import groupby
from typing import Any

import torch
from torch import nn

from asterism.compiler.devices import Shards
from asterism.parallel.collectives import begin_all_to_all, gather_numbers, wait
from asterism.parallel.context import SequenceParallel


def fourier_of_rows(
    context: SequenceParallel,
    hidden: torch.Tensor,
    shards: Shards,
    real: torch.Tensor | None,
    lengths: tuple[int, ...] | None,
) -> torch.Tensor:
    """[B, N of this rank, C] -> the same: the transform of the real tokens of each row; 0 for padding.

    real     bool [B, N of this rank]: which tokens are real, in any columns; None where all are
    lengths  in its place: how many of each whole row are real; they come first

    Runs of rows that are equally long are transformed together. All ranks call it together.
    """
    if lengths is not None:
        real = None
        rows = [Shards(tuple(min(bound, length) for bound in shards.bounds)) for length in lengths]
    elif real is not None:
        counts = gather_numbers(real.sum(dim=1).tolist(), context.group, hidden.device)
        rows = [Shards.of_sizes(tuple(own)) for own in counts.T.tolist()]
    else:
        return sharded_fourier(context, hidden, shards)
    mixed, first = [], 0
    for own, alike in groupby(rows):
        past = first + len(list(alike))
        some, count = hidden[first:past], own.sizes[context.rank]
        if real is None:
            done = sharded_fourier(context, some[:, :count], own)
            mixed.append(nn.functional.pad(done, (0, 0, 0, hidden.shape[1] - count)))
        else:
            chosen = real[first:past]
            done = sharded_fourier(context, some[chosen].unflatten(0, (past - first, count)), own)
            mixed.append(torch.zeros_like(some).masked_scatter(chosen[..., None], done))
        first = past
    return torch.cat(mixed) if mixed else hidden


def sharded_fourier(context: SequenceParallel, tokens: torch.Tensor, shards: Shards) -> torch.Tensor:
    """`fourier` of a sequence of which this rank holds `tokens` [B, N of this rank, C]; all ranks call it together.

    To every rank go (C // 2 + 1) / ranks complex features of each token, and C / ranks real ones come back.
    """
    wide = torch.promote_types(tokens.dtype, torch.float32)
    if not (shards.length and len(tokens) and tokens.shape[2]):
        return tokens
    mixed: torch.Tensor = _ShardedFourier.apply(tokens.to(wide), context, shards)  # type: ignore[no-untyped-call]
    return mixed.to(tokens.dtype)


class _ShardedFourier(torch.autograd.Function):
    """As _Fourier, and its own transpose, too."""

    @staticmethod
    def forward(tokens: torch.Tensor, context: SequenceParallel, shards: Shards) -> torch.Tensor:
        width = tokens.shape[2]
        features = Shards.even(width // 2 + 1, context.ranks)
        laid = tokens.permute(2, 1, 0)
        if laid.numel():  # FFT libraries refuse nothing at all
            turned = torch.view_as_real(torch.fft.rfft(laid, dim=0))
        else:
            turned = laid.new_zeros(features.length, *laid.shape[1:], 2)
        own = _exchange(context, turned, features, shards)
        spectrum = torch.fft.fft(torch.view_as_complex(own), dim=1).real if own.numel() else own[..., 0]
        mirrored = spectrum.flip(1).roll(1, 1)  # feature C - f at token k is feature f at token -k
        both = torch.stack([spectrum, mirrored], dim=3).transpose(0, 1)  # [N, features, B, 2]
        computed, others = _exchange(context, both, shards, features).permute(3, 2, 0, 1)
        return torch.cat([computed, others[..., 1 : (width + 1) // 2].flip(-1)], dim=-1)

    @staticmethod
    def setup_context(context: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        _, context.ranks, context.shards = inputs

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return _ShardedFourier.apply(gradient, context.ranks, context.shards), None, None  # type: ignore[no-untyped-call]


def _exchange(context: SequenceParallel, x: torch.Tensor, along: Shards, joined: Shards) -> torch.Tensor:
    """[all of `along`, this rank's of `joined`, ...] -> [this rank's of `along`, all of `joined`, ...]."""
    own, rest = along.sizes[context.rank], x.shape[2:]
    row = rest.numel()
    sent = [size * x.shape[1] * row for size in along.sizes]
    got = [own * size * row for size in joined.sizes]
    received = wait(begin_all_to_all(x.contiguous().flatten(), got, sent, context.group))
    parts = zip(received.split(got), joined.sizes, strict=True)
    return torch.cat([part.view(own, size, *rest) for part, size in parts], dim=1)
