"""Calling the kernel: tensors and a plan go in as a Problem, results come back in tensors made here."""

import ctypes
import os

import numpy as np
import torch
from torch import Tensor

from asterism.compiler import Plan
from asterism.errors import KernelError
from asterism.kernels.cpu import interface
from asterism.kernels.cpu.build import library
from asterism.kernels.cpu.interface import Problem, address, call, pointer, strided_pointer
from asterism.kernels.cpu.program import Program
from asterism.kernels.operands import Operands
from asterism.kernels.operator import Gradients, Rounded, TileKernel, Wanted, operator

DTYPES = (torch.float32, torch.bfloat16)
"""What the kernel computes."""

LARGEST_HEAD_DIM = 256


def refusal(operands: Operands) -> str | None:
    """The reason why the kernel cannot take these operands, with a remedy; None if it can."""
    q, v = operands.q, operands.v
    if q.device.type != "cpu":
        return f"implementation 'cpu' works on CPU tensors, got {q.device}: use 'auto'"
    if q.dtype not in DTYPES:
        return f"implementation 'cpu' takes float32 and bfloat16, got {q.dtype}: use 'eager' or convert"
    if max(q.shape[3], v.shape[3]) > LARGEST_HEAD_DIM:
        widths = f"{q.shape[3]} for q and k and {v.shape[3]} for v"
        return f"implementation 'cpu' takes a head_dim of at most {LARGEST_HEAD_DIM}, got {widths}: use 'eager'"
    return None


def _forward(operands: Operands) -> Rounded:
    q, v = operands.q, operands.v
    shape = (*q.shape[:3], v.shape[3])
    attended = Rounded(
        out=q.new_empty(shape),
        lse=q.new_empty(shape[:3], dtype=torch.float32),
        residual=q.new_empty(0 if q.dtype == torch.float32 else shape),
    )
    problem = problem_of(operands, attended)
    if attended.lse.numel():
        call(library().asterism_forward, problem)
    return attended


def backward(operands: Operands, attended: Rounded, grad_out: Tensor, grad_lse: Tensor, wanted: Wanted) -> Gradients:
    """The gradients of operands q [B, H, Nq, D], in their dtypes, as an operator takes them (`kernels/operator.py`)."""
    o = operands
    given = {"grad_q": o.q, "grad_k": o.k, "grad_v": o.v, "grad_bias": o.bias, "grad_relative": o.relative}
    asked = {name: x for (name, x), is_asked in zip(given.items(), wanted, strict=True) if is_asked and x is not None}
    if not (o.q.numel() and o.k.numel()):
        return tuple(x.new_zeros(x.shape) if name in asked and x is not None else None for name, x in given.items())
    problem = problem_of(operands, attended)
    problem.grad_out = interface.Tensor.of("grad_out", grad_out, o.q.dtype, *attended.out.shape)
    problem.grad_lse = pointer("grad_lse", grad_lse, torch.float32, *attended.lse.shape)
    gradients = {name: torch.empty_like(x, memory_format=torch.contiguous_format) for name, x in asked.items()}
    for name, gradient in gradients.items():
        holder = problem.given_terms if name in ("grad_bias", "grad_relative") else problem
        setattr(holder, name, pointer(name, gradient, asked[name].dtype, *asked[name].shape))
    call(library().asterism_backward, problem)
    return tuple(gradients.get(name) for name in given)


def problem_of(operands: Operands, attended: Rounded, plan: Plan | None = None) -> Problem:
    """What forward and backward share; the plan is by default that of the operands.

    Raises KernelError for operands that the kernel cannot take.
    """
    q, k, v, plan = operands.q, operands.k, operands.v, operands.plan if plan is None else plan
    if reason := refusal(operands):
        raise KernelError("refused-by-implementation", reason)
    key_mask, segments = _plain(operands.key_mask, np.bool_), _plain(operands.segments, np.int64)
    tiles = plan.derived(Program, q.shape[1])
    batch, heads, n_queries, dim = q.shape
    kv_heads, n_keys, value_dim = k.shape[1], k.shape[2], v.shape[3]
    problem = Problem(batch, heads, kv_heads, n_queries, n_keys, dim, value_dim, plan.query_offset)
    problem.holds = (tiles, key_mask, segments)
    problem.tile, problem.n_passes, problem.words = plan.tile, len(plan.passes), tiles.words
    problem.passes, problem.masks = ctypes.addressof(tiles.passes), address(tiles.masks, np.uint64)
    problem.live, problem.has_unread = address(tiles.live, np.uint8), address(tiles.has_unread, np.uint8)
    if key_mask is not None:
        problem.key_mask = pointer("key_mask", key_mask, torch.bool, batch, n_keys)
    if segments is not None:
        problem.segments = pointer("segments", segments, torch.int64, batch, n_keys)
    problem.given_terms = _terms_of(operands)
    if problem.given_terms is not None:
        problem.terms = ctypes.addressof(problem.given_terms)
    problem.scale, problem.is_bfloat16 = operands.scale, q.dtype == torch.bfloat16
    problem.threads, problem.poison = torch.get_num_threads(), bool(os.environ.get("ASTERISM_POISON"))
    problem.q = interface.Tensor.of("q", q, q.dtype, *q.shape)
    problem.k = interface.Tensor.of("k", k, q.dtype, batch, kv_heads, n_keys, dim)
    problem.v = interface.Tensor.of("v", v, q.dtype, batch, kv_heads, n_keys, value_dim)
    _set_results(problem, q.dtype, attended)
    return problem


def _terms_of(operands: Operands) -> interface.Terms | None:
    """The terms of the scores, None for none. Their tensors live as long as the operands do."""
    o = operands
    if not o.terms:
        return None
    terms = interface.Terms(softcap=o.softcap, seed=o.seed, kept_factor=1 / (1 - o.dropout))
    terms.dropped_below = round(o.dropout * 2**32)
    if o.bias is not None:
        heads, (first, past) = 1 if len(o.bias) == 1 else o.q.shape[1], o.distances
        terms.bias = strided_pointer("bias", o.bias, torch.float32, heads, past - first)
        terms.bias_heads, (terms.bias_head, terms.bias_distance) = heads, o.bias.stride()
    if o.relative is not None:
        terms.relative = strided_pointer("relative", o.relative, o.q.dtype, len(o.relative), o.q.shape[3])
        terms.n_relative, (terms.relative_distance, terms.relative_feature) = len(o.relative), o.relative.stride()
    return terms


def _plain(x: Tensor | None, dtype: type[np.generic]) -> Tensor | None:
    """Contiguous and of that dtype; by NumPy, since after a fork PyTorch would wait for threads that are gone."""
    return None if x is None else torch.from_numpy(np.ascontiguousarray(x.numpy(), dtype))


def _set_results(problem: Problem, dtype: torch.dtype, attended: Rounded) -> None:
    shape = (problem.batch, problem.heads, problem.n_queries, problem.value_dim)
    problem.out = pointer("out", attended.out, dtype, *shape)
    problem.lse = pointer("lse", attended.lse, torch.float32, *shape[:3])
    if dtype != torch.float32:
        problem.residual = pointer("residual", attended.residual, dtype, *shape)


CPU = TileKernel("cpu", operator("cpu", _forward, backward), refusal, ("bias", "relative", "softcap", "dropout"))
"""Fused attention over tiles in C++ (kernels/operator.py)."""
