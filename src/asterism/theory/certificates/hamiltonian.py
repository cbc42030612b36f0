"""A Hamiltonian path through a pattern's graph: an order of all tokens in which each reads the one before it.

Condition 2 of Assumption 1 in Yun 2020: a permutation gamma with gamma(i) among the keys of gamma(i + 1). The decision
is NP-complete, so there are three possible answers: a path, a proof that no path exists, or None with a list of the
attempts. Closed forms find the paths of the published patterns. Up to EXACT tokens, all sets of tokens are searched.
Above, the code looks for obstructions and then for a path, with bounded effort.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asterism.errors import PatternError
from asterism.theory.certificates.graph import Graph, Integers
from asterism.theory.certificates.reach import closure
from asterism.theory.certificates.witnesses import (
    Exhausted,
    Obstruction,
    PathSearch,
    Separator,
    TooFewPredecessors,
    Unconnected,
)

EXACT = 20
"""The most tokens for which every set of tokens is searched: 2^20 sets of 4 bytes."""

RESTARTS = 4
"""The number of matchings from which a bounded search starts."""

STEPS = 2
"""How many steps per token the end of a path takes from each matching."""

ROTATIONS = 64
"""The number of rotations tried for each token."""

WORK = 2**27
"""About how many numbers each bounded search looks at before it gives up: a second or two."""

_STEP_WORK, _TURN_WORK, _LABEL_WORK, _MATCH_WORK, _RUN_WORK = 2**12, 2**9, 2**4, 2**3, 2**3
"""The same for a step beside its numbers, for labels of cycles per token, matchings per edge, and pieces per run."""

_SEARCHED_EDGES = 2**24
"""The most edges that are listed one by one."""


def find_path(graph: Graph, seed: int = 0) -> PathSearch:
    """Search for a Hamiltonian path. `seed` drives the bounded searches, whose effort does not depend on the clock."""
    tried: list[str] = []
    path: Integers | None
    for name, path in _closed_forms(graph):
        tried.append(name)
        if is_path(graph, path):
            return PathSearch(path, None, tuple(tried))
    small = graph.n <= EXACT
    if small:
        tried.append("all sets of tokens")
        path = exact_path(graph)
        if path is not None:
            return PathSearch(path, None, tuple(tried))
    left_out = () if graph.edges <= _SEARCHED_EDGES else (*_LISTING_OBSTRUCTIONS, *_SEARCHES)
    for name, find in (_OBSTRUCTIONS | _LISTING_OBSTRUCTIONS).items():
        if name not in left_out:
            tried.append(name)
            obstruction = find(graph)
            if obstruction is not None:
                return PathSearch(None, obstruction, tuple(tried))
    if small:
        return PathSearch(None, Exhausted(graph.n), tuple(tried))
    generator = np.random.Generator(np.random.Philox(key=[seed, graph.n]))
    for name, search in _SEARCHES.items():
        if name not in left_out:
            tried.append(name)
            path = search(graph, generator)
            if path is not None:
                return PathSearch(path, None, tuple(tried))
    return PathSearch(None, None, tuple(tried), left_out)


def is_path(graph: Graph, path: Integers) -> bool:
    """Whether `path`, int64 [n], holds every token once and each token reads the one before it."""
    return np.array_equal(np.sort(path), np.arange(graph.n)) and bool(graph.has(path[1:], path[:-1]).all())


# --- closed forms ----------------------------------------------------------------------------------------------------


def _closed_forms(graph: Graph) -> Iterator[tuple[str, Integers]]:
    """Orders that are paths of the published patterns."""
    natural = np.arange(graph.n)
    yield "the natural order", natural
    yield "the reversed order", natural[::-1]
    joined = _pieces_joined_by_hubs(graph)
    if joined is not None:
        yield "pieces in their natural order, joined by hubs", joined


def _pieces_joined_by_hubs(graph: Graph) -> Integers | None:
    """The pieces into which the graph falls without its hubs, with a hub between any two; spare hubs come last.

    Blocks with global tokens, dilated windows with a global token. None when there are too few hubs.
    """
    if not graph.hubs.size:
        return None
    piece = graph.pieces_without(graph.hubs)
    count = int(piece.max(initial=-1)) + 1
    if count > graph.hubs.size + 1:
        return None
    order = np.argsort(piece, kind="stable")[graph.hubs.size :]
    parts = np.split(order, np.flatnonzero(np.diff(piece[order])) + 1) if order.size else []
    joined: list[Integers] = []
    for number, part in enumerate(parts):
        upwards = graph.has(part[1:], part[:-1]).all()
        joined += [graph.hubs[number - 1 : number]] * (number > 0) + [part if upwards else part[::-1]]
    return np.concatenate([*joined, graph.hubs[max(len(parts) - 1, 0) :]])


# --- all sets of tokens ----------------------------------------------------------------------------------------------


def exact_path(graph: Graph) -> Integers | None:
    """A Hamiltonian path, int64 [n], or None if none exists (Held and Karp 1962, over all sets of tokens).

    ends[S] has bit v when some path visits the set S and ends at v. Raises PatternError above EXACT tokens.
    """
    n = graph.n
    if n > EXACT:
        raise PatternError(
            "too-many-tokens",
            f"an exact search visits all 2^n sets of tokens: {n:,} tokens exceed its limit of {EXACT}; certify()"
            " searches with bounded effort instead",
        )
    readers = _predecessor_bits(graph.transposed)
    ends = np.zeros(1 << n, np.uint32)
    ends[1 << np.arange(n)] = 1 << np.arange(n)
    sets = np.arange(1 << n, dtype=np.uint32)
    sizes = np.bitwise_count(sets)
    order = np.argsort(sizes, kind="stable").astype(np.uint32)
    # By size: a set is complete before any set that holds one token more asks for it, so a size is one vector operation
    # per pair of tokens instead of a loop over 2^n sets. The full set has no successor and is left out.
    layers = np.split(order, np.cumsum(np.bincount(sizes))[:-1])
    for members in layers[1:-1]:
        for last in range(n):
            here = members[(ends[members] >> last) & 1 == 1]
            for following in np.flatnonzero((readers[last] >> np.arange(n)) & 1):
                free = here[(here >> following) & 1 == 0]
                ends[free | np.uint32(1 << following)] |= np.uint32(1 << following)
    return _walk_back(ends, _predecessor_bits(graph))


def _predecessor_bits(graph: Graph) -> NDArray[np.int64]:
    """Per token, the tokens it reads as bits."""
    query, key = graph.pairs()
    bits = np.zeros(graph.n, np.int64)
    np.bitwise_or.at(bits, query, 1 << key)
    return bits


def _walk_back(ends: NDArray[np.uint32], reads: NDArray[np.int64]) -> Integers | None:
    """The path whose last token ends[all] names, from the last token to the first."""
    visited = len(ends) - 1
    if not ends[visited]:
        return None
    path: list[int] = []
    allowed = visited
    while visited:
        last = int(ends[visited] & allowed).bit_length() - 1
        path.append(last)
        visited &= ~(1 << last)
        allowed = int(reads[last])
    return np.array(path[::-1])


# --- obstructions ----------------------------------------------------------------------------------------------------


def _too_few_predecessors(graph: Graph) -> TooFewPredecessors | None:
    """A violation of Hall's condition, from a largest matching of tokens to predecessors (Koenig's theorem)."""
    matrix, match = _match(graph, np.arange(graph.n))
    alone = match < 0
    # A path leaves one token without a predecessor. If even a largest matching leaves two, the tokens that alternating
    # paths reach from these outnumber all that they read by two or more: Hall's condition fails there.
    if np.count_nonzero(alone) <= 1:
        return None
    tokens, keys = alone.copy(), np.zeros(graph.n, bool)
    owner = np.full(graph.n, -1)
    owner[match[~alone]] = np.flatnonzero(~alone)
    frontier = np.flatnonzero(alone)
    while frontier.size:
        found = np.zeros(graph.n, bool)
        found[matrix[frontier].indices] = True
        fresh = np.flatnonzero(found & ~keys)
        keys[fresh] = True
        frontier = owner[fresh]
        tokens[frontier] = True
    return TooFewPredecessors(np.flatnonzero(tokens), np.flatnonzero(keys))


def _match(graph: Graph, order: Integers) -> tuple[Any, Integers]:
    """The edges without loops as a sparse matrix, and a largest matching: each query's own key, -1 without one.

    `order` renumbers the tokens before the matching, so that different orders find different ones.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_bipartite_matching

    query, key = graph.pairs()
    query, key = query[query != key], key[query != key]
    matrix = csr_array((np.ones(len(query), np.int8), (query, key)), shape=(graph.n, graph.n))
    place = np.argsort(order)
    # scipy's matching is deterministic, and a walk that fails from one matching may succeed from another.
    renamed = csr_array((np.ones(len(query), np.int8), (place[query], place[key])), shape=(graph.n, graph.n))
    match = maximum_bipartite_matching(renamed, perm_type="column")
    original = np.full(graph.n, -1)
    original[order] = np.where(match < 0, -1, order[match])
    return matrix, original


