"""Muon: torch's numbers, which matrices it looks after, and resumption."""

from dataclasses import replace

import pytest
import torch
from stopping import at_step
from tiny_run import history
from torch import nn

from asterism.training.pipeline import resolve, train
from asterism.training.run import muon as muon_module
from asterism.training.run.muon import Muon
from asterism.training.run.optimizer import parameter_groups

pytestmark = pytest.mark.model

CPU = torch.device("cpu")


def test_muon_resumes_to_the_same_bits_and_learns(tiny, tmp_path):
    config = replace(tiny, optimizer="muon", steps=20)
    whole = train(config, tmp_path / "whole", progress=False)
    with pytest.raises(KeyboardInterrupt), at_step(14):
        train(config, tmp_path / "parts")
    parts = train(config, tmp_path / "parts", resume=True, progress=False)
    assert parts.validation_bits_per_byte == whole.validation_bits_per_byte < 5
    assert history(tmp_path / "parts") == history(tmp_path / "whole")


def test_muon_looks_after_the_matrices_of_the_blocks_only(tiny):
    model = resolve(tiny).build(CPU)[0]
    muon, *rest = parameter_groups(model, replace(tiny, optimizer="muon"))
    assert muon["kind"] == "muon" and all(parameter.ndim == 2 for parameter in muon["params"])
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert all(names[id(parameter)].startswith("model.layers.") for parameter in muon["params"])
    everything = [id(parameter) for group in (muon, *rest) for parameter in group["params"]]
    assert sorted(everything) == sorted(names)


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("at_once", [2**22, 3 * 8 * 12], ids=["together", "in parts"])
def test_muon_is_torchs_muon(monkeypatch, at_once, precision):
    """Wide, tall and square matrices, one without a gradient, one whose gradient is 0. Products are rounded anew."""
    monkeypatch.setattr(muon_module, "_AT_ONCE", at_once)
    torch.manual_seed(0)
    shapes = [(8, 12), (12, 8), (8, 12), (12, 12), (12, 8), (8, 12), (1, 5), (12, 12)]
    ours, theirs = ([nn.Parameter(torch.zeros(shape)) for shape in shapes] for _ in range(2))
    for one, other in zip(ours, theirs, strict=True):
        other.data.copy_(one.data.normal_())
    before = [one.detach().clone() for one in ours]
    made = [{"params": ours[:3], "weight_decay": 0.1}, {"params": ours[3:], "weight_decay": 0.0}]
    own = Muon(made, 0.02, precision)
    torchs = torch.optim.Muon(
        [{"params": theirs[:3], "weight_decay": 0.1}, {"params": theirs[3:], "weight_decay": 0.0}],
        lr=0.02,
        adjust_lr_fn="match_rms_adamw",
    )
    for step in range(4):
        for one, other in zip(ours[1:], theirs[1:], strict=True):
            one.grad = torch.zeros_like(one) if one is ours[4] else torch.randn_like(one) * 10.0 ** (step - 2)
            other.grad = one.grad.clone()
        for optimizer in (own, torchs):
            for group in optimizer.param_groups:
                group["lr"] = 0.02 / (step + 1)
            optimizer.step()
        for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            assert (one - other).norm() <= 0.05 * (other - before[number]).norm(), number
            if number:
                momenta = (optimizer.state[x]["momentum_buffer"] for optimizer, x in ((own, one), (torchs, other)))
                torch.testing.assert_close(*momenta, rtol=1e-6, atol=1e-7)
    with pytest.raises(ValueError, match="closures"):
        own.step(lambda: 0.0)


@pytest.mark.parametrize(("rows", "columns", "rank"), [(8, 40, 8), (8, 16, 3), (1, 5, 1), (12, 12, 12), (12, 20, 12)])
def test_matrices_become_orthogonal_by_squares_too(rows, columns, rank):
    """In float32 wide matrices take another order of operations than in float64; one of all zeros stays so."""
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(shape, generator=generator) for shape in ((3, rows, rank), (3, rank, columns)))
    matrices = left @ right
    matrices[2] = 0
    exact = muon_module.orthogonal(matrices.double())
    assert (muon_module.orthogonal(matrices) - exact).norm() <= 2e-4 * exact.norm()
