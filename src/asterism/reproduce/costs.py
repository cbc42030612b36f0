"""What the runs of an experiment cost, at the published size or another one."""

from dataclasses import dataclass
from typing import Any

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
    def days(self) -> float:
        """On one GPU."""
        return self.flops / RATE / 86_400


def costs(experiment: Experiment, scale: Scale) -> list[Cost]:
    """The costs of the runs of a scale, of one seed. Raises what `estimate` raises."""
    if scale == "paper":
        return [_cost(name, config, published) for name, (config, published) in experiment.published().items()]
    require_scale(experiment, scale)
    first = {one.name: one.config for one in reversed(experiment.trials(scale)) if isinstance(one, Training)}
    return [_cost(name, config, None) for name, config in reversed(first.items())]


def _cost(name: str, config: RunConfig, published: float | None) -> Cost:
    from asterism.training.ask.estimate import estimate

    found = estimate(config)
    return Cost(name, found.parameters, published, float(found.flops_per_step) * found.steps, found.memory)


def cost_table(found: list[Cost]) -> Table:
    """The costs as a table."""
    headings = ("run", "parameters", "in the paper", "operations", "memory", f"days on {GPU}")
    return Table(headings, [_row(cost) for cost in found])


def _row(cost: Cost) -> tuple[str, ...]:
    published = "-" if cost.published is None else f"{cost.published / 1e6:.0f}M"
    return (
        cost.name,
        f"{cost.parameters / 1e6:.1f}M",
        published,
        amount(cost.flops, "FLOP"),
        amount(cost.memory, "B"),
        f"{cost.days:,.2f}",
    )


def as_json(cost: Cost) -> dict[str, Any]:
    """A cost as JSON."""
    return {**vars(cost), "days": cost.days}
