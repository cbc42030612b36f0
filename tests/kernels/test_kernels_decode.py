"""Attention of a few queries against the keys that a cache has kept."""

import math
import sys

import numpy as np
import pytest
import torch
from kernel_cases import DOUBLE_FLOOR, Case, implementations, inputs_of, tensors
from oracle import rule
from refusals import refusing

from asterism import SparseAttention, attend, patterns
from asterism.compiler.liveness import last_reader
from asterism.errors import KernelError, PatternError
from asterism.kernels import decode, dense, readable
from asterism.kernels.choice import choice
from asterism.kernels.reference import reference
from asterism.layers.persistent import PersistentAttention
from asterism.models.cache.layer import PatternCacheLayer

attend_module = sys.modules["asterism.kernels.attend"]  # the package shows the function of that name
pytestmark = pytest.mark.usefixtures("poison")


DECODED = (
    "causal()",
    "window(left=9)",
    "strided(5)",
    "fixed(6, summary=2)",
    "fixed(6, summary=2, heads=4)",
    "bigbird_causal(block=4, heads=4)",
    "sinks(2, 7)",
    "window(left=3) | stride(7) & causal()",
    "shifted(strided(4), by=3)",
)


@pytest.mark.parametrize("text", DECODED)
def test_decode_is_the_last_rows_of_the_whole(text):
    """With slots in any order, empty slots that hold NaN, and keys forgotten that nobody reads any more."""
    pattern = patterns.parse(text)
    n, new = 50, 3
    inputs = inputs_of(Case(rule("dense"), heads=4, kv_heads=2, n_queries=n, n_keys=n, value_width=5))
    whole, whole_lse = attend(*inputs.tensors, pattern, implementation="eager", return_lse=True)
    alive = np.flatnonzero(last_reader(pattern, np.arange(n)) >= n - new)
    slots = torch.from_numpy(np.random.Generator(np.random.Philox(0)).permutation(alive))
    k, v = (torch.cat([x[:, :, slots], torch.full_like(x[:, :, :2], math.nan)], dim=2) for x in inputs.tensors[1:])
    arguments = (
        inputs.q[:, :, -new:],
        k,
        v,
        pattern if pattern.heads == 1 else text,
        torch.arange(n - new, n)[None],
        torch.cat([slots, torch.tensor([-1, -1])])[None],
    )
    found = decode(*arguments)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, whole[:, :, -new:], rtol=0, atol=DOUBLE_FLOOR)
    out, lse = decode(*arguments, return_lse=True)
    torch.testing.assert_close(out, found, rtol=0, atol=DOUBLE_FLOOR)
    torch.testing.assert_close(lse, whole_lse[:, :, -new:], rtol=0, atol=DOUBLE_FLOOR)


@pytest.mark.parametrize("text", DECODED)
def test_decode_rows_of_different_lengths(text):
    n = 40
    inputs = inputs_of(Case(rule("dense"), heads=4, kv_heads=1, n_queries=n, n_keys=n, dtype=torch.float32))
    lengths = (40, 23)
    keys = torch.stack([torch.where(torch.arange(n) < length, torch.arange(n), -1) for length in lengths])
    queries = torch.tensor([[length - 1] for length in lengths])
    q = torch.stack([inputs.q[row, :, length - 1 : length] for row, length in enumerate(lengths)])
    found = decode(q, inputs.k, inputs.v, text, queries, keys, scale=0.7)
    for row, length in enumerate(lengths):
        alone = [x[row : row + 1, :, :length] for x in inputs.tensors]
        expected = attend(*alone, text, scale=0.7, implementation="reference")[:, :, -1:]
        torch.testing.assert_close(found[row : row + 1], expected)


def test_decode_with_nothing_to_read_is_zero():
    q, k, v = tensors(q=(1, 2, 1, 8), k=(1, 1, 3, 8), v=(1, 1, 3, 8))
    v += 1
    empty = decode(q, k, v, "window(left=1)", torch.tensor([[9]]), torch.tensor([[-1, 2, 3]]))
    assert torch.equal(empty, torch.zeros_like(q))
    _, lse = decode(q, k, v, "window(left=1)", torch.tensor([[9]]), torch.tensor([[-1, 2, 3]]), return_lse=True)
    assert (lse == -math.inf).all() and lse.shape == (1, 2, 1)


def test_decode_far_away():
    """Positions beyond 2^31 cost nothing and lose nothing."""
    q, k, v = tensors(q=(1, 1, 1, 8), k=(1, 1, 2, 8), v=(1, 1, 2, 8))
    v[0, 0, 1] = 3
    far = 2**40
    out = decode(q, k, v, "strided(4)", torch.tensor([[far]]), torch.tensor([[far - 7, far - 8]]))
    assert (out == 3).all()


@pytest.mark.parametrize("text", ("bigbird(block=4)", "global_keys(-1) & causal()", "yun_star()"))
def test_decode_refuses_what_changes_with_the_length(text):
    q, k, v = tensors(q=(1, 2, 1, 8), k=(1, 1, 3, 8), v=(1, 1, 3, 8))
    with pytest.raises(PatternError):
        decode(q, k, v, text, torch.tensor([[2]]), torch.arange(3)[None])


