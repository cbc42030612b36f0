"""Attention over shards under attack: it computes what the whole does, says one clear line, or ends; it never hangs.

The collectives of these groups give up after seconds, so that a rank that waits for ever is a test that fails.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from gloo import PATIENCE
from torch import Tensor
from torch.distributed.distributed_c10d import _set_pg_timeout

import asterism
from asterism import Alibi, Dropout, Terms, kernels
from asterism.compiler.devices import ByRows, RowShape, Shards, communicate
from asterism.errors import AsterismError
from asterism.parallel import SequenceParallel, agreement, attend, exchange, sequence_parallel, sharding
from asterism.patterns import explicit, parse

HEADS, KEY_HEADS, DIM, VALUE_DIM, BATCH = 4, 2, 4, 3, 2
SHAPE = RowShape(HEADS, KEY_HEADS, DIM, VALUE_DIM, 8, BATCH)


# --- what runs on the ranks -------------------------------------------------------------------------------------------


def tensors(tokens: int, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = (HEADS, DIM), (KEY_HEADS, DIM), (KEY_HEADS, VALUE_DIM), (HEADS, VALUE_DIM)
    return [torch.randn(BATCH, heads, tokens, dim, generator=generator, dtype=torch.float64) for heads, dim in shapes]


@contextmanager
def impatient(group: dist.ProcessGroup, seconds: float) -> Iterator[None]:
    """Within the body, ranks wait for each other for seconds only."""
    _set_pg_timeout(timedelta(seconds=seconds), group)
    try:
        yield
    finally:
        _set_pg_timeout(timedelta(seconds=PATIENCE), group)


def terms_named(name: str) -> Terms | None:
    return {
        "bias": Terms(bias=Alibi(torch.tensor([0.5, 0.25, 0.1, 0.7], dtype=torch.float64))),
        "dropout": Terms(dropout=Dropout(0.3, 5)),
    }.get(name)


def apart_by_place(group: dist.ProcessGroup, name: str, sizes: Sequence[int]) -> float:
    """How far results and gradients are from those of the whole, where numbers of tokens count."""
    shards, rank = Shards.of_sizes(tuple(sizes)), group.rank()
    first, past = shards.range(rank)
    *whole, weight = tensors(shards.length)
    marks = (torch.arange(shards.length) // 5).expand(BATCH, -1)
    mask = (torch.arange(shards.length) % 4 != 1).expand(BATCH, -1)
    pattern, options = "sinks(first=2, window=9)", {"terms": terms_named(name)}
    leaves = [x.clone().requires_grad_() for x in whole]
    segments = {"segments": marks} if name == "segments" else {}
    expected = asterism.attend(*leaves, pattern, key_mask=mask, **segments, **options)
    wanted = torch.autograd.grad(expected, leaves, weight)
    own = [x[:, :, first:past].clone().requires_grad_() for x in whole]
    segments = {"segments": marks[:, first:past]} if name == "segments" else {}
    with impatient(group, 20), sequence_parallel(group, dense_exchange=True):
        out = attend(*own, pattern, queries=shards, keys=shards, key_mask=mask[:, first:past], **segments, **options)
    found = torch.autograd.grad(out, own, weight[:, :, first:past])
    pairs = [(out, expected), *zip(found, wanted, strict=True)]
    return max([0.0, *(float(d) for a, b in pairs for d in (a - b[:, :, first:past]).abs().flatten().tolist())])


def positions_on_the_wire(group: dist.ProcessGroup, pattern: str, tokens: int) -> tuple[list[list[int]], int, int]:
    """Positions of keys whose rows left this rank, by target; bytes of keys given to kernels at most; of the plan."""
    shards, rank = Shards.even(tokens, group.size()), group.rank()
    first, past = shards.range(rank)
    q, *_ = tensors(tokens)
    numbers = torch.arange(1, tokens + 1, dtype=torch.float64)[:, None]
    k, v = (numbers.expand(BATCH, KEY_HEADS, tokens, dim).contiguous() for dim in (DIM, VALUE_DIM))
    left: list[set[int]] = [set() for _ in range(group.size())]
    held: dict[int, int] = {}
    with sequence_parallel(group, dense_exchange=True), seen(left, held):
        attend(*(x[:, :, first:past] for x in (q, k, v)), pattern, queries=shards, keys=shards)
    plan = communicate(parse(pattern), shards, shards, SHAPE)
    assert all(isinstance(share, ByRows) and not len(share.asking) for share in plan.ways), "a test of rows"
    return [sorted(one) for one in left], sum(held.values()), int(plan.memory(SHAPE)[rank])


@contextmanager
def seen(left: list[set[int]], held: dict[int, int]) -> Any:
    """Reads what is given to the all-to-alls and to the kernels."""
    send, compute = exchange.begin_all_to_all, kernels.attend

    def sending(wire: Tensor, received: list[int], sent: list[int], group: dist.ProcessGroup) -> Tensor:
        for target, part in enumerate(wire.split(sent)):
            left[target] |= {int(number) - 1 for number in part.view(torch.float64).unique().tolist()}
        return send(wire, received, sent, group)

    def computing(q: Tensor, k: Tensor, v: Tensor, *arguments: Any, **options: Any) -> Any:
        held[k.data_ptr()] = (k.numel() + v.numel()) * k.element_size()
        return compute(q, k, v, *arguments, **options)

    exchange.begin_all_to_all, kernels.attend = sending, computing
    try:
        yield
    finally:
        exchange.begin_all_to_all, kernels.attend = send, compute


def with_nan(group: dist.ProcessGroup, pattern: str, tokens: int) -> list[bool]:
    """Whether results and gradients are finite where rows that nobody reads hold NaN."""
    shards, rank = Shards.even(tokens, group.size()), group.rank()
    first, past = shards.range(rank)
    q, k, v, weight = tensors(tokens)
    unread = torch.from_numpy(~parse(pattern).dense(tokens).any(axis=(0, 1)))
    assert unread.any()
    for x in (k, v):
        x[:, :, unread] = torch.nan
    own = [x[:, :, first:past].clone().requires_grad_() for x in (q, k, v)]
    with sequence_parallel(group, dense_exchange=True):
        out = attend(*own, pattern, queries=shards, keys=shards)
    found = torch.autograd.grad(out, own, weight[:, :, first:past])
    return [bool(x.isfinite().all()) for x in (out, *found)]


def in_two_threads(group: dist.ProcessGroup) -> float:
    """Two threads with contexts of their own, at the same time, and a third thread, which has none."""
    groups = [dist.new_group(list(range(group.size()))) for _ in range(2)]
    patterns = "window(left=9, right=2)", "fixed(8, 2)"
    tokens, rank = 50, group.rank()
    shards = Shards.even(tokens, group.size())
    first, past = shards.range(rank)
    found: list[float] = []

    def compute(one: int) -> None:
        q, k, v, weight = tensors(tokens, one)
        for _ in range(3):
            leaves = [x.clone().requires_grad_() for x in (q, k, v)]
            wanted = torch.autograd.grad(asterism.attend(*leaves, patterns[one]), leaves, weight)
            own = [x[:, :, first:past].clone().requires_grad_() for x in (q, k, v)]
            with sequence_parallel(groups[one], dense_exchange=True):
                out = attend(*own, patterns[one])
            gradients = torch.autograd.grad(out, own, weight[:, :, first:past])
            pairs = zip(gradients, wanted, strict=True)
            found.append(max(float((a - b[:, :, first:past]).abs().max()) for a, b in pairs))

    def outside() -> None:
        found.append(0.0 if sharding() is None else 1.0)

    with sequence_parallel(group):
        threads = [threading.Thread(target=compute, args=(one,)) for one in range(2)]
        threads.append(threading.Thread(target=outside))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert len(found) == 7
    return max(found)


def left_by_an_error(group: dist.ProcessGroup) -> list[str]:
    told = []
    try:
        with sequence_parallel(group):
            raise KeyError("inside")
    except KeyError:
        told.append(str(sharding()))
    try:
        with sequence_parallel(group), sequence_parallel(group):
            pass
    except AsterismError as error:
        told.append(str(error))
    return [*told, str(sharding())]


def modes(group: dist.ProcessGroup, mode: str) -> float:
    """How far results are from those of the whole while something of PyTorch is set otherwise."""
    tokens, rank = 41, group.rank()
    shards = Shards.even(tokens, group.size())
    first, past = shards.range(rank)
    q, k, v, _ = (x.float() for x in tensors(tokens))
    try:
        if mode == "default dtype":
            torch.set_default_dtype(torch.float64)
        elif mode == "denormal":
            torch.set_flush_denormal(True)
        elif mode == "default device":
            torch.set_default_device("meta")  # what is made without a device is then nowhere
        whole = asterism.attend(q, k, v, "fixed(8, 2)")
        with sequence_parallel(group, dense_exchange=True):
            own = attend(*(x[:, :, first:past] for x in (q, k, v)), "fixed(8, 2)")
        assert own.dtype == whole.dtype
        return float((own - whole[:, :, first:past]).abs().max())
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
        torch.set_flush_denormal(False)


def told(run: Callable[[], Any]) -> str:
    """The kind and the text of the error; "" for none."""
    try:
        run()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def bad_input(group: dist.ProcessGroup) -> dict[str, str]:
    q, k, v, _ = tensors(10)

    def within(*arguments: Any, **options: Any) -> Callable[[], Any]:
        def run() -> None:
            with sequence_parallel(group):
                attend(*arguments, **options)

        return run

    def entered(what: Any) -> Callable[[], Any]:
        def run() -> None:
            with sequence_parallel(what):
                pass

        return run

    even, rule = Shards.even(10, 1), "window(2)"
    return {
        "text": told(entered("cp")),
        "number": told(entered(2)),
        "not of the group": told(entered(dist.GroupMember.NON_GROUP_MEMBER)),
        "shards of other ranks": told(within(q, k, v, rule, queries=Shards.even(10, 2), keys=even)),
        "shards of other tokens": told(within(q, k, v, rule, queries=Shards.even(9, 1), keys=even)),
        "shards that are none": told(within(q, k, v, rule, queries=(0, 10), keys=even)),
        "pattern": told(within(q, k, v, "windo(2)", queries=even, keys=even)),
        "option": told(within(q, k, v, rule, mask=None)),
        "heads": told(within(q[:, :3], k, v, rule)),
        "scale": told(within(q, k, v, rule, scale="big")),
        "implementation": told(within(q, k, v, rule, implementation="fast")),
        "terms": told(within(q, k, v, rule, terms=3)),
        "mask": told(within(q, k, v, rule, key_mask=torch.ones(BATCH, 9, dtype=torch.bool))),
        "types": told(within(q, [1], v, rule)),
        "gradient": told(lambda: torch.func.grad(lambda q: within(q, k, v, rule)())(q)),
        "hidden axis": told(lambda: torch.func.vmap(lambda q: within(q, k, v, rule)())(q[None])),
    }


def asked_for(difference: str, is_odd: bool) -> dict[str, Any]:
    """What a rank gives `attend` where one, the odd one, is asked for something else."""
    q, k, v, _ = tensors(20)
    asked: dict[str, Any] = {"q": q, "k": k, "v": v, "pattern": "window(left=5)"}
    pairs = [(token, token // 2) for token in range(60)]
    changed: dict[str, Callable[[], dict[str, Any]]] = {
        "pattern": lambda: {"pattern": "window(left=7)"},
        "pattern that is long": lambda: {"pattern": explicit([*pairs, (59, 1)])},
        "queries": lambda: {"queries": Shards.even(60, 3), "keys": Shards.even(60, 3)},
        "query_offset": lambda: {"pattern": "across(window(left=5))", "query_offset": 3},
        "cu_seqlens": lambda: {"cu_seqlens": [0, 31, 60]},
        "batch": lambda: {"q": q[:1], "k": k[:1], "v": v[:1]},
        "heads": lambda: {"q": q[:, :2]},
        "key heads": lambda: {"k": k[:, :1], "v": v[:, :1]},
        "features": lambda: {"v": v[..., :2]},
        "dtype": lambda: {"q": q.float(), "k": k.float(), "v": v.float()},
        "scale": lambda: {"scale": 0.7},
        "key_mask": lambda: {"key_mask": torch.ones(BATCH, 20, dtype=torch.bool)},
        "segments": lambda: {"segments": torch.ones(BATCH, 20, dtype=torch.int32)},
        "bias": lambda: {"terms": terms_named("bias")},
        "relative": lambda: {"terms": Terms(relative=torch.ones(6, DIM, dtype=torch.float64))},
        "softcap": lambda: {"terms": Terms(softcap=3.0)},
        "sinks": lambda: {"terms": Terms(sinks=torch.ones(HEADS, dtype=torch.float64))},
        "dropout": lambda: {"terms": terms_named("dropout")},
        "gradients": lambda: {"k": k.requires_grad_()},
        "dense_exchange": lambda: {},
        "refused mask": lambda: {"key_mask": torch.ones(BATCH, 19, dtype=torch.bool)},
        "refused type": lambda: {"q": None},
        "refused option": lambda: {"dropout": 0.1},
        "refused scale": lambda: {"scale": "big"},
        "refused implementation": lambda: {"implementation": "fast"},
        "refused terms": lambda: {"terms": Terms(sinks=torch.ones(HEADS + 1))},
        "refused shards": lambda: {"queries": Shards.even(57, 3), "keys": Shards.even(57, 3)},
        "refused pattern": lambda: {"pattern": "windo(5)"},
        "refused heads": lambda: {"pattern": "per_head([window(left=3), dense()])"},
    }
    if difference == "query_offset":
        asked |= {"pattern": "across(window(left=5))", "query_offset": 0}
    if difference == "pattern that is long":
        asked["pattern"] = explicit([*pairs, (59, 2)])
    return asked | (changed[difference]() if is_odd else {})


def disagreeing(group: dist.ProcessGroup, difference: str) -> list[str]:
    """What this rank says where rank 0, 1 and 2 is the odd one, and how far it is off in a call after each."""
    found = []
    for odd in range(group.size()):
        asked = asked_for(difference, group.rank() == odd)
        dense_exchange = difference == "dense_exchange" and group.rank() == odd
        with impatient(group, 20), sequence_parallel(group, dense_exchange=dense_exchange):
            found.append(told(lambda asked=asked: attend(**asked)))
        found.append(str(apart_by_place(group, "bias", (9, 3, 8))))
    return found


def asked_as_on_a_gpu(group: dist.ProcessGroup) -> list[list[str]]:
    """As `disagreeing`, but reading is for what is new: what ranks say of patterns, and how often they read."""
    context, texts, found = SequenceParallel(group, group.rank(), group.size()), ("one", "two", "three"), []
    agreement._reading_waits = lambda meeting: True
    try:
        for said in [texts[:1] * 3, texts[:1] * 3, texts[1:2] * 3, texts[:2] + texts[:1], texts[2:] + texts[:2]]:
            words, tokens = {"pattern": said[group.rank()]}, (group.rank(), 5)
            read: list[Any] = []
            line = told(
                lambda w=words, r=read, t=tokens: r.append(agreement.agree(context, w, t, None, wants_numbers=False))
            )
            found.append([line, str([None if one is None else one.tolist() for one in read])])
        assert agreement.agree(context, {"pattern": "one"}, (group.rank(), 5), None, wants_numbers=True) is not None
    finally:
        agreement._reading_waits = REALLY_WAITS
    return found


REALLY_WAITS = agreement._reading_waits


def going_on_alone(group: dist.ProcessGroup, what: str) -> str:
    """What a rank says where rank 0 does not come, or alone goes back, and collectives wait for 3 seconds only."""
    q, k, v, _ = tensors(20)
    if what == "does not come" and group.rank() == 0:
        return "LostRankError: "
    k.requires_grad_()

    def run() -> None:
        with impatient(group, 3), sequence_parallel(group, dense_exchange=True):
            out = attend(q, k, v, "window(left=5)")
            if what == "goes back" and group.rank() == 0:
                out.sum().backward()

    return told(run)


# --- the tests --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["segments", "bias", "dropout"])
@pytest.mark.parametrize("sizes", [(7, 0, 24), (0, 31), (31, 0, 0, 0), (1, 1, 0)])
def test_what_goes_by_the_numbers_of_tokens_is_that_of_the_whole(gloo, name, sizes):
    assert max(gloo.run(len(sizes), apart_by_place, name, sizes, patience=60)) < 1e-12


@pytest.mark.parametrize(
    ("pattern", "ranks"),
    [
        ("window(left=5, right=3)", 4),
        ("window(left=23)", 4),
        ("sinks(first=3, window=9)", 3),
        ("fixed(16, 2)", 4),
        ("bigbird_causal(block=4, random=1)", 3),
    ],
)
def test_only_rows_that_another_rank_reads_leave_a_rank(gloo, pattern, ranks):
    tokens = 61
    shards = Shards.even(tokens, ranks)
    reads = parse(pattern).dense(tokens).any(axis=0)
    for rank, (left, held, planned) in enumerate(gloo.run(ranks, positions_on_the_wire, pattern, tokens)):
        own = np.zeros(tokens, bool)
        own[slice(*shards.range(rank))] = True
        of_others = reads[~own].any(axis=0)
        every = set(range(tokens))
        needed_by_others = {int(key) for key in np.flatnonzero(of_others & own)}
        assert not left[rank]
        assert needed_by_others <= set().union(*left), "a row that is read elsewhere stayed"
        passed_on = {key for one in left for key in one}
        unread = every - {int(key) for owner in range(ranks) for key in np.flatnonzero(_away(reads, shards, owner))}
        assert not passed_on & unread, "a row went that no other rank reads"
        assert held <= planned


def _away(reads: np.ndarray, shards: Shards, owner: int) -> np.ndarray:
    """Keys of `owner` that a query of another rank reads."""
    own = np.zeros(len(reads), bool)
    own[slice(*shards.range(owner))] = True
    return reads[~own].any(axis=0) & own


@pytest.mark.parametrize(
    "pattern",
    ["columns(period=8, first=6, count=2) & window(left=20)", "window(left=0) & columns(period=3, first=1, count=1)"],
)
def test_what_unread_rows_hold_changes_nothing(gloo, pattern):
    assert gloo.run(3, with_nan, pattern, 40) == [[True] * 4] * 3


def test_contexts_of_threads_do_not_mix(gloo):
    assert max(gloo.run(4, in_two_threads)) < 1e-12


def test_a_context_ends_with_an_error_and_is_not_entered_twice(gloo):
    for first, nested, last in gloo.run(2, left_by_an_error):
        assert (first, last) == ("None", "None")
        assert "within itself" in nested


@pytest.mark.parametrize("mode", ["default dtype", "default device", "denormal"])
def test_settings_of_torch_change_nothing(gloo, mode):
    assert max(gloo.run(3, modes, mode)) < 1e-5


def test_bad_input_is_one_clear_line(gloo):
    (found,) = gloo.run(1, bad_input)
    for name, line in found.items():
        kind, _, text = line.partition(": ")
        allowed = ("TypeError",) if name in ("option", "types") else ()
        assert kind in ("ConfigurationError", "KernelError", "PatternError", *allowed), (name, line)
        assert text and "\n" not in text, (name, line)
    assert all("supports neither torch.func" in found[name] for name in ("gradient", "hidden axis"))


DIFFERENCES = (
    "pattern", "pattern that is long", "queries", "query_offset", "cu_seqlens", "batch", "heads", "key heads",
    "features", "dtype", "scale", "key_mask", "segments", "bias", "relative", "softcap", "sinks", "dropout",
    "gradients", "dense_exchange",
)  # fmt: skip
"""What ranks may be asked differently."""


@pytest.mark.parametrize("difference", DIFFERENCES)
def test_ranks_that_are_asked_different_things_all_say_so_and_go_on(gloo, difference):
    name = difference.partition(" that")[0]
    for said in gloo.run(3, disagreeing, difference, patience=60):
        for odd, (line, apart) in enumerate(zip(said[::2], said[1::2], strict=True)):
            others = ", ".join(str(rank) for rank in range(3) if rank != odd)
            kind, _, differences = line.partition("these differ: ")
            assert kind.startswith("ConfigurationError: ") and "\n" not in line, line
            named = [one for one in differences.split("; ") if one.startswith(f"{name} ")]
            assert named and f"on rank {odd}" in named[0] and f"on ranks {others}" in named[0], line
            assert float(apart) < 1e-12


REFUSALS = {
    "mask": "KernelError: key_mask must be",
    "type": "KernelError: q must be a torch.Tensor",
    "option": "TypeError: attend() got an unexpected keyword argument",
    "scale": "KernelError: scale must be a number",
    "implementation": "KernelError: unknown implementation 'fast'",
    "terms": "KernelError: sinks [5] is for 5 heads",
    "shards": "ConfigurationError: queries are sharded as [19, 19, 19], and rank {odd} of 3 has 20",
    "pattern": "PatternError: ",
    "heads": "PatternError: per_head",
}
"""What a rank alone may be asked wrongly, and how it says so."""


@pytest.mark.parametrize("refusal", REFUSALS)
def test_where_one_rank_cannot_go_on_the_others_say_which_and_why(gloo, refusal):
    for rank, said in enumerate(gloo.run(3, disagreeing, f"refused {refusal}", patience=60)):
        for odd, (line, apart) in enumerate(zip(said[::2], said[1::2], strict=True)):
            own = REFUSALS[refusal].format(odd=odd)
            assert line.startswith(own if rank == odd else f"ConfigurationError: rank {odd} could not go on"), line
            assert own in line and "\n" not in line
            assert float(apart) < 1e-12


def test_where_reading_waits_for_a_gpu_ranks_read_what_is_new_to_them_and_compare_the_rest_unread(gloo):
    new, again, other, both_known, one_new = zip(*gloo.run(3, asked_as_on_a_gpu), strict=True)
    assert new == other == (["", "[[[0, 5], [1, 5], [2, 5]]]"],) * 3
    assert again == (["", "[None]"],) * 3
    assert all(
        line.startswith("RuntimeError: ranks of sequence_parallel asked for different") for line, _ in both_known
    )
    assert (
        one_new[0][0].startswith("ConfigurationError")
        and "ranks 1, 2 made a different call than rank 0" in one_new[0][0]
    )
    assert all(line.startswith("RuntimeError: ranks of sequence_parallel asked") for line, _ in one_new[1:])


@pytest.mark.parametrize(("what", "said_by"), [("does not come", {0, 1, 2}), ("goes back", {0})])
@pytest.mark.slow
def test_a_rank_that_is_alone_waits_no_longer_than_its_group(gloo, what, said_by):
    try:
        for rank, line in enumerate(gloo.run(3, going_on_alone, what, patience=40)):
            assert bool(line) == (rank in said_by)
            assert what != "does not come" or line.startswith("LostRankError: "), line
    finally:
        gloo.close()  # what these ranks had begun to say to each other is not for the next test
