"""Something happens to a run at a step."""

import signal
from contextlib import contextmanager

import pytest

from asterism.training.run import fitting
from asterism.training.run.progress import Silence


@contextmanager
def at_step(step, act=lambda: signal.raise_signal(signal.SIGINT)):
    """Within the body, runs `act` when a run shows this step; by default it is interrupted."""

    class Acting(Silence):
        def show(self, status):
            if status.step == step:
                act()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting, "make_display", lambda enabled: Acting())
        yield
