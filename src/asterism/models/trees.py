"""Sequences with common beginnings, and drafts of what may follow a prompt, as one row of tokens that form a tree.

A beginning that several sequences share stands in the row once. The row is followed along the paths of its tree
(`asterism.patterns.tree`), with positions that count along the path, so each sequence gets the logits that it gets
alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from asterism.errors import ConfigurationError, shown
from asterism.labels import IGNORED, shifted
from asterism.patterns import Pattern
from asterism.patterns.forest import Forest
from asterism.patterns.intervals import Integers
from asterism.patterns.tree import Tree, read_parents

Tokens = Sequence[int] | Tensor | np.ndarray


@dataclass(frozen=True, eq=False)
class PackedTree:
    """One row of N tokens that form a tree, and the S sequences, of at most L tokens each, that are its paths.

    input_ids     int64 [1, N]: the tokens, each behind its parent
    position_ids  int64 [1, N]: how many ancestors each token has, its position in every sequence that it belongs to
    parents       int64 [N]: the column of the token before, -1 for the first one of a sequence
    index         int64 [S, L]: the columns of each sequence's tokens, so that `logits[0, index]` [S, L, vocabulary] are
                  those of the sequences; 0 behind the end of a sequence
    labels        int64 [S, L]: the token that follows in the sequence; -100 for the last one and behind it
    """

    input_ids: Tensor
    position_ids: Tensor
    parents: Tensor
    index: Tensor
    labels: Tensor

    def pattern(self, along: str | Pattern = "causal()") -> str:
        """The text of a pattern for this row: of its ancestors, a token reads those that `along` allows by their
        distance along the path.

        For `use_pattern`, `along` may contain `native`: each layer's own window or chunks, counted along the path.
        """
        inner = along if isinstance(along, str) else along.text
        forest = Forest.of_parents(read_parents(self.parents))
        return f"{Tree.keyword}(parents={forest.text!r}, size={forest.size}, pattern={inner})"


def tree_of(sequences: Sequence[Tokens]) -> PackedTree:
    """Lay sequences into one row in which each common beginning stands once.

    `sequences` are lists of whole numbers or integer tensors or arrays [tokens], none of them empty. Sequences that
    have no token in common from the beginning are trees of their own in the row. The tokens are in depth-first order,
    branches in the order of their tokens; equal sequences share all columns.

    >>> packed = tree_of([[5, 6, 7], [5, 6, 8, 9]])
    >>> packed.input_ids.tolist(), packed.position_ids.tolist(), packed.parents.tolist()
    ([[5, 6, 7, 8, 9]], [[0, 1, 2, 2, 3]], [-1, 0, 1, 1, 3])
    >>> packed.index.tolist(), packed.labels.tolist()
    ([[0, 1, 2, 0], [0, 1, 3, 4]], [[6, 7, -100, -100], [6, 8, 9, -100]])

    Raises ConfigurationError for no sequence, an empty one, and anything but whole numbers.
    """
    read = [_tokens(one, f"sequence {number}") for number, one in enumerate(sequences)]
    if not read:
        raise ConfigurationError("tree-of-nothing", "tree_of needs at least one sequence, got none")
    index = np.zeros((len(read), max(map(len, read))), np.int64)
    columns: list[Integers] = []
    parents: list[Integers] = []
    count, before = 0, np.zeros(0, np.int64)
    path = np.zeros(0, np.int64)
    for number in sorted(range(len(read)), key=lambda place: read[place].tolist()):
        own = read[number]
        common = _common(before, own)
        new = np.arange(count, count + len(own) - common)
        # In sorted order the longest beginning that an earlier sequence shares is that of the one just before.
        path = np.concatenate([path[:common], new])
        parents.append(np.concatenate([[-1], path])[common : len(own)])
        columns.append(own[common:])
        index[number, : len(own)] = path
        count, before = count + len(new), own
    lengths = np.array([len(own) for own in read])
    return _packed(np.concatenate(columns), np.concatenate(parents), index, lengths)


def draft_tree(prompt: Tokens, drafts: Tokens, parents: Sequence[int] | Tensor | np.ndarray) -> PackedTree:
    """Lay a prompt and a tree of drafts behind it into one row, to check all drafts in one pass.

    `prompt` [P] and `drafts` [D] are whole numbers, in a list or of any integer dtype. `parents`, the same [D], are the
    parent of each draft among the drafts, smaller than its own number, or -1 for one that follows the prompt. Column
    P + i holds draft i. The sequences of the result are the paths to the drafts that no other follows, in the order of
    these; `labels` are then the drafts that the logits have to confirm.

    >>> packed = draft_tree([5, 6], [7, 8, 9], [-1, -1, 0])
    >>> packed.input_ids.tolist(), packed.parents.tolist(), packed.index.tolist()
    ([[5, 6, 7, 8, 9]], [-1, 0, 1, 1, 2], [[0, 1, 3, 0], [0, 1, 2, 4]])

    Raises ConfigurationError for an empty prompt, anything but whole numbers, and another number of parents;
    PatternError for parents that do not come before their draft.
    """
    head, tail = _tokens(prompt, "prompt"), _tokens(drafts, "drafts")
    above = read_parents(parents)
    if len(above) != len(tail):
        raise ConfigurationError(
            "draft-parents", f"draft_tree needs a parent for each of the {len(tail)} drafts, got {len(above)}"
        )
    columns = np.concatenate([np.arange(-1, len(head) - 1), above + len(head)])
    columns[len(head) :][above < 0] = len(head) - 1
    row = np.concatenate([head, tail])
    leaves = np.setdiff1d(np.arange(len(head), len(row)), columns)
    depth = Forest.of_parents(columns).depth(leaves)
    index = np.zeros((len(leaves), int(depth.max()) + 1), np.int64)
    here = leaves.copy()
    while (rest := np.flatnonzero(here >= 0)).size:
        index[rest, depth[rest]] = here[rest]
        here[rest], depth[rest] = columns[here[rest]], depth[rest] - 1
    return _packed(row, columns, index, Forest.of_parents(columns).depth(leaves) + 1)


def _packed(tokens: Integers, parents: Integers, index: Integers, lengths: Integers) -> PackedTree:
    """Sequences of `lengths` [S], each a row of columns in `index` [S, longest]. Each token predicts the next."""
    depth = Forest.of_parents(parents).depth(np.arange(len(parents)))
    read = np.where(np.arange(index.shape[1]) < lengths[:, None], tokens[index], IGNORED)
    row, positions, above, places, wanted = map(torch.from_numpy, (tokens, depth, parents, index, read))
    return PackedTree(row[None], positions[None], above, places, shifted(wanted))


def _common(one: Integers, other: Integers) -> int:
    """How many tokens two sequences have in common from the beginning."""
    least = min(len(one), len(other))
    differ = np.flatnonzero(one[:least] != other[:least])[:1].tolist()
    return differ[0] if differ else least


def _tokens(given: Tokens, name: str) -> Integers:
    try:
        found = np.asarray(given.detach().cpu() if isinstance(given, Tensor) else given)
    except (TypeError, ValueError, RuntimeError):  # of unequal lengths; a tensor without numbers
        found = np.empty(0, object)
    whole = found.ndim == 1 and len(found) and np.issubdtype(found.dtype, np.integer)
    if not whole or (found.dtype.kind == "u" and found.astype(np.int64).min() < 0):
        raise ConfigurationError(
            "tree-tokens-form",
            f"{name} of a tree must be whole numbers [tokens], at least one, got {shown(given)}",
        )
    return found.astype(np.int64)
