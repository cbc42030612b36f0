"""Laws of what a pattern says cheaply, its spans and its verdicts, against its picture."""

from itertools import pairwise

import numpy as np

from asterism.patterns import Verdict


def check_spans(pattern, picture, queries, length, head):
    spans = pattern.spans(queries, length, head)
    assert spans.dtype == np.int64
    assert spans.ndim == 2 and spans.shape[1] == 2
    assert all(0 <= start < stop <= length for start, stop in spans)
    assert all(one[1] <= two[0] for one, two in pairwise(spans))
    covered = np.zeros(length, dtype=bool)
    for start, stop in spans:
        covered[start:stop] = True
    assert not (picture[slice(*queries)].any(0) & ~covered).any()


def check_verdict(pattern, picture, queries, keys, length, head):
    verdict = pattern.verdict(queries, keys, length, head)
    cells = picture[slice(*queries), slice(*keys)]
    truth = {
        Verdict.EMPTY: not cells.any(),
        Verdict.FULL: cells.all(),
        Verdict.MIXED: cells.any() and not cells.all(),
        Verdict.UNKNOWN: True,
    }
    assert truth[verdict], f"{verdict!r} for queries {queries}, keys {keys}"
