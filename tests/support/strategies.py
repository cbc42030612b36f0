"""Generated patterns that mirror the algebra: leaf, published, union, intersection, complement, shift, documents,
heads, and the tokens of another sequence.

A drawn value is an `oracle.Rule`; `build` makes the library's pattern of it. Sizes are small and include the awkward
ones: 1, primes, one below and one above a tile.
"""

from collections.abc import Callable
from typing import Any

import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import Rule, rule
from seeds import drawing

from asterism import patterns
from asterism.patterns import Pattern

LENGTHS = (1, 2, 3, 5, 7, 13, 15, 16, 17, 31, 32, 33, 47, 64, 65, 67, 97)
TILES = (16, 32, 64)

RANDOM = frozenset({"random_blocks", "yun_random"})


def tiers(quick: int, slow: int) -> list:
    """How many examples to draw: few by default, many, and others each time, in the run marked slow."""
    return [pytest.param(quick, id="few"), pytest.param(slow, id="many", marks=pytest.mark.slow)]


def hold(law: Callable[[Any], None], cases: st.SearchStrategy, count: int) -> None:
    """Check the law on `count` drawn cases."""
    drawing(count)(given(cases)(law))()


def build(rule: Rule) -> Pattern:
    """The library's pattern of a rule."""
    parts = [build(part) for part in rule.parts]
    match rule.name:
        case "or":
            return parts[0] | parts[1]
        case "and":
            return parts[0] & parts[1]
        case "not":
            return ~parts[0]
        case "per_head":
            return patterns.per_head(parts)
        case "documents":
            return patterns.documents(parts[0], *dict(rule.arguments)["sizes"])
        case "tree":
            return patterns.tree(dict(rule.arguments)["parents"], pattern=parts[0] if parts else None)
    return getattr(patterns, rule.name)(*parts, **dict(rule.arguments))


def steps_are_one(rule: Rule) -> bool:
    """Whether queries stand one token apart, as tables by distance want it."""
    return dict(rule.arguments).get("step", 1) == 1 and all(map(steps_are_one, rule.parts))


def is_predictable(rule: Rule) -> bool:
    """Whether the oracle knows every pair of it: nothing is drawn at random."""
    draws = dict(rule.arguments).get("random", 0) > 0 or rule.name in RANDOM
    return not draws and all(is_predictable(part) for part in rule.parts)


sizes = st.sampled_from((1, 2, 3, 4, 5, 7, 8, 13, 16, 20, 32))
reach = st.sampled_from((0, 1, 2, 3, 7, 15, 16, 30))
seeds = st.integers(0, 3)
positions = st.one_of(
    st.integers(-4, 6),
    st.lists(st.integers(-9, 20), min_size=1, max_size=3, unique=True).map(tuple),
)
position_tuples = st.lists(st.integers(-9, 20), max_size=3, unique=True).map(tuple)
natural_positions = st.lists(st.integers(0, 20), min_size=1, max_size=3, unique=True).map(tuple)
odd = st.sampled_from((1, 3, 5))
steps = st.sampled_from((1, 2, 4, 7, 16, "1/2", "3/2", "2/3", "5/4", "1/7", "33/2"))


def _calls(name: str, **arguments: st.SearchStrategy) -> st.SearchStrategy[Rule]:
    """Calls of one name; each optional argument is now and then left to its default."""
    return st.fixed_dictionaries(arguments).map(lambda drawn: rule(name, **drawn))


@st.composite
def _columns(draw) -> Rule:
    period = draw(sizes)
    first = draw(st.integers(0, period - 1))
    return rule("columns", period=period, first=first, count=draw(st.integers(1, period - first)))


@st.composite
def _explicit(draw, size: int) -> Rule:
    cells = st.tuples(st.integers(0, size - 1), st.integers(0, size - 1))
    edges = draw(st.lists(cells, min_size=1, max_size=12))
    return rule("explicit", source=oracle.text_of_edges(edges), size=size)


@st.composite
def _fixed(draw, heads: int) -> Rule:
    stride = draw(st.integers(1, 17))
    return rule("fixed", stride=stride, summary=draw(st.integers(1, stride)), heads=draw(st.sampled_from((1, heads))))


@st.composite
def parents(draw, size: int) -> tuple[int, ...]:
    """Parents of so many tokens: a few chains that hang from anywhere, in depth-first order or not."""
    jumps = draw(st.dictionaries(st.integers(0, size - 1), st.integers(-1, size), max_size=8))
    depth_first = draw(st.booleans())
    found: list[int] = []
    for token in range(size):
        last = oracle.path_to(found, token - 1)
        choices = [-1, *last] if depth_first else range(-1, token)
        found.append(choices[jumps[token] % len(choices)] if token in jumps else token - 1)
    return tuple(found)


@st.composite
def _tree(draw, size: int) -> Rule:
    """A tree, whose paths follow a rule that does not depend on the length."""
    inner = st.one_of(
        st.just(rule("dense")),
        _calls("window", left=reach, right=reach, dilation=st.integers(1, 3)),
        _calls("stride", period=sizes),
        _calls("blocks", size=sizes, left=st.integers(0, 2)),
        _calls("sinks", first=st.integers(1, 6), window=sizes),
    )
    return oracle.tree(draw(parents(size)), *draw(st.lists(inner, max_size=1)))


radii = st.one_of(st.integers(0, 3), st.tuples(st.integers(0, 9), st.integers(0, 3)))
grids = _calls("grid", width=sizes, radius=radii, dilation=st.integers(1, 4), channels=st.integers(1, 4))


