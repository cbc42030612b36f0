"""Gradients that nobody asks for are not computed; those that are asked for have the same bits either way."""

import itertools
from importlib.util import find_spec

import pytest
import torch
from kernel_cases import GRADIENTS, Case, attending, differentiated, implementations, inputs_of
from oracle import rule
from strategies import build
from torch.utils._python_dispatch import TorchDispatchMode

from asterism import attend

pytestmark = pytest.mark.usefixtures("poison")

OPERATORS = tuple(name for name in implementations(torch.float32) if name in ("eager", "cpu"))
NO_TERMS = (False,) * 3
SUBSETS = tuple(subset for subset in itertools.product((True, False), repeat=3) if any(subset))
CASE = Case(rule("fixed", stride=12, summary=2), heads=4, kv_heads=2, n_queries=90, n_keys=90, dtype=torch.float32)

each_operator = pytest.mark.parametrize("implementation", OPERATORS)
each_subset = pytest.mark.parametrize("wanted", SUBSETS, ids=lambda subset: "".join(itertools.compress("qkv", subset)))


class Backwards(TorchDispatchMode):
    """Remembers the calls of the operators of backward passes and what they gave."""

    def __init__(self):
        super().__init__()
        self.calls: list[tuple] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        results = function(*args, **(kwargs or {}))
        if function.namespace == "asterism" and "backward" in str(function):
            self.calls.append((function, args, results))
        return results


def leaves_of(inputs, wanted):
    return [x.detach().clone().requires_grad_(want) for x, want in zip(inputs.tensors, wanted, strict=True)]


def gradients_of(compute, inputs, wanted):
    """What .backward leaves at q, k and v."""
    leaves = leaves_of(inputs, wanted)
    torch.autograd.backward(compute(*leaves), [inputs.d_out, inputs.d_lse])
    return [x.grad for x in leaves]


def assert_those(found, every, wanted):
    for gradient, name, want in zip(found, GRADIENTS, wanted, strict=True):
        assert torch.equal(gradient, every[name]) if want else gradient is None, name


@each_subset
@each_operator
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_each_subset(implementation, wanted, dtype):
    inputs = inputs_of(case := Case(**(vars(CASE) | {"dtype": dtype})))
    compute = attending(case, inputs, implementation)
    every = differentiated(compute, inputs)
    with Backwards() as backwards:
        assert_those(gradients_of(compute, inputs, wanted), every, wanted)
    ((_, _, results),) = backwards.calls
    assert [x.numel() > 0 for x in results] == [*wanted, *NO_TERMS], (
        "an unwanted gradient was computed, or a wanted one not"
    )


@pytest.mark.skipif(find_spec("triton") is None or torch.cuda.is_available(), reason="needs Triton's interpreter")
@each_subset
def test_each_subset_in_triton(wanted):
    inputs = inputs_of(case := Case(rule("window", left=3), n_queries=20, n_keys=20, batch=1, dtype=torch.float32))
    compute = attending(case, inputs, "triton")
    assert_those(gradients_of(compute, inputs, wanted), differentiated(compute, inputs), wanted)


@each_subset
@each_operator
def test_opcheck(implementation, wanted):
    inputs = inputs_of(CASE)
    with Backwards() as backwards:
        gradients_of(attending(CASE, inputs, implementation), inputs, wanted)
    ((function, args, _),) = backwards.calls
    fresh = tuple(x.detach().clone() if isinstance(x, torch.Tensor) else x for x in args)
    torch.library.opcheck(function, fresh)


@each_subset
@each_operator
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_compiled(implementation, wanted):
    inputs, text = inputs_of(CASE), build(CASE.rule).text

    def compute(q, k, v):
        return attend(q, k, v, text, return_lse=True, implementation=implementation)

    torch.compiler.reset()
    compiled = torch.compile(compute, fullgraph=True, backend="aot_eager")
    leaves = leaves_of(inputs, wanted)
    results = compiled(*leaves)
    with Backwards() as backwards:
        torch.autograd.backward(results, [inputs.d_out, inputs.d_lse])
    assert_those([x.grad for x in leaves], differentiated(compute, inputs), wanted)
    ((_, arguments, _),) = backwards.calls
    assert list(arguments[-1]) == [*wanted, *NO_TERMS]
    torch.compiler.reset()


@each_subset
@each_operator
def test_function_transforms(implementation, wanted):
    inputs = inputs_of(CASE)
    compute = attending(CASE, inputs, implementation)
    every = differentiated(compute, inputs)

    def weighted(*tensors):
        out, lse = compute(*tensors)
        return (out * inputs.d_out).sum() + torch.where(lse.isfinite(), lse * inputs.d_lse, 0).sum()

    numbers = tuple(itertools.compress(range(3), wanted))
    found = torch.func.grad(weighted, argnums=numbers)(*inputs.tensors)
    for number, gradient in zip(numbers, found, strict=True):
        torch.testing.assert_close(gradient, every[GRADIENTS[number]])

    one = [x[:1] for x in inputs.tensors]
    each = torch.func.vmap(torch.func.grad(lambda *x: compute(*x)[0].sum(), argnums=numbers))(*(x[None] for x in one))
    alone = torch.func.grad(lambda *x: compute(*x)[0].sum(), argnums=numbers)(*one)
    for together, gradient in zip(each, alone, strict=True):
        torch.testing.assert_close(together[0], gradient)
