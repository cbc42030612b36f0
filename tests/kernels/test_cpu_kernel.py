"""The CPU kernel where libraries and scripts change the whole process: nothing of it may reach the numbers."""

import ctypes
import os
from dataclasses import replace

import pytest
import torch
from kernel_cases import Case, assert_equal_bits, attending, check, differentiated, has_compiler, inputs_of, laid_out
from oracle import rule
from refusals import refusing

from asterism import attend
from asterism.errors import KernelError
from asterism.kernels.cpu import interface, library

pytestmark = pytest.mark.skipif(not has_compiler(), reason="no C++ compiler on this machine")

MASKED = Case(
    rule("strided", stride=3), heads=4, kv_heads=2, n_queries=70, n_keys=83, width=9, padding=True, segments=True
)


@pytest.fixture
def flush_denormal():
    """Denormal numbers read and written as 0, as several libraries set it at import."""
    if not torch.set_flush_denormal(True):
        pytest.skip("this machine cannot flush denormal numbers")
    yield
    torch.set_flush_denormal(False)


# In a process of its own: the fault was heap corruption, which ends a process at any later time.
DEFAULT_DTYPE = """
import sys, torch
from asterism import attend
default = getattr(torch, sys.argv[1])
for width in (3, 64):
    for dtype in (torch.float32, torch.bfloat16):
        generator = torch.Generator().manual_seed(0)
        tensors = [torch.randn(2, 4, 200, width, generator=generator, dtype=torch.float64).to(dtype) for _ in range(3)]
        results = []
        for chosen in (torch.float32, default):
            torch.set_default_dtype(chosen)
            leaves = [x.clone().requires_grad_() for x in tensors]
            out, lse = attend(*leaves, "bigbird(16)", implementation="cpu", return_lse=True)
            assert (out.dtype, lse.dtype) == (dtype, torch.float32), (out.dtype, lse.dtype)
            gradients = torch.autograd.grad(out.float().sum() + lse.float().sum(), leaves)
            results.append([out, lse, *gradients])
        assert all(map(torch.equal, *results))
print("equal bits")
"""


@pytest.mark.parametrize("default", ("bfloat16", "float16", "float64"))
def test_the_default_dtype_changes_nothing(default, forked):
    done = forked.run(DEFAULT_DTYPE, dict(os.environ), default)
    assert (done.returncode, done.stdout.strip()) == (0, "equal bits"), done.stderr


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
@pytest.mark.parametrize("width", (7, 64))
def test_flushed_denormals_change_nothing(dtype, width, flush_denormal):
    """A pair of bfloat16 whose second half is 0 or tiny is a denormal float: an addition would lose the first half."""
    check(replace(MASKED, dtype=dtype, width=width, batch=8), "cpu")
    sparse = inputs_of(replace(MASKED, dtype=dtype, width=width))
    for x in sparse.tensors:
        x[..., 1::2] = 0  # every pair of features is a denormal float
        x[:, :, 1::2] = 0  # and every pair of tokens
    found = differentiated(attending(MASKED, sparse, "cpu"), sparse)
    torch.set_flush_denormal(False)
    assert_equal_bits(differentiated(attending(MASKED, sparse, "cpu"), sparse), found)
    assert found["lse"][found["lse"].isfinite()].unique().numel() > 100


def test_an_infinity_beside_a_number_stays_one():
    """In bfloat16, infinity beside any number has the bits of a signalling NaN, which an addition would make quiet."""
    q = torch.ones(1, 1, 8, 4, dtype=torch.bfloat16)
    k, v = q.clone(), laid_out((1, 1, 8, 4), "contiguous", torch.bfloat16, torch.Generator().manual_seed(0))
    k[0, 0, 3, 1] = -torch.inf
    out = attend(q, k, v, "dense()", implementation="cpu")
    kept = v[:, :, [0, 1, 2, 4, 5, 6, 7]].double().mean(2, keepdim=True).expand(out.shape)
    torch.testing.assert_close(out.double(), kept, rtol=0.01, atol=0.01)


