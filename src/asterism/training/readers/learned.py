"""A scorer that learns which windows of a document to prefer, from BM25 and from the words of questions and windows.

    score of a window = beta * b + sum over its words w of x_w (u_w + a . B_w)
    a                 = sum over the question's words w of q_w A_w

b is the window's BM25 score among those of its document, in standard deviations from their mean. x_w = ln(1 + count),
normalised to a vector of length 1, and likewise q_w. Words are hashed into `BUCKETS` by their CRC-32, and A, B and u
have a row for each bucket. So a question can find a window that shares no word with it. This is a dual encoder of bags
of words with one linear layer, as in Huang et al. 2013, "Learning Deep Structured Semantic Models for Web Search using
Clickthrough Data". u describes the words of preferred windows, independently of the question.

It learns from documents whose preferred windows are known. AdaGrad minimises their -log softmax(scores), one document
at a time, until the loss on held-out documents stops falling. It begins as BM25, and remains BM25 if nothing better is
found. Everything is in float64 and a function of the lessons and the seed.
"""

import zlib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

from asterism.errors import CheckpointError
from asterism.files import read_tensors

SCORER = "scorer.safetensors"
"""The file in a model's folder."""
BUCKETS = 2**15
WIDTH = 32
"""Length of the vector of a word."""
PASSES = 12
"""Most passes over the lessons."""
PATIENCE = 2
"""Passes without improvement before training stops."""
STEP = 0.1
"""The learning rate of AdaGrad."""
APART = 10
"""Every tenth document is held out."""
FEWEST = 20
"""The fewest lessons from which a scorer is learned."""

Words = Mapping[str, int]
"""The words of a text, counted."""
_SHAPES = {"asked": (BUCKETS, WIDTH), "read": (BUCKETS, WIDTH), "alone": (BUCKETS,), "beta": (1,)}


@dataclass(frozen=True, eq=False)
class Bags:
    """Words of several texts as numbers, text after text.

    buckets  int64 [M]: those of each text
    firsts   int64 [texts]: where each text begins
    values   float64 [M]: ln(1 + count) of each, those of a text a vector of length 1
    """

    buckets: torch.Tensor
    firsts: torch.Tensor
    values: torch.Tensor

    @classmethod
    def of(cls, texts: Sequence[Words]) -> "Bags":
        """Of words counted."""
        counts = [_buckets(text) for text in texts]
        values = [np.log1p(np.array(list(one.values()), dtype=np.float64)) for one in counts]
        firsts = np.cumsum([0, *map(len, counts[:-1])])
        return cls(
            torch.tensor([bucket for one in counts for bucket in one], dtype=torch.int64),
            torch.from_numpy(firsts),
            torch.from_numpy(np.concatenate([one / (np.linalg.norm(one) or 1.0) for one in values])),
        )

    def sums(self, weights: torch.Tensor) -> torch.Tensor:
        """Of each text the sum of its words' rows of `weights`, float64 [BUCKETS, width]: float64 [texts, width]."""
        return functional.embedding_bag(
            self.buckets, weights, self.firsts, per_sample_weights=self.values, mode="sum", sparse=True
        )


@dataclass(frozen=True, eq=False)
class Lesson:
    """A document whose preferred windows are known.

    question, windows  what is asked (of one text), and the windows, as numbers
    bm25               float64 [windows]: b
    wanted             float64 [windows]: how much each is wanted, 1 together
    """

    question: Bags
    windows: Bags
    bm25: torch.Tensor
    wanted: torch.Tensor

    @classmethod
    def of(cls, question: Words | None, windows: Bags, bm25: Sequence[float], wanted: Sequence[float]) -> "Lesson":
        """Make a lesson of BM25's raw scores and of preferences in any unit, at least one of them above 0."""
        scores, share = torch.tensor(bm25, dtype=torch.float64), torch.tensor(wanted, dtype=torch.float64)
        spread = float(scores.std(correction=0)) or 1.0
        return cls(Bags.of([question or {}]), windows, (scores - scores.mean()) / spread, share / share.sum())


