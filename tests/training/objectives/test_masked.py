"""Masked language modelling: masks, packing, pairs, tokenizers, exact resumption, figures, and every bad input."""

import json
import math
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from refusals import refusing
from safetensors.torch import load_file
from slow_cases import slow_except
from stopping import at_step
from tokenizers import Tokenizer, models
from transformers import AutoModelForMaskedLM, AutoTokenizer, PreTrainedTokenizerFast, pipeline

from asterism.errors import CheckpointError, ConfigurationError, DataError
from asterism.labels import IGNORED
from asterism.randomness import of_row
from asterism.training.data.corpora.bytes import load_documents
from asterism.training.data.corpora.packing import SORTED_TOGETHER, Epochs, EpochsByLength, TokenStream
from asterism.training.data.corpora.tokenization import (
    SPECIAL_TOKENS,
    _learned_from,
    encode,
    load_tokenizer,
    make_tokenizer,
    pieces,
)
from asterism.training.objectives.masked import MaskedRows, MaskedTokens
from asterism.training.objectives.masking import Masking
from asterism.training.pipeline import evaluate, generate, open_run, resolve, train
from asterism.training.recipes import RECIPES, recipe
from asterism.training.run.arithmetic import loss_of
from asterism.training.run.folder import RunFolder
from asterism.training.settings.configuration import ModelConfig, RunConfig, config_to_dict

pytestmark = pytest.mark.model


def _text(number):
    """Lines of code with words of random letters: enough for a vocabulary, and unlike the other texts."""
    random = np.random.Generator(np.random.Philox(number))
    letters = np.random.Generator(np.random.Philox(7)).choice(list("abcdefghijklmnopqrstuvwxyz"), (150, 5))
    words = ["".join(word) for word in letters]
    functions = (f"def {name}({x}):\n    return {x} + {y}\n\n" for name, x, y in random.choice(words, (30, 3)))
    return "".join(functions)


TEXTS = [_text(number) for number in range(100)]


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    for number, text in enumerate(TEXTS):
        (folder / f"{number}.txt").write_text(text)
    (folder / "empty.txt").touch()
    return folder


@pytest.fixture(scope="module")
def tiny(texts):
    model = ModelConfig(
        mixers="bigbird(block=8, random=1)",
        block="post_norm",
        embedding_norm=True,
        type_vocab_size=2,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        dropout=0.1,
        attention_dropout=0.2,
        initializer_range=0.02,
        tie_word_embeddings=True,
    )
    return RunConfig(
        model=model,
        objective="mlm",
        tokenizer="bpe:400",
        data=str(texts),
        context=64,
        batch_size=4,
        steps=30,
        learning_rate=1e-2,
        warmup_steps=5,
        dtype="float32",
        log_every=7,
        evaluation_every=10,
        evaluation_bytes=2000,
        checkpoint_every=12,
    )


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer("bpe:400", TEXTS, 64)


