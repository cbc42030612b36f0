"""Folders of files in splits: named ones as they are, the rest by hash, classes by the folders that hold the files."""

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
from refusals import refusing

from asterism.errors import DataError
from asterism.training.data.corpora.bytes import load_corpus
from asterism.training.data.corpora.folders import SplitFolder, list_folder, regular, split_folder, split_of
from asterism.training.data.corpora.splits import SPLITS


def digest(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest()


def make(root: Path, names: list[str]) -> SplitFolder:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    return split_folder(root, list_folder(root), digest)


def sizes(found: SplitFolder) -> list[int]:
    return [len(found.splits[split].names) for split in SPLITS]


def test_named_folders_are_splits_and_folders_in_them_classes(tmp_path):
    names = [f"{split}/{kind}/{n}.x" for split in ("train", "val", "TEST") for kind in ("dog", "cat") for n in range(3)]
    found = make(tmp_path, names)
    assert sizes(found) == [6, 6, 6] and found.classes == ("cat", "dog")
    validation = found.splits["validation"]
    assert validation.names == [f"val/{kind}/{n}.x" for kind in ("cat", "dog") for n in range(3)]
    assert validation.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert validation.digests[4].tobytes() == hashlib.sha256(b"val/dog/1.x").digest()


def test_what_is_missing_is_taken_out_of_train_by_hash(tmp_path):
    found = make(tmp_path, [f"train/{n}" for n in range(400)] + [f"test/{n}" for n in range(3)])
    train, validation, test = sizes(found)
    assert test == 3 and train + validation == 400 and 8 < validation < 40
    assert found.classes == () and found.splits["train"].labels is None
    for name in found.splits["validation"].names:
        assert int.from_bytes(digest(tmp_path / name)[:8], "big") % 100 >= 95


def test_without_named_folders_files_are_split_as_text_is(tmp_path):
    found = make(tmp_path, [f"{n % 3}/{n}" for n in range(300)])
    text = load_corpus(tmp_path)
    for split in SPLITS:
        content = b"".join((tmp_path / name).read_bytes() + b"\0" for name in found.splits[split].names)
        assert content == text.split(split).tobytes()
    assert found.classes == ("0", "1", "2")
    assert found.splits["train"].labels.tolist() == [int(name[0]) for name in found.splits["train"].names]


def test_the_identity_is_of_contents_classes_and_settings(tmp_path):
    names = [f"train/{kind}/{n}" for kind in "ab" for n in range(30)]
    found = make(tmp_path / "one", names)
    assert make(tmp_path / "two", names).identity("s") == found.identity("s")
    assert found.identity("t") != found.identity("s")
    (tmp_path / "two" / "train/a/7").write_text("other")
    again = split_folder(tmp_path / "two", list_folder(tmp_path / "two"), digest)
    assert again.identity("s") != found.identity("s")
    (tmp_path / "one/train/b").rename(tmp_path / "one/train/c")
    again = split_folder(tmp_path / "one", list_folder(tmp_path / "one"), digest)
    assert again.classes == ("a", "c") and again.identity("s") != found.identity("s")


def test_hidden_files_are_passed_over(tmp_path):
    make(tmp_path, [".hidden", ".git/x", "a/.b", "a/c"])
    assert list_folder(tmp_path) == ["a/c"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["test/a"], "has a folder test, but no folder train"),
        (["val/a", "validation/b", "train/c"], "the folders val and validation are both the validation split"),
        (["train/a", "extra/b"], "extra/b is next to the folders train: move it"),
        (["train/a", "b"], "/b is next to the folders train: move it"),
    ],
)
def test_refusals(tmp_path, names, message):
    with pytest.raises(DataError, match=message) as caught:
        make(tmp_path, names)
    assert "\n" not in str(caught.value)


def test_what_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with refusing(DataError, "bad-entry", "pipe", "neither a file nor a folder"):
        split_folder(tmp_path, list_folder(tmp_path), digest)
    with refusing(DataError, "unreadable-file", "gone", "No such file"):
        regular(tmp_path / "gone")
    with pytest.raises(DataError, match="there is no folder .*nowhere"):
        list_folder(tmp_path / "nowhere")


def test_the_shares_of_the_hash():
    values = np.arange(100)
    for missing, expected in ((set(), 100), ({"test"}, 95), ({"validation"}, 95), ({"validation", "test"}, 90)):
        found = [split_of(int(value).to_bytes(8, "big") + bytes(24), missing) for value in values]
        assert found.count("train") == expected
        assert all(found.count(split) == 5 for split in missing)
