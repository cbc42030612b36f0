"""Models whose sequences lie on several processes, beside the same models on one."""

import functools
import re

import pytest
import torch
from refusals import refusing
from sharded_models import CASES, COMPILED, KINDS, Report, compare_some, report

from asterism.compiler.devices import Shards
from asterism.errors import ConfigurationError
from asterism.parallel import SequenceParallel, shard

PATIENCE = 500

ROUNDED = {"llama4": 1e-6}
"""Limits of what transformers rounds to float32: the queries and keys of Llama 4, when it rotates them."""
"""Seconds that all models may take on some ranks, on a busy machine."""


def parts(batch: dict, ranks: int, **options) -> list[dict]:
    """What each of the ranks is given; no process is needed to know."""
    return [shard(batch, SequenceParallel(None, rank, ranks), **options) for rank in range(ranks)]


def joined(given: list[dict], name: str) -> torch.Tensor:
    return torch.cat([part[name] for part in given], dim=1)


def test_shard_cuts_tokens_and_leaves_what_is_of_whole_rows():
    tokens = torch.arange(26).view(2, 13)
    batch = {
        "input_ids": tokens,
        "attention_mask": tokens > 3,
        "inputs_embeds": torch.rand(2, 13, 4),
        "position_ids": torch.arange(13)[None],
        "labels": tokens,
        "next_sentence_label": torch.tensor([0, 1]),
        "dropout_seed": 7,
    }
    given = parts(batch, 3)
    assert [part["input_ids"].shape[1] for part in given] == [5, 4, 4]
    for name in ("input_ids", "attention_mask", "inputs_embeds", "position_ids", "labels"):
        assert torch.equal(joined(given, name), batch[name])
    assert all(
        part["dropout_seed"] == 7 and torch.equal(part["next_sentence_label"], torch.tensor([0, 1])) for part in given
    )
    uneven = parts(batch, 3, shards=Shards.of_sizes((0, 12, 1)))
    assert [part["labels"].shape[1] for part in uneven] == [0, 12, 1]
    assert all("shift_labels" not in part for part in given)
    whole_rows = parts({"input_ids": tokens, "labels": torch.rand(2, 13)}, 2)  # numbers to predict, one for each output
    assert whole_rows[1]["labels"].shape == (2, 13)


@pytest.mark.parametrize("packed", ["position_ids", "cu_seqlens", None])
def test_labels_are_shifted_before_they_are_cut_and_nothing_predicts_the_first_token_of_a_document(packed):
    tokens = torch.arange(1, 9)[None]
    batch = {"input_ids": tokens, "labels": tokens}
    if packed == "position_ids":
        batch[packed] = torch.tensor([[0, 1, 2, 3, 0, 1, 0, 1]])
    elif packed:
        batch[packed] = [0, 4, 6, 8]
    expected = [2, 3, 4, 5, 6, 7, 8, -100] if packed is None else [2, 3, 4, -100, 6, -100, 8, -100]
    given = parts(batch, 3, shifts_labels=True)
    assert joined(given, "shift_labels").tolist() == [expected]
    assert joined(given, "labels").tolist() == tokens.tolist()
    ready = torch.full_like(tokens, 5)
    given = parts(batch | {"shift_labels": ready}, 3, shifts_labels=True)
    assert torch.equal(joined(given, "shift_labels"), ready)  # what is shifted stays as it is


def test_places_and_their_labels_go_to_the_shard_they_are_in():
    batch = {
        "input_ids": torch.zeros(2, 10, dtype=torch.int64),
        "places": torch.tensor([[0, 4, 5, 9], [2, 3, 0, 0]]),
        "labels": torch.tensor([[10, 14, 15, 19], [12, 13, -100, -100]]),
    }
    found = [set(), set()]
    for rank, part in enumerate(parts(batch, 3)):
        first = Shards.even(10, 3).range(rank)[0]
        assert part["places"].shape == part["labels"].shape == (2, [2, 2, 1][rank])
        for row in range(2):
            pairs = zip(part["places"][row].tolist(), part["labels"][row].tolist(), strict=True)
            found[row] |= {(place + first, label) for place, label in pairs if label != -100}
    assert found == [{(0, 10), (4, 14), (5, 15), (9, 19)}, {(2, 12), (3, 13)}]


def test_source_and_target_are_cut_by_their_own_shards():
    source, target = torch.zeros(2, 9), torch.arange(10).view(2, 5)
    given = parts({"input_ids": source, "decoder_input_ids": target, "labels": target}, 2)
    assert [part["input_ids"].shape[1] for part in given] == [5, 4]
    assert [part["labels"].tolist() for part in given] == [target[:, :3].tolist(), target[:, 3:].tolist()]
    assert torch.equal(joined(given, "decoder_input_ids"), target)


def test_shard_refuses_what_does_not_fit():
    with refusing(ConfigurationError, "ids-missing"):
        parts({"labels": torch.zeros(1, 3)}, 2)
    with refusing(ConfigurationError, "shards-differ-from-batch", "4", "2", "3"):
        parts({"input_ids": torch.zeros(1, 3)}, 2, shards=Shards.even(4, 2))


