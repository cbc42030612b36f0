"""The independent checker of a certificate: it queries the patterns pair by pair, and uses no graph, plan or search.

It shares only the witness, plain data, with the code that found it. A test of the architecture ensures that it imports
nothing of the library but patterns and errors.
"""

from collections.abc import Iterator
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from asterism.errors import CertificateError, PatternError
from asterism.patterns import Pattern
from asterism.theory.certificates.witnesses import Exhausted, Hub, Separator, TooFewPredecessors, Unconnected

if TYPE_CHECKING:
    from asterism.theory.certificates.universality import Certificate

MOST_PAIRS = 2**27
"""The most connections that a check holds in memory at once."""

_ASKED = 2**22
"""Pairs queried at a time."""

_WORK = 2**31
"""Limit of the additions that follow keys through the layers. If all n keys would take more, fewer are followed."""


_SMALL = 256
"""The most tokens for which all connections are kept after every cycle of layers."""


def check(certificate: "Certificate") -> list[str]:
    """Check every witness; returns one line for each verified claim. Raises CertificateError at the first that
    fails.
    """
    if sum(certificate.connections) > MOST_PAIRS:
        raise PatternError(
            "too-many-pairs",
            f"the certificate has {sum(certificate.connections):,} connections, more than a check can list"
            f" ({MOST_PAIRS:,}): use a shorter length",
        )
    matrices = [_matrix(pattern, certificate.n) for pattern in certificate.schedule.patterns]
    union = reduce(lambda a, b: a.maximum(b), matrices)
    return [
        _check_star(certificate),
        _check_loops(certificate),
        _check_path(certificate, union),
        _check_reach(certificate, matrices, union),
    ]


def require(holds: object, claim: str) -> None:
    """Raise CertificateError unless the claim holds."""
    if not holds:
        raise CertificateError("wrong-certificate", f"the certificate is wrong: it claims that {claim}")


def _matrix(pattern: Pattern, n: int) -> Any:
    """The pairs that some head allows, as a sparse float32 matrix [n, n]. Every pair is queried, in blocks of rows."""
    from scipy.sparse import csr_array

    blocks = [_allowed_rows(pattern, n, rows) for rows in _row_blocks(n)]
    query, key = (np.concatenate(column) for column in zip(*blocks, strict=True))
    return csr_array((np.ones(len(query), np.float32), (query, key)), shape=(n, n))


