"""The door of the layers to attention, whether a sequence lies on one device or on many."""

from typing import Any

from torch import Tensor
from torch.distributed import _functional_collectives as collectives

from asterism import kernels
from asterism.compiler.devices import Shards
from asterism.parallel.context import SequenceParallel, sharding
from asterism.patterns import Pattern


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pattern: Pattern | str,
    *,
    queries: Shards | None = None,
    keys: Shards | None = None,
    **options: Any,
) -> Any:
    """`asterism.attend` where no sequence is sharded; within `sequence_parallel`, the same for the shards of all ranks.

    There q is [B, H, Nq, D], k [B, Hkv, Nk, D] and v [B, Hkv, Nk, Dv] of the tokens that this rank holds; `queries` and
    `keys` say who holds which (by default, all ranks say how many they have). The pattern is that of the whole
    sequence. Options and results are those of `asterism.attend`; `key_mask` and `segments` are those of this rank's
    keys.
    """
    context = sharding()
    if context is None:
        return kernels.attend(q, k, v, pattern, **options)
    queries = context.shards(q.shape[2], q.device) if queries is None else queries
    keys = (queries if k.shape[2] == q.shape[2] else context.shards(k.shape[2], k.device)) if keys is None else keys
    return _gathered(context, q, k, v, pattern, queries, keys, options)


def _gathered(
    context: SequenceParallel,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pattern: Pattern | str,
    queries: Shards,
    keys: Shards,
    options: dict[str, Any],
) -> Any:
    """Every rank gets all keys: a first slice, until communication plans are executed."""
    for name in ("key_mask", "segments"):
        if options.get(name) is not None:
            rows = options[name][:, None, :, None]
            options = options | {name: _all_rows(context, rows.long(), keys)[:, 0, :, 0].to(rows.dtype)}
    k, v = (_all_rows(context, x, keys) for x in (k, v))
    return kernels.attend(q, k, v, pattern, query_offset=queries.range(context.rank)[0], **options)


def _all_rows(context: SequenceParallel, rows: Tensor, shards: Shards) -> Tensor:
    """[B, H, N of this rank, D] -> [B, H, N of all, D]."""
    laid = rows.permute(2, 0, 1, 3).contiguous()
    own = [len(laid)] * context.ranks
    sent = laid.repeat(context.ranks, 1, 1, 1)
    everyone = collectives.all_to_all_single_autograd(sent, list(shards.sizes), own, context.group)
    return everyone.permute(1, 2, 0, 3)
