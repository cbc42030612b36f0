"""What queries of a run give to keys of a run, for programs of the GPU's grid: the device half of `block_mass`.

A program has one pair of runs in one tile of a pass, for one head of one row of the batch. It adds up weights, from a
log-sum-exp that is known, and writes one number: no atomics, equal bits. The tables are those of device.py but for

    tiles    int32 [E, 4]  tile row, tile column, kind and list of each entry of the pass
"""

import triton
import triton.language as tl

from asterism.kernels.triton.device import _dot, _load, _readable, _segments_of, _tokens
from asterism.kernels.triton.terms import LOG2_E, _biases, _scores


@triton.jit
def mass(
    q, k, lse, key_mask, segments, bias, sums, heads, tiles, query_index, key_index, masks, reads,
    q_batch, q_head, q_token, q_feature,
    k_batch, k_head, k_token, k_feature,
    n_tiles, shared, n_rows, n_columns, n_heads, n_queries, n_keys, query_offset, group, scale, bias_head, softcap,
    WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, TILE: tl.constexpr, WORDS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sums of weights, float32 [batch, heads, n_tiles, TILE / BLOCK, TILE / BLOCK], of runs of BLOCK tokens."""
    RUNS: tl.constexpr = TILE // BLOCK
    program = tl.program_id(0)
    runs = program % (RUNS * RUNS)
    number = program // (RUNS * RUNS) % n_tiles
    copy = program // (RUNS * RUNS) // n_tiles
    entry = tiles + number.to(tl.int64) * 4
    head = tl.load(heads + tl.load(entry + 3) + copy % shared).to(tl.int64)
    batch = (copy // shared).to(tl.int64)
    first_query, first_key = runs // RUNS * BLOCK, runs % RUNS * BLOCK
    places = tl.load(entry) * TILE + first_query + tl.arange(0, BLOCK)
    exists = places < n_rows
    queries = _tokens(query_index, tl.minimum(places, n_rows - 1))
    keys = _tokens(key_index, tl.minimum(tl.load(entry + 1) * TILE + first_key + tl.arange(0, BLOCK), n_columns - 1))
    known = tl.load(lse + (batch * n_heads + head) * n_queries + queries, mask=exists, other=float("inf"))
    counts = exists & (known > float("-inf")) & (known < float("inf"))
    batch_keys = batch * n_keys
    query_segments = _segments_of(segments, batch_keys + query_offset, queries)
    allowed, read = _readable(
        tl.load(entry + 2), first_query, first_key, keys, query_segments, key_mask, segments, batch_keys, masks, reads,
        TILE, WORDS, BLOCK, BLOCK,
    )  # fmt: skip
    if bias is not None:
        biases = _biases(bias + head * bias_head + (n_keys - 1), queries, keys, False)
        allowed = allowed & (biases > float("-inf"))
        read = tl.max(allowed.to(tl.int32), 0) != 0
    q_tile = _load(q + batch * q_batch + head * q_head, queries, q_token, q_feature, counts, WIDTH, BLOCK_D)
    k_tile = _load(k + batch * k_batch + head // group * k_head, keys, k_token, k_feature, read, WIDTH, BLOCK_D)
    scores, _ = _scores(_dot(q_tile, tl.trans(k_tile)), scale, softcap, False)
    if bias is not None:
        scores += biases
    shift = tl.where(counts, known * LOG2_E, 0.0)
    weights = tl.where(allowed & counts[:, None], tl.math.exp2(scores - shift[:, None]), 0.0)
    place = (((batch * n_heads + head) * n_tiles + number) * RUNS * RUNS) + runs
    tl.store(sums + place, tl.sum(tl.sum(weights, 1), 0))
