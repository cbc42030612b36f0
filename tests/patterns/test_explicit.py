"""Patterns from matrices, edges and texts."""

import numpy as np
import pytest
from refusals import refusing

from asterism import patterns
from asterism.errors import PatternError


def test_explicit_from_matrix_edges_sparse_and_text():
    edges = np.array([[0, 0], [0, 1], [2, 1], [3, 3], [0, 1]])
    matrix = np.zeros((4, 4), dtype=bool)
    matrix[edges[:, 0], edges[:, 1]] = True
    scipy_sparse = pytest.importorskip("scipy.sparse")
    sources = [
        patterns.explicit(matrix),
        patterns.explicit(edges, size=4),
        patterns.explicit(scipy_sparse.csr_matrix(matrix)),
        patterns.explicit(scipy_sparse.coo_array(matrix)),
        patterns.explicit("0:0-1;2:1;3:3", size=4),
    ]
    for pattern in sources:
        assert pattern == sources[0]
        np.testing.assert_array_equal(pattern.dense(4)[0], matrix)
        np.testing.assert_array_equal(pattern.dense(3)[0], matrix[:3, :3])


def test_edges_alone_say_the_size():
    assert patterns.explicit(np.array([[0, 2], [1, 1]])).dense(3).sum() == 2


def test_explicit_ignores_stored_zeros():
    scipy_sparse = pytest.importorskip("scipy.sparse")
    stored = scipy_sparse.csr_matrix((np.array([1, 0]), (np.array([0, 1]), np.array([1, 0]))), shape=(2, 2))
    np.testing.assert_array_equal(patterns.explicit(stored).dense(2)[0], [[False, True], [False, False]])


def test_explicit_refuses_a_longer_sequence():
    with refusing(PatternError, "explicit-length", "4", "5"):
        patterns.explicit(np.eye(4, dtype=bool)).dense(5)


@pytest.mark.parametrize(
    ("source", "size"),
    [
        (np.zeros((2, 3), dtype=bool), None),
        (np.zeros((2, 2, 2), dtype=bool), None),
        (np.array([[0, 5]]), 4),
        (np.array([[-1, 0]]), 4),
        (np.array([[0.5, 1.0]]), 4),
        ("0:0;0:x", 4),
        ("0:3-1", 4),
        ("0:7", 4),
        ("zebra", 4),
        ("0:0", 0),
        ("0:0", -2),
        ("0:0", 2**60),
        ("4000000000:4000000000", None),
        ("0:99999999999999999999", None),
        ("-99999999999999999999:0", None),
        (((0, 4_000_000_000),), None),
        (((1, 2), (3,)), None),
    ],
    ids=str,
)
def test_explicit_refuses_a_bad_source(source, size):
    with pytest.raises(PatternError) as refused:
        patterns.explicit(source, size=size)
    assert "\n" not in str(refused.value)


def test_explicit_at_its_longest():
    """The code of a pair, query * size + key, stays within 64 bits."""
    pattern = patterns.explicit(((0, 0), (5, 3), (2**31 - 1, 2**31 - 1)), size=2**31)
    assert np.argwhere(pattern.dense(8)[0]).tolist() == [[0, 0], [5, 3]]
    assert bool(pattern.allows(2**31 - 1, 2**31 - 1, 2**31))


def test_a_number_of_thousands_of_digits_is_refused_in_a_line():
    with refusing(
        PatternError, "out-of-range", "left", "0", "1,152,921,504,606,846,976", "a number of 33220 bits"
    ) as refused:
        patterns.window(left=10**10_000)
    assert "\n" not in str(refused.value)


def test_a_matrix_given_to_explicit_may_change_later():
    matrix = np.eye(4, dtype=bool)
    pattern = patterns.explicit(matrix)
    before = hash(pattern)
    matrix[:] = True
    assert pattern.dense(4).sum() == 4
    assert hash(pattern) == before
