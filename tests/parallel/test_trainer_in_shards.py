"""The Trainer over sequences in shards, compared with the Trainer alone, which attends as transformers does."""

import re

import pytest
from trained_shards import (
    CASES,
    Trained,
    default_run,
    launch,
    refuse_in_one_group,
    run_the_loop,
    train_in_shards,
    train_whole,
)

NEAR = 1e-11
"""Of losses, norms of gradients, weights and logits, all about 1, in float64."""

FIRST = ["resumed", "gemma3", "qwen3", "gpt_oss"]
"""One of each kind: a window in each layer, some layers, and with learned sinks; a checkpoint and predictions."""

ALONE = [name for name in CASES if name not in ("gpt_oss_packed", "of_each_batch")]
"""Those that one process computes as well."""


@pytest.fixture(scope="module")
def pair():
    """What two processes found: what they trained, and what they were told."""
    return launch(2, default_run, FIRST)


@pytest.fixture(scope="module")
def alone():
    (found,) = launch(1, train_whole, FIRST)
    return {name: Trained(**one) for name, one in found.items()}


def check(name: str, expected: Trained, of_ranks: list[dict]) -> None:
    assert len(expected.losses) == len(expected.norms) and len(expected.weights) > 1000
    assert max(expected.norms) > 0.5  # so clipping changes gradients
    every = [Trained(**one[name]) for one in of_ranks]
    assert all(one.far_from(expected) < NEAR for one in every), [one.far_from(expected) for one in every]
    assert all(one.weights == every[0].weights for one in every)  # to the last bit
    assert all(one.is_clean for one in every)


@pytest.mark.model
@pytest.mark.parametrize("name", FIRST)
def test_two_processes_train_as_one(pair, alone, name):
    check(name, alone[name], [trained for trained, _ in pair])
    assert len(alone[name].losses) == 4 if name != "resumed" else len(alone[name].predicted) > 1000


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 3, 4])
def test_all_families_and_rows_train_as_in_one_process(processes):
    names = [name for name in ALONE if name != "two_groups" or processes == 4]
    (alone,), of_ranks = launch(1, train_whole, names), launch(processes, train_in_shards, [*names, "gpt_oss_packed"])
    for name in names:
        check(name, Trained(**alone[name]), of_ranks)
    # Transformers lets packed documents of this family read one another, so they are compared with padded rows.
    check("gpt_oss_packed", Trained(**alone["gpt_oss"]), of_ranks)


@pytest.mark.model
@pytest.mark.slow
def test_without_a_mean_over_processes_it_is_as_on_two_processes_without_shards():
    alone, of_ranks = (launch(2, train, ["of_each_batch"]) for train in (train_whole, train_in_shards))
    check("of_each_batch", Trained(**alone[0]["of_each_batch"]), of_ranks)


OTHER = "other-rank-refused: rank 1 could not go on .*"
REFUSED = {
    "no pattern": r"not-a-pattern-model: MistralForCausalLM attends by 'sdpa', .*call use_pattern\(model\)",
    "own loss": "steps-overridden: OwnLoss overrides compute_loss, which would get shards",
    "twice": "steps-replaced: .* is within shard_sequences already",
    "ranks": r"ranks-of-processes: shard_sequences\(ranks=3\): 2 processes cannot be divided",
    "ranks of one": "ranks-asked-differently: .*ranks 2 on rank 0, 1 on rank 1",
    "evaluated first": "gradients-not-summed: .* without DistributedDataParallel",
    "smoothed": "trainer-settings: .* cannot have label_smoothing_factor",
    "dense": "exchange-refused: .*dense_exchange=True",
    "padded left of one": ".*rows must be padded on the right",
    "text": "batch-not-of-tensors: .* but text is 'what is in the rows'",
    "short of one": "rows-shorter-than-ranks: a batch has rows of 1 tokens, but 2 processes share each",
    "unknown labels of one": ".*labels",
}
OF_ONE = {
    "no pattern of one": REFUSED["no pattern"],
    "no trainer of one": "not-a-trainer: shard_sequences needs a Trainer of transformers, got int",
    "text of one": REFUSED["text"],
}


@pytest.mark.model
@pytest.mark.parametrize("name", [*REFUSED, *OF_ONE])
def test_all_processes_refuse_in_one_line(pair, name):
    first, second = (told[name] for _, told in pair)
    assert "\n" not in first + second
    assert re.match(REFUSED.get(name) or OF_ONE[name], second), second
    assert re.match(REFUSED.get(name) or OTHER, first), first


@pytest.mark.model
@pytest.mark.slow
def test_a_group_is_told_of_what_another_group_cannot_compute():
    told = launch(4, refuse_in_one_group)
    assert all(re.match("[a-z-]+: .*labels", one) for one in told[2:]), told
    assert all(re.match(r"other-rank-refused: rank 2 could not go on .*labels", one) for one in told[:2]), told


@pytest.mark.model
@pytest.mark.slow
def test_the_loop_of_the_page_trains_as_without_shards():
    for apart in launch(2, run_the_loop):
        assert len(apart) > 10 and max(apart) < NEAR
