"""How far a run is, and the learning rate there: pure functions of (configuration, step, seconds).

A run has an end in steps and may have one in minutes; whichever is nearer counts. A run on a slow machine therefore
sees the same schedule as one on a fast machine, with fewer steps. Both functions are continuous in time, and `progress`
never falls, so a resumed run goes on where it stopped.
"""

import math

from asterism.training.run.configuration import TrainingConfig


def progress(config: TrainingConfig, step: int, seconds: float) -> float:
    """The finished share of a run after `step` steps and `seconds` seconds of training; 1 is the end."""
    in_time = 0.0 if config.minutes is None else seconds / (60 * config.minutes)
    return min(1.0, max(step / config.steps, in_time))


def learning_rate_factor(config: TrainingConfig, step: int, seconds: float) -> float:
    """What the peak learning rate is multiplied by for the step after `step` steps: linear warm-up times a decay.

    Warm-up reaches 1 with step number `warmup_steps`. The decay falls from 1 at the start to 0 at the end of the run:
    half a cosine (Child 2019, section 6) or a line (Devlin 2019, appendix A.2). "inverse_sqrt" knows no end: behind
    warm-up it is sqrt(warmup_steps / step number) (Vaswani 2017, section 5.3).
    """
    warm = min(1.0, (step + 1) / max(1, config.warmup_steps))
    if config.schedule == "inverse_sqrt":
        return warm * math.sqrt(min(1.0, max(1, config.warmup_steps) / (step + 1)))
    done = progress(config, step, seconds)
    return warm * (1 - done if config.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done)))
