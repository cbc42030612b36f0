"""Dropout in attention: which pairs are dropped is a function of the seed and of places alone."""

import numpy as np
import oracle_terms
import pytest
import torch
from kernel_cases import has_compiler
from term_cases import COMPUTES

from asterism import Dropout, Terms, attend, patterns

pytestmark = pytest.mark.usefixtures("poison")

DROPPING = tuple(name for name, (terms, _) in COMPUTES.items() if "dropout" in terms)
TEXTS = ("dense()", "strided(5)", "fixed(6, 2) | stride(7)", "bigbird(block=8)", "window(left=9) & causal()")


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("offset", (0, 13, None))
@pytest.mark.parametrize("implementation", DROPPING)
def test_equal_pairs_are_dropped_whatever_computes(implementation, offset, text):
    assert_the_pairs_of_the_oracle_are_dropped(implementation, offset, text)


def assert_the_pairs_of_the_oracle_are_dropped(implementation, offset, text, device="cpu"):
    """All scores are 0 and values are unit vectors, so the output is the weights: what is kept is seen pair by pair."""
    batch, heads, n_queries, n_keys, rate, seed = 2, 4, 50, 70, 0.3, 0xFEDCBA9876543210
    q, k = (torch.zeros(batch, *shape, 2, device=device) for shape in ((heads, n_queries), (2, n_keys)))
    v = torch.eye(n_keys, device=device).expand(batch, 2, -1, -1)
    options = {"query_offset": offset, "implementation": implementation, "return_lse": True}
    out, lse = attend(q, k, v, text, terms=Terms(dropout=Dropout(rate, seed)), **options)
    _, plain_lse = attend(q, k, v, text, **options)
    start = n_keys - n_queries if offset is None else offset
    mask = patterns.parse(text).dense(n_queries, n_keys, offset)
    kept = oracle_terms.kept(batch, heads, n_queries, n_keys, start, rate, seed) & mask
    np.testing.assert_allclose(out.cpu().numpy(), kept / mask.sum(-1, keepdims=True).clip(1) / (1 - rate), rtol=1e-5)
    torch.testing.assert_close(lse, plain_lse)


def test_the_oracle_knows_the_answers_of_random123():
    pi = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)
    assert [int(word) for word in oracle_terms.philox(*pi)] == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


@pytest.mark.parametrize("seeds", (300, pytest.param(10_000, marks=pytest.mark.slow)))
@pytest.mark.parametrize("implementation", DROPPING)
def test_the_mean_over_seeds_is_attention_without_dropout(implementation, seeds):
    """Within five standard errors, which are those of the samples themselves, for every number of the output."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 12, 4, generator=generator) for _ in range(3))
    keywords = {"pattern": "window(left=5) & causal()", "implementation": implementation}
    samples = torch.stack(
        [attend(q, k, v, terms=Terms(dropout=Dropout(0.2, seed)), **keywords) for seed in range(seeds)]
    ).double()
    expected = attend(q, k, v, **keywords).double()
    error = samples.std(dim=0) / seeds**0.5
    assert error.max() < 1.5 / seeds**0.5
    assert ((samples.mean(dim=0) - expected).abs() < 5 * error).all()


@pytest.mark.parametrize("implementation", DROPPING)
def test_no_generator_is_read_or_moved(implementation):
    q = torch.randn(1, 1, 9, 4)
    terms = Terms(dropout=Dropout(0.5, 3))
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = attend(q, q, q, "causal()", terms=terms, implementation=implementation)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    assert torch.equal(first, attend(q, q, q, "causal()", terms=terms, implementation=implementation))


@pytest.mark.parametrize("rate", (0.001, 0.1, 0.5, 0.9))
def test_the_rate_is_the_share_that_is_dropped(rate):
    kept = oracle_terms.kept(4, 4, 256, 256, 0, rate, 12345)
    error = (rate * (1 - rate) / kept.size) ** 0.5
    assert abs((1 - kept.mean()) - rate) < 4 * error


def test_rows_heads_queries_and_keys_differ():
    """No two of them drop the same, and neither do two seeds whose upper halves differ."""
    kept = oracle_terms.kept(2, 3, 64, 64, 0, 0.5, 7)
    others = oracle_terms.kept(2, 3, 64, 64, 0, 0.5, 7 + 2**32)
    flat = [*kept.reshape(6, -1), *others.reshape(6, -1), kept[0, 0].T.ravel()]
    for number, one in enumerate(flat):
        for two in flat[:number]:
            assert abs((one == two).mean() - 0.5) < 0.05


@pytest.mark.skipif(not has_compiler(), reason="needs a C++ compiler")
def test_auto_computes_dropout():
    q = torch.randn(1, 2, 40, 8)
    terms = Terms(dropout=Dropout(0.4, 11))
    found = attend(q, q, q, "strided(4)", terms=terms)
    torch.testing.assert_close(found, attend(q, q, q, "strided(4)", terms=terms, implementation="reference"))
