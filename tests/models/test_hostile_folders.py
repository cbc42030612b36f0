"""Folders of strangers: their files may be links, pipes, devices or other files than their names say.

Every refusal is one line, nothing is written, and nothing is waited for.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from refusals import refusing
from small_checkpoints import change_tensors, draw_weights, edit, undone
from small_encoders import word_tokenizer
from transformers import AutoTokenizer, BertConfig, BertModel

from asterism.cli.main import main
from asterism.errors import CheckpointError, DataError
from asterism.files import LARGEST, check_model_folder, read_bytes, read_json
from asterism.models import import_checkpoint
from asterism.training.data.corpora.tokenization import load_tokenizer

SECRET = "root:$6$Aq:20000:0:99999:7:::\nuser:!:20000:0:99999:7:::\n"
KEYS = {"client_id": "a", "client_secret": "b", "refresh_token": "c", "type": "authorized_user"}
TOKENS = {"[UNK]": 0, "a": 1, "b": 2, "ab": 3}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small BERT with its tokenizer."""
    folder = tmp_path_factory.mktemp("checkpoints") / "bert"
    word_tokenizer().save_pretrained(folder)
    sizes = {"vocab_size": 40, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    with undone():
        model = BertModel(BertConfig(**sizes, intermediate_size=12, max_position_embeddings=16))
    draw_weights(model)
    model.save_pretrained(folder)
    return folder


@pytest.fixture
def folder(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy of it that can be spoilt."""
    copy = tmp_path / "stranger"
    copy.mkdir()
    for file in checkpoint.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    return copy


def refused(folder: Path, message: str) -> None:
    """By the import, in one line and without output."""
    output = folder.parent / "output"
    with pytest.raises(CheckpointError, match=message) as raised:
        import_checkpoint(folder, output)
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 500
    assert not output.exists()


def fine_tuning(folder: Path, capsys: pytest.CaptureFixture[str], label: str = "good") -> str:
    """The line in which `asterism finetune` refuses the model or the data."""
    data, run = folder.parent / "data.jsonl", folder.parent / "run"
    rows = [{"text": "near and far", "label": ("bad", label)[row % 2]} for row in range(40)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["finetune", "--task", "classify", "--model", str(folder), "--data", str(data), "--folder", str(run)]
    capsys.readouterr()
    assert main([*words, "--epochs", "1"]) in (2, 3, 4)
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert not run.exists()
    return err


# --- a tokenizer's files are what they are called ---------------------------------------------------------------------

NAMES = (
    *("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt", "spiece.model", "sentencepiece.bpe.model"),
    *("special_tokens_map.json", "added_tokens.json", "tokenizer_config.json"),
)


@pytest.mark.parametrize("content", [SECRET, json.dumps(KEYS), "machine a\nlogin b\npassword c\n"], ids=["t", "j", "p"])
@pytest.mark.parametrize("name", NAMES)
def test_a_private_file_behind_a_link_is_not_published(name, content, folder, tmp_path):
    (tmp_path / "private").write_text(content)
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(tmp_path / "private")
    if name == "merges.txt":
        (folder / "vocab.json").write_text(json.dumps(TOKENS))
    refused(folder, rf"{name} is damaged: ")


def test_a_folder_does_not_vouch_for_what_its_links_lead_to(folder, tmp_path):
    (tmp_path / "private").write_text("-----BEGIN PRIVATE KEY-----\nsecret\n")
    (folder / "vocab.txt").unlink(missing_ok=True)
    (folder / "vocab.txt").symlink_to(tmp_path / "private")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["unk_token"] = "-----BEGIN PRIVATE KEY-----"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    refused(folder, r"vocab.txt is damaged: ")


API = {"api_key": "s3cret-1", "access_token": "s3cret-2", "errors": ["s3cret-3"], "nested": {"a": "s3cret-4"}}


@pytest.mark.parametrize(
    ("name", "telling"),
    [
        ("special_tokens_map.json", {"unk_token": {"content": "[UNK]", "note": "s3cret-5"}}),
        ("tokenizer_config.json", {"model_max_length": 16, "added_tokens_decoder": {"a": "s3cret-6"}}),
        ("tokenizer_config.json", {"do_lower_case": True, "sp_model_kwargs": {"a": {"b": "s3cret-7"}}}),
    ],
)
def test_what_no_tokenizer_reads_is_not_published(name, telling, folder, tmp_path):
    private = {key: value for key, value in API.items() if name[0] == "t" or key.endswith("_token")}
    (tmp_path / "private").write_text(json.dumps(telling | private))
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(tmp_path / "private")
    import_checkpoint(folder, tmp_path / "output")
    for file in (tmp_path / "output").iterdir():
        assert b"s3cret" not in file.read_bytes(), file.name
    written = json.loads((tmp_path / "output" / name).read_text())
    assert written.get("unk_token", {"content": "[UNK]"}) == {"content": "[UNK]"}
    assert telling.get("model_max_length") == written.get("model_max_length")


@pytest.mark.parametrize("name", ["vocab.json", "added_tokens.json"])
@pytest.mark.parametrize("content", [{"alice": 52_000, "bob": 48_000}, {"alice": 0, "bob": 1}])
def test_names_and_numbers_are_no_vocabulary(name, content, folder, tmp_path):
    (tmp_path / "private").write_text(json.dumps(content))
    (folder / name).symlink_to(tmp_path / "private")
    refused(folder, rf"{name} is damaged: ")


def test_settings_of_tokenizers_stay_as_they_are(folder, tmp_path):
    added = {"0": {"content": "[PAD]", "lstrip": False, "normalized": False, "special": True}}
    settings = {
        **{"do_lower_case": True, "model_max_length": 16, "tokenizer_class": "BertTokenizer", "never_split": ["a"]},
        **{"added_tokens_decoder": added, "mask_token": {"content": "[MASK]", "lstrip": True, "__type": "AddedToken"}},
        **{"extra_special_tokens": {"image_token": "<i>"}, "additional_special_tokens": ["<x>", "<y>"]},
        **{"sp_model_kwargs": {"alpha": 0.5}, "image_token": "<i>", "clean_up_tokenization_spaces": None},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    import_checkpoint(folder, tmp_path / "output")
    assert json.loads((tmp_path / "output" / "tokenizer_config.json").read_text()) == settings


def test_links_as_such_are_allowed(checkpoint, tmp_path):
    """As in a snapshot of Hugging Face's cache."""
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for file in checkpoint.iterdir():
        (snapshot / file.name).symlink_to(file)
    report = import_checkpoint(snapshot, tmp_path / "output")
    assert {"tokenizer.json", "tokenizer_config.json"} <= set(report.tokenizer)
    assert not any((tmp_path / "output" / name).is_symlink() for name in report.tokenizer)
    theirs, ours = (AutoTokenizer.from_pretrained(where) for where in (checkpoint, tmp_path / "output"))
    assert ours("near and far").input_ids == theirs("near and far").input_ids


def piece(text: str) -> bytes:
    inside = b"\x0a" + bytes([len(text.encode())]) + text.encode() + b"\x15\0\0\x80\xbf\x18\x01"
    return b"\x0a" + bytes([len(inside)]) + inside


GOOD: dict[str, bytes] = {
    "vocab.json": json.dumps(TOKENS).encode(),
    "merges.txt": b"#version: 0.2\na b\n",
    "vocab.txt": b"[UNK]\na\n##b\n",
    "spiece.model": piece("<unk>") + piece("\u2581a") + b"\x12\x02\x20\x02",
    "special_tokens_map.json": json.dumps({"unk_token": {"content": "[UNK]"}, "image_token": "<i>"}).encode(),
    "added_tokens.json": b'{"<x>": 40}',
}


def test_what_is_as_its_name_says_is_written(folder, tmp_path):
    for name, content in GOOD.items():
        (folder / name).write_bytes(content)
    report = import_checkpoint(folder, tmp_path / "output")
    assert set(GOOD) < set(report.tokenizer)
    for name, content in GOOD.items():
        written = (tmp_path / "output" / name).read_bytes()
        assert written == content or json.loads(written) == json.loads(content), name


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", "{", "is damaged: Expecting"),
        ("tokenizer.json", "[" * 200_000, "is damaged: "),
        ("tokenizer.json", "{}", "is damaged: it must hold a tokenizer"),
        ("tokenizer.json", '{"a": ' * 150 + "1" + "}" * 150, "nested more than 100 deep"),
        ("tokenizer_config.json", '{"model_max_length": NaN}', "is damaged: Out of range"),
        ("special_tokens_map.json", '{"unk_token": 3}', "must hold a map of special tokens"),
        ("added_tokens.json", '{"a": "b"}', "must hold a vocabulary: it must give each token a number"),
        ("vocab.txt", b"\xff[UNK]\n", "is damaged: 'utf-8' codec"),
        ("spiece.model", GOOD["spiece.model"][:-1], "must hold a model of sentencepiece"),
        ("modules.json", '{"a": 1}', "must be a list of modules"),
        ("modules.json", '[{"type": "sentence_transformers.models.Pooling", "path": "../.."}]', "list of modules"),
    ],
)
def test_a_damaged_file_is_named(name, content, message, folder):
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    refused(folder, rf"{name}.*{message}")


# --- what is no file, or too much -------------------------------------------------------------------------------------


def to_pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def to_device(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("spoil", [to_pipe, to_device])
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "vocab.txt"])
def test_only_files_are_opened(name, spoil, folder, capsys):
    spoil(folder / name)
    kind = "a pipe" if spoil is to_pipe else "a device"
    refused(folder, rf"{name} is {kind}; give a regular file$")
    assert f"{name} is {kind}; give a regular file" in fine_tuning(folder, capsys)
    if name == "tokenizer.json":
        with pytest.raises(DataError, match=f"is {kind}"):
            load_tokenizer(folder)


