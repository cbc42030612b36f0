"""Modalities: their text, what a run makes of them, and every refusal in one line."""

import math
from dataclasses import asdict

import numpy as np
import pytest
import torch
from refusals import refusing

from asterism.errors import ConfigurationError, DataError
from asterism.models import AsterismConfig, AsterismForCausalLM
from asterism.presence import require_package
from asterism.training.data.corpora.bytes import Bytes
from asterism.training.data.corpora.modality import VOCABULARY, parse_modality
from asterism.training.data.corpora.splits import ArrayPieces
from asterism.training.data.corpora.windows import plan_pieces
from asterism.training.objectives.causal import CausalTokens, bits_per_byte, refuse_labels
from asterism.training.run.evaluator import Evaluator
from asterism.training.settings.configuration import ModelConfig, RunConfig, config_from_dict


def test_a_modality_is_its_text():
    assert str(parse_modality("bytes")) == str(parse_modality(" bytes() ")) == "bytes()"
    records = parse_modality("bytes(record_length=12)")
    assert isinstance(records, Bytes) and records.sequence_length == 12
    assert str(records) == "bytes(record_length=12)"
    assert RunConfig().reads().vocabulary_size == 256
    assert RunConfig(record_length=64, context=64).reads().sequence_length == 64


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("byte()", r"unknown modality 'byte'\. Did you mean 'bytes'\? Known: bytes, images, audio, genome"),
        ("bytes(records=3)", r"bytes has no argument 'records'\. Did you mean 'record_length'\?"),
        ("bytes(3, 4)", "too many positional arguments"),
        ("bytes(record_length=0)", "record_length=0 must be at least 1"),
        ("bytes(record_length='3')", "record_length='3' must be at least 1"),
        ("bytes(record_length=open('x'))", "cannot read .*: write a call such as"),
        ("__import__('os')", "unknown modality '__import__'"),
        ("bytes() + bytes()", "cannot read"),
        ("", "cannot read"),
        ("(" * 5000, "cannot read"),
    ],
)
def test_what_is_no_modality_is_refused_in_one_line(text, message):
    with pytest.raises(ConfigurationError, match=message) as caught:
        parse_modality(text)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_a_run_refuses_what_does_not_fit_its_modality():
    with pytest.raises(ConfigurationError, match=r"context=1024 must be 12, a piece of bytes\(record_length=12\)"):
        RunConfig(modality="bytes(record_length=12)")
    with pytest.raises(ConfigurationError, match="record_length=12 is for bytes, not modality"):
        RunConfig(modality="bytes(record_length=12)", record_length=12, context=12)
    with refusing(
        ConfigurationError, "setting-range", "modality", "'bytes(record_length=12)'", "is for objective 'causal'"
    ):
        RunConfig(modality="bytes(record_length=12)", objective="gap_sentences")


def test_runs_recorded_before_there_were_modalities_read_bytes():
    assert config_from_dict("train", {"steps": 3}).reads().name == "bytes"


def test_a_library_that_is_not_there_is_named_with_its_extra():
    require_package("NumPy", "numpy", "none", "counting")
    with refusing(ConfigurationError, "package-missing", "reading pictures", "Pillow", "images"):
        require_package("Pillow", "no_such_module", "images", "reading pictures")


def test_labels_must_be_those_of_the_model():
    values, bounds = np.zeros(6, dtype=np.uint8), np.array([0, 3, 6])
    refuse_labels("data", ArrayPieces(values, bounds), None)
    refuse_labels("data", ArrayPieces(values, bounds, labels=np.array([0, 1])), 2)
    with refusing(DataError, "no-classes", "data", "2"):
        refuse_labels("data", ArrayPieces(values, bounds), 2)
    with refusing(DataError, "label-range", "data", "0", "2"):
        refuse_labels("data", ArrayPieces(values, bounds, labels=np.array([0, 2])), 2)


@pytest.mark.parametrize("test", [0, 2])
def test_what_is_said_of_pictures_before_the_first_step(test, tmp_path):
    """Positions of other rows and columns, as a recipe of another size brings them; and a test split without any."""
    for name, count in (("train", 3), ("validation", 1), ("test", test)):
        if count:
            np.save(tmp_path / f"{name}.npy", np.zeros((count, 4, 6, 3), dtype=np.uint8))
    if not test:  # what is missing is taken out of train by hash, and three pictures are few
        assert not parse_modality("images(width=6, height=4)").splits(str(tmp_path)).length("test")
    said = []
    for shape in (None, (6, 4, 3), (4, 6, 3)):
        kind = {"position_type": "factorised", "position_shape": shape} if shape else {}
        config = RunConfig(
            modality="images(width=6, height=4)", data=str(tmp_path), context=72, model=ModelConfig(**kind)
        )
        said.append(CausalTokens.prepare(config, CausalTokens.vocabulary(config, None))[1].notes)
    empty = () if test else (f"the test split of {tmp_path} is empty: nothing is left to test the run with",)
    assert said[0] == said[2] == empty and said[1][:-1] == empty
    assert said[1][-1].startswith(
        "model.position_shape is [6, 4, 3], but a piece of images(width=6, height=4) has [4, 6"
    )
    assert said[1][-1].endswith('set --model.position-shape "[4, 6, 3]"')


def test_a_split_without_a_piece_is_called_empty(tmp_path):
    np.save(tmp_path / "train.npy", np.zeros((1, 4, 6, 3), dtype=np.uint8))
    splits = parse_modality("images(width=6, height=4)").splits(str(tmp_path))
    with pytest.raises(DataError, match=r"the test split of .* is empty; give more data, or choose the held-out data"):
        splits.require("test", 72)


def test_every_name_has_its_module():
    for name, place in VOCABULARY.items():
        assert place.startswith("asterism.training.data.") and ":" in place, name


@pytest.mark.model
def test_bits_per_byte_are_the_mean_over_all_values_of_all_pieces():
    """Each value from what precedes it in its window, worked out one by one; classes come first, padding counts not."""
    shape = ModelConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=258)
    config = RunConfig(context=8, batch_size=3, model=shape, dtype="float32")
    torch.manual_seed(0)
    model = AsterismForCausalLM(AsterismConfig(**{**asdict(shape), "max_position_embeddings": 8}))
    torch.nn.init.normal_(model.lm_head.weight)
    values = np.arange(31, dtype=np.uint8)
    bounds, labels = [0, 5, 6, 25, 31], [1, 0, 0, 1]
    pieces = ArrayPieces(values, np.array(bounds), labels=np.array(labels))
    bits = 0.0
    for begin, end, label in zip(bounds, bounds[1:], labels, strict=False):
        piece = [256 + label, *values[begin:end].tolist()]
        for place in range(1, len(piece)):
            # Windows of 8 lie next to each other; the last one of a piece ends with it.
            window = (place - 1) // 8 * 8
            start = max(0, min(window, len(piece) - 1 - 8))
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([piece[start:place]])).logits[0, -1]
            bits -= float(logits.double().log_softmax(0)[piece[place]]) / math.log(2)
    plan = plan_pieces(pieces, 8, 0, 0, 31)
    assert bits_per_byte(model, pieces, plan, config, Evaluator()) == pytest.approx(bits / 31, abs=1e-5)
