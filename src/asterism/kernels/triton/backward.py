"""One program of the GPU's grid in the backward pass; see device.py for tables and invariants.

The forward pass's log-sum-exp gives the weights again; grad_q runs over tile rows and grad_kv over tile columns, so
that each gradient has one writer; grad_bias runs over tiles whose pairs have equal distances.
"""

import triton
import triton.language as tl

from asterism.kernels.triton.device import (
    _assignment,
    _cells,
    _dot,
    _load,
    _load_sum,
    _narrow,
    _permitted,
    _row_of_queries,
    _score,
    _segments_of,
    _split_assignment,
    _store_sum,
    _tokens,
)
from asterism.kernels.triton.terms import LOG2_E, VARYING, _biases, _kept, _scores


@triton.jit
def prepare(
    out, residual, lse, grad_out, grad_lse, power, delta,
    n_rows,
    VALUE_WIDTH: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Per row: delta = rowsum(grad_out * out) - grad_lse, and lse to base 2; 0 and inf where nothing is read."""
    rows = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    exists = rows < n_rows
    cells, inside = _cells(rows, VALUE_WIDTH, BLOCK_V)
    inside = inside & exists[:, None]
    product = _load_sum(out, residual, cells, inside) * tl.load(grad_out + cells, mask=inside, other=0.0).to(tl.float32)
    natural = tl.load(lse + rows, mask=exists, other=float("-inf"))
    empty = natural == float("-inf")
    difference = tl.sum(product, 1) - tl.load(grad_lse + rows, mask=exists, other=0.0)
    tl.store(delta + rows, tl.where(empty, 0.0, difference), mask=exists)
    tl.store(power + rows, tl.where(empty, float("inf"), natural * LOG2_E), mask=exists)


@triton.jit
def _write_gradient(
    value,
    grad,
    rest,
    rows,
    exists,
    ADD: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write, or add to what earlier passes wrote, a gradient at `rows` of grad [rows, WIDTH]."""
    cells, inside = _cells(rows, WIDTH, BLOCK)
    inside = inside & exists[:, None]
    if ADD:
        value += _load_sum(grad, rest, cells, inside)
    _store_sum(grad, rest, cells, inside, value)


@triton.jit
def _grad_scores(
    scores, g_tile, v_tile, power, delta, queries, keys, first_key, key_index, query_offset, head, row,
    last_dropped, seed_low, seed_high, kept_factor,
):  # fmt: skip
    """Gradients of the scores with their bias [M, N]."""
    grad_weights = _dot(g_tile, tl.trans(v_tile))
    if last_dropped is not None:
        grad_weights *= _kept(
            queries, keys, first_key, key_index, query_offset, head, row, last_dropped, seed_low, seed_high,
            kept_factor, False,
        )  # fmt: skip
    return tl.math.exp2(scores - power[:, None]) * (grad_weights - delta[:, None])


@triton.jit(do_not_specialize=VARYING)
def grad_q(
    q, k, v, key_mask, segments, bias, grad_out, power, delta, grad, rest, partial,
    heads, pieces, entries, query_index, key_index, masks, reads,
    q_batch, q_head, q_token, q_feature,
    k_batch, k_head, k_token, k_feature,
    v_batch, v_head, v_token, v_feature,
    n_pieces, shared, slots, n_rows, n_columns, n_heads, n_queries, n_keys, query_offset, group, scale,
    bias_head, softcap, last_dropped, seed_low, seed_high, kept_factor,
    ADD: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
    TILE: tl.constexpr, WORDS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The gradient of BLOCK_M queries from one piece, into grad or into the piece's slot."""
    BLOCKS: tl.constexpr = TILE // BLOCK_N
    batch, head, copy, piece, block = _assignment(pieces, heads, n_pieces, shared, TILE // BLOCK_M)
    full, count, first_entry, query_slots, exists, queries = _row_of_queries(
        piece, block, query_index, n_rows, TILE, BLOCK_M
    )
    entries += first_entry
    rows = (batch * n_heads + head) * n_queries + queries
    q_tile = _load(q + batch * q_batch + head * q_head, queries, q_token, q_feature, exists, WIDTH, BLOCK_D)
    g_tile = _load(grad_out, rows, VALUE_WIDTH, 1, exists, VALUE_WIDTH, BLOCK_V)
    row_power = tl.load(power + rows, mask=exists, other=float("inf"))
    row_delta = tl.load(delta + rows, mask=exists, other=0.0)
    k += batch * k_batch + head // group * k_head
    v += batch * v_batch + head // group * v_head
    batch_keys = batch * n_keys
    query_segments = _segments_of(segments, batch_keys + query_offset, queries)
    if bias is not None:
        bias += head * bias_head + (n_keys - 1)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for MASKED in tl.static_range(2):  # Full tiles come first; only a key mask or segments forbid any of their pairs.
        if MASKED or (key_mask is None and segments is None):
            tiles = count if MASKED else full
            for step in range(tiles * BLOCKS):
                k_tile, v_tile, scores, bent, keys, first_key = _score(
                    step, entries, q_tile, queries, block * BLOCK_M, query_segments, k, v, key_mask, segments, bias,
                    batch_keys, key_index, masks, reads, k_token, k_feature, v_token, v_feature, n_columns, scale,
                    softcap, MASKED, False, WIDTH, VALUE_WIDTH, BLOCK_D, BLOCK_V, TILE, WORDS, BLOCK_N,
                )  # fmt: skip
                grad_scores = _grad_scores(
                    scores, g_tile, v_tile, row_power, row_delta, queries, keys, first_key, key_index, query_offset,
                    head, batch, last_dropped, seed_low, seed_high, kept_factor,
                )  # fmt: skip
                if softcap is not None:
                    grad_scores *= 1.0 - bent * bent
                acc = _dot(_narrow(grad_scores, k_tile.dtype), k_tile, acc)
            entries += tiles * 3
            count -= tiles
    acc *= scale
    slot = tl.load(piece + 5)
    if slot >= 0:
        cells, inside = _cells((copy * slots + slot) * TILE + query_slots, WIDTH, BLOCK_D)
        tl.store(partial + cells, acc, mask=inside)
    else:
        _write_gradient(acc, grad, rest, rows, exists, ADD, WIDTH, BLOCK_D)


@triton.jit
def _grad_kv_entries(
    grad_k, grad_v, k_tile, v_tile, first_key, first_place, keys, batch, kv_head, q, key_mask, segments, bias,
    batch_keys, grad_out, power, delta,
    entries, count, query_index, key_index, masks,
    q_head, q_token, q_feature,
    n_rows, batch_heads, n_queries, n_keys, query_offset, group, scale,
    bias_head, softcap, last_dropped, seed_low, seed_high, kept_factor,
    MASKED: tl.constexpr, MEMBERS: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr, TILE: tl.constexpr, WORDS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """grad_k [N, D] += grad_scores^T @ q, before scaling, and grad_v [N, V] += weights^T @ grad_out."""
    BLOCKS: tl.constexpr = TILE // BLOCK_M
    for step in range(count * (MEMBERS * BLOCKS)):
        entry = entries + (step // (MEMBERS * BLOCKS)) * 3
        first_query = step % BLOCKS * BLOCK_M
        places = tl.load(entry) * TILE + first_query + tl.arange(0, BLOCK_M)
        exists = None  # of a full tile, all queries do
        if MASKED:
            exists = places < n_rows
        if query_index is None and segments is None and bias is None:
            queries = places.to(tl.int64)
        else:
            queries = _tokens(query_index, tl.minimum(places, n_rows - 1))
        head = kv_head * group + tl.load(entry + 2) + step // BLOCKS % MEMBERS
        rows = (batch_heads + head) * n_queries + queries
        q_tile = _load(q + head * q_head, queries, q_token, q_feature, exists, WIDTH, BLOCK_D)
        g_tile = _load(grad_out, rows, VALUE_WIDTH, 1, exists, VALUE_WIDTH, BLOCK_V)
        if MASKED:
            row_power = tl.load(power + rows, mask=exists, other=float("inf"))
            row_delta = tl.load(delta + rows, mask=exists, other=0.0)
        else:
            row_power = tl.load(power + rows)
            row_delta = tl.load(delta + rows)
        scores, bent = _scores(_dot(k_tile, tl.trans(q_tile)), scale, softcap, False)
        if MASKED:
            key_slots = first_key + tl.arange(0, BLOCK_N)
            allowed = _permitted(masks, tl.load(entry + 1), key_slots, first_query, True, TILE, WORDS, BLOCK_M)
            if key_mask is not None:
                allowed = allowed & (tl.load(key_mask + batch_keys + keys) != 0)[:, None]
            if segments is not None:
                asked = tl.load(segments + batch_keys + query_offset + queries)
                allowed = allowed & (tl.load(segments + batch_keys + keys)[:, None] == asked[None, :])
        if bias is not None:
            biases = _biases(bias + (head * bias_head + (n_keys - 1)), queries, keys, True)
            scores += biases
            if MASKED:
                allowed = allowed & (biases > float("-inf"))
            else:
                allowed = biases > float("-inf")
        if MASKED or bias is not None:
            scores = tl.where(allowed, scores, float("-inf"))
        weights = tl.math.exp2(scores - row_power[None, :])
        if last_dropped is not None:
            kept = _kept(
                queries, keys, first_place, key_index, query_offset, head, batch, last_dropped, seed_low, seed_high,
                kept_factor, True,
            )  # fmt: skip
            grad_v = _dot(_narrow(weights * kept, g_tile.dtype), g_tile, grad_v)
        else:
            grad_v = _dot(_narrow(weights, g_tile.dtype), g_tile, grad_v)
        grad_weights = _dot(v_tile, tl.trans(g_tile))
        if last_dropped is not None:
            grad_weights *= kept
        grad_scores = weights * (grad_weights - row_delta[None, :])
        if softcap is not None:
            grad_scores *= 1.0 - bent * bent
        if MASKED or bias is not None:
            grad_scores = tl.where(allowed, grad_scores, 0.0)
        grad_k = _dot(_narrow(grad_scores, q_tile.dtype), q_tile, grad_k)
    return grad_k, grad_v


@triton.jit(do_not_specialize=VARYING)
def grad_kv(
    q, k, v, key_mask, segments, bias, grad_out, power, delta, grad_of_k, rest_of_k, partial_of_k, grad_of_v, rest_of_v,
    partial_of_v,
    heads, pieces, entries, query_index, key_index, masks,
    q_batch, q_head, q_token, q_feature,
    k_batch, k_head, k_token, k_feature,
    v_batch, v_head, v_token, v_feature,
    n_pieces, shared, slots, n_rows, n_columns, n_heads, n_queries, n_keys, query_offset, group, scale,
    bias_head, softcap, last_dropped, seed_low, seed_high, kept_factor,
    ADD: tl.constexpr, MEMBERS: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr, TILE: tl.constexpr, WORDS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The gradients of BLOCK_N keys and values from one piece of a tile column, for MEMBERS query heads per entry."""
    batch, kv_head, copy, piece, block = _assignment(pieces, heads, n_pieces, shared, TILE // BLOCK_N)
    full, count = tl.load(piece + 3).to(tl.int32), tl.load(piece + 4).to(tl.int32)
    entries += tl.load(piece + 2) * 3
    first_key = block * BLOCK_N
    key_slots = first_key + tl.arange(0, BLOCK_N)
    first_place = tl.load(piece + 1).to(tl.int32) * TILE + first_key
    places = tl.load(piece + 1).to(tl.int32) * TILE + key_slots
    exists = places < n_columns
    keys = _tokens(key_index, tl.minimum(places, n_columns - 1))
    k_tile = _load(k + batch * k_batch + kv_head * k_head, keys, k_token, k_feature, exists, WIDTH, BLOCK_D)
    v_tile = _load(v + batch * v_batch + kv_head * v_head, keys, v_token, v_feature, exists, VALUE_WIDTH, BLOCK_V)
    q += batch * q_batch
    batch_heads, batch_keys = batch * n_heads, batch * n_keys
    grad_k = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    grad_v = tl.zeros([BLOCK_N, BLOCK_V], tl.float32)
    for MASKED in tl.static_range(2):  # Full tiles come first; only a key mask or segments forbid any of their pairs.
        if MASKED or (key_mask is None and segments is None):
            tiles = count if MASKED else full
            grad_k, grad_v = _grad_kv_entries(
                grad_k, grad_v, k_tile, v_tile, first_key, first_place, keys, batch, kv_head, q, key_mask, segments,
                bias, batch_keys, grad_out, power, delta, entries, tiles, query_index, key_index, masks,
                q_head, q_token, q_feature, n_rows, batch_heads, n_queries, n_keys, query_offset, group, scale,
                bias_head, softcap, last_dropped, seed_low, seed_high, kept_factor,
                MASKED, MEMBERS, WIDTH, VALUE_WIDTH, BLOCK_D, BLOCK_V, TILE, WORDS, BLOCK_M, BLOCK_N,
            )  # fmt: skip
            entries += tiles * 3
            count -= tiles
    grad_k *= scale
    slot = tl.load(piece + 5)
    if slot >= 0:
        rows = (copy * slots + slot) * TILE + key_slots
        cells, inside = _cells(rows, WIDTH, BLOCK_D)
        tl.store(partial_of_k + cells, grad_k, mask=inside)
        cells, inside = _cells(rows, VALUE_WIDTH, BLOCK_V)
        tl.store(partial_of_v + cells, grad_v, mask=inside)
    else:
        rows = (batch * (n_heads // group) + kv_head) * n_keys + keys
        _write_gradient(grad_k, grad_of_k, rest_of_k, rows, exists, ADD, WIDTH, BLOCK_D)
        _write_gradient(grad_v, grad_of_v, rest_of_v, rows, exists, ADD, VALUE_WIDTH, BLOCK_V)


@triton.jit
def add_pieces(
    partial, grad, rest,
    heads, splits, index,
    n_splits, shared, slots, n_places, n_heads, n_tokens,
    ADD: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """The gradients that the pieces of a long tile row or column found, summed."""
    batch, head, copy, tile, slot, count, block = _split_assignment(splits, heads, n_splits, shared, TILE // BLOCK_M)
    within = block * BLOCK_M + tl.arange(0, BLOCK_M)
    places = tile * TILE + within
    exists = places < n_places
    tokens = _tokens(index, tl.minimum(places, n_places - 1))
    value = tl.zeros([BLOCK_M, BLOCK], tl.float32)
    for step in range(count):
        cells, inside = _cells((copy * slots + slot + step) * TILE + within, WIDTH, BLOCK)
        value += tl.load(partial + cells, mask=inside, other=0.0)
    _write_gradient(value, grad, rest, (batch * n_heads + head) * n_tokens + tokens, exists, ADD, WIDTH, BLOCK)


@triton.jit(do_not_specialize=VARYING)
def grad_bias(
    q, k, v, key_mask, segments, bias, grad_out, power, delta, partial,
    heads, pieces, entries, query_index, key_index, masks, reads,
    q_batch, q_head, q_token, q_feature,
    k_batch, k_head, k_token, k_feature,
    v_batch, v_head, v_token, v_feature,
    n_pieces, shared, n_rows, n_columns, n_batch, n_heads, n_queries, n_keys, query_offset, group, scale,
    bias_head, softcap, last_dropped, seed_low, seed_high, kept_factor,
    WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, TILE: tl.constexpr,
    WORDS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """BLOCK_M x BLOCK_N gradients of scores, each the sum over a piece of tiles of equal distances and over the batch,
    into the piece's tile of partial [shared * n_pieces, TILE, TILE]. An entry is [column, kind, row].
    """
    ACROSS: tl.constexpr = TILE // BLOCK_N
    BLOCKS: tl.constexpr = TILE // BLOCK_M * ACROSS
    _, head, copy, piece, block = _assignment(pieces, heads, n_pieces, shared, BLOCKS)
    full, count = tl.load(piece + 3).to(tl.int32), tl.load(piece + 4).to(tl.int32)
    entries += tl.load(piece + 2) * 3
    across, first_query = block % ACROSS, block // ACROSS * BLOCK_M
    query_slots = first_query + tl.arange(0, BLOCK_M)
    key_slots = across * BLOCK_N + tl.arange(0, BLOCK_N)
    q += head * q_head
    k += head // group * k_head
    v += head // group * v_head
    bias += head * bias_head + (n_keys - 1)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for MASKED in tl.static_range(2):  # Full tiles come first; only a key mask or segments forbid any of their pairs.
        if MASKED or (key_mask is None and segments is None):
            tiles = count if MASKED else full
            for step in range(tiles * n_batch):
                batch, number = (step % n_batch).to(tl.int64), step // n_batch
                places = tl.load(entries + number * 3 + 2) * TILE + query_slots
                exists = places < n_rows
                queries = _tokens(query_index, tl.minimum(places, n_rows - 1))
                rows = (batch * n_heads + head) * n_queries + queries
                q_tile = _load(q + batch * q_batch, queries, q_token, q_feature, exists, WIDTH, BLOCK_D)
                g_tile = _load(grad_out, rows, VALUE_WIDTH, 1, exists, VALUE_WIDTH, BLOCK_V)
                row_power = tl.load(power + rows, mask=exists, other=float("inf"))
                row_delta = tl.load(delta + rows, mask=exists, other=0.0)
                query_segments = _segments_of(segments, batch * n_keys + query_offset, queries)
                k_tile, v_tile, scores, bent, keys, first_key = _score(
                    number * ACROSS + across, entries, q_tile, queries, first_query, query_segments,
                    k + batch * k_batch, v + batch * v_batch, key_mask, segments, bias,
                    batch * n_keys, key_index, masks, reads, k_token, k_feature, v_token, v_feature, n_columns, scale,
                    softcap, MASKED, False, WIDTH, VALUE_WIDTH, BLOCK_D, BLOCK_V, TILE, WORDS, BLOCK_N,
                )  # fmt: skip
                acc += _grad_scores(
                    scores, g_tile, v_tile, row_power, row_delta, queries, keys, first_key, key_index, query_offset,
                    head, batch, last_dropped, seed_low, seed_high, kept_factor,
                )  # fmt: skip
            entries += tiles * 3
            count -= tiles
    own = copy * n_pieces + tl.program_id(0) // BLOCKS % n_pieces
    cells = (own * TILE + query_slots)[:, None] * TILE + key_slots[None, :]
    tl.store(partial + cells, acc)
