"""What `show` prints of a model: its own attention, layer by layer, and what it costs next to dense attention."""

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from asterism.cli.errors import UsageError
from asterism.cli.mixers import without_pattern
from asterism.cli.parser import percent, print_json
from asterism.cli.waiting import waiting
from asterism.columns import aligned
from asterism.compiler import compile_pattern
from asterism.compiler.blocks import pairs_read
from asterism.compiler.liveness import last_reader
from asterism.errors import PatternError
from asterism.memory import amount
from asterism.patterns import Mixer, Pattern, Transform, parse_schedule
from asterism.patterns.pattern import And
from asterism.patterns.primitives import Blocks
from asterism.patterns.sides import beyond_sides, sides_of
from asterism.presence import require_model

if TYPE_CHECKING:
    from asterism.models.drop_in.layers import LayerAttention, ModelAttention

_NOT_OF_MODELS = ("queries", "layer", "head", "plot")
"""Arguments of `show` that are about pictures of a pattern."""


def names_model(text: str) -> bool:
    """Whether `show` was given a model: a path, or a word that is no pattern but the name of a class or a family."""
    if "(" in text:
        return False
    if Path(text).is_dir() or "/" in text:
        return True
    try:
        parse_schedule(text)
    except PatternError:
        pass
    else:
        return False
    try:
        with waiting("loading transformers"):
            from asterism.models.drop_in.named import is_name
    except ModuleNotFoundError:
        return False
    return is_name(text)


def show_model(arguments: Namespace) -> None:
    """Print the attention of the model that was given. Raises UsageError for arguments about pictures."""
    given = [name for name in _NOT_OF_MODELS if getattr(arguments, name) is not None]
    if given:
        raise UsageError(
            "not-of-models", f"--{given[0]} is for a pattern, and {arguments.pattern} is a model; leave it out"
        )
    folder = Path(arguments.pattern)
    if folder.is_dir() or "/" in arguments.pattern:
        require_model(folder, "MODEL")
    with waiting("loading PyTorch and transformers"):
        from asterism.models.drop_in.layers import describe_attention
        from asterism.models.drop_in.named import configuration_in, configuration_named
        from asterism.quiet import quiet_transformers
        from asterism.training.run.folder import model_folder
    with quiet_transformers(), waiting("reading the model"):
        found = folder.is_dir()
        config = configuration_in(model_folder(folder, "MODEL")) if found else configuration_named(arguments.pattern)
        described = describe_attention(config)
    with waiting("counting"):
        costs = {one.pattern: _cost(one.pattern, arguments.length, described) for one in described.layers}
    if arguments.json:
        print_json(_document(described, costs, arguments.length))
    else:
        print("\n".join(_lines(described, costs, arguments.length)))


@dataclass(frozen=True)
class _Cost:
    """Pairs that a head reads in a layer, and tokens whose keys are kept after the last one; None where unknown."""

    pairs: int | None
    kept: int | None


def _cost(pattern: Mixer | None, n: int, described: "ModelAttention") -> _Cost:
    if not isinstance(pattern, Pattern):
        return _Cost(None, None)
    if pattern.chooses:  # as many pairs whatever is chosen, and any key may be
        return _Cost(pairs_read(pattern, n, n, 0), n)
    plan = compile_pattern(pattern, n, n, query_offset=0)
    kept = int((last_reader(pattern, np.arange(n)) >= n).sum()) if described.hides_future else None
    return _Cost(round(plan.pairs / plan.heads), kept)


def _dense(described: "ModelAttention", n: int) -> int:
    return n * (n + 1) // 2 if described.hides_future else n * n


def _lines(described: "ModelAttention", costs: Mapping[Mixer | None, _Cost], n: int) -> list[str]:
    layers = described.layers
    dense = "causal()" if described.hides_future else "dense()"
    lines = [f"{described.model} ({described.family}), {len(layers)} layers, {n:,} tokens", ""]
    rows = [("pattern", "a query reads", "pairs of a head", f"of {dense}", "layers")]
    rows += [_row(one, costs[one.pattern], numbers, described, n) for one, numbers in _alike(layers).items()]
    lines += [
        *aligned(rows, left=(0, 1, 4)),
        "",
        *_facts(described, costs, n),
        *(f"note     {remark}" for remark in described.remarks),
    ]
    return lines


def _row(
    one: "LayerAttention", cost: _Cost, numbers: list[int], described: "ModelAttention", n: int
) -> tuple[str, str, str, str, str]:
    if one.pattern is None or isinstance(one.pattern, Transform):
        told = "" if one.pattern is None else without_pattern(one.pattern).partition(" (")[0]
        return one.otherwise or told, "", "", "", _numbers(numbers)
    pairs = cost.pairs or 0
    return str(one.pattern), _reads(one.pattern), f"{pairs:,}", percent(pairs / _dense(described, n)), _numbers(numbers)


