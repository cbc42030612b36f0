"""One rank alone is given something wrong: all of them raise an error of one line, and none waits for another."""

import copy
import functools
import threading

import pytest
import torch
from odd_ranks import IN_THREADS, ask, cases, in_each_thread
from ranks_in_threads import StrandedRankError, in_threads
from refusals import refusing
from sharded_models import SIZES, causal, drawn, llama
from transformers import MobileBertConfig, MobileBertForMaskedLM

from asterism import kernels
from asterism.errors import ConfigurationError
from asterism.models import use_pattern

CASES = [name for name, *_ in cases()]
PATIENCE = 60
SETTINGS = [(3, 1), *(pytest.param(*one, marks=pytest.mark.slow) for one in ((2, 0), (2, 1), (3, 0), (3, 2)))]
"""Ranks, and which of them is odd."""


@pytest.fixture(scope="module")
def answers(gloo):
    return functools.cache(lambda ranks, odd: gloo.run(ranks, ask, odd, patience=PATIENCE))


@pytest.mark.model
@pytest.mark.parametrize("ranks, odd", SETTINGS)
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


def either(make):
    """A model for each of two ranks."""
    torch.manual_seed(0)
    model = make()
    return model, copy.deepcopy(model)


MODELS = [lambda: causal("window(3)"), llama]


@pytest.mark.model
@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable`:FutureWarning")
@pytest.mark.parametrize("make", MODELS)
def test_a_rank_that_alone_computes_a_second_time_is_told_before(make):
    """In the backward pass nobody could be told."""
    models, tokens = either(make), drawn(2, 4)
    models[1].gradient_checkpointing_enable({"use_reentrant": False})

    def call(context):
        models[context.rank].train()(input_ids=tokens, shift_labels=tokens).loss.backward()

    found = in_threads(2, call)
    assert all(type(one) is ConfigurationError and "gradient checkpointing" in str(one) for one in found), found


@pytest.mark.model
@pytest.mark.parametrize("make", MODELS)
def test_an_error_without_words_is_told(make):
    class SilentError(Exception):
        def __str__(self):
            raise RuntimeError("no words")

    def fail(*_):
        raise SilentError

    models, tokens = either(make), drawn(2, 4)
    next(x for x in models[1].modules() if isinstance(x, torch.nn.Linear)).register_forward_hook(fail)

    def call(context):
        try:
            models[context.rank](input_ids=tokens)
        except SilentError:
            return "silent"
        except ConfigurationError as error:
            return str(error)

    told, own = in_threads(2, call)
    assert own == "silent" and told.endswith("so no rank does: SilentError"), (told, own)


@pytest.mark.model
@pytest.mark.parametrize("make", MODELS)
def test_a_call_after_an_interrupted_one_is_computed_anew(make):
    models, (before, tokens) = either(make), (drawn(2, 4, seed) for seed in (5, 6))

    def fail(*_):
        raise KeyboardInterrupt

    def call(context):
        model = models[context.rank]
        expected = model(input_ids=tokens, shift_labels=tokens).loss
        hook = next(x for x in model.modules() if isinstance(x, torch.nn.Linear)).register_forward_hook(fail)
        with pytest.raises(KeyboardInterrupt):
            model(input_ids=before, shift_labels=before)
        hook.remove()
        return torch.equal(model(input_ids=tokens, shift_labels=tokens).loss, expected)

    assert in_threads(2, call) == [True, True]


@pytest.mark.model
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_embeddings_that_read_their_neighbours_are_refused():
    model = use_pattern(MobileBertForMaskedLM(MobileBertConfig(**SIZES, embedding_size=16)), "window(2, 2)")

    def call(context):
        with refusing(ConfigurationError, "neighbours-in-embeddings"):
            model(drawn(2, 4))
        return "refused"

    assert in_threads(2, call) == ["refused"] * 2
