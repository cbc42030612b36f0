"""Attention over shards beside attention over the whole: what each rank of a group finds, as workers of gloo.py."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import asterism
from asterism.compiler import devices
from asterism.compiler.devices.communicate import candidates
from asterism.errors import AsterismError
from asterism.kernels.terms.terms import Buckets, DistanceTable, Dropout, Terms
from asterism.parallel import attend, attention, sequence_parallel


@dataclass(frozen=True)
class Case:
    """A call for all tokens, and how it is cut: `sizes` of shards by number of ranks, even where there are none."""

    pattern: str
    tokens: int = 64
    way: str = ""
    heads: tuple[int, int] = (4, 2)
    features: tuple[int, int] = (8, 5)
    dtype: torch.dtype = torch.float64
    sizes: dict[int, tuple[int, ...]] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    masked: bool = False
    segments: bool = False
    terms: str = ""  # sinks, bias, buckets, relative or dropout
    also: str = ""  # another one of them
    differentiated: str = "qkv"
    silent: int | None = None  # this rank's loss is 0
    run: str = ""


CASES = {
    "window": Case("window(left=5, right=3)", 67),
    "wide window": Case("window(left=40)", 67),
    "no border": Case("window(left=0)", 67),
    "border": Case("window(left=5)", 600),
    "mask at a border": Case("window(left=5)", 600, masked=True),
    "segments at a border": Case("window(left=30)", 600, segments=True),
    "bias at a border": Case("window(left=5)", 600, terms="bias"),
    "checkpointing with a border": Case("window(left=5)", 600, run="checkpoint"),
    "strided": Case("strided(8)", 65),
    "fixed": Case("fixed(8, 2)", 65),
    "bigbird": Case("bigbird(block=4, random=1)", 130),
    "asking": Case("global_tokens((0, 5, -1)) | window(2)", 130),
    "few askers": Case("global_queries((3,)) | window(2)", 130),
    "by head": Case("per_head([window(left=3), causal(), stride(3), dense()])", 40, heads=(4, 4)),
    "ring": Case("dense() & causal()", 41, way="Ring"),
    "ring of a window": Case("window(left=9)", 41, way="Ring"),
    "grouped heads in a ring": Case("causal()", 41, way="Ring", heads=(6, 2)),
    "only q in a ring": Case("causal()", 41, way="Ring", differentiated="q"),
    "only v in a ring": Case("causal()", 41, way="Ring", differentiated="v"),
    "only a bias in a ring": Case("causal()", 41, way="Ring", differentiated="", terms="bias"),
    "buckets in a ring": Case("causal()", 41, way="Ring", terms="buckets", segments=True),
    "sinks in a ring": Case("causal()", 41, way="Ring", terms="sinks"),
    "relative positions and segments in a ring": Case(
        "window(left=9)", 67, way="Ring", terms="relative", segments=True
    ),
    "half precision in a ring": Case("causal()", 130, way="Ring", dtype=torch.bfloat16, features=(8, 8)),
    "single precision in a ring": Case("causal()", 130, way="Ring", dtype=torch.float32),
    "autocast in a ring": Case("causal()", 65, way="Ring", dtype=torch.float32, features=(8, 8), run="autocast"),
    "two backward passes in a ring": Case("causal()", 41, way="Ring", run="twice"),
    "checkpointing in a ring": Case("causal()", 41, way="Ring", run="checkpoint"),
    "no gradients in a ring": Case("causal()", 41, way="Ring", run="no_grad"),
    "half of the ranks have no tokens for the ring": Case(
        "causal()", 70, way="Ring", sizes={2: (0, 70), 3: (30, 0, 40), 4: (0, 35, 0, 35)}
    ),
    "a rank without loss in a ring": Case("causal()", 41, way="Ring", silent=0),
    "reference in a ring": Case("causal()", 41, way="Ring", options={"implementation": "reference"}),
    "softcap in a ring": Case("causal()", 41, way="Ring", options={"terms": Terms(softcap=2.0), "scale": 0.7}),
    "heads": Case("strided(8)", 41, way="ByHeads", heads=(12, 12)),
    "heads by head": Case("per_head([window(left=3), causal(), stride(3), dense()])", 41, way="ByHeads", heads=(4, 4)),
    "residues": Case("strided(8)", 65, way="ByResidues"),
    "mask": Case("bigbird(block=4, random=1)", 130, masked=True),
    "mask by residues": Case("strided(8)", 65, way="ByResidues", masked=True),
    "mask by heads": Case("strided(8)", 65, way="ByHeads", masked=True, heads=(12, 12)),
    "mask in a ring": Case("strided(8)", 65, way="Ring", masked=True),
    "sinks": Case("bigbird(block=4, random=1)", 130, terms="sinks", masked=True),
    "softcap and scale": Case("fixed(8, 2)", 65, options={"terms": Terms(softcap=2.0), "scale": 0.7}),
    "segments": Case("window(left=5, right=3)", 67, segments=True),
    "segments and mask": Case("bigbird(block=4, random=1)", 130, segments=True, masked=True),
    "segments of those who ask": Case("global_queries((3, 70)) | window(2)", 130, segments=True),
    "segments by residues": Case("strided(8)", 65, way="ByResidues", segments=True),
    "segments by heads": Case("strided(8)", 65, way="ByHeads", segments=True, heads=(12, 12)),
    "segments in a ring": Case("causal()", 65, way="Ring", segments=True, masked=True),
    "bias": Case("window(left=5, right=3)", 67, terms="bias"),
    "bias of those who ask": Case("global_queries((3, 70)) | window(2)", 130, terms="bias"),
    "bias with all kinds of keys": Case("bigbird(block=4, random=1)", 200, terms="bias", masked=True),
    "bias by residues": Case("strided(8)", 65, way="ByResidues", terms="bias"),
    "bias in a ring": Case("window(left=30, right=9)", 65, way="Ring", terms="bias"),
    "bias and segments": Case("bigbird(block=4, random=1)", 130, terms="bias", segments=True, also="sinks"),
    "relative positions": Case("window(left=9)", 67, terms="relative"),
    "relative positions and segments": Case("window(left=9)", 67, terms="relative", segments=True),
    "dropout": Case("bigbird(block=4, random=1)", 130, terms="dropout"),
    "documents": Case("strided(4)", 90, options={"cu_seqlens": [0, 20, 20, 55, 90]}),
    "tree": Case("tree('20:9;40:9;60:50', size=90)", 90),
    "tree with windows along paths": Case("tree('20:9;40:9;60:50', size=90, pattern=window(left=9))", 90),
    "half of the ranks have no tokens": Case(
        "global_tokens((0, -1)) | window(6)", 70, sizes={2: (0, 70), 3: (30, 0, 40), 4: (0, 35, 0, 35)}
    ),
    "one token": Case("causal()", 1),
    "no tokens": Case("window(3)", 0),
    "uneven": Case("longformer(8)", 97, sizes={2: (90, 7), 3: (3, 90, 4), 4: (1, 60, 5, 31)}),
    "only q": Case("bigbird(block=4, random=1)", 130, differentiated="q"),
    "only k": Case("bigbird(block=4, random=1)", 130, differentiated="k"),
    "only v": Case("strided(8)", 65, differentiated="v", way="ByResidues"),
    "a rank without loss": Case("window(left=5, right=3)", 67, silent=0),
    "another rank without loss": Case("bigbird(block=4, random=1)", 130, silent=1),
    "single precision": Case("bigbird(block=4, random=1)", 130, dtype=torch.float32),
    "half precision": Case("bigbird(block=4, random=1)", 130, dtype=torch.bfloat16, features=(8, 8)),
    "autocast": Case("fixed(8, 2)", 65, dtype=torch.float32, features=(8, 8), run="autocast"),
    "not contiguous": Case("fixed(8, 2)", 65, run="transposed"),
    "two backward passes": Case("bigbird(block=4, random=1)", 130, run="twice"),
    "checkpointing": Case("bigbird(block=4, random=1)", 130, run="checkpoint"),
    "checkpointing where a rank reads nothing of others": Case("window(left=3)", 67, run="checkpoint"),
    "no gradients": Case("bigbird(block=4, random=1)", 130, run="no_grad"),
    "inference": Case("bigbird(block=4, random=1)", 130, run="inference"),
    "reference": Case("fixed(8, 2)", 65, options={"implementation": "reference"}),
    "shorter again": Case("bigbird(block=4, random=1)", 90),
}
"""By what they show."""


def shards_of(case: Case, ranks: int) -> devices.Shards:
    sizes = case.sizes.get(ranks)
    return devices.Shards.even(case.tokens, ranks) if sizes is None else devices.Shards.of_sizes(sizes)


def whole_tensors(case: Case) -> tuple[list[Tensor], list[Tensor], Tensor | None, dict[str, Tensor]]:
    """q, k and v; weights of the loss for out and log-sum-exp; key mask; what terms have."""
    generator = torch.Generator().manual_seed(7)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    (heads, key_heads), (dim, value_dim) = case.heads, case.features
    shapes = (heads, dim), (key_heads, dim), (key_heads, value_dim)
    tensors = [random(2, count, case.tokens, features).to(case.dtype) for count, features in shapes]
    wide = torch.promote_types(case.dtype, torch.float32)
    weights = [random(2, heads, case.tokens, value_dim).to(wide), random(2, heads, case.tokens).to(wide)]
    mask = torch.rand(2, case.tokens, generator=generator) < 0.7 if case.masked else None
    shapes = {
        "sinks": (heads,),
        "bias": (heads, 2 * case.tokens),
        "relative": (case.tokens, dim),
        "buckets": (32, heads),
    }
    learned = {name: random(*shape).to(wide) for name, shape in shapes.items() if name in (case.terms, case.also)}
    return tensors, weights, mask, learned


def loss(results: tuple[Tensor, Tensor], weights: list[Tensor]) -> Tensor:
    out, lse = results
    return (out * weights[0]).sum() + (lse.masked_fill(lse == -math.inf, 0) * weights[1]).sum()


def part(x: Tensor, first: int, past: int) -> Tensor:
    return x[:, :, first:past] if x.ndim > 2 else x[:, first:past]


def options_of(case: Case, learned: dict[str, Tensor]) -> dict[str, Any]:
    """The options, with what is learned beside q, k and v."""
    terms = replace(case.options.get("terms", Terms()), sinks=learned.get("sinks"), relative=learned.get("relative"))
    if "bias" in learned:
        terms = replace(terms, bias=DistanceTable(learned["bias"], 1 - case.tokens))
    if "buckets" in learned:
        terms = replace(terms, bias=Buckets(learned["buckets"]))
    if case.terms == "dropout":
        terms = replace(terms, dropout=Dropout(0.3, 5))
    return case.options | {"terms": terms}


def segments_of(case: Case) -> Tensor | None:
    """A few segments, two of which come in two pieces."""
    place = torch.arange(case.tokens)
    return torch.stack([place // 25 % 3, (place > 31).long()]) if case.segments else None


def gradients(run: Callable[..., Any], case: Case, leaves: list[Tensor], weights: list[Tensor]) -> tuple[Any, Any]:
    """What a call gives, and the gradients of the leaves that are differentiated."""
    if case.run in ("no_grad", "inference"):
        with torch.no_grad() if case.run == "no_grad" else torch.inference_mode():
            return run(*leaves), []
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    results = checkpoint(run, *leaves, use_reentrant=False) if case.run == "checkpoint" else run(*leaves)
    total = loss(results, weights)
    if case.run == "twice":
        torch.autograd.grad(total, wanted, retain_graph=True)
    return results, torch.autograd.grad(total, wanted)


def compare(case: Case, group: dist.ProcessGroup) -> float:
    """How far the results of this rank and all gradients are from those of the whole, relative to the largest."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    shards = shards_of(case, ranks)
    first, past = shards.range(rank)
    tensors, weights, mask, learned = whole_tensors(case)
    segments = segments_of(case)
    wanted = [name in case.differentiated for name in "qkv"] + [True] * len(learned)
    given = [*tensors, *learned.values()]
    if case.silent is not None and case.silent < ranks:
        silent = shards.range(case.silent)
        for weight in weights:
            part(weight, *silent).zero_()

    def whole(q: Tensor, k: Tensor, v: Tensor, *more: Tensor) -> Any:
        options = options_of(case, dict(zip(learned, more, strict=True))) | {"key_mask": mask, "segments": segments}
        return asterism.attend(q, k, v, case.pattern, return_lse=True, **options)

    def sharded(q: Tensor, k: Tensor, v: Tensor, *more: Tensor) -> Any:
        if case.run == "transposed":
            q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
        marks = {"key_mask": mask, "segments": segments}
        own = {name: None if mark is None else part(mark, first, past) for name, mark in marks.items()}
        options = options_of(case, dict(zip(learned, more, strict=True))) | {"queries": shards, "keys": shards} | own
        with sequence_parallel(group, dense_exchange=True), forced(case.way):
            return attend(q, k, v, case.pattern, return_lse=True, **options)

    mixed = torch.autocast("cpu", dtype=torch.bfloat16) if case.run == "autocast" else nullcontext()
    with mixed:
        leaves = [x.clone().requires_grad_(needs) for x, needs in zip(given, wanted, strict=True)]
        expected, of_whole = gradients(whole, replace(case, run=""), leaves, weights)
        leaves = [part(x, first, past).clone() if x.ndim == 4 else x.clone() for x in given]
        leaves = [x.requires_grad_(needs) for x, needs in zip(leaves, wanted, strict=True)]
        found, of_part = gradients(sharded, case, leaves, [part(x, first, past) for x in weights])
    pairs = [(x, part(y, first, past)) for x, y in zip(found, expected, strict=True)]
    for own, all_of_it in zip(of_part, of_whole, strict=False):
        if own.ndim < 4:
            dist.all_reduce(own, group=group)
        pairs.append((own, all_of_it if own.ndim < 4 else part(all_of_it, first, past)))
    return max(apart(*pair) for pair in pairs)