def _alike(layers: "tuple[LayerAttention, ...]") -> "dict[LayerAttention, list[int]]":
    """The distinct kinds of layers, each with the numbers of its layers."""
    found: dict[LayerAttention, list[int]] = {}
    for number, one in enumerate(layers):
        found.setdefault(one, []).append(number)
    return found


def _numbers(numbers: list[int]) -> str:
    """
    >>> _numbers([0, 1, 2, 5, 7, 8])
    '0 to 2, 5, 7, 8'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = [f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return ", ".join(parts)


def _reads(pattern: Pattern) -> str:
    sides = sides_of(pattern)
    if sides is None:
        is_chunk = isinstance(pattern, And) and any(isinstance(part, Blocks) for part in pattern.parts)
        return "its chunk, up to itself" if is_chunk else f"by {beyond_sides(pattern)}"
    match sides:
        case (None, None):
            return "every token"
        case (None, 0):
            return "itself and all before"
        case (left, 0):
            return f"itself and {left:,} before"
        case (left, right):
            before, after = ("all" if side is None else f"{side:,}" for side in (left, right))
            return f"itself, {before} before, {after} after"


def _facts(described: "ModelAttention", costs: Mapping[Mixer | None, _Cost], n: int) -> list[str]:
    layers = described.layers
    lines = [f"{name:<9}{text}" for name, text in _common(described)]
    whole = sum(_is_dense(one, described) for one in layers)
    lines.append(f"dense    {whole} of {len(layers)} layers")
    known = [cost.pairs for one in layers if (cost := costs[one.pattern]).pairs is not None]
    if known:
        share = sum(known) / (len(known) * _dense(described, n))
        of = "" if len(known) == len(layers) else f" of the {len(known)} layers with a pattern"
        lines.append(f"pairs    {percent(share)} of dense attention{of}")
    return lines + _cache_lines(described, costs, n)


def _is_dense(one: "LayerAttention", described: "ModelAttention") -> bool:
    sides = sides_of(one.pattern) if isinstance(one.pattern, Pattern) else None
    return sides == ((None, 0) if described.hides_future else (None, None))


def _common(described: "ModelAttention") -> list[tuple[str, str]]:
    """What is said of heads, sinks and soft-caps: once where all layers agree, else with the numbers of the layers."""
    told: dict[tuple[str, str], list[int]] = {}
    for number, one in enumerate(described.layers):
        if one.heads:
            shared = one.heads // max(1, one.key_heads)
            text = f"{one.heads} heads, {one.key_heads} of keys and values" + (f", groups of {shared}" * (shared > 1))
            told.setdefault(("heads", text), []).append(number)
        if one.sinks:
            told.setdefault(("sinks", "a learned sink for each head"), []).append(number)
        if one.softcap is not None:
            told.setdefault(("soft-cap", f"scores at most {one.softcap:g}"), []).append(number)
    every = len(described.layers)
    return [
        (name, text if len(numbers) == every else f"{text}: layers {_numbers(numbers)}")
        for (name, text), numbers in told.items()
    ]


def _cache_lines(described: "ModelAttention", costs: Mapping[Mixer | None, _Cost], n: int) -> list[str]:
    if not described.hides_future:
        return ["cache    none: the model reads the future"]
    size = described.bytes_of_number
    counted = [(one.kept * size, costs[one.pattern].kept) for one in described.layers if one.kept is not None]
    if not counted:
        return ["cache    not counted: the configuration does not say what is kept of a token"]
    own = [of_token for of_token, _ in counted if of_token]  # layers that keep keys
    each = " to ".join(f"{one:,}" for one in dict.fromkeys((min(own), max(own))))
    kept = sum(of_token * (tokens or 0) for of_token, tokens in counted)
    full = sum(of_token for of_token, _ in counted) * n
    of = "" if len(own) == len(described.layers) else f", of {len(own)} layers"
    return [
        f"cache    {each} bytes for each token kept in a layer ({size} bytes a number){of}",
        f"         {amount(kept, 'B')} after {n:,} tokens; dense attention keeps {amount(full, 'B')}",
    ]


def _document(described: "ModelAttention", costs: Mapping[Mixer | None, _Cost], n: int) -> dict[str, Any]:
    rows = []
    for number, one in enumerate(described.layers):
        sides = sides_of(one.pattern) if isinstance(one.pattern, Pattern) else None
        cost = costs[one.pattern]
        rows.append(
            {
                "layer": number,
                "pattern": None if one.pattern is None else one.pattern.text,
                "otherwise": one.otherwise or None,
                "left": None if sides is None else sides.left,
                "right": None if sides is None else sides.right,
                "is_dense": _is_dense(one, described),
                "heads": one.heads,
                "key_heads": one.key_heads,
                "learned_sinks": one.sinks,
                "softcap": one.softcap,
                "pairs": cost.pairs,
                "cache_bytes_per_token": None if one.kept is None else one.kept * described.bytes_of_number,
                "cache_tokens": cost.kept,
            }
        )
    return {
        "model": described.model,
        "family": described.family,
        "length": n,
        "dense_pairs": _dense(described, n),
        "layers": rows,
        "remarks": list(described.remarks),
    }