class Scorer(nn.Module):
    """The learned weights, float64: A in `asked` [BUCKETS, WIDTH], B and u side by side in `read` [BUCKETS, WIDTH + 1],
    and `beta` [1]."""

    def __init__(self, asked: torch.Tensor, read: torch.Tensor, alone: torch.Tensor, beta: torch.Tensor) -> None:
        """Of A, B, u [BUCKETS] and beta, in any dtype."""
        super().__init__()
        self.asked = nn.Parameter(asked.double())
        self.read = nn.Parameter(torch.cat([read, alone[:, None]], dim=1).double())
        self.beta = nn.Parameter(beta.double())

    @classmethod
    def untaught(cls, seed: int) -> "Scorer":
        """A scorer that ranks nearly as BM25 does: a word slightly matches itself, and no other."""
        draw = np.random.Generator(np.random.Philox(seed))
        words = torch.from_numpy(draw.normal(0, 0.05, (BUCKETS, WIDTH)).astype(np.float32))
        return cls(words, words, torch.zeros(BUCKETS), torch.ones(1))

    @classmethod
    def load(cls, folder: Path) -> "Scorer":
        """Load the scorer in a model's folder. Raises CheckpointError if it is missing, damaged, or not a scorer."""
        tensors = read_tensors(folder / SCORER)
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        if shapes != _SHAPES:
            raise CheckpointError(
                "damaged-scorer", f"{folder / SCORER} is not a scorer: it holds {shapes}, but {_SHAPES} are needed"
            )
        return cls(**tensors)

    def save(self, folder: Path) -> None:
        """Write it into a model's folder, in float32."""
        read, alone = self.read[:, :WIDTH], self.read[:, WIDTH]
        parts = {"asked": self.asked, "read": read, "alone": alone, "beta": self.beta}
        save_file({name: one.detach().float().contiguous() for name, one in parts.items()}, folder / SCORER)

    def forward(self, lesson: Lesson) -> torch.Tensor:
        """The score of each window of a lesson: float64 [windows]."""
        asked = torch.cat([lesson.question.sums(self.asked)[0], self.beta.new_ones(1)])  # the 1 is what u is times
        found: torch.Tensor = self.beta * lesson.bm25 + (lesson.windows.sums(self.read) * asked).sum(1)
        return found

    @torch.no_grad()
    def scores(self, question: Words | None, windows: Sequence[Words], bm25: Sequence[float]) -> list[float]:
        """The score of each window, given its BM25 score. Without a question, the windows' words alone decide."""
        found = self(Lesson.of(question, Bags.of(windows), bm25, [1.0] * len(windows)))
        return [round(score, 6) for score in found.tolist()]  # differences in the last bits decide nothing

    def round_(self) -> None:
        """Round the weights as saving and loading does. Such a scorer learns no more."""
        for one in self.parameters():
            one.requires_grad_(False).copy_(one.float())

    def loss(self, lesson: Lesson) -> torch.Tensor:
        """-log softmax(scores) of the preferred windows: a float64 scalar."""
        return -(lesson.wanted * self(lesson).log_softmax(0)).sum()

    def is_right(self, lesson: Lesson) -> bool:
        """Whether its best window is a preferred one."""
        return bool(lesson.wanted[self(lesson).argmax()] > 0)


def learn(lessons: Sequence[Lesson], documents: Sequence[str], seed: int) -> tuple[Scorer, dict[str, float]]:
    """Learn a scorer from `FEWEST` lessons or more. Also returns how often the best window is a preferred one, by
    `scorer` and by `bm25`, among the `lessons` that were held out.

    `documents` gives the document of each lesson. All lessons of a document are held out together, or none.
    """
    numbers = {one: number for number, one in enumerate(dict.fromkeys(documents))}
    apart = [one for one, document in zip(lessons, documents, strict=True) if numbers[document] % APART == APART - 1]
    taught = [one for one, document in zip(lessons, documents, strict=True) if numbers[document] % APART != APART - 1]
    if not apart or not taught:  # fewer documents than APART: the last lessons are held out
        held = max(1, len(lessons) // APART)
        taught, apart = list(lessons[:-held]), list(lessons[-held:])
    scorer = Scorer.untaught(seed)
    adagrad = torch.optim.Adagrad(scorer.parameters(), lr=STEP, initial_accumulator_value=1e-2, eps=0)
    begun = best = deepcopy(scorer)
    least, idle = _mean_loss(scorer, apart), 0
    for number in range(PASSES):
        order = np.random.Generator(np.random.Philox(key=[seed, number + 1])).permutation(len(taught))
        for at in order.tolist():
            adagrad.zero_grad()
            scorer.loss(taught[at]).backward()
            with torch.sparse.check_sparse_tensor_invariants(enable=False):  # else torch warns that it checks nothing
                adagrad.step()
        loss = _mean_loss(scorer, apart)
        if loss < least:
            best, least, idle = deepcopy(scorer), loss, 0
        else:
            idle += 1
            if idle == PATIENCE:
                break
    best.round_()
    right = {name: sum(map(one.is_right, apart)) / len(apart) for name, one in (("scorer", best), ("bm25", begun))}
    return best, {"lessons": len(apart), **right}


@torch.no_grad()
def _mean_loss(scorer: Scorer, lessons: Sequence[Lesson]) -> float:
    return sum(float(scorer.loss(one)) for one in lessons) / len(lessons)


def _buckets(text: Words) -> dict[int, int]:
    """The words of a text, counted, by bucket."""
    found: dict[int, int] = {}
    for word, count in text.items():
        found[_bucket(word)] = found.get(_bucket(word), 0) + count
    return found


def _bucket(word: str) -> int:
    return zlib.crc32(word.encode("utf-8", "surrogatepass")) % BUCKETS
