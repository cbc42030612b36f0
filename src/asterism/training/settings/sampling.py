"""The checked settings of sampling: how a model continues a prompt."""

from dataclasses import dataclass
from typing import Any

from asterism.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How values are drawn.

    Temperature 0 takes the likeliest value. `top_k` keeps the k likeliest values, and `top_p` the fewest whose
    probabilities reach that sum. The draws are a function of `seed`. Raises ConfigurationError for settings that cannot
    work.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, holds, rule in (
            ("temperature", self.temperature >= 0, "must not be negative"),
            ("top_k", self.top_k is None or self.top_k >= 1, "must be at least 1"),
            ("top_p", self.top_p is None or 0 < self.top_p <= 1, "must be above 0 and at most 1"),
        ):
            if not holds:
                raise ConfigurationError("setting-range", f"generation: {name}={getattr(self, name)!r} {rule}")

    def arguments(self, length: int) -> dict[str, Any]:
        """Arguments for `generate` of transformers, to draw this many values. Raises ConfigurationError below 1."""
        if length < 1:
            raise ConfigurationError("at-least-one", f"generation: length={length!r} must be at least 1")
        if self.temperature == 0:
            return {"max_new_tokens": length, "do_sample": False}
        drawn = {"temperature": self.temperature, "top_k": self.top_k or 0}
        return {
            "max_new_tokens": length,
            "do_sample": True,
            **drawn,
            "top_p": 1.0 if self.top_p is None else self.top_p,
        }
