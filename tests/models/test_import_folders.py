"""What is read from the folder of a checkpoint and written to that of a model; all that is refused; the command."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from hugging_face_encoders import PADDING, POSITIONS, SPARSE, VOCABULARY, original
from refusals import refusing
from safetensors.torch import load_file
from small_checkpoints import change_tensors, edit
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
)

from asterism.cli.main import main
from asterism.errors import CheckpointError, ConfigurationError, PatternError
from asterism.models import AsterismModel, import_checkpoint

# --- the folder -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BertForMaskedLM with a tokenizer."""
    folder = tmp_path_factory.mktemp("checkpoints") / "bert"
    original("Bert", "ForMaskedLM").save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def save_tokenizer(folder: Path) -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "far", "near", "##er"]
    tokenizer = Tokenizer(models.WordPiece({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": true, "model_max_length": 64}')


@pytest.fixture
def copy(checkpoint: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "copy"
    folder.mkdir()
    for file in checkpoint.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def test_the_tokenizer_comes_along_and_knows_the_length(checkpoint, tmp_path):
    report = import_checkpoint(checkpoint, tmp_path / "output", length=100)
    assert report.tokenizer == ["tokenizer.json", "vocab.txt", "tokenizer_config.json"]
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "output")
    assert tokenizer.model_max_length == 100
    assert tokenizer.tokenize("far nearer") == ["far", "near", "##er"]
    import_checkpoint(checkpoint, tmp_path / "as-long")
    assert AutoTokenizer.from_pretrained(tmp_path / "as-long").model_max_length == 64


def test_shards_are_read_by_their_index(tmp_path):
    theirs = original("Roberta")
    theirs.save_pretrained(tmp_path / "source", max_shard_size="20KB")
    assert len(list((tmp_path / "source").glob("*.safetensors"))) > 1
    import_checkpoint(tmp_path / "source", tmp_path / "output")
    ours = AsterismModel.from_pretrained(tmp_path / "output")
    assert torch.equal(ours.embed_tokens.weight, theirs.embeddings.word_embeddings.weight)
    assert torch.equal(ours.positions.weight, theirs.embeddings.position_embeddings.weight[PADDING + 1 :])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dtypes_stay(dtype, tmp_path):
    original("Bert", "ForMaskedLM").to(dtype).save_pretrained(tmp_path / "source")
    import_checkpoint(tmp_path / "source", tmp_path / "output")
    assert {tensor.dtype for tensor in load_file(tmp_path / "output" / "model.safetensors").values()} == {dtype}
    assert AutoModelForMaskedLM.from_pretrained(tmp_path / "output").dtype == dtype


def test_no_global_generator_is_touched(checkpoint, tmp_path):
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    import_checkpoint(checkpoint, tmp_path / "output")
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])


def to_pickle(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    torch.save(tensors, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def test_a_pickle_is_read_when_that_is_allowed(checkpoint, copy, tmp_path):
    to_pickle(copy)
    import_checkpoint(copy, tmp_path / "output", allow_pickle=True)
    import_checkpoint(checkpoint, tmp_path / "expected")
    ours, expected = (load_file(tmp_path / name / "model.safetensors") for name in ("output", "expected"))
    assert ours.keys() == expected.keys()
    assert all(torch.equal(ours[name], expected[name]) for name in expected)


class Malicious:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return Path.touch, (self.path,)


def test_a_pickle_that_runs_code_is_refused(copy, tmp_path):
    to_pickle(copy)
    torch.save({"bert.weight": Malicious(tmp_path / "ran")}, copy / "pytorch_model.bin")
    with refusing(CheckpointError, "not-tensors-only", "pytorch_model.bin"):
        import_checkpoint(copy, tmp_path / "output", allow_pickle=True)
    assert not (tmp_path / "ran").exists()


# --- refusals ---------------------------------------------------------------------------------------------------------


SPOILT: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (
        lambda folder: change_tensors(folder, lambda tensors: tensors.pop("bert.encoder.layer.1.output.dense.bias")),
        r"lacks encoder\.layer\.1\.output\.dense\.bias$",
    ),
    "extra": (
        lambda folder: change_tensors(folder, lambda tensors: tensors.update({"bert.extra.weight": torch.ones(2)})),
        r"it has, and the class does not bert\.extra\.weight$",
    ),
    "deeper": (
        lambda folder: edit(folder, num_hidden_layers=1),
        r"the class does not encoder\.layer\.1\..* and 12 more$",
    ),
    "wider": (lambda folder: edit(folder, vocab_size=41), r"embeddings\.word_embeddings\.weight \[40, 24\] instead of"),
    "not tied": (
        lambda folder: change_tensors(
            folder, lambda tensors: tensors.update({"cls.predictions.decoder.weight": torch.ones(40, 24).double()})
        ),
        r"ties decoder and embedding, but their weights differ",
    ),
    "two biases": (
        lambda folder: change_tensors(
            folder, lambda tensors: tensors.update({"cls.predictions.decoder.bias": torch.ones(40).double()})
        ),
        r"differs from another with the same meaning",
    ),
    "another head": (
        lambda folder: edit(folder, architectures=["BertForMultipleChoice"]),
        r"BertForMultipleChoice has no exact counterpart; of model_type bert these are imported: BertModel, BertForM",
    ),
    "a causal head": (lambda folder: edit(folder, architectures=["BertLMHeadModel"]), r"BertLMHeadModel has no exact"),
    "a classifier without its class": (
        lambda folder: edit(folder, architectures=["BertForSequenceClassification"]),
        r"lacks classifier\.bias, classifier\.weight, pooler\.dense\.bias, pooler\.dense\.weight; it has",
    ),
    "model type": (
        lambda folder: edit(folder, model_type="gpt2"),
        r"model_type 'gpt2'; imported are bart, bert, big_bird",
    ),
    "nearly": (lambda folder: edit(folder, model_type="berd"), r"Did you mean 'bert'\?"),
    "no model type": (lambda folder: edit(folder, model_type=None), r"model_type None; imported are"),
    "decoder": (lambda folder: edit(folder, is_decoder=True), r"the checkpoint has is_decoder=True"),
    "positions": (
        lambda folder: edit(folder, position_embedding_type="relative_key"),
        r"position_embedding_type='relative_key', positions inside attention, which cannot be imported; only"
        r" 'absolute' can",
    ),
    "activation": (lambda folder: edit(folder, hidden_act="mish"), r"hidden_act 'mish' is unknown"),
    "field": (lambda folder: edit(folder, hidden_size="wide"), r"config\.json is damaged"),
    "config": (lambda folder: (folder / "config.json").write_text("{"), r"config\.json is damaged"),
    "list": (lambda folder: (folder / "config.json").write_text("[]"), r"must hold one JSON object"),
    "no config": (lambda folder: (folder / "config.json").unlink(), r"config\.json is missing"),
    "cut off": (
        lambda folder: (folder / "model.safetensors").write_bytes(b"1234567"),
        r"model\.safetensors is damaged",
    ),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), r"has no weights: neither model\.safeten"),
    "pickle": (to_pickle, r"only in a pickle \(pytorch_model\.bin\), which can run code .* pass --allow-pickle"),
    "tokenizer": (lambda folder: (folder / "tokenizer_config.json").write_text("]"), r"tokenizer_config\.json is dam"),
}