@pytest.mark.parametrize(
    ("query_positions", "key_positions"),
    [
        (torch.tensor([[1, 2]]), torch.arange(3)[None]),
        (torch.tensor([2]), torch.arange(3)[None]),
        (torch.tensor([[2]]), torch.arange(4)[None]),
        (torch.tensor([[2]]), torch.arange(3)),
        (torch.tensor([[2], [2], [2]]), torch.arange(3)[None]),
        (torch.tensor([[2.0]]), torch.arange(3)[None]),
    ],
    ids=("queries", "one dimension", "keys", "keys of one dimension", "batch", "floats"),
)
def test_decode_refuses_positions_that_do_not_fit(query_positions, key_positions):
    q, k, v = tensors(q=(2, 2, 1, 8), k=(2, 1, 3, 8), v=(2, 1, 3, 8))
    with refusing(KernelError, "positions-shape"):
        decode(q, k, v, "causal()", query_positions, key_positions)


# --- the door --------------------------------------------------------------------------------------------------------


def cached(rows, dtype=torch.float32, new=2, n=37):
    """q, k, v and positions of rows of different lengths, slots in any order, some empty and holding NaN."""
    inputs = inputs_of(Case(rule("dense"), heads=4, kv_heads=2, batch=rows, n_queries=n, n_keys=n, dtype=dtype))
    order = torch.from_numpy(np.random.Generator(np.random.Philox(1)).permutation(n))
    lengths = torch.tensor([n - 7 * row for row in range(rows)])
    places = torch.where(order < lengths[:, None], order, -1)
    q = inputs.q[:, :, :new]
    k, v = (x.masked_fill((places < 0)[:, None, :, None], math.nan) for x in inputs.tensors[1:])
    return q, k, v, lengths[:, None] - new + torch.arange(new), places


@pytest.mark.parametrize("text", ("causal()", "fixed(6, summary=2, heads=4)", "window(left=5)"))
@pytest.mark.parametrize("rows", (1, 3))
@pytest.mark.parametrize("implementation", implementations(torch.float32))
def test_decode_honours_the_implementation(implementation, rows, text, monkeypatch):
    """Each computes by itself, with gradients; what is named is neither replaced nor left out."""
    called = set()
    for module, name in ((choice, "reference"), (dense, "dense")):
        monkeypatch.setattr(module, name, recorded(getattr(module, name), name, called))
    q, k, v, asked, kept = cached(rows)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    with_lse = implementation not in ("dense", "auto")
    found = decode(*leaves, text, asked, kept, implementation=implementation, return_lse=with_lse)
    out = found[0] if with_lse else found
    assert called == {"auto": {"dense"}, "dense": {"dense"}, "reference": {"reference"}}.get(implementation, set())
    allowed = readable(patterns.parse(text), asked, kept)
    exact = [x.detach().double().nan_to_num().requires_grad_() for x in leaves]
    expected, lse = reference(*exact, allowed)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
    if with_lse:
        torch.testing.assert_close(found[1].double(), lse, rtol=1e-5, atol=1e-5)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(5))
    gradients = torch.autograd.grad((out * weight).sum(), leaves)
    for one, two in zip(gradients, torch.autograd.grad((expected * weight).sum(), exact), strict=True):
        torch.testing.assert_close(one.double(), two, rtol=1e-4, atol=1e-4)


def recorded(function, name, called):
    def call(*arguments, **keywords):
        called.add(name)
        return function(*arguments, **keywords)

    return call


def test_decode_refuses_as_attend_does():
    q, k, v, asked, kept = cached(1, dtype=torch.float64)
    for implementation, message in (("cpu", "float64"), ("triton", "float64|not installed"), ("eagr", "eager")):
        with pytest.raises(KernelError, match=message):
            decode(q, k, v, "causal()", asked, kept, implementation=implementation)
    with pytest.raises(KernelError, match="dense.*log-sum-exp"):
        decode(q, k, v, "causal()", asked, kept, implementation="dense", return_lse=True)
    with refusing(PatternError, "not-a-pattern", "int"):
        decode(q, k, v, 7, asked, kept)


@pytest.mark.parametrize("implementation", ("reference", "eager", "cpu"))
def test_a_layer_decodes_by_its_own_implementation(implementation, monkeypatch):
    """As SparseAttention and PersistentAttention hand it on."""
    if implementation not in implementations(torch.float32):
        pytest.skip("no compiler")
    asked = []
    whole = attend_module.choose_for_cache
    monkeypatch.setattr(
        attend_module, "choose_for_cache", lambda operands, name: asked.append(name) or whole(operands, name)
    )
    for layer in (
        SparseAttention(16, 2, "causal()", implementation=implementation),
        PersistentAttention(16, 2, "causal()", 3, implementation=implementation),
    ):
        hidden = torch.randn(1, 6, 16, generator=torch.Generator().manual_seed(0))
        cache = PatternCacheLayer(layer.pattern)
        parts = [layer(hidden[:, part], cache=cache) for part in (slice(0, 4), slice(4, 6))]
        torch.testing.assert_close(torch.cat(parts, dim=1), layer(hidden))
    assert asked == [implementation] * 2
