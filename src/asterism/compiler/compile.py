"""From a rule to a plan.

    rule -> a union of terms -> a layout for each term -> per layout, the tiles that hold an allowed pair -> masks

Terms with equal layouts share a pass, and each pass leaves out what earlier passes hold, so that no pair counts twice.
The rule is never evaluated on all pairs: spans name the tiles that can matter, verdicts settle most of them, and of the
rest only one tile per signature is looked at pair by pair. The work grows with the tiles kept.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache, reduce
from importlib.util import find_spec
from itertools import product
from operator import or_

import numpy as np

from asterism.compiler.cost import TILE_SIZES, tile_cost
from asterism.compiler.layout import KeySubset, Layout, Natural, QuerySubset, Reordered, Residues, Tiles
from asterism.compiler.memo import remembering
from asterism.compiler.plan import Booleans, Indices, Integers, Pass, Plan
from asterism.errors import PatternError
from asterism.patterns.explicit import Explicit
from asterism.patterns.pattern import (
    And,
    Named,
    Not,
    Or,
    Pattern,
    PerHead,
    Shifted,
    Verdict,
    Verdicts,
    resolve_lengths,
)
from asterism.patterns.primitives import GlobalQueries, KeySet, Stride, Window
from asterism.patterns.text import parse

_CHUNK = 2**19
"""Tile pairs judged at a time."""

_EXACT_CHUNK = 2**21
"""Token pairs evaluated at a time."""

_SAMPLED_ROWS = 24
"""Tile rows looked at to estimate what a layout costs."""

_MOST_TERMS = 16
"""Above so many terms a conjunction of unions is left as it is."""


def compile_pattern(
    pattern: Pattern | str,
    n_queries: int,
    n_keys: int | None = None,
    *,
    query_offset: int | None = None,
    tile: int | None = None,
) -> Plan:
    """The plan of a pattern (or its text) for the given lengths; equal questions get the same object.

    `n_keys` defaults to n_queries and `query_offset`, the position of the first query, to n_keys - n_queries. `tile` is
    16, 32, 64 or 128; by default the cost model chooses it. Raises PatternError when the lengths do not fit each other
    or the pattern, or the tile size is another one.
    """
    pattern = parse(pattern) if isinstance(pattern, str) else pattern
    n_keys, offset = resolve_lengths(n_queries, n_keys, query_offset)
    if tile is not None and tile not in (16, *TILE_SIZES):
        raise PatternError(f"the tile size must be 16, 32, 64 or 128, got {tile}")
    return _compile(pattern, n_queries, n_keys, offset, tile)


@dataclass(frozen=True)
class _Lengths:
    n_queries: int
    n_keys: int
    offset: int
    tile: int


@remembering(128)
def _compile(pattern: Pattern, n_queries: int, n_keys: int, offset: int, tile: int | None) -> Plan:
    rules = [_concrete(pattern, head, n_keys) for head in range(pattern.heads)]
    if tile is None:
        options = [_Lengths(n_queries, n_keys, offset, size) for size in TILE_SIZES]
        tile = min(options, key=lambda lengths: _assign(rules[0], lengths)[1]).tile
    lengths = _Lengths(n_queries, n_keys, offset, tile)
    shares: dict[tuple[Layout, Pattern], list[int]] = {}
    for head, rule in enumerate(rules):
        for layout, share in _assign(rule, lengths)[0]:
            shares.setdefault((layout, share), []).append(head)
    masks = Masks(tile)
    ordered = sorted(shares.items(), key=lambda item: not isinstance(item[0][0], Natural))
    passes = [_compile_pass(layout, share, heads, lengths, masks) for (layout, share), heads in ordered]
    kept = tuple(part for part in passes if len(part.columns))
    return Plan(pattern.text, n_queries, n_keys, offset, pattern.heads, tile, kept, masks.stacked(), pattern.is_causal)


# --- rules, terms and layouts ----------------------------------------------------------------------------------------


def _concrete(rule: Pattern, head: int, length: int) -> Pattern:
    """The rule of one head at one length, without names; a stride that never comes round is the token itself."""
    match rule:
        case PerHead(patterns=parts):
            return _concrete(parts[head], head, length)
        case Named(body=body):
            return _concrete(body, head, length)
        case Stride(period=period) if period >= length:
            return Window()
        case Shifted(pattern=inner, by=by):
            return Shifted(_concrete(inner, head, max(length - by, 1)), by)
        case _ if rule.children:
            return rule.rebuild(tuple(_concrete(child, head, length) for child in rule.children))
        case _:
            return rule


def _terms(rule: Pattern) -> list[Pattern]:
    """Conjunctions whose union is the rule."""
    match rule:
        case Or(parts=parts):
            return [term for part in parts for term in _terms(part)]
        case And(parts=parts):
            factors = [_terms(part) for part in parts]
            if np.prod([len(factor) for factor in factors]) > _MOST_TERMS:
                return [rule]
            return [reduce(lambda a, b: a & b, choice) for choice in product(*factors)]
        case Not(part=And(parts=parts)):
            return [term for part in parts for term in _terms(~part)]
        case _:
            return [rule]


def _layouts(term: Pattern) -> list[Layout]:
    """The orders, besides the natural one, in which a conjunction may be denser."""
    found: list[Layout] = []
    for literal in term.parts if isinstance(term, And) else (term,):
        match literal:
            case Stride(period=period) if period > 1:
                found.append(Residues(period))
            case KeySet():
                found.append(KeySubset(literal))
            case GlobalQueries():
                found.append(QuerySubset(literal))
            case Explicit() if find_spec("scipy"):
                found.append(Reordered(literal))
            case _:
                pass
    return found


def _assign(rule: Pattern, lengths: _Lengths) -> tuple[list[tuple[Layout, Pattern]], float]:
    """A layout for every term of the rule, terms of equal layout joined, and the estimated cost."""
    terms, natural = _terms(rule), Natural()
    groups: dict[Layout, list[Pattern]] = {natural: [term for term in terms if not _layouts(term)]}
    spent: dict[Layout, float] = {natural: _estimate(natural, groups[natural], lengths)}
    for term in terms:
        if not _layouts(term):
            continue
        added: dict[Layout, float] = {natural: _estimate(natural, [*groups[natural], term], lengths) - spent[natural]}
        for layout in _layouts(term):
            joined = [*groups.get(layout, []), term]
            added[layout] = _estimate(layout, joined, lengths) - spent.get(layout, 0.0)
        best = min(added, key=lambda layout: added[layout])
        groups.setdefault(best, []).append(term)
        spent[best] = spent.get(best, 0.0) + added[best]
    used = {layout: reduce(or_, members) for layout, members in groups.items() if members}
    shares: list[tuple[Layout, Pattern]] = []
    for layout, members in used.items():
        earlier = [used[other] for other, _ in shares]
        share = members & ~reduce(or_, earlier) if earlier else members
        shares.append((layout, layout.within(share)))
    return shares, sum(spent.values())


def _estimate(layout: Layout, terms: list[Pattern], lengths: _Lengths) -> float:
    """The cost of some terms in a layout, from the tiles that a sample of tile rows keeps."""
    if not terms:
        return 0.0
    queries, keys = _orders(layout, lengths)
    if not len(queries) or not len(keys):
        return 0.0
    rule = layout.within(reduce(or_, terms))
    long_rows = _rows_of_global_queries(rule, queries, lengths.n_keys)
    sampled = np.linspace(0, len(queries), _SAMPLED_ROWS, endpoint=False) + len(queries) / (2 * _SAMPLED_ROWS)
    sample = np.setdiff1d(sampled.astype(np.int64), long_rows)
    kept = 0.0
    for rows, stand_for in ((long_rows, len(long_rows)), (sample, len(queries) - len(long_rows))):
        if len(rows):
            kept += _count_kept(layout, rule, queries, keys, rows, lengths.n_keys) * stand_for / len(rows)
    passes = 1 if isinstance(layout, Natural) else 2
    return tile_cost(kept, len(queries), passes, lengths.tile)


def _rows_of_global_queries(rule: Pattern, queries: Tiles, length: int) -> Integers:
    """Tile rows that hold a query which reads everything; a sample of rows would miss or overrate them."""
    sets = [leaf.members(length) for leaf in rule.walk() if isinstance(leaf, GlobalQueries)]
    if not sets:
        return np.zeros(0, np.int64)
    wanted = np.isin(queries.positions, np.concatenate(sets))
    return np.unique(np.flatnonzero(wanted) // queries.tile)


def _count_kept(layout: Layout, rule: Pattern, queries: Tiles, keys: Tiles, rows: Integers, length: int) -> int:
    row, column = layout.candidates(rule, queries, keys, rows, length, 0)
    chunks = (slice(start, start + _CHUNK) for start in range(0, len(row), _CHUNK))
    return sum(
        int(np.count_nonzero(_judge(rule, queries, keys, rows[row[chunk]], column[chunk], length, 0)))
        for chunk in chunks
    )


@lru_cache(maxsize=16)
def _orders(layout: Layout, lengths: _Lengths) -> tuple[Tiles, Tiles]:
    return layout.orders(lengths.offset, lengths.n_queries, lengths.n_keys, lengths.tile)


# --- tiles -----------------------------------------------------------------------------------------------------------


def _judge(
    rule: Pattern, queries: Tiles, keys: Tiles, row: Integers, column: Integers, length: int, head: int
) -> Verdicts:
    """One verdict per tile pair; tiles that are no progression of the layout's step are judged by their hull."""
    regular = queries.regular[row] & keys.regular[column]
    result = np.empty(len(row), np.int8)
    for chosen, as_regular in ((np.flatnonzero(regular), True), (np.flatnonzero(~regular), False)):
        if len(chosen):
            q = queries.tokens(row[chosen], as_regular)
            k = keys.tokens(column[chosen], as_regular)
            result[chosen] = rule.judge(q, k, length, head)
    return result


