"""The mass of tiles by the Triton kernel, on a GPU or under Triton's interpreter: equal to PyTorch's in float64."""

import pytest
import torch
from slow_cases import slow_except

from asterism import Alibi, Terms, block_mass
from asterism.kernels.triton import mass_tiles

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
pytest.importorskip("triton", minversion="3.7" if DEVICE.type == "cpu" else None, reason="needs the package triton")

pytestmark = [pytest.mark.usefixtures("poison"), pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")]

CASES = (
    ("causal()", 16, ("key_mask",)),
    ("dense()", 32, ("query_mask",)),
    ("window(left=20, right=9)", 16, ("segments",)),
    ("sinks(first=4, window=30)", 64, ()),
    ("bigbird(block=16)", 16, ("key_mask", "query_mask")),
    ("per_head([causal(), window(left=20), sinks(4, 9), stride(16) & causal()])", 16, ()),
    ("window(left=3) | random_blocks(block=16, count=1, heads=4)", 16, ()),
    ("stride(3) | window(left=3)", 48, ()),
)


@pytest.fixture
def calls(monkeypatch):
    """The kernel takes operands on a CPU too, by the interpreter; the calls that it got."""
    seen = []
    known = mass_tiles.mass_of_tiles
    monkeypatch.setattr("asterism.kernels.cpu.mass.takes", lambda operands, run: False)
    monkeypatch.setattr(mass_tiles, "takes", lambda operands, run: operands.q.dtype == torch.float32 and run >= 16)
    monkeypatch.setattr(mass_tiles, "mass_of_tiles", lambda *given: (seen.append(given[2:]), known(*given))[1])
    return seen


def operands(length: int = 70, heads: int = 4, key_heads: int = 2):
    drawn = torch.Generator().manual_seed(0)
    q, k = (2 * torch.randn(1, count, length, 20, generator=drawn) for count in (heads, key_heads))
    marks = {
        "key_mask": torch.rand(1, length, generator=drawn) < 0.7,
        "segments": (torch.arange(length) // 30)[None],
        "query_mask": torch.rand(1, length, generator=drawn) < 0.5,
    }
    return q.to(DEVICE), k.to(DEVICE), {name: mark.to(DEVICE) for name, mark in marks.items()}


@pytest.mark.parametrize("case", slow_except(CASES, *CASES[2:5]), ids=[pattern for pattern, _, _ in CASES])
def test_it_is_that_of_pytorch(calls, case):
    pattern, block, names = case
    q, k, marks = operands()
    given = {name: marks[name] for name in names}
    if "key_mask" in given:
        k = k.masked_fill(~given["key_mask"][:, None, :, None], torch.nan)
    found = block_mass(q, k, pattern, block=block, **given)
    assert calls or "stride(3)" in pattern
    told = block_mass(q.double(), k.double(), pattern, block=block, **given)
    assert torch.equal(found.queries, told.queries) and torch.equal(found.keys, told.keys)
    torch.testing.assert_close(found.values.double(), told.values, rtol=1e-5, atol=3e-5)
    assert found.values.sum() > 1


def test_terms_of_the_score(calls):
    q, k, _ = operands()
    terms = Terms(
        bias=Alibi(torch.tensor([0.5, 0.25, 0.125, 0.0], device=DEVICE)),
        softcap=3.0,
        sinks=torch.zeros(4, device=DEVICE),
    )
    found = block_mass(q, k, "causal()", block=16, terms=terms)
    wide = Terms(bias=terms.bias, softcap=3.0, sinks=terms.sinks.double())
    told = block_mass(q.double(), k.double(), "causal()", block=16, terms=wide)
    torch.testing.assert_close(found.values.double(), told.values, rtol=1e-5, atol=3e-5)
    assert calls