def _unconnected(graph: Graph) -> Unconnected | None:
    """Two tokens that never depend on each other: the strong pieces do not follow one another in a chain."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    query, key = graph.pairs()
    matrix = csr_array((np.ones(len(query), np.int8), (query, key)), shape=(graph.n, graph.n))
    count, piece = connected_components(matrix, connection="strong")
    reads = {(a, b) for a, b in zip(piece[query].tolist(), piece[key].tolist(), strict=True) if a != b}
    # A path visits each strong piece in one go, later pieces reading earlier ones. In a topological order that is a
    # chain exactly if every piece reads the next one; where it does not, no other piece can stand between the two.
    order = _topological(count, reads)
    for later, earlier in zip(order[:-1], order[1:], strict=True):
        if (later, earlier) not in reads:
            first, second = int(np.argmax(piece == later)), int(np.argmax(piece == earlier))
            return Unconnected(first, second, closure(graph, first), closure(graph, second))
    return None


def _topological(count: int, reads: set[tuple[int, int]]) -> list[int]:
    """The pieces, each before those that it reads."""
    waiting = [0] * count
    read_by: dict[int, list[int]] = {}
    for reader, read in reads:
        waiting[read] += 1
        read_by.setdefault(reader, []).append(read)
    ready = [piece for piece in range(count) if not waiting[piece]]
    order: list[int] = []
    while ready:
        order.append(ready.pop())
        for read in read_by.get(order[-1], ()):
            waiting[read] -= 1
            if not waiting[read]:
                ready.append(read)
    return order


_SEPARATORS = 48
"""The most sets of tokens tried as separators."""


def _separator(graph: Graph) -> Separator | None:
    """The tokens of highest degree, so many that the others fall apart; or one cut vertex that leaves three pieces."""
    degrees = graph.undirected.out_degrees
    order = np.argsort(-degrees, kind="stable")
    steps = np.flatnonzero(np.diff(degrees[order])) + 1
    candidates = [order[:size] for size in (0, *steps[:_SEPARATORS].tolist())]
    candidates += [order[place : place + 1] for place in range(1, min(_SEPARATORS, graph.n))]
    most = max(1, WORK // (_RUN_WORK * (graph.n + len(graph.runs[0]))))
    for removed in candidates[:most]:
        piece = graph.pieces_without(removed)
        if piece.max(initial=-1) + 1 > len(removed) + 1:
            return Separator(np.sort(removed), piece)
    return None


_OBSTRUCTIONS: dict[str, Callable[[Graph], Obstruction | None]] = {
    "separators of high degree, and single tokens": _separator
}

_LISTING_OBSTRUCTIONS: dict[str, Callable[[Graph], Obstruction | None]] = {
    "tokens that share too few predecessors": _too_few_predecessors,
    "tokens that never depend on each other": _unconnected,
}
"""Those that list the edges one by one."""


# --- bounded searches ------------------------------------------------------------------------------------------------


def _patch_cycles(graph: Graph, generator: np.random.Generator) -> Integers | None:
    """Cover the tokens with cycles and one path by a matching, then join them (Karp 1979; Frieze 1988).

    An extra token n, which reads every token and is read by every token, closes the path. Two cycles are joined by
    exchanging the keys of a member of each; when no exchange is left, the last token of the path takes a key from
    another token, which becomes the last one, until a cycle is met.
    """
    n = graph.n
    closed = _with_extra_token(graph)
    steps = min(STEPS * n, WORK // (RESTARTS * (_STEP_WORK + _LABEL_WORK * n)))
    for _ in range(min(RESTARTS, 1 + WORK // (_MATCH_WORK * closed.edges))):
        _, reads = _match(closed, generator.permutation(n + 1))
        if (reads < 0).any():
            return None  # a proof of absence, which _too_few_predecessors has given before
        joined = _walk(closed, _merge_cycles(closed, reads), steps, generator)
        if joined is not None:
            path = [int(joined[n])]
            while len(path) < n:
                path.append(int(joined[path[-1]]))
            return np.array(path[::-1])
    return None


def _walk(graph: Graph, reads: Integers, steps: int, generator: np.random.Generator) -> Integers | None:
    """Move the end of the path until all cycles are joined to it; None after so many steps."""
    extra = graph.n - 1
    reads, read_by = reads.copy(), np.argsort(reads)
    label = _cycle_labels(reads)
    for _ in range(steps):
        if label.max() == 0:
            return reads
        last = int(read_by[extra])
        keys = graph.keys(last)
        keys = keys[(keys != last) & (keys != extra)]
        elsewhere = keys[label[keys] != label[extra]]
        if not keys.size:
            return None
        key = int(generator.choice(elsewhere if elsewhere.size else keys))
        other = int(read_by[key])
        reads[last], reads[other] = key, extra
        read_by[key], read_by[extra] = last, other
        label = _cycle_labels(reads)
    return None


def _with_extra_token(graph: Graph) -> Graph:
    n = graph.n
    query, start, stop = graph.runs
    others, everyone = np.arange(n), np.full(n, n)
    query = np.concatenate([query, others, [n]])
    start, stop = np.concatenate([start, everyone, [0]]), np.concatenate([stop, everyone + 1, [n]])
    return Graph.of_runs(n + 1, query, start, stop)


def _merge_cycles(graph: Graph, reads: Integers) -> Integers:
    """What each token reads once no exchange between two cycles joins any more of them, or too many were looked for."""
    reads, read_by = reads.copy(), np.argsort(reads)
    label = _cycle_labels(reads)
    pending = [np.flatnonzero(label == number) for number in np.argsort(np.bincount(label), kind="stable")]
    stuck = work = 0
    while len(pending) > 1 and stuck < len(pending) and work < WORK // RESTARTS:
        members = pending.pop(0)
        exchange = _find_exchange(graph, members, reads, read_by, label)
        if exchange is None:
            pending.append(members)
            stuck += 1
            work += _STEP_WORK * len(members)
            continue
        first, second = exchange
        work += _STEP_WORK * (1 + int(np.argmax(members == first)))
        reads[first], reads[second] = reads[second], reads[first]
        read_by[reads[first]], read_by[reads[second]] = first, second
        other = next(place for place, part in enumerate(pending) if label[part[0]] == label[second])
        label[members] = label[second]
        pending[other] = np.append(pending[other], members)
        stuck = 0
    return reads


_FEW = 64
"""How many tokens are looked at together: often one of the first will do."""


def _find_exchange(
    graph: Graph, members: Integers, reads: Integers, read_by: Integers, label: Integers
) -> tuple[int, int] | None:
    """A member and a token of another cycle that can each read what the other one reads now."""
    for token in members.tolist():
        keys = graph.keys(token)
        others = read_by[keys[label[keys] != label[token]]]
        for some in np.split(others, range(_FEW, len(others), _FEW)):
            able = some[graph.has(some, reads[token])]
            if able.size:
                return token, int(able[0])
    return None


def _cycle_labels(reads: Integers) -> Integers:
    """The number of the cycle that each token is on."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    n = len(reads)
    matrix = csr_array((np.ones(n, np.int8), (np.arange(n), reads)), shape=(n, n))
    return connected_components(matrix, connection="weak")[1].astype(np.int64)


