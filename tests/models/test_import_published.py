"""Checkpoints with the configurations of the hub, imported by the command as a user would import them.

`published_configurations.json` has the fields of each config.json as it was published, those that no class reads any
more included, and nothing for those that it lacks. Here only sizes are smaller. Tensors have the names that the
published files give them.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_checkpoints import draw_weights, undone
from torch import nn
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForPreTraining, AutoModelForSeq2SeqLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from asterism.cli.main import main
from asterism.models import AsterismForMaskedLM, AsterismForPreTraining
from asterism.models.importing.checkpoint import ARCHITECTURES

PUBLISHED: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("published_configurations.json").read_text())
ENCODERS = ("bert-base-uncased", "roberta-base", "allenai/longformer-base-4096", "google/fnet-base")
SEQ2SEQ = (
    "t5-small",
    "google/pegasus-large",
    "facebook/bart-base",
    "allenai/led-base-16384",
    "google/bigbird-pegasus-large-arxiv",
)
VOCABULARY = 60
SMALL: dict[str, Any] = {
    **{name: 24 for name in ("d_model", "hidden_size")},
    **{name: 28 for name in ("d_ff", "encoder_ffn_dim", "decoder_ffn_dim", "intermediate_size")},
    **{name: 4 for name in ("num_heads", "encoder_attention_heads", "decoder_attention_heads", "num_attention_heads")},
    **{name: 2 for name in ("num_layers", "encoder_layers", "decoder_layers", "num_hidden_layers")},
    "d_kv": 6,
    "vocab_size": VOCABULARY,
}
"""Sizes in place of those that were published; a window for each layer becomes as many as there are layers."""


def published(name: str) -> dict[str, Any]:
    """The published config.json, with smaller sizes."""
    document = PUBLISHED[name]
    small = {field: SMALL[field] for field in document.keys() & SMALL.keys()}
    if "attention_window" in document:
        small["attention_window"] = document["attention_window"][:2]
    return document | small


def as_published(name: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors under the names that they have in the published file, beside others that say nothing more."""
    tensors = dict(tensors)
    if name == "bert-base-uncased":
        tensors["bert.embeddings.position_ids"] = torch.arange(512)[None]
        tensors = {key.replace("LayerNorm.weight", "LayerNorm.gamma"): tensor for key, tensor in tensors.items()}
        return {key.replace("LayerNorm.bias", "LayerNorm.beta"): tensor for key, tensor in tensors.items()}
    if name == "t5-small":
        tensors["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"] = torch.ones(32, 4).double()
    if name == "facebook/bart-base":
        tensors.pop("final_logits_bias", None)
        tensors = {key.removeprefix("model."): tensor for key, tensor in tensors.items()}
    return tensors


@pytest.fixture
def checkpoint(tmp_path: Path) -> Callable[[dict[str, Any], type, str], nn.Module]:
    """A model of such a configuration in float64, which then lies in the folder `source` as on the hub."""

    def save(document: dict[str, Any], auto: type, name: str) -> nn.Module:
        with undone():
            config = CONFIG_MAPPING[document["model_type"]].from_dict(dict(document))
            model = auto.from_config(config).double().eval()
        draw_weights(model)
        if name == "facebook/bart-base":
            model.final_logits_bias.zero_()
        model.save_pretrained(tmp_path / "source")
        weights = tmp_path / "source" / "model.safetensors"
        save_file(as_published(name, load_file(weights)), weights, metadata={"format": "pt"})
        (tmp_path / "source" / "config.json").write_text(json.dumps(document))
        (tmp_path / "source" / "generation_config.json").unlink(missing_ok=True)
        return model

    return save


@pytest.fixture
def imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[type], Any]:
    """What the command makes of the folder `source`, loaded."""

    def load(auto: type) -> Any:
        capsys.readouterr()  # what saving wrote
        assert main(["import", str(tmp_path / "source"), "--output", str(tmp_path / "output")]) == 0
        out, err = capsys.readouterr()
        assert err == "" and out.endswith(f"saved in {tmp_path / 'output'}\n")
        return auto.from_pretrained(tmp_path / "output").eval()

    return load