def leaves(size: int) -> st.SearchStrategy[Rule]:
    """Primitives without randomness; `size` is the largest length that will be asked for."""
    return st.one_of(
        st.sampled_from((rule("dense"), rule("causal"))),
        _calls("window", left=reach, right=reach, dilation=st.integers(1, 4)),
        _calls("stride", period=sizes),
        _calls("blocks", size=sizes, left=st.integers(0, 2), right=st.integers(0, 2)),
        _columns(),
        grids,
        _calls("global_keys", positions=positions, block=sizes),
        _calls("global_queries", positions=positions, block=sizes),
        _calls("global_tokens", positions=positions, block=sizes),
        _explicit(size),
        _tree(size),
    )


def document_sizes(most: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Lengths of documents, each at most so long; empty ones and gaps (below 0) among them."""
    return st.lists(st.integers(-3, most), max_size=6).map(tuple)


def across(inner: st.SearchStrategy[Rule]) -> st.SearchStrategy[Rule]:
    """Rules asked from another sequence."""
    return st.builds(oracle.across, inner, steps)


def cross_rules(size: int, *, heads: int = 1, depth: int = 4) -> st.SearchStrategy[Rule]:
    """Compositions that any number of queries may ask: what they read needs no place among the keys."""
    inner = rules(size, heads=heads, depth=depth).filter(lambda part: "across" not in part.names)
    by_key = st.one_of(st.just(rule("dense")), _columns(), _calls("global_keys", positions=positions, block=sizes))

    def extend(part: st.SearchStrategy[Rule]) -> st.SearchStrategy[Rule]:
        pairs = st.tuples(part, st.one_of(part, by_key))
        return st.one_of(
            pairs.map(lambda pair: pair[0] | pair[1]),
            pairs.map(lambda pair: pair[0] & pair[1]),
            part.map(lambda one: ~one),
        )

    return st.one_of(by_key, st.recursive(across(inner), extend, max_leaves=2))


def random_leaves(heads: int) -> st.SearchStrategy[Rule]:
    some_heads = st.sampled_from((1, heads))
    blocks = _calls(
        "random_blocks",
        block=sizes,
        count=st.integers(1, 3),
        seed=seeds,
        heads=some_heads,
        earlier=st.booleans(),
        window_blocks=st.sampled_from((0, 1, 3, 5)),
        avoid=st.lists(st.integers(-2, 4), max_size=2, unique=True).map(tuple),
    )
    return st.one_of(blocks, _calls("yun_random", count=st.integers(1, 4), seed=seeds))


def published(heads: int, *, draws: bool = True) -> st.SearchStrategy[Rule]:
    """The patterns of the literature at small sizes; `draws` allows random blocks in the BigBird family."""
    random = st.integers(0, 2) if draws else st.just(0)
    some_heads = st.sampled_from((1, heads)) if draws else st.just(1)
    bigbird = {"block": sizes, "window_blocks": odd, "random": random, "seed": seeds, "heads": some_heads}
    return st.one_of(
        _calls("strided", stride=sizes),
        _fixed(heads),
        _calls("bigbird", **bigbird),
        _calls("bigbird_etc", **bigbird, globals=st.integers(1, 6)),
        _calls("bigbird_causal", **bigbird, globals=natural_positions),
        _calls(
            "longformer", window=st.sampled_from((2, 4, 6, 16)), dilation=st.integers(1, 3), globals=position_tuples
        ),
        st.sampled_from((rule("star"), rule("star_transformer"), rule("yun_star"))),
        _calls("yun_strided", w=st.integers(1, 9)),
        _calls("yun_fixed", w=st.integers(1, 9)),
        _calls("yun_window", w=st.integers(1, 9)),
        _calls("sinks", first=st.integers(1, 6), window=sizes),
    )


def rules(size: int, *, heads: int = 1, draws: bool = True, depth: int = 5) -> st.SearchStrategy[Rule]:
    """Compositions with 1 or `heads` heads, for lengths up to `size`; without `draws` the oracle knows every pair."""
    single = _compositions(size, 1, draws, depth)
    if heads == 1:
        return single
    stacks = st.lists(single, min_size=heads, max_size=heads).map(lambda parts: oracle.per_head(*parts))
    return st.one_of(single, _compositions(size, heads, draws, depth), stacks)


def _compositions(size: int, heads: int, draws: bool, depth: int) -> st.SearchStrategy[Rule]:
    bases = [leaves(size), published(heads, draws=draws)] + [random_leaves(heads)] * draws

    def extend(inner: st.SearchStrategy[Rule]) -> st.SearchStrategy[Rule]:
        pairs = st.tuples(inner, inner)
        return st.one_of(
            pairs.map(lambda pair: pair[0] | pair[1]),
            pairs.map(lambda pair: pair[0] & pair[1]),
            inner.map(lambda part: ~part),
            st.builds(oracle.shifted, inner, st.sampled_from((0, 1, 2, 5, 16))),
            st.builds(lambda part, some: oracle.documents(part, *some), inner, document_sizes(size)),
            across(inner.filter(lambda part: "across" not in part.names)),
        )

    return st.recursive(st.one_of(*bases), extend, max_leaves=depth)


def causal_rules(size: int, *, heads: int = 1, depth: int = 4) -> st.SearchStrategy[Rule]:
    """Compositions that read no future."""
    return rules(size, heads=heads, depth=depth).map(lambda drawn: drawn & rule("causal"))


@st.composite
def questions(draw, *, heads: int = 3, draws: bool = True) -> tuple[Rule, int]:
    """A rule and a length to ask it for."""
    length = draw(st.sampled_from(LENGTHS))
    return draw(rules(length, heads=heads, draws=draws)), length


@st.composite
def ranges(draw, length: int) -> tuple[int, int]:
    """A non-empty half-open range inside [0, length)."""
    start = draw(st.integers(0, length - 1))
    return start, draw(st.integers(start + 1, length))
