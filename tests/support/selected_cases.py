"""What tests of selected(...) share: drawn cases, and how results are compared."""

from functools import partial

import numpy as np
import torch
from selected_oracle import Case
from torch import Tensor

from asterism import Choice

CAUSAL = """
{S} & causal()
({S} | window(left=9)) & causal()
({S} | global_keys((0, 3, -2))) & causal()
({S} | stride(5)) & causal()
{S} & window(left=45)
{S} & window(left=30) | window(left=70) & stride(7)
window(left=3) | {S} & causal() & ~global_keys((1,), block=16)
{S} & causal() | {S} & window(left=2, right=2)
""".strip().splitlines()
BOTH_SIDES = """
{S}
{S} | window(left=5, right=5)
{S} & window(left=50, right=30)
{S} | global_tokens((0, 20))
{S} & (causal() | global_keys((0, 2), block=16))
{S} & stride(3) | global_keys((0, 7, 8))
({S} | window(4)) & blocks(64)
{S} & blocks(40, left=1) | {S} & stride(2)
""".strip().splitlines()
EACH = ("mean", "max", "minmax")
"""Scores of a query by itself."""
SCORES = (*EACH, "antidiagonal")


def draw_mask(rng: np.random.Generator, batch: int, n_keys: int) -> Tensor | None:
    kind = rng.choice(["none", "none", "left", "right", "random", "sparse"])
    if kind == "none":
        return None
    if kind in ("random", "sparse"):
        return torch.from_numpy(rng.random((batch, n_keys)) < (0.7 if kind == "random" else 0.06))
    kept = torch.arange(n_keys) < torch.from_numpy(rng.integers(0, n_keys + 1, (batch, 1)))
    return kept.flip(1) if kind == "left" else kept


def draw_case(rng: np.random.Generator) -> tuple[Case, bool]:
    """A case, and whether its scores are whole numbers: only there are equal ones equal to the last bit."""

    def one_of(*values):
        return values[rng.integers(len(values))]

    def numbers(*shape: int) -> Tensor:
        return torch.from_numpy(rng.integers(-1, 2, shape).astype(float) if whole else rng.standard_normal(shape))

    batch, key_heads, group = int(rng.integers(1, 3)), int(rng.integers(1, 3)), int(rng.integers(1, 4))
    n_keys = int(rng.integers(1, one_of(20, 100, 151, 151)))
    n_queries = one_of(n_keys, n_keys, 1, int(rng.integers(1, n_keys + 1)))
    width, value_width = (int(number) for number in rng.integers(4, 25, 2))
    score, query_block = one_of(*SCORES, "given"), one_of(1, 16, 24)
    query_block = 16 if score == "antidiagonal" and query_block == 1 else query_block
    mass = one_of(None, None, 0.3, 0.7, 0.95)
    exact = score == "given" or score in ("max", "minmax") and query_block == 1
    whole = one_of(True, False) and exact and mass is None
    case = Case(
        rule=one_of(*one_of(CAUSAL, BOTH_SIDES)),
        q=numbers(batch, key_heads * group, n_queries, width),
        k=numbers(batch, key_heads, n_keys, width),
        v=torch.from_numpy(rng.standard_normal((batch, key_heads, n_keys, value_width))),
        block=one_of(16, 16, 32),
        topk=None if mass else one_of(1, 2, 3, 3, 4, 6),
        mass=mass,
        score=score,
        query_block=query_block,
        first=int(rng.integers(0, 3)),
        local=int(rng.integers(0, 3)),
        key_mask=draw_mask(rng, batch, n_keys),
        query_offset=one_of(None, n_keys - n_queries, int(rng.integers(0, n_keys - n_queries + 1))),
        scale=one_of(None, None, 0.3),
    )
    if score == "given":
        object.__setattr__(case, "scores", numbers(batch, key_heads, len(case.groups), len(case.blocks)))
    return case, whole


def blocks_of(choice: Choice) -> list[list[list[list[int]]]]:
    """By batch, head and row; after them there is only -1."""
    indices, counts = choice.indices, choice.counts
    assert indices.dtype == counts.dtype == torch.int32 and indices.shape[:3] == counts.shape
    assert torch.equal(indices == -1, torch.arange(indices.shape[3]) >= counts[..., None])
    return [[[[j for j in row if j >= 0] for row in head] for head in one] for one in indices.tolist()]


def differentiated(attending, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """out, lse, and the gradients of q, k and v."""
    leaves = [one.detach().clone().requires_grad_() for one in (q, k, v)]
    out, lse = attending(*leaves)
    d_out = torch.randn(out.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    gradients = torch.autograd.grad((out, lse), leaves, (d_out.to(out.dtype), torch.ones_like(lse)))
    return out.detach(), lse.detach(), *gradients


def assert_near(found: tuple[Tensor, ...], told: tuple[Tensor, ...], times: float, why: str) -> None:
    for name, one, expected in zip(("out", "lse", "dq", "dk", "dv"), found, told, strict=True):
        finite = expected.isfinite()
        allowed = times * (1 + expected[finite].abs().max().item() if finite.any() else 1)
        told_by = partial("{}: {}\n{}".format, why, name)
        torch.testing.assert_close(one.double(), expected, rtol=0, atol=allowed, msg=told_by)
