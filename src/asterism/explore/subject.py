"""What model the page is about, as the command line names it."""

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A run folder or a model folder, a pattern for a model of transformers, and a file of text; None for none."""

    run: str | None = None
    model: str | None = None
    pattern: str | None = None
    text: str | None = None

    @property
    def name(self) -> str:
        """The folder."""
        return self.run or self.model or ""

    def to_json(self) -> str:
        """As an argument of a process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Subject":
        """The inverse of `to_json`."""
        return cls(**json.loads(text))
