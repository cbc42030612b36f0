"""What was measured, compared with what should be read: applied, refused, dropped."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from asterism.errors import AsterismError
from asterism.patterns import Pattern
from asterism.promises.paths import CallPath
from asterism.promises.reach import LayerReach

State = Literal["applied", "refused", "dropped", "undecided", "none"]


class PathVerdict(NamedTuple):
    """The outcome of a path in layers with one pattern.

    state    applied; refused (the model raised an error); dropped (a layer reads what its configuration hides, or does
             not read what it shows); undecided (the outputs cannot tell); none (the path is not for this model)
    seen     the reason: the error's first line, or what the witness shows
    witness  (layer, query, key) of a pair that is read, perhaps faintly, and hidden, or shown and not read
    """

    attention: str
    path: str
    layers: tuple[int, ...]
    pattern: str
    state: State
    seen: str = ""
    witness: tuple[int, int, int] | None = None


def groups_of(patterns: Sequence[Pattern | None]) -> dict[str, tuple[int, ...]]:
    """The layers of each pattern, by its text."""
    groups: dict[str, list[int]] = {}
    for number, pattern in enumerate(patterns):
        text = "another mixer" if pattern is None else pattern.text.replace(", dilation=1", "").replace(", right=0", "")
        groups.setdefault(text, []).append(number)
    return {text: tuple(layers) for text, layers in groups.items()}


def judge(
    attention: str,
    path: CallPath,
    patterns: Sequence[Pattern | None],
    reaches: Sequence[LayerReach],
    keys: Sequence[int],
) -> list[PathVerdict]:
    """A verdict for each pattern. What moved in one of several measurements is read."""
    return [
        _of_group(PathVerdict(attention, path.name, layers, text, "applied"), path, patterns, reaches, keys)
        for text, layers in groups_of(patterns).items()
    ]


def first_line(error: Exception) -> str:
    """An error in one line; of others than ours, with its class."""
    lines = str(error).strip().splitlines() or [""]
    kind = "" if isinstance(error, AsterismError) else f"{type(error).__name__}: "
    return f"{kind}{lines[0]}"[:200]


def _of_group(
    verdict: PathVerdict,
    path: CallPath,
    patterns: Sequence[Pattern | None],
    reaches: Sequence[LayerReach],
    keys: Sequence[int],
) -> PathVerdict:
    """The verdict of its layers: that of the first one that does not do what its pattern says."""
    tokens = reaches[0].sizes.shape[1]
    judged = path.real(tokens) & (np.arange(tokens) < reaches[0].seen)
    # Whether a token reads itself does not show: a layer adds its outputs to its inputs.
    pairs = judged[:, None] & (np.arange(tokens)[:, None] != np.asarray(keys)[None, :])
    for number in verdict.layers:
        pattern = patterns[number]
        if pattern is None:
            return verdict._replace(state="none", seen="layers of another kind than attention")
        if seen := reaches[0].unclear(number, judged):
            return verdict._replace(state="undecided", seen=seen)
        allowed = _allowed(pattern, path, tokens)[:, keys]
        moved, unmoved = zip(*(reach.moved(number, judged) for reach in reaches), strict=True)
        extra = pairs & ~allowed & np.logical_or.reduce(moved)
        faint = pairs & ~allowed & np.logical_and.reduce([reach.faint(number, judged) for reach in reaches])
        missing = pairs & allowed & np.logical_and.reduce(unmoved)
        measured = np.stack([reach.sizes[number] for reach in reaches])
        sizes = measured.max(axis=0)
        # Another replacement moves what reads it by another amount. What moves exactly as before is rounded otherwise
        # because the replaced token left its company, such as that of an expert.
        faint &= (len(reaches) == 1) | (np.ptp(measured, axis=0) > 1e-6 * sizes)
        if extra.any():
            query, column = _largest(np.where(extra, sizes, -1.0))
            seen = (
                f"in layer {number} token {query} reads token {keys[column]}, which is hidden from it (outputs"
                f" move by {min(sizes[query, column], 1e9):.1g} of their size)"
            )
            return verdict._replace(state="dropped", seen=seen, witness=(number, query, keys[column]))
        if faint.any() and verdict.state != "undecided":
            query, column = _largest(np.where(faint, sizes, -1.0))
            seen = (
                f"in layer {number} token {query} moves by {sizes[query, column]:.1g} of its size with token"
                f" {keys[column]}, which is hidden from it: it is read with a small weight, or rounding depends on it"
            )
            verdict = verdict._replace(state="undecided", seen=seen, witness=(number, query, keys[column]))
        if missing.any():
            surely = _not_by_chance(missing, pairs & allowed, keys, reaches[0].first_call)
            query, column = _largest(surely if surely.any() else missing)
            seen = f"in layer {number} token {query} does not read token {keys[column]}, which is shown to it"
            witness = (number, query, keys[column])
            if surely.any():
                return verdict._replace(state="dropped", seen=seen, witness=witness)
            seen += ", or too little to be seen: others read as far, so the attention may be sharp"
            verdict = verdict._replace(state="undecided", seen=seen)
    return verdict


def _allowed(pattern: Pattern, path: CallPath, tokens: int) -> np.ndarray:
    """Booleans [tokens, tokens]: who may read whom. Nobody reads padding, or another document."""
    allowed = np.zeros((tokens, tokens), bool)
    real = np.nonzero(path.real(tokens))[0]
    start = 0
    for length in path.documents(tokens):
        there, places = real[start : start + length], np.arange(length)
        allowed[np.ix_(there, there)] = pattern.allows(places[:, None], places[None, :], length)
        start += length
    return allowed


def _not_by_chance(missing: np.ndarray, shown: np.ndarray, keys: Sequence[int], first_call: int) -> np.ndarray:
    """Which of the bool [queries, keys] missing pairs no sharp attention explains.

    Where weights are spread, all pairs of one distance are read alike, among the first tokens that a model was given
    and among those after them. Sharp attention leaves out single pairs; then only distances at which at least four
    pairs are shown and none is read count.
    """
    queries = np.arange(len(missing))
    groups = (queries[:, None] - np.asarray(keys)[None, :]) * 2 + (queries < first_call)[:, None]
    whole, small, is_sharp = np.zeros_like(missing), np.zeros_like(missing), False
    for group in np.unique(groups[missing]):
        pairs = shown & (groups == group)
        if (missing | ~pairs).all():
            (whole if pairs.sum() >= 4 else small)[pairs] = True
        else:
            is_sharp = True
    return whole if is_sharp else whole | small


def _largest(values: np.ndarray) -> tuple[int, int]:
    query, column = np.unravel_index(int(np.argmax(values)), values.shape)
    return int(query), int(column)
