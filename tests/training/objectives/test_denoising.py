"""Span corruption, gap sentences, prefixes: examples worked out by hand from the papers, and what always holds."""

import json
import random
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from slow_cases import slow_except
from small_writers import digit_tokenizer
from stopping import at_step

from asterism.errors import ConfigurationError, DataError
from asterism.training import FineTuneConfig, ModelConfig, RunConfig, evaluate, predict, train
from asterism.training.data.corpora.bytes import load_documents
from asterism.training.data.corpora.tokenization import make_tokenizer
from asterism.training.objectives.causal import CausalTokens
from asterism.training.objectives.denoising import Room
from asterism.training.objectives.gap_sentences import GapPairs, gaps, importance, sentences_of
from asterism.training.objectives.prefix import PrefixTokens
from asterism.training.objectives.span_corruption import SpanSizes, corrupt_spans
from asterism.training.pipeline import resolve

pytestmark = pytest.mark.model


def generator(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(seed))


# --- span corruption ------------------------------------------------------------------------------------------------


def test_the_example_of_t5():
    """Raffel 2020, figure 2: of all draws of two spans and three tokens, one gives the figure's."""
    words = ["Thank", "you", "for", "inviting", "me", "to", "your", "party", "last", "week", "."]
    names = [*words, "<X>", "<Y>", "<Z>"]
    sizes = SpanSizes(tokens=11, noise=3, spans=2)
    found = set()
    for seed in range(2_000):
        pair = corrupt_spans(np.arange(11), sizes, np.array([11, 12, 13]), generator(seed))
        found.add(tuple(" ".join(names[token] for token in part) for part in pair))
    figure = ("Thank you <X> me to your party <Y> week .", "<X> for inviting <Y> last <Z>")
    assert figure in found
    assert ("<X> inviting me to <Y> party last week .", "<X> Thank you for <Y> your <Z>") not in found  # 4 tokens
    # 2 ways to part 3 tokens into 2 spans; 8 tokens stay, around and between: 8 + 2 choose 2 less those that touch
    assert len(found) == 2 * (9 * 8 // 2)


def test_the_sizes_of_t5():
    """Raffel 2020, section 3.1.4: 512 tokens of input; its code finds 568 of text, 85 of them in 28 spans.

    The code counts an end of the input, so 511 are ours; of the target it counts 114 with an end, ours has the last
    sentinel of the paper instead.
    """
    assert SpanSizes.of(568) == SpanSizes(568, 85, 28)
    sizes = SpanSizes.fitting(511)
    assert sizes == SpanSizes(568, 85, 28) and (sizes.input_tokens, sizes.target_tokens) == (511, 114)


@given(tokens=st.integers(2, 300), seed=st.integers(0, 2**32))
def test_every_token_is_in_the_input_or_in_the_target(tokens, seed):
    sizes = SpanSizes.of(tokens)
    text = np.arange(1_000, 1_000 + tokens)
    before = text.copy()
    sentinels = np.arange(sizes.spans + 3)
    inputs, targets = corrupt_spans(text, sizes, sentinels, generator(seed))
    assert (text == before).all() and inputs.dtype == targets.dtype == np.int64
    assert (len(inputs), len(targets)) == (sizes.input_tokens, sizes.target_tokens)
    # sentinels come in order, as many in the input as there are spans, one more in the target, which is its last
    assert inputs[inputs < 1_000].tolist() == list(range(sizes.spans))
    assert targets[targets < 1_000].tolist() == list(range(sizes.spans + 1)) and targets[-1] == sizes.spans
    # what is behind a sentinel in the target is what it stands for in the input
    places = np.flatnonzero(targets < 1_000)
    spans = [targets[at + 1 : end].tolist() for at, end in zip(places, places[1:], strict=False)]
    assert all(spans)
    restored = [token for one in inputs.tolist() for token in (spans[one] if one < 1_000 else [one])]
    assert restored == text.tolist()
    # no two spans touch
    at = np.flatnonzero(inputs < 1_000)
    assert (np.diff(at) > 1).all()


@given(room=st.integers(2, 600))
def test_the_longest_text_that_fits(room):
    sizes = SpanSizes.fitting(room)
    assert sizes == SpanSizes.of(sizes.tokens) and sizes.input_tokens == room
    assert SpanSizes.of(sizes.tokens + 1).input_tokens > room


def test_each_place_is_left_out_as_often():
    """In 15 of 100 of 2,000 draws, but near the ends, which fewer spans can cover."""
    sizes = SpanSizes.of(100)
    left_out = np.zeros(100)
    for seed in range(2_000):
        inputs, _ = corrupt_spans(np.arange(100), sizes, np.arange(100, 120), generator(seed))
        left_out[np.setdiff1d(np.arange(100), inputs)] += 1
    assert left_out.sum() == 2_000 * sizes.noise
    assert np.abs(left_out[10:-10] / 2_000 - 0.15).max() < 0.04
    assert left_out[0] > 0 and left_out[-1] > 0


def test_spans_are_a_function_of_the_generator():
    def drawn(seed):
        return corrupt_spans(np.arange(90), SpanSizes.of(90), np.arange(90, 99), generator(seed))

    assert all((one == other).all() for one, other in zip(drawn(3), drawn(3), strict=True))
    assert any(len(one) != len(other) or (one != other).any() for one, other in zip(drawn(3), drawn(4), strict=True))


# --- gap sentences --------------------------------------------------------------------------------------------------


def test_sentences():
    text = " One is here. Two is 3.5 long! Is it?\nfour has no end\n\n  five. "
    assert sentences_of(text) == ["One is here.", " Two is 3.5 long!", " Is it?", "\nfour has no end", "\n\n  five."]
    assert sentences_of(" \n ") == []


@given(st.text(alphabet="ab.!? \n\t", max_size=40))
def test_sentences_joined_are_the_text(text):
    found = sentences_of(text)
    assert "".join(found) == text.strip() and all(one.strip() for one in found)


def test_importance_by_hand():
    """ROUGE-1 of the first: 2 words of 3 (the, cat) are in the rest, of 7 words: P 2/3, R 2/7, F1 = 4/10."""
    sentences = ["The cat sat.", "The cat and the dog ran.", "Stop!"]
    assert importance(sentences) == pytest.approx([4 / 10, 4 / 10, 0])
    # "the" comes twice in the second and once in the rest: it counts once; cat, too
    assert importance(["a a a b", "a a c"]) == pytest.approx([2 * 2 / 7, 2 * 2 / 7])
    assert importance(["...", "!"]) == [0, 0]


def test_gaps_by_hand():
    text = ["Rain fell.", "The mill by the river burned.", "Nobody by the river saw the mill.", "It was late."]
    text.append("Ann left.")
    # only the second and the third share words with the rest; 3 of 10 of 5 sentences are 2 (1.5 rounds to even)
    assert gaps(text, [3, 7, 8, 4, 3], 15) == [1, 2]
    assert gaps(text, [3, 7, 8, 4, 3], 14) == [0, 1]  # the third has no room beside the second, the first has
    assert gaps(text[:3], [3, 7, 8], 15) == [1]
    assert gaps(["a b", "a c"], [2, 2], 9) == [0]


@given(st.lists(st.lists(st.sampled_from("abcdefgh"), min_size=1).map(" ".join), min_size=2, max_size=20))
def test_gaps_are_the_most_important(sentences):
    chosen, scores = gaps(sentences, [1] * len(sentences), 20), importance(sentences)
    assert chosen == sorted(set(chosen)) and len(chosen) == max(1, round(0.3 * len(sentences))) < len(sentences)
    others = [scores[number] for number in range(len(sentences)) if number not in chosen]
    assert min(scores[number] for number in chosen) >= max(others)
    assert all(0 <= score <= 1 for score in scores)


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer("bytes", [], 64)


PROSE = "One is here. Two is here, too! Is three?\nThe fourth sentence is much longer than all of the others are. Five."


def texts_of(pairs: GapPairs, tokenizer) -> list[tuple[str, str]]:
    found = [pairs.pair(number, generator(0)) for number in range(pairs.count)]
    return [tuple(tokenizer.decode(part) for part in pair) for pair in found]


def written(folder, documents) -> object:
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": one}) + "\n" for one in documents))
    return load_documents(folder / "text.jsonl")


def test_a_text_with_its_gaps(tokenizer, tmp_path):
    """A byte is a token here, so lengths can be counted."""
    corpus = written(tmp_path, [f"{PROSE} {number}" for number in range(200)])
    pairs = GapPairs(corpus, "validation", tokenizer, tokenizer.mask_token_id, Room(200, 100))
    assert pairs.count == pairs.documents == len(list(corpus.documents("validation")))
    first, second = texts_of(pairs, tokenizer)[0]
    # "is" and "here" bring the first two to the front, with ties for the first; a third of 6 sentences rounds to 2
    assert second == "One is here. Two is here, too!"
    assert first.startswith("[MASK][MASK] Is three?\nThe fourth sentence is much longer")


@pytest.mark.parametrize("room", [Room(40, 20), Room(64, 33), Room(200, 100)])
def test_every_token_is_in_a_gap_or_beside_it(tokenizer, tmp_path, room):
    documents = [f"{PROSE} {number}" for number in range(200)]
    pairs = GapPairs(written(tmp_path, documents), "train", tokenizer, tokenizer.mask_token_id, room)
    whole = "\0".join(documents)
    for number in range(pairs.count):
        read, wanted = pairs.pair(number, generator(0))
        assert 0 < len(wanted) < room.targets and 1 < len(read) < room.inputs
        tokens, left_out = pairs.stretches[number]
        assert len(tokens) > 1 and (read == tokenizer.mask_token_id).sum() == len(left_out)
        rest = iter([tokens[place] for place in left_out])
        restored = [b for a in read for b in (next(rest) if a == tokenizer.mask_token_id else [a])]
        assert tokenizer.decode(restored) in whole
        assert tokenizer.decode(wanted) == "".join(tokenizer.decode(tokens[place]) for place in left_out)


def test_sentences_that_are_kept_are_read_and_wanted(tokenizer, tmp_path):
    """Of 2 sentences that are wanted, each stays in the input in 3 of 10 cases; what is wanted is the same."""
    corpus, mask = written(tmp_path, [f"{PROSE} {number}" for number in range(200)]), tokenizer.mask_token_id
    without, pairs = (GapPairs(corpus, "train", tokenizer, mask, Room(200, 100), share) for share in (0, 0.3))
    kept = []
    for number in range(pairs.count):
        (gapped, wanted), (read, still_wanted) = (one.pair(number, generator(number)) for one in (without, pairs))
        tokens, chosen = pairs.stretches[number]
        kept.append(len(chosen) - (read == mask).sum())
        assert (wanted == still_wanted).all() and len(chosen) == 2 == (gapped == mask).sum()
        if kept[-1] == 2:
            assert (read == np.concatenate(tokens)).all()
        else:
            assert tokenizer.decode(tokens[chosen[0]]) in tokenizer.decode(read) or read[0] == mask
    assert 0.2 < np.mean(kept) / 2 < 0.4 and set(kept) == {0, 1, 2}
    assert len({tuple(pairs.pair(5, generator(seed))[0]) for seed in range(30)}) == 4


# --- the prefix -----------------------------------------------------------------------------------------------------


def test_a_prefix_is_read_and_not_predicted(tmp_path):
    (tmp_path / "text.txt").write_bytes(bytes(range(1, 256)) * 100)
    config = RunConfig(objective="prefix_lm", data=str(tmp_path / "text.txt"), context=16, batch_size=64)
    objective, corpus = PrefixTokens.prepare(config, PrefixTokens.vocabulary(config, None))
    plain = CausalTokens(config).batch(corpus, 3)
    batch = objective.batch(corpus, 3)
    assert torch.equal(batch["input_ids"], plain["input_ids"])
    known = batch["shift_labels"] != -100
    assert torch.equal(batch["shift_labels"][known], plain["shift_labels"][known])
    prefixes = (~known).sum(1) + 1  # the first byte is read in any case
    assert all(row[:-1].le(row[1:]).all() for row in known)  # what is not predicted stands in front
    assert known.any(1).all() and set(prefixes.tolist()) == set(range(1, 17))
    assert torch.equal(objective.batch(corpus, 3)["shift_labels"], batch["shift_labels"])
    assert not torch.equal(objective.batch(corpus, 4)["shift_labels"], batch["shift_labels"])


# --- runs -----------------------------------------------------------------------------------------------------------

SHAPE = ModelConfig(
    mixers="window(left=8, right=8)",
    decoder_mixers="causal()",
    **{"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "initializer_gain": 0.35},
)


@pytest.fixture(scope="module")
def prose(tmp_path_factory):
    """Documents of sentences that say who is where, of which words can be told from others."""
    path = tmp_path_factory.mktemp("data") / "prose.jsonl"
    draw = random.Random(0)
    names, places = ("Ann", "Ben", "Cid", "Dot"), ("mill", "barn", "tower", "river")
    with path.open("w") as file:
        for _ in range(600):
            said = [f"{draw.choice(names)} is at the {draw.choice(places)}." for _ in range(8)]
            file.write(json.dumps({"text": " ".join(said)}) + "\n")
    return path


def settings(prose, objective, **changes) -> RunConfig:
    values = {"tokenizer": "bpe:300", "model": SHAPE, "context": 48} if objective != "prefix_lm" else {"context": 48}
    more = {"batch_size": 8, "steps": 9, "learning_rate": 5e-3, "warmup_steps": 2, "dtype": "float32"}
    return RunConfig(**{"objective": objective, "data": str(prose), **values, **more, **changes})


@pytest.mark.parametrize("objective", ["span_corruption", "gap_sentences"])
def test_batches_are_pairs_of_the_training_split(prose, objective):
    config = settings(prose, objective)
    setup = resolve(config)
    batch, again, other = (setup.objective.batch(setup.corpus, step) for step in (2, 2, 3))
    assert all(torch.equal(batch[name], again[name]) for name in batch)
    assert not torch.equal(batch["labels"], other["labels"])
    tokenizer, room = setup.objective.tokenizer, setup.objective.room
    assert batch["input_ids"].shape == batch["attention_mask"].shape == (8, 48) and room.inputs == 48
    assert batch["labels"].shape == (8, room.targets)
    blank = type(setup.objective).blank_batch(config, 8)
    assert all(blank[name].shape == batch[name].shape for name in blank)
    for row in range(8):
        real = batch["input_ids"][row][batch["attention_mask"][row] == 1]
        known = batch["labels"][row][batch["labels"][row] != -100]
        assert real[-1] == known[-1] == tokenizer.sep_token_id
        assert (batch["input_ids"][row][len(real) :] == tokenizer.pad_token_id).all()
    if objective == "span_corruption":
        assert (batch["attention_mask"] == 1).all() and (batch["labels"] >= 0).all()
        starts = {tokenizer.convert_ids_to_tokens(int(token)) for token in batch["labels"][:, 0]}
        assert starts == {"<extra_id_0>"}
        places = [one["input_ids"] >= tokenizer.convert_tokens_to_ids("<extra_id_0>") for one in (batch, other)]
        assert not (places[0] == places[1]).all(1).any()  # each step leaves out other places, of each row


@pytest.mark.parametrize("objective", slow_except(("span_corruption", "gap_sentences", "prefix_lm"), "span_corruption"))
def test_a_resumed_run_equals_one_that_was_not_stopped(prose, objective, tmp_path):
    config = settings(prose, objective, checkpoint_every=4, log_every=3)
    whole = train(config, tmp_path / "whole", progress=False)
    with pytest.raises(KeyboardInterrupt), at_step(6):
        train(config, tmp_path / "parts", progress=False)
    resumed = train(config, tmp_path / "parts", resume=True, progress=False)
    for name in ("config.json", "model.safetensors"):
        first, second = (tmp_path / run / "model" / name for run in ("whole", "parts"))
        assert first.read_bytes() == second.read_bytes()
    times = {"folder", "minutes"}
    one, other = ({k: v for k, v in report.as_json().items() if k not in times} for report in (whole, resumed))
    assert one == other and whole.steps == 9
    samples = [(tmp_path / run / "samples.jsonl").read_text() for run in ("whole", "parts")]
    assert samples[0] == samples[1]
    if objective == "span_corruption":
        last = json.loads(samples[0].splitlines()[-1])
        spans = re.split("(<extra_id_[0-9]+>)", last["expected"])
        assert spans[0] == "" and spans[1] == "<extra_id_0>" and "<extra_id_0>" in last["prompt"]
        begin = last["prompt"].replace("<extra_id_0>", spans[2]).partition("<extra_id_1>")[0][:40]
        assert any(json.loads(line)["text"].startswith(begin) for line in prose.read_text().splitlines())
        assert last["text"]
    found = evaluate(tmp_path / "whole")
    if objective != "prefix_lm":
        assert found.target_loss == whole.validation_target_loss and found.target_tokens == whole.target_tokens
        assert evaluate(tmp_path / "whole", limit=500).target_tokens < whole.target_tokens


def test_a_run_keeps_the_share_of_sentences_that_it_is_told(prose):
    masks = []
    for share in (0.0, 0.5):
        setup = resolve(settings(prose, "gap_sentences", kept_sentences=share, batch_size=64))
        batch = setup.objective.batch(setup.corpus, 0)
        masks.append(int((batch["input_ids"] == setup.objective.tokenizer.mask_token_id).sum()))
    assert 0.3 < masks[1] / masks[0] < 0.7


@pytest.mark.slow
@pytest.mark.parametrize(("objective", "most"), [("span_corruption", 1.1), ("gap_sentences", 1.1)])
def test_what_is_left_out_is_learned(prose, objective, most, tmp_path):
    """A name or place out of four is log 4 = 1.39 nats for one word of three, the rest is always the same."""
    report = train(settings(prose, objective, steps=400, log_every=100), tmp_path / "run", progress=False)
    assert report.validation_target_loss < most and report.validation_target_accuracy > 0.6


def test_a_pretrained_model_learns_a_task(prose, tmp_path):
    """The whole road: our encoder-decoder, pretrained here, is fine-tuned, asked, and trained on."""
    train(settings(prose, "span_corruption"), tmp_path / "pretrained", progress=False)
    rows = [{"input": f"{name} is here.", "output": name} for name in ("Ann", "Ben", "Cid", "Dot") for _ in range(6)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    config = FineTuneConfig(
        **{"task": "generate", "model": str(tmp_path / "pretrained"), "data": str(tmp_path / "rows.jsonl")},
        **{"steps": 160, "epochs": 99.0, "learning_rate": 3e-3, "batch_size": 8, "dtype": "float32"},
        **{"warmup_steps": 2, "target_length": 8, "num_beams": 2},
    )
    report = train(config, tmp_path / "tuned", progress=False)
    assert report.scores["exact_match"] == 1.0
    (said,) = predict(tmp_path / "tuned", [{"input": "Dot is here."}])
    assert said["predicted_output"] == "Dot"


def test_a_pretrained_model_is_trained_on(prose, tmp_path):
    train(settings(prose, "span_corruption", steps=2), tmp_path / "first", progress=False)
    begun = {"init_from": str(tmp_path / "first"), "model": ModelConfig(), "tokenizer": "bytes"}
    more = settings(prose, "gap_sentences", **begun, steps=1, learning_rate=1e-9)
    assert train(more, tmp_path / "more", progress=False).steps == 1
    first, second = (load_file(tmp_path / run / "model" / "model.safetensors") for run in ("first", "more"))
    assert first.keys() == second.keys()
    assert all(torch.allclose(first[name], second[name], atol=1e-6) for name in first)


def test_what_cannot_be_pretrained(prose, tmp_path):
    def refused(error, message, config):
        with pytest.raises(error, match=message) as caught:
            train(config, tmp_path / "run", progress=False)
        assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()

    one_stack = replace(SHAPE, decoder_mixers=None)
    refused(
        ConfigurationError,
        "objective span_corruption trains an encoder-decoder: give the model a decoder with model.decoder_mixers",
        settings(prose, "span_corruption", model=one_stack),
    )
    refused(
        ConfigurationError,
        "model.decoder_max_position_embeddings is 8, too few for the targets of objective gap_sentences with context",
        settings(prose, "gap_sentences", model=replace(SHAPE, decoder_max_position_embeddings=8)),
    )
    for share in (-0.1, 1.0):
        with pytest.raises(ConfigurationError, match=rf"kept_sentences={share} must be in \[0, 1\)"):
            settings(prose, "gap_sentences", kept_sentences=share)
    with pytest.raises(ConfigurationError, match="kept_sentences=0.2 is for objective 'gap_sentences', not 'span_corr"):
        settings(prose, "span_corruption", kept_sentences=0.2)
    folder = tmp_path / "tokenizer"
    make_tokenizer("bytes", [], 64).save_pretrained(folder)
    refused(
        DataError,
        r"tokenizer: the one in .* has no <extra_id_0>, which span corruption needs",
        settings(prose, "span_corruption", tokenizer=str(folder)),
    )
    digit_tokenizer().save_pretrained(folder)
    refused(
        DataError,
        r"tokenizer: the one in .* has no mask_token, which leaving sentences out needs",
        settings(prose, "gap_sentences", tokenizer=str(folder)),
    )
    short = tmp_path / "short.jsonl"
    short.write_text("".join(f'{{"text": "word number {number}"}}\n' for number in range(300)))
    refused(
        DataError,
        "the train split of .*short.jsonl gives no pairs: no document has two sentences that fit into",
        settings(short, "gap_sentences"),
    )
    with pytest.raises(ConfigurationError, match="context=8 must be at least 16 for objective span_corruption"):
        settings(prose, "span_corruption", context=8)
