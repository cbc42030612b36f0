"""One rank alone is given something wrong: all of them raise an error of one line, and none waits for another."""

import functools

import pytest
from odd_ranks import ask, cases

CASES = [name for name, *_ in cases()]
PATIENCE = 60


@pytest.fixture(scope="module")
def answers(gloo):
    return functools.cache(lambda ranks, odd: gloo.run(ranks, ask, odd, patience=PATIENCE))


@pytest.mark.model
@pytest.mark.parametrize("ranks, odd", [(2, 0), (2, 1), (3, 0), (3, 1), (3, 2)])
def test_all_ranks_raise_at_once(answers, ranks, odd):
    for name in CASES:
        found = [one[name] for one in answers(ranks, odd)]
        for rank, (said, _) in enumerate(found):
            assert said != "nothing" and "\n" not in said, f"{name}: rank {rank} says {said!r}"
        times = [at for _, at in found]
        assert max(times) - min(times) < 1, f"{name}: {times}"


@pytest.mark.model
@pytest.mark.parametrize("name", CASES)
def test_the_odd_rank_says_why(answers, name):
    """The others name it, or all say the same: what differs, and between which ranks."""
    said = [one[name].said for one in answers(3, 1)]
    others = {said[0], said[2]}
    assert others == {said[1]} or others == {"rank 1 was refused its arguments; its own message says why"}, said
