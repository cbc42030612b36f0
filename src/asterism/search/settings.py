"""The settings of a search, and the steps of its rungs."""

from dataclasses import dataclass, fields

from asterism.errors import ConfigurationError

_POSITIVE = ("candidates", "steps", "seeds", "layers", "width", "heads", "batch", "held_out")


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """The settings of a search.

    task            recall, needles, or the path of a text
    budgets         such as flops=25% or keys=64; each has candidates of its own
    length          bytes of an example
    candidates      schedules of each budget, dense attention not counted
    steps           of training, on the last rung
    eta, rungs      each rung keeps a part in `eta` and trains it `eta` times as long; rungs None: as many as leave at
                    least `eta` candidates on the last one
    seeds           trainings of each candidate of the last rung
    seed            of draws, examples and weights
    layers, width, heads    of the model
    batch, learning_rate    examples per step, and the peak
    held_out        examples that the loss is measured on

    Raises ConfigurationError for values that cannot work.
    """

    task: str
    budgets: tuple[str, ...] = ("flops=25%",)
    length: int = 256
    candidates: int = 12
    steps: int = 800
    eta: int = 2
    rungs: int | None = None
    seeds: int = 1
    seed: int = 0
    layers: int = 2
    width: int = 64
    heads: int = 4
    batch: int = 16
    learning_rate: float = 1e-2
    held_out: int = 128

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            if getattr(self, name) < 1:
                raise ConfigurationError("search-setting", f"{name}: must be at least 1, got {getattr(self, name)}")
        if self.eta < 2:
            raise ConfigurationError("search-setting", f"eta: must be at least 2, got {self.eta}")
        if not 0 < self.learning_rate < float("inf"):
            raise ConfigurationError("search-setting", f"learning_rate: must be positive, got {self.learning_rate}")
        if self.width % (2 * self.heads):
            raise ConfigurationError(
                "search-setting", f"width: must be a multiple of twice the {self.heads} heads, got {self.width}"
            )
        if len(set(self.budgets)) < len(self.budgets) or not self.budgets:
            raise ConfigurationError("search-setting", "budgets: give at least one, each once")
        most = self.most_rungs()
        if self.rungs is not None and not 1 <= self.rungs <= most:
            raise ConfigurationError(
                "search-rungs",
                f"rungs: must be from 1 to {most} for {self.candidates} candidates, {self.steps} steps and eta"
                f" {self.eta}, got {self.rungs}",
            )

    def most_rungs(self) -> int:
        """The rungs that leave a candidate for the last one and a step for the first one."""
        rungs = 1
        while self.eta**rungs <= min(self.candidates, self.steps):
            rungs += 1
        return rungs

    def ladder(self) -> list[tuple[int, int]]:
        """Of each rung, the candidates and the steps of training, counted from the start."""
        rungs = self.rungs or max(1, self.most_rungs() - 1)
        return [
            (-(-self.candidates // self.eta**rung), self.steps // self.eta ** (rungs - 1 - rung))
            for rung in range(rungs)
        ]

    def differences(self, other: dict[str, object]) -> list[str]:
        """How settings read from JSON differ from these: `steps 100, not 200`."""
        mine = self.as_json()
        return [
            f"{field.name} {other.get(field.name)}, not {mine[field.name]}"
            for field in fields(self)
            if other.get(field.name) != mine[field.name]
        ]

    def as_json(self) -> dict[str, object]:
        """The settings by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**values, "budgets": list(self.budgets)}