@pytest.fixture(autouse=True)
def everything_in_double(t5_in_double: None, softmax_in_double: None) -> None:
    """Classes that compute in float32 whatever the model do not."""


def tokens(rows: int, length: int) -> torch.Tensor:
    return torch.randint(4, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(length))


def globally(kind: str, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """The first token as global one, where that is an argument."""
    is_first = torch.zeros_like(ids).index_fill(1, torch.tensor([0]), 1)
    return {"global_attention_mask": is_first} if kind in ("longformer", "led") else {}


@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoder_of_the_hub(name, checkpoint, imported):
    theirs = checkpoint(published(name), AutoModelForPreTraining, name)
    both = name in ("bert-base-uncased", "google/fnet-base")
    ours = imported(AsterismForPreTraining if both else AutoModelForMaskedLM)
    assert type(ours) is (AsterismForPreTraining if both else AsterismForMaskedLM)
    ids = tokens(2, 70 if name == "google/fnet-base" else 300)
    logits = "prediction_logits" if both else "logits"
    with torch.no_grad():
        expected, seen = theirs(ids, **globally(theirs.config.model_type, ids)), ours(ids)
    assert expected[logits].std() > 0.1
    assert (seen[logits] - expected[logits]).abs().max() < 1e-10


@pytest.mark.parametrize("name", SEQ2SEQ)
def test_an_encoder_decoder_of_the_hub(name, checkpoint, imported, tmp_path):
    """Its logits, and what it writes by the settings that config.json has."""
    theirs = checkpoint(published(name), AutoModelForSeq2SeqLM, name)
    ours = imported(AutoModelForSeq2SeqLM)
    source, target = tokens(2, 300), tokens(2, 20)
    where = globally(theirs.config.model_type, source)
    with torch.no_grad():
        expected = theirs(source, decoder_input_ids=target, **where).logits
        seen = ours(source, decoder_input_ids=target).logits
    assert expected.std() > 0.1
    assert (seen - expected).abs().max() < 1e-10
    theirs.generation_config = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "source").generation_config
    for field in ("num_beams", "length_penalty", "no_repeat_ngram_size", "forced_bos_token_id", "forced_eos_token_id"):
        assert getattr(ours.generation_config, field) == getattr(theirs.generation_config, field), field
    written = theirs.generate(source, max_length=12, **where)
    assert torch.equal(ours.generate(source, max_length=12), written)


def test_the_mt5_of_the_hub_is_refused_in_one_line(tmp_path, capsys):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "config.json").write_text(json.dumps(published("google/mt5-small")))
    assert main(["import", str(tmp_path / "source"), "--output", str(tmp_path / "output")]) == 4
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "is of model_type 'mt5'; imported are bart, bert" in err
    assert not (tmp_path / "output").exists()


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_a_configuration_of_defaults(kind, checkpoint, imported):
    """As a class writes it whose caller named sizes only."""
    config = CONFIG_MAPPING[kind]()
    document = config.to_dict()
    small = {field: value for field, value in SMALL.items() if field in document or field in config.attribute_map}
    if kind in ("longformer", "led"):
        small["attention_window"] = 512
    config = CONFIG_MAPPING[kind](**small)
    is_pair = config.is_encoder_decoder
    auto = AutoModelForSeq2SeqLM if is_pair else AutoModel
    theirs = checkpoint(config.to_dict(), auto, "")
    ours = imported(auto)
    ids = tokens(1, 130)
    with torch.no_grad():
        also = {"decoder_input_ids": tokens(1, 9)} if is_pair else {}
        where = globally(kind, ids)
        expected, seen = theirs(ids, **also, **where)[0], ours(ids, **also)[0]
    assert (seen - expected).abs().max() < 1e-10
