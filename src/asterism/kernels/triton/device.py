"""One program of the GPU's grid in the forward pass and decoding: the device half of kernels/triton/kernel.py.

Only this file, backward.py and terms.py import Triton. A program computes one piece: a block of BLOCK_M
queries (forward, grad_q) or BLOCK_N keys (grad_kv) of one tile row or column, over a run of its entries. Full entries
come first, so that the loop over them has no mask in it. Scores are never stored; the scheme is FlashAttention-2's (Dao
2023, section 3), with exponentials to base 2.

Tables, all made by kernels/triton/tables.py:

    pieces   int64 [P, 6]  list, tile, first entry, full entries, entries, slot of the partial result or -1 for none
    entries  int32 [E, 3]  tile of the other side, kind, query head counted from the list's first
    splits   int64 [S, 4]  list, tile, first slot, slots: the tiles whose pieces have to be put together
    heads    int32         the head of list l for the s-th of the heads that share it is heads[l + s]
    masks    int32 [kinds, 2, TILE, WORDS]  bit j of word w: whether the query may attend to key number 32 * w + j,
                                            and whether query number 32 * w + j may attend to the key
    reads    int32 [kinds, WORDS]           whether any query of the tile may

Invariants: counts of tokens and tiles fit int32; whatever is multiplied by a stride or a width is int64 before. A
partial result has one writer, and pieces are put together in the order of their slots: no atomics, equal bits.
"""

import triton
import triton.language as tl

from asterism.kernels.triton.terms import LOG2_E, VARYING, _biases, _kept, _scores

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
"""Whether Triton's interpreter runs these functions, on tensors of any device: TRITON_INTERPRET was set at import."""

LN_2 = tl.constexpr(0.6931471805599453)


def shared_memory(device: int) -> int:
    """Bytes of memory that one core of the GPU of that number has for its programs."""
    return triton.runtime.driver.active.utils.get_device_properties(device)["max_shared_mem"]


# --- arithmetic ------------------------------------------------------------------------------------------------------


@triton.jit
def _narrow(value, dtype: tl.constexpr):
    """float32 rounded to `dtype`. Triton's interpreter cuts off what bfloat16 has no bits for, so it gets help."""
    if INTERPRETED:
        if dtype == tl.bfloat16:
            bits = value.to(tl.int32, bitcast=True)
            bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000
            value = tl.where(value == value, bits.to(tl.float32, bitcast=True), value)
    return value.to(dtype)


@triton.jit
def _dot(left, right, acc=None):
    """acc + left @ right in float32. Triton's interpreter would multiply the bits of bfloat16 numbers as integers."""
    if INTERPRETED:
        left, right = left.to(tl.float32), right.to(tl.float32)
    return tl.dot(left, right, acc, input_precision="ieee")


# --- loading and storing ---------------------------------------------------------------------------------------------


@triton.jit
def _tokens(index, places):
    """The tokens at these places of a token order, int64; no index is the natural order."""
    if index is not None:
        tokens = tl.load(index + places).to(tl.int64)
    else:
        tokens = places.to(tl.int64)
    return tokens