@pytest.mark.parametrize("what", SPOILT)
def test_a_checkpoint_that_cannot_be_imported_is_refused_in_one_line(what, copy, tmp_path):
    spoil, message = SPOILT[what]
    spoil(copy)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(CheckpointError, match=message) as raised:
        import_checkpoint(copy, tmp_path / "output")
    assert "\n" not in str(raised.value)
    assert sorted(tmp_path.iterdir()) == before, "nothing is half-written"


@pytest.mark.parametrize(
    ("kind", "head", "fields", "message"),
    [
        ("BigBird", "ForQuestionAnswering", {}, "BigBirdForQuestionAnswering has no exact counterpart"),
        ("BigBird", "Model", {"rescale_embeddings": True}, "rescale_embeddings=True"),
        ("BigBird", "Model", {"use_bias": False}, "use_bias=False"),
        ("Roberta", "ForMaskedLM", {"hidden_act": "relu"}, "hidden_act='relu'"),
        ("XLMRoberta", "ForMultipleChoice", {}, "XLMRobertaForMultipleChoice has no exact counterpart"),
    ],
)
def test_what_has_no_counterpart_is_refused_by_name(kind, head, fields, message, tmp_path):
    original(kind, head, **fields).save_pretrained(tmp_path / "source")
    with pytest.raises(CheckpointError, match=message):
        import_checkpoint(tmp_path / "source", tmp_path / "output")
    assert not (tmp_path / "output").exists()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"length": 63}, ConfigurationError, "length 63 is less than the 64 positions of the checkpoint; leave it out"),
        ({"pattern": "windw(3)"}, PatternError, "windw"),
        ({"pattern": ["dense()"]}, ConfigurationError, "got 1 patterns for 2 layers"),
        ({"pattern": "interleave(dense(), fourier())"}, ConfigurationError, "gives layer 1 fourier()"),
        ({"pattern": "fixed(stride=8, summary=2, heads=3)"}, PatternError, "3"),
        ({"globals": [0]}, ConfigurationError, "globals are for Longformer"),
    ],
)
def test_a_change_that_does_not_fit_is_refused(changes, error, message, checkpoint, tmp_path):
    with pytest.raises(error, match=message.replace("(", r"\(").replace(")", r"\)")):
        import_checkpoint(checkpoint, tmp_path / "output", **changes)
    assert not list(tmp_path.iterdir())


