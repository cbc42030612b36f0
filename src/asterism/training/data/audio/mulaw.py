"""Eight-bit mu-law: samples between -1 and 1 as 256 codes whose steps are small where sounds are soft.

The continuous law with mu = 255, as generative models of sound use it (van den Oord 2016, WaveNet, section 2.2), not
the piecewise one of G.711, whose codes are in another order: F(x) = sign(x) ln(1 + 255 |x|) / ln 256 is rounded to the
nearest of 256 even steps from -1 to 1. Silence is 128.
"""

import numpy as np

MU = 255
SILENCE = 128


def encode(samples: np.ndarray) -> np.ndarray:
    """The codes of samples, float [..., samples]: uint8 of the same shape.

    What is beyond -1 and 1 is cut to them; NaN must not be there.
    """
    cut = np.clip(samples, -1.0, 1.0)
    bent = np.copysign(np.log1p(MU * np.abs(cut)) / np.log1p(MU), cut)
    return np.floor((bent + 1.0) / 2.0 * MU + 0.5).astype(np.uint8)


def decode(codes: np.ndarray) -> np.ndarray:
    """The samples that codes stand for, uint8 [..., samples]: float64 of the same shape, from -1 to 1."""
    bent = 2.0 * codes.astype(np.float64) / MU - 1.0
    return np.copysign(np.expm1(np.abs(bent) * np.log1p(MU)) / MU, bent)
