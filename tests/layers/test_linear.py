"""A few rows through a compiled linear layer."""

import pytest
import torch
from torch import nn
from torch._dynamo.testing import EagerAndRecordGraphs

from asterism.layers import Linear


@pytest.fixture(autouse=True)
def compiled_anew():
    torch.compiler.reset()


@pytest.mark.parametrize("bias", (True, False))
@pytest.mark.parametrize("dtype", (torch.float64, torch.float32, torch.bfloat16))
@pytest.mark.parametrize("shape", ((1, 1), (4,), (2, 2), (5,), (1, 0), ()))
def test_the_product_is_that_of_plain_arithmetic(shape, dtype, bias):
    torch.manual_seed(0)
    layer, x = Linear(37, 11, bias=bias).to(dtype), torch.randn(*shape, 37, dtype=dtype)
    expected = nn.functional.linear(x.double(), layer.weight.double(), layer.bias.double() if bias else None)
    with torch.no_grad():
        found = torch.compile(layer, fullgraph=True, backend="aot_eager")(x)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected, rtol=torch.finfo(dtype).eps, atol=4 * torch.finfo(dtype).eps)


def product_of(layer, x):
    """What a compiled graph multiplies by: "linear" or "mul"."""
    graphs = EagerAndRecordGraphs()
    torch.compile(layer, fullgraph=True, backend=graphs)(x)
    called = {str(getattr(node.target, "__name__", node.target)) for node in graphs.graphs[0].graph.nodes}
    return called & {"linear", "mul"}


def test_only_a_few_rows_without_gradients_take_the_other_way():
    layer, x = Linear(8, 8), torch.randn(5, 8)
    with torch.no_grad():
        assert product_of(layer, x[:4]) == {"mul"}
        assert product_of(layer, x) == {"linear"}
        with torch.autocast("cpu", torch.bfloat16):
            assert product_of(layer, x[:1]) == {"linear"}
    assert product_of(layer, x[:4]) == {"linear"}


def test_bfloat16_is_summed_in_float32():
    layer = Linear(4096, 1, bias=False).to(torch.bfloat16)
    nn.init.ones_(layer.weight)
    with torch.no_grad():
        found = torch.compile(layer, fullgraph=True, backend="aot_eager")(torch.ones(1, 4096, dtype=torch.bfloat16))
    assert found.item() == 4096
