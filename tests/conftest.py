"""Settings of every test: generated examples are the same on each run, but in slow tests, and have no deadline."""

import gc
import math
import os
import shutil
import signal
import sys

import pytest
from hypothesis import HealthCheck, Phase, settings
from seeds import (  # noqa: F401  # hooks
    pytest_addoption,
    pytest_configure,
    pytest_report_header,
    pytest_runtest_makereport,
    pytest_runtest_protocol,
)

pytest.register_assert_rewrite("command_line", "kernel_cases", "laws", "plans", "priced", "refusals")

settings.register_profile(
    "asterism",
    deadline=None,
    derandomize=True,
    database=None,
    print_blob=True,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("asterism")

# Without a GPU, Triton's interpreter runs its kernels; it must be known before anything imports Triton.
if shutil.which("nvidia-smi") is None:
    os.environ["TRITON_INTERPRET"] = "1"

# A shell that starts the tests in the background has them ignore the signal that some of them send.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Compiled modules are kept, whatever the environment says: hundreds of processes start here, and each would else
# compile the library anew, and each worker these tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Kernels written in C++ fill their scratch memory with NaN.
os.environ["ASTERISM_POISON"] = "1"

# What the machine's speed decides is decided by the figures that come with the library.
os.environ["ASTERISM_CALIBRATE"] = "0"


def pytest_collection_finish():
    """What the test files have imported stays: else every run, which collects garbage, looks through it all."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure():
    gc.unfreeze()  # at the end of the process libraries complain of objects that are still there


@pytest.fixture
def poison(monkeypatch):
    """Memory that nobody wrote holds NaN."""
    import torch  # most test files need none

    with torch.device("cpu"):
        torch.empty(0)  # PyTorch remembers the functions that a device context reaches: the true ones, for later tests

    def poisoned(allocate):
        def allocate_and_poison(*arguments, **keywords):
            fresh = allocate(*arguments, **keywords)
            with torch.no_grad():
                return fresh.fill_(math.nan) if fresh.is_floating_point() else fresh

        return allocate_and_poison

    for owner, name in (
        (torch, "empty"),
        (torch, "empty_like"),
        (torch, "empty_strided"),
        (torch.Tensor, "new_empty"),
    ):
        monkeypatch.setattr(owner, name, poisoned(getattr(owner, name)))


@pytest.fixture
def native_poison():
    """Memory that compiled code asks of torch and does not write holds NaN, too."""
    import torch

    before = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(before[0])
    torch.utils.deterministic.fill_uninitialized_memory = before[1]


@pytest.fixture
def softmax_in_double(monkeypatch):
    """Longformer computes its softmax in float32 whatever the model; here it does so in float64."""
    import torch  # most test files need none

    exact = torch.nn.functional.softmax

    def softmax(scores, dim, dtype=None):
        return exact(scores, dim=dim)

    monkeypatch.setattr(torch.nn.functional, "softmax", softmax)


@pytest.fixture
def t5_in_double(monkeypatch):
    """T5 computes its mean squares in float32 whatever the model; here it does so in float64."""
    import torch  # most test files need none
    from transformers.models.t5.modeling_t5 import T5LayerNorm

    def normalise(self, hidden):
        return self.weight * hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    monkeypatch.setattr(T5LayerNorm, "forward", normalise)


@pytest.fixture(scope="session")
def gloo():
    """Four processes that compute together, started when a test first needs them: see gloo.py."""
    from gloo import Gloo

    with Gloo() as workers:
        yield workers


@pytest.fixture(scope="session", autouse=True)
def draws_curves_at_the_end():
    """A run draws its curve in the end, and not at each evaluation: of a tiny run that would be a quarter of the time.

    `draws_every_curve` is for tests of that.
    """
    with pytest.MonkeyPatch.context() as patch:
        if session := sys.modules.get("asterism.training.run.session"):  # else the tests asked for train nothing
            patch.setattr(session, "draw_history", lambda *_: None)
        yield


@pytest.fixture
def draws_every_curve(monkeypatch):
    from asterism.training.run import picture, session

    monkeypatch.setattr(session, "draw_history", picture.draw_history)


@pytest.fixture(scope="session")
def forked():
    """Runs code in forks of a process that has imported torch: see forked.py."""
    from forked import Forked

    forks = Forked()
    yield forks
    forks.close()
