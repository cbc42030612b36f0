"""Keys and values whose heads lie side by side in memory: the kernel copies those that it reads often (gather.hpp)."""

import pytest
import torch
from kernel_cases import has_compiler, laid_out

from asterism import attend
from asterism.kernels.cpu.schedule import FIELDS, schedule
from asterism.kernels.operands import Operands
from asterism.patterns import in_full

pytestmark = pytest.mark.skipif(not has_compiler(), reason="no C++ compiler on this machine")

CASES = (
    pytest.param("dense()", (2, 4, 2, 300, 16), 16, id="dense"),
    pytest.param("causal()", (1, 3, 3, 901, 9), 20, id="odd widths"),
    pytest.param("strided(stride=24) | window(left=300)", (2, 6, 2, 700, 32), 32, id="several passes"),
    pytest.param("split_heads(causal(), window(left=600), heads=4)", (2, 4, 2, 700, 8), 8, id="patterns of heads"),
)
LAYOUTS = ("tokens first", "every other", "part of more", "one head for all", "expanded")


def given(shape, value_dim, memory, dtype, seed=0):
    """q, k and v; heads of q, then of k and v."""
    (batch, heads, kv_heads, tokens, dim), generator = shape, torch.Generator().manual_seed(seed)
    shapes = ((heads, dim), (kv_heads, dim), (kv_heads, value_dim))
    return [laid_out((batch, n, tokens, width), memory, dtype, generator) for n, width in shapes]


def attended(tensors, text, **keywords):
    """out, lse and the three gradients."""
    tensors = [x.detach().requires_grad_() for x in tensors]
    out, lse = attend(*tensors, text, return_lse=True, implementation="cpu", **keywords)
    weights = torch.linspace(-1, 1, out.shape[-1], dtype=out.dtype)
    return [out.detach(), lse.detach(), *torch.autograd.grad([out, lse], tensors, [weights.expand_as(out), lse.cos()])]


def assert_equal_to_contiguous(tensors, text, **keywords):
    dtype = tensors[0].dtype
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    found = attended(tensors, text, **keywords)
    expected = attended([x.contiguous() for x in tensors], text, **keywords)
    for x, y in zip(found[:2], expected[:2], strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0)
    for x, y in zip(found[2:], expected[2:], strict=True):  # whose sums may be cut at other places
        torch.testing.assert_close(x, y, **tolerance)


def is_copied(tensors, text):
    """Whether a forward pass has a phase more than with contiguous operands."""

    def phases(q, k, v):
        tasks = schedule(Operands(q, k, v, None, None, None, in_full(text), 0, 1.0), 2)
        return tasks[:, FIELDS.index("phase")].max()

    return phases(*tensors) > phases(*(x.contiguous() for x in tensors))


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=("float32", "bfloat16"))
@pytest.mark.parametrize("memory", LAYOUTS)
@pytest.mark.parametrize(("text", "shape", "value_dim"), CASES)
def test_equals_contiguous_operands(text, shape, value_dim, memory, dtype):
    assert_equal_to_contiguous(given(shape, value_dim, memory, dtype), text)


@pytest.mark.parametrize("memory", LAYOUTS)
@pytest.mark.parametrize(("text", "shape", "value_dim"), CASES)
def test_equals_the_reference(text, shape, value_dim, memory):
    tensors = given(shape, value_dim, memory, torch.float32)
    assert is_copied(tensors, text) == (memory != "one head for all" and memory != "expanded")
    wide = [x.double().requires_grad_() for x in tensors]
    out, lse = attend(*wide, text, return_lse=True, implementation="reference")
    weights = torch.linspace(-1, 1, value_dim, dtype=torch.float64)
    expected = [out, lse, *torch.autograd.grad([out, lse], wide, [weights.expand_as(out), lse.cos()])]
    for x, y in zip(attended(tensors, text), expected, strict=True):
        torch.testing.assert_close(x.double(), y, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("threads", (1, 2))
@pytest.mark.parametrize("text", ("causal()", "strided(stride=64)"))
def test_heads_are_copied_a_few_at_a_time(text, threads):
    """Fourteen key heads of 1.5 MB each, with 8 MB copied at a time: the last waves begin within a row of the batch."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert_equal_to_contiguous(given((2, 14, 7, 3000, 64), 64, "tokens first", torch.float32), text)
    finally:
        torch.set_num_threads(before)


def test_padding_and_segments():
    generator = torch.Generator().manual_seed(1)
    key_mask = torch.rand((2, 700), generator=generator) < 0.8
    segments = torch.randint(0, 3, (2, 700), generator=generator).sort(dim=1).values
    tensors = given((2, 4, 2, 700, 16), 16, "tokens first", torch.float32)
    assert_equal_to_contiguous(tensors, "causal()", key_mask=key_mask, segments=segments)


def test_keys_that_are_read_once_are_not_copied():
    """As those of a long cache, of which a few new queries read a few."""
    q, k, v = given((1, 4, 4, 4096, 16), 16, "tokens first", torch.float32)
    assert not is_copied((q, k, v), "window(left=31)")
    assert not is_copied((q[:, :, :8], k, v), "dense()")
    assert is_copied((q, k, v), "causal()")


def test_values_that_are_not_read_may_be_nan():
    q, k, v = given((1, 2, 2, 600, 16), 16, "tokens first", torch.float32)
    k[:, :, 500:], v[:, :, 500:] = torch.nan, torch.nan
    key_mask = torch.arange(600)[None] < 500
    found = attended((q, k, v), "dense()", key_mask=key_mask)
    assert all(torch.isfinite(x).all() for x in found)
