"""Low-rank adaptation (Hu 2021): the settings of an adapter, and their text form, "r=16, alpha=32"."""

from dataclasses import dataclass

from asterism.calls import Calls, is_whole
from asterism.errors import ConfigurationError

MEANING = (
    'train an adapter of low rank in place of the weights: "r=16", and perhaps alpha=32, dropout=0.05,'
    " targets='q_proj,v_proj' (extra `lora`; default: train all weights)"
)
"""The help of the setting."""

ALL = "all-linear"


@dataclass(frozen=True)
class Lora:
    """An adapter: each adapted matrix W becomes W + alpha / r * B A, of which A [r, inputs] and B [outputs, r] learn.

    r        the rank
    alpha    the scale; by default 2 r
    dropout  the fraction of the inputs of A that training drops
    targets  the names of the layers to adapt, separated by commas; by default all linear layers but the last one

    Raises ConfigurationError for values that cannot work.
    """

    r: int = 16
    alpha: float | None = None
    dropout: float = 0.0
    targets: str = ALL

    def __post_init__(self) -> None:
        for name, holds, rule in (
            ("r", is_whole(self.r, 1, 2**16), "must be a whole number from 1 to 65,536"),
            ("alpha", self.alpha is None or (_is_number(self.alpha) and self.alpha > 0), "must be a positive number"),
            ("dropout", _is_number(self.dropout) and 0 <= self.dropout < 1, "must be in [0, 1)"),
            ("targets", isinstance(self.targets, str) and all(self.layers), "must be names separated by commas"),
        ):
            if not holds:
                raise ConfigurationError("setting-range", f"lora: {name}={getattr(self, name)!r} {rule}")

    @property
    def scale(self) -> float:
        """alpha, also where it is left to the default."""
        return 2 * self.r if self.alpha is None else self.alpha

    @property
    def layers(self) -> list[str]:
        """The names of the layers to adapt."""
        return [name.strip() for name in self.targets.split(",")]


_VOCABULARY = Calls("lora", {"lora": "asterism.training.settings.lora:Lora"}, example="lora(r=16, alpha=32)")


def parse_lora(text: str) -> Lora:
    """Parse the arguments of an adapter, or a whole call of them. Raises ConfigurationError."""
    is_call = text.strip().startswith("lora")
    found: Lora = _VOCABULARY.parse(text if is_call else f"lora({text})")
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
