"""What the page is told of a model's attention: pictures, keys and heads agree with the masses, and what is refused."""

from base64 import b64decode
from pathlib import Path

import numpy as np
import pytest
import torch
from refusals import refusing
from small_encoders import save_tiny_bert

from asterism.errors import AsterismError, CheckpointError, ConfigurationError, DataError
from asterism.explore.model import open_model
from asterism.explore.model_questions import ModelQuestions
from asterism.explore.reading import block_for
from asterism.explore.subject import Subject
from asterism.models import AsterismConfig, AsterismForMaskedLM, record_mass
from asterism.quiet import quiet_transformers

TEXT = "the lamp is red and the book of anna is in the cellar ."
PATTERN = "window(left=2, right=2) | global_keys(positions=(0,))"


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> Path:
    with quiet_transformers():
        return save_tiny_bert(tmp_path_factory.mktemp("models") / "bert", positions=32)


@pytest.fixture(scope="module")
def asked(bert) -> ModelQuestions:
    return ModelQuestions(open_model(Subject(model=str(bert), pattern=PATTERN)), None)


def ask(questions: ModelQuestions, question: str, **given):
    return questions.answer({"question": question, **given})


def weights_of(questions: ModelQuestions, text: str, layer: int = 0) -> np.ndarray:
    """The weights of each head, [H, N, N]."""
    model = questions.model
    with torch.no_grad(), record_mass(model.backbone, block=1) as record:
        model.backbone(torch.tensor([model.encode(text).ids]))
    return record.layers[layer].mass.dense()[0].double().numpy()


def shares_of(told):
    shape = len(told["rows"]) - 1, len(told["columns"]) - 1
    return (
        np.frombuffer(b64decode(told["shares"]), "<f4").reshape(shape),
        np.frombuffer(b64decode(told["levels"]), np.uint8).reshape(shape),
    )


@pytest.mark.parametrize("head", (-1, 0, 1))
@pytest.mark.parametrize("cells", (1, 4, 64))
def test_pictures_agree_with_the_weights(asked, head, cells):
    read = ask(asked, "read", text=TEXT)
    weights = weights_of(asked, TEXT)
    weights = weights.mean(axis=0) if head < 0 else weights[head]
    part = {"rows": [2, 12], "columns": [0, 15], "cells": cells}
    told = ask(asked, "mass", reading=read["reading"], layer=0, head=head, **part)
    shares, levels = shares_of(told)
    rows, columns = np.array(told["rows"]), np.array(told["columns"])
    cut = weights[2:12]
    expected = np.add.reduceat(np.add.reduceat(cut, rows[:-1] - 2, axis=0), columns[:-1], axis=1)
    expected /= np.diff(rows)[:, None]
    np.testing.assert_allclose(shares, expected, atol=1e-6)
    assert told["darkest"] == pytest.approx(np.quantile(expected[expected > 0], 0.995, method="lower"), abs=1e-6)
    allowed = np.add.reduceat(np.add.reduceat(cut > 0, rows[:-1] - 2, axis=0), columns[:-1], axis=1) > 0
    assert ((levels > 0) == allowed).all() and levels.max() == 255


def test_the_keys_that_a_query_reads_most_come_first_with_their_text(asked):
    read = ask(asked, "read", text=TEXT)
    told = ask(asked, "keys", reading=read["reading"], layer=0, head=1, query=3)
    weights = weights_of(asked, TEXT)[1, 3]
    best = np.argsort(-weights)
    assert [key["first"] for key in told["keys"]] == [one for one in best if weights[one] > 0][:8]
    assert [key["share"] for key in told["keys"]] == pytest.approx(sorted(weights[weights > 0])[::-1][:8], abs=1e-6)
    words = ["[CLS]", *TEXT.split(), "[SEP]"]
    assert told["query"]["text"] == words[3] == "is"
    assert all(key["text"] == words[key["first"]] for key in told["keys"])
    assert told["blocks"] == (weights > 0).sum()


def test_heads_are_told_by_part_distance_and_spread(asked):
    read = ask(asked, "read", text=TEXT)
    (layer,) = read["layers"]
    weights = weights_of(asked, TEXT)
    places = np.arange(weights.shape[1])
    distance = np.abs(places[:, None] - places)
    spread = np.exp(-(weights * np.log(np.where(weights > 0, weights, 1))).sum(axis=2)).mean(axis=1)
    for head, told in enumerate(layer["heads"]):
        near, first = (weights[head] * (distance <= 2)).sum(), weights[head][:, 0].sum()
        assert told["shares"] == pytest.approx([near / len(places), first / len(places)], abs=1e-6)
        assert told["distance"] == pytest.approx((weights[head] * distance).sum() / len(places), abs=1e-5)
        assert told["spread"] == pytest.approx(spread[head], abs=1e-5)
        assert told["left"] < 1e-6