@pytest.fixture(scope="module")
def finished(tiny, tmp_path_factory):
    """A finished run; tests must not change it."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    return folder, train(tiny, folder, progress=False)


def _history(folder):
    entries = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    return [{k: v for k, v in entry.items() if k not in ("seconds", "tokens_per_second")} for entry in entries]


# --- masks -----------------------------------------------------------------------------------------------------------


def _masked(masking, tokens, count, seed=0, step=0, row=0):
    return masking.apply(tokens, count, of_row(seed, step, row))


def test_a_share_of_tokens_is_chosen_and_masked_80_10_10():
    masking = Masking(ordinary=np.arange(5, 1000), special=np.arange(5), mask=4)
    tokens = np.random.Generator(np.random.Philox(1)).integers(5, 1000, 200_000)
    inputs, places, labels = _masked(masking, tokens, 30_000)
    assert len(set(places.tolist())) == 30_000 and (np.diff(places) > 0).all()
    assert (labels == tokens[places]).all()
    untouched = np.setdiff1d(np.arange(len(tokens)), places)
    assert (inputs[untouched] == tokens[untouched]).all()
    shares = [(inputs[places] == 4).mean(), (inputs[places] == labels).mean()]
    assert shares[0] == pytest.approx(0.8, abs=0.01) and shares[1] == pytest.approx(0.1, abs=0.006)
    replaced = inputs[places][(inputs[places] != 4) & (inputs[places] != labels)]
    assert replaced.min() >= 5 and len(set(replaced.tolist())) > 900
    # All places are chosen alike: the mean of uniform draws without replacement.
    assert places.mean() == pytest.approx(100_000, abs=5 * 200_000 / math.sqrt(12 * 30_000))


def test_special_tokens_are_never_chosen_and_never_drawn(tokenizer):
    masking = Masking.of(tokenizer)
    special = set(tokenizer.all_special_ids)
    assert special == set(range(5)) and not special & set(masking.ordinary.tolist())
    tokens = np.array([2, 3, 3, 0, 1, 4] * 10 + [50, 60, 3])
    inputs, places, labels = _masked(masking, tokens, 9)
    assert places[:2].tolist() == [60, 61] and labels.tolist() == [50, 60] + [IGNORED] * 7
    assert (np.delete(inputs, [60, 61]) == np.delete(tokens, [60, 61])).all()


def test_masks_are_a_function_of_seed_step_and_row():
    masking = Masking(ordinary=np.arange(5, 100), special=np.arange(5), mask=4)
    tokens = np.arange(5, 100)
    first = _masked(masking, tokens, 14)
    before = tokens.copy()
    assert all((one == two).all() for one, two in zip(first, _masked(masking, tokens, 14), strict=True))
    assert (tokens == before).all()
    for change in ({"seed": 1}, {"step": 1}, {"row": 1}):
        assert (first[1] != _masked(masking, tokens, 14, **change)[1]).any()
    # Written down, so that another machine or version that draws otherwise is found out.
    assert first[1].tolist() == GOLDEN_PLACES


GOLDEN_PLACES = [7, 13, 15, 16, 19, 21, 32, 44, 45, 60, 63, 67, 69, 94]


# --- packing ---------------------------------------------------------------------------------------------------------


def test_packing_loses_no_token_and_pads_nothing(tokenizer):
    stream = TokenStream.made(["", *TEXTS], tokenizer)
    assert stream.documents == len(TEXTS) and stream.empty == 1
    for number, text in enumerate(TEXTS):
        document = stream.tokens[stream.starts[number] : stream.starts[number + 1]]
        assert tokenizer.decode(document[:-1]) == text and document[-1] == tokenizer.sep_token_id
    starts = stream.row_starts(62)
    covered = np.zeros(len(stream.tokens), bool)
    for start in starts:
        covered[start : start + 62] = True
    assert covered.all() and starts[-1] == len(stream.tokens) - 62
    assert len(starts) == -(-len(stream.tokens) // 62)


def test_every_row_comes_once_before_any_comes_twice():
    epochs = Epochs(7, seed=3)
    draws = epochs.draw(0, 21).reshape(3, 7)
    assert (np.sort(draws, axis=1) == np.arange(7)).all()
    assert len({tuple(order) for order in draws.tolist()}) == 3
    assert (Epochs(7, seed=3).draw(5, 9) == draws.flatten()[5:14]).all()


@pytest.mark.parametrize(("rows", "batch"), [(7, 3), (8, 4), (1000, 3), (1000, 7), (2, 5), (1, 1)])
def test_batches_of_like_length_are_of_rows_that_each_come_once(rows, batch):
    lengths = np.random.default_rng(0).permutation(rows)
    epochs = EpochsByLength(lengths, batch, seed=3)
    draws = np.concatenate([epochs.draw(step * batch, batch) for step in range(3 * rows)])
    passes = draws.reshape(-1, rows)
    assert (np.sort(passes, axis=1) == np.arange(rows)).all()
    again = EpochsByLength(lengths, batch, seed=3)
    assert (again.draw(5 * batch, batch) == draws[5 * batch : 6 * batch]).all()
    # Batches of one pass are runs of the sorted rows that were drawn together.
    group = epochs.together * batch
    assert epochs.together == {7: 1, 8: 1, 1000: {3: SORTED_TOGETHER, 7: 35}.get(batch), 2: 1, 1: 1}[rows]
    for number, order in enumerate(passes[:3]):
        begin = -number * rows % batch
        for first in range(begin, (rows - begin) // batch * batch + begin, group):
            some = lengths[order[first : first + group]]
            some = some[: len(some) // batch * batch]
            batches = some.reshape(-1, batch)
            assert (batches[np.argsort(batches[:, 0])].reshape(-1) == np.sort(some)).all()
    if rows >= 1000:
        first, second = (order[: rows // batch * batch].reshape(-1, batch) for order in passes[[0, batch]])
        assert (np.diff(lengths[first[: epochs.together, 0]]) < 0).any()  # short and long batches take turns
        common = {frozenset(some) for some in first.tolist()} & {frozenset(some) for some in second.tolist()}
        assert len(common) < len(first) / 10


def test_rows_hold_the_text_between_their_special_tokens(tiny):
    setup = resolve(tiny)
    objective, rows = setup.objective, setup.corpus
    batch = objective.batch(rows, 5)
    assert {name: tuple(tensor.shape) for name, tensor in batch.items()} == {
        name: tuple(tensor.shape) for name, tensor in MaskedTokens.blank_batch(tiny, 4).items()
    }
    assert all(torch.equal(tensor, objective.batch(rows, 5)[name]) for name, tensor in batch.items())
    assert not torch.equal(batch["input_ids"], objective.batch(rows, 6)["input_ids"])
    assert batch["labels"].shape[1] == round(0.15 * 62)
    restored = batch["input_ids"].scatter(1, batch["places"], batch["labels"])
    numbers = rows.draw(5, 4)
    for row, start in zip(restored.tolist(), rows.train.starts[numbers], strict=True):
        assert row == [2, *rows.train.stream.tokens[start : start + 62].tolist(), 3]


def test_pairs_follow_or_come_from_another_document(tiny):
    config = replace(tiny, next_sentence=True)
    rows = MaskedRows(config, load_documents(config.data), "train", make_tokenizer("bpe:400", TEXTS, 64))
    stream = rows.stream
    numbers = np.arange(len(rows.starts))
    batch = rows.read(numbers, [of_row(0, 0, number) for number in numbers])
    restored = batch["input_ids"].scatter(1, batch["places"], batch["labels"]).numpy()
    others = batch["next_sentence_label"].numpy()
    assert 0.4 < others.mean() < 0.6
    for row, types, is_other, start in zip(restored, batch["token_type_ids"].numpy(), others, rows.starts, strict=True):
        cut = int((types == 0).sum()) - 2
        assert row[0] == 2 and row[cut + 1] == 3 and row[-1] == 3 and (np.diff(types) >= 0).all()
        first, second = row[1 : cut + 1], row[cut + 2 : -1]
        assert (first == stream.tokens[start : start + cut]).all()
        assert start + cut not in stream.starts
        assert (second == stream.tokens[start + cut : start + 61]).all() == (not is_other)


def test_another_document_is_never_the_same_one():
    stream = TokenStream(np.repeat(np.arange(3, dtype=np.int32), [50, 2, 4]), np.array([0, 50, 52, 56]), 0)
    for position in (0, 49, 50, 51, 52, 55):
        own = stream.tokens[position]
        firsts = [stream.of_another_document(position, 5, of_row(0, 0, row))[0] for row in range(60)]
        assert own not in firsts and len(set(firsts)) == 2


# --- tokenizers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "size"), [("bytes", 261), ("bpe:400", 400), ("unigram:300", 300)])
def test_tokenizers_know_every_text_and_are_the_same_when_made_again(name, size):
    tokenizer = make_tokenizer(name, TEXTS, 64)
    assert size - 5 <= len(tokenizer) <= size
    assert [getattr(tokenizer, role) for role in SPECIAL_TOKENS] == list(SPECIAL_TOKENS.values())
    text = "Ünïcode, \x00\x7f\t tabs,\n\n[MASK] [SEP] \U0001f600 and 日本"
    (tokens,) = encode(tokenizer, [text])
    assert tokenizer.decode(tokens) == text
    assert not set(tokens.tolist()) & set(tokenizer.all_special_ids)
    assert tokenizer("a", "b")["input_ids"][0] == tokenizer.cls_token_id
    again = make_tokenizer(name, TEXTS, 64)
    assert again.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()


def test_long_documents_are_cut_behind_line_ends_and_lose_nothing(monkeypatch):
    monkeypatch.setattr("asterism.training.data.corpora.tokenization._PIECE", 10)
    parts = list(pieces(["one\ntwo\nthree", "x" * 25, "", "short"]))
    assert parts == ["one\ntwo\n", "three", "x" * 10, "x" * 10, "x" * 5, "", "short"]


@pytest.mark.parametrize("run", ["x", " ", ".", "ab"])
@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_one_word_of_a_million_letters_is_learned_from(kind, run):
    """A merge in a word takes time by the square of its length: this took hours."""
    tokenizer = make_tokenizer(f"{kind}:300", ["near and far\n", run * 2**19], 64)
    (tokens,) = encode(tokenizer, ["far " + run * 5000])
    assert tokenizer.decode(tokens) == "far " + run * 5000


def test_words_to_learn_from_are_cut_and_lose_nothing():
    texts = ["one two\n" * 900, "a " + "x" * 2500 + " " * 1001 + "\u6f22" * 1000 + "b" * 7]
    parts = list(_learned_from(texts))
    assert "".join(parts) == "".join(texts)
    assert parts[0] == texts[0], "a text as it is"
    assert [len(part) for part in parts[1:]] == [1002, 1000, 1500, 1001, 7]


def test_a_tokenizer_from_a_folder_is_used_as_it_is(tiny, tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path / "own")
    config = replace(tiny, tokenizer=str(tmp_path / "own"), steps=2)
    shape = resolve(config).shape
    assert shape.vocab_size == len(tokenizer) and shape.pad_token_id == 0
    train(config, tmp_path / "run", progress=False)
    saved = load_tokenizer(tmp_path / "run" / "model")
    assert saved.get_vocab() == tokenizer.get_vocab()


# --- runs ------------------------------------------------------------------------------------------------------------


def test_a_run_learns_and_leaves_a_complete_folder(tiny, finished):
    folder, report = finished
    assert report.steps == 30 and report.tokens_trained == 30 * 4 * 64
    assert report.validation_masked_loss < math.log(400) - 1 and report.next_sentence_accuracy is None
    record = json.loads((folder / "run.json").read_text())
    assert record["result"] == report.as_json()
    assert record["corpus"]["train"]["documents"] + record["corpus"]["validation"]["documents"] <= len(TEXTS)
    assert config_to_dict(RunFolder(folder).read_config()) == config_to_dict(tiny)
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert [one["step"] for one in samples] == [10, 20, 30]
    first, *_, last = samples
    assert first["expected"] == last["expected"] and first["read"] == last["read"] and "[MASK]" in last["read"]
    assert len(last["guessed"]) == len(last["between"]) - 1 == len(last["expected"])
    text = "".join(one for pair in zip(last["between"], [*last["expected"], ""], strict=True) for one in pair)
    assert text.removeprefix("[CLS]").partition("[SEP]")[0] in "".join(TEXTS) or "[SEP]" in text
    assert train(tiny, folder, resume=True, progress=False) == report
    history = _history(folder)
    assert [entry["step"] for entry in history if "validation_masked_loss" in entry] == [10, 20, 30]
    assert all(entry["masked_loss"] == entry["loss"] for entry in history if "loss" in entry)


def test_an_interrupted_run_resumes_to_the_same_bits(tiny, finished, tmp_path):
    folder = tmp_path / "interrupted"
    with pytest.raises(KeyboardInterrupt), at_step(14):
        train(tiny, folder)
    assert (folder / "checkpoints" / "step-00000014" / "tokenizer.json").exists()
    resumed = train(tiny, folder, resume=True, progress=False)
    assert asdict(resumed) | {"minutes": 0, "folder": ""} == asdict(finished[1]) | {"minutes": 0, "folder": ""}
    assert _history(folder) == _history(finished[0])
    one, two = (load_file(run / "model" / "model.safetensors") for run in (folder, finished[0]))
    assert all(torch.equal(one[name], two[name]) for name in one.keys() | two.keys())


def test_pairs_train_and_resume_to_the_same_bits(tiny, tmp_path):
    config = replace(tiny, next_sentence=True, steps=16)
    whole = train(config, tmp_path / "whole", progress=False)
    assert 0 <= whole.next_sentence_accuracy <= 1 and "next sentence" in str(whole)
    with pytest.raises(KeyboardInterrupt), at_step(7):
        train(config, tmp_path / "parts")
    parts = train(config, tmp_path / "parts", resume=True, progress=False)
    assert parts.validation_masked_loss == whole.validation_masked_loss
    assert _history(tmp_path / "parts") == _history(tmp_path / "whole")


def test_slices_change_only_rounding(tiny, tmp_path):
    config = replace(tiny, steps=3, model=replace(tiny.model, dropout=0.0, attention_dropout=0.0))
    plain, sliced = (
        train(replace(config, gradient_accumulation_steps=count), tmp_path / str(count), progress=False)
        for count in (1, 4)
    )
    assert sliced.validation_masked_loss == pytest.approx(plain.validation_masked_loss, abs=1e-4)


def test_the_loss_is_that_of_the_model_with_labels(tiny):
    setup = resolve(tiny)
    model = setup.build(torch.device("cpu"))[0].eval()
    batch = setup.objective.batch(setup.corpus, 0)
    labels = torch.full_like(batch["input_ids"], IGNORED).scatter(1, batch["places"], batch["labels"])
    expected = model(input_ids=batch["input_ids"], labels=labels).loss
    assert loss_of(model, batch, tiny.dtype, seed=None).item() == pytest.approx(expected.item(), abs=1e-5)


def test_evaluation_agrees_with_the_report_and_with_a_count_by_hand(finished, tiny):
    folder, report = finished
    evaluation = evaluate(folder)
    assert evaluation.is_training_corpus and evaluation.tokens_masked == report.tokens_masked
    assert evaluation.masked_loss == report.validation_masked_loss
    assert evaluation.masked_accuracy == report.validation_masked_accuracy
    run = open_run(folder)
    config, model = run.config, run.model
    tokenizer = load_tokenizer(folder / "model")
    rows = MaskedRows(config, load_documents(config.data), "validation", tokenizer)
    train_rows = MaskedRows(config, load_documents(config.data), "train", tokenizer)
    counts = np.bincount(train_rows.stream.tokens, minlength=len(tokenizer))[5:] + 1
    losses, entropies, text = [], [], b""
    for number in range(len(rows.starts)):
        batch = rows.read(np.array([number]), [of_row(0, 0, number)])
        with torch.no_grad():
            logits = model(input_ids=batch["input_ids"]).logits[0, batch["places"][0]].double().log_softmax(-1)
        losses += (-logits.gather(1, batch["labels"].T)).flatten().tolist()
        entropies += [-math.log(counts[label - 5] / counts.sum()) for label in batch["labels"][0].tolist()]
        text += b"".join(tokenizer.decode(label).encode() for label in batch["labels"][0].tolist())
    assert evaluation.masked_loss == pytest.approx(np.mean(losses), abs=1e-5)
    assert evaluation.unigram_entropy == pytest.approx(np.mean(entropies), abs=1e-9)
    assert evaluation.bytes_masked == report.bytes_masked == len(text)
    bits = len(text) * math.log(2)
    assert evaluation.bits_per_byte == report.validation_bits_per_byte == pytest.approx(sum(losses) / bits, abs=1e-5)
    assert evaluation.unigram_bits_per_byte == report.unigram_bits_per_byte == pytest.approx(sum(entropies) / bits)
    assert f"{evaluation.bits_per_byte:.4f} bits per byte of them" in str(evaluation)
    assert evaluate(folder, limit=1).tokens_masked == rows.masked_per_row
    other = evaluate(folder, split="test")
    assert other.split == "test" and other.masked_loss != evaluation.masked_loss


def test_the_finished_model_fills_masks_in_a_pipeline(finished):
    folder = finished[0] / "model"
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForMaskedLM.from_pretrained(folder)
    assert tokenizer.model_max_length == 64 and model.config.pad_token_id == tokenizer.pad_token_id
    (best, *_) = pipeline("fill-mask", model=model, tokenizer=tokenizer)("def f1(x):\n    return[MASK] + 1")
    assert best["score"] > 1 / 400 and len(best["token_str"]) > 0


def test_nothing_is_pickled(finished):
    files = [path for path in finished[0].rglob("*") if path.is_file() and path.parent.name != "tensorboard"]
    assert {path.suffix for path in files} <= {".json", ".jsonl", ".png", ".safetensors"}


TWINS = [name for name in RECIPES if name.endswith("-tiny") and recipe(name).objective == "mlm"]


@pytest.mark.parametrize("name", slow_except(TWINS, *TWINS[::3]))
def test_every_twin_learns(name, texts, tmp_path):
    """A few steps at 128 tokens in the place of 1,024."""
    cut = {"context": 128, "steps": 9, "minutes": None, "warmup_steps": 2, "log_every": 1, "evaluation_bytes": 2000}
    config = replace(recipe(name), data=str(texts), tokenizer="bpe:400", dtype="float32", **cut)
    train(config, tmp_path / "run", progress=False)
    losses = [entry["loss"] for entry in RunFolder(tmp_path / "run").read_history() if "loss" in entry]
    assert len(losses) == 9 and np.mean(losses[-3:]) < losses[0] - 0.3


# --- documents and bad input -----------------------------------------------------------------------------------------


def test_lines_of_jsonl_are_documents(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text, "id": 3}) + "\n" for text in TEXTS))
    corpus = load_documents(path)
    found = [document for split in ("train", "validation", "test") for document in corpus.documents(split)]
    assert sorted(found) == sorted(TEXTS)


def test_files_of_white_space_are_no_documents(texts, tmp_path):
    folder = shutil.copytree(texts, tmp_path / "texts")
    for number in range(40):
        (folder / f"blank{number}.txt").write_text(" \n" * (number + 1))
    for split in ("train", "validation"):
        assert list(load_documents(folder).documents(split)) == list(load_documents(texts).documents(split))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "texts.jsonl line 2 is not JSON"),
        ("[1]", "texts.jsonl line 2 has no document"),
        ('{"txt": "a"}', "texts.jsonl line 2 has no document"),
        ('{"text": 3}', "texts.jsonl line 2 has no document"),
        ('{"text": " \\n"}', "texts.jsonl line 2 holds an empty document"),
        ('{"text": "a\\u0000b"}', "texts.jsonl line 2 has a NUL character, which would end the document"),
    ],
)
def test_lines_that_hold_no_document_are_named(tiny, tmp_path, line, message):
    path = tmp_path / "texts.jsonl"
    path.write_text('{"text": "a"}\n' + line + "\n")
    with pytest.raises(DataError, match=message) as caught:
        train(replace(tiny, data=str(path)), tmp_path / "run")
    assert caught.value.exit_code == 3 and "\n" not in str(caught.value) and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"tokenizer": "bpe:260"}, ConfigurationError, "the size must be a whole number of at least 261"),
        ({"tokenizer": "bpe:1000000000"}, ConfigurationError, "special ones, and at most 1,048,576"),
        ({"tokenizer": "unigram:" + "9" * 5000}, ConfigurationError, "special ones, and at most 1,048,576"),
        ({"tokenizer": "unigram:many"}, ConfigurationError, "the size must be a whole number of at least 261"),
        ({"tokenizer": "nowhere"}, DataError, "tokenizer: there is no folder nowhere"),
        ({"context": 100_000}, DataError, "the train split of .* tokens in .* documents, but a sequence needs 99,998"),
        (
            {"model.vocab_size": 300},
            ConfigurationError,
            "model.vocab_size is 300, too few for the tokens of bpe:400: 400",
        ),
        ({"model.max_position_embeddings": 63}, ConfigurationError, "max_position_embeddings is 63, too few for the"),
    ],
)
def test_what_cannot_be_leaves_no_folder(tiny, tmp_path, change, error, message):
    (name, value), *_ = change.items()
    model = replace(tiny.model, **{name.removeprefix("model."): value}) if "." in name else tiny.model
    config = replace(tiny, model=model, **({} if "." in name else change))
    with pytest.raises(error, match=message) as caught:
        train(config, tmp_path / "run")
    assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"objective": "causal", "tokenizer": "bytes", "next_sentence": True},
            "next_sentence=True is for objective 'mlm', not 'causal'",
        ),
        ({"objective": "clm"}, "objective='clm' must be one of: causal, mlm"),
        ({"record_length": 64}, "record_length=64 is for bytes without a tokenizer, got tokenizer=bpe:400"),
        ({"context": 8}, "context=8 must be at least 16"),
        ({"schedule": "constant"}, "schedule='constant' must be one of: cosine, linear, inverse_sqrt"),
    ],
)
def test_settings_that_do_not_go_together(tiny, change, message):
    with pytest.raises(ConfigurationError, match=message):
        replace(tiny, **change)


def test_pairs_need_types_and_documents(tiny, tmp_path):
    with pytest.raises(ConfigurationError, match="needs two token types: model.type_vocab_size must be at least 2"):
        replace(tiny, next_sentence=True, model=replace(tiny.model, type_vocab_size=0))
    path = tmp_path / "one.txt"
    path.write_text("".join(TEXTS))
    with refusing(DataError, "one-document"):
        train(replace(tiny, next_sentence=True, data=str(path)), tmp_path / "run")


def test_tokenizers_that_cannot_mask_or_be_read_are_refused(tiny, tmp_path):
    plain = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="b").save_pretrained(tmp_path / "plain")
    with pytest.raises(DataError, match="has no mask_token, no sep_token, no cls_token, which masking needs"):
        train(replace(tiny, tokenizer=str(tmp_path / "plain")), tmp_path / "run")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "tokenizer.json").write_text("{")
    with refusing(DataError, "unreadable-tokenizer", "broken") as caught:
        train(replace(tiny, tokenizer=str(tmp_path / "broken")), tmp_path / "run")
    assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()


def test_what_masked_models_do_not_do_is_refused(finished, tmp_path):
    folder = finished[0]
    with pytest.raises(
        ConfigurationError,
        match="objective mlm cannot generate; it fills in what is masked: .*fill-mask",
    ):
        generate(folder, b"a", 1)
    with refusing(ConfigurationError, "minimum-context-rows"):
        evaluate(folder, minimum_context=3)
    damaged = Path(shutil.copytree(folder, tmp_path / "damaged"))
    (damaged / "model" / "unigram.safetensors").unlink()
    with refusing(CheckpointError, "missing-file", "unigram.safetensors"):
        evaluate(damaged)