def test_a_file_has_a_largest_size(tmp_path):
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate(LARGEST + 1)  # takes no room
    with refusing(CheckpointError, "file-too-large", "134,217,728"):
        read_json(tmp_path / "large.json")
    assert read_bytes(Path("/proc/self/stat")), "a file that does not tell its size"


def test_a_link_to_itself_is_damaged(tmp_path):
    (tmp_path / "config.json").symlink_to(tmp_path / "config.json")
    with refusing(CheckpointError, "damaged-file", "config.json"):
        read_json(tmp_path / "config.json")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("deep", ["[" * 5000 + "]" * 5000, '{"a": ' * 400 + "1" + "}" * 400])
def test_deep_json_is_one_line(name, deep, folder, capsys):
    (folder / name).write_text(deep)
    assert f"{name} is damaged: " in fine_tuning(folder, capsys)
    with pytest.raises(CheckpointError, match=rf"{name} is damaged: "):
        check_model_folder(folder)


# --- weights and fields that no model has -----------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["embeddings.word_embeddings.weight", "pooler.dense.bias"])
def test_weights_that_are_not_finite_are_not_imported(name, value, folder):
    change_tensors(folder, lambda tensors: tensors[name].view(-1)[3:4].fill_(value))
    refused(folder, rf"are not finite \(NaN or infinity\): {name}$")


