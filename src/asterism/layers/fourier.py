"""Fourier mixing (Lee-Thorp et al. 2021, FNet): y = Re(F_tokens(F_features(x))). It has no parameters.

Both transforms are unnormalised, y[k, f] = sum over n, m of x[n, m] cos(2 pi (n k / N + m f / C)), as in the authors'
FFT path and in Hugging Face's FNet, so imported weights mean the same. (The matrix that the paper prints, equation 2,
is divided by sqrt(N); next to the residual x that is another model.)

The input is real and only the real part is kept. That saves half of the work: Y[k, f] is the conjugate of Y[-k, -f], so
half of the features are computed and the others copied. And because the cosine above does not change when (n, m) and
(k, f) change places, the operator is its own transpose: the gradient is the transform of the gradient.

A sequence that lies on several devices is transformed over the features where its tokens are; then each rank gets a
share of the features of all tokens, transforms it over tokens, and what it computed goes back: two all-to-alls.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch
from torch import nn

from asterism.compiler.devices import Shards
from asterism.errors import ConfigurationError
from asterism.parallel import SequenceParallel, sharding
from asterism.parallel.collectives import begin_all_to_all, gather_numbers, wait
from asterism.parallel.context import shards_of

NOT_CAUSAL = (
    "fourier() cannot be used by a causal model or with a cache: every output of a Fourier transform reads every token,"
    " the future too; use a causal pattern in this layer"
)
"""Why a causal model refuses Fourier mixing."""


class FourierMixing(nn.Module):
    """The real part of the discrete Fourier transform over tokens and features, a token mixer for encoders.

    float64 and float32 are transformed as they are; bfloat16 and float16 in float32, and the result is rounded back.
    The largest outputs grow with N * C, so float16 may overflow where bfloat16 does not.
    """

    def forward(
        self,
        hidden: torch.Tensor,
        *,
        key_mask: torch.Tensor | None = None,
        segments: torch.Tensor | None = None,
        cache: object | None = None,
        positions: torch.Tensor | None = None,
        lengths: Sequence[int] | None = None,
    ) -> torch.Tensor:
        """[B, N, C] -> [B, N, C], for any N and C; within `sequence_parallel`, of the tokens of one shard.

        key_mask   bool [B, N]: True for real tokens, which may stand anywhere in their row. The real tokens of a row
                   are transformed by themselves, in the order of their columns, at their own number; what the others
                   hold changes nothing, and they get 0 and gradient 0.
        positions  not used: the transform knows tokens by their order
        lengths    in place of key_mask: how many tokens of each row are real; they come first

        Raises ConfigurationError for a cache, because the transform is never causal, and for segments.
        """
        if cache is not None:
            raise ConfigurationError(NOT_CAUSAL)
        if segments is not None:
            raise ConfigurationError(
                "fourier() reads all tokens of a row and cannot keep segments apart; give each segment a row of its own"
            )
        if (context := sharding()) is not None:
            return _mix_shards(context, hidden, key_mask, lengths)
        if lengths is not None:
            key_mask = torch.arange(hidden.shape[1], device=hidden.device) < hidden.new_tensor(lengths)[:, None]
        if key_mask is None:
            return fourier(hidden)
        mixed = torch.zeros_like(hidden)
        counts = key_mask.sum(dim=1)
        for length in counts.unique().tolist():
            real = key_mask & (counts == length)[:, None]
            mixed[real] = fourier(hidden[real].unflatten(0, (-1, length or 1))).flatten(0, 1)
        return mixed


def fourier(tokens: torch.Tensor) -> torch.Tensor:
    """[B, N, C] -> Re(F_tokens(F_features(tokens))) [B, N, C], unnormalised, in the dtype of the tokens."""
    wide = torch.promote_types(tokens.dtype, torch.float32)
    return _Fourier.apply(tokens.to(wide)).to(tokens.dtype) if tokens.numel() else tokens


class _Fourier(torch.autograd.Function):
    """A linear operator that is its own transpose, so every derivative is the operator again."""

    generate_vmap_rule = True

    @staticmethod
    def forward(tokens: torch.Tensor) -> torch.Tensor:
        computed = torch.fft.rfft2(tokens).real
        mirrored = computed[..., 1 : (tokens.shape[-1] + 1) // 2].flip((-2, -1)).roll(1, -2)
        return torch.cat([computed, mirrored], dim=-1)

    @staticmethod
    def setup_context(context: Any, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        pass

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        return _Fourier.apply(gradient)


def _mix_shards(
    context: SequenceParallel,
    hidden: torch.Tensor,
    key_mask: torch.Tensor | None,
    lengths: Sequence[int] | None,
) -> torch.Tensor:
    """As FourierMixing.forward; runs of rows that are equally long are transformed together.

    Every rank may have real tokens of its own in its shard, in any columns, as long as it is told by a key_mask.
    """
    shards = shards_of(hidden)
    assert shards is not None
    if key_mask is not None:
        counts = gather_numbers(key_mask.sum(dim=1).tolist(), context.group, hidden.device)
        rows = [Shards.of_sizes(tuple(own)) for own in counts.T.tolist()]
    elif lengths is not None:
        rows = [Shards(tuple(min(bound, length) for bound in shards.bounds)) for length in lengths]
    else:
        return sharded_fourier(context, hidden, shards)
    mixed, first = [], 0
    for own, alike in groupby(rows):
        past = first + len(list(alike))
        some, count = hidden[first:past], own.sizes[context.rank]
        if key_mask is None:
            done = sharded_fourier(context, some[:, :count], own)
            mixed.append(nn.functional.pad(done, (0, 0, 0, hidden.shape[1] - count)))
        else:
            real = key_mask[first:past]
            done = sharded_fourier(context, some[real].unflatten(0, (past - first, count)), own)
            mixed.append(torch.zeros_like(some).masked_scatter(real[..., None], done))
        first = past
    return torch.cat(mixed) if mixed else hidden


def sharded_fourier(context: SequenceParallel, tokens: torch.Tensor, shards: Shards) -> torch.Tensor:
    """`fourier` of a sequence of which this rank holds `tokens` [B, N of this rank, C]; all ranks call it together.

    To every rank go (C // 2 + 1) / ranks complex features of each token, and C / ranks real ones come back.
    """
    wide = torch.promote_types(tokens.dtype, torch.float32)
    if not (shards.length and len(tokens) and tokens.shape[2]):
        return tokens
    mixed: torch.Tensor = _ShardedFourier.apply(tokens.to(wide), context, shards)
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
        return _ShardedFourier.apply(gradient, context.ranks, context.shards), None, None


def _exchange(context: SequenceParallel, x: torch.Tensor, along: Shards, joined: Shards) -> torch.Tensor:
    """[all of `along`, this rank's of `joined`, ...] -> [this rank's of `along`, all of `joined`, ...]."""
    own, rest = along.sizes[context.rank], x.shape[2:]
    row = rest.numel()
    sent = [size * x.shape[1] * row for size in along.sizes]
    got = [own * size * row for size in joined.sizes]
    received = wait(begin_all_to_all(x.contiguous().flatten(), got, sent, context.group))
    parts = zip(received.split(got), joined.sizes, strict=True)
    return torch.cat([part.view(own, size, *rest) for part, size in parts], dim=1)
