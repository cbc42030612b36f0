"""What selected(...) means, by loops in float64: which blocks are chosen, who reads whom, and attention over that.

Of the library only patterns without selected(...) are asked, for their dense masks.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from asterism.patterns import parse

CLOSE = 1e-9
"""Scores closer than this may be rounded to either order."""


@dataclass(frozen=True)
class Case:
    """A pattern with selected(...), which stands at {S} in `rule`, and what is given with it; all of float64."""

    rule: str
    q: Tensor
    k: Tensor
    v: Tensor
    block: int = 16
    topk: int | None = 2
    score: str = "mean"
    query_block: int = 1
    first: int = 1
    local: int = 1
    key_mask: Tensor | None = None
    query_offset: int | None = None
    scores: Tensor | None = None
    scale: float | None = None
    mass: float | None = None

    @property
    def text(self) -> str:
        numbers = f"query_block={self.query_block}, first={self.first}, local={self.local}"
        budget = f"topk={self.topk}" if self.mass is None else f"mass={self.mass}"
        return self.rule.replace("{S}", f"selected({self.block}, {budget}, score='{self.score}', {numbers})")

    @cached_property
    def offset(self) -> int:
        return self.k.shape[2] - self.q.shape[2] if self.query_offset is None else self.query_offset

    def _dense(self, static: str) -> np.ndarray:
        pattern = parse(self.rule.replace("{S}", f"({static})"))
        return np.asarray(pattern.dense(self.q.shape[2], self.k.shape[2], self.offset))[0]

    @cached_property
    def always(self) -> np.ndarray:
        """What is read whatever is chosen, [Nq, Nk]."""
        kept = f"global_keys({tuple(range(self.first))}, block={self.block})"
        near = f" | blocks({self.block}, left={self.local - 1}, right={self.local - 1})" if self.local else ""
        return self._dense(kept + near)

    @cached_property
    def most(self) -> np.ndarray:
        """What is read if everything is chosen."""
        return self._dense("dense()")

    @cached_property
    def is_causal(self) -> bool:
        return parse(self.rule.replace("{S}", "(dense())")).is_causal

    @cached_property
    def kept(self) -> np.ndarray:
        """The keys that the mask leaves, [B, Nk]."""
        return np.ones((len(self.q), self.k.shape[2]), bool) if self.key_mask is None else self.key_mask.numpy()

    @cached_property
    def blocks(self) -> list[np.ndarray]:
        return np.split(np.arange(self.k.shape[2]), range(self.block, self.k.shape[2], self.block))

    def row_of(self, query: int) -> int:
        return (self.offset + query) // self.query_block - self.offset // self.query_block

    @cached_property
    def groups(self) -> list[list[int]]:
        """The queries of each row of the choice."""
        queries = range(self.q.shape[2])
        return [[i for i in queries if self.row_of(i) == row] for row in range(self.row_of(queries[-1]) + 1)]

    def forced(self, query: int, block: int) -> bool:
        near = abs((self.offset + query) // self.block - block) < self.local
        return bool((block < self.first or near) and self.most[query, self.blocks[block]].any())

    def candidate(self, batch: int, query: int, block: int) -> bool:
        keys = self.blocks[block]
        if len(keys) < self.block and self.is_causal:
            return False  # it is still to be filled
        readable = self.most[query, keys].all() and not self.always[query, keys].all()
        return bool(readable and self.kept[batch, keys].any())

    def score_of(self, batch: int, head: int, query: int, block: int) -> float:
        """Of one query, by all query heads of a key head."""
        group = self.q.shape[1] // self.k.shape[1]
        keys = self.blocks[block]
        k = self.k[batch, head].numpy()[keys[self.kept[batch, keys]]]
        score = {
            "mean": lambda q: q @ k.mean(0),
            "max": lambda q: max(q @ key for key in k),
            "minmax": lambda q: np.maximum(q * k.min(0), q * k.max(0)).sum(),
        }[self.score]
        return float(sum(score(q) for q in self.q[batch, head * group : (head + 1) * group, query].numpy()))


def antidiagonals(case: Case, batch: int, head: int, row: int) -> dict[int, float]:
    """What the groups of 8 queries of a row give to blocks: a softmax over groups of 8 keys, whose products are means
    of 8 pairs, the first key with the last query."""
    group, width = case.q.shape[1] // case.k.shape[1], case.q.shape[3]
    found: dict[int, float] = {}
    places = sorted({(case.offset + i) // 8 for i in case.groups[row]})
    for place in places:
        members = [i for i in case.groups[row] if (case.offset + i) // 8 == place]
        open_ = [j for j in range(len(case.blocks)) if all(case.candidate(batch, i, j) for i in members)]
        pieces = [
            (j, keys)
            for j in open_
            for keys in np.split(case.blocks[j], range(8, len(case.blocks[j]), 8))
            if case.kept[batch, keys].any()
        ]
        for member in range(head * group, (head + 1) * group):
            logits = []
            for _, keys in pieces:
                total = 0.0
                for at, key in enumerate(keys):
                    query = place * 8 + 7 - at - case.offset
                    if query in members and case.kept[batch, key]:
                        total += float(case.q[batch, member, query] @ case.k[batch, head, key])
                logits.append(total / 8 / math.sqrt(width))
            weights = np.exp(np.array(logits) - max(logits, default=0.0))
            for (j, _), weight in zip(pieces, weights / weights.sum() if len(weights) else weights, strict=True):
                found[j] = found.get(j, 0.0) + float(weight) / group
    return found


def estimated(case: Case, found: dict[int, float]) -> dict[int, float]:
    """The shares of the attention that scores promise."""
    if case.score in ("antidiagonal", "given"):
        held = {j: max(0.0, score) for j, score in found.items()}
    else:
        group, width = case.q.shape[1] // case.k.shape[1], case.q.shape[3]
        top = max(found.values(), default=0.0)
        held = {j: math.exp((score - top) / math.sqrt(width) / group) for j, score in found.items()}
    whole = sum(held.values())
    return {j: one / whole if whole else 0.0 for j, one in held.items()}


@dataclass(frozen=True)
class Told:
    """The blocks of one row of the choice. `close`: rounding may decide otherwise; `tied`: equal scores met there."""

    blocks: list[int]
    close: bool
    tied: bool


def choose(case: Case, batch: int, head: int, row: int) -> Told:
    members, numbers = case.groups[row], range(len(case.blocks))
    forced = [j for j in numbers if any(case.forced(i, j) for i in members)]
    found = {}
    given = antidiagonals(case, batch, head, row) if case.score == "antidiagonal" else {}
    for j in numbers:
        asking = [i for i in members if case.candidate(batch, i, j)]
        if j in forced or not asking:
            continue
        if case.score == "antidiagonal":
            found[j] = given.get(j, 0.0)
        elif case.scores is not None:
            found[j] = float(case.scores[batch, head, row, j])
        else:
            found[j] = sum(case.score_of(batch, head, i, j) for i in asking) / len(asking)
    order = sorted(found, key=lambda j: (-found[j], j))
    if case.topk is not None:
        count = max(0, case.topk - len(forced))
    else:
        held, before, count, near = estimated(case, found), 0.0, 0, False
        for j in order:
            near = near or abs(before - case.mass) < CLOSE
            if before >= case.mass:
                break
            before, count = before + held[j], count + 1
        gaps = [found[a] - found[b] for a, b in zip(order, order[1:], strict=False)]
        return Told(sorted(forced + order[:count]), near or any(gap < CLOSE for gap in gaps[:count]), False)
    gap = found[order[count - 1]] - found[order[count]] if 0 < count < len(order) else math.inf
    return Told(sorted(forced + order[:count]), gap < CLOSE, gap == 0)


def pairs(case: Case, chosen: list[list[list[list[int]]]]) -> Tensor:
    """bool [B, H, Nq, Nk]: who reads whom, by the blocks of each batch, head of the choice and row."""
    batch, heads, n_queries, _ = case.q.shape
    read = np.zeros((batch, heads, n_queries, case.k.shape[2]), bool)
    for b, h, i in np.ndindex(read.shape[:3]):
        blocks = chosen[b][h // (heads // len(chosen[b]))][case.row_of(i)]
        more = np.isin(np.arange(read.shape[3]) // case.block, blocks)
        read[b, h, i] = case.kept[b] & (case.always[i] | case.most[i] & more)
    return torch.from_numpy(read)


def attention(read: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float | None = None) -> tuple[Tensor, Tensor]:
    """out and lse; differentiable."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    logits = (q @ k.transpose(2, 3)) * (q.shape[-1] ** -0.5 if scale is None else scale)
    some = read.any(3)
    kept = torch.where(some[..., None], logits.masked_fill(~read, -math.inf), 0.0)
    out = torch.where(some[..., None], torch.softmax(kept, 3) @ v, 0.0)
    return out, torch.where(some, torch.logsumexp(kept, 3), -math.inf)
