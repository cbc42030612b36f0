"""What the runs of an experiment cost, at the published size or another one."""

from dataclasses import dataclass, replace

from asterism.errors import ConfigurationError
from asterism.memory import amount
from asterism.reproduce.experiment import Experiment, Scale, Table, require_scale
from asterism.reproduce.trials import Training
from asterism.training.settings.configuration import FineTuneConfig, RunConfig

GPU, RATE = "one H200", 4e14
"""FLOP/s in training: 40% of the 989 TFLOP/s of dense bfloat16 products that NVIDIA gives for Hopper."""


@dataclass(frozen=True)
class Cost:
    """Of one whole run: parameters, those of the paper if it says, tokens and operations of all steps, bytes, seconds.

    Bytes are the memory that training takes on one device. Seconds are those of one GPU at a rate of RATE; at scale
    laptop the least that this machine takes, None if unknown.
    """

    name: str
    parameters: int
    published: float | None
    tokens: int
    flops: float
    memory: int
    seconds: float | None


def costs(experiment: Experiment, scale: Scale) -> list[Cost]:
    """The costs of the runs of a scale, of one seed.

    Raises ConfigurationError where there are none, and what `estimate` raises.
    """
    published = experiment.published()
    if scale == "paper" and published:
        return [_cost(name, config, published, scale) for name, (config, published) in published.items()]
    require_scale(experiment, scale)
    trained: dict[str, RunConfig] = {}
    for one in experiment.trials(scale):
        if isinstance(one, Training) and isinstance(one.config, RunConfig):
            trained[one.name] = (
                one.config
                if one.start is None
                else replace(
                    one.config,
                    init_from=None,
                    model=trained[one.start].model,
                    tokenizer=trained[one.start].tokenizer,
                )
            )
    if not trained:
        raise ConfigurationError(
            "reproduce-no-cost",
            f"{experiment.name} has no runs of `asterism train` at scale {scale}, and others are not counted"
            + ("; `--scale paper --dry-run` counts its published size" if published else ""),
        )
    return [_cost(name, config, None, scale) for name, config in trained.items()]


def _cost(name: str, config: RunConfig, published: float | None, scale: Scale) -> Cost:
    from asterism.training.ask.estimate import estimate

    found = estimate(config)
    flops, step = float(found.flops_per_step) * found.steps, found.seconds_per_step
    here = None if step is None else step * found.steps
    seconds = here if scale == "laptop" else flops / RATE
    return Cost(name, found.parameters, published, found.tokens_per_step * found.steps, flops, found.memory, seconds)


def fine_tuned(experiment: Experiment) -> set[str]:
    """The names of the runs of fine-tuning, which are not counted unless the published configurations have them."""
    trials = experiment.trials(next(iter(experiment.setting)))
    return {one.name for one in trials if isinstance(one, Training) and isinstance(one.config, FineTuneConfig)}


def cost_table(found: list[Cost], scale: Scale) -> Table:
    """The costs as a table."""
    headings = (
        "run",
        "parameters",
        "in the paper",
        "tokens",
        "operations",
        "memory",
        "at least, here" if scale == "laptop" else GPU,
    )
    flops, seconds = sum(cost.flops for cost in found), sum(cost.seconds or 0.0 for cost in found)
    total = ("all, one seed", "", "", "", amount(flops, "FLOP"), "", _time(seconds))
    return Table(headings, [*map(_row, found), *([total] if len(found) > 1 else [])])


def _row(cost: Cost) -> tuple[str, ...]:
    published = "-" if cost.published is None else f"{cost.published / 1e6:.0f}M"
    return (
        cost.name,
        f"{cost.parameters / 1e6:.1f}M",
        published,
        amount(cost.tokens, "").replace(" ", ""),
        amount(cost.flops, "FLOP"),
        amount(cost.memory, "B"),
        _time(cost.seconds),
    )


def _time(seconds: float | None) -> str:
    """Seconds, or in the unit that leaves one digit before the point."""
    if seconds is None:
        return "-"
    for unit, size in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.1f} seconds"
