"""selected(...) by the Triton kernels: against the definition in loops, on a GPU or under Triton's interpreter."""

from functools import partial

import numpy as np
import pytest
import torch
from selected_cases import assert_near, blocks_of, differentiated, draw_case
from selected_oracle import attention, pairs
from slow_cases import slow_except

from asterism import Choice, Terms, attend, select
from asterism.errors import KernelError

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
pytest.importorskip("triton", minversion="3.7" if DEVICE.type == "cpu" else None, reason="needs the package triton")

pytestmark = [pytest.mark.usefixtures("poison"), pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")]


def operands(batch: int, heads: int, key_heads: int, length: int, seed: int = 0) -> tuple[torch.Tensor, ...]:
    drawn = torch.Generator().manual_seed(seed)
    return tuple(
        torch.randn(batch, count, length, 16, generator=drawn).to(DEVICE) for count in (heads, key_heads, key_heads)
    )


def small_case(rng: np.random.Generator):
    """One that the interpreter computes in a second or two, in which something is chosen."""
    while True:
        case, _ = draw_case(rng)
        programs = case.q.shape[0] * case.k.shape[1] * case.q.shape[2]
        if 20 < case.k.shape[2] < 120 and programs <= 40:
            return case


@pytest.mark.parametrize("seed", slow_except(range(8), *range(4)))
def test_generated_cases(seed):
    rng = np.random.default_rng(1000 + seed)
    case = small_case(rng)
    why = f"seed {seed}: {case}"
    options = {"key_mask": case.key_mask, "query_offset": case.query_offset}
    choice = select(case.q, case.k, case.text, **options, scores=case.scores)
    told = differentiated(partial(attention, pairs(case, blocks_of(choice)), scale=case.scale), case.q, case.k, case.v)
    options = {name: x.to(DEVICE) if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    moved = Choice(choice.indices.to(DEVICE), choice.counts.to(DEVICE), choice.block, choice.query_block)
    shared = {"pattern": case.text, "scale": case.scale, "return_lse": True, "choice": moved, **options}
    attending = partial(attend, implementation="triton", **shared)
    found = differentiated(attending, *(x.float().to(DEVICE) for x in (case.q, case.k, case.v)))
    assert_near(tuple(x.cpu() for x in found), told, 3e-5, why)


@pytest.mark.parametrize(
    ("dtype", "chosen_heads"),
    [
        pytest.param(torch.bfloat16, 1, marks=pytest.mark.slow),
        (torch.float16, 2),
        pytest.param(torch.bfloat16, 4, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_half_precision(dtype, chosen_heads):
    q, k, v = operands(1, 4, 2, 24)
    pattern = "(selected(16, 3) | window(left=5)) & causal()"
    choice = select(q, k.repeat_interleave(2, 1) if chosen_heads == 4 else k, pattern)
    indices = choice.indices[:, :chosen_heads].contiguous()
    choice = Choice(indices, choice.counts[:, :chosen_heads].contiguous(), 16)
    rounded = tuple(x.to(dtype) for x in (q, k, v))
    attending = partial(attend, pattern=pattern, choice=choice, return_lse=True)
    found = differentiated(partial(attending, implementation="triton"), *rounded)
    told = differentiated(partial(attending, implementation="eager"), *(x.double() for x in rounded))
    assert all(x.dtype == dtype for x in (found[0], *found[2:]))
    for one, expected in zip(found, told, strict=True):
        allowed = 3e-2 if dtype == torch.bfloat16 else 4e-3
        torch.testing.assert_close(one.double(), expected, rtol=0, atol=allowed * (1 + float(expected.abs().max())))


def test_a_choice_of_the_callers_own():
    """Blocks that are partly beyond the pattern, in any order, and rows that chose nothing."""
    q, k, v = operands(1, 2, 1, 50)
    indices = torch.full((1, 1, 50, 4), -1, dtype=torch.int32)
    indices[:, :, ::2] = torch.tensor([3, 0, 2, 2], dtype=torch.int32)
    choice = Choice(indices.to(DEVICE), (indices >= 0).sum(-1, dtype=torch.int32).to(DEVICE), 16)
    attending = partial(attend, pattern="selected(16, 4, first=0, local=0) & causal()", choice=choice, return_lse=True)
    found = differentiated(partial(attending, implementation="triton"), q, k, v)
    told = differentiated(partial(attending, implementation="eager"), q.double(), k.double(), v.double())
    assert_near(tuple(x.cpu() for x in found), tuple(x.cpu() for x in told), 2e-5, "by the caller")
    assert not found[0][:, :, 1].any() and bool((found[1][:, :, 1] == -torch.inf).all())


@pytest.mark.slow
def test_blocks_of_several_tiles():
    q, k, v = operands(1, 1, 1, 104)
    pattern = "selected(96, 2, query_block=64, first=0) & causal()"
    attending = partial(attend, pattern=pattern, choice=select(q, k, pattern), return_lse=True)
    found = differentiated(partial(attending, implementation="triton"), q, k, v)
    told = differentiated(partial(attending, implementation="eager"), q.double(), k.double(), v.double())
    assert_near(tuple(x.cpu() for x in found), tuple(x.cpu() for x in told), 2e-5, "96")


@pytest.mark.slow
def test_nan_in_keys_that_nobody_reads():
    q, k, v = operands(1, 2, 1, 40)
    key_mask = torch.arange(40, device=DEVICE)[None] % 5 > 0
    pattern = "selected(16, 2) & causal()"
    choice = select(q, k, pattern, key_mask=key_mask)
    bad = [x.masked_fill(~key_mask[:, None, :, None], torch.nan) for x in (k, v)]
    attending = partial(
        attend, pattern=pattern, choice=choice, key_mask=key_mask, return_lse=True, implementation="triton"
    )
    for one, other in zip(differentiated(attending, q, *bad), differentiated(attending, q, k, v), strict=True):
        assert torch.equal(one, other)


def test_what_it_refuses():
    q, k, v = operands(1, 2, 1, 40)
    with pytest.raises(KernelError):
        attend(q.double(), k.double(), v.double(), "selected(16, 2) & causal()", implementation="triton")
    q.requires_grad_()
    out = attend(q, k, v, "selected(16, 2) & causal()", implementation="triton")
    (grad,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(KernelError):
        grad.sum().backward()


def test_sinks():
    q, k, v = operands(1, 2, 1, 60)
    terms = Terms(sinks=torch.tensor([0.5, -1.0], device=DEVICE))
    pattern = "selected(16, 2) & causal()"
    found = attend(q, k, v, pattern, terms=terms, implementation="triton")
    told = attend(q, k, v, pattern, terms=terms, implementation="eager")
    torch.testing.assert_close(found, told, rtol=0, atol=1e-5)
