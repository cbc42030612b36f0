"""Fourier mixing is the real part of the transform over tokens and features, row by row over real tokens only."""

from functools import partial

import numpy as np
import pytest
import torch
from refusals import refusing
from transformers import FNetConfig
from transformers.models.fnet.modeling_fnet import FNetBasicFourierTransform

from asterism.errors import ConfigurationError
from asterism.layers import FourierMixing, rows_of

SHAPES = [(1, 1), (1, 6), (5, 1), (2, 2), (7, 8), (8, 7), (13, 5), (16, 12), (31, 9)]
"""Tokens and features: one, even, odd, prime."""


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def transformed(tokens: np.ndarray) -> np.ndarray:
    """y[k, f] = sum over n, m of x[n, m] cos(2 pi (n k / N + m f / C)): the definition, in O(N^2 C^2)."""
    n, c = (np.arange(size) / size for size in tokens.shape)
    k, f = (np.arange(size) for size in tokens.shape)
    turns = np.multiply.outer(n, k)[:, None, :, None] + np.multiply.outer(c, f)[None, :, None, :]
    return np.einsum("nm,nmkf->kf", tokens, np.cos(2 * np.pi * turns))


def expected(hidden: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.stack([transformed(row) for row in hidden.detach().numpy()]))


@pytest.mark.parametrize("shape", SHAPES)
def test_fourier_is_the_definition(shape: tuple[int, int]) -> None:
    hidden = random(2, *shape).requires_grad_()
    mixed = FourierMixing()(hidden)
    torch.testing.assert_close(mixed, expected(hidden), atol=1e-11, rtol=0)
    weights = random(2, *shape, seed=1)
    (gradient,) = torch.autograd.grad(mixed, hidden, weights)
    torch.testing.assert_close(gradient, expected(weights), atol=1e-11, rtol=0)


def test_gradients_of_first_and_second_order() -> None:
    hidden = random(2, 5, 6).requires_grad_()
    key_mask = torch.tensor([[True] * 5, [False, True, True, False, True]])
    for mask in (None, key_mask):
        mixed = partial(FourierMixing(), rows=rows_of(hidden, key_mask=mask))
        assert torch.autograd.gradcheck(mixed, hidden)
        assert torch.autograd.gradgradcheck(lambda x, mixed=mixed: mixed(x**2), hidden)


def test_the_normalisation_is_that_of_hugging_face() -> None:
    hidden = random(2, 12, 8).float()
    peer = FNetBasicFourierTransform(FNetConfig(hidden_size=8))
    torch.testing.assert_close(FourierMixing()(hidden), peer(hidden)[0])


def test_padding_changes_no_real_token() -> None:
    """Real tokens anywhere, rows of equal and of different lengths, an empty row; NaN in the padding."""
    masks = ["11111111", "11100000", "00010110", "00000000", "00001110", "10000000"]
    key_mask = torch.tensor([[sign == "1" for sign in mask] for mask in masks])
    hidden = random(len(masks), 8, 5).masked_fill(~key_mask[:, :, None], float("nan")).requires_grad_()
    mixed = FourierMixing()(hidden, rows=rows_of(hidden, key_mask=key_mask))
    weights = random(*hidden.shape, seed=1)
    (gradient,) = torch.autograd.grad(mixed, hidden, weights)
    assert not mixed[~key_mask].any() and not gradient[~key_mask].any()
    for row, real in enumerate(key_mask):
        if real.any():
            for found, given in ((mixed, hidden), (gradient, weights)):
                alone = expected(given[row : row + 1, real])[0]
                torch.testing.assert_close(found[row, real], alone, atol=1e-12, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_the_transform_in_float32_rounded(dtype: torch.dtype) -> None:
    hidden = random(2, 33, 16).to(dtype)
    mixed = FourierMixing()(hidden)
    assert mixed.dtype == dtype
    assert torch.equal(mixed, FourierMixing()(hidden.float()).to(dtype))


@pytest.mark.parametrize("shape", [(0, 4, 6), (2, 0, 6)])
def test_nothing_gives_nothing(shape: tuple[int, ...]) -> None:
    hidden = torch.zeros(shape)
    assert FourierMixing()(hidden).shape == shape
    assert FourierMixing()(hidden, rows=rows_of(hidden, key_mask=hidden.any(dim=2))).shape == shape


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # PyTorch's compiler does
@pytest.mark.parametrize("padded", [False, True])
def test_it_compiles_into_one_graph(padded: bool) -> None:
    """Also where the numbers of real tokens are known only when it runs; one graph serves them all."""

    def mix(hidden: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        mixed: torch.Tensor = FourierMixing()(hidden, rows=rows_of(hidden, key_mask=real if padded else None))
        return mixed

    compiled = torch.compile(mix, fullgraph=True, backend="aot_eager")
    hidden = random(3, 9, 6).requires_grad_()
    for counts in ((9, 4, 0), (1, 4, 4)):
        real = torch.arange(9) < torch.tensor(counts)[:, None]
        found, wanted = compiled(hidden, real), mix(hidden, real)
        torch.testing.assert_close(found, wanted)
        weights = random(3, 9, 6, seed=1)
        gradients = (torch.autograd.grad(mixed, hidden, weights)[0] for mixed in (found, wanted))
        torch.testing.assert_close(*gradients)


def test_the_operator_of_padded_rows_passes_opcheck() -> None:
    hidden, real = random(2, 5, 4).requires_grad_(), torch.tensor([[True] * 5, [False, True, True, False, True]])
    torch.library.opcheck(torch.ops.asterism.fourier_of_rows.default, (hidden, real))


def test_refusals_are_one_line() -> None:
    hidden = random(1, 4, 6)
    with pytest.raises(ConfigurationError, match=r"^fourier\(\) cannot be used by a causal model or with a cache: .*$"):
        FourierMixing()(hidden, cache=object())
    with refusing(ConfigurationError, "transform-segments"):
        FourierMixing()(hidden, rows=rows_of(hidden, segments=torch.zeros(1, 4, dtype=torch.int64)))
