"""From a rule to a plan.

    rule -> a union of terms -> a layout for each term -> per layout, the tiles that hold an allowed pair -> masks

Terms with equal layouts share a pass, and each pass leaves out what earlier passes hold, so that no pair counts twice.
The rule is never evaluated on all pairs: spans name the tiles that can matter, verdicts settle most of them, and of the
rest only one tile per signature is looked at pair by pair. The work grows with the tiles kept.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from itertools import product
from math import prod
from operator import or_

import numpy as np

from asterism.compiler.cost import TILE_SIZES, tile_cost
from asterism.compiler.join import join
from asterism.compiler.layout import Bands, KeySubset, Layout, Natural, QuerySubset, Reordered, Residues, Tiles
from asterism.compiler.parts import ResiduesOfPart, SortedPart, asked_of
from asterism.compiler.plan import Indices, Integers, Pass, Plan
from asterism.compiler.tables import BitMasks, list_offsets
from asterism.errors import PatternError
from asterism.memory import shortage
from asterism.patterns.across import Across
from asterism.patterns.documents import Documents
from asterism.patterns.draw import keys_read
from asterism.patterns.explicit import Explicit
from asterism.patterns.grid import Grid
from asterism.patterns.part import Part
from asterism.patterns.pattern import (
    And,
    Moved,
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
from asterism.patterns.primitives import Dense, GlobalQueries, KeySet, QuerySet, Stride, Window
from asterism.patterns.text import parse

_CHUNK = 2**19
"""Tile pairs judged at a time."""

_EXACT_CHUNK = 2**21
"""Token pairs evaluated at a time."""

_SAMPLED_ROWS = 24
"""Tile rows looked at to estimate what a layout costs."""

_LONG_DOCUMENT = 2048
"""Tokens from which on documents may have tiles of 128."""

_MANY_TILES = 2**26
"""A pass that could have so many tiles is looked at for the memory that they take before they are found."""

_SAMPLED_QUERIES = 5

_BYTES_OF_TILE = 24
"""While a plan is made: its row, column and kind, twice when those of all parts are joined. The plan keeps 8."""

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

    `n_keys` defaults to n_queries and `query_offset`, the position of the first query, to n_keys - n_queries, or to 0
    for queries of another sequence. `tile` is 16, 32, 64 or 128; by default the cost model chooses it. Raises
    PatternError when the lengths do not fit each other or the pattern, or the tile size is another one.
    """
    pattern = parse(pattern) if isinstance(pattern, str) else pattern
    n_keys, offset = resolve_lengths(pattern, n_queries, n_keys, query_offset)
    if tile is not None and tile not in (16, *TILE_SIZES):
        raise PatternError("tile-size", f"the tile size must be 16, 32, 64 or 128, got {tile}")
    return pattern.derived(_compile, n_queries, n_keys, offset, tile)


@dataclass(frozen=True)
class _Lengths:
    n_queries: int
    n_keys: int
    offset: int
    tile: int


_Shares = list[tuple[Layout, Pattern]]
"""The part of a rule that each layout has."""


def _compile(pattern: Pattern, n_queries: int, n_keys: int, offset: int, tile: int | None) -> Plan:
    if isinstance(pattern, Documents) and offset == 0 and n_queries == n_keys >= pattern.end:
        return _compile_documents(pattern, n_keys, tile)
    extent = max(n_keys, offset + n_queries)
    rules = [concrete(pattern, head, extent) for head in range(pattern.heads)]
    _require_room(rules[0], n_queries, n_keys, offset)
    lengths = _Lengths(n_queries, n_keys, offset, tile or _best_tile(rules[0], n_queries, n_keys, offset))
    return _arrange(pattern, lengths, [rule.derived(_assign, lengths)[0] for rule in rules])


