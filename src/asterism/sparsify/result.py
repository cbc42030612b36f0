"""What came of it: schedules compared, the price list, and the model's new schedule, as values and as text."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from asterism.columns import aligned
from asterism.sparsify.grid import Choice, Grid
from asterism.sparsify.prices import Prices


@dataclass(frozen=True)
class Measured:
    """A schedule, measured.

    cost             mean keys of a query, or tokens of a cache
    share            of what the model needs as it is
    nats, held_out   nats per token on the texts that were chosen by, and on others
    """

    name: str
    cost: float
    share: float
    nats: float
    held_out: float


@dataclass(frozen=True)
class Sparsified:
    """The result of `sparsify`. `predicted`: nats per token that the price list promised for its own schedule."""

    model: str
    budget: str
    grid: Grid
    choice: Choice
    prices: Prices
    predicted: float
    rows: tuple[Measured, ...]
    seconds: float

    @property
    def schedule(self) -> str:
        """The schedule as text, which `use_pattern` and `--pattern` take."""
        texts = self.grid.patterns(self.choice)
        return texts[0] if len(set(texts)) == 1 else f"interleave({', '.join(texts)})"

    def as_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "model": self.model,
            "budget": self.budget,
            "length": self.grid.length,
            "schedule": self.schedule,
            "levels": [[str(level) for level in ladder] for ladder in self.grid.ladders],
            "choice": [list(levels) for levels in self.choice],
            "prices": asdict(self.prices),
            "predicted": self.predicted,
            "rows": [asdict(row) for row in self.rows],
            "seconds": self.seconds,
        }

    def __str__(self) -> str:
        return "\n".join([*self._compared(), "", *self._listed()])

    def _compared(self) -> list[str]:
        cells = [("schedule", self.budget.partition("=")[0], "share", "chosen by", "held out", "rise")]
        dense = self.rows[0]
        for row in self.rows:
            figures = f"{row.cost:,.0f}", f"{row.share:.1%}", f"{row.nats:.4f}", f"{row.held_out:.4f}"
            cells.append((row.name, *figures, f"{row.held_out - dense.held_out:+.4f}"))
        named = {row.name: row for row in self.rows}
        measured = named["price list"].nats
        return [
            f"{self.model}, {self.budget}, nats per token of the second half of {self.grid.length:,} tokens",
            "",
            *_table(cells),
            "",
            f"The price list promised {self.predicted - dense.nats:+.4f} nats for its schedule; measured"
            f" {measured - dense.nats:+.4f}.",
            *self.notes(),
        ]

    def notes(self) -> list[str]:
        """What a reader of the table should know, one line each."""
        *others, ours = (row for row in self.rows if row.name not in ("as it is", "least"))
        best = min(others, key=lambda row: row.held_out)
        found = []
        if ours.nats == {row.name: row.nats for row in others}["price list"]:
            found.append("No exchange lowered the loss: refined is the price list's schedule.")
        if best.held_out < ours.held_out:
            found.append(
                f"On the held-out texts {best.name} loses less than refined: give more texts to choose by"
                " (--documents), or take that schedule."
            )
        return found

    def _listed(self) -> list[str]:
        """The layers, dearest first: what they cost, and which pattern they got."""
        prices, grid = self.prices, self.grid
        cells = [("layer", "price", "first", "last", "key heads", "chosen")]
        for layer in sorted(grid.layers, key=lambda one: -prices.of_layer(one)):
            patterns = [str(grid.ladders[layer][level]) for level in self.choice[layer]]
            cells.append(
                (
                    str(layer),
                    f"{prices.of_layer(layer):+.4f}",
                    f"{prices.first[layer]:+.4f}",
                    f"{prices.last[layer]:+.4f}",
                    " ".join(f"{one:+.4f}" for one in prices.alone[layer]),
                    patterns[0] if len(set(patterns)) == 1 else ", ".join(patterns),
                )
            )
        return [
            "What the least window costs, in nats per token. price: of the layer; first: while all other layers stay",
            "as they are; last: while all others have the least window; key heads: each while all other heads stay.",
            *_table(cells),
        ]


def _table(cells: Sequence[tuple[str, ...]]) -> list[str]:
    """Columns of text, flush left where they hold words."""
    columns = enumerate(zip(*cells, strict=True))
    return aligned(cells, [number for number, column in columns if not column[1].lstrip("+-")[:1].isdigit()])
