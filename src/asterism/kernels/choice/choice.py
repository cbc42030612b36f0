"""Chooses the kernel: the named one, or for "auto" the cheapest that accepts the operands.

A named kernel is used or refused with the reason, never replaced by another.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from asterism.compiler import Plan, compile_pattern
from asterism.compiler.cost import DENSE_MASK_LIMIT, TILE_COSTS, TILE_SIZES, Setting
from asterism.errors import AsterismError, KernelError, nearest
from asterism.kernels import cpu
from asterism.kernels.checks import DTYPES
from asterism.kernels.choice.prices import Cell, PriceList, known_prices, measured_prices
from asterism.kernels.cpu import CPU, is_available
from asterism.kernels.dense import CAUSAL, FULL, MASKED
from asterism.kernels.eager import EAGER
from asterism.kernels.masks import allowed_pairs, distances, kept_pairs
from asterism.kernels.operands import Attended, Kernel, Operands
from asterism.kernels.operator import TileKernel
from asterism.kernels.reference import PairTerms, reference
from asterism.kernels.slots import SLOTS
from asterism.kernels.transforms import is_for_onnx, is_transformed
from asterism.kernels.triton import kernel as triton
from asterism.kernels.triton.kernel import TRITON
from asterism.memo import remembering_few
from asterism.patterns.by_text import by_text


@dataclass(frozen=True)
class Reference:
    """The specification as a kernel. `reference.py` itself knows neither operands nor plans."""

    def refusal(self, operands: Operands) -> str | None:
        return None

    def run(self, operands: Operands) -> Attended:
        o, terms = operands, None
        if o.terms:
            kept = kept_pairs(o) if o.dropout else None
            of_scores = o.bias, o.first_distance, o.relative, o.softcap, o.sinks
            terms = PairTerms(distances(o), *of_scores, kept, o.dropout)
        return Attended(*reference(o.q, o.k, o.v, allowed_pairs(o), o.scale, terms))

    def costs(self, plan: Plan, setting: Setting) -> float:
        return math.inf


@dataclass(frozen=True)
class EveryKey:
    """A few queries that read every key, or those that a key_mask leaves, as the keys of a cache: without a gradient.

    A tile of keys serves as many queries as a tile has. On one core of an EPYC 9005, 1 query of 8 heads to 16,384 keys
    takes the kernel for decoding a quarter of the time of tiles, 8 queries take half, and 32 as long.
    """

    most: int = 8

    def refusal(self, operands: Operands) -> str | None:
        o = operands
        if torch.compiler.is_compiling() or o.text != "dense()" or o.segments is not None or o.terms:
            return "only for dense() outside of graphs, without segments and terms"
        if o.q.shape[2] > self.most or o.in_training:
            return f"only for up to {self.most} queries without a gradient, got {o.q.shape[2]}"
        return cpu.DECODING.refusal(o)

    def run(self, operands: Operands) -> Attended:
        o = operands
        everything = torch.ones((1, 1, 1, 1), dtype=torch.bool, device=o.q.device)
        allowed = everything if o.key_mask is None else o.key_mask[:, None, None]
        allowed = allowed.expand(-1, -1, o.q.shape[2], o.k.shape[2])
        return cpu.DECODING.run(replace(o, allowed=allowed, key_mask=None))

    def costs(self, plan: Plan, setting: Setting) -> float:
        return cpu.DECODING.costs(plan, setting)


REFERENCE, EVERY_KEY = Reference(), EveryKey()

NAMED: dict[str, Kernel] = {"reference": REFERENCE, "eager": EAGER, "cpu": CPU, "triton": TRITON}
"""The kernels by their names; "dense" is three of them."""

DENSE = {"full": FULL, "causal": CAUSAL, "sparse": MASKED}
"""Dense attention, by the pairs that it computes."""

DTYPE_NAMES = {dtype: str(dtype).removeprefix("torch.") for dtype in DTYPES}

IMPLEMENTATIONS = ("auto", "reference", "eager", "cpu", "triton", "dense")
"""What `implementation` may be; `shape.py`, which knows no kernels, lists the same for models."""


def choose(operands: Operands, implementation: str) -> Kernel:
    """The kernel for a stretch of a sequence. Raises KernelError where there is none of that name, or it refuses."""
    _require_known(implementation)
    if is_for_onnx():
        return _for_onnx(operands, implementation)
    if implementation in NAMED:
        if not torch.compiler.is_compiling():
            operands.pattern.check_heads(operands.q.shape[1])
        return _first_of((NAMED[implementation],), operands)
    if implementation == "auto" and EVERY_KEY.refusal(operands) is None:
        return EVERY_KEY
    tiles = _fastest_tiles(operands)
    if implementation == "dense":
        _first_of((MASKED,), operands)
    elif operands.terms:
        return _first_of((tiles,), operands)
    elif is_transformed():
        return tiles  # dense attention would take the way that holds all scores
    question = _question(operands, implementation, tiles)
    if torch.compiler.is_compiling():
        return _chosen_in_graph(question, tiles)
    name = answer(question)
    return tiles if name == tiles.name else DENSE[name]


def choose_for_cache(operands: Operands, implementation: str) -> Kernel:
    """The kernel for a few queries against the keys of a cache; with gradients, which none of the fused ones has, that
    in plain PyTorch. Raises as `choose`.
    """
    _require_known(implementation)
    has_terms = operands.slots is not None
    if implementation == "auto":
        fused = triton.DECODING if operands.q.is_cuda and not has_terms else cpu.DECODING
        return _first_of((fused, SLOTS) if has_terms else (fused, MASKED, REFERENCE), operands)
    if has_terms and implementation in ("dense", "triton"):
        raise KernelError(
            "decode-with-terms",
            f'implementation="{implementation}" does not decode with terms of the score: use "auto", "cpu" or "eager"',
        )
    named: dict[str, Kernel] = {"cpu": cpu.DECODING, "triton": triton.DECODING}
    named |= {"eager": SLOTS, "dense": MASKED, "reference": REFERENCE}
    is_fused = implementation in ("cpu", "triton")
    in_pytorch = has_terms if not is_fused else operands.differentiated or is_transformed()
    chosen = SLOTS if in_pytorch else named[implementation]
    return _first_of((chosen,), operands)


def _for_onnx(operands: Operands, implementation: str) -> Kernel:
    """A kernel that is made of PyTorch's operators alone. Raises KernelError for one that is not."""
    if implementation not in ("auto", "dense", "reference"):
        raise KernelError(
            "not-in-onnx",
            f'implementation="{implementation}" is an operator of Asterism, which ONNX lacks: use "auto", "dense" or'
            ' "reference"',
        )
    known = {"auto": (MASKED, REFERENCE), "dense": (MASKED,), "reference": (REFERENCE,)}
    return _first_of(known[implementation], operands)


