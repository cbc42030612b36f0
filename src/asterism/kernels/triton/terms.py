"""The terms of the score (kernels/terms/terms.py) in a tile, for the programs of device.py and backward.py.

Scores are to base 2. A term whose argument is None is not there, and nothing is compiled for it. Sinks are no term of
a tile: the operator joins them, once, to what all passes and pieces have given.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)

VARYING = ("last_dropped", "seed_low", "seed_high")
"""Arguments whose values change from call to call: none is worth a kernel of its own."""


@triton.jit
def _tanh(x):
    """Near 0 by the polynomial of Cephes' tanhf: there 1 - 2 / (exp(2x) + 1) would lose digits."""
    size = tl.abs(x)
    far = 1.0 - 2.0 / (tl.math.exp2(size * (2.0 * LOG2_E)) + 1.0)
    square = size * size
    near = -5.70498872745e-3 * square + 2.06390887954e-2
    near = near * square - 5.37397155531e-2
    near = near * square + 1.33314422036e-1
    near = near * square - 3.33332819422e-1
    near = near * square * size + size
    value = tl.where(size < 0.625, near, far)
    return tl.where(x < 0, -value, value)


@triton.jit
def _scores(products, scale, softcap, RAW: tl.constexpr):
    """Products of queries and keys as scores, before the bias, and the tanh in them; without a soft cap, anything.

    When RAW, and without a soft cap, scores are the products.
    """
    if softcap is None:
        if RAW:
            scores = products
        else:
            scores = products * (scale * LOG2_E)
        bent = scores
    else:
        bent = _tanh(products * (scale / softcap))
        scores = bent * (softcap * LOG2_E)
    return scores, bent


@triton.jit
def _biases(bias, queries, keys, KEYS_FIRST: tl.constexpr):
    """The bias of each pair, [queries, keys] or [keys, queries]; `bias` points to where query and key number 0 meet."""
    queries, keys = queries.to(tl.int32), keys.to(tl.int32)
    if KEYS_FIRST:
        distances = queries[None, :] - keys[:, None]
    else:
        distances = queries[:, None] - keys[None, :]
    return tl.load(bias + distances.to(tl.int64)) * LOG2_E


@triton.jit
def _words(positions, quads, head, row, seed_low, seed_high):
    """The four words of Philox 4x32-10 for each query and each four keys (terms/philox.py), [queries, fours]."""
    low, high = seed_low.to(tl.uint32, bitcast=True), seed_high.to(tl.uint32, bitcast=True)
    seed = (high.to(tl.uint64) << 32) | low.to(tl.uint64)
    return tl.philox(seed, positions[:, None], quads[None, :], head.to(tl.uint32), row.to(tl.uint32))


@triton.jit
def _kept(
    queries, keys, first_key, key_index, query_offset, head, row, last_dropped, seed_low, seed_high, factor,
    KEYS_FIRST: tl.constexpr,
):  # fmt: skip
    """What dropout multiplies weights by: `factor`, or 0 where it drops; [queries, keys] or [keys, queries].

    A pair is dropped if its word is at most `last_dropped`. In the natural order four keys share their words.
    """
    positions = (queries + query_offset).to(tl.uint32)
    last = last_dropped.to(tl.uint32, bitcast=True)
    if key_index is None:
        quads = (first_key // 4 + tl.arange(0, keys.shape[0] // 4)).to(tl.uint32)
        one, two, three, four = _words(positions, quads, head, row, seed_low, seed_high)
        even = tl.join((one > last).to(tl.int8), (three > last).to(tl.int8))
        odd = tl.join((two > last).to(tl.int8), (four > last).to(tl.int8))
        kept = tl.reshape(tl.join(even, odd), [queries.shape[0], keys.shape[0]])
    else:
        number = keys.to(tl.uint32)
        one, two, three, four = _words(positions, number // 4, head, row, seed_low, seed_high)
        place = (number % 4)[None, :]
        word = tl.where(place < 2, tl.where(place == 0, one, two), tl.where(place == 2, three, four))
        kept = (word > last).to(tl.int8)
    if KEYS_FIRST:
        kept = tl.trans(kept)
    return tl.where(kept != 0, factor, 0.0)