@triton.jit
def _load(base, tokens, token_stride, feature_stride, present, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Rows of a tensor [tokens, BLOCK]; 0 beyond WIDTH features and, if `present` is given, where it is False."""
    features = tl.arange(0, BLOCK)
    pointers = base + tokens[:, None] * token_stride + features[None, :].to(tl.int64) * feature_stride
    if WIDTH == BLOCK:
        if present is None:
            tile = tl.load(pointers)
        else:
            tile = tl.load(pointers, mask=present[:, None], other=0.0)
    else:
        inside = features[None, :] < WIDTH
        if present is None:
            tile = tl.load(pointers, mask=inside, other=0.0)
        else:
            tile = tl.load(pointers, mask=inside & present[:, None], other=0.0)
    return tile


@triton.jit
def _cells(tokens, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Offsets of rows of a contiguous tensor [tokens, BLOCK], and which of them are inside."""
    features = tl.arange(0, BLOCK)[None, :]
    return tokens[:, None] * WIDTH + features, features < WIDTH


@triton.jit
def _load_sum(narrow, rest, cells, present):
    """A float32 kept as a rounded number and, if `rest` is given, what rounding took from it."""
    value = tl.load(narrow + cells, mask=present, other=0.0).to(tl.float32)
    if rest is not None:
        value += tl.load(rest + cells, mask=present, other=0.0).to(tl.float32)
    return value


@triton.jit
def _store_sum(narrow, rest, cells, present, value):
    """The counterpart of _load_sum."""
    rounded = _narrow(value, narrow.dtype.element_ty)
    tl.store(narrow + cells, rounded, mask=present)
    if rest is not None:
        tl.store(rest + cells, _narrow(value - rounded.to(tl.float32), narrow.dtype.element_ty), mask=present)


# --- what a program is for -------------------------------------------------------------------------------------------


@triton.jit
def _assignment(pieces, heads, n_pieces, shared, BLOCKS: tl.constexpr):
    """Batch, head, which of the batch * shared copies of the lists, the piece's fields, and the block of its tile."""
    program = tl.program_id(0)
    block = program % BLOCKS
    copy = program // BLOCKS // n_pieces
    piece = pieces + (program // BLOCKS % n_pieces).to(tl.int64) * 6
    head = tl.load(heads + tl.load(piece) + copy % shared).to(tl.int64)
    return (copy // shared).to(tl.int64), head, copy.to(tl.int64), piece, block


@triton.jit
def _row_of_queries(piece, block, query_index, n_rows, TILE: tl.constexpr, BLOCK_M: tl.constexpr):
    """How many full tiles and others the piece has, where its entries begin, and BLOCK_M of its queries.

    Of the queries: where they stand in their tile, which of them exist, and which tokens they are.
    """
    full, count = tl.load(piece + 3).to(tl.int32), tl.load(piece + 4).to(tl.int32)
    query_slots = block * BLOCK_M + tl.arange(0, BLOCK_M)
    places = tl.load(piece + 1).to(tl.int32) * TILE + query_slots
    queries = _tokens(query_index, tl.minimum(places, n_rows - 1))
    return full, count, tl.load(piece + 2) * 3, query_slots, places < n_rows, queries


@triton.jit
def _segments_of(segments, first, queries):
    """The segments of the queries; without segments, anything of their shape."""
    found = queries
    if segments is not None:
        found = tl.load(segments + first + queries)
    return found


@triton.jit
def _split_assignment(splits, heads, n_splits, shared, BLOCKS: tl.constexpr):
    """Batch, head, copy, tile, first slot and number of slots of a split, and the block of its tile."""
    program = tl.program_id(0)
    copy = program // BLOCKS // n_splits
    split = splits + (program // BLOCKS % n_splits).to(tl.int64) * 4
    head = tl.load(heads + tl.load(split) + copy % shared).to(tl.int64)
    tile, first, count = tl.load(split + 1).to(tl.int32), tl.load(split + 2), tl.load(split + 3).to(tl.int32)
    return (copy // shared).to(tl.int64), head, copy.to(tl.int64), tile, first, count, program % BLOCKS


@triton.jit
def _permitted(
    masks, kind, slots, first, OF_KEYS: tl.constexpr, TILE: tl.constexpr, WORDS: tl.constexpr, BLOCK: tl.constexpr
):
    """Bits of a tile's mask, [slots, BLOCK]: may the queries in these slots attend to the BLOCK keys from `first` on,
    a multiple of BLOCK, or, OF_KEYS, which of BLOCK queries may attend to the keys?
    """
    rows = masks + ((kind.to(tl.int64) * 2 + OF_KEYS) * TILE + slots) * WORDS + first // 32
    others = tl.arange(0, BLOCK)[None, :]
    if BLOCK < 32:
        others += first % 32
    bits = tl.load(rows)[:, None] >> (others % 32)
    for word in tl.static_range(1, (BLOCK + 31) // 32):
        bits = tl.where(others // 32 == word, tl.load(rows + word)[:, None] >> (others % 32), bits)
    return (bits & 1) != 0


@triton.jit
def _readable(
    kind, first_query, first_key, keys, query_segments, key_mask, segments, batch_keys, masks, reads,
    TILE: tl.constexpr, WORDS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Pairs of a tile that may be read [queries, keys], and the keys that some query may read.

    A key that nobody reads may hold NaN, and 0 * NaN is not 0: it must not be loaded.
    """
    query_slots, key_slots = first_query + tl.arange(0, BLOCK_M), first_key + tl.arange(0, BLOCK_N)
    allowed = _permitted(masks, kind, query_slots, first_key, False, TILE, WORDS, BLOCK_N)
    read = ((tl.load(reads + kind.to(tl.int64) * WORDS + key_slots // 32) >> (key_slots % 32)) & 1) != 0
    if key_mask is not None:
        live = tl.load(key_mask + batch_keys + keys) != 0
        allowed = allowed & live[None, :]
        read = read & live
    if segments is not None:
        key_segments = tl.load(segments + batch_keys + keys)
        allowed = allowed & (query_segments[:, None] == key_segments[None, :])
        # Keys first: a thread then reduces over queries that it shares out, and keeps few of their segments at hand.
        met = _permitted(masks, kind, key_slots, first_query, True, TILE, WORDS, BLOCK_M)
        met = met & (key_segments[:, None] == query_segments[None, :])
        read = read & (tl.max(met.to(tl.int32), 1) != 0)
    return allowed, read


@triton.jit
def _score(
    step, entries, q_tile, queries, first_query, query_segments, k, v, key_mask, segments, bias, batch_keys, key_index,
    masks, reads,
    k_token, k_feature, v_token, v_feature, n_columns, scale, softcap,
    MASKED: tl.constexpr, RAW: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr, TILE: tl.constexpr, WORDS: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The step's BLOCK_N keys and values, and their scores [M, N] to base 2, or when RAW before their scale; -inf where
    not allowed, when MASKED or where a bias is. Besides: the tanh in the scores (see `_scores`), the keys' tokens, and
    the place of the first.
    """
    BLOCKS: tl.constexpr = TILE // BLOCK_N
    entry = entries + (step // BLOCKS) * 3
    first_key = step % BLOCKS * BLOCK_N
    first_place = tl.load(entry) * TILE + first_key
    places = first_place + tl.arange(0, BLOCK_N)
    if MASKED:
        if key_index is None and key_mask is None and segments is None and bias is None:
            keys = places.to(tl.int64)  # who reads none of those beyond the end needs no place for them
        else:
            keys = _tokens(key_index, tl.minimum(places, n_columns - 1))
        kind = tl.load(entry + 1)
        allowed, read = _readable(
            kind, first_query, first_key, keys, query_segments, key_mask, segments, batch_keys, masks, reads,
            TILE, WORDS, q_tile.shape[0], BLOCK_N,
        )  # fmt: skip
    else:
        keys = _tokens(key_index, places)
        read = None
    if bias is not None:  # It may be -inf, and a key that it keeps all queries from may hold NaN.
        biases = _biases(bias, queries, keys, False)
        if MASKED:
            allowed = allowed & (biases > float("-inf"))
        else:
            allowed = biases > float("-inf")
        read = tl.max(allowed.to(tl.int32), 0) != 0
    k_tile = _load(k, keys, k_token, k_feature, read, WIDTH, BLOCK_D)
    v_tile = _load(v, keys, v_token, v_feature, read, VALUE_WIDTH, BLOCK_V)
    scores, bent = _scores(_dot(q_tile, tl.trans(k_tile)), scale, softcap, RAW)
    if bias is not None:
        scores += biases
    if MASKED or bias is not None:
        scores = tl.where(allowed, scores, float("-inf"))
    return k_tile, v_tile, scores, bent, keys, first_place


# --- forward ---------------------------------------------------------------------------------------------------------


@triton.jit
def _weigh(top, scores, factor, MASKED: tl.constexpr):
    """Weights of scores [M, N] that a positive factor takes to base 2, what earlier weights shrink by, and the new
    highest score, to base 2.

    When MASKED, rows may be all -inf. The factor is one of the row's highest score, and part of the instruction that
    takes it from each score.
    """
    highest = tl.maximum(top, tl.max(scores, 1) * factor)
    if MASKED:
        shift = tl.where(highest == float("-inf"), 0.0, highest)
    else:
        shift = highest
    weights = tl.math.exp2(scores * factor - shift[:, None])
    decay = tl.math.exp2(top - shift)
    return weights, decay, highest


@triton.jit
def _finish(acc, top, total):
    """Output and natural log-sum-exp of an online softmax; 0 and -inf of an empty one."""
    divisor = tl.where(total == 0, 1.0, total)
    lse = tl.where(total == 0, float("-inf"), (top + tl.math.log2(divisor)) * LN_2)
    return acc / divisor[:, None], lse


@triton.jit
def _merge(out, lse, more, more_lse):
    """Two softmaxes over different keys as one."""
    highest = tl.maximum(lse, more_lse)
    shift = tl.where(highest == float("-inf"), 0.0, highest)
    weight = tl.math.exp2((lse - shift) * LOG2_E)
    more_weight = tl.math.exp2((more_lse - shift) * LOG2_E)
    total = weight + more_weight
    divisor = tl.where(total == 0, 1.0, total)
    merged = (out * weight[:, None] + more * more_weight[:, None]) / divisor[:, None]
    return merged, tl.where(total == 0, float("-inf"), shift + tl.math.log2(divisor) * LN_2)


@triton.jit
def _write_attended(
    value, value_lse, out, residual, lse, rows, exists,
    MERGE: tl.constexpr, VALUE_WIDTH: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Write, or merge into what earlier passes wrote, the results at `rows` of out [rows, VALUE_WIDTH] and lse."""
    cells, inside = _cells(rows, VALUE_WIDTH, BLOCK_V)
    inside = inside & exists[:, None]
    if MERGE:
        old = _load_sum(out, residual, cells, inside)
        old_lse = tl.load(lse + rows, mask=exists, other=float("-inf"))
        value, value_lse = _merge(old, old_lse, value, value_lse)
    _store_sum(out, residual, cells, inside, value)
    tl.store(lse + rows, value_lse, mask=exists)


@triton.jit(do_not_specialize=VARYING)
def forward(
    q, k, v, key_mask, segments, bias, out, residual, lse, partial, partial_lse,
    heads, pieces, entries, query_index, key_index, masks, reads,
    q_batch, q_head, q_token, q_feature,
    k_batch, k_head, k_token, k_feature,
    v_batch, v_head, v_token, v_feature,
    n_pieces, shared, slots, n_rows, n_columns, n_heads, n_queries, n_keys, query_offset, group, scale,
    bias_head, softcap, last_dropped, seed_low, seed_high, kept_factor,
    ASCENDING: tl.constexpr, MERGE: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr, TILE: tl.constexpr, WORDS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Attention of BLOCK_M queries over one piece, into out and lse or into the piece's slot.

    ASCENDING: the scale is positive, also in float32, so that the largest product has the largest score.
    """
    BLOCKS: tl.constexpr = TILE // BLOCK_N
    RAW: tl.constexpr = ASCENDING and bias is None and softcap is None
    batch, head, copy, piece, block = _assignment(pieces, heads, n_pieces, shared, TILE // BLOCK_M)
    full, count, first_entry, query_slots, exists, queries = _row_of_queries(
        piece, block, query_index, n_rows, TILE, BLOCK_M
    )
    entries += first_entry
    q_tile = _load(q + batch * q_batch + head * q_head, queries, q_token, q_feature, exists, WIDTH, BLOCK_D)
    k += batch * k_batch + head // group * k_head
    v += batch * v_batch + head // group * v_head
    batch_keys = batch * n_keys
    query_segments = _segments_of(segments, batch_keys + query_offset, queries)
    if bias is not None:
        bias += head * bias_head + (n_keys - 1)
    acc = tl.zeros([BLOCK_M, BLOCK_V], tl.float32)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    factor = scale * LOG2_E if RAW else 1.0
    for MASKED in tl.static_range(2):  # Full tiles come first; only a key mask or segments forbid any of their pairs.
        if MASKED or (key_mask is None and segments is None):
            tiles = count if MASKED else full
            for step in range(tiles * BLOCKS):
                k_tile, v_tile, scores, bent, keys, first_key = _score(
                    step, entries, q_tile, queries, block * BLOCK_M, query_segments, k, v, key_mask, segments, bias,
                    batch_keys, key_index, masks, reads, k_token, k_feature, v_token, v_feature, n_columns, scale,
                    softcap, MASKED, RAW, WIDTH, VALUE_WIDTH, BLOCK_D, BLOCK_V, TILE, WORDS, BLOCK_N,
                )  # fmt: skip
                weights, decay, top = _weigh(top, scores, factor, MASKED or bias is not None)
                used = weights
                if last_dropped is not None:  # The log-sum-exp is that of all.
                    used *= _kept(
                        queries, keys, first_key, key_index, query_offset, head, batch, last_dropped, seed_low,
                        seed_high, kept_factor, False,
                    )  # fmt: skip
                acc = _dot(_narrow(used, v_tile.dtype), v_tile, acc * decay[:, None])
                total = total * decay + tl.sum(weights, 1)
            entries += tiles * 3
            count -= tiles
    value, value_lse = _finish(acc, top, total)
    slot = tl.load(piece + 5)
    if slot >= 0:
        rows = (copy * slots + slot) * TILE + query_slots
        cells, inside = _cells(rows, VALUE_WIDTH, BLOCK_V)
        tl.store(partial + cells, value, mask=inside)
        tl.store(partial_lse + rows, value_lse)
    else:
        rows = (batch * n_heads + head) * n_queries + queries
        _write_attended(value, value_lse, out, residual, lse, rows, exists, MERGE, VALUE_WIDTH, BLOCK_V)


@triton.jit
def merge_pieces(
    partial, partial_lse, out, residual, lse,
    heads, splits, query_index,
    n_splits, shared, slots, n_rows, n_heads, n_queries,
    MERGE: tl.constexpr, VALUE_WIDTH: tl.constexpr, BLOCK_V: tl.constexpr, TILE: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """The pieces of a long tile row as one, into out and lse."""
    batch, head, copy, tile, slot, count, block = _split_assignment(splits, heads, n_splits, shared, TILE // BLOCK_M)
    query_slots = block * BLOCK_M + tl.arange(0, BLOCK_M)
    places = tile * TILE + query_slots
    exists = places < n_rows
    queries = _tokens(query_index, tl.minimum(places, n_rows - 1))
    value = tl.zeros([BLOCK_M, BLOCK_V], tl.float32)
    value_lse = tl.full([BLOCK_M], float("-inf"), tl.float32)
    for step in range(count):
        rows = (copy * slots + slot + step) * TILE + query_slots
        cells, inside = _cells(rows, VALUE_WIDTH, BLOCK_V)
        more = tl.load(partial + cells, mask=inside, other=0.0)
        value, value_lse = _merge(value, value_lse, more, tl.load(partial_lse + rows))
    rows = (batch * n_heads + head) * n_queries + queries
    _write_attended(value, value_lse, out, residual, lse, rows, exists, MERGE, VALUE_WIDTH, BLOCK_V)


# --- decoding --------------------------------------------------------------------------------------------------------


@triton.jit
def decode(
    q, k, v, allowed, partial, partial_lse,
    q_batch, q_head, q_token, q_feature,
    k_batch, k_head, k_token, k_feature,
    v_batch, v_head, v_token, v_feature,
    allowed_batch, allowed_head, allowed_query, allowed_key,
    kv_heads, group, n_queries, n_keys, n_chunks, scale,
    WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """BLOCK_M of the group * n_queries rows that read one key head, over CHUNK keys; every program has its slot."""
    program = tl.program_id(0)
    chunk = program % n_chunks
    n_blocks = tl.cdiv(group * n_queries, BLOCK_M)
    block = program // n_chunks % n_blocks
    copy = (program // n_chunks // n_blocks).to(tl.int64)
    batch, kv_head = copy // kv_heads, copy % kv_heads
    places = block * BLOCK_M + tl.arange(0, BLOCK_M)
    exists = places < group * n_queries
    head = kv_head * group + tl.minimum(places // n_queries, group - 1)
    query = (places % n_queries).to(tl.int64)
    q_tile = _load(q + batch * q_batch, head * q_head + query * q_token, 1, q_feature, exists, WIDTH, BLOCK_D)
    k += batch * k_batch + kv_head * k_head
    v += batch * v_batch + kv_head * v_head
    allowed += batch * allowed_batch + head * allowed_head + query * allowed_query
    acc = tl.zeros([BLOCK_M, BLOCK_V], tl.float32)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    for step in range(CHUNK // BLOCK_N):
        slots = chunk * CHUNK + step * BLOCK_N + tl.arange(0, BLOCK_N)
        present = exists[:, None] & (slots < n_keys)[None, :]
        keys = slots.to(tl.int64)
        permitted = tl.load(allowed[:, None] + keys[None, :] * allowed_key, mask=present, other=0) != 0
        read = tl.max(permitted.to(tl.int32), 0) != 0
        k_tile = _load(k, keys, k_token, k_feature, read, WIDTH, BLOCK_D)
        v_tile = _load(v, keys, v_token, v_feature, read, VALUE_WIDTH, BLOCK_V)
        scores = _dot(q_tile, tl.trans(k_tile)) * (scale * LOG2_E)
        scores = tl.where(permitted, scores, float("-inf"))
        weights, decay, top = _weigh(top, scores, 1.0, True)
        acc = _dot(_narrow(weights, v_tile.dtype), v_tile, acc * decay[:, None])
        total = total * decay + tl.sum(weights, 1)
    value, value_lse = _finish(acc, top, total)
    rows = (((copy * n_blocks) + block) * n_chunks + chunk) * BLOCK_M + tl.arange(0, BLOCK_M)
    cells, inside = _cells(rows, VALUE_WIDTH, BLOCK_V)
    tl.store(partial + cells, value, mask=inside)
    tl.store(partial_lse + rows, value_lse)