def test_complex_weights_are_refused(folder, capsys):
    """transformers would drop their imaginary part."""
    name = "embeddings.word_embeddings.weight"
    change_tensors(folder, lambda tensors: tensors.update({name: tensors[name] + 3j}))
    assert f"has complex weights ({name}), which no Asterism model supports" in fine_tuning(folder, capsys)
    refused(folder, "of a dtype that is not imported")


def test_weights_of_another_library_are_no_safetensors(folder, capsys):
    (folder / "model.safetensors").write_bytes(b"\x80\x04" * 40)
    assert "model.safetensors is damaged: " in fine_tuning(folder, capsys)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": ["bert"]}, r"is of model_type \['bert'\]; imported are"),
        ({"model_type": {"a": 1}}, r"is of model_type \{'a': 1\}; imported are"),
        ({"num_labels": 10**9}, r"has num_labels 1,000,000,000 in its config\.json, more than its weights can have$"),
        (
            {"vocab_size": 10**30},
            r"config\.json is damaged: vocab_size must be below 2\^40, got 1000000000000000000000",
        ),
        ({"max_position_embeddings": 2**63}, r"is damaged: max_position_embeddings must be below 2\^40"),
        ({"dtype": [[1]]}, r"config\.json is damaged: "),
        ({"num_hidden_layers": 10**7}, r"has num_hidden_layers 10,000,000 in its config\.json, more than its"),
    ],
)
def test_fields_that_no_checkpoint_has(fields, message, folder):
    edit(folder, **fields)
    refused(folder, message)


