"""The letters of DNA as 8-bit values: what files may hold, what a model sees, and the other strand.

A model sees the five upper-case ASCII letters A, C, G, T and N, so a byte is a base. IUPAC's letters for several bases
(R, Y, S, W, K, M, B, D, H, V) become N, and U, as RNA has it, becomes T. Lower case marks repeats ("soft masking").
"""

from typing import Literal

import numpy as np

BASES = b"ACGT"
UNKNOWN = ord("N")
SEVERAL = b"RYSWKMBDHV"
"""IUPAC's letters for two or three bases (Cornish-Bowden 1985)."""

ALLOWED = b"ACGTNU" + SEVERAL + b"acgtnu" + SEVERAL.lower()
"""What may stand in a file."""

PROTEIN = b"EFILPQ"
"""Amino acids whose letters stand for no bases."""

Masked = Literal["upper", "N"]
"""What lower case becomes: the base itself, or N."""


def translation(masked: Masked) -> bytes:
    """The table by which `bytes.translate` makes letters of a file those that a model sees."""
    table = bytearray([UNKNOWN]) * 256
    for base in BASES:
        table[base] = base
        table[base + 32] = base if masked == "upper" else UNKNOWN
    table[ord("U")] = ord("T")
    table[ord("u")] = table[ord("t")]
    return bytes(table)


_COMPLEMENT = np.full(256, UNKNOWN, dtype=np.uint8)
_COMPLEMENT[list(b"ACGT")] = list(b"TGCA")
_COMPLEMENT.setflags(write=False)


def reverse_complement(letters: np.ndarray) -> np.ndarray:
    """The same stretch as the other strand reads it: uint8 [..., letters] of A, C, G, T, N; what is no base is N."""
    return _COMPLEMENT[letters[..., ::-1]]


def indices(letters: np.ndarray) -> np.ndarray:
    """Letters, uint8 [..., letters], as numbers: A 0, C 1, G 2, T 3, all others 4: uint8 of the same shape."""
    return _INDICES[letters]


_INDICES = np.full(256, 4, dtype=np.uint8)
_INDICES[list(BASES)] = range(4)
_INDICES.setflags(write=False)
