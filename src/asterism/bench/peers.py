"""Attention of other libraries; each is measured by the pairs that it computes itself.

A peer says for which cases it is comparable. If its pattern differs from the requested one, `computes` names it. Its
result is then checked against its own pattern, and only its own pairs count as useful work.
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from asterism.bench.case import DTYPES, Case
from asterism.bench.contenders import Compute, Contender, Prepared, pattern_mask
from asterism.bench.machine import memory
from asterism.patterns import parse
from asterism.patterns.pattern import Named
from asterism.patterns.primitives import Window

_MOST_FLEX_TOKENS = 65_536
"""FlexAttention's block mask looks at all n^2 pairs."""

_PROBABILITY_SHARE = 0.45
"""Hugging Face's BigBird fills an n x n array of probabilities on every call: at most this share of main memory."""


class Peer(Contender):
    """Another library. Many compute the softmax in half precision, so their results may be less exact than ours."""

    kind = "peer"
    loose = 8.0
    package: str
    needs_gpu = False

    def reason_against(self, case: Case) -> str | None:
        if find_spec(self.package) is None:
            return f"{self.package} is not installed"
        if self.needs_gpu and case.device == "cpu":
            return f"{self.name} has no CPU kernel"
        return self.mismatch(case)

    def mismatch(self, case: Case) -> str | None:
        """The reason why its pattern is not that of the case, or None."""
        raise NotImplementedError

    def prepared(self, case: Case, compute: Compute, computes: str, note: str = "") -> Prepared:
        """Prepare a peer whose pattern can be written as a text of ours."""
        return Prepared(compute, case.pairs(computes), computes, partial(pattern_mask, case, computes), note=note)


def window_of(case: Case) -> Window | None:
    """The case's rule as a plain window, or None."""
    rule = case.rule
    while isinstance(rule, Named) and len(rule.parts) == 1:
        rule = rule.body
    return rule if isinstance(rule, Window) else None


def _window(case: Case) -> Window:
    """The window of a case that is known to be one."""
    window = window_of(case)
    if window is None:
        raise ValueError(f"{case.pattern} is no window")
    return window


# --- PyTorch ---------------------------------------------------------------------------------------------------------


