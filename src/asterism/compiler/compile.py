"""Compiles a pattern into a plan.

    rule -> a union of terms -> a layout for each term -> per layout, the tiles that hold an allowed pair -> masks
            terms.py            layout.py, bands.py       tiles.py                                       tables.py

Terms with equal layouts share a pass, and each pass leaves out what earlier passes hold, so that no pair counts twice.
"""

from dataclasses import dataclass, replace
from functools import reduce
from operator import or_

import numpy as np

from asterism.compiler.bands import Bands
from asterism.compiler.cost import TILE_SIZES, tile_cost
from asterism.compiler.join import join
from asterism.compiler.layout import DepthFirst, KeySubset, Layout, Natural, QuerySubset, Reordered, Residues, Tiles
from asterism.compiler.parts import ResiduesOfPart, SortedPart
from asterism.compiler.plan import Indices, Pass, Plan
from asterism.compiler.tables import BitMasks, list_offsets
from asterism.compiler.terms import concrete, terms_of
from asterism.compiler.tiles import Tiling
from asterism.errors import PatternError
from asterism.memory import shortage
from asterism.patterns.across import Across
from asterism.patterns.documents import Documents
from asterism.patterns.draw import keys_read
from asterism.patterns.explicit import Explicit
from asterism.patterns.grid import Grid
from asterism.patterns.part import Part
from asterism.patterns.pattern import And, Pattern, resolve_lengths
from asterism.patterns.primitives import KeySet, QuerySet, Stride
from asterism.patterns.selected import require_static
from asterism.patterns.text import parse
from asterism.patterns.tree import Tree

_LONG_DOCUMENT = 2048
"""Tokens from which on documents may have tiles of 128."""

_MANY_TILES = 2**26
"""A pass that could have so many tiles is looked at for the memory that they take before they are found."""

_SAMPLED_QUERIES = 5

_BYTES_OF_TILE = 24
"""While a plan is made: its row, column and kind, twice when those of all parts are joined. The plan keeps 8."""


def compile_pattern(
    pattern: Pattern | str,
    n_queries: int,
    n_keys: int | None = None,
    *,
    query_offset: int | None = None,
    tile: int | None = None,
) -> Plan:
    """Compile a pattern (or its text) into a plan for the given lengths; equal calls return the same object.

    `n_keys` defaults to n_queries. `query_offset`, the position of the first query, defaults to n_keys - n_queries, or
    to 0 in cross attention. `tile` is 16, 32, 64 or 128; by default the cost model chooses it. Raises PatternError if
    the lengths do not fit each other or the pattern, or for another tile size.
    """
    pattern = parse(pattern) if isinstance(pattern, str) else pattern
    require_static(pattern, "a plan")
    n_keys, offset = resolve_lengths(pattern, n_queries, n_keys, query_offset)
    if tile is not None and tile not in (16, *TILE_SIZES):
        raise PatternError("tile-size", f"the tile size must be 16, 32, 64 or 128, got {tile}")
    return pattern.derived(_compile, n_queries, n_keys, offset, tile)


def compile_in_order(rule: Pattern, n_queries: int, n_keys: int, query_offset: int, tile: int) -> Plan:
    """The plan of a rule of one head with all tokens in their natural order: at most one pass, with one list.

    The arguments are those of `compile_pattern`; made once. Raises PatternError where it needs more memory than there
    is.
    """
    return rule.derived(_compile_in_order, n_queries, n_keys, query_offset, tile)


def _compile_in_order(rule: Pattern, *place: int) -> Plan:
    lengths = _Lengths(*place)
    _require_room(rule, lengths.n_queries, lengths.n_keys, lengths.offset)
    extent = max(lengths.n_keys, lengths.offset + lengths.n_queries)
    return _arrange(rule, lengths, [[(Natural(), concrete(rule, 0, extent))]])


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


def _compile_pass(layout: Layout, rule: Pattern, heads: list[int], lengths: _Lengths, masks: BitMasks) -> Pass:
    # A rule without parts per head has the same tiles for all heads: one list serves them.
    own_heads = heads if rule.heads > 1 else heads[:1]
    tilings = [_tiling(layout, rule, lengths, head) for head in own_heads]
    _require_memory(tilings[0])
    lists = [tiling.find(masks) for tiling in tilings]
    queries, keys = tilings[0].queries, tilings[0].keys
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


def _tiling(layout: Layout, rule: Pattern, lengths: _Lengths, head: int = 0) -> Tiling:
    queries, keys = layout.derived(_orders, lengths)
    return Tiling(layout, rule, queries, keys, lengths.n_keys, head)


def _orders(layout: Layout, lengths: _Lengths) -> tuple[Tiles, Tiles]:
    return layout.orders(lengths.offset, lengths.n_queries, lengths.n_keys, lengths.tile)


# --- documents -------------------------------------------------------------------------------------------------------


def _compile_documents(pattern: Documents, length: int, tile: int | None) -> Plan:
    """Joined from a plan for each length of documents, which other sequences of documents find in the cache again."""
    starts, stops = pattern.bounds
    lengths, which = np.unique(stops - starts, return_inverse=True)
    longest = int(lengths.max(initial=0))
    for head in range(pattern.heads if longest else 0):
        pattern.pattern.verdict((0, 1), (0, 1), longest, head)  # it raises its own errors before anything is compiled
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


# --- a layout for every term ------------------------------------------------------------------------------------------


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
            case Tree(forest=forest) if not forest.is_depth_first:
                found.append(DepthFirst(literal))
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
            case Part(inner=Tree(forest=forest) as inner) if not forest.is_depth_first:
                found.append(SortedPart(DepthFirst(inner), literal))
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
    tiling = _tiling(layout, layout.within(reduce(or_, terms)), lengths)
    if not len(tiling.queries) or not len(tiling.keys):
        return 0.0
    passes = 1 if isinstance(layout, Natural) else 2  # any other order is a further pass, whose results are merged
    return tile_cost(tiling.estimate(), len(tiling.queries), passes, lengths.tile)


# --- memory -----------------------------------------------------------------------------------------------------------


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


def _require_memory(tiling: Tiling) -> None:
    """Raises PatternError for a pass whose tiles need more memory than there is."""
    if len(tiling.queries) * len(tiling.keys) < _MANY_TILES:
        return
    kept = int(tiling.estimate())
    if reason := shortage(_BYTES_OF_TILE * kept, f"a plan of about {kept:,} tiles"):
        raise PatternError("too-much-memory", f"{reason}: {_LESS}")
