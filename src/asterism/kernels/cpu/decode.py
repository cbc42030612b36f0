"""Decoding on the CPU: a few queries against the slots of a cache, by the kernel in decode.hpp.

Where a cache is short, a call takes as long as Python needs for it. So the operator is registered without the layers of
`torch.library.custom_op`, and the structure that C++ reads is packed in one go.
"""

import os
import struct
from dataclasses import dataclass

import torch
from torch import Tensor

from asterism.compiler import Plan
from asterism.compiler.cost import Setting
from asterism.errors import KernelError
from asterism.kernels.cpu.build import is_available, library
from asterism.kernels.cpu.interface import check
from asterism.kernels.operands import Attended, Operands
from asterism.kernels.transforms import is_transformed

DTYPES = (torch.float32, torch.bfloat16)
"""What the kernel computes."""

_TENSOR = "P4q"

_SLOTS = struct.Struct(f"@7q{6 * _TENSOR}3P2f3i0q")
"""The structure Slots of interface.hpp, field after field."""

_NO_TENSOR = (0, 0, 0, 0, 0)

_POISON = bool(os.environ.get("ASTERISM_POISON"))

_OPERATORS = torch.library.Library("asterism", "FRAGMENT")
_OPERATORS.define(
    "cpu_decode(Tensor q, Tensor k, Tensor v, Tensor allowed, Tensor?[] terms, float scale, float softcap,"
    " bool with_lse) -> Tensor[]"
)


def _decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    allowed: Tensor,
    terms: list[Tensor | None],
    scale: float,
    softcap: float,
    with_lse: bool,
) -> list[Tensor]:
    """Out [B, H, M, Dv], and the log-sum-exp [B, H, M] if it is asked for.

    `terms`: what is added to q . k and to the scores, float32 [B or 1, H or 1, M, L], and the sinks, float32 [H].
    """
    before, bias, sinks = terms
    for name, x, dtype in (
        ("keys", k, q.dtype), ("values", v, q.dtype), ("allowed", allowed, torch.bool),
        ("products", before, torch.float32), ("a bias", bias, torch.float32), ("sinks", sinks, torch.float32),
    ):  # fmt: skip
        if x is not None and x.dtype != dtype:  # C++ would read beyond the end of a narrower one
            raise KernelError("decode-dtype", f"cpu_decode takes {name} in {dtype}, got {x.dtype}")
    sinks = None if sinks is None else sinks.contiguous()
    (batch, heads, n_queries, dim), (_, kv_heads, n_slots, value_dim) = q.shape, v.shape
    results = [q.new_empty((batch, heads, n_queries, value_dim))]
    if with_lse:
        results.append(q.new_empty((batch, heads, n_queries), dtype=torch.float32))
    if not batch * n_queries:
        return results
    # Features that do not lie next to each other are rare, and a vector of them cannot be loaded: they are copied.
    k, v = (x if x.stride(3) == 1 else x.contiguous() for x in (k, v))
    given = _SLOTS.pack(
        batch, heads, kv_heads, n_queries, n_slots, dim, value_dim,
        q.data_ptr(), *q.stride(), k.data_ptr(), *k.stride(), v.data_ptr(), *v.stride(),
        *_spread(allowed), *_spread(before), *_spread(bias), 0 if sinks is None else sinks.data_ptr(),
        results[0].data_ptr(), results[1].data_ptr() if with_lse else 0,
        scale, softcap, q.dtype == torch.bfloat16, torch.get_num_threads(), _POISON,
    )  # fmt: skip
    check(library().asterism_decode(given))
    return results


def _spread(x: Tensor | None) -> tuple[int, ...]:
    """Where a tensor lies that stands for more rows or heads where it has one of them."""
    if x is None:
        return _NO_TENSOR
    batch, head, query, slot = x.stride()
    return x.data_ptr(), batch if x.shape[0] > 1 else 0, head if x.shape[1] > 1 else 0, query, slot


def _fake_decode(q: Tensor, k: Tensor, v: Tensor, *others: object) -> list[Tensor]:
    out = q.new_empty((*q.shape[:3], v.shape[3]))
    return [out, q.new_empty(q.shape[:3], dtype=torch.float32)] if others[-1] else [out]


_OPERATORS.impl("cpu_decode", _decode, "CPU")
torch.library.register_fake("asterism::cpu_decode", _fake_decode, lib=_OPERATORS)


@dataclass(frozen=True)
class CpuDecoding:
    """`cpu_decode` as a kernel."""

    def refusal(self, operands: Operands) -> str | None:
        q = operands.q
        if not q.is_cpu:
            return f"implementation 'cpu' works on CPU tensors, got {q.device}: use 'auto'"
        if q.dtype not in DTYPES:
            return f"implementation 'cpu' takes float32 and bfloat16, got {q.dtype}: use 'auto' or convert"
        if operands.differentiated or is_transformed():
            return "implementation 'cpu' decodes without gradients: use 'auto', or torch.no_grad()"
        return None if is_available() else "implementation 'cpu' could not be built: use 'auto'"

    def run(self, operands: Operands) -> Attended:
        assert operands.allowed is not None, "only chosen for the keys of a cache"
        o = operands
        terms, softcap = ([None, None, None], 0.0) if o.slots is None else ([*o.slots[:3]], o.slots.softcap)
        found = torch.ops.asterism.cpu_decode.default(o.q, o.k, o.v, o.allowed, terms, o.scale, softcap, o.with_lse)
        return Attended(found[0], found[1] if o.with_lse else None)

    def costs(self, plan: Plan, setting: Setting) -> float:
        return plan.sparse_cost("cpu", setting)


DECODING = CpuDecoding()
"""Attention of a few queries against the slots of a cache."""
