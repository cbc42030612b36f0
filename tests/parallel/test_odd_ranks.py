"""One rank alone is given something wrong: all of them raise an error of one line, and none waits for another."""

import functools
import threading

import pytest
import torch
from odd_ranks import IN_THREADS, ask, cases, in_each_thread
from ranks_in_threads import StrandedRankError, in_threads
from sharded_models import causal, drawn

from asterism import kernels
from asterism.errors import ConfigurationError

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
    assert said[0] == said[2]
    assert said[0] == said[1] or said[0].startswith("rank 1 could not go on") and said[0].endswith(said[1]), said


SETTINGS = [(2, 0), (2, 1), (3, 1), *(pytest.param(3, odd, marks=pytest.mark.slow) for odd in (0, 2))]


@pytest.mark.model
@pytest.mark.parametrize("ranks, odd", SETTINGS)
@pytest.mark.parametrize("name", IN_THREADS)
def test_no_rank_waits_for_another(name, ranks, odd):
    """All of them end a call, or all raise an error, whose cause the others tell; an odd one tells it in its way."""
    raised = 0
    for change in IN_THREADS[name].changes:
        found = in_each_thread(name, change, ranks, odd)
        assert not any(isinstance(one, StrandedRankError) for one in found), f"{change}: {found}"
        if found == [None] * ranks:
            continue
        raised += 1
        own, others = found[odd], [one for rank, one in enumerate(found) if rank != odd]
        assert isinstance(own, Exception) and all(type(one) is ConfigurationError for one in others), (change, found)
        said = {str(one) for one in others}
        cause = f"rank {odd} could not go on with a call within sequence_parallel, so no rank does: "
        assert said in ({str(own)}, {f"{cause}{type(own).__name__}: {' '.join(str(own).split())}"}), (change, found)
    assert raised > len(IN_THREADS[name].changes) / 2  # most of them are wrong for every head


def test_an_error_amid_an_exchange_is_raised_at_once(monkeypatch):
    """Nobody can be told of it: the others wait for rows, and not for words."""
    attend, failing = kernels.attend, threading.local()

    def attend_or_fail(*arguments, **options):
        if getattr(failing, "now", False):
            raise MemoryError("no memory for tiles")
        return attend(*arguments, **options)

    monkeypatch.setattr(kernels, "attend", attend_or_fail)
    model, tokens = causal("window(3)"), drawn(2, 4)

    def call(context):
        failing.now = context.rank == 1
        with torch.no_grad():
            model(tokens)

    found = in_threads(2, call)
    assert str(found[1]) == "no memory for tiles" and isinstance(found[0], StrandedRankError), found
