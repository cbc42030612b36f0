"""Attention mass per block: against dense weights in float64, its arguments, what it refuses, and what it keeps."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from refusals import refusing
from strategies import build, hold, tiers
from term_cases import ALL, TermCase, expected_of, term_cases, term_inputs_of, terms_of

from asterism import Dropout, Terms, attend, block_mass, compile_pattern
from asterism.errors import KernelError, PatternError
from asterism.kernels.watching import watching

pytestmark = pytest.mark.usefixtures("poison")

BLOCKS = (None, 1, 5, 8, 16, 24, 64, 1000)


def told_by_oracle(chosen, given) -> dict[str, np.ndarray]:
    """Results in float64 where values are the unit vectors of the keys: so "out" is the weights [B, H, N, M]."""
    case = chosen.case
    v = torch.eye(case.n_keys, dtype=torch.float64).expand(case.batch, case.kv_heads, -1, -1)
    d_out = torch.zeros(case.batch, case.heads, case.n_queries, case.n_keys)
    inputs = replace(given.inputs, v=v, d_out=d_out)
    return expected_of(chosen, replace(given, inputs=inputs), with_lse=True)


def by_block(weights: np.ndarray, block: int) -> np.ndarray:
    """Their sums, [B, H, query blocks, key blocks]."""
    _, _, n_queries, n_keys = weights.shape
    rows, columns = -(-n_queries // block), -(-n_keys // block)
    padded = np.pad(weights, ((0, 0), (0, 0), (0, rows * block - n_queries), (0, columns * block - n_keys)))
    return padded.reshape(*weights.shape[:2], rows, block, columns, block).sum((3, 5))


def check_mass(drawn) -> None:
    chosen, block = drawn
    given = term_inputs_of(chosen)
    inputs, case = given.inputs, chosen.case
    terms = terms_of(chosen, given, given.parameters)
    found = block_mass(inputs.q, inputs.k, build(case.rule), block=block, terms=terms, **inputs.keywords)
    told = told_by_oracle(chosen, given)
    expected = by_block(told["out"], found.block)
    wide = torch.float64 if case.dtype == torch.float64 else torch.float32
    assert found.values.dtype == wide and not found.values.requires_grad
    largest = np.abs(told["lse"][np.isfinite(told["lse"])]).max(initial=0)
    allowed = 8 * torch.finfo(wide).eps * (1 + largest) * min(found.block, case.n_queries)
    np.testing.assert_allclose(found.dense().numpy(), expected, rtol=0, atol=allowed)
    pairs = list(zip(found.queries.tolist(), found.keys.tolist(), strict=True))
    assert pairs == sorted(set(pairs))


@st.composite
def mass_cases(draw) -> tuple[TermCase, int | None]:
    kept = tuple(name for name in ALL if name != "dropout")
    return draw(term_cases("eager")).of(kept), draw(st.sampled_from(BLOCKS))


@pytest.mark.parametrize("count", tiers(60, 1500))
def test_mass_agrees_with_dense_weights(count):
    hold(check_mass, mass_cases(), count)


def test_a_query_gives_one_in_all_and_one_without_keys_nothing():
    q, k = torch.randn(2, 1, 2, 40, 8)
    key_mask = torch.arange(40)[None] >= 13
    found = block_mass(q, k, "window(left=3)", block=1, key_mask=key_mask)
    given = found.dense().sum(3)[0]
    assert torch.equal(given[:, :13], torch.zeros(2, 13))
    assert torch.allclose(given[:, 13:], torch.ones(2, 27))


def test_the_weight_of_a_sink_is_left_out():
    q, k = torch.randn(2, 1, 2, 32, 8)
    sinks = torch.tensor([0.0, 50.0])
    found = block_mass(q, k, "causal()", block=32, terms=Terms(sinks=sinks))
    _, lse = attend(q, k, k, "causal()", return_lse=True)
    expected = torch.sigmoid(lse - sinks[:, None]).sum(2)
    assert torch.allclose(found.values[..., 0], expected, atol=1e-5)
    assert found.values[0, 1, 0] < 1e-6


def test_queries_that_do_not_count():
    """Padding on the left or on the right: its keys may not be read, and its queries are left out."""
    q, k = torch.randn(2, 2, 2, 50, 8, generator=torch.Generator().manual_seed(5))
    real = torch.stack([torch.arange(50) >= 11, torch.arange(50) < 37])
    found = block_mass(q, k, "causal()", block=16, key_mask=real, query_mask=real).dense()
    for row, tokens in enumerate((slice(11, 50), slice(0, 37))):
        alone = block_mass(q[row : row + 1, :, tokens], k[row : row + 1, :, tokens], "causal()", block=1).dense()[0]
        whole = torch.zeros(2, 50, 50)
        whole[:, tokens, tokens] = alone
        expected = by_block(whole[None].numpy(), 16)[0]
        np.testing.assert_allclose(found[row].numpy(), expected, atol=1e-5)


def test_packed_documents_do_not_read_one_another():
    q, k = torch.randn(2, 1, 2, 90, 8)
    found = block_mass(q, k, "bigbird(block=8)", block=10, cu_seqlens=[0, 40, 90]).dense()[0]
    assert not found[:, :4, 4:].any() and not found[:, 4:, :4].any()
    second = block_mass(q[:, :, 40:], k[:, :, 40:], "bigbird(block=8)", block=10).dense()[0]
    assert torch.allclose(found[:, 4:, 4:], second, atol=1e-5)


def test_coarser_blocks_are_sums():
    q, k = torch.randn(2, 2, 2, 70, 8)
    fine = block_mass(q, k, "window(left=20) | stride(9)", block=3)
    direct = block_mass(q, k, "window(left=20) | stride(9)", block=12)
    coarse = fine.coarser(4)
    assert (coarse.block, coarse.grid) == (12, (6, 6))
    assert torch.equal(coarse.queries, direct.queries) and torch.equal(coarse.keys, direct.keys)
    assert torch.allclose(coarse.values, direct.values, atol=1e-5)
    for times in (0, 1.5):
        with refusing(KernelError, "mass-coarser", str(times)):
            fine.coarser(times)


def test_blocks_are_those_of_the_plan():
    """As many as it has tiles where tokens lie in their natural order: nothing has the size of all blocks."""
    q, k = torch.randn(2, 1, 1, 4096, 8)
    found = block_mass(q, k, "window(left=100)")
    plan = compile_pattern("window(left=100)", 4096)
    assert found.block == plan.tile and len(found.queries) == plan.tiles < 0.2 * math.prod(found.grid)


@pytest.mark.parametrize("table", (0, 2**20))
def test_blocks_are_found_in_a_table_or_by_search(monkeypatch, table):
    monkeypatch.setattr("asterism.kernels.mass._TABLE", table)
    q, k = torch.randn(2, 1, 2, 300, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = block_mass(q, k, "window(left=2)", block=2)
    weights = torch.softmax(
        (q @ k.transpose(2, 3) / 8**0.5).masked_fill(~torch.ones(300, 300).tril().triu(-2).bool(), -math.inf), 3
    )
    assert len(found.queries) * 16 < math.prod(found.grid)
    np.testing.assert_allclose(found.dense().numpy(), by_block(weights.numpy(), 2), atol=1e-12)


def test_autocast_and_the_default_dtype_change_nothing_but_the_rounding_of_operands():
    q, k = torch.randn(2, 1, 2, 64, 16)
    plain = block_mass(q.bfloat16(), k.bfloat16(), "causal()", block=16)
    try:
        torch.set_default_dtype(torch.float64)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            cast = block_mass(q, k, "causal()", block=16)
    finally:
        torch.set_default_dtype(torch.float32)
    assert cast.values.dtype == torch.float32 and torch.equal(cast.values, plain.values)


REFUSED = {
    "mass-block": ({"block": 0}, ("0",)),
    "query-mask": ({"query_mask": torch.ones(1, 7, dtype=torch.bool)}, ("[1, 8]", "[1, 7]")),
    "mass-dropout": ({"terms": Terms(dropout=Dropout(0.1, 3))}, ("dropout",)),
    "operand-shape": ({"key_mask": torch.ones(1, 9, dtype=torch.bool)}, ("[1, 8]", "[1, 9]")),
    "scale-not-a-number": ({"scale": "large"}, ("large",)),
}


@pytest.mark.parametrize("code", REFUSED)
def test_what_is_refused(code):
    options, values = REFUSED[code]
    q, k = torch.randn(2, 1, 2, 8, 4)
    with refusing(KernelError, code, *values):
        block_mass(q, k, "causal()", **options)


def test_a_pattern_of_other_heads_and_what_is_no_tensor_are_refused():
    q, k = torch.randn(2, 1, 2, 8, 4)
    with pytest.raises(PatternError):
        block_mass(q, k, "split_heads(causal(), causal(), causal(), heads=3)")
    with refusing(KernelError, "not-a-tensor", "list"):
        block_mass([1.0], k, "causal()")
    with refusing(KernelError, "mass-in-transform"):
        torch.func.vmap(lambda q, k: block_mass(q[None], k[None], "causal()").values)(q, k)


def test_whoever_watches_sees_the_operands_of_every_call():
    q, k, v = torch.randn(3, 1, 2, 8, 4)
    seen = []

    def watcher(operands):
        seen.append((operands.text, operands.q is q))
        attend(operands.q, operands.k, operands.v, "dense()")  # not seen

    with watching(watcher):
        attend(q, k, v, "causal()")
        attend(q, k, v, "window(left=2)")
    attend(q, k, v, "causal()")
    assert seen == [("causal()", True), ("window(left=2)", True)]
