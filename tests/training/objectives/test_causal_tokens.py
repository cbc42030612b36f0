"""Causal runs on tokens, end to end: bits per byte, resumption, samples, and what is asked of them."""

import json
import math
import random
import shutil
from dataclasses import asdict, replace

import pytest
import torch
from refusals import refusing
from safetensors.torch import load_file
from stopping import at_step

from asterism.cli.main import main
from asterism.errors import ConfigurationError
from asterism.training.ask.generation import Wanted, generate_file
from asterism.training.data.corpora.bytes import compressed, load_documents
from asterism.training.data.corpora.tokenization import load_tokenizer
from asterism.training.objectives.prefix import PrefixTokens
from asterism.training.pipeline import evaluate, generate, open_run, resolve, train
from asterism.training.settings.configuration import ModelConfig, RunConfig

pytestmark = pytest.mark.model

CONTEXT = 48


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Documents of 10 to 400 bytes, some letters of two and three bytes."""
    folder, draw = tmp_path_factory.mktemp("data"), random.Random(4)
    for number in range(300):
        lines = [
            f"größe_{draw.randrange(9)} = €{draw.randrange(99)} + {number % 7}\n" for _ in range(draw.randint(1, 12))
        ]
        (folder / f"{number:03}.py").write_text("".join(lines))
    return folder


@pytest.fixture(scope="module")
def small(data):
    model = ModelConfig(
        mixers="interleave(window(left=11), causal())",
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        position_type="rotary",
        dropout=0.1,
    )
    return RunConfig(
        model=model,
        data=str(data),
        tokenizer="bpe:330",
        context=CONTEXT,
        batch_size=8,
        steps=40,
        learning_rate=1e-2,
        warmup_steps=5,
        dtype="float64",
        log_every=7,
        evaluation_every=20,
        evaluation_bytes=640,
        checkpoint_every=16,
    )


@pytest.fixture(scope="module")
def finished(small, tmp_path_factory):
    """A finished run; tests must not change it."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    return folder, train(small, folder, progress=False)


def history(folder):
    entries = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    return [{k: v for k, v in entry.items() if k not in ("seconds", "tokens_per_second")} for entry in entries]


def stream_of(corpus, tokenizer, split):
    """The tokens of a split, each document behind a separator, and the bytes that each stands for."""
    end, special = tokenizer.sep_token_id, set(tokenizer.all_special_ids)
    tokens, sizes = [end], [0]
    for document in corpus.documents(split):
        found = tokenizer(document, add_special_tokens=False)["input_ids"]
        assert not special & set(found)
        tokens += [*found, end]
        sizes += [*(len(one) for one in tokenizer.convert_ids_to_tokens(found)), 1]
    return tokens, sizes


def nats_by_hand(model, tokenizer, tokens, first, stop):
    """The nats of the tokens first .. stop - 1, of which windows of CONTEXT read up to the last border before each."""
    nats = 0.0
    for begin in range(first, stop, CONTEXT):
        at = min(begin, stop - CONTEXT)
        read = tokens[at - 1 : at + CONTEXT - 1]
        for place in range(begin, min(begin + CONTEXT, stop)):
            given = read[: place - at + 1]
            last = max((i for i, token in enumerate(given) if token == tokenizer.sep_token_id), default=None)
            if last is not None:
                given = [tokenizer.cls_token_id, *given[last + 1 :]]
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([given])).logits[0, -1]
            nats -= float(logits.double().log_softmax(0)[tokens[place]])
    return nats


def test_bits_per_byte_are_those_of_a_computation_by_hand(finished, small):
    folder, report = finished
    run, corpus = open_run(folder), load_documents(small.data)
    tokens, sizes = stream_of(corpus, run.tokenizer, "validation")
    nats = nats_by_hand(run.model, run.tokenizer, tokens, 1, len(tokens))
    assert report.validation_bytes == sum(sizes) == corpus.length("validation")
    assert report.validation_bits_per_byte == pytest.approx(nats / math.log(2) / sum(sizes), rel=1e-11)
    assert report.baselines == compressed([corpus.validation.tobytes()])
    asked = evaluate(folder, progress=False)
    assert asked.scores[0].bits_per_byte == report.validation_bits_per_byte and asked.is_training_corpus


def test_bytes_and_tokens_are_scored_on_the_same_bytes(finished, small, tmp_path):
    """A stream of bytes leaves its first byte out: it has nothing before it."""
    bytes_run = replace(small, tokenizer="bytes", steps=2, dtype="float32")
    report = train(bytes_run, tmp_path / "bytes", progress=False)
    assert report.validation_bytes == finished[1].validation_bytes - 1
    assert report.corpus_sha256 == finished[1].corpus_sha256


def test_a_limit_counts_bytes_and_a_minimum_context_tokens(finished, small):
    asked = evaluate(finished[0], limit=300, minimum_context=[0, 20], progress=False)
    tokens, sizes = stream_of(load_documents(small.data), open_run(finished[0]).tokenizer, "validation")
    before = sum(sizes[:20])
    assert 300 <= asked.bytes_scored < 310
    stop = next(at for at in range(len(sizes) + 1) if sum(sizes[:at]) - before >= 300)
    assert asked.bytes_scored == sum(sizes[20:stop])
    text = b"".join(one.encode() + b"\0" for one in load_documents(small.data).documents("validation"))
    assert asked.baselines == compressed([text[before : before + asked.bytes_scored]])
    assert "minimum tokens" in str(asked) and asked.as_json()["context_unit"] == "tokens"
    with refusing(ConfigurationError, "minimum-context-range", "49", "48"):
        evaluate(finished[0], minimum_context=49, progress=False)