class Masks:
    """Bit masks of mixed tiles, each kept once."""

    def __init__(self, tile: int):
        self.tile = tile
        self.words = -(-tile // 64)
        self.numbers: dict[bytes, int] = {}

    def add(self, allowed: Booleans) -> Indices:
        """Kinds of the tiles `allowed` [n, tile, tile], whose masks are kept."""
        packed = np.packbits(allowed, axis=-1, bitorder="little")
        padded = np.zeros((len(allowed), self.tile, self.words * 8), np.uint8)
        padded[..., : packed.shape[-1]] = packed
        kinds = [self.numbers.setdefault(mask.tobytes(), len(self.numbers) + 1) for mask in padded]
        return np.array(kinds, np.int32)

    def stacked(self) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
        flat = np.frombuffer(b"".join(self.numbers), np.uint64)
        return flat.reshape(len(self.numbers), self.tile, self.words)


def _compile_pass(layout: Layout, rule: Pattern, heads: list[int], lengths: _Lengths, masks: Masks) -> Pass:
    queries, keys = _orders(layout, lengths)
    own_heads = heads if rule.heads > 1 else heads[:1]
    lists = [_find_tiles(layout, rule, queries, keys, lengths.n_keys, head, masks) for head in own_heads]
    row, column, kind = (np.concatenate([entry[i] for entry in lists]) for i in range(3))
    which = np.repeat(np.arange(len(lists)), [len(entry[0]) for entry in lists])
    by_column = np.lexsort((row, column, which))
    natural_queries = len(queries.positions) == lengths.n_queries and queries.step == 1
    natural_keys = len(keys.positions) == lengths.n_keys and keys.step == 1
    return Pass(
        layout=layout.text,
        heads=tuple(heads),
        n_queries=len(queries.positions),
        n_keys=len(keys.positions),
        query_index=None if natural_queries else (queries.positions - lengths.offset).astype(np.int32),
        key_index=None if natural_keys else keys.positions.astype(np.int32),
        row_offsets=offsets(which, row, len(lists), len(queries)),
        columns=column.astype(np.int32),
        kinds=kind,
        column_offsets=offsets(which[by_column], column[by_column], len(lists), len(keys)),
        rows=row[by_column].astype(np.int32),
        row_kinds=kind[by_column],
    )


def offsets(which: Integers, row: Integers, lists: int, rows: int) -> Integers:
    """Where each tile row's entries begin and end, [lists, rows + 1], in entries sorted by (list, row)."""
    counts = np.bincount(which * rows + row, minlength=lists * rows) if rows else np.zeros(0, np.int64)
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    return starts[np.arange(lists)[:, None] * rows + np.arange(rows + 1)]


def _find_tiles(
    layout: Layout, rule: Pattern, queries: Tiles, keys: Tiles, length: int, head: int, masks: Masks
) -> tuple[Integers, Integers, Indices]:
    """Row, column and kind of every tile that holds an allowed pair, sorted by row and column."""
    found: list[tuple[Integers, Integers, Indices]] = []
    for rows in _row_chunks(len(queries), len(keys)):
        at, column = layout.candidates(rule, queries, keys, rows, length, head)
        for start in range(0, len(at), _CHUNK):
            chunk = slice(start, start + _CHUNK)
            found.append(_keep(rule, queries, keys, rows[at[chunk]], column[chunk], length, head, masks))
    empty = np.zeros(0, np.int64)
    found.append((empty, empty, empty.astype(np.int32)))
    row, column, kind = (np.concatenate([entry[i] for entry in found]) for i in range(3))
    return row, column, kind


def _row_chunks(n_rows: int, n_columns: int) -> Iterable[Integers]:
    """Tile rows in runs whose candidates fit into memory even if every tile is one."""
    step = max(1, 8 * _CHUNK // max(n_columns, 1))
    return (np.arange(start, min(start + step, n_rows)) for start in range(0, n_rows, step))


def _keep(
    rule: Pattern,
    queries: Tiles,
    keys: Tiles,
    row: Integers,
    column: Integers,
    length: int,
    head: int,
    masks: Masks,
) -> tuple[Integers, Integers, Indices]:
    """The tiles among the candidates that hold an allowed pair, with their kinds."""
    verdict = _judge(rule, queries, keys, row, column, length, head)
    kind = np.where(verdict == Verdict.FULL, 0, -1).astype(np.int32)
    open_ = np.flatnonzero((verdict != Verdict.FULL) & (verdict != Verdict.EMPTY))
    signature = _signatures(rule, queries, keys, row[open_], column[open_], length, head)
    _, representative, which = np.unique(signature, return_index=True, return_inverse=True)
    chosen = open_[representative]
    kinds = np.empty(len(chosen), np.int32)
    step = max(1, _EXACT_CHUNK // queries.tile**2)
    for start in range(0, len(chosen), step):
        part = chosen[start : start + step]
        kinds[start : start + step] = _look(rule, queries, keys, row[part], column[part], length, head, masks)
    kind[open_] = kinds[which]
    kept = kind >= 0
    return row[kept], column[kept], kind[kept]


def _look(
    rule: Pattern,
    queries: Tiles,
    keys: Tiles,
    row: Integers,
    column: Integers,
    length: int,
    head: int,
    masks: Masks,
) -> Indices:
    """Kinds of tiles from the rule itself, evaluated on every pair of theirs; -1 for empty ones."""
    q, has_query = queries.places(row)
    k, has_key = keys.places(column)
    exists = has_query[:, :, None] & has_key[:, None, :]
    allowed = rule.allows(q[:, :, None], k[:, None, :], length, head) & exists
    some = allowed.any(axis=(1, 2))
    full = (allowed == exists).all(axis=(1, 2))
    kinds = np.where(full, 0, -1).astype(np.int32)
    mixed = some & ~full
    kinds[mixed] = masks.add(allowed[mixed])
    kinds[~some] = -1
    return kinds


def _signatures(
    rule: Pattern, queries: Tiles, keys: Tiles, row: Integers, column: Integers, length: int, head: int
) -> Integers:
    """A number per tile pair; equal numbers mean equal masks.

    A tile's mask follows from its shape and, for each leaf of the rule, from the verdict where that is final, else from
    the leaf's own signature. Leaves without a signature make the tile one of its kind.
    """
    q_first, k_first = queries.first[row], keys.first[column]
    result = _pair(queries.shape[row], keys.shape[column])
    for leaf in rule.walk():
        if leaf.children and not isinstance(leaf, Shifted):
            continue
        verdict = _judge(leaf, queries, keys, row, column, length, head)
        own = leaf.signature(q_first, k_first)
        own = np.arange(len(row)) if own is None else own
        final = (verdict == Verdict.FULL) | (verdict == Verdict.EMPTY)
        result = _pair(result, _pair(np.where(final, verdict, Verdict.UNKNOWN), np.where(final, 0, own)))
    return result


def _pair(left: Integers, right: Integers) -> Integers:
    """One number for each distinct pair of numbers."""
    _, left = np.unique(left, return_inverse=True)
    _, right = np.unique(right, return_inverse=True)
    return np.unique(left * (right.max(initial=0) + 1) + right, return_inverse=True)[1].astype(np.int64)