REFUSED = {
    "nothing": ("", "text-empty"),
    "no text": (None, "no-text"),
    "too long": ("the " * 40, "text-too-long"),
    "not a text": (["the"], "no-text"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_texts_that_cannot_be_read_are_refused(asked, name):
    text, code = REFUSED[name]
    with refusing(ConfigurationError, code):
        ask(asked, "read", text=text)


@pytest.mark.parametrize("text", ("\ud800\udfff\udc00", "\0" * 9, "\u202e" * 9, "<script>", "[CLS] [SEP]", " \n\t "))
def test_strange_texts_are_read(asked, text):
    read = ask(asked, "read", text=text)
    for query in range(read["length"]):
        told = ask(asked, "keys", reading=read["reading"], layer=0, head=-1, query=query)
        assert told["keys"] and told["query"]["text"].encode()


def test_questions_about_another_reading_or_beyond_the_model_are_refused(asked):
    first = ask(asked, "read", text=TEXT)["reading"]
    second = ask(asked, "read", text="the lamp")["reading"]
    choice = {"layer": 0, "head": 0, "query": 0}
    with refusing(ConfigurationError, "reading-gone"):
        ask(asked, "keys", reading=first, **choice)
    with refusing(ConfigurationError, "no-such-layer"):
        ask(asked, "keys", reading=second, **choice | {"layer": 1})
    with refusing(ConfigurationError, "no-such-head"):
        ask(asked, "keys", reading=second, **choice | {"head": 2})
    for wrong in ({"query": -1}, {"query": 10**6}, {"head": "0"}, {"layer": None}):
        with refusing(ConfigurationError, "number-out-of-range"):
            ask(asked, "keys", reading=second, **choice | wrong)
    with refusing(ConfigurationError, "part-form"):
        ask(asked, "mass", reading=second, rows=[0], columns=[0, 1], cells=4, **choice)


def test_models_that_cannot_be_shown_are_refused(bert, tmp_path):
    with pytest.raises(AsterismError, match="wndow"):
        open_model(Subject(model=str(bert), pattern="wndow(3)"))
    with refusing(CheckpointError, "tokenizer-missing", str(tmp_path)):
        (tmp_path / "config.json").write_text((bert / "config.json").read_text())
        open_model(Subject(model=str(tmp_path), pattern="dense()"))
    with refusing(DataError, "unreadable-text", "nowhere"):
        ModelQuestions(open_model(Subject(model=str(bert), pattern="dense()")), str(tmp_path / "nowhere"))


def test_a_model_without_a_pattern_reads_everything(bert):
    questions = ModelQuestions(open_model(Subject(model=str(bert))), None)
    (layer,) = ask(questions, "read", text=TEXT)["layers"]
    assert layer["text"] == "dense()"


def test_fnet_is_refused_by_name(bert, tmp_path):
    sizes = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    with quiet_transformers():
        AsterismForMaskedLM(AsterismConfig(mixers="fourier()", max_position_embeddings=32, **sizes)).save_pretrained(
            tmp_path
        )
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / file).write_bytes((bert / file).read_bytes())
    with refusing(ConfigurationError, "mass-without-attention", "fourier()"):
        open_model(Subject(model=str(tmp_path)))


def test_a_run_of_bytes_reads_its_file(bytes_run, tmp_path):
    file = tmp_path / "read"
    file.write_bytes("caf\u00e9 \u2603".encode() + b"\xff" + b"x" * 60)
    questions = ModelQuestions(open_model(Subject(run=str(bytes_run), text=str(file))), str(file))
    told = ask(questions, "model")
    assert (told["unit"], told["trained"], told["limit"]) == ("bytes", 32, 65_536)
    assert told["file"]["characters"] == 67
    read = ask(questions, "read")
    assert (read["tokens"], read["block"]) == (9 + 3 + 60, 1)
    mine = ask(questions, "keys", reading=read["reading"], layer=1, head=-1, query=read["tokens"] - 1)
    assert mine["query"]["text"] == "x" and len(mine["keys"]) == 8
    assert [len(layer["parts"]) for layer in read["layers"]] == [2, 0]


def test_blocks_grow_with_the_text_so_that_masses_stay_few():
    assert [block_for(tokens, 12) for tokens in (1, 1024, 4096, 65_536)] == [1, 1, 4, 64]
    assert block_for(65_536, 144) == 256