def _arrange(pattern: Pattern, lengths: _Lengths, assigned: list[_Shares]) -> Plan:
    """The plan in which each head's rule is shared out among layouts as `assigned` says."""
    shares: dict[tuple[Layout, Pattern], list[int]] = {}
    for head, own in enumerate(assigned):
        for layout, share in own:
            shares.setdefault((layout, share), []).append(head)
    masks = BitMasks(lengths.tile)
    # Natural order first: it mostly covers all queries, so that its results are written, and later ones merged into
    # them.
    ordered = sorted(shares.items(), key=lambda item: not isinstance(item[0][0], Natural))
    passes = [_compile_pass(layout, share, heads, lengths, masks) for (layout, share), heads in ordered]
    # What a pass leaves to earlier ones may be all it had.
    kept = tuple(part for part in passes if len(part.columns))
    place = lengths.n_queries, lengths.n_keys, lengths.offset
    return Plan(pattern.text, *place, pattern.heads, lengths.tile, kept, masks.stacked(), pattern.is_causal)


# --- documents -------------------------------------------------------------------------------------------------------


def _compile_documents(pattern: Documents, length: int, tile: int | None) -> Plan:
    """Joined from a plan for each length of documents, which other sequences of documents find in the cache again."""
    starts, stops = pattern.bounds
    lengths, which = np.unique(stops - starts, return_inverse=True)
    longest = int(lengths.max(initial=0))
    for head in range(pattern.heads if longest else 0):
        pattern.pattern.verdict((0, 1), (0, 1), longest, head)  # what is refused at this length is refused in its name
    if tile is None:
        typical = int(np.square(stops - starts).sum() // max(1, (stops - starts).sum()))  # where most tokens stand
        rule = concrete(pattern.pattern, 0, max(typical, 1))
        tile = _best_tile(rule, _similar(typical), _similar(typical), 0)
        # Larger tiles are a little cheaper where they are full, and tails fill few of them.
        tile = min(tile, 64) if typical < _LONG_DOCUMENT else tile
    plans = [pattern.pattern.derived(_compile_document, n, tile) for n in lengths.tolist()]
    return join(pattern, length, tile, plans, which)


def _compile_document(pattern: Pattern, length: int, tile: int) -> Plan:
    """The plan of one document. Its layouts are those that suit a similar length, so that few are ever weighed."""
    if isinstance(pattern, Documents):
        return pattern.derived(_compile, length, length, 0, tile)
    lengths = _Lengths(length, length, 0, tile)
    similar = replace(lengths, n_queries=_similar(length), n_keys=_similar(length))
    rules = [concrete(pattern, head, length) for head in range(pattern.heads)]
    return _arrange(pattern, lengths, [rule.derived(_assign, similar)[0] for rule in rules])


def _similar(length: int) -> int:
    """The greatest power of two that is no longer."""
    return 2 ** (length.bit_length() - 1) if length else 0


# --- rules, terms and layouts ----------------------------------------------------------------------------------------


def concrete(rule: Pattern, head: int, extent: int) -> Pattern:
    """The rule of one head, without names; a stride that never comes round is the token itself.

    All queries and keys stand before the position `extent`.
    """
    match rule:
        case PerHead(patterns=parts):
            return concrete(parts[head], head, extent)
        case Named(body=body):
            return concrete(body, head, extent)
        case Stride(period=period) if period >= extent:
            return Window()  # sorting by residue would be another pass, for one diagonal
        case Shifted(pattern=inner, by=by):
            return Shifted(concrete(inner, head, max(extent - by, 1)), by)  # 1: rules are not asked about no tokens
        case Across(inner=inner):
            furthest = int(rule.places(np.array(max(extent, 1) - 1)))
            return _across(rule, concrete(inner, head, max(extent, furthest + 1)))
        case Part(inner=inner, length=length, queries=queries):
            return asked_of(rule, concrete(inner, head, max(length, queries.past, 1)))
        case _ if rule.children:
            return rule.rebuild(tuple(concrete(child, head, extent) for child in rule.children))
        case _:
            return rule


def _across(around: Across, inner: Pattern) -> Pattern:
    """`inner` asked across, with every leaf by itself: then unions have terms, and keys that all read are gathered."""
    match inner:
        case Or() | And() | Not():
            return inner.rebuild(tuple(_across(around, child) for child in inner.children))
        case Dense() | KeySet():
            return inner  # whatever the query
        case _:
            return around.rebuild((inner,))


def terms_of(rule: Pattern) -> list[Pattern]:
    """Conjunctions whose union is the rule."""
    match rule:
        case Or(parts=parts):
            return [term for part in parts for term in terms_of(part)]
        case And(parts=parts):
            factors = [terms_of(part) for part in parts]
            # (a | b) & (c | d) has 4 terms and ten such factors 1024: then one layout for all is the lesser evil.
            if prod(len(factor) for factor in factors) > _MOST_TERMS:  # Python's integers: 2**63 has no int64
                return [rule]
            return [reduce(lambda a, b: a & b, choice) for choice in product(*factors)]
        case Not(part=And(parts=parts)):  # ~(a & b) is ~a | ~b
            return [term for part in parts for term in terms_of(~part)]
        case _:
            return [rule]


def _layouts(term: Pattern) -> list[Layout]:
    """The orders, besides the natural one, in which a conjunction may be denser."""
    found: list[Layout] = []
    for literal in term.parts if isinstance(term, And) else (term,):
        match literal:
            case Stride(period=period) if period > 1:
                found.append(Residues(period))
            case Across(inner=Stride(period=period), step=step) if period > 1:
                found.append(Residues(period, step))
            case KeySet():
                found.append(KeySubset(literal))
            case QuerySet():
                found.append(QuerySubset(literal))
            case Explicit():
                found.append(Reordered(literal))
            case Grid():
                found += _bands(literal)
            case Part(inner=Stride(period=period)) if period > 1:
                found.append(ResiduesOfPart(literal.queries, literal.keys, period))
            case Part(inner=Documents(pattern=Stride(period=period)) as inner) if period > 1:
                found.append(ResiduesOfPart(literal.queries, literal.keys, period, inner))
            case Part(inner=Grid() as inner):
                found += [SortedPart(bands, literal) for bands in _bands(inner)]
            case Part(inner=Explicit() as inner):
                found.append(SortedPart(Reordered(inner), literal))
            case _:
                pass
    return found


def _bands(around: Grid) -> list[Bands]:
    """Bands of which a query needs three, its own in the middle, or two; of single rows; a whole column in one."""
    reach, columns = around.radii
    heights = [(1, 0), (reach, 0), (2 * reach, reach)] if columns else [(1, 0), (reach + 1, 0)]
    # Bands of one row are the natural order, unless dilation sets every second or third pixel aside.
    return [Bands(around, *each) for each in dict.fromkeys(heights) if each[0] > (around.dilation == 1)]


def _best_tile(rule: Pattern, n_queries: int, n_keys: int, offset: int) -> int:
    """All heads have one tile size, because they share masks; the first one's rule stands for the others, which in
    published patterns read elsewhere, but as much."""
    options = [_Lengths(n_queries, n_keys, offset, size) for size in TILE_SIZES]
    return min(options, key=lambda lengths: rule.derived(_assign, lengths)[1]).tile


def _assign(rule: Pattern, lengths: _Lengths) -> tuple[_Shares, float]:
    """A layout for every term of the rule, terms of equal layout joined, and the estimated cost."""
    terms, natural = terms_of(rule), Natural()
    groups: dict[Layout, list[Pattern]] = {natural: [term for term in terms if not _layouts(term)]}
    spent: dict[Layout, float] = {natural: _estimate(natural, groups[natural], lengths)}
    # One term after another goes where it adds least to what is there. Terms that share tiles, such as a window and
    # global keys, pay once for them in one layout, so the cost of a term alone would mislead.
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
    shares: _Shares = []
    for layout, members in used.items():
        # A pair that two passes hold would count twice in the softmax, so the later one leaves it out.
        earlier = [used[other] for other, _ in shares]
        share = members & ~reduce(or_, earlier) if earlier else members
        shares.append((layout, layout.within(share)))
    return shares, sum(spent.values())


def _estimate(layout: Layout, terms: list[Pattern], lengths: _Lengths) -> float:
    """The cost of some terms in a layout, from the tiles that a sample of tile rows keeps."""
    if not terms:
        return 0.0
    queries, keys = layout.derived(_orders, lengths)
    if not len(queries) or not len(keys):
        return 0.0
    tiles = _Tiling(layout.within(reduce(or_, terms)), queries, keys, lengths.n_keys)
    passes = 1 if isinstance(layout, Natural) else 2  # any other order is a further pass, whose results are merged
    return tile_cost(_about_kept(layout, tiles), len(queries), passes, lengths.tile)


def _about_kept(layout: Layout, tiles: "_Tiling") -> float:
    """How many tiles are kept, from a sample of tile rows."""
    count, long_rows = len(tiles.queries), _rows_of_global_queries(tiles)
    # The middles of equal stretches of rows: at the ends, patterns are clipped and rows cost less than most.
    sampled = np.linspace(0, count, _SAMPLED_ROWS, endpoint=False) + count / (2 * _SAMPLED_ROWS)
    sample = np.setdiff1d(sampled.astype(np.int64), long_rows)
    kept = 0.0
    for rows, stand_for in ((long_rows, len(long_rows)), (sample, count - len(long_rows))):
        if len(rows):
            kept += _count_kept(layout, tiles, rows) * stand_for / len(rows)
    return kept


def _require_room(rule: Pattern, n_queries: int, n_keys: int, offset: int) -> None:
    """Raises PatternError for lengths at which even tiles that are full would need more memory than there is: by the
    keys of a few queries, before orders of all tokens are weighed."""
    largest = max(TILE_SIZES) ** 2
    if n_queries * n_keys < _MANY_TILES * largest:
        return
    some = offset + np.linspace(0, n_queries, _SAMPLED_QUERIES, endpoint=False).astype(np.int64)
    # Half of the queries read at least so many; a few global ones say nothing of the others.
    pairs = n_queries * int(np.median(keys_read(rule, some, n_keys, 0)))
    if reason := shortage(_BYTES_OF_TILE * pairs // largest, f"a plan of about {pairs:,} pairs"):
        raise PatternError("too-much-memory", f"{reason}: {_LESS}")


_LESS = "ask for a shorter length or a sparser pattern"


def _require_memory(layout: Layout, tiles: "_Tiling") -> None:
    """Raises PatternError for a pass whose tiles need more memory than there is."""
    if len(tiles.queries) * len(tiles.keys) < _MANY_TILES:
        return
    kept = int(_about_kept(layout, tiles))
    if reason := shortage(_BYTES_OF_TILE * kept, f"a plan of about {kept:,} tiles"):
        raise PatternError("too-much-memory", f"{reason}: {_LESS}")


def _rows_of_global_queries(tiles: "_Tiling") -> Integers:
    """Tile rows that hold a query which reads everything; a sample of rows would miss or overrate them."""
    wanted = np.zeros(len(tiles.queries.positions), bool)
    for leaf in _leaves(tiles.rule):
        match leaf:
            case QuerySet():
                wanted |= leaf.contains(tiles.queries.positions, tiles.length)
            case Across(inner=GlobalQueries() as inner):
                wanted |= inner.contains(leaf.places(tiles.queries.positions), tiles.length)
    return np.unique(np.flatnonzero(wanted) // tiles.queries.tile)


def _leaves(rule: Pattern) -> Iterator[Pattern]:
    """What a rule is made of. What counts its tokens from another place is asked as a whole."""
    if not rule.children or isinstance(rule, Moved):
        yield rule
        return
    for child in rule.children:
        yield from _leaves(child)


def _count_kept(layout: Layout, tiles: "_Tiling", rows: Integers) -> int:
    row, column = layout.candidates(tiles.rule, tiles.queries, tiles.keys, rows, tiles.length, tiles.head)
    chunks = (slice(start, start + _CHUNK) for start in range(0, len(row), _CHUNK))
    return sum(int(np.count_nonzero(tiles.judge(rows[row[chunk]], column[chunk]))) for chunk in chunks)


def _orders(layout: Layout, lengths: _Lengths) -> tuple[Tiles, Tiles]:
    return layout.orders(lengths.offset, lengths.n_queries, lengths.n_keys, lengths.tile)


# --- tiles -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Tiling:
    """A rule asked about tiles: `queries` down, `keys` across, for one head of a sequence of `length` tokens."""

    rule: Pattern
    queries: Tiles
    keys: Tiles
    length: int
    head: int = 0

    def judge(self, row: Integers, column: Integers) -> Verdicts:
        """One verdict per tile pair; tiles that are no progression of the layout's step are judged by their hull."""
        # Every rule knows progressions of one step; of other sets it is told the first and last token only (step 0).
        regular = self.queries.regular[row] & self.keys.regular[column]
        result = np.empty(len(row), np.int8)
        for chosen, as_regular in ((np.flatnonzero(regular), True), (np.flatnonzero(~regular), False)):
            if len(chosen):
                q = self.queries.tokens(row[chosen], as_regular)
                k = self.keys.tokens(column[chosen], as_regular)
                result[chosen] = self.rule.judge(q, k, self.length, self.head)
        return result

    def keep(self, row: Integers, column: Integers, masks: BitMasks) -> tuple[Integers, Integers, Indices]:
        """The tiles among the candidates that hold an allowed pair, with their kinds."""
        verdict = self.judge(row, column)
        kind = np.where(verdict == Verdict.FULL, 0, -1).astype(np.int32)
        # A mixed tile is known to stay, but its mask is not known, so it is looked at like an unknown one.
        open_ = np.flatnonzero((verdict != Verdict.FULL) & (verdict != Verdict.EMPTY))
        signature = self.signatures(row[open_], column[open_])
        _, representative, which = np.unique(signature, return_index=True, return_inverse=True)
        chosen = open_[representative]
        kinds = np.empty(len(chosen), np.int32)
        step = max(1, _EXACT_CHUNK // self.queries.tile**2)
        for start in range(0, len(chosen), step):
            part = chosen[start : start + step]
            kinds[start : start + step] = self.look(row[part], column[part], masks)
        kind[open_] = kinds[which]
        kept = kind >= 0
        return row[kept], column[kept], kind[kept]

    def look(self, row: Integers, column: Integers, masks: BitMasks) -> Indices:
        """Kinds of tiles from the rule itself, evaluated on every pair of theirs; -1 for empty ones."""
        q, has_query = self.queries.places(row)
        k, has_key = self.keys.places(column)
        exists = has_query[:, :, None] & has_key[:, None, :]
        allowed = self.rule.allows(q[:, :, None], k[:, None, :], self.length, self.head) & exists
        some = allowed.any(axis=(1, 2))
        # A partial tile is full when all pairs that exist are allowed: kernels cut it off at the lengths anyway.
        full = (allowed == exists).all(axis=(1, 2))
        kinds = np.where(full, 0, -1).astype(np.int32)
        mixed = some & ~full
        kinds[mixed] = masks.add(allowed[mixed])
        kinds[~some] = -1
        return kinds

    def signatures(self, row: Integers, column: Integers) -> Integers:
        """A number per tile pair; equal numbers mean equal masks.

        A tile's mask follows from its shape and, for each leaf of the rule, from the verdict where that is final, else
        from the leaf's own signature. Leaves without a signature make the tile one of its kind.
        """
        regular = bool(self.queries.regular[row].all() and self.keys.regular[column].all())
        q, k = self.queries.tokens(row, regular), self.keys.tokens(column, regular)
        result = _pair(self.queries.shape[row], self.keys.shape[column])
        for leaf in _leaves(self.rule):
            verdict = replace(self, rule=leaf).judge(row, column)
            own = leaf.signature_of(q, k)
            own = np.arange(len(row)) if own is None else own
            final = (verdict == Verdict.FULL) | (verdict == Verdict.EMPTY)
            result = _pair(result, _pair(np.where(final, verdict, Verdict.UNKNOWN), np.where(final, 0, own)))
        return result


def _compile_pass(layout: Layout, rule: Pattern, heads: list[int], lengths: _Lengths, masks: BitMasks) -> Pass:
    queries, keys = layout.derived(_orders, lengths)
    _require_memory(layout, _Tiling(rule, queries, keys, lengths.n_keys, heads[0] if rule.heads > 1 else 0))
    # A rule without parts per head has the same tiles for all heads: one list serves them.
    own_heads = heads if rule.heads > 1 else heads[:1]
    lists = [_find_tiles(layout, _Tiling(rule, queries, keys, lengths.n_keys, head), masks) for head in own_heads]
    # No index saves a copy of the operands in token order; kernels take None for the natural order of all tokens.
    natural_queries = len(queries.positions) == lengths.n_queries and queries.step == 1
    natural_keys = len(keys.positions) == lengths.n_keys and keys.step == 1
    return Pass(
        layout=layout.text,
        heads=tuple(heads),
        n_queries=len(queries.positions),
        n_keys=len(keys.positions),
        query_index=None if natural_queries else (queries.positions - lengths.offset).astype(np.int32),
        key_index=None if natural_keys else keys.positions.astype(np.int32),
        row_offsets=list_offsets([row for row, _, _ in lists], len(queries)),
        columns=_joined([column for _, column, _ in lists]),
        kinds=_joined([kind for _, _, kind in lists]),
    )


def _joined(parts: list[Indices]) -> Indices:
    """One behind the other; one alone is not copied, as it may have hundreds of millions of entries."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _find_tiles(layout: Layout, tiles: _Tiling, masks: BitMasks) -> tuple[Indices, Indices, Indices]:
    """Row, column and kind of every tile that holds an allowed pair, sorted by row and column."""
    found: list[tuple[Indices, Indices, Indices]] = []
    for rows in _row_chunks(len(tiles.queries), len(tiles.keys)):
        at, column = layout.candidates(tiles.rule, tiles.queries, tiles.keys, rows, tiles.length, tiles.head)
        for start in range(0, len(at), _CHUNK):
            chunk = slice(start, start + _CHUNK)
            row, of_row, kind = tiles.keep(rows[at[chunk]], column[chunk], masks)
            found.append((row.astype(np.int32), of_row.astype(np.int32), kind))
    empty = np.zeros(0, np.int32)  # so that there is something to concatenate
    found.append((empty, empty, empty))
    rows_found, columns, kinds = (np.concatenate([entry[i] for entry in found]) for i in range(3))
    return rows_found, columns, kinds


def _row_chunks(n_rows: int, n_columns: int) -> Iterable[Integers]:
    """Tile rows in runs whose candidates fit into memory even if every tile is one."""
    step = max(1, 8 * _CHUNK // max(n_columns, 1))
    return (np.arange(start, min(start + step, n_rows)) for start in range(0, n_rows, step))


def _pair(left: Integers, right: Integers) -> Integers:
    """One number for each distinct pair of numbers."""
    # Ranks before the product, which of large numbers would overflow; and after it, so that the next one stays small.
    _, left = np.unique(left, return_inverse=True)
    _, right = np.unique(right, return_inverse=True)
    return np.unique(left * (right.max(initial=0) + 1) + right, return_inverse=True)[1].astype(np.int64)
