"""The judges judged: the oracle by hand, planted errors that the comparison must find, and memory that holds NaN."""

import math
from dataclasses import replace

import numpy as np
import oracle
import pytest
import torch
from kernel_cases import (
    DTYPES,
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

from asterism import attend

pytestmark = pytest.mark.usefixtures("poison")


def test_poison_is_on():
    assert torch.empty(3).isnan().all()
    assert torch.ones(3).new_empty((2, 2)).isnan().all()
    assert torch.empty_like(torch.ones(2, dtype=torch.bfloat16)).isnan().all()


def test_the_oracle_by_hand():
    """Scores 0 and log 3 make weights 1/4 and 3/4; the third key may not be read, the second query reads nothing."""
    q = np.array([[[[1.0], [1.0]]]])
    k = np.array([[[[0.0], [math.log(3)], [100.0]]]])
    v = np.array([[[[4.0], [8.0], [1000.0]]]])
    mask = np.array([[[[True, True, False], [False, False, False]]]])
    out, lse = oracle.attention(q, k, v, mask, 1.0)
    np.testing.assert_allclose(out[0, 0], [[7.0], [0.0]])
    np.testing.assert_allclose(lse[0, 0], [math.log(4), -math.inf])
    d_q, d_k, d_v = oracle.attention_gradients(q, k, v, mask, 1.0, np.ones((1, 1, 2, 1)), np.zeros((1, 1, 2)))
    np.testing.assert_allclose(d_v[0, 0], [[0.25], [0.75], [0.0]])
    np.testing.assert_allclose(d_k[0, 0], [[-0.75], [0.75], [0.0]])
    np.testing.assert_allclose(d_q[0, 0], [[0.75 * math.log(3)], [0.0]])


def test_the_oracle_differentiates_itself():
    """The gradients by formula against central differences."""
    case = Case(rule("window", left=2), heads=2, n_queries=5, n_keys=5, width=3)
    inputs = inputs_of(case)
    q, k, v, d_out, d_lse = (x.numpy() for x in (*inputs.tensors, inputs.d_out, inputs.d_lse))

    def loss(*arrays):
        out, lse = oracle.attention(*arrays, inputs.mask.numpy(), 0.5)
        return (out * d_out).sum() + (lse * d_lse).sum()

    gradients = oracle.attention_gradients(q, k, v, inputs.mask.numpy(), 0.5, d_out, d_lse)
    direction = np.random.Generator(np.random.Philox(1))
    for place, gradient in enumerate(gradients):
        step = direction.standard_normal(gradient.shape)
        arrays = [[x.copy() for x in (q, k, v)] for _ in range(2)]
        arrays[0][place] += 1e-5 * step
        arrays[1][place] -= 1e-5 * step
        slope = (loss(*arrays[0]) - loss(*arrays[1])) / 2e-5
        assert slope == pytest.approx((gradient * step).sum(), rel=1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ("out", "lse", *GRADIENTS))
@pytest.mark.parametrize("damage", ("shift", "nan", "swap", "cut", "infinity"))
def test_a_planted_error_is_found(dtype, name, damage):
    inputs = inputs_of(Case(rule("strided", stride=3), n_queries=20, n_keys=20, dtype=dtype))
    expected, compared = exact(inputs, 0.5), plain(inputs, 0.5)
    assert_all_as_good(compared, expected, compared, dtype)
    found = {key: x.clone() for key, x in compared.items()}
    wrong = found[name]
    if damage == "shift":
        wrong[0, 0, 7] += 1e-7 if dtype == torch.float64 else 0.3
    elif damage == "nan":
        wrong[0, 0, 7] = math.nan
    elif damage == "infinity":
        wrong[0, 0, 7] = -math.inf
    elif damage == "swap":
        wrong[:, :, [3, 7]] = wrong[:, :, [7, 3]]
    else:
        found[name] = wrong[:, :, 1:]
    with pytest.raises(AssertionError):
        assert_all_as_good(found, expected, compared, dtype)


def test_a_wrong_pattern_is_found():
    case = Case(rule("window", left=5), n_queries=30, n_keys=30)
    inputs = inputs_of(replace(case, rule=rule("window", left=6)))
    found = differentiated(attending(case, inputs, "eager"), inputs)
    with pytest.raises(AssertionError):
        assert_all_as_good(found, exact(inputs, case.factor), plain(inputs, case.factor), case.dtype)


@pytest.mark.parametrize("implementation", sorted({"cpu", "eager"} & set(implementations(torch.bfloat16))))
def test_the_gradient_of_q_does_not_suffer_from_the_rounding_of_the_output(implementation):
    """Values far from 0 and close together: the rounding of out alone would be a quarter of the gradient of q."""
    generator = torch.Generator().manual_seed(0)
    q, k, d_out, v = (torch.randn(2, 2, 64, 16, generator=generator) for _ in range(4))
    tensors = [x.to(torch.bfloat16) for x in (q, k, 16 + v / 2, d_out)]

    def gradient(dtype, name):
        leaves = [x.to(dtype).requires_grad_() for x in tensors[:3]]
        out = attend(*leaves, "dense()", implementation=name)
        return torch.autograd.grad(out, leaves[0], tensors[3].to(dtype))[0].double()

    expected = gradient(torch.float64, "reference")
    assert (gradient(torch.bfloat16, implementation) - expected).abs().max() < 0.02 * expected.abs().max()
