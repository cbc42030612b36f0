"""Attention to blocks of keys that queries chose: one program of the GPU's grid; see device.py for conventions.

Forward and grad_q, a program has one query with the heads that share its choice, and walks along its list of blocks.
For grad_kv it has one tile of keys of one key head, and walks along the queries that chose its block, sorted by block
on the host: so each gradient has one writer. Which pairs of a block may be read stands in two tables:

    kinds  int32 [tile rows, key tiles]  -1: no pair, 0: all pairs, else one more than the number of the mask
    masks  int64 [masks, TILE, WORDS]    bit j of word w of query i: whether it may read key 64 * w + j
"""

import triton
import triton.language as tl

from asterism.kernels.triton.device import _dot, _finish, _load, _narrow, _weigh
from asterism.kernels.triton.terms import LOG2_E


@triton.jit
def _may_read(kinds, masks, places, tile, n_tiles, is_there, TILE: tl.constexpr, WORDS: tl.constexpr):
    """Whether queries at `places` [M] may read the keys of a tile, [M, TILE]; nobody where `is_there` is False."""
    row, slot = places // TILE, places % TILE
    tile = tl.minimum(tl.maximum(tile, 0), n_tiles - 1)
    kind = tl.where(is_there, tl.load(kinds + row.to(tl.int64) * n_tiles + tile), -1)
    key = tl.arange(0, TILE)
    at = ((kind - 1).to(tl.int64) * TILE + slot)[:, None] * WORDS + (key // 64)[None, :]
    words = tl.load(masks + at, mask=(kind > 0)[:, None], other=0)
    read = ((words >> (key % 64).to(tl.int64)[None, :]) & 1) != 0
    return (kind == 0)[:, None] | ((kind > 0)[:, None] & read)


@triton.jit
def _keys(tile, batch, key_mask, n_keys, TILE: tl.constexpr):
    """The keys of a tile as tokens, and which of them exist and are not masked."""
    keys = tile.to(tl.int64) * TILE + tl.arange(0, TILE)
    exists = (keys >= 0) & (keys < n_keys)
    if key_mask is not None:
        exists = exists & (tl.load(key_mask + batch * n_keys + keys, mask=exists, other=0) != 0)
    return keys, exists


@triton.jit
def _chosen_tile(
    step, list_, k_start, v_start, kinds, masks, key_mask, batch, query, n_keys, n_tiles,
    k_token, k_feature, v_token, v_feature,
    WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
    TILE: tl.constexpr, WORDS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Keys and values of the step's tile along a query's list of blocks, and which of them it may read, [1, TILE]."""
    block = tl.load(list_ + step // TILES)
    tile = block * TILES + step % TILES
    is_there = (block >= 0) & (tile < n_tiles)
    keys, exists = _keys(tile, batch, key_mask, n_keys, TILE)
    allowed = _may_read(kinds, masks, query + tl.arange(0, 1), tile, n_tiles, is_there, TILE, WORDS) & exists[None, :]
    read = tl.max(allowed.to(tl.int32), 0) != 0
    k_rows = _load(k_start, keys, k_token, k_feature, read, WIDTH, BLOCK_D)
    v_rows = _load(v_start, keys, v_token, v_feature, read, VALUE_WIDTH, BLOCK_V)
    return k_rows, v_rows, allowed


@triton.jit
def forward_chosen(
    q, k, v, indices, kinds, masks, key_mask, out, lse,
    q_batch, q_head, q_token, q_feature,
    k_batch, k_head, k_token, k_feature,
    v_batch, v_head, v_token, v_feature,
    n_heads, n_queries, n_keys, n_tiles, n_shares, chosen_heads, of_choice, of_keys, query_offset, query_block, slots,
    scale,
    GROUP: tl.constexpr, MEMBERS: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, TILE: tl.constexpr, WORDS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """out [B, H, N, Dv] and lse [B, H, N] of a query in GROUP heads, float32."""
    program = tl.program_id(0)
    query, unit = program % n_queries, program // n_queries
    units = n_heads // GROUP
    batch, first_head = (unit // units).to(tl.int64), unit % units * GROUP
    heads = first_head + tl.arange(0, MEMBERS)
    is_member = tl.arange(0, MEMBERS) < GROUP
    start = q + batch * q_batch + query.to(tl.int64) * q_token
    q_rows = _load(start, heads.to(tl.int64), q_head, q_feature, is_member, WIDTH, BLOCK_D)
    share = (query + query_offset) // query_block - query_offset // query_block
    list_ = indices + ((batch * chosen_heads + first_head // of_choice) * n_shares + share).to(tl.int64) * slots
    k_start = k + batch * k_batch + (first_head // of_keys).to(tl.int64) * k_head
    v_start = v + batch * v_batch + (first_head // of_keys).to(tl.int64) * v_head
    top = tl.full((MEMBERS,), float("-inf"), tl.float32)
    total = tl.zeros((MEMBERS,), tl.float32)
    acc = tl.zeros((MEMBERS, BLOCK_V), tl.float32)
    for step in range(0, slots * TILES):
        k_rows, v_rows, allowed = _chosen_tile(
            step, list_, k_start, v_start, kinds, masks, key_mask, batch, query, n_keys, n_tiles,
            k_token, k_feature, v_token, v_feature, WIDTH, VALUE_WIDTH, BLOCK_D, BLOCK_V, TILE, WORDS, TILES,
        )  # fmt: skip
        scores = _dot(q_rows, tl.trans(k_rows)) * scale
        scores = tl.where(allowed & is_member[:, None], scores, float("-inf"))
        weights, decay, top = _weigh(top, scores, LOG2_E, True)
        total = total * decay + tl.sum(weights, 1)
        acc = _dot(_narrow(weights, v.dtype.element_ty), v_rows, acc * decay[:, None])
    value, value_lse = _finish(acc, top, total)
    rows = (batch * n_heads + heads) * n_queries + query
    features = tl.arange(0, BLOCK_V)
    inside = is_member[:, None] & (features < VALUE_WIDTH)[None, :]
    tl.store(out + rows.to(tl.int64)[:, None] * VALUE_WIDTH + features[None, :], value, mask=inside)
    tl.store(lse + rows, value_lse, mask=is_member)


@triton.jit
def grad_q_chosen(
    q, k, v, indices, kinds, masks, key_mask, grad_out, power, delta, grad_q,
    q_batch, q_head, q_token, q_feature,
    k_batch, k_head, k_token, k_feature,
    v_batch, v_head, v_token, v_feature,
    n_heads, n_queries, n_keys, n_tiles, n_shares, chosen_heads, of_choice, of_keys, query_offset, query_block, slots,
    scale,
    GROUP: tl.constexpr, MEMBERS: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, TILE: tl.constexpr, WORDS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """The gradient of a query in GROUP heads, float32; grad_out is float32, power the log-sum-exp to base 2."""
    program = tl.program_id(0)
    query, unit = program % n_queries, program // n_queries
    units = n_heads // GROUP
    batch, first_head = (unit // units).to(tl.int64), unit % units * GROUP
    heads = first_head + tl.arange(0, MEMBERS)
    is_member = tl.arange(0, MEMBERS) < GROUP
    start = q + batch * q_batch + query.to(tl.int64) * q_token
    q_rows = _load(start, heads.to(tl.int64), q_head, q_feature, is_member, WIDTH, BLOCK_D)
    rows = (batch * n_heads + heads).to(tl.int64) * n_queries + query
    out_rows = _load(grad_out, rows, VALUE_WIDTH, 1, is_member, VALUE_WIDTH, BLOCK_V)
    above = tl.load(power + rows, mask=is_member, other=float("inf"))
    less = tl.load(delta + rows, mask=is_member, other=0.0)
    share = (query + query_offset) // query_block - query_offset // query_block
    list_ = indices + ((batch * chosen_heads + first_head // of_choice) * n_shares + share).to(tl.int64) * slots
    k_start = k + batch * k_batch + (first_head // of_keys).to(tl.int64) * k_head
    v_start = v + batch * v_batch + (first_head // of_keys).to(tl.int64) * v_head
    acc = tl.zeros((MEMBERS, BLOCK_D), tl.float32)
    for step in range(0, slots * TILES):
        k_rows, v_rows, allowed = _chosen_tile(
            step, list_, k_start, v_start, kinds, masks, key_mask, batch, query, n_keys, n_tiles,
            k_token, k_feature, v_token, v_feature, WIDTH, VALUE_WIDTH, BLOCK_D, BLOCK_V, TILE, WORDS, TILES,
        )  # fmt: skip
        scores = _dot(q_rows, tl.trans(k_rows)) * (scale * LOG2_E)
        weights = tl.where(allowed, tl.math.exp2(scores - above[:, None]), 0.0)
        of_weights = _dot(out_rows, tl.trans(v_rows.to(tl.float32)))
        of_scores = weights * (of_weights - less[:, None])
        acc = _dot(_narrow(of_scores, k.dtype.element_ty), k_rows, acc)
    features = tl.arange(0, BLOCK_D)
    inside = is_member[:, None] & (features < WIDTH)[None, :]
    tl.store(grad_q + rows[:, None] * WIDTH + features[None, :], acc * scale, mask=inside)


@triton.jit
def grad_kv_chosen(
    q, k, v, starts, order, kinds, masks, key_mask, grad_out, power, delta, grad_k, grad_v,
    q_batch, q_head, q_token, q_feature,
    k_batch, k_head, k_token, k_feature,
    v_batch, v_head, v_token, v_feature,
    n_heads, key_heads, n_queries, n_keys, n_tiles, n_blocks, chosen_heads, of_choice, of_keys, scale,
    WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
    TILE: tl.constexpr, WORDS: tl.constexpr, TILES: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """The gradients of a tile of keys and values of one key head, float32.

    order int32, the queries that chose a block, by batch, head of the choice and block; starts int64, where each begins
    """
    program = tl.program_id(0)
    tile, unit = program % n_tiles, program // n_tiles
    batch, key_head = (unit // key_heads).to(tl.int64), unit % key_heads
    keys, exists = _keys(tile, batch, key_mask, n_keys, TILE)
    k_rows = _load(
        k + batch * k_batch + key_head.to(tl.int64) * k_head, keys, k_token, k_feature, exists, WIDTH, BLOCK_D
    )
    v_rows = _load(
        v + batch * v_batch + key_head.to(tl.int64) * v_head, keys, v_token, v_feature, exists, VALUE_WIDTH, BLOCK_V
    )
    of_keys_sum = tl.zeros((TILE, BLOCK_D), tl.float32)
    of_values_sum = tl.zeros((TILE, BLOCK_V), tl.float32)
    for member in range(0, of_keys):
        head = key_head * of_keys + member
        row = (batch * chosen_heads + head // of_choice) * n_blocks + tile // TILES
        begin, past = tl.load(starts + row), tl.load(starts + row + 1)
        for first in range(begin, past, BLOCK_M):
            at = first + tl.arange(0, BLOCK_M)
            is_there = at < past
            places = tl.load(order + at, mask=is_there, other=0)
            rows = (batch * n_heads + head).to(tl.int64) * n_queries + places
            start = q + batch * q_batch + head.to(tl.int64) * q_head
            q_rows = _load(start, places.to(tl.int64), q_token, q_feature, is_there, WIDTH, BLOCK_D)
            out_rows = _load(grad_out, rows, VALUE_WIDTH, 1, is_there, VALUE_WIDTH, BLOCK_V)
            above = tl.load(power + rows, mask=is_there, other=float("inf"))
            less = tl.load(delta + rows, mask=is_there, other=0.0)
            allowed = _may_read(kinds, masks, places, tile, n_tiles, is_there, TILE, WORDS) & exists[None, :]
            scores = _dot(q_rows, tl.trans(k_rows)) * (scale * LOG2_E)
            weights = tl.where(allowed, tl.math.exp2(scores - above[:, None]), 0.0)
            of_values_sum = _dot(tl.trans(weights), out_rows, of_values_sum)
            of_weights = _dot(out_rows, tl.trans(v_rows.to(tl.float32)))
            of_scores = weights * (of_weights - less[:, None])
            of_keys_sum = _dot(tl.trans(of_scores), q_rows.to(tl.float32), of_keys_sum)
    rows = (batch * key_heads + key_head).to(tl.int64) * n_keys + keys
    is_key = keys < n_keys
    features = tl.arange(0, BLOCK_D)
    inside = is_key[:, None] & (features < WIDTH)[None, :]
    tl.store(grad_k + rows[:, None] * WIDTH + features[None, :], of_keys_sum * scale, mask=inside)
    features = tl.arange(0, BLOCK_V)
    inside = is_key[:, None] & (features < VALUE_WIDTH)[None, :]
    tl.store(grad_v + rows[:, None] * VALUE_WIDTH + features[None, :], of_values_sum, mask=inside)
