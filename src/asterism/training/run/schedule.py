"""The progress of a run, and its learning rate: pure functions of (configuration, step, seconds).

A run has an end in steps and may have one in minutes; the nearer one counts. A run on a slow machine therefore has the
same schedule as one on a fast machine, with fewer steps, and its warm-up also ends after a tenth of the time. All
functions are continuous in time, and `progress` never decreases, so a resumed run continues where it stopped.
"""

import math
from dataclasses import replace
from typing import TypeVar

from asterism.training.settings.configuration import TrainingConfig

Config = TypeVar("Config", bound=TrainingConfig)

WARM_UP = 0.1
"""The share of a run that warm-up takes at most where minutes or epochs, not steps, are its end: how many steps that is
depends on the machine, or on the data."""


Begun = tuple[int, float]
"""The steps and seconds after which a schedule began: not 0 in a run that is trained further (`further.py`)."""


def progress(config: TrainingConfig, step: int, seconds: float, begun: Begun = (0, 0.0)) -> float:
    """The finished share of a run after `step` steps and `seconds` seconds of training; 1 is the end."""
    config, step, seconds = _since(config, step, seconds, begun)
    in_time = 0.0 if config.minutes is None else seconds / (60 * config.minutes)
    return min(1.0, max(step / config.steps, in_time))


def _since(config: Config, step: int, seconds: float, begun: Begun) -> tuple[Config, int, float]:
    """The same run as if it had begun when its schedule began."""
    if begun == (0, 0.0):
        return config, step, seconds
    minutes = None if config.minutes is None else config.minutes - begun[1] / 60
    return replace(config, steps=config.steps - begun[0], minutes=minutes), step - begun[0], seconds - begun[1]


def warm_up(config: TrainingConfig, step: int, seconds: float, begun: Begun = (0, 0.0)) -> float:
    """The share of the peak learning rate that warm-up allows for the step after `step` steps.

    It reaches 1 with step number `warmup_steps`, or when `WARM_UP` of `minutes` is over, if that is earlier.
    """
    config, step, seconds = _since(config, step, seconds, begun)
    in_time = 0.0 if config.minutes is None else seconds / (WARM_UP * 60 * config.minutes)
    return min(1.0, max((step + 1) / max(1, config.warmup_steps), in_time))


def within(config: Config, steps: int) -> Config:
    """The configuration of a run that ends after at most this many steps, when its epochs are over."""
    if steps >= config.steps:
        return config
    return replace(config, steps=steps, warmup_steps=min(config.warmup_steps, max(1, int(WARM_UP * steps))))


def notes_at_the_end(config: TrainingConfig, step: int, seconds: float, begun: Begun = (0, 0.0)) -> list[str]:
    """Notes for the user about a run that ended after `step` steps."""
    config, step, seconds = _since(config, step, seconds, begun)
    reached = warm_up(config, step - 1, seconds)
    if reached == 1:
        return []
    return [
        f"the run ended during warm-up, after {step:,} of {config.warmup_steps:,} steps: the learning rate reached"
        f" {reached:.0%} of {config.learning_rate:g} at most; have fewer --warmup-steps, or more --steps"
    ]


def learning_rate_factor(config: TrainingConfig, step: int, seconds: float, begun: Begun = (0, 0.0)) -> float:
    """The factor of the peak learning rate for the step after `step` steps: linear warm-up times a decay.

    The decay falls from 1 at the start to 0 at the end of the run: half a cosine (Child 2019, section 6) or a line
    (Devlin 2019, appendix A.2). "inverse_sqrt" does not depend on the end: after warm-up it is sqrt(warmup_steps / step
    number) (Vaswani 2017, section 5.3).
    """
    config, step, seconds = _since(config, step, seconds, begun)
    warm = warm_up(config, step, seconds)
    if config.schedule == "inverse_sqrt":
        return warm * math.sqrt(min(1.0, max(1, config.warmup_steps) / (step + 1)))
    done = progress(config, step, seconds)
    return warm * (1 - done if config.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done)))