def test_a_pattern_for_fnet_is_refused(tmp_path):
    original("FNet").save_pretrained(tmp_path / "source")
    with refusing(ConfigurationError, "pattern-not-of-weights", "0", "dense()", "fourier"):
        import_checkpoint(tmp_path / "source", tmp_path / "output", pattern="dense()")


def test_what_is_there_is_not_overwritten(checkpoint, tmp_path):
    (tmp_path / "output").mkdir()
    (tmp_path / "output" / "thesis.txt").write_text("42")
    with refusing(CheckpointError, "output-not-empty"):
        import_checkpoint(checkpoint, tmp_path / "output")
    with refusing(CheckpointError, "output-not-empty"):
        import_checkpoint(checkpoint, checkpoint)
    assert [file.name for file in (tmp_path / "output").iterdir()] == ["thesis.txt"]
    with refusing(CheckpointError, "not-a-model-folder"):
        import_checkpoint("bert-base-uncased", tmp_path / "other")


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({"weight_map": {"a": "../model.safetensors"}}, "'../model.safetensors' is not the name of a file"),
        ({"weight_map": {"a": "model-1.safetensors"}}, "model-1.safetensors is missing"),
        ({"weight_map": {"a": "own.safetensors"}}, "lacks the tensor a that the index promises"),
        ({"weight_map": {}}, "must have a weight_map"),
        ([], "must have a weight_map"),
    ],
)
def test_a_damaged_index_is_refused(index, message, copy, tmp_path):
    (copy / "model.safetensors").rename(copy / "own.safetensors")
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=message):
        import_checkpoint(copy, tmp_path / "output")


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_imports(checkpoint, tmp_path, capsys):
    words = ["import", str(checkpoint), "--output", str(tmp_path / "output"), "--length", "128"]
    assert main([*words, "--pattern", "window(left=8, right=8) | global_tokens(0)"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    ours = AutoModelForMaskedLM.from_pretrained(tmp_path / "output").eval()
    assert lines[0].startswith("BertForMaskedLM -> AsterismForMaskedLM, ")
    assert lines[1] == "positions  128, repeating the checkpoint's 64"
    assert lines[2].startswith("pattern    window(left=8, right=8) | global_tokens(")
    assert lines[-1] == f"saved in {tmp_path / 'output'}"
    assert ours(torch.full((1, 128), 5)).logits.shape == (1, 128, VOCABULARY)


def test_the_command_speaks_json(tmp_path, capsys):
    original("Longformer").save_pretrained(tmp_path / "source")
    words = ["import", str(tmp_path / "source"), "--output", str(tmp_path / "output"), "--globals", "--json"]
    assert main(words) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["model"] == "AsterismModel"
    assert report["mixers"] == ["longformer(window=4, globals=())", "longformer(window=8, globals=())"]
    assert len(report["left_out"]) == 12
    assert report["positions"] == [POSITIONS, POSITIONS]


def test_the_command_reads_a_pickle_only_when_told_to(copy, tmp_path, capsys):
    to_pickle(copy)
    words = ["import", str(copy), "--output", str(tmp_path / "output")]
    assert main(words) == 4
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1) and "pass --allow-pickle" in err
    assert not (tmp_path / "output").exists()
    assert main([*words, "--allow-pickle"]) == 0
    assert capsys.readouterr().out.endswith(f"saved in {tmp_path / 'output'}\n")


def test_the_command_fails_in_one_line(checkpoint, tmp_path, capsys):
    output = ["--output", str(tmp_path / "output")]
    for words, code in [
        ([str(tmp_path / "nothing"), *output], 4),
        ([str(checkpoint), *output, "--length", "8"], 2),
        ([str(checkpoint), *output, "--globals", "99999"], 2),
        ([str(checkpoint), *output, "--pattern", "widow(1)"], 2),
        ([str(checkpoint), *output, "--lenght", "80"], 2),
        ([str(checkpoint)], 2),
    ]:
        assert main(["import", *words]) == code
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)


def test_the_report_says_what_is_otherwise(tmp_path):
    original("BigBird", "ForSequenceClassification", **SPARSE, attention_probs_dropout_prob=0.1).save_pretrained(
        tmp_path / "source"
    )
    report = asdict(import_checkpoint(tmp_path / "source", tmp_path / "output"))
    assert report["left_out"] == ["bert.pooler.bias", "bert.pooler.weight"]
    assert any("random blocks" in note for note in report["notes"])
    assert any("from_pretrained(FOLDER, attention_dropout=0.1)" in note for note in report["notes"])
    assert report["tokenizer"] == []