# --- several processes -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def of(gloo):
    """What each of the ranks found, computed once; or why there is nothing."""

    @functools.cache
    def computed(ranks: int) -> list[Report] | AssertionError:
        try:
            return gloo.run(ranks, report, patience=PATIENCE)
        except AssertionError as error:
            return error

    def reports(ranks: int) -> list[Report]:
        found = computed(ranks)
        if isinstance(found, AssertionError):
            raise found
        return found

    yield reports
    gloo.close()  # these models imported, and compiled, much that others do without


SOME_RANKS = pytest.mark.parametrize("ranks", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 4))])


@pytest.mark.model
@pytest.mark.parametrize("name", CASES)
@SOME_RANKS
def test_a_sharded_model_is_the_whole_one(of, ranks, name):
    """Losses and hidden states are equal, and gradients, summed over ranks; also where some ranks have no token."""
    for one in of(ranks):
        for kind in KINDS[ranks]:
            found = one.found[f"{name} {kind}"]
            assert found.largest > 1e-3  # there is something to compare
            assert max(found.loss, found.gradient, found.states) < ROUNDED.get(name, 1e-12), (kind, found)
            assert not found.missing  # every rank has a gradient of every weight, so that they can be summed


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.parametrize("name", ["rotary", "fourier", "llama_whole"])
def test_a_compiled_model_is_the_whole_one_too(gloo, name):
    for one in gloo.run(2, compare_some, [name + COMPILED], patience=PATIENCE):
        assert len(one) == len(KINDS[2])
        for kind, found in one.items():
            assert max(found.loss, found.gradient, found.states) < 1e-12 and not found.missing, (kind, found)


@pytest.mark.model
@SOME_RANKS
@pytest.mark.parametrize("name", ["greedy", "sampled", "ended", "all_attention", "padded"])
def test_tokens_are_those_of_one_process_and_keys_stay_where_they_are(of, ranks, name):
    written = [one.written[name] for one in of(ranks)]
    assert all(one.is_equal for one in written)
    assert written[0].tokens in {"ended": range(1, 9), "padded": [9]}.get(name, [30])
    if name == "greedy":
        # Of 42 tokens read, the summaries and the last ones are kept, each by one rank.
        kept = [position for one in written for position in one.kept]
        assert len(set(kept)) == len(kept) and max(kept) == 41
        assert {3, 7, 11, 15, 39} <= set(kept) and len(kept) < 42 - 13
        # Keys and values of 8 float64 features in 2 layers for 2 rows, in slots made two at a time.
        assert all(one.bytes <= (len(one.kept) + 4) * 2 * 8 * 8 * 2 * 2 for one in written)


REFUSALS = {
    "labels": "labels must be shifted before a sequence is sharded: give shift_labels",
    "mask": "within sequence_parallel rows must be padded on the right",
    "mask of one": r"attention_mask has shape \[2, 5\]",
    "rows": r"must ask the same, and these differ: rows 2 on rank 0, 1 on ranks 1, 2",
    "dropout_seed of one": r"training with attention_dropout .* needs forward\(dropout_seed=...\)",
    "dropout_seed of one writer": r"training with attention_dropout .* needs forward\(dropout_seed=...\)",
    "labels of one": "these differ: shift_labels left out on ranks 0, 2, given on rank 1",
    "labels of one classifier": "these differ: labels left out on ranks 0, 2, given on rank 1",
    "wrong labels of one": r"shift_labels must be \[2, 4\] as the tokens of this rank",
    "llama wrong labels of one": r"labels must be \[2, 4\] as the tokens of this rank",
    "tokens of all but one": "give either input_ids or inputs_embeds, not both",
    "an argument of one": "has no argument 'output_attentions'",
    "seed of all but one": "needs a seed",
    "llama labels of one": "these differ: shift_labels left out on ranks 0, 2, given on rank 1",
    "llama unshifted labels of one": "labels must be shifted before",
    "llama tokens of all but one": "needs input_ids or inputs_embeds, and got",
    "llama cache of one": "was given use_cache within",
    "llama positions of one": r"position_ids must be whole numbers \[2 or 1, 4\]",
    "cache": "a cache cannot be used in a forward pass within sequence_parallel",
    "long": "120 tokens are more than the 64 positions of this model",
    "seed": "sampling within sequence_parallel needs a seed",
    "beams": "does not take num_beams, only .* and seed",
    "packed": r"fourier\(\) reads a whole row, so documents cannot be packed",
    "part": "call the model that use_pattern was given, not a part of it",
    "llama cache": "was given use_cache within sequence_parallel",
    "roberta": "RobertaForMaskedLM counts its positions from after its padding token",
    "nothing": "LlamaForCausalLM needs a token on every rank, but rank 0 holds 0 of 3",
    "pattern dropped": "cannot read shards: within sequence_parallel call use_pattern",
}


@pytest.mark.model
@pytest.mark.parametrize("name", REFUSALS)
def test_all_ranks_refuse_in_one_line(of, name):
    for said in (one.refused for one in of(3)):
        assert re.search(REFUSALS[name], said[name]) and "\n" not in said[name]


@pytest.mark.model
def test_the_python_of_the_page_runs(of):
    for loss, expected, tokens in (one.page for one in of(3)):
        assert abs(loss - expected) < 1e-9 and tokens == 30