def apart(x: Tensor, y: Tensor) -> float:
    """The greatest difference; infinite values must be at equal places."""
    if not torch.equal(x == -math.inf, y == -math.inf):
        return math.inf
    difference = (x.double() - y.double()).masked_fill(x == -math.inf, 0).abs()
    return difference.max().item() if difference.isfinite().all() and difference.numel() else float(difference.numel())


class forced:
    """Within it, plans have a share of this kind; "" leaves the choice to their bytes."""

    def __init__(self, way: str) -> None:
        self.way, self.usual = way, attention.communicate

    def __enter__(self) -> None:
        if self.way:
            attention.communicate = self.chosen

    def __exit__(self, *_: object) -> None:
        attention.communicate = self.usual

    def chosen(self, *arguments: Any) -> Any:
        kind = getattr(devices, self.way)
        for plan in candidates(*arguments):
            if any(isinstance(share, kind) for share in plan.ways):
                return plan
        return self.usual(*arguments)


def refusal(group: dist.ProcessGroup) -> str:
    """What a pattern is told that moves as much as dense attention."""
    x = torch.zeros(1, 2, 6, 4)
    try:
        with sequence_parallel(group):
            attend(x, x, x, "causal()")
    except AsterismError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def apart_in_all_cases(group: dist.ProcessGroup) -> dict[str, float]:
    """How far apart results and gradients are, by case."""
    found = {}
    for name, case in CASES.items():
        try:
            found[name] = compare(case, group)
        except Exception as error:
            error.add_note(f"in the case {name!r}")
            raise
    return found
