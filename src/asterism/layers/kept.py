"""The interface of attention to a cache: the positions of new tokens, and the keys that they may read.

A cache keeps the keys of different heads in different places, and rows of different lengths apart. It hands out its
contents in parts, each for some rows and some heads, and `read` puts the results together.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from asterism.kernels import attend, decode_slots
from asterism.memo import remembering
from asterism.patterns import Pattern

REMEMBERED = 64
"""How many columns a cache remembers up to the last padding, so that they can be taken back."""


class Seen(NamedTuple):
    """What a cache has seen, known on the host.

    lengths  how many real tokens of each row; one number where the rows are equally long
    columns  how many columns, padding included
    padded   no column after this one was padding in any row, counted from 1
    excess   how many columns were taken back (`crop`) and not replaced yet
    recent   of each row, the last columns up to `padded`, as text: 1 for a token, 0 for padding; empty if unknown
    """

    lengths: int | tuple[int, ...] = 0
    columns: int = 0
    padded: int = 0
    excess: int = 0
    recent: tuple[str, ...] = ()

    def of(self, row: int) -> int:
        """How many real tokens a row has seen."""
        return self.lengths if isinstance(self.lengths, int) else self.lengths[row]

    @property
    def rows(self) -> int:
        """How many rows differ in length or padding, as far as is known; 1 where all are alike."""
        return len(self.recent) or (1 if isinstance(self.lengths, int) else len(self.lengths))

    @property
    def most_removable(self) -> int:
        """How many of the last columns can be taken back: of those further back, padding is not known."""
        if not self.padded:
            return self.columns
        return self.columns - self.padded + (len(self.recent[0]) if self.recent else 0)

    def without(self, count: int) -> "Seen":
        """What was seen before the last `count` columns, at most `most_removable`, which are in excess now."""
        columns = self.columns - count
        among = self.padded - columns  # those which may be padding
        if among <= 0 or not count:
            less = (
                self.lengths - count if isinstance(self.lengths, int) else tuple(each - count for each in self.lengths)
            )
            return self._replace(lengths=less, columns=columns, excess=self.excess + count)
        removed = [count - row[-among:].count("0") for row in self.recent]
        lengths = alike(tuple(self.of(row) - some for row, some in enumerate(removed)))
        return Seen(lengths, columns, columns, self.excess + max(removed), tuple(row[:-among] for row in self.recent))

    def of_rows(self, chosen: Sequence[int]) -> "Seen":
        """The same for these rows, in that order."""
        recent = tuple(self.recent[row] for row in chosen) if self.recent else ()
        return self._replace(lengths=alike(tuple(self.of(row) for row in chosen)), recent=recent)


class NewTokens:
    """N columns that come after what a cache has seen. In each row the real tokens are given first.

    before   what has been seen
    width    N
    counts   how many of the columns are real in each row; None where all are
    padded   then, the last of them that is padding in some row as the model was given them, counted from 1: N unless
             said otherwise
    recent   then, the columns up to that one, as in Seen
    results  what layers have found out about these tokens, to share it
    """

    def __init__(
        self,
        before: Seen,
        width: int,
        counts: Sequence[int] | None = None,
        padded: int | None = None,
        recent: tuple[str, ...] = (),
    ) -> None:
        self.before, self.width = before, width
        self.counts = _counts(counts, width)
        self.padded, self.recent = width if padded is None else padded, recent
        self.results: dict[Any, Any] = {}
        self.after = self._after()

    def are(
        self,
        before: Seen,
        width: int,
        counts: Sequence[int] | None,
        padded: int | None,
        recent: tuple[str, ...],
    ) -> bool:
        """Whether these are the tokens that NewTokens with these arguments would be."""
        if self.before is not before and self.before != before:
            return False
        if self.width != width or self.counts != _counts(counts, width):
            return False
        return (self.padded, self.recent) == (width if padded is None else padded, recent)

    def _after(self) -> Seen:
        lengths, columns, padded, excess, recent = self.before
        if self.counts is not None:
            padded, recent = columns + self.padded, self._recent()
        # In a row of fewer real tokens, fewer of those that were taken back are replaced.
        replaced = self.width if self.counts is None else min(self.counts)
        columns, excess = columns + self.width, max(excess - replaced, 0)
        if self.counts is None:
            grown = lengths + self.width if isinstance(lengths, int) else tuple(each + self.width for each in lengths)
            return Seen(grown, columns, padded, excess, recent)
        rows = tuple(self.before.of(row) + count for row, count in enumerate(self.counts))
        return Seen(alike(rows), columns, padded, excess, recent)

    def _recent(self) -> tuple[str, ...]:
        """Their last columns up to the last padding, behind what is remembered of the columns before them."""
        if not self.recent:
            return ()
        known = self.before.recent or ("",) * len(self.recent)
        between = "1" * min(self.before.columns - self.before.padded, REMEMBERED)
        return tuple((old + between + new)[-REMEMBERED:] for old, new in zip(known, self.recent, strict=True))

    def positions(self, device: torch.device) -> torch.Tensor:
        """Where the tokens stand in their rows: int64 [B or 1, N], -1 for padding."""
        lengths = self.before.lengths
        if self.counts is None and isinstance(lengths, int):
            return torch.arange(lengths, lengths + self.width, device=device)[None]
        own = range(len(self.counts if self.counts is not None else lengths))  # type: ignore[arg-type]
        starts = torch.tensor([self.before.of(row) for row in own], device=device)
        places = torch.arange(self.width, device=device)
        positions = starts[:, None] + places
        if self.counts is None:
            return positions
        return torch.where(places < torch.tensor(self.counts, device=device)[:, None], positions, -1)


def alike(lengths: tuple[int, ...]) -> int | tuple[int, ...]:
    """Lengths as Seen has them: one number where all are equal."""
    return lengths[0] if len(set(lengths)) == 1 else lengths


def _counts(counts: Sequence[int] | None, width: int) -> tuple[int, ...] | None:
    return None if counts is None or min(counts) == width else tuple(counts)


class Kept(NamedTuple):
    """Keys and values for some rows and some query heads, and who may read them.

    rows, heads    of the batch and of the queries, ascending; None for all
    keys, values   [b, h, L, D] and [b, h, L, Dv]
    pattern        of these heads
    allowed        bool [b or 1, 1 or heads, N, L]; None where the keys stand at 0, 1, 2, ...
    query_offset   where the first query stands, if `allowed` is None
    key_positions  gives int64 [b or 1, L], -1 for a slot without a key
    """

    rows: tuple[int, ...] | None
    heads: tuple[int, ...] | None
    keys: torch.Tensor
    values: torch.Tensor
    pattern: Pattern
    allowed: torch.Tensor | None
    query_offset: int
    key_positions: Callable[[], torch.Tensor]

    def attend(self, q: torch.Tensor, **options: Any) -> Any:
        """What queries [b, h, N, D] of these rows and heads read; options and results as in `asterism.attend`."""
        if self.allowed is not None:
            return decode_slots(q, self.keys, self.values, self.allowed, **options)
        return attend(q, self.keys, self.values, self.pattern, query_offset=self.query_offset, **options)


def read(
    q: torch.Tensor, parts: Sequence[Kept], compute: Callable[[torch.Tensor, Kept], tuple[torch.Tensor, ...]]
) -> tuple[torch.Tensor, ...]:
    """`compute(queries, part)` gives [b, h, N, ...] for the queries of one part; all together, for q [B, H, N, D], in
    the dtype of the results."""
    if len(parts) == 1 and parts[0].rows is None and parts[0].heads is None:
        return compute(q, parts[0])
    together: tuple[torch.Tensor, ...] = ()
    for part in parts:
        place = _place(part, q)
        results = compute(q[place], part)
        if not together:
            together = tuple(result.new_zeros(q.shape[:2] + result.shape[2:]) for result in results)
        for whole, result in zip(together, results, strict=True):
            whole[place] = result
    return together


def _place(part: Kept, q: torch.Tensor) -> tuple[Any, ...]:
    """The index of a part's rows and heads."""
    rows, heads = index_of(part.rows, q.device), index_of(part.heads, q.device)
    if isinstance(rows, torch.Tensor) and isinstance(heads, torch.Tensor):
        rows = rows[:, None]
    return rows, heads


def index_of(chosen: tuple[int, ...] | None, device: torch.device) -> slice | torch.Tensor:
    """What indexes the chosen ones, all for None: a slice where they stand next to each other, else int64 [chosen]."""
    if chosen is None:
        return slice(None)
    if chosen == tuple(range(chosen[0], chosen[-1] + 1)):
        return slice(chosen[0], chosen[-1] + 1)
    if torch.compiler.is_compiling():  # a graph keeps it
        return torch.tensor(chosen, device=device)
    return _on(chosen, device)


@remembering
def _on(chosen: tuple[int, ...], device: torch.device) -> torch.Tensor:
    return torch.tensor(chosen, device=device)
