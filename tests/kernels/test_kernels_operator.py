"""Attention as an operator of PyTorch: gradients by differences, opcheck, and torch.compile with one graph."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from kernel_cases import (
    GRADIENTS,
    Case,
    assert_all_as_good,
    attending,
    differentiated,
    exact,
    implementations,
    inputs_of,
    plain,
)
from oracle import rule
from strategies import build
from torch.utils._python_dispatch import TorchDispatchMode

from asterism import attend, patterns

pytestmark = pytest.mark.usefixtures("poison")

OPERATORS = tuple(name for name in implementations(torch.float32) if name in ("eager", "cpu"))


@pytest.mark.parametrize("text", ("fixed(4, summary=2)", "bigbird(block=2)", "strided(3)", "window(left=2) | star()"))
@pytest.mark.parametrize("implementation", ("eager", "auto", "reference"))
def test_gradcheck(text, implementation):
    generator = torch.Generator().manual_seed(1)
    q, k, v = (
        torch.randn(1, heads, 11, 3, dtype=torch.float64, generator=generator, requires_grad=True)
        for heads in (2, 1, 1)
    )
    key_mask = torch.ones(1, 11, dtype=torch.bool)
    key_mask[0, 5] = False

    def compute(q, k, v):
        return attend(q, k, v, text, key_mask=key_mask, return_lse=True, implementation=implementation)

    finite = compute(q, k, v)[1].isfinite().all()
    assert torch.autograd.gradcheck(compute if finite else lambda *x: compute(*x)[0], (q, k, v))


@pytest.mark.parametrize("implementation", OPERATORS)
@pytest.mark.parametrize("needed", ((True, False, False), (False, True, False), (False, False, True)))
def test_gradients_of_some_inputs_only(needed, implementation):
    case = Case(rule("strided", stride=4), n_queries=30, n_keys=30, dtype=torch.float32)
    inputs = inputs_of(case)
    leaves = [x.detach().requires_grad_(need) for x, need in zip(inputs.tensors, needed, strict=True)]
    attending(case, inputs, implementation)(*leaves)[0].backward(inputs.d_out)
    expected = exact(inputs, case.factor, with_lse=False)
    for leaf, need, name in zip(leaves, needed, GRADIENTS, strict=True):
        assert (leaf.grad is not None) == need
        if need:
            np.testing.assert_allclose(leaf.grad, expected[name], rtol=1e-5, atol=1e-5)


class Recorder(TorchDispatchMode):
    """Remembers the calls of the library's own operators."""

    def __init__(self):
        super().__init__()
        self.calls: list[tuple] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "asterism":
            self.calls.append((function, args, kwargs or {}))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("implementation", OPERATORS)
def test_opcheck(implementation):
    """torch's own checks of schema, fake tensors, autograd and AOT dispatch on every operator that `attend` uses."""
    case = Case(rule("fixed", stride=4), heads=2, n_queries=20, n_keys=20, dtype=torch.float32, padding=True)
    case = replace(case, segments=True)
    inputs = inputs_of(case)
    names = set()
    with Recorder() as recorder:
        differentiated(attending(case, inputs, implementation), inputs)
        inputs_without = inputs_of(replace(case, padding=False, segments=False, offset=0))
        attending(case, inputs_without, implementation)(*inputs_without.tensors)
    assert recorder.calls, "attend uses no operator of torch.ops.asterism"
    for function, args, kwargs in recorder.calls:
        names.add(str(function))
        fresh = [x.detach().clone() if isinstance(x, torch.Tensor) else x for x in args]
        # The backward operator is not differentiated again: only the forward one gets inputs that require gradients.
        if "backward" not in str(function):
            fresh = [x.requires_grad_() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in fresh]
        torch.library.opcheck(function, tuple(fresh), kwargs)
    assert any("backward" in name for name in names) and len(names) >= 2


@pytest.mark.parametrize("implementation", OPERATORS)
def test_who_looks_at_operators_gets_the_same_bits(implementation):
    """Ordinary calls go by no operator, forward or backward."""
    case = Case(rule("fixed", stride=4), heads=2, n_queries=20, n_keys=20, dtype=torch.float32, padding=True)
    inputs = inputs_of(case)
    ordinary = differentiated(attending(case, inputs, implementation), inputs)
    with Recorder() as recorder:
        seen = differentiated(attending(case, inputs, implementation), inputs)
    assert {str(function).split(".")[1] for function, *_ in recorder.calls} == {
        implementation,
        f"{implementation}_backward",
    }
    assert ordinary.keys() == seen.keys()
    for name, x in ordinary.items():
        np.testing.assert_array_equal(x, seen[name], err_msg=name)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
class TestCompiled:
    """torch.compile with the whole call in one graph."""

    @pytest.fixture(autouse=True)
    def poison(self):
        """The compiler's own buffers are left alone."""
        torch.compiler.reset()
        yield
        torch.compiler.reset()

    @pytest.mark.parametrize("as_text", (True, False))
    @pytest.mark.parametrize("backend", ("aot_eager", pytest.param("inductor", marks=pytest.mark.slow)))
    @pytest.mark.parametrize("implementation", (*OPERATORS, "auto"))
    def test_fullgraph(self, implementation, backend, as_text):
        case = Case(rule("fixed", stride=5), heads=2, n_queries=40, n_keys=40, dtype=torch.float32, padding=True)
        inputs = inputs_of(case)
        pattern = build(case.rule).text if as_text else build(case.rule)

        def compute(q, k, v):
            out, lse = attend(2 * q, k, v, pattern, **inputs.keywords, return_lse=True, implementation=implementation)
            return out, lse + 0

        compiled = torch.compile(compute, fullgraph=True, backend=backend)
        scaled = replace(inputs, q=2 * inputs.q)
        found = differentiated(compiled, inputs)
        found["dq"] /= 2
        expected, compared = exact(scaled, case.factor), plain(scaled, case.factor)
        assert_all_as_good(found, expected, compared, case.dtype)

    def test_another_length_after_the_first(self):
        compiled = torch.compile(lambda q: attend(q, q, q, "strided(4)"), fullgraph=True, backend="aot_eager")
        for n in (12, 30, 31):
            q = torch.randn(1, 1, n, 4)
            torch.testing.assert_close(compiled(q), attend(q, q, q, "strided(4)"))

    def test_patterns_as_arguments(self):
        def compute(q, pattern):
            return attend(q, q, q, pattern)

        compiled = torch.compile(compute, fullgraph=True, backend="aot_eager")
        q = torch.randn(1, 1, 20, 4)
        for pattern in (patterns.strided(4), patterns.fixed(5), "star()"):
            torch.testing.assert_close(compiled(q, pattern), compute(q, pattern))
