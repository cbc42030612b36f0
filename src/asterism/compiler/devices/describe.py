"""Describes a communication plan, compared with methods that ignore the pattern."""

from typing import Any

import numpy as np

from asterism.compiler.devices.communication import Communication, Way
from asterism.compiler.devices.shards import Shards
from asterism.compiler.devices.traffic import RowShape, Traffic
from asterism.compiler.devices.ways.heads import ByHeads, no_ulysses
from asterism.compiler.devices.ways.ring import Ring
from asterism.errors import shown
from asterism.patterns.primitives import dense


def without_pattern(queries: Shards, keys: Shards, shape: RowShape) -> dict[str, int | str]:
    """The most bytes that a device sends or receives, forward, in each way that ignores patterns; or why it cannot run.

    All-gather brings every key to every device, as context parallelism in PyTorch does; the ring moves the same from
    neighbour to neighbour, so that a device holds two shards at a time; Ulysses exchanges sequences for heads.
    """
    sizes, devices = np.array(keys.sizes), keys.devices
    gathered = int(np.maximum(sizes.sum() - sizes, sizes * (devices - 1)).max(initial=0)) * shape.key
    moved: dict[str, int | str] = {"all-gather": gathered}
    for name, way in (("ring", Ring), ("Ulysses", ByHeads)):
        moved[name] = Communication(dense(), queries, keys, (way(dense()),)).traffic(shape).most
    if reason := no_ulysses(devices, shape):
        moved["Ulysses"] = reason
    return moved


def refusal(plan: Communication, shape: RowShape) -> str:
    """The reason why a dense plan is not executed without `dense_exchange`."""
    moved, everything = plan.traffic(shape).most, without_pattern(plan.queries, plan.keys, shape)["all-gather"]
    return (
        f"{shown(str(plan.pattern))} over {plan.devices} ranks would move {moved:,} bytes from or to one rank in each"
        f" forward pass, where bringing it every key takes {everything:,}: use a sparser pattern or longer sequences,"
        " or ask for it: dense_exchange=True (a run: --dense-exchange)"
    )


def summary(plan: Communication, shape: RowShape) -> dict[str, Any]:
    """The plan as a JSON-ready record; bytes and messages of one layer."""
    return {
        "pattern": plan.pattern.text,
        "devices": plan.devices,
        "queries": plan.queries.length,
        "keys": plan.keys.length,
        "is_dense": plan.is_dense,
        "shares": [{"way": way.title(plan), **_moved(plan, way, shape)} for way in plan.ways],
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
        f"devices:   {plan.devices:,}, with at most {max(plan.keys.sizes):,} of {plan.keys.length:,} keys each",
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
            " refused unless --dense-exchange asks for it"
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


def _moved(plan: Communication, way: Way, shape: RowShape) -> dict[str, Any]:
    moved = {each.name: each.forward for each in way.collectives(plan, shape)}
    return {
        "pattern": way.pattern.text,
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