def test_a_list_for_the_kind_of_model_is_one_line(folder, capsys):
    edit(folder, model_type=["bert"])
    assert fine_tuning(folder, capsys).startswith("asterism: ")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_position_embeddings": "x"}, "max_position_embeddings must be an integer of at least 1, got 'x'"),
        ({"type_vocab_size": [[1]]}, "type_vocab_size must be an integer of at least 0, got [[1]]"),
    ],
)
def test_fields_of_ours_that_no_model_has(fields, message, folder, capsys, tmp_path):
    import_checkpoint(folder, tmp_path / "ours")
    edit(tmp_path / "ours", **fields)
    assert message in fine_tuning(tmp_path / "ours", capsys)


def test_no_heads_are_one_line(folder, capsys):
    edit(folder, num_attention_heads=0)
    assert "cannot be read for this task" in fine_tuning(folder, capsys)


def test_half_of_a_surrogate_pair_is_no_label(folder, capsys):
    err = fine_tuning(folder, capsys, label="\ud800")
    assert r"field 'label' has \ud800 at character 0, half of a surrogate pair without the other" in err


# --- SentenceTransformers ---------------------------------------------------------------------------------------------

KINDS = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
POOLING = {"word_embedding_dimension": 8, "pooling_mode_mean_tokens": True}


@pytest.fixture
def sentences(folder: Path) -> Callable[[dict[str, str]], Path]:
    """The folder as SentenceTransformers has it, with these modules."""

    def save(kinds: dict[str, str]) -> Path:
        modules = [
            {"idx": place, "name": str(place), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for place, (path, kind) in enumerate(kinds.items())
        ]
        (folder / "modules.json").write_text(json.dumps(modules))
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(POOLING))
        (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 12, "do_lower_case": false}')
        (folder / "config_sentence_transformers.json").write_text('{"__version__": {"pytorch": "1.8.1"}}')
        return folder

    return save


@pytest.mark.parametrize("length", [None, 64])
def test_pooling_and_normalisation_come_along(length, sentences, tmp_path):
    source, output = sentences(KINDS), tmp_path / "output"
    report = import_checkpoint(source, output, length=length)
    assert report.notes[-1] == "SentenceTransformers reads it as before: Transformer, Pooling, Normalize (modules.json)"
    for name in ("modules.json", "1_Pooling/config.json", "config_sentence_transformers.json"):
        assert json.loads((output / name).read_text()) == json.loads((source / name).read_text())
    settings = json.loads((output / "sentence_bert_config.json").read_text())
    assert settings == {"max_seq_length": length or 12, "do_lower_case": False}


def test_modules_with_weights_of_their_own_are_named(sentences, tmp_path):
    report = import_checkpoint(sentences(KINDS | {"3_Dense": "Dense"}), tmp_path / "output")
    assert report.notes[-1] == (
        "modules.json of SentenceTransformers names 'sentence_transformers.models.Dense', which is not imported: set"
        " pooling anew"
    )
    assert not (tmp_path / "output" / "modules.json").exists()


def test_a_private_file_as_pooling_is_not_published(sentences, tmp_path):
    folder = sentences(KINDS)
    (tmp_path / "private").write_text(json.dumps(KEYS))
    (folder / "1_Pooling" / "config.json").unlink()
    (folder / "1_Pooling" / "config.json").symlink_to(tmp_path / "private")
    refused(folder, "it has none of the fields embedding_dimension, word_embedding_dimension$")


def test_sentences_have_the_vectors_that_they_had(sentences, tmp_path):
    library = pytest.importorskip("sentence_transformers")
    source = sentences(KINDS)
    import_checkpoint(source, tmp_path / "output")
    theirs, ours = (library.SentenceTransformer(str(where)) for where in (source, tmp_path / "output"))
    texts = ["near and far", "far"]
    expected, seen = (torch.tensor(model.encode(texts)) for model in (theirs, ours))
    assert (seen.norm(dim=1) - 1).abs().max() < 1e-6
    assert (seen - expected).abs().max() < 1e-5
