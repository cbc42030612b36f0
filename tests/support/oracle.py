"""Who may attend to whom, said a second time in plain loops, so that the library can be compared with something.

A `Rule` is a pattern written as data: a name of the vocabulary, its arguments, and the rules it is made of. `allowed`
answers for one query and one key with integers only; `picture` draws the answers. Nothing here imports the library:
the two sides share the definitions of the papers and of the documentation, and no code.

Random patterns cannot be predicted from their definition; `random_choices` says which blocks may be drawn and how many.
`attention` and `attention_gradients` are softmax attention under a boolean mask, in float64 and by formula.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Rule:
    """A pattern as data. `text` is what a user would write for it."""

    name: str
    arguments: tuple[tuple[str, Any], ...] = ()
    parts: tuple["Rule", ...] = ()

    def __or__(self, other: "Rule") -> "Rule":
        return Rule("or", parts=(self, other))

    def __and__(self, other: "Rule") -> "Rule":
        return Rule("and", parts=(self, other))

    def __invert__(self) -> "Rule":
        return Rule("not", parts=(self,))

    @property
    def text(self) -> str:
        parts = [part.text for part in self.parts]
        arguments = [f"{name}={value!r}" for name, value in self.arguments]
        match self.name:
            case "or":
                return f"({parts[0]} | {parts[1]})"
            case "and":
                return f"({parts[0]} & {parts[1]})"
            case "not":
                return f"~{parts[0]}"
            case "per_head":
                return f"per_head([{', '.join(parts)}])"
            case "documents":
                return f"documents({', '.join([*parts, *map(str, dict(self.arguments)['sizes'])])})"
            case "tree":
                return f"tree({', '.join(arguments + [f'pattern={part}' for part in parts])})"
        return f"{self.name}({', '.join(parts + arguments)})"

    def __repr__(self) -> str:
        return self.text

    @property
    def heads(self) -> int:
        if self.name == "per_head":
            return len(self.parts)
        own = dict(self.arguments).get("heads", 1)
        return max([own, *(part.heads for part in self.parts)])

    @property
    def names(self) -> frozenset[str]:
        return frozenset({self.name}).union(*(part.names for part in self.parts))


def rule(name: str, **arguments: Any) -> Rule:
    return Rule(name, tuple(arguments.items()))


def shifted(part: Rule, by: int) -> Rule:
    return Rule("shifted", (("by", by),), (part,))


def per_head(*parts: Rule) -> Rule:
    return Rule("per_head", parts=parts)


def documents(part: Rule, *sizes: int) -> Rule:
    return Rule("documents", (("sizes", sizes),), (part,))


def tree(parents: Sequence[int], *part: Rule) -> Rule:
    """Each token reads its ancestors and itself, or those that the part allows by their depths."""
    return Rule("tree", (("parents", tuple(parents)),), part)


def across(part: Rule, step: int | str) -> Rule:
    return Rule("across", (("step", step),), (part,))


def fraction(step: int | str) -> tuple[int, int]:
    above, _, below = str(step).partition("/")
    return int(above), int(below or 1)


# ---------------------------------------------------------------------------------------------------------------------
# One predicate per name: (q, k, n, head, **arguments) -> bool.


def resolve(positions: int | Sequence[int], count: int) -> set[int]:
    """Positions among `count` cells; negative ones from the end, those out of range dropped."""
    listed = [positions] if isinstance(positions, int) else list(positions)
    return {p if p >= 0 else p + count for p in listed if -count <= p < count}


def blocks_in(n: int, block: int) -> int:
    return -(-n // block)


def window(q, k, n, head, left=0, right=0, dilation=1):
    distance = q - k
    return distance % dilation == 0 and -right * dilation <= distance <= left * dilation


def stride(q, k, n, head, period):
    return q % period == k % period


def blocks(q, k, n, head, size, left=0, right=0):
    return -right <= q // size - k // size <= left


def columns(q, k, n, head, period, first=0, count=1):
    return k % period in range(first, first + count)


def grid(q, k, n, head, width, radius, dilation=1, channels=1):
    return k in neighbours(q, width, radius, dilation, channels)


@cache
def neighbours(q: int, width: int, radius: int | tuple[int, int], dilation: int, channels: int) -> frozenset[int]:
    """Every value of the pixels around the one of q, from row to row and column to column, none beyond an end."""
    rows, columns = radius if isinstance(radius, tuple) else (radius, radius)
    pixel = q // channels
    row, column = pixel // width, pixel % width
    found = set()
    for down in range(-rows, rows + 1):
        for right in range(-columns, columns + 1):
            other_row, other_column = row + down * dilation, column + right * dilation
            if other_row >= 0 and 0 <= other_column < width:
                for channel in range(channels):
                    found.add((other_row * width + other_column) * channels + channel)
    return frozenset(found)


def global_keys(q, k, n, head, positions, block=1):
    return k // block in resolve(positions, blocks_in(n, block))


def global_queries(q, k, n, head, positions, block=1):
    # A query of another sequence may stand beyond the last block, where a position from the front still names it.
    listed = {positions} if isinstance(positions, int) else set(positions)
    return q // block in listed | resolve(positions, blocks_in(n, block))


def global_tokens(q, k, n, head, positions, block=1):
    return global_keys(q, k, n, head, positions, block) or global_queries(q, k, n, head, positions, block)


def explicit(q, k, n, head, source, size=None):
    return (q, k) in edges_of(source)


@cache
def edges_of(source: str) -> frozenset[tuple[int, int]]:
    """The pairs of the text "query:keys;query:keys", keys being numbers and inclusive ranges."""
    edges = set()
    for row in filter(None, source.split(";")):
        query, keys = row.split(":")
        for item in filter(None, keys.split(",")):
            low, _, high = item.partition("-")
            edges |= {(int(query), key) for key in range(int(low), int(high or low) + 1)}
    return frozenset(edges)


def text_of_edges(edges: Iterable[tuple[int, int]]) -> str:
    rows: dict[int, list[int]] = {}
    for query, key in sorted(set(edges)):
        rows.setdefault(query, []).append(key)
    return ";".join(f"{query}:{','.join(map(str, keys))}" for query, keys in rows.items())


def strided(q, k, n, head, stride):
    return k <= q and (q - k <= stride or (q - k) % stride == 0)


def fixed(q, k, n, head, stride, summary=1, heads=1):
    first = stride - summary * (1 + head % (stride // summary)) if heads > 1 else stride - summary
    return k <= q and (q // stride == k // stride or first <= k % stride < first + summary)


def bigbird(q, k, n, head, block=64, window_blocks=3, random=0, globals=(0, -1), seed=0, heads=1):
    """Window and global blocks; the random ones are left to the laws of `random_choices`."""
    return abs(q // block - k // block) <= window_blocks // 2 or global_tokens(q, k, n, head, globals, block)


def bigbird_etc(q, k, n, head, block=84, window_blocks=3, random=0, globals=256, seed=0, heads=1):
    if q < globals or k < globals:
        return True
    return abs((q - globals) // block - (k - globals) // block) <= window_blocks // 2


def bigbird_causal(q, k, n, head, block=64, window_blocks=3, random=0, globals=(0,), seed=0, heads=1):
    return k <= q and bigbird(q, k, n, head, block, window_blocks, random, globals)


def longformer(q, k, n, head, window=512, dilation=1, globals=(0,)):
    half = window // 2
    near = (q - k) % dilation == 0 and abs(q - k) <= half * dilation
    return near or global_tokens(q, k, n, head, globals)


def star(q, k, n, head):
    return q == k or 0 in (q, k)


def star_transformer(q, k, n, head):
    ring = n - 1
    return 0 in (q, k) or (abs(q - k) <= 1 if q >= n else (q - k) % ring in (0, 1, ring - 1))


def yun_window(q, k, n, head, w):
    token, other = q + 1, k + 1
    return token - -(-w // 2) <= other <= token + w // 2


def yun_strided(q, k, n, head, w):
    return yun_window(q, k, n, head, w) or (q - k) % w == 0


def yun_fixed(q, k, n, head, w):
    token, other = q + 1, k + 1
    block_end = -(-token // w) * w
    return block_end - w + 1 <= other <= block_end or other == token or other % w == 0


def yun_star(q, k, n, head):
    token, other = q + 1, k + 1
    if token > n:
        return other == n or abs(token - other) <= 1
    return token == n or other in {n, (token - 1) % (n - 1), token, (token + 1) % (n - 1)}


def sinks(q, k, n, head, first=4, window=1024):
    return k <= q and (k < first or q - k < window)


PREDICATES: dict[str, Callable[..., bool]] = {
    "dense": lambda q, k, n, head: True,
    "causal": lambda q, k, n, head: k <= q,
    **{
        predicate.__name__: predicate
        for predicate in (
            window,
            stride,
            blocks,
            columns,
            grid,
            global_keys,
            global_queries,
            global_tokens,
            explicit,
            strided,
            fixed,
            bigbird,
            bigbird_etc,
            bigbird_causal,
            longformer,
            star,
            star_transformer,
            yun_window,
            yun_strided,
            yun_fixed,
            yun_star,
            sinks,
        )
    },
}


def allowed(rule: Rule, q: int, k: int, n: int, head: int = 0) -> bool:
    """Whether query q may attend to key k in a sequence of n tokens."""
    match rule.name:
        case "or":
            return any(allowed(part, q, k, n, head) for part in rule.parts)
        case "and":
            return all(allowed(part, q, k, n, head) for part in rule.parts)
        case "not":
            return not allowed(rule.parts[0], q, k, n, head)
        case "per_head":
            return allowed(rule.parts[head], q, k, n, 0)
        case "shifted":
            by = dict(rule.arguments)["by"]
            return min(q, k) >= by and allowed(rule.parts[0], q - by, k - by, n - by, head)
        case "across":
            numerator, denominator = fraction(dict(rule.arguments)["step"])
            return allowed(rule.parts[0], q * numerator // denominator, k, n, head)
        case "tree":
            return on_path(dict(rule.arguments)["parents"], rule.parts, q, k, head)
        case "documents":
            start = 0
            for size in dict(rule.arguments)["sizes"]:
                if start <= min(q, k) and max(q, k) < start + size:
                    return allowed(rule.parts[0], q - start, k - start, size, head)
                start += abs(size)
            return False
    return bool(PREDICATES[rule.name](q, k, n, head, **dict(rule.arguments)))


def path_to(parents: Sequence[int], token: int) -> list[int]:
    """The ancestors of a token, from the root, and the token itself; none for a token that the tree does not have."""
    path = []
    while 0 <= token < len(parents):
        path.append(token)
        token = parents[token]
    return path[::-1]


def on_path(parents: Sequence[int], inner: Sequence[Rule], q: int, k: int, head: int) -> bool:
    path = path_to(parents, q)
    if k not in path:
        return False
    return not inner or allowed(inner[0], len(path) - 1, path.index(k), len(parents), head)


def picture(rule: Rule, n_queries: int, n_keys: int | None = None, query_offset: int | None = None) -> np.ndarray:
    """bool [heads, n_queries, n_keys]; the queries are the last of the keys' positions unless an offset is given.

    Those of another sequence are the first ones.
    """
    n = n_queries if n_keys is None else n_keys
    last = 0 if "across" in rule.names else n - n_queries
    offset = last if query_offset is None else query_offset
    rows = range(offset, offset + n_queries)
    cells = [[[allowed(rule, q, k, n, h) for k in range(n)] for q in rows] for h in range(rule.heads)]
    return np.array(cells, dtype=bool).reshape(rule.heads, n_queries, n)


# ---------------------------------------------------------------------------------------------------------------------
# What a random draw must obey.


def random_choices(row: int, count: int, blocks: int, earlier: bool, window_blocks: int, avoid: Sequence[int]):
    """The key blocks that a query block may draw, and how many of them it draws."""
    forbidden = resolve(avoid, blocks)
    limit = row if earlier else blocks
    candidates = {b for b in range(limit) if 2 * abs(row - b) + 1 > window_blocks and b not in forbidden}
    return candidates, min(count, len(candidates))


def block_picture(picture: np.ndarray, block: int) -> np.ndarray:
    """bool [..., blocks, blocks] of a picture that is constant on blocks; fails where it is not."""
    n = picture.shape[-1]
    firsts = np.arange(0, n, block)
    coarse = picture[..., firsts, :][..., firsts]
    index = np.arange(n) // block
    assert np.array_equal(coarse[..., index, :][..., index], picture), "the picture is not constant on blocks"
    return coarse


def is_prefix_stable(pictures: Iterable[np.ndarray]) -> bool:
    """Whether no pair (q, k <= q) changes between pictures [heads, n, n] of growing lengths."""
    return is_stable(np.tril(picture) for picture in pictures)


def is_stable(pictures: Iterable[np.ndarray]) -> bool:
    """Whether no pair changes between pictures [heads, n, n] of growing lengths."""
    drawn = list(pictures)
    return all(
        np.array_equal(long[:, : short.shape[1], : short.shape[1]], short)
        for short, long in zip(drawn[:-1], drawn[1:], strict=True)
    )


# ---------------------------------------------------------------------------------------------------------------------
# What attention computes. B batch, H heads, G key heads, N queries, M keys, D width.


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray, scale: float):
    """(out [B, H, N, D], lse [B, H, N]) in float64 for mask bool [B, H, N, M]; 0 and -inf where nothing is allowed."""
    weights, lse = _weights(q, _spread(k, q), mask, scale)
    return weights @ _spread(v, q), lse


def attention_gradients(q, k, v, mask, scale, d_out, d_lse):
    """Gradients of sum(d_out * out) + sum(d_lse * lse) with respect to q, k and v, by formula."""
    keys, values = _spread(k, q), _spread(v, q)
    weights, _ = _weights(q, keys, mask, scale)
    d_weights = d_out @ values.swapaxes(-1, -2)
    delta = (d_out * (weights @ values)).sum(-1, keepdims=True)
    d_scores = weights * (d_weights - delta + d_lse[..., None])
    d_q = d_scores @ keys * scale
    d_k = d_scores.swapaxes(-1, -2) @ q * scale
    d_v = weights.swapaxes(-1, -2) @ d_out
    return d_q, _gather(d_k, k), _gather(d_v, v)


def _weights(q, keys, mask, scale):
    with np.errstate(divide="ignore"):
        scores = np.where(mask, q @ keys.swapaxes(-1, -2) * scale, -np.inf)
        top = scores.max(-1, keepdims=True, initial=-np.inf)
        powers = np.exp(scores - np.where(np.isinf(top), 0, top))
        total = powers.sum(-1, keepdims=True)
        lse = np.where(total > 0, np.log(total) + top, -np.inf)[..., 0]
    return powers / np.where(total > 0, total, 1), lse


def _spread(x: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Key heads repeated for the query heads that read them."""
    return np.repeat(x, q.shape[1] // x.shape[1], axis=1)


def _gather(gradient: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The gradient of `_spread`."""
    batch, heads, tokens, width = gradient.shape
    return gradient.reshape(batch, x.shape[1], heads // x.shape[1], tokens, width).sum(2)
