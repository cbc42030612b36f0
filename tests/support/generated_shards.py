"""Attention over shards beside attention to the whole, on generated cases; what goes over the wire is counted.

Bytes are counted where PyTorch hands tensors to its collectives, of which only all-to-alls carry rows; what else ranks
say to each other, such as how many tokens they hold, is counted apart.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from hypothesis import HealthCheck, Phase, given
from hypothesis import strategies as st
from seeds import drawing
from strategies import build, cross_rules, rules
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from asterism import kernels
from asterism.compiler.devices import ByRows, Ring, RowShape, Shards, communicate
from asterism.parallel import attend, sequence_parallel, ways
from asterism.parallel.compute import Call
from asterism.parallel.exchange import Flight
from asterism.patterns import Pattern, parse

NAMED = (
    "dense()", "causal()", "window(left=40)", "window(left=5, right=5)", "strided(stride=7)",
    "fixed(stride=8, summary=2)",
    "bigbird(block=8, random=1)", "bigbird_causal(block=8, random=1)", "bigbird_etc(block=8, random=1, globals=3)",
    "longformer(window=8, globals=(0, 50))", "sinks(first=3, window=9)", "star()", "yun_strided(w=5)",
    "stride(period=9) & causal()", "blocks(size=16)", "columns(period=8, first=6, count=2)", "~window(left=3)",
    "per_head([window(left=9), stride(period=5), dense()])", 
    "split_heads(window(left=9), global_tokens(positions=2), heads=4)",
    "per_head([stride(period=5), stride(period=10), stride(period=5), window(left=3)])",
    "random_blocks(block=8, count=2)", "documents(bigbird(block=4, random=0), 40, -3, 30)", "shifted(causal(), 7)",
    "tree('20:9;40:9;60:50', size=4096)", "tree('20:9;21:7;22:20;23:21;40:9;60:50', size=4096, pattern=window(left=9))",
    "grid(width=8, radius=1, channels=2) & causal()", "window(left=70) | global_tokens(positions=4)",
)  # fmt: skip
"""Cases that are in every run."""


@dataclass(frozen=True)
class Case:
    """A pattern asked of `queries` tokens and `keys` tokens, and who holds them: shares, one of each rank or more."""

    pattern: str
    keys: int
    queries: int
    shares: tuple[tuple[int, ...], tuple[int, ...]]
    heads: int
    key_heads: int
    dims: tuple[int, int]
    batch: int
    masked: bool
    asks_lse: bool
    wanted: tuple[bool, bool, bool]
    implementation: str
    seed: int

    def shards(self, ranks: int) -> tuple[Shards, Shards]:
        """Of queries and keys; equal where these are the same tokens."""
        queries, keys = (
            _cut(total, share[:ranks]) for total, share in zip((self.queries, self.keys), self.shares, strict=True)
        )
        return (queries, keys) if parse(self.pattern).crosses else (keys, keys)


def _cut(length: int, shares: tuple[int, ...]) -> Shards:
    """Parts in proportion to the shares, some of which may be 0."""
    total, bounds = sum(shares), [0]
    for share in shares[:-1]:
        bounds.append(min(length, bounds[-1] + (length * share // total if total else 0)))
    return Shards((*bounds, length))


DRAWS: dict[str, Any] = {"phases": [Phase.generate], "suppress_health_check": list(HealthCheck)}
LENGTHS = (1, 2, 3, 7, 16, 31, 64, 65, 97, 128, 131)
weights = st.one_of(st.just((1, 1, 1, 1)), st.tuples(*[st.sampled_from((0, 1, 2, 5))] * 4))


@st.composite
def cases(draw, text: str | None = None) -> Case:
    """Some pattern of 1 or 3 heads; or the one given."""
    keys = draw(st.sampled_from(LENGTHS)) if text is None else 97
    crosses = text is None and draw(st.integers(0, 4)) == 0
    drawn = cross_rules(keys, heads=3) if crosses else rules(keys, heads=3)
    pattern: Pattern = build(draw(drawn)) if text is None else parse(text)
    queries = draw(st.sampled_from(LENGTHS)) if pattern.crosses and pattern.takes_any_query else keys
    heads = draw(st.sampled_from((3, 12))) if pattern.heads == 1 else pattern.heads
    shared = [count for count in (1, 3, 4, 12) if heads % count == 0]
    return Case(
        pattern=pattern.text,
        keys=keys,
        queries=queries,
        shares=(draw(weights), draw(weights)),
        heads=heads,
        key_heads=draw(st.sampled_from(shared)) if text is None else heads,
        dims=(draw(st.sampled_from((4, 5))), draw(st.sampled_from((4, 3)))),
        batch=draw(st.integers(1, 2)),
        masked=draw(st.integers(0, 3)) == 0,
        asks_lse=draw(st.booleans()),
        wanted=draw(
            st.sampled_from(
                ((True, True, True),) * 3 + ((True, False, False), (False, True, True), (False, False, True))
            )
        ),
        implementation=draw(st.sampled_from(("auto", "reference", "eager"))),
        seed=draw(st.integers(0, 2**20)),
    )


def drawn(first: int, past: int) -> list[Case]:
    """Cases by number: those of NAMED, then generated ones."""
    found: list[Case] = []

    def keep(case: Case) -> None:
        found.append(case)

    for text in NAMED[first:past]:
        kept = len(found)
        drawing(2, **DRAWS)(given(cases(text))(keep))()
        del found[kept + 1 :]
    if past > len(NAMED):
        kept = len(found)
        drawing(past - len(NAMED), **DRAWS)(given(cases())(keep))()
        found[kept:] = found[kept + max(0, first - len(NAMED)) :]
    return found


# --- the wire ---------------------------------------------------------------------------------------------------------


@dataclass
class Wire(TorchDispatchMode):
    """Bytes that this rank sends to others and receives from them by all-to-alls, and calls of anything else."""

    rank: int
    ranks: int
    sent: int = 0
    received: int = 0
    others: int = 0
    largest: int = 0

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        name = str(function)
        result = function(*arguments, **(keywords or {}))
        if name.startswith("c10d.alltoall_base_"):
            output, given, _, received, sent = arguments[:5]
            self._count(given, sent, output, received)
        elif name.startswith("_c10d_functional.all_to_all_single"):
            given, received, sent = arguments[:3]
            self._count(given, sent, result, received)
        elif name.startswith(("c10d.", "_c10d_functional.")) and "wait" not in name:
            self.others += 1
            assert "alltoall" not in name and "all_to_all" not in name, f"{name} is not counted"
        return result

    def _count(self, given: Tensor, sent: Any, output: Tensor, received: Any) -> None:
        for tensor, parts, direction in ((given, sent, "sent"), (output, received, "received")):
            parts = list(parts) or [len(tensor) // self.ranks] * self.ranks
            assert sum(parts) == len(tensor)
            row = tensor[:1].numel() * tensor.element_size() if len(tensor) else 0
            row = row or tensor.element_size() * int(torch.tensor(tensor.shape[1:]).prod())
            moved = (sum(parts) - parts[self.rank]) * row
            setattr(self, direction, getattr(self, direction) + moved)


class Held:
    """Reads what is received, and counts the keys that each share brings to a rank and has it hold at one time.

    They are known by their numbers, which no other row has; `most` are rows of heads, those of the share that needs
    most, beside the shard of the rank itself. Round the ring they are let go again, so there they are counted in the
    memory that is still held whenever some arrive, forward and backward.
    """

    def __init__(self, keys: Tensor, own: range) -> None:
        self.own, self.heads, self.most = own, keys.shape[1], 0
        rows = keys[0].detach()
        self.known = {
            rows[head, place].numpy().tobytes(): (head, place)
            for head in range(self.heads)
            for place in range(rows.shape[1])
        }
        self.flights: list[list[tuple[int, int]]] = []
        self.round_the_ring: list[tuple[StorageWeakRef, int]] | None = None

    def __enter__(self) -> "Held":
        self.run, self.receive, self.arrive = ways.run, Call.receive, Flight.arrive
        ways.run, Call.receive = self._run, lambda call, flight: self._receive(call, flight)
        Flight.arrive = lambda flight: self._arrive(flight)
        return self

    def __exit__(self, *_: object) -> None:
        ways.run, Call.receive, Flight.arrive = self.run, self.receive, self.arrive

    def _run(self, call: Any, way: Any) -> Any:
        self.flights, self.round_the_ring = [], [] if isinstance(way, Ring) else None
        result = self.run(call, way)
        came = [len(flight) for flight in self.flights]
        if isinstance(way, ByRows):
            held = len({row for flight in self.flights for row in flight if row[1] not in self.own})
        else:
            held = sum(came)
        self.most = max(self.most, held)
        return result

    def _receive(self, call: Any, flight: Any) -> Any:
        found = self.receive(call, flight)
        if numbers := [x for parcels in found for x in parcels if x.is_floating_point()]:
            self.flights.append([self.known[row] for x in numbers for row in _rows(x) if row in self.known])
        return found

    def _arrive(self, flight: Flight) -> Tensor:
        wire = self.arrive(flight)
        if self.round_the_ring is not None:
            parcels = [x for each in flight.back.parcels(wire) for x in each if x.dtype == torch.float64]
            came = sum(row in self.known for x in parcels for row in _rows(x))
            self.round_the_ring.append((StorageWeakRef(wire.untyped_storage()), came))
            self.most = max(self.most, sum(rows for memory, rows in self.round_the_ring if not memory.expired()))
        return wire


def _rows(x: Tensor) -> list[bytes]:
    """Those of the first row of the batch."""
    features = x.shape[-1] if x.ndim > 3 else 1
    return [row.numpy().tobytes() for row in x[0].detach().reshape(-1, features)]


# --- one case ---------------------------------------------------------------------------------------------------------


@dataclass
class Found:
    """What a rank found: the greatest difference from the whole, and bytes beside those of the plan."""

    apart: float = 0.0
    scale: float = 0.0
    forward: list[int] = field(default_factory=list)
    backward: list[int] = field(default_factory=list)
    planned_forward: list[int] = field(default_factory=list)
    planned_backward: list[int] = field(default_factory=list)
    held: int = 0
    planned_held: int = 0
    ways: list[str] = field(default_factory=list)


def compute(case: Case, group: dist.ProcessGroup) -> Found:
    """Compare this rank's rows of a case with those of the whole."""
    rank, ranks = group.rank(), group.size()
    generator = torch.Generator().manual_seed(case.seed)
    pattern = parse(case.pattern)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    key_dim, value_dim = case.dims
    whole = [
        random(case.batch, case.heads, case.queries, key_dim),
        random(case.batch, case.key_heads, case.keys, key_dim),
        random(case.batch, case.key_heads, case.keys, value_dim),
    ]
    out_weight, lse_weight = (
        random(case.batch, case.heads, case.queries, value_dim),
        random(case.batch, case.heads, case.queries),
    )
    mask = torch.rand(case.batch, case.keys, generator=generator) < 0.7 if case.masked else None
    queries, keys = case.shards(ranks)
    ends = [queries.range(rank), keys.range(rank), keys.range(rank)]

    def loss(out: Tensor, lse: Tensor, first: int, past: int) -> Tensor:
        total = (out * out_weight[:, :, first:past]).sum()
        readable = lse > -torch.inf
        return total + (lse[readable] * lse_weight[:, :, first:past][readable]).sum() if case.asks_lse else total

    for x, is_wanted in zip(whole, case.wanted, strict=True):
        x.requires_grad_(is_wanted)
    expected = kernels.attend(
        *whole, pattern, key_mask=mask, return_lse=True, implementation="reference", query_offset=0
    )
    loss(*expected, 0, case.queries).backward()
    own = [
        x.detach()[:, :, slice(*one)].clone().requires_grad_(x.requires_grad)
        for x, one in zip(whole, ends, strict=True)
    ]
    own_mask = None if mask is None else mask[:, slice(*ends[1])]
    found = Found()
    shape = RowShape(case.heads, case.key_heads, key_dim, value_dim, 8, case.batch)
    plan = communicate(pattern, queries, keys, shape)
    found.ways = [type(way).__name__ for way in plan.ways]
    with sequence_parallel(group, dense_exchange=True):
        wire, held = Wire(rank, ranks), Held(whole[1], range(*ends[1]))
        with wire, held:
            options = {"key_mask": own_mask, "return_lse": True, "implementation": case.implementation}
            out, lse = attend(*own, pattern, queries=queries, keys=keys, **options)
        found.forward = [wire.sent, wire.received]
        wire = Wire(rank, ranks)
        with wire, held:
            loss(out, lse, *ends[0]).backward()
        found.backward = [wire.sent, wire.received]
        found.held = (held.most + len(held.own) * held.heads) * shape.key // held.heads
        found.planned_held = int(plan.memory(shape)[rank])
    forward, backward = plan.traffic(shape), plan.backward(shape)
    if mask is not None:  # a byte for each key and row of the batch goes along, by heads to every rank
        marks = plan.traffic(RowShape(0, ranks if found.ways == ["ByHeads"] else 1, 1, 0, 1, case.batch))
        forward, backward = forward + marks, backward + marks if found.ways == ["Ring"] else backward
    for planned, traffic in (("planned_forward", forward), ("planned_backward", backward)):
        setattr(found, planned, [int(traffic.sent[rank]), int(traffic.received[rank])])
    compared = [(out, expected[0][:, :, slice(*ends[0])]), (lse, expected[1][:, :, slice(*ends[0])])]
    for x, whole_x, one in zip(own, whole, ends, strict=True):
        if x.requires_grad:
            assert x.grad is not None and whole_x.grad is not None
            compared.append((x.grad, whole_x.grad[:, :, slice(*one)]))
    for ours, theirs in compared:
        ours, theirs = ours.detach(), theirs.detach()
        infinite = theirs == -torch.inf
        assert torch.equal(ours == -torch.inf, infinite), "other queries read nothing"
        difference = (ours - theirs).masked_fill(infinite, 0).abs()
        assert not difference.isnan().any(), "NaN"
        found.apart = max([found.apart, *difference.flatten().tolist()])
        found.scale = max([found.scale, *theirs.masked_fill(infinite, 0).abs().flatten().tolist()])
    return found


def compute_all(group: dist.ProcessGroup, chosen: list[Case]) -> list[Found]:
    found = []
    for case in chosen:
        try:
            found.append(compute(case, group))
        except Exception as error:
            error.add_note(f"in the case {case}")
            raise
    return found
