"""The local attention of a rank: the options of a call, and renumbering where terms depend on it.

Tensors keep the dtype in which they are given; indices are int64.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from asterism import kernels
from asterism.compiler.devices import Communication
from asterism.kernels.merging import Result, merged, unread
from asterism.parallel.context import SequenceParallel
from asterism.parallel.exchange import Flight, Hop, begin, finish, together
from asterism.parallel.indices import TokenIndices
from asterism.parallel.key_marks import Marks
from asterism.parallel.local import Local
from asterism.parallel.renumbering import Stretch, renumbered
from asterism.patterns import Pattern


class KernelQuestion(NamedTuple):
    """What a kernel is asked: q, k and v, the pattern between them, and options of `kernels.attend`."""

    tensors: tuple[Tensor, Tensor, Tensor]
    rule: Pattern
    options: dict[str, Any]


Questions = Iterator[tuple[TokenIndices, Iterator[KernelQuestion]]]
"""For indices of queries, disjoint sets of keys one after another."""


@dataclass(frozen=True, eq=False)
class Call:
    """What a rank is asked.

    context   the ranks that are asked together
    plan      who sends what to whom, equal on all of them
    q, k, v   its shards, of one dtype: [B, H, Nq, D], [B, Hkv, Nk, D] and [B, Hkv, Nk, Dv]
    marks     of its keys
    options   of `kernels.attend`, by name, for every local computation: scale, implementation, terms
    received  all floating tensors [B, heads, rows, ...] that have come from other ranks, whose gradients go back
    """

    context: SequenceParallel
    plan: Communication
    q: Tensor
    k: Tensor
    v: Tensor
    marks: Marks
    options: dict[str, Any]
    received: list[Tensor] = field(default_factory=list)

    @property
    def rank(self) -> int:
        return self.context.rank

    def send(self, *pieces: tuple[Tensor, Hop]) -> tuple[Flight, tuple[Tensor, ...]]:
        """Sends of each tensor [B, heads, tokens, ...] the rows of its hop; what is under way, and the tensors for who
        reads them from now on."""
        return begin(self.context.group, pieces)

    def receive(self, flight: Flight) -> list[tuple[Tensor, ...]]:
        """What came, by tensor and rank."""
        found = finish(flight)
        self.received.extend(x for parcels in found for x in parcels if x.is_floating_point())
        return found

    def exchange(self, *pieces: tuple[Tensor, Hop]) -> tuple[Tensor, ...]:
        """What comes, waited for at once, of each tensor the rows from all ranks."""
        flight, _ = self.send(*pieces)
        return tuple(together(x) for x in self.receive(flight))

    def attend(self, local: Local, q: Tensor, k: Tensor, v: Tensor, marks: Marks, own: Tensor | None) -> Result:
        """The results of some queries, whose segments are `own`, against some keys that are both here."""
        if local.is_empty or not len(q):
            return unread(q, k, v)
        found = []
        for _, questions in self.questions(local, q, k, v, marks, own):
            answers = (kernels.attend(*x.tensors, x.rule, return_lse=True, **x.options) for x in questions)
            found.append(merged([Result(*answer) for answer in answers]))
        return Result(*(torch.cat(x, dim=2) if len(x) > 1 else x[0] for x in zip(*found, strict=True)))

    def questions(self, local: Local, q: Tensor, k: Tensor, v: Tensor, marks: Marks, own: Tensor | None) -> Questions:
        """What kernels are asked: for indices of neighbouring queries, disjoint sets of keys one after another."""
        terms, with_segments = self.options["terms"], marks.segments is not None
        by_distance = terms is not None and (terms.bias is not None or terms.relative is not None)
        if not (by_distance or with_segments):
            at_once = KernelQuestion((q, k, v), local.rule, self.options | {"key_mask": marks.key_mask})
            yield TokenIndices.first(q.shape[2]), iter([at_once])
            return
        for block in local.derived(renumbered, by_distance, with_segments):
            segments = None if own is None else block.queries.take(own[:, None])[:, 0]
            asked = block.queries.take(q)
            yield block.queries, (self._laid(x, asked, k, v, marks, segments) for x in block.stretches)

    def _laid(self, keys: Stretch, q: Tensor, k: Tensor, v: Tensor, marks: Marks, own: Tensor | None) -> KernelQuestion:
        """Neighbouring queries and some keys, laid as these say."""
        k, v, marks = keys.chosen.take(k), keys.chosen.take(v), marks.take(keys.chosen)
        if keys.size > len(keys.at):
            marks = marks._replace(key_mask=marks.readable(len(k), len(keys.at), k.device))
            k, v = (keys.at.put(x.new_zeros((*x.shape[:2], keys.size, x.shape[3])), x) for x in (k, v))
            marks = Marks(*(None if x is None else _laid_out(x, keys) for x in marks))
        segments = marks.segments
        if segments is not None and own is not None:
            here = TokenIndices(np.arange(keys.offset, keys.offset + q.shape[2]))
            segments = here.put(segments[:, None], own[:, None])[:, 0]
        more = {"key_mask": marks.key_mask, "segments": segments, "query_offset": keys.offset}
        return KernelQuestion((q, k, v), keys.rule, self.options | more)


def _laid_out(mark: Tensor, keys: Stretch) -> Tensor:
    """[B, keys] as [B, size], with 0 or False in the gaps."""
    return keys.at.put(mark.new_zeros((len(mark), 1, keys.size)), mark[:, None])[:, 0]
