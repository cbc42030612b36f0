"""Which kernel computes: the one that was named, or for "auto" the cheapest of those that take the operands.

A named kernel is used or refused with the reason, never replaced by another.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from asterism.compiler import Plan, compile_pattern
from asterism.compiler.cost import DENSE_MASK_LIMIT, Setting
from asterism.errors import KernelError, nearest
from asterism.kernels.cpu import CPU, is_available
from asterism.kernels.dense import CAUSAL, FULL, MASKED, Dense
from asterism.kernels.eager import EAGER
from asterism.kernels.masks import allowed_pairs
from asterism.kernels.operands import Attended, Kernel, Operands
from asterism.kernels.operator import Tiles
from asterism.kernels.reference import reference
from asterism.kernels.transforms import is_transformed
from asterism.kernels.triton import DECODING, TRITON
from asterism.patterns.by_text import by_text


@dataclass(frozen=True)
class Reference:
    """The specification as a kernel. `reference.py` itself knows neither operands nor plans."""

    def refusal(self, operands: Operands) -> str | None:
        return None

    def run(self, operands: Operands) -> Attended:
        return Attended(*reference(operands.q, operands.k, operands.v, allowed_pairs(operands), operands.scale))

    def costs(self, plan: Plan, setting: Setting) -> float:
        return math.inf


@dataclass(frozen=True)
class Flex:
    """FlexAttention as a kernel; its file is imported at first use, since it loads PyTorch's compiler."""

    def refusal(self, operands: Operands) -> str | None:
        if torch.compiler.is_compiling():
            return None  # `run` leaves the graph before it asks again
        from asterism.kernels import flex

        return flex.refusal(operands)

    def run(self, operands: Operands) -> Attended:
        from asterism.kernels import flex

        return flex.flex(operands)

    def costs(self, plan: Plan, setting: Setting) -> float:
        return math.inf


REFERENCE, FLEX = Reference(), Flex()

NAMED: dict[str, Kernel] = {"reference": REFERENCE, "eager": EAGER, "cpu": CPU, "triton": TRITON, "flex": FLEX}
"""The kernels by their names; "dense" is three of them."""

IMPLEMENTATIONS = ("auto", "reference", "eager", "cpu", "triton", "dense", "flex")
"""What `implementation` may be."""


def choose(operands: Operands, implementation: str) -> Kernel:
    """The kernel for a stretch of a sequence. Raises KernelError where there is none of that name, or it refuses."""
    _require_known(implementation)
    if implementation in NAMED:
        if not torch.compiler.is_compiling():
            operands.pattern.check_heads(operands.q.shape[1])
        return _first_of((NAMED[implementation],), operands)
    tiles = _fastest_tiles(operands)
    if implementation == "dense":
        _first_of((MASKED,), operands)
    elif is_transformed():
        return tiles  # dense attention would take the way that holds all scores
    if torch.compiler.is_compiling():
        return _dense_by_name(operands.text, _shape(operands), implementation, tiles) or (
            MASKED if implementation == "dense" else tiles
        )
    question = Question(operands.text, _shape(operands), implementation, tiles, _setting(operands))
    return _choose_by_cost(question)


def choose_for_cache(operands: Operands, implementation: str) -> Kernel:
    """The kernel for a few queries against the keys of a cache. Raises as `choose`."""
    _require_known(implementation)
    if implementation == "auto":
        fused = (DECODING,) if operands.q.is_cuda else ()
        return _first_of((*fused, MASKED, REFERENCE), operands)
    if implementation == "dense":
        return _first_of((MASKED,), operands)
    if implementation == "triton":
        return _first_of((DECODING, TRITON), operands)
    return _first_of((NAMED[implementation],), operands)


def _require_known(implementation: str) -> None:
    if implementation not in IMPLEMENTATIONS:
        raise KernelError(
            f"unknown implementation {implementation!r}: use one of {', '.join(IMPLEMENTATIONS)}."
            f"{nearest(str(implementation), IMPLEMENTATIONS)}"
        )


def _first_of(kernels: Sequence[Kernel], operands: Operands) -> Kernel:
    """The first that takes the operands. Raises KernelError with what the last one says if none does."""
    reason: str | None = None
    for kernel in kernels:
        reason = kernel.refusal(operands)
        if reason is None:
            return kernel
    raise KernelError(reason)


def _fastest_tiles(operands: Operands) -> Tiles:
    """The fastest kernel of tiles that there is for the operands."""
    if operands.q.is_cuda:
        return EAGER if TRITON.refusal(operands) else TRITON
    return CPU if CPU.refusal(operands) is None and is_available() else EAGER


# --- dense attention or tiles ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """What decides, beside the pattern, which pairs there are, and whether dense attention can do without a mask."""

    heads: int
    n_queries: int
    n_keys: int
    query_offset: int
    masked: bool
    with_lse: bool


@dataclass(frozen=True)
class Question:
    """What "auto" and "dense" depend on; equal questions have one answer."""

    text: str
    shape: Shape
    implementation: str
    tiles: Tiles
    setting: Setting


def _shape(operands: Operands) -> Shape:
    _, heads, n_queries, _ = operands.q.shape
    n_keys = operands.k.shape[2]
    return Shape(heads, n_queries, n_keys, operands.query_offset, operands.masked, operands.with_lse)


def _setting(operands: Operands) -> Setting:
    q = operands.q
    half = q.dtype in (torch.float16, torch.bfloat16)
    return Setting(q.shape[0] * q.shape[1], half, training=operands.differentiated, on_gpu=q.is_cuda)


def _dense_by_name(text: str, shape: Shape, implementation: str, tiles: Tiles) -> Dense | None:
    """Dense attention without a mask, where the text alone shows that it serves.

    Inside torch.compile lengths may be symbols, so that no plan can be looked at.
    """
    if shape.masked or shape.with_lse or not (implementation == "dense" or tiles is EAGER):
        return None
    if text == "dense()":
        return FULL if 0 <= shape.query_offset <= shape.n_keys - shape.n_queries else None
    return CAUSAL if text == "causal()" and shape.n_queries == shape.n_keys and shape.query_offset == 0 else None


@lru_cache(maxsize=4096)
def _choose_by_cost(question: Question) -> Kernel:
    shape, tiles = question.shape, question.tiles
    pattern = by_text(question.text)
    pattern.check_heads(shape.heads)
    if by_name := _dense_by_name(question.text, shape, question.implementation, tiles):
        return by_name
    plan = compile_pattern(pattern, shape.n_queries, shape.n_keys, query_offset=shape.query_offset)
    if shape.with_lse:
        return tiles
    dense = MASKED if shape.masked else Dense(plan.dense_kind)
    fits = dense != MASKED or shape.n_queries * shape.n_keys <= DENSE_MASK_LIMIT
    if question.implementation == "dense":
        if fits:
            return dense
        raise KernelError(
            f'implementation="dense" needs a mask of {shape.n_queries} x {shape.n_keys} pairs for {question.text},'
            f' more than the limit of {DENSE_MASK_LIMIT}: use "auto"'
        )
    if not fits:
        return tiles
    single = shape.n_queries == shape.n_keys == 1
    cheaper = Dense(plan.dense_kind).costs(plan, question.setting) < tiles.costs(plan, question.setting)
    return dense if single or cheaper else tiles
