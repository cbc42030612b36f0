"""Something happens to a run at a step."""

import signal
from contextlib import contextmanager

import pytest

from asterism.training import pipeline
from asterism.training.run.progress import Silence


@contextmanager
def at_step(step, act=lambda: signal.raise_signal(signal.SIGINT)):
    """Within the body, runs `act` when a run shows this step; by default it is interrupted."""

    class Acting(Silence):
        def show(self, status):
            if getattr(status, "step", None) == step:  # an evaluation has none
                act()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "make_display", lambda enabled: Acting())
        yield
