"""Rows: the positions of the tokens of a call, B rows of N tokens, whole or one shard of each.

Layers, heads and models ask it what they need of whole rows, and never where these lie: attention by a pattern, a mean
over tokens, a loss. It has two final classes, `RowsHere` and `ShardedRows`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from asterism.errors import ConfigurationError
from asterism.kernels.packed import one_after_another
from asterism.layers.index import Index
from asterism.layers.kept import NewTokens
from asterism.layers.rows.padding import documents_of_rows
from asterism.layers.rows.trees import in_trees
from asterism.patterns import Pattern, documents
from asterism.patterns.forest import Forest
from asterism.patterns.tree import along_paths


@dataclass(eq=False)
class Rows:
    """The positions of B rows of N tokens on this device. No tensor is changed.

    positions  int64 [B or 1, N]: where each token stands among the real ones of its row, or in its document; -1 for
               padding, which comes last
    real       bool [B, N]: which tokens are real; None where all are, or where no layer need know
    lengths    how many tokens of each whole row are real, where a pattern whose rule depends on the length is laid over
               each row's own; None where all rows have one
    documents  the lengths of the documents in the rows, through all whole rows laid end to end, each of which follows
               the pattern by itself; or a Forest, the trees in them, whose paths do; None where each row is one
               sequence
    segments   int [B, N]: a query reads only keys of its own segment; None for no such rule
    tokens     which of the tokens that a cache counts these are; None without a cache
    front      how many of the N tokens are learned ones, before those of the batch
    penalties  what layers add to the loss of a model in training: each a scalar
    readable   what layers that read these tokens as a source have found out: by pattern, which keys are read
    """

    positions: Tensor
    real: Tensor | None = None
    lengths: tuple[int, ...] | None = None
    documents: tuple[int, ...] | Forest | None = None
    segments: Tensor | None = None
    tokens: NewTokens | None = None
    front: int = 0
    penalties: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.readable: dict[str, Tensor] = {}

    # --- columns, as the caller of a model knows them, and slots, in which layers find the real tokens in front ---

    def pack(self, columns: Tensor) -> Tensor:
        """[B, N, ...] by column -> [B, N, ...] by slot."""
        raise NotImplementedError

    def by_column(self, hidden: Tensor) -> Tensor:
        """[B, N, ...] by slot -> [B, N, ...] by column: padding gets what the last token before it has, or 0."""
        raise NotImplementedError

    def inside(self, front: int, *, told: bool, by_length: bool) -> "Rows":
        """The rows as blocks see them, behind `front` learned tokens.

        told       whether some layer must know which tokens are real
        by_length  whether some layer must know how many of each row are
        """
        raise NotImplementedError

    def longest(self, limit: int) -> int:
        """One more than the greatest position of all rows, if that is above `limit`; else at most `limit`."""
        raise NotImplementedError

    # --- attention: q [B, H, N, D], k [B, Hkv, N, D], v [B, Hkv, N, Dv] -> [B, H, N, Dv] ---

    def attend(self, q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, **options: Any) -> Any:
        """By a pattern of whole rows, or of each document; options and results are those of `asterism.attend`, and
        `index` is that of an index branch, which chooses."""
        raise NotImplementedError

    def index_loss(self, index: Index, q: Tensor, k: Tensor, pattern: Pattern, scale: float | None) -> Tensor:
        """The mean of `asterism.layers.index.index_loss` over the real tokens."""
        raise NotImplementedError

    def attend_source(
        self, q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, source: "Rows | None", **options: Any
    ) -> Tensor:
        """Queries of these rows, keys and values [B, Hkv, S, ...] of the rows of a source; None: all real, all here."""
        raise NotImplementedError

    def columns_of(self, places: Sequence[int]) -> list[int] | None:
        """Which tokens here stand at these places of whole rows; None where no row is so long."""
        raise NotImplementedError

    def attend_everything(self, q: Tensor, k: Tensor, v: Tensor, places: Sequence[int], **options: Any) -> Tensor:
        """What queries [B, H, columns_of(places), D] read of all real tokens of their rows."""
        raise NotImplementedError

    # --- other mixers ---

    def fourier(self, hidden: Tensor) -> Tensor:
        """[B, N, C] -> [B, N, C]: the transform of `asterism.kernels.fourier` of the real tokens; 0 for padding."""
        raise NotImplementedError

    def linear(self, hidden: Tensor, over_tokens: Tensor) -> Tensor:
        """[B, N, C] -> [B, N, C]: the real tokens of each row, mixed by the corner of a matrix [most, most]; 0 for
        padding. Raises ConfigurationError for rows on several devices."""
        raise NotImplementedError

    # --- what heads ask of whole rows, of hidden states [B, N, C] by column ---

    def first(self, hidden: Tensor) -> Tensor:
        """[B, C]: of the first real token of each row."""
        raise NotImplementedError

    def mean(self, hidden: Tensor) -> Tensor:
        """[B, C]: the mean over the real tokens of each row; 0 for a row without one."""
        raise NotImplementedError

    def everywhere(self, columns: Tensor) -> Tensor:
        """[B, all N, ...] from [B, N, ...]; differentiable."""
        raise NotImplementedError

    def total(self, part: Tensor) -> Tensor:
        """The whole of which the tokens here give a part, such as a count, or a loss divided by that of all."""
        raise NotImplementedError

    def once(self, compute: Callable[[], Tensor]) -> Tensor:
        """What everybody computes of whole rows, and counts once."""
        raise NotImplementedError

    def divisor(self, count: Callable[[], Tensor]) -> Tensor | None:
        """What a sum over the tokens here is divided by, of a count of them; None where their mean is that of all."""
        raise NotImplementedError

    def bind(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """`hidden`, of which `weight` has a gradient, if only 0, on everybody who adds gradients up."""
        raise NotImplementedError

    # --- shared ---

    def _goes_by_length(self, pattern: Pattern) -> bool:
        return self.lengths is not None and pattern.depends_on_length

    def _documents_under(self, pattern: Pattern, tokens: int) -> tuple[int, ...] | Forest | None:
        """Of what whole rows of so many tokens, laid end to end, are documents; None where each is a whole sequence."""
        if self.documents is not None:
            return self.documents
        if self.lengths is None or not pattern.depends_on_length or min(self.lengths) == tokens:
            return None
        return documents_of_rows(self.lengths, tokens)

    def _behind(self, front: int, here: int) -> Tensor:
        """`positions` behind so many learned tokens, of which `here` are on this device."""
        if not front:
            return self.positions
        behind = torch.where(self.positions < 0, -1, self.positions + front)
        places = torch.arange(here, device=behind.device).expand(len(behind), -1)
        return torch.cat([places, behind], dim=1)


def check_documents(lengths: Sequence[int] | None, documents: Sequence[int] | None) -> None:
    """Raises ConfigurationError for both."""
    if lengths is not None and documents is not None:
        raise ConfigurationError(
            "lengths-and-documents", "got both lengths of rows and lengths of documents: give one of them"
        )


def in_documents(pattern: Pattern, sizes: tuple[int, ...] | Forest) -> Pattern:
    """`documents(pattern, *sizes)`, or the pattern along the paths of trees."""
    if isinstance(sizes, Forest):
        return along_paths(sizes, pattern) if torch.compiler.is_compiling() else in_trees(pattern, sizes)
    return documents(pattern, *sizes) if torch.compiler.is_compiling() else one_after_another(pattern, sizes)
