"""Trees over the tokens of a row, held by their chains: what a walk up the parents finds, for many tokens at once.

A chain is a run of tokens in which each is the parent of the next; a new chain begins wherever the parent is another
token, or none. A prompt with 64 answers is 65 chains, however long they are, so all that is stored and computed here
grows with the number of chains. Nothing recurses, and a chain of ten million tokens is one entry.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from asterism.memo import cached_property
from asterism.patterns.intervals import Integers

_MOST_LEVELS = 64
"""The most chains that a path is followed through; of what lies above, the hull is taken."""


class Path(NamedTuple):
    """The ancestors of some tokens, and these themselves, as segments of chains: int64 [segments] each.

    of     whose ancestors they are: a place in the list of tokens
    first  the first token of the segment
    stop   one past its last token
    depth  how many ancestors the first token has; -1 for a hull, [0, stop), which also holds tokens that are not
           ancestors
    """

    of: Integers
    first: Integers
    stop: Integers
    depth: Integers


class _Joined(NamedTuple):
    """The chains sorted by the token that they hang from, and in this order: int64 [chains] each, the sum [chains + 1].

    order  numbers of chains
    at     the parents of their first tokens, ascending
    below  how many tokens the chains before hold, with all that hangs from them
    """

    order: Integers
    at: Integers
    below: Integers


@dataclass(frozen=True, eq=False)
class Forest:
    """Trees over `size` tokens, each token behind its parent.

    starts  int64 [chains], ascending from 0: the first token of each chain
    above   int64 [chains]: the parent of that token, -1 for a root
    """

    starts: Integers
    above: Integers
    size: int

    @classmethod
    def of_parents(cls, parents: Integers) -> "Forest":
        """From the parent of each token, int64 [tokens], each -1 or smaller than the token's own number."""
        starts = np.flatnonzero(parents != np.arange(-1, len(parents) - 1))
        # Token 0 has no token before it, so that its parent, -1, does not tell it from the inside of a chain.
        starts = np.append(0, starts[starts > 0])
        return cls(starts, parents[starts], len(parents))

    def parents(self) -> Integers:
        """The parent of each token, int64 [tokens]; -1 for a root."""
        found = np.arange(-1, self.size - 1)
        found[self.starts] = self.above
        return found

    # --- many tokens at once: int64 [...], each below `size`, -> int64 [...] ------------------------------------------

    def chain(self, tokens: Integers) -> Integers:
        """The chain of each token."""
        return np.searchsorted(self.starts, tokens, side="right") - 1

    def chain_start(self, tokens: Integers) -> Integers:
        """The first token of each token's chain."""
        return self.starts[self.chain(tokens)]

    def depth(self, tokens: Integers) -> Integers:
        """How many ancestors each token has."""
        chain = self.chain(tokens)
        return self._depths[chain] + tokens - self.starts[chain]

    def number(self, tokens: Integers) -> Integers:
        """Where each token stands in depth-first order, in which children follow each other as they do in the row."""
        if self.is_depth_first:
            return tokens
        chain = self.chain(tokens)
        return self._numbers[chain] + tokens - self.starts[chain]

    def count(self, tokens: Integers) -> Integers:
        """How many tokens each one's subtree has, itself included: descendants have the numbers that follow its own."""
        end = self._ends[self.chain(tokens)]
        at, below = self._joined.at, self._joined.below
        # The rest of the chain, and what hangs from it.
        return end - tokens + below[np.searchsorted(at, end)] - below[np.searchsorted(at, tokens)]

    def nearest_common(self, earlier: Integers, later: Integers) -> Integers:
        """The nearest token that is an ancestor of both or one of them itself; -1 in different trees.

        Only in depth-first order, and for earlier <= later.
        """
        # In that order it is the least parent of the tokens after `earlier` up to `later`. Of two branches that hang
        # from token 3, the later one's first token has the parent 3, and all others have parents within a branch.
        first, past = self.chain(earlier) + 1, self.chain(later) + 1
        return np.minimum(earlier, self._least_above(first, past))

    def paths(self, tokens: Integers) -> Path:
        """The ancestors of each token of int64 [tokens], and itself."""
        of, here = np.arange(len(tokens)), tokens
        found = []
        for level in range(_MOST_LEVELS + 1):
            chain = self.chain(here)
            is_hull = level == _MOST_LEVELS
            first = np.zeros_like(here) if is_hull else self.starts[chain]
            depth = np.full_like(here, -1) if is_hull else self._depths[chain]
            found.append((of, first, here + 1, depth))
            goes_up = self.above[chain] >= 0
            of, here = of[goes_up], self.above[chain[goes_up]]
            if not len(here):
                break
        return Path(*(np.concatenate(column) for column in zip(*found, strict=True)))

    # --- the whole ----------------------------------------------------------------------------------------------------

    @cached_property
    def is_depth_first(self) -> bool:
        """Whether each subtree is a run of tokens."""
        return bool((self._numbers == self.starts).all())

    @cached_property
    def height(self) -> int:
        """The length of the longest path from a root, in tokens."""
        return int((self._depths + self._ends - self.starts).max())

    @cached_property
    def renumbered(self) -> "Forest":
        """The same trees, over tokens in depth-first order."""
        order = np.argsort(self._numbers)
        above = self.above[order]
        known = np.where(above < 0, -1, self.number(np.maximum(above, 0)))
        return Forest(self._numbers[order], known, self.size)

    @cached_property
    def text(self) -> str:
        """Where chains begin, and the parents there: "8:3;12:3" for two branches that hang from token 3."""
        pairs = zip(self.starts[1:].tolist(), self.above[1:].tolist(), strict=True)
        return ";".join(f"{start}:{above}" for start, above in pairs)

    # --- by chain: int64 [chains] -------------------------------------------------------------------------------------

    @cached_property
    def _ends(self) -> Integers:
        return np.append(self.starts[1:], self.size)

    @cached_property
    def _chain_above(self) -> Integers:
        """The chain that each one hangs from; -1 for that of a root."""
        return np.where(self.above < 0, -1, self.chain(np.maximum(self.above, 0)))

    @cached_property
    def _depths(self) -> Integers:
        """How many ancestors the first token of each chain has."""
        chains = self._chain_above
        # From the first token of the chain above to this one's: one more than from there to the parent.
        step = np.where(chains < 0, 0, self.above - self.starts[np.maximum(chains, 0)] + 1)
        return _from_above(chains, step)

    @cached_property
    def _totals(self) -> Integers:
        """How many tokens each chain has, with all that hangs from it."""
        totals, chains = (self._ends - self.starts).tolist(), self._chain_above.tolist()
        for chain in range(len(totals) - 1, -1, -1):
            if chains[chain] >= 0:
                totals[chains[chain]] += totals[chain]
        return np.array(totals, np.int64)

    @cached_property
    def _joined(self) -> _Joined:
        order = np.argsort(self.above, kind="stable")
        return _Joined(order, self.above[order], np.append(0, np.cumsum(self._totals[order])))

    @cached_property
    def _numbers(self) -> Integers:
        """The depth-first number of the first token of each chain."""
        order, at, below = self._joined
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        # The chains that hang from one token come last in its subtree, one after another: of a token with 9 below it in
        # chains of 4 and 5, these begin 1 and 5 after the end of the rest of its subtree.
        rest = below[np.searchsorted(at, self.above, side="right")] - below[place]
        known = np.maximum(self.above, 0)
        of_parent = np.where(self.above < 0, self.size, self.count(known))
        chains = self._chain_above
        inside = np.where(chains < 0, 0, self.above - self.starts[np.maximum(chains, 0)])
        return _from_above(chains, inside + of_parent - rest)

    @cached_property
    def _least(self) -> list[NDArray[np.int32]]:
        """Level l holds the least of 2**l entries of `above` from each place on."""
        levels = [self.above.astype(np.int32)]  # half of the memory: a tree of many chains has many levels
        while (half := 2 ** (len(levels) - 1)) * 2 <= len(self.above):
            levels.append(np.minimum(levels[-1][:-half], levels[-1][half:]))
        return levels

    def _least_above(self, first: Integers, past: Integers) -> Integers:
        """The least entry of `above` in [first, past), int64 [...] each; a great number where that is empty."""
        found = np.full(first.shape, self.size)
        count = past - first
        # Two stretches of a power of two cover any stretch: 5 entries from place 3 are 3 to 6 and 4 to 7.
        level = np.where(count > 0, np.frexp(np.maximum(count, 1).astype(np.float64))[1] - 1, -1)
        for number in np.unique(level[level >= 0]).tolist():
            own = np.flatnonzero(level == number)
            values = self._least[number]
            found.flat[own] = np.minimum(values[first.flat[own]], values[past.flat[own] - 2**number])
        return found


def _from_above(chains: Integers, step: Integers) -> Integers:
    """The sum of the steps of each chain and all chains above it, int64 [chains] each."""
    sums = step.tolist()
    for chain, above in enumerate(chains.tolist()):
        if above >= 0:
            sums[chain] += sums[above]
    return np.array(sums, np.int64)
