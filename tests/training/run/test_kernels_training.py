"""A run gives the same loss curve whichever kernel computes its attention."""

import json
from dataclasses import replace

import numpy as np
import pytest
from kernel_cases import has_compiler
from slow_cases import slow_except

from asterism.training import recipe
from asterism.training.pipeline import train

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(not has_compiler(), reason="no C++ compiler on this machine"),
]

TEXT = b"".join(b"def f%d(x):\n    return x + %d\n\n" % (number, number % 7) for number in range(1200))
NOISE_FACTOR, NOISE_FLOOR = 4, 1e-4


@pytest.fixture(scope="module")
def losses(tmp_path_factory):
    """The losses, in nats per byte, of the steps of a small run of the recipe bytes-small."""
    folder = tmp_path_factory.mktemp("curves")
    (folder / "code.txt").write_bytes(TEXT)

    def curve(dtype, implementation, seed=0):
        config = recipe("bytes-small")
        config = replace(
            config,
            model=replace(config.model, hidden_size=48, num_hidden_layers=2, implementation=implementation),
            data=str(folder / "code.txt"),
            context=320,
            steps=12,
            minutes=None,
            warmup_steps=3,
            dtype=dtype,
            seed=seed,
            log_every=1,
            evaluation_bytes=640,
        )
        run = folder / f"{dtype}-{implementation}-{seed}"
        train(config, run, progress=False)
        entries = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
        return np.array([entry["loss"] for entry in entries if "loss" in entry])

    return curve


@pytest.mark.parametrize("dtype", slow_except(("float32", "bfloat16"), "bfloat16"))
def test_the_fused_kernel_gives_the_loss_curve_of_eager(losses, dtype):
    """Within a few times what rounding alone makes of it, which two other implementations show."""
    eager, reference, fused = (losses(dtype, name) for name in ("eager", "reference", "cpu"))
    assert len(eager) == 12 and eager[-1] < eager[0] - 0.5
    noise = NOISE_FACTOR * np.abs(eager - reference).max() + NOISE_FLOOR
    assert np.abs(fused - eager).max() <= noise
    assert np.abs(losses(dtype, "eager", seed=1) - eager).max() > noise, "the noise would hide another run"