def _require_known(implementation: str) -> None:
    if implementation not in IMPLEMENTATIONS:
        raise KernelError(
            "unknown-implementation",
            f"unknown implementation {implementation!r}: use one of {', '.join(IMPLEMENTATIONS)}."
            f"{nearest(str(implementation), IMPLEMENTATIONS)}",
        )


def _first_of(kernels: Sequence[Kernel], operands: Operands) -> Kernel:
    """The first that takes the operands. Raises KernelError with what the last one says if none does."""
    said: list[str] = []
    for kernel in kernels:
        if (reason := kernel.refusal(operands)) is None:
            return kernel
        said.append(reason)
    raise KernelError("refused-by-implementation", said[-1])


def _fastest_tiles(operands: Operands) -> TileKernel:
    """The fastest kernel of tiles that there is for the operands."""
    if operands.q.is_cuda:
        return EAGER if TRITON.refusal(operands) else TRITON
    return CPU if CPU.refusal(operands) is None and is_available() else EAGER


# --- dense attention or tiles ----------------------------------------------------------------------------------------

_OPEN = 10.0
"""Where prices differ by more, no machine is known on which the dearer way is the faster one."""

_WORTH_MEASURING = 1e7
"""Nanoseconds of a call from which on it pays to measure the machine."""


class ChoiceQuestion(NamedTuple):
    """What "auto" and "dense" depend on, beside the prices: the pairs, and what they cost.

    lanes   batch size times query heads
    masked  whether there is a mask, or a term of the score, which takes the place of one
    tiles   the name of the kernel that computes tiles
    """

    text: str
    heads: int
    n_queries: int
    n_keys: int
    query_offset: int
    masked: bool
    with_lse: bool
    lanes: int
    device: str
    dtype: str
    training: bool
    implementation: str
    tiles: str

    @property
    def cell(self) -> Cell:
        """Where its prices stand."""
        return Cell(self.dtype, self.training, self.tiles, self.device)

    @property
    def kind_by_text(self) -> str | None:
        """Dense attention without a mask, where the text alone shows that it serves."""
        if self.masked or self.with_lse:
            return None
        if self.text == "dense()":
            return "full" if self.query_offset >= 0 else None
        is_square = self.n_queries == self.n_keys and self.query_offset == 0
        return "causal" if self.text == "causal()" and is_square else None


class ChoiceAnswer(NamedTuple):
    """The name of a kernel of tiles, or of one in `DENSE`, and whether other prices may say otherwise, in a call that
    takes long enough for it to matter."""

    name: str
    is_open: bool = False


