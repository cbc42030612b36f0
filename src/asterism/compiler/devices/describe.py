"""A communication plan in words and numbers, beside what moves where nobody knows the pattern."""

from typing import Any

import numpy as np

from asterism.compiler.devices.communication import ByHeads, ByResidues, ByRows, Communication, Ring, Share
from asterism.compiler.devices.shards import Shards
from asterism.compiler.devices.traffic import RowShape, Traffic
from asterism.errors import shown
from asterism.patterns.primitives import dense


def without_pattern(queries: Shards, keys: Shards, shape: RowShape) -> dict[str, int | str]:
    """The most bytes that a rank sends or receives, forward, in each way that ignores patterns; or why one cannot be.

    All-gather brings every key to every rank, as context parallelism in PyTorch does; the ring moves the same from
    neighbour to neighbour, so that a rank holds two shards at a time; Ulysses exchanges sequences for heads.
    """
    sizes, ranks = np.array(keys.sizes), keys.ranks
    gathered = int(np.maximum(sizes.sum() - sizes, sizes * (ranks - 1)).max(initial=0)) * shape.key
    moved: dict[str, int | str] = {"all-gather": gathered}
    for name, share in (("ring", Ring), ("Ulysses", ByHeads)):
        moved[name] = Communication(dense(), queries, keys, (share(dense()),)).traffic(shape).most
    if reason := no_ulysses(ranks, shape):
        moved["Ulysses"] = reason
    return moved


def no_ulysses(ranks: int, shape: RowShape) -> str | None:
    """Why sequences cannot be exchanged for heads on so many ranks; None where they can."""
    for count, name in ((shape.heads, "heads"), (shape.key_heads, "key heads")):
        if count % ranks:
            return f"impossible: {ranks:,} devices do not divide {count} {name}"
    return None


def refusal(plan: Communication, shape: RowShape) -> str:
    """Why a dense plan is not executed unless that was asked for."""
    moved, everything = plan.traffic(shape).most, without_pattern(plan.queries, plan.keys, shape)["all-gather"]
    return (
        f"{shown(str(plan.pattern))} over {plan.ranks} ranks would move {moved:,} bytes from or to one rank in each"
        f" forward pass, where bringing it every key takes {everything:,}: use a sparser pattern or longer sequences,"
        " or ask for it: dense_exchange=True (a run: --dense-exchange true)"
    )


def summary(plan: Communication, shape: RowShape) -> dict[str, Any]:
    """The plan as a JSON-ready record; bytes and messages of one layer."""
    return {
        "pattern": plan.pattern.text,
        "devices": plan.ranks,
        "queries": plan.queries.length,
        "keys": plan.keys.length,
        "is_dense": plan.is_dense,
        "shares": [{"way": _title(share, plan), **_moved(plan, share, shape)} for share in plan.shares],
        "forward": _numbers(plan.traffic(shape)),
        "backward": _numbers(plan.backward(shape)),
        "most_key_bytes_held": int(plan.memory(shape).max(initial=0)),
        "shard_key_bytes": max(plan.keys.sizes) * shape.key,
        "without_pattern": without_pattern(plan.queries, plan.keys, shape),
    }


def describe(plan: Communication, shape: RowShape) -> str:
    """The plan in plain lines."""
    found = summary(plan, shape)
    lines = [
        str(plan.pattern),
        f"devices:   {plan.ranks:,}, with at most {max(plan.keys.sizes):,} of {plan.keys.length:,} keys each",
    ]
    for share in found["shares"]:
        lines.append(f"share:     {share['way']}")
        lines += [
            f"           {name}: {megabytes(moved['most_received'])} at most to one, {megabytes(moved['sent'])} in all"
            for name, moved in share["collectives"].items()
        ]
    for direction in ("forward", "backward"):
        moved = found[direction]
        lines.append(
            f"{direction + ':':11}at most {megabytes(moved['most_received'])} come to a rank and"
            f" {megabytes(moved['most_sent'])} leave one, in {moved['most_messages']:,} messages;"
            f" {megabytes(moved['sent'])} and {moved['messages']:,} messages in all"
        )
    lines.append(
        f"memory:    at most {megabytes(found['most_key_bytes_held'])} of keys and values on a rank, of which"
        f" {megabytes(found['shard_key_bytes'])} are its shard"
    )
    beside = ", ".join(
        f"{name} {moved if isinstance(moved, str) else megabytes(moved)}"
        for name, moved in found["without_pattern"].items()
    )
    lines.append(f"beside:    {beside}")
    if plan.is_dense:
        lines.append(
            "dense:     no way that uses this pattern moves less than bringing every key to every rank; a run is"
            " refused unless --dense-exchange true asks for it"
        )
    return "\n".join(lines)


def megabytes(count: int) -> str:
    """Bytes for people, in powers of ten."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return (
                f"{count / size:.1f} {unit}" if count < 1000 * size or unit == "TB" else f"{count / size:,.0f} {unit}"
            )
    return f"{count:,} bytes"


def _title(share: Share, plan: Communication) -> str:
    match share:
        case ByRows(direct=direct, shared=shared, asking=asking):
            most = int(direct.counts_received().max(initial=0))
            parts = [f"keys go where they are read (at most {most:,} straight to a rank)"]
            if len(shared):
                parts.append(f"{_count(shared):,} that most ranks need go to all in two hops")
            if len(asking):
                parts.append(f"{_count(asking):,} queries that read nearly everything ask every rank")
            return ", ".join(parts)
        case ByResidues(period=period):
            return f"tokens go where their residue modulo {period:,} lives, and results come back"
        case ByHeads():
            return f"every rank computes some heads of all {plan.keys.length:,} tokens (Ulysses)"
        case Ring():
            return "shards of keys go round the ring"


def _moved(plan: Communication, share: Share, shape: RowShape) -> dict[str, Any]:
    moved = {each.name: each.forward for each in plan.collectives(share, shape)}
    return {
        "pattern": share.pattern.text,
        "collectives": {name: _numbers(each) for name, each in moved.items() if each.most},
    }


def _numbers(moved: Traffic) -> dict[str, int]:
    return {
        "most_received": int(moved.received.max(initial=0)),
        "most_sent": int(moved.sent.max(initial=0)),
        "most_messages": int(moved.messages.max(initial=0)),
        "sent": int(moved.sent.sum()),
        "messages": int(moved.messages.sum()),
    }


def _count(intervals: Any) -> int:
    return int((intervals[:, 1] - intervals[:, 0]).sum())
