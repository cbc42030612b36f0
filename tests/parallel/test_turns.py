"""What ranks exchange before they take turns at their batches."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks_in_threads import in_threads

from asterism.errors import ConfigurationError
from asterism.parallel.turns import share

DTYPES = [torch.int64, torch.int32, torch.bool, torch.uint8, torch.float64, torch.float32, torch.bfloat16]


def batch_of(rank: int, dtypes: list[torch.dtype], sizes: list[list[int]]) -> dict:
    drawn = torch.Generator().manual_seed(rank)
    shapes = sizes[rank]
    return {
        f"{number} of {dtype}": torch.randint(100, shapes[: number % (len(shapes) + 1)], generator=drawn).to(dtype)
        for number, dtype in enumerate(dtypes)
    }


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.sampled_from(DTYPES), min_size=1, max_size=5),
    st.lists(st.lists(st.integers(0, 5), min_size=3, max_size=3), min_size=1, max_size=3),
)
def test_all_ranks_get_the_batches_of_all(dtypes, sizes):
    expected = [batch_of(rank, dtypes, sizes) for rank in range(len(sizes))]
    for found in in_threads(len(sizes), lambda context: share(expected[context.rank], context)):
        assert len(found) == len(expected)
        for theirs, own in zip(found, expected, strict=True):
            assert set(theirs) == set(own)
            for name, x in own.items():
                assert theirs[name].dtype == x.dtype and torch.equal(theirs[name], x)


def test_numbers_come_as_numbers_views_as_tensors_and_nothing_is_left_out():
    def shared(context):
        rows = torch.arange(24).view(4, 6)[:, context.rank :: 2]  # not contiguous
        return share({"input_ids": rows, "longest": 7 + context.rank, "position_ids": None}, context)

    for found in in_threads(2, shared):
        assert [set(one) for one in found] == [{"input_ids", "longest"}] * 2
        assert [one["longest"] for one in found] == [7, 8] and all(type(one["longest"]) is int for one in found)
        assert found[1]["input_ids"].tolist() == [[1, 3, 5], [7, 9, 11], [13, 15, 17], [19, 21, 23]]


@pytest.mark.parametrize(
    "other, code, words",
    [
        ({"labels": torch.zeros(2, 3)}, "ranks-asked-differently", "labels left out on rank 0, of torch.float32"),
        ({"input_ids": torch.zeros(2, 3)}, "ranks-asked-differently", "input_ids of torch.int64 in 2 dimensions on"),
        ({"text": "words"}, "other-rank-refused", "but text is 'words'"),
    ],
)
def test_batches_of_other_columns_are_refused_by_all(other, code, words):
    own = {"input_ids": torch.zeros(2, 3, dtype=torch.int64)}
    first, second = in_threads(2, lambda context: share(own | (other if context.rank else {}), context))
    assert isinstance(first, ConfigurationError) and first.code == code and words in str(first)
    assert isinstance(second, ConfigurationError)