def _rotate(graph: Graph, generator: np.random.Generator) -> Integers | None:
    """Extend a path over edges that go both ways, turning its end around when it is stuck (Posa 1976)."""
    n = graph.n
    mutual = Graph(graph.reads & graph.transposed.reads)
    if not mutual.out_degrees.all():
        return None
    neighbours = [mutual.keys(token) for token in range(n)]
    path, place = np.zeros(n, np.int64), np.full(n, -1)
    path[0] = generator.integers(n)
    place[path[0]], length, work = 0, 1, 0
    for _ in range(ROTATIONS * n):
        if length == n:
            return path
        near = neighbours[path[length - 1]]
        work += _TURN_WORK + near.size
        if work > WORK:
            return None
        fresh = near[place[near] < 0]
        if fresh.size:
            path[length] = generator.choice(fresh)
            place[path[length]] = length
            length += 1
            continue
        turns = place[near] + 1
        turns = turns[turns < length - 1]
        if not turns.size:
            work += length
            path[:length] = path[:length][::-1].copy()
            place[path[:length]] = np.arange(length)
            continue
        turn = int(generator.choice(turns))
        work += length - turn
        path[turn:length] = path[turn:length][::-1].copy()
        place[path[turn:length]] = np.arange(turn, length)
    return None


_SEARCHES: dict[str, Callable[[Graph, np.random.Generator], Integers | None]] = {
    f"up to {ROTATIONS} rotations per token of a path over mutual edges": _rotate,
    f"joining the cycles of up to {RESTARTS} matchings, up to {STEPS} steps per token": _patch_cycles,
}