def answer(question: ChoiceQuestion, measuring: bool = True) -> str:
    """The name of the kernel of tiles, or of one in `DENSE`. Raises as `choose`.

    Where the answer is open and this machine's prices are a guess, they are measured first, if `measuring`.
    """
    prices = known_prices(question.cell)
    found = _answer(question, prices)
    if found.is_open and prices.is_guess and measuring:
        found = _answer(question, measured_prices(question.cell))
    return found.name


def _question(operands: Operands, implementation: str, tiles: TileKernel) -> ChoiceQuestion:
    o, (batch, heads, n_queries, _) = operands, operands.q.shape
    pairs = o.text, heads, n_queries, o.k.shape[2], o.query_offset, o.masked or bool(o.terms), o.with_lse
    numbers = batch * heads, o.q.device.type, DTYPE_NAMES[o.q.dtype], o.in_training
    return ChoiceQuestion(*pairs, *numbers, implementation, tiles.name)


@remembering_few(1024)  # the texts of many documents are long
def _answer(question: ChoiceQuestion, prices: PriceList) -> ChoiceAnswer:
    q, tiles = question, question.tiles
    pattern = by_text(q.text)
    pattern.check_heads(q.heads)
    if (q.implementation == "dense" or tiles == "eager") and q.kind_by_text:
        return ChoiceAnswer(q.kind_by_text)
    plan = compile_pattern(pattern, q.n_queries, q.n_keys, query_offset=q.query_offset)
    if q.with_lse:
        return ChoiceAnswer(tiles)
    dense = "sparse" if q.masked else plan.dense_kind
    fits = dense != "sparse" or q.n_queries * q.n_keys <= DENSE_MASK_LIMIT
    if q.implementation == "dense":
        if fits:
            return ChoiceAnswer(dense)
        raise KernelError(
            "dense-mask-too-large",
            f'implementation="dense" needs a mask of {q.n_queries} x {q.n_keys} pairs for {q.text},'
            f' more than the limit of {DENSE_MASK_LIMIT}: use "auto"',
        )
    if not fits:
        return ChoiceAnswer(tiles)
    if q.n_queries == q.n_keys == 1:
        return ChoiceAnswer(dense)
    setting = Setting(q.lanes, prices.prices)
    by_tiles, by_dense = plan.sparse_cost(tiles, setting), DENSE[dense].costs(plan, setting)
    cheaper, dearer = sorted((by_tiles, by_dense))
    is_open = cheaper >= _WORTH_MEASURING and dearer < _OPEN * cheaper
    return ChoiceAnswer(dense if by_dense < by_tiles else tiles, is_open)


# --- the same inside torch.compile -----------------------------------------------------------------------------------

_MANY = 2**16
"""Heads of all sequences, where the size of the batch is a symbol: what counts is the cost of a pair."""


def _chosen_in_graph(question: ChoiceQuestion, tiles: TileKernel) -> Kernel:
    """The ordinary answer where lengths are known. Where they are symbols there is no plan to look at, but the text."""
    from torch.fx.experimental.symbolic_shapes import has_static_value  # loads sympy

    q, kind = question, question.kind_by_text
    if q.implementation == "dense":
        return DENSE[kind or "sparse"]
    if all(has_static_value(length) for length in (q.n_queries, q.n_keys, q.query_offset)):
        lanes = q.lanes if has_static_value(q.lanes) else _MANY
        name = _answer_in_graph((*q[:7], lanes, *q[8:]))
        return tiles if name == tiles.name else DENSE[name]
    return DENSE[kind] if kind and _dense_pays(kind, tuple(q.cell)) else tiles


def _answer_in_graph(question: tuple[Any, ...]) -> str:
    """`answer` of plain values, without measuring; the operator refuses at run time what can be no plan."""
    asked = ChoiceQuestion(*question)
    try:
        return answer(asked, measuring=False)
    except AsterismError:
        return asked.tiles


def _dense_pays(kind: str, cell: tuple[Any, ...]) -> bool:
    """Whether pairs are cheaper by dense attention, for the pattern dense() or causal() at whatever length."""
    asked = Cell(*cell)
    if asked.tiles == "eager":
        return True
    prices = known_prices(asked).prices
    share = 0.5 if kind == "causal" else 1.0
    return prices[f"dense {kind}"].pair < share * TILE_COSTS.pair[max(TILE_SIZES)] * prices[asked.tiles].pair


# What torch.compiler.assume_constant_result does, without its second of imports: a graph keeps the answer.
_answer_in_graph._dynamo_marked_constant = True  # type: ignore[attr-defined]
_dense_pays._dynamo_marked_constant = True  # type: ignore[attr-defined]