def test_every_thread_flushes_denormals_as_the_caller_does():
    """Threads that were started before the setting must not differ from the caller: who computes a head is chance."""
    v = torch.full((1, 32, 64, 8), 1e-39)
    q = torch.ones(v.shape)
    threads = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        assert (attend(q, q, v, "dense()", implementation="cpu") != 0).all()
        if torch.set_flush_denormal(True):
            for _ in range(20):
                out = attend(q, q, v, "dense()", implementation="cpu")
                assert not out.view(torch.int32).any()
            torch.set_flush_denormal(False)
        assert (attend(q, q, v, "dense()", implementation="cpu") != 0).all()
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(threads)


def arguments(dtype=torch.float32):
    """What the operator of the backward pass takes, by name."""
    q = torch.ones(1, 2, 20, 8, dtype=dtype)
    given = {"q": q, "k": q, "v": q, "key_mask": None, "segments": None}
    given |= {"bias": torch.ones(2, 39), "relative": torch.ones(20, 8, dtype=dtype), "sinks": torch.ones(2)}
    given |= {"pattern": "causal()", "query_offset": 0, "scale": 0.5}
    given |= {"first_distance": -19, "softcap": 2.0, "dropout": 0.5, "seed": 1}
    out, lse, residual = torch.ops.asterism.cpu(**given)
    return given | {
        "out": out,
        "residual": residual,
        "lse": lse,
        "grad_out": out,
        "grad_lse": lse,
        "wanted": [True] * 6,
    }


@pytest.mark.parametrize(
    ("name", "wrong"),
    (
        ("out", lambda x: x[:, :, :10]),
        ("out", lambda x: x.double()),
        ("lse", lambda x: x.bfloat16()),
        ("lse", lambda x: x[..., :1]),
        ("grad_out", lambda x: x[:, :1]),
        ("grad_out", lambda x: x.bfloat16()),
        ("grad_lse", lambda x: x.half()),
        ("grad_lse", lambda x: x[..., 1:]),
        ("grad_lse", lambda x: torch.ones(1, 20, 2).transpose(1, 2)),
        ("k", lambda x: x.bfloat16()),
        ("v", lambda x: x[:, :, 1:]),
        ("bias", lambda x: x.double()),
        ("relative", lambda x: x.double()),
        ("relative", lambda x: x[:, 1:]),
    ),
)
def test_no_pointer_is_taken_of_what_does_not_fit(name, wrong):
    given = arguments()
    assert len(torch.ops.asterism.cpu_backward(**given)) == 6
    given[name] = wrong(given[name])
    with pytest.raises(KernelError, match=f"the CPU kernel needs {name} "):
        torch.ops.asterism.cpu_backward(**given)


def test_half_precision_of_another_kind_is_not_read_as_float32():
    """The operator itself takes any dtype; float16 has half the bytes of what the kernel would read."""
    q = torch.ones(1, 2, 20, 8, dtype=torch.float16)
    with pytest.raises(KernelError, match="float16"):
        torch.ops.asterism.cpu(q, q, q, *[None] * 5, "causal()", 0, 0.5, 0, 0.0, 0.0, 0)


def test_values_without_features_have_a_log_sum_exp():
    q, v = torch.ones(1, 2, 20, 8, requires_grad=True), torch.ones(1, 2, 20, 0)
    out, lse = attend(q, q, v, "causal()", implementation="cpu", return_lse=True)
    assert out.shape == v.shape
    expected = attend(q, q, v, "causal()", implementation="reference", return_lse=True)[1]
    torch.testing.assert_close(lse, expected)
    torch.testing.assert_close(*(torch.autograd.grad(x.sum(), q)[0] for x in (lse, expected)))


def test_structures_that_differ_are_refused(monkeypatch):
    """One field more in Python would shift all that come after it."""

    class Longer(interface.Problem.__base__):
        _fields_ = [*interface.Problem._fields_[:3], ("more", ctypes.c_int64), *interface.Problem._fields_[3:]]

    Longer.__name__ = "Problem"
    interface.require_same_layout(library())
    monkeypatch.setattr(interface, "Problem", Longer)
    with refusing(KernelError, "structures-disagree", "Problem 384'", "'Problem 376'"):
        interface.require_same_layout(library())
