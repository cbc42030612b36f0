"""The patterns of the literature, as compositions of primitives.

If a paper and its code disagree, the docstring names the one that is followed. `parts` of each result are the factors
that the paper lists, for use on alternating layers or heads: `interleave(*strided(128).parts)`.
"""

import inspect
from collections.abc import Callable, Sequence
from functools import reduce, wraps
from operator import or_
from typing import ParamSpec

from asterism.errors import PatternError, shown
from asterism.patterns import primitives
from asterism.patterns.pattern import MOST_HEADS, Named, Pattern, check_integer, named
from asterism.patterns.random_blocks import check_window_blocks, random_blocks

Arguments = ParamSpec("Arguments")


def _published(compose: Callable[Arguments, Named]) -> Callable[Arguments, Named]:
    """Make a function that unites the parts of a pattern into one whose result carries the call as its name."""
    signature = inspect.signature(compose)

    @wraps(compose)
    def build(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Named:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        values = {name: _canonical(value) for name, value in bound.arguments.items()}
        call: Callable[..., Named] = compose
        union = call(**values)
        return named(compose, values, union.body, union.parts)

    return build


def _union(*parts: Pattern) -> Named:
    """The union of some parts, which it keeps; `_published` gives it its name."""
    body = reduce(or_, parts)
    return Named(body.text, body.text, body, parts)


def _canonical(value: object) -> object:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(_canonical(item) for item in value)
    return int(value) if hasattr(value, "__index__") and not isinstance(value, bool) else value


# --- Child et al. 2019, Sparse Transformers ---------------------------------------------------------------------------


@_published
def strided(stride: int) -> Named:
    """The strided pattern: the last `stride` tokens and every stride-th token before (Child 2019, section 4).

    A(1) = {i - stride, ..., i}, as printed (stride + 1 positions; the authors' code has stride), and
    A(2) = {j : (i - j) mod stride = 0}, both causal. Their union is the same under either reading. Raises PatternError
    for stride < 1.
    """
    check_integer("strided", "stride", stride, 1)
    return _union(primitives.window(left=stride), primitives.stride(stride) & primitives.causal())


@_published
def fixed(stride: int, summary: int = 1, heads: int = 1) -> Named:
    """The fixed pattern: the own block of `stride` tokens and the last `summary` cells of every block (Child 2019, 4).

    A(1) = {j : j // l = i // l} and A(2) = {j : j mod l in {l - c, ..., l - 1}}, both causal. With `heads` > 1, head h
    reads the h-th sub-block of `summary` cells counted from the end of the block (modulo the number of sub-blocks), as
    the paper recommends. Raises PatternError when the summary does not fit into the stride.
    """
    stride, summary = check_integer("fixed", "stride", stride, 1), check_integer("fixed", "summary", summary, 1)
    heads = check_integer("fixed", "heads", heads, 1, MOST_HEADS)
    if summary > stride:
        raise PatternError(
            "summary-beyond-stride", f"fixed: summary must be at most the stride, got {summary} > {stride}"
        )
    cells = [
        primitives.columns(stride, stride - summary * (1 + head % (stride // summary)), summary)
        for head in range(heads)
    ]
    return _union(
        primitives.blocks(stride) & primitives.causal(),
        (primitives.per_head(cells) if heads > 1 else cells[0]) & primitives.causal(),
    )


# --- Zaheer et al. 2020, BigBird --------------------------------------------------------------------------------------


@_published
def bigbird(
    block: int = 64,
    window_blocks: int = 3,
    random: int = 3,
    globals: Sequence[int] = (0, -1),
    seed: int = 0,
    heads: int = 1,
) -> Named:
    """BigBird-ITC: window, random and global *blocks* (Zaheer 2020, section 2 and appendix D).

    A query block reads the `window_blocks` blocks around it, itself in the middle (an odd number; ends are clipped, as
    in the authors' code, not wrapped as in the paper's figure), `random` further blocks of its own drawing outside
    window and globals, and the global blocks `globals` (first and last by default), which also read everything. The
    last block may be partial. The published base model reads (2 + 3 + 3) * 64 = 512 keys per ordinary query. Not
    prefix-stable: see `bigbird_causal`.

    Raises PatternError for sizes < 1, an even number of blocks in the window, and globals that are not a list of
    positions.
    """
    check_window_blocks("bigbird", window_blocks)
    return _union(
        *_bigbird_parts(block, window_blocks, random, _positions("bigbird", globals), seed, heads, earlier=False)
    )


@_published
def bigbird_etc(
    block: int = 84, window_blocks: int = 3, random: int = 0, globals: int = 256, seed: int = 0, heads: int = 1
) -> Named:
    """BigBird-ETC: `globals` extra tokens in front read everything and are read by all (Zaheer 2020, section 2).

    The remaining tokens follow the block window and the random blocks, counted from the first ordinary token. The
    defaults are the published base model (block 84, window 3 * 84, 256 global tokens, no random blocks). Raises
    PatternError as `bigbird` does.
    """
    check_window_blocks("bigbird_etc", window_blocks)
    extra = check_integer("bigbird_etc", "globals", globals, 1)
    inner = _bigbird_parts(block, window_blocks, random, (), seed, heads, earlier=False)
    return _union(*(primitives.shifted(part, extra) for part in inner), primitives.global_tokens((0,), block=extra))


@_published
def bigbird_causal(
    block: int = 64,
    window_blocks: int = 3,
    random: int = 3,
    globals: Sequence[int] = (0,),
    seed: int = 0,
    heads: int = 1,
) -> Named:
    """The prefix-stable relative of BigBird, for generation.

    As `bigbird`, but every part is causal, random blocks are drawn among earlier blocks only, and the global blocks are
    named from the front, so that what a query may read never changes as the sequence grows. Raises PatternError as
    `bigbird` does, and for globals that count from the end.
    """
    check_window_blocks("bigbird_causal", window_blocks)
    positions = _positions("bigbird_causal", globals)
    if any(number < 0 for number in positions):
        raise PatternError("globals-from-end", f"bigbird_causal: globals must not count from the end, got {positions}")
    parts = _bigbird_parts(block, window_blocks, random, positions, seed, heads, earlier=True)
    return _union(*(part & primitives.causal() for part in parts))


def _positions(call: str, globals: Sequence[int]) -> tuple[int, ...]:
    if not isinstance(globals, tuple):
        raise PatternError(
            "globals-form", f"{call}: globals must be a list of positions such as (0, -1), got {shown(globals)}"
        )
    return tuple(check_integer(call, "globals", number) for number in globals)


def _bigbird_parts(
    block: int, window_blocks: int, random: int, globals: tuple[int, ...], seed: int, heads: int, earlier: bool
) -> tuple[Pattern, ...]:
    side = window_blocks // 2
    parts = [primitives.blocks(block, side, side)]
    if check_integer("bigbird", "random", random, 0):
        parts.append(random_blocks(block, random, seed, heads, earlier, window_blocks=window_blocks, avoid=globals))
    if globals:
        parts.append(primitives.global_tokens(globals, block))
    return tuple(parts)


# --- Longformer, StreamingLLM -----------------------------------------------------------------------------------------


@_published
def longformer(window: int = 512, dilation: int = 1, globals: Sequence[int] = (0,)) -> Named:
    """Longformer: neighbours, dilated, and global tokens (Beltagy 2020, section 3.1).

    `window` is the paper's: the tokens of both sides together, window // 2 on each, and the token itself counted apart.
    Raises PatternError for a negative window, dilation < 1, and globals that are not a list of
    positions.
    """
    side = check_integer("longformer", "window", window, 0) // 2
    local, positions = primitives.window(side, side, dilation), _positions("longformer", globals)
    return _union(local, primitives.global_tokens(positions)) if positions else _union(local)


@_published
def sinks(first: int = 4, window: int = 1024) -> Named:
    """Attention sinks: the first tokens, and the last `window` ones before and with the query's own (Xiao 2023, 3.2).

    `window` is the paper's, the query's own token included: `sinks(first=4, window=508)` reads and keeps 512 keys, as
    `window(left=511)` does. Raises PatternError for numbers < 1.
    """
    first, window = check_integer("sinks", "first", first, 1), check_integer("sinks", "window", window, 1)
    return _union(primitives.global_keys((0,), block=first) & primitives.causal(), primitives.window(window - 1))


# --- stars ------------------------------------------------------------------------------------------------------------


@_published
def star() -> Named:
    """The star graph: hub 0 reads all and is read by all (Zaheer 2020, appendix A, Definition 1).

    Every token reads itself. (The definition lists N(0) = {1, ..., n} without the hub itself; this star contains it,
    which is all that the theorem asks.)
    """
    return _union(primitives.global_tokens((0,)), primitives.window())


@_published
def star_transformer() -> Named:
    """The Star-Transformer: relay 0 reads all and is read by all; the others form a ring (Guo 2019).

    Satellites 1, ..., n - 1 read themselves and both neighbours on the ring, which closes from n - 1 to 1.
    """
    first_to_last = primitives.global_queries((1,)) & primitives.global_keys((-1,))
    last_to_first = primitives.global_queries((-1,)) & primitives.global_keys((1,))
    return _union(primitives.global_tokens((0,)), primitives.window(1, 1), first_to_last, last_to_first)


# --- Yun et al. 2020, O(n) connections are expressive enough ---------------------------------------------------------


@_published
def yun_strided(w: int) -> Named:
    """STRIDED: {k - ceil(w/2), ..., k + floor(w/2)} and the residue class of k modulo w (Yun 2020, section 2.6).

    Raises PatternError for w < 1.
    """
    w = check_integer("yun_strided", "w", w, 1)
    return _union(primitives.window(left=-(-w // 2), right=w // 2), primitives.stride(w))


@_published
def yun_fixed(w: int) -> Named:
    """FIXED: the own block of w tokens; the token itself and the last token of every block (Yun 2020, section 2.6).

    Raises PatternError for w < 1.
    """
    w = check_integer("yun_fixed", "w", w, 1)
    return _union(primitives.blocks(w), primitives.columns(w, w - 1) | primitives.window())


@_published
def yun_star() -> Named:
    """STAR: the last token is the relay; the others read it, themselves and ring neighbours (Yun 2020, section 2.6).

    As written there, 1-based: A_k = [n] and {n, (k-1) mod (n-1), k, (k+1) mod (n-1)}. The results 0 of the mod lie
    outside [n] and drop out: token n - 2 does not read n - 1, and token 1 has no neighbour before it.
    """
    dropped = primitives.global_queries((-3,)) & primitives.global_keys((-2,))
    closing = primitives.global_queries((-2,)) & primitives.global_keys((0,))
    return _union(primitives.global_tokens((-1,)), primitives.window(1, 1) & ~dropped, closing)


@_published
def yun_window(w: int) -> Named:
    """Sliding window: {k - ceil(w/2), ..., k + floor(w/2)} (Yun 2020, section 2.6). Raises PatternError for w < 1."""
    w = check_integer("yun_window", "w", w, 1)
    return _union(primitives.window(left=-(-w // 2), right=w // 2))


@_published
def yun_random(count: int, seed: int = 0) -> Named:
    """RANDOM: every token reads itself and `count` keys drawn uniformly (Yun 2020, section 2.6, experiments only).

    Raises PatternError as `random_blocks` does.
    """
    return _union(random_blocks(1, count, seed, window_blocks=1), primitives.window())