class CompiledFlexAttention(Peer):
    """torch.compile(flex_attention) with the pattern written as a mask function, as its users do."""

    name = "FlexAttention"
    package = "torch"
    compiles = True

    def mismatch(self, case: Case) -> str | None:
        from asterism.bench.native_mask import mask_function

        if case.length > _MOST_FLEX_TOKENS:
            return f"its block mask looks at n^2 pairs: too many beyond {_MOST_FLEX_TOKENS:,} tokens"
        if mask_function(case.rule, 1, "cpu") is None:
            return "the pattern is not written as a native mask function"
        return None

    def prepare(self, case: Case) -> Prepared:
        from torch.nn.attention.flex_attention import flex_attention

        from asterism.bench.native_mask import block_mask, mask_function

        started = time.perf_counter()
        rule = mask_function(case.rule, case.length, case.device)
        if rule is None:
            raise ValueError(f"{case.pattern} is not written as a native mask function")
        blocks = block_mask(rule, case.length, case.device)
        seconds = time.perf_counter() - started
        compiled = torch.compile(flex_attention, fullgraph=True, dynamic=False)

        def compute(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if case.device == "cpu" and torch.is_grad_enabled() and q.requires_grad:
                raise NotImplementedError("FlexAttention has no backward on CPUs")
            with torch._dynamo.config.patch(recompile_limit=4096, accumulated_recompile_limit=4096):
                return compiled(q, k, v, block_mask=blocks)

        prepared = self.prepared(case, compute, case.pattern)
        return Prepared(prepared.compute, prepared.pairs, case.pattern, prepared.mask, plan_seconds=seconds)


# --- Hugging Face ----------------------------------------------------------------------------------------------------


class HuggingFaceBigBird(Peer):
    """BigBirdBlockSparseAttention of transformers, without its projections, in training mode.

    Blocks of 64, window of 3, first and last block global, 3 random blocks of its own drawing for each head. Outside of
    training all of its random blocks are block 0, so training mode is timed. Every call includes the draw.
    """

    name = "HF BigBird"
    package = "transformers"
    block = 64
    random = 3

    def mismatch(self, case: Case) -> str | None:
        rule = case.rule
        if not isinstance(rule, Named) or rule != parse("bigbird(block=64)"):
            return "it computes bigbird(block=64) only"
        if case.length % self.block or case.length // self.block < 12:
            return f"it needs a multiple of {self.block} tokens and at least {12 * self.block}"
        needed = case.square * DTYPES[case.dtype].itemsize
        if needed > _PROBABILITY_SHARE * (memory() or math.inf):
            return f"it fills an n x n array of probabilities on every call, {needed / 2**30:.0f} GiB here"
        return None

    def checked_length(self, case: Case) -> int:
        return 12 * self.block

    def prepare(self, case: Case) -> Prepared:
        attention = self._attention(case)

        def compute(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return attention(q, k, v)[0].transpose(1, 2)

        def mask() -> Tensor:
            q, k, v, _ = case.operands()
            return attention(q, k, v)[1][0] > 0

        own = "bigbird with random blocks of its own"
        return Prepared(
            compute, self._pairs(case), own, mask, note="training mode: draws its random blocks on every call"
        )

    def _attention(self, case: Case) -> Any:
        from transformers import BigBirdConfig
        from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention, BigBirdModel

        config = BigBirdConfig(
            hidden_size=case.heads * case.head_dim,
            num_attention_heads=case.heads,
            block_size=self.block,
            num_random_blocks=self.random,
            max_position_embeddings=max(case.length, 4096),
        )
        module = BigBirdBlockSparseAttention(config, seed=0).train()
        ones = torch.ones((case.batch, case.length), device=case.device)
        blocked, band, of_queries, of_keys = BigBirdModel.create_masks_for_block_sparse_attn(ones, self.block)

        def attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            dtype = q.dtype
            with _numpy_randomness_kept():
                return module.bigbird_block_sparse_attention(
                    q,
                    k,
                    v,
                    band.to(dtype),
                    of_queries.to(dtype),
                    of_keys.to(dtype),
                    blocked.to(dtype),
                    blocked.to(dtype),
                    case.heads,
                    self.random,
                    case.head_dim,
                    self.block,
                    self.block,
                    case.batch,
                    case.length,
                    case.length,
                    seed=0,
                    plan_from_length=None,
                    plan_num_rand_blocks=None,
                )

        return attention

    def _pairs(self, case: Case) -> int:
        """Two global rows of blocks, two rows at the edges and those between, over all lanes."""
        blocks = case.length // self.block
        kept = 2 * blocks + 2 * (4 + self.random) + (blocks - 4) * (5 + self.random)
        return kept * self.block**2 * case.lanes


@contextmanager
def _numpy_randomness_kept() -> Iterator[None]:
    """Restore numpy's global generator afterwards, because the module seeds it on every call."""
    state = np.random.get_state()
    try:
        yield
    finally:
        np.random.set_state(state)


class _Prepared(nn.Module):
    """Stands in for a projection and returns a tensor that was prepared outside."""

    given: Tensor

    def forward(self, hidden: Tensor) -> Tensor:
        return self.given


class HuggingFaceLongformer(Peer):
    """LongformerSelfAttention of transformers, its projections replaced by q, k and v; no global tokens."""

    name = "HF Longformer"
    package = "transformers"

    def mismatch(self, case: Case) -> str | None:
        window = window_of(case)
        if window is None or window.left != window.right or not window.left:
            return "it computes windows that are as wide on both sides"
        if case.length % (2 * window.left):
            return f"it needs a multiple of {2 * window.left} tokens"
        return None

    def checked_length(self, case: Case) -> int:
        return min(case.length, 4 * _window(case).left)

    def prepare(self, case: Case) -> Prepared:
        from transformers import LongformerConfig
        from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

        width = case.heads * case.head_dim
        config = LongformerConfig(
            hidden_size=width,
            num_attention_heads=case.heads,
            attention_window=[2 * _window(case).left],
            attention_probs_dropout_prob=0.0,
        )
        module = LongformerSelfAttention(config, 0)
        module.query, module.key, module.value = projections = _Prepared(), _Prepared(), _Prepared()
        allowed = torch.zeros((case.batch, case.length), device=case.device)
        hidden = torch.zeros((case.batch, case.length, width), device=case.device)

        def compute(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            for projection, x in zip(projections, (q, k, v), strict=True):
                projection.given = x.permute(2, 0, 1, 3).flatten(2).clone()  # it divides the queries in place
            (out,) = module(hidden, allowed, allowed != 0, allowed != 0, False)
            return out.unflatten(2, (case.heads, case.head_dim)).transpose(1, 2)

        return self.prepared(case, compute, case.pattern)


# --- others ----------------------------------------------------------------------------------------------------------


class LocalAttention(Peer):
    """local-attention of lucidrains: causal windows by buckets, each with the bucket before it."""

    name = "local-attention"
    package = "local_attention"

    def mismatch(self, case: Case) -> str | None:
        window = window_of(case)
        if window is None or window.right or window.left < 2:
            return "it computes causal windows"
        return None

    def prepare(self, case: Case) -> Prepared:
        from local_attention import LocalAttention as Module

        left = _window(case).left
        bucket = left + 1 if case.length % (left + 1) == 0 else left
        module = Module(bucket, causal=True, exact_windowsize=True, autopad=True, use_rotary_pos_emb=False)
        note = "reads one key more" if bucket > left else ""
        return self.prepared(case, module, f"window(left={bucket})", note)


class Xformers(Peer):
    """memory_efficient_attention of xformers with a local bias."""

    name = "xformers"
    package = "xformers"
    needs_gpu = True

    def mismatch(self, case: Case) -> str | None:
        return "it computes windows" if window_of(case) is None else None

    def prepare(self, case: Case) -> Prepared:
        from xformers.ops import memory_efficient_attention
        from xformers.ops.fmha.attn_bias import LocalAttentionFromBottomRightMask

        window = _window(case)
        bias = LocalAttentionFromBottomRightMask(window.left, window.right)
        return self.prepared(case, _tokens_first(partial(memory_efficient_attention, attn_bias=bias)), case.pattern)


class Natten(Peer):
    """Causal neighbourhood attention of NATTEN in one dimension."""

    name = "NATTEN"
    package = "natten"
    needs_gpu = True

    def mismatch(self, case: Case) -> str | None:
        window = window_of(case)
        if window is None or window.right or not window.left:
            return "only its causal windows have the same edges as ours"
        return None

    def prepare(self, case: Case) -> Prepared:
        from natten import na1d

        window = _window(case)
        compute = _tokens_first(partial(na1d, kernel_size=window.left + 1, is_causal=True))
        return self.prepared(case, compute, case.pattern)


class FlashAttention(Peer):
    """flash-attn with a window."""

    name = "flash-attn"
    package = "flash_attn"
    needs_gpu = True

    def mismatch(self, case: Case) -> str | None:
        if case.dtype == "float32":
            return "it has no float32"
        return "it computes windows" if window_of(case) is None else None

    def prepare(self, case: Case) -> Prepared:
        from flash_attn import flash_attn_func

        window = _window(case)
        compute = _tokens_first(partial(flash_attn_func, window_size=(window.left, window.right)))
        return self.prepared(case, compute, case.pattern)


def _tokens_first(attention: Compute) -> Compute:
    """For libraries whose tensors are [batch, tokens, heads, head_dim]; transposing costs no copy."""

    def compute(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)

    return compute


PEERS: tuple[Peer, ...] = (
    CompiledFlexAttention(),
    HuggingFaceBigBird(),
    HuggingFaceLongformer(),
    LocalAttention(),
    Xformers(),
    Natten(),
    FlashAttention(),
)
"""Every peer known, installed or not."""