def test_the_loss_of_training_is_told_in_bits_per_byte(finished, small):
    corpus = load_documents(small.data)
    tokens, _ = stream_of(corpus, open_run(finished[0]).tokenizer, "train")
    per_token = corpus.length("train") / len(tokens)
    for entry in history(finished[0]):
        if "loss" in entry:
            assert entry["bits_per_byte"] == pytest.approx(entry["loss"] / math.log(2) / per_token, rel=1e-12)
    assert finished[1].tokens_trained == 40 * 8 * CONTEXT


def test_an_interrupted_run_on_tokens_resumes_to_the_same_bits(finished, small, tmp_path):
    with pytest.raises(KeyboardInterrupt), at_step(17):
        train(small, tmp_path / "run")
    resumed = train(small, tmp_path / "run", resume=True, progress=False)
    same = {"minutes": 0, "folder": ""}
    assert asdict(resumed) | same == asdict(finished[1]) | same
    assert history(tmp_path / "run") == history(finished[0])
    one, two = (load_file(folder / "model" / "model.safetensors") for folder in (finished[0], tmp_path / "run"))
    assert all(torch.equal(one[name], two[name]) for name in one.keys() | two.keys())


def test_the_folder_holds_the_tokenizer_and_where_texts_begin_and_end(finished):
    run, tokenizer = open_run(finished[0]), load_tokenizer(finished[0] / "model")
    assert tokenizer.get_vocab() == run.tokenizer.get_vocab()
    config = run.model.config
    assert (config.bos_token_id, config.eos_token_id) == (tokenizer.cls_token_id, tokenizer.sep_token_id)
    assert set(run.record["corpus"]["validation"]) == {"bytes", "tokens", "documents"}


def test_generation_continues_a_text_of_tokens(finished):
    run = open_run(finished[0])
    prompt = "größe_1 = €".encode()
    continued = generate(run, prompt, 20, temperature=0)
    start = [run.tokenizer.cls_token_id, *run.tokenizer(prompt.decode(), add_special_tokens=False)["input_ids"]]
    assert run.objective.prompt(prompt).tolist() == [start]
    tokens = list(start)
    for _ in range(20):
        with torch.no_grad():
            tokens.append(int(run.model(input_ids=torch.tensor([tokens])).logits[0, -1].argmax()))
        if tokens[-1] == run.tokenizer.sep_token_id:
            break
    expected = run.tokenizer.decode(tokens, skip_special_tokens=True)
    assert (prompt + continued).decode() == expected
    assert generate(run, b"", 30, seed=3) == generate(run, b"", 30, seed=3) != generate(run, b"", 30, seed=4)


def test_samples_are_texts(finished):
    lines = [json.loads(line) for line in (finished[0] / "samples.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [20, 40]
    assert all(line["prompt"].startswith("größe_") and line["text"] for line in lines)


def test_text_of_tokens_is_not_written_to_files(finished, tmp_path):
    with refusing(ConfigurationError, "output-of-tokens", "--output"):
        generate_file(finished[0], tmp_path / "text.txt", Wanted(), progress=False)


def test_a_prefix_of_tokens_is_not_predicted(small):
    setup = resolve(replace(small, objective="prefix_lm"))
    assert isinstance(setup.objective, PrefixTokens)
    batch = setup.objective.batch(setup.corpus, 0)
    assert set(batch) == {"input_ids", "position_ids", "shift_labels"}
    ignored = (batch["shift_labels"] < 0).sum(dim=1)
    assert (ignored < CONTEXT).all() and ignored.sum() > 0


def test_a_run_begins_with_the_model_and_tokenizer_of_another(finished, small, tmp_path):
    more = replace(small, init_from=str(finished[0]), model=ModelConfig(), tokenizer=RunConfig.tokenizer, steps=2)
    report = train(more, tmp_path / "more", progress=False)
    assert report.validation_bits_per_byte < 1.2 * finished[1].validation_bits_per_byte
    assert open_run(tmp_path / "more").tokenizer.get_vocab() == open_run(finished[0]).tokenizer.get_vocab()


def test_a_tokenizer_that_does_not_fit_is_refused(finished, small, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(finished[0] / "model", folder)
    tokenizer = load_tokenizer(folder)
    tokenizer.add_tokens([f"<new {number}>" for number in range(9)])
    tokenizer.save_pretrained(folder)
    more = replace(small, init_from=str(folder), model=ModelConfig(), tokenizer=RunConfig.tokenizer)
    with refusing(ConfigurationError, "vocabulary-differs", str(len(tokenizer)), "330"):
        resolve(more)
    (folder / "tokenizer.json").unlink()
    with refusing(ConfigurationError, "vocabulary-differs", "no tokenizer", "330"):
        resolve(more)
    with refusing(ConfigurationError, "model-too-small", "bpe:330"):
        resolve(replace(small, model=replace(small.model, vocab_size=100)))
    with refusing(ConfigurationError, "setting-range", "record_length", "bpe:330"):
        replace(small, record_length=CONTEXT)


def test_the_command_line_trains_and_continues(data, tmp_path, monkeypatch, capfdbinary):
    monkeypatch.chdir(tmp_path)
    words = (
        "train run --recipe gpt-tiny --steps 2 --context 32 --model.hidden-size 48 --tokenizer bpe:300 --dtype float32"
    )
    assert main([*words.split(), "--data", str(data), "--report-bytes", "500"]) == 0
    assert "bits per byte" in capfdbinary.readouterr().out.decode()
    assert main(["generate", "run", "--prompt", "größe", "--add", "5"]) == 0
    assert capfdbinary.readouterr().out.startswith("größe".encode())
    assert main(["generate", "run", "--prompt", "x", "--output", "new.txt"]) == 2
    assert main(["train", "other", "--tokenizer", str(tmp_path / "nowhere")]) == 3
    assert b"there is no folder" in capfdbinary.readouterr().err
