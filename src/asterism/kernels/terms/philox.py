"""Philox 4x32-10 (Salmon et al. 2011, Parallel Random Numbers: As Easy as 1, 2, 3): random words that any kernel can
compute alone, in any order, because they are a function of a counter and a key.

What attention drops is read off such words, so layouts, implementations and machines drop equal pairs.
"""

import torch
from torch import Tensor

_WORD = 0xFFFFFFFF
_FACTORS = 0xD2511F53, 0xCD9E8D57
_WEYL = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10


def philox(
    counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The four 32-bit words of each counter, as int64 [..., N] in [0, 2^32), by Philox 4x32-10 (Salmon et al. 2011,
    Parallel Random Numbers: As Easy as 1, 2, 3, section 3.3).

    The counter is four int64 tensors of 32-bit words that broadcast to [..., N]; tensors of fewer dimensions stay
    small as long as they can. `key` is two 32-bit words.
    """
    one, two, three, four = counter
    first, second = key
    for _ in range(_ROUNDS):
        (high, low), (other_high, other_low) = _product(one, _FACTORS[0]), _product(three, _FACTORS[1])
        one, two, three, four = other_high ^ two ^ first, other_low, high ^ four ^ second, low
        first, second = (first + _WEYL[0]) & _WORD, (second + _WEYL[1]) & _WORD
    return one, two, three, four


def _product(x: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """The upper and the lower 32 bits of x * factor, by 16 bits of the factor at a time: 63 bits hold every step."""
    low = x * (factor & 0xFFFF)
    high = x * (factor >> 16) + (low >> 16)
    return high >> 16, (high & 0xFFFF) << 16 | low & 0xFFFF


def dropped(queries: Tensor, keys: Tensor, heads: Tensor, rows: Tensor, dropout: tuple[float, int]) -> Tensor:
    """Which pairs dropout drops: bool [..., N] of int64 tensors that broadcast to [..., N].

    `queries` and `keys` are positions in the sequence, `heads` query heads, `rows` rows of the batch. `dropout` is the
    rate and the seed (kernels/terms/terms.py says what they mean).
    """
    rate, seed = dropout
    one, two, three, four = philox((queries, keys // 4, heads, rows), (seed & _WORD, seed >> 32 & _WORD))
    place = keys % 4
    word = torch.where(place < 2, torch.where(place == 0, one, two), torch.where(place == 2, three, four))
    return word < round(rate * 2**32)