def _row_blocks(n: int) -> Iterator[np.ndarray]:
    rows = max(1, _ASKED // n)
    return (np.arange(start, min(start + rows, n)) for start in range(0, n, rows))


def _allowed_rows(pattern: Pattern, n: int, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    keys = np.arange(n)
    heads = (pattern.allows(rows[:, None], keys, n, head) for head in range(pattern.heads))
    query, key = np.nonzero(reduce(np.logical_or, heads))
    return rows[query], key


def _check_star(certificate: "Certificate") -> str:
    n, hub, patterns = certificate.n, certificate.hub, certificate.schedule.patterns
    tokens = np.arange(n)
    if isinstance(hub, Hub):
        pattern, others = patterns[hub.pattern], np.delete(tokens, hub.token)
        for queries, keys in ((others, hub.token), (hub.token, others), (others, others)):
            claim = f"token {hub.token} is the hub of a star"
            require(pattern.allows(queries, keys, n, hub.head).all(), claim)
        return f"star: {3 * (n - 1):,} pairs of hub {hub.token} are allowed"
    count = 0
    for number, pattern in enumerate(patterns):
        for head in range(pattern.heads):
            query, key = hub.missing[number, head].T
            spoke = np.where(query == key, query != tokens, (query == tokens) | (key == tokens))
            require(spoke.all() and len(query) == n, "a pair of every token's star is missing")
            require(not pattern.allows(query, key, n, head).any(), "no token is the hub of a star")
            count += n
    return f"star: a pair of each of {count:,} possible stars is not allowed"


def _check_loops(certificate: "Certificate") -> str:
    n, missing, patterns = certificate.n, certificate.missing_loop, certificate.schedule.patterns
    if missing is not None:
        allowed = patterns[missing.pattern].allows(missing.token, missing.token, n, missing.head)
        require(not allowed, f"token {missing.token} does not read itself")
        return f"self loops: token {missing.token} has none"
    tokens = np.arange(n)
    for pattern in patterns:
        for head in range(pattern.heads):
            require(pattern.allows(tokens, tokens, n, head).all(), "every token reads itself")
    return f"self loops: all {n:,} tokens of every pattern have one"


def _check_path(certificate: "Certificate", union: Any) -> str:
    path, obstruction, n = certificate.path.path, certificate.path.obstruction, certificate.n
    if path is not None:
        require(np.array_equal(np.sort(path), np.arange(n)), "gamma holds every token once")
        require(union[path[1:], path[:-1]].sum() == n - 1, "each token of gamma reads the one before it")
        return f"Hamiltonian path: {n - 1:,} steps are allowed"
    if obstruction is None:
        return "Hamiltonian path: nothing was claimed"
    match obstruction:
        case TooFewPredecessors(tokens=tokens, predecessors=predecessors):
            query, key = union[tokens].nonzero()
            read = np.setdiff1d(key[tokens[query] != key], predecessors)
            enough = len(np.unique(tokens)) >= len(predecessors) + 2
            require(enough and not read.size, str(obstruction))
        case Unconnected(first=first, second=second, first_reads=first_reads, second_reads=second_reads):
            _require_closed(union, first, first_reads, str(obstruction))
            _require_closed(union, second, second_reads, str(obstruction))
            require(first != second and not first_reads[second] and not second_reads[first], str(obstruction))
        case Separator(removed=removed, piece=piece):
            query, key = union.nonzero()
            inside = (piece[query] >= 0) & (piece[key] >= 0)
            numbers = np.unique(piece[piece >= 0])
            whole = np.array_equal(np.flatnonzero(piece < 0), removed) and len(numbers) == obstruction.pieces
            require(whole and (piece[query] == piece[key])[inside].all(), str(obstruction))
            require(obstruction.pieces > len(removed) + 1, str(obstruction))
        case Exhausted():
            require(not _has_path(union.toarray() != 0), str(obstruction))
    return f"no Hamiltonian path: {obstruction}"


def _require_closed(union: Any, token: int, closed: np.ndarray, claim: str) -> None:
    """Require that `closed` holds all that the token reads and all that its members read."""
    query, key = union.nonzero()
    require(closed[key[query == token]].all() and closed[key[closed[query]]].all(), claim)


def _has_path(reads: np.ndarray) -> bool:
    """Depth-first search with the sets that failed remembered; from the last token of a path to the first."""
    # Unlike the search in hamiltonian.py, which builds sets up in order of size, this walks back from the last token:
    # two algorithms that agree are evidence, one that checks itself is not.
    n = len(reads)
    keys = [np.flatnonzero(row).tolist() for row in reads]
    failed: set[tuple[int, int]] = set()
    stack = [(token, 1 << token) for token in range(n)]
    while stack:
        token, visited = stack.pop()
        if visited == (1 << n) - 1:
            return True
        if (token, visited) not in failed:
            failed.add((token, visited))
            stack += [(key, visited | 1 << key) for key in keys[token] if not visited >> key & 1]
    return False


def _check_reach(certificate: "Certificate", matrices: list[Any], union: Any) -> str:
    n, reach = certificate.n, certificate.reach
    if reach.never is not None:
        never = reach.never
        claim = f"token {never.query} never depends on token {never.key}"
        require(not never.closed[never.key], claim)
        _require_closed(union, never.query, never.closed, claim)
        return f"reach: what token {never.query} depends on is closed and leaves out token {never.key}"
    if reach.hops is not None:
        require(reach.straggler is not None, "some pair is connected only after the last layer, and names none")
        query, key = reach.straggler or (0, 0)
        missing = reach.hops == 1 or not _follow(matrices, np.array([key]), reach.hops - 1)[query, 0]
        require(missing, f"{query} does not depend on {key} after {reach.hops - 1} layers")
        work = reach.hops * max(matrix.nnz for matrix in matrices)
        keys = np.arange(n)
        if work * n > _WORK:
            keys = np.random.Generator(np.random.Philox(key=n)).choice(n, max(1, min(n, _WORK // work)), replace=False)
        claim = f"every token depends on every token after {reach.hops} layers"
        for chunk in np.array_split(keys, -(-len(keys) // 256)):
            require(_follow(matrices, chunk, reach.hops).all(), claim)
        followed = f"all {n:,} keys" if len(keys) == n else f"{len(keys):,} of {n:,} keys, drawn at random,"
        return f"reach: {followed} reach every token in {reach.hops:,} layers, and one pair not in fewer"
    if reach.repeats and n <= _SMALL:
        require(_repeat(matrices), "the layers repeat and never connect all pairs at once")
        return "reach: the layers repeat and never connect all pairs at once"
    return "reach: " + (f"repetition is checked up to {_SMALL} tokens" if reach.repeats else "nothing was claimed")


def _repeat(matrices: list[Any]) -> bool:
    """Whether the connections after whole cycles repeat before all pairs are connected."""
    n = matrices[0].shape[0]
    state, seen = np.eye(n, dtype=np.float32), set()
    while state.tobytes() not in seen:
        seen.add(state.tobytes())
        for matrix in matrices:
            state = (matrix @ state > 0).astype(np.float32)
            if state.all():
                return False
    return True


def _follow(matrices: list[Any], keys: np.ndarray, layers: int) -> np.ndarray:
    """Whether each token depends on each of the keys after `layers` layers, bool [n, keys]."""
    state = np.zeros((matrices[0].shape[0], len(keys)), np.float32)
    state[keys, np.arange(len(keys))] = 1
    for number in range(layers):
        state = (matrices[number % len(matrices)] @ state > 0).astype(np.float32)
    return state > 0
