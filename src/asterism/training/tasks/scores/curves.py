"""The area under the receiver operating characteristic: how well scores rank positives before negatives.

It is the share of pairs of a positive and a negative in which the positive has the higher score; equal scores count
half. So it is 1/2 for uninformative scores, and does not change under any increasing function of the scores. It is
computed from ranks (Mann and Whitney 1947), exact with ties, in n log n. These are three lines with scipy, and need no
scikit-learn; tests compare with that.
"""

from collections.abc import Sequence

import numpy as np
from scipy.stats import rankdata


def auc(scores: np.ndarray, there: np.ndarray) -> float | None:
    """The area for scores [n], with `there` bool [n]; None if no example is positive, or none negative."""
    positive = int(there.sum())
    negative = len(there) - positive
    if not positive or not negative:
        return None
    ranks = rankdata(scores, method="average")
    return float((ranks[there].sum() - positive * (positive + 1) / 2) / (positive * negative))


def aucs(scores: np.ndarray, there: np.ndarray) -> list[float | None]:
    """The area of each column of scores [n, columns], with `there` bool [n, columns]."""
    return [auc(scores[:, column], there[:, column]) for column in range(scores.shape[1])]


def known_mean(values: Sequence[float | None]) -> float | None:
    """The mean of the values that are not None, or None if all are."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
