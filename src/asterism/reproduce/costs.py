"""What the runs of an experiment cost, at the published size or another one."""

from dataclasses import dataclass
from typing import Any

from asterism.errors import ConfigurationError
from asterism.memory import amount
from asterism.reproduce.experiment import Experiment, Scale, Table, require_scale
from asterism.reproduce.trials import Training
from asterism.training.settings.configuration import RunConfig

GPU, RATE = "one H200", 4e14
"""FLOP/s in training: 40% of the 989 TFLOP/s of dense bfloat16 products that NVIDIA gives for Hopper."""


@dataclass(frozen=True)
class Cost:
    """Of one run; memory in bytes on one device; `published` parameters, if the paper says."""

    name: str
    parameters: int
    published: float | None
    flops: float
    memory: int

    @property
    def seconds(self) -> float:
        """On one GPU."""
        return self.flops / RATE


def costs(experiment: Experiment, scale: Scale) -> list[Cost]:
    """The costs of the runs of a scale, of one seed.

    Raises ConfigurationError where there are none, and what `estimate` raises.
    """
    published = experiment.published()
    if scale == "paper" and published:
        return [_cost(name, config, published) for name, (config, published) in published.items()]
    require_scale(experiment, scale)
    trained = {one.name: one.config for one in reversed(experiment.trials(scale)) if isinstance(one, Training)}
    if not trained:
        raise ConfigurationError("reproduce-no-cost", f"{experiment.name} has no runs of `asterism train` to count")
    return [_cost(name, config, None) for name, config in reversed(trained.items())]


def _cost(name: str, config: RunConfig, published: float | None) -> Cost:
    from asterism.training.ask.estimate import estimate

    found = estimate(config)
    return Cost(name, found.parameters, published, float(found.flops_per_step) * found.steps, found.memory)


def cost_table(found: list[Cost]) -> Table:
    """The costs as a table."""
    headings = ("run", "parameters", "in the paper", "operations", "memory", f"time on {GPU}")
    flops = sum(cost.flops for cost in found)
    total = ("all", "", "", amount(flops, "FLOP"), "", _time(flops / RATE))
    return Table(headings, [*map(_row, found), *([total] if len(found) > 1 else [])])


def _row(cost: Cost) -> tuple[str, ...]:
    published = "-" if cost.published is None else f"{cost.published / 1e6:.0f}M"
    return (
        cost.name,
        f"{cost.parameters / 1e6:.1f}M",
        published,
        amount(cost.flops, "FLOP"),
        amount(cost.memory, "B"),
        _time(cost.seconds),
    )


def _time(seconds: float) -> str:
    """Seconds, or in the unit that leaves one digit before the point."""
    for unit, size in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.1f} seconds"


def as_json(cost: Cost) -> dict[str, Any]:
    """A cost as JSON."""
    return {**vars(cost), "seconds": cost.seconds}
