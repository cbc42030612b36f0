"""Corpora larger than memory: documents that stay where they are, and tokens that go to a file."""

import io
import tarfile
from contextlib import suppress
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refusing

from asterism.errors import DataError
from asterism.training.data.corpora import bytes as corpus
from asterism.training.data.corpora import long_array as appended
from asterism.training.data.corpora import packing
from asterism.training.data.corpora.bytes import load_corpus, load_documents
from asterism.training.data.corpora.long_array import Appended
from asterism.training.data.corpora.splits import SPLITS
from asterism.training.data.corpora.stored import StoredValues, documents_in
from asterism.training.data.corpora.tokenization import make_tokenizer
from asterism.training.data.corpora.windows import WindowCorpus


def _write(folder, contents):
    for number, content in enumerate(contents):
        place = folder / f"{number % 3}"
        place.mkdir(exist_ok=True)
        (place / f"{number:03}.txt").write_bytes(content)


def _pack(path, members, mode="w"):
    with tarfile.open(path, mode) as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


@pytest.fixture
def texts():
    random = np.random.Generator(np.random.Philox(7))
    return [bytes(random.integers(97, 123, size).tolist()) for size in random.integers(0, 400, 150).tolist()]


@pytest.fixture
def on_disk(monkeypatch):
    monkeypatch.setattr(corpus, "IN_MEMORY", 100)


def test_a_folder_on_disk_is_the_folder_in_memory(tmp_path, texts, monkeypatch):
    _write(tmp_path, texts)
    held = load_corpus(tmp_path)
    monkeypatch.setattr(corpus, "IN_MEMORY", 100)
    stored = load_corpus(tmp_path)
    assert stored.sha256 == held.sha256
    assert stored.record() == held.record()
    for split in SPLITS:
        assert isinstance(stored.split(split), StoredValues) and isinstance(held.split(split), np.ndarray)
        assert stored.split(split)[:].tobytes() == held.split(split).tobytes()
        assert list(stored.documents(split)) == list(held.documents(split))
    for step in range(5):
        assert WindowCorpus(stored, 64, 3).draw(step, 8).equal(WindowCorpus(held, 64, 3).draw(step, 8))


@given(st.lists(st.binary(max_size=20), max_size=8), st.integers(0, 60), st.integers(0, 60))
@settings(max_examples=60, deadline=None)
def test_slices_are_those_of_the_joined_bytes(tmp_path_factory, contents, start, stop):
    folder = tmp_path_factory.mktemp("files")
    _write(folder, contents)
    values = StoredValues(list(documents_in(sorted(folder.rglob("*.txt")))))
    joined = b"".join(path.read_bytes() + b"\0" for path in sorted(folder.rglob("*.txt")))
    assert values[start:stop].tobytes() == joined[start:stop]
    assert b"".join(values.blocks()) == joined and len(values) == len(joined)


@pytest.mark.parametrize("tar_format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_members_of_archives_are_documents(tmp_path, texts, on_disk, tar_format):
    plain, shards = tmp_path / "plain", tmp_path / "shards"
    plain.mkdir(), shards.mkdir()
    for shard in range(3):
        own = [
            (f"{'folder' * 12}/{'name' * 20}{number}.txt", text)
            for number, text in enumerate(texts)
            if number % 3 == shard
        ]
        with tarfile.open(shards / f"{shard}.tar", "w", format=tar_format) as archive:
            archive.addfile(tarfile.TarInfo("folder/.hidden"), io.BytesIO())
            for name, text in own:
                member = tarfile.TarInfo(name)
                member.size = len(text)
                archive.addfile(member, io.BytesIO(text))
            link = tarfile.TarInfo("link")
            link.type, link.linkname = tarfile.SYMTYPE, "elsewhere"
            archive.addfile(link)
        (plain / f"{shard}").mkdir()
        for number, (_, text) in enumerate(own):
            (plain / f"{shard}" / f"{number:03}").write_bytes(text)
    assert load_corpus(shards).sha256 == load_corpus(plain).sha256
    assert load_documents(shards).sha256 == load_corpus(plain).sha256


def test_one_archive_is_a_corpus(tmp_path, texts):
    _pack(tmp_path / "shard.tar", [(f"{number}", text) for number, text in enumerate(texts)])
    assert sum(map(load_corpus(tmp_path / "shard.tar").length, SPLITS)) == sum(len(text) + 1 for text in texts)
    with refusing(DataError, "records-single-file"):
        load_corpus(tmp_path / "shard.tar", record_length=4)


def test_archives_that_cannot_be_read_get_one_line(tmp_path, texts):
    members = [(f"{number}", text) for number, text in enumerate(texts)]
    for name, mode in {"a.tar.gz": "w:gz", "gzip.tar": "w:gz", "bzip2.tar": "w:bz2", "xz.tar": "w:xz"}.items():
        _pack(tmp_path / name, members, mode)
        with pytest.raises(DataError, match=rf"{name} is a compressed archive.*unpack it to a .tar file") as caught:
            load_corpus(tmp_path / name)
        assert "\n" not in str(caught.value)
    _pack(tmp_path / "whole.tar", [("one", b"x" * 5000), ("two", b"y" * 5000)])
    content = (tmp_path / "whole.tar").read_bytes()
    for name, damaged in {
        "text": b"no archive" * 200,
        "empty": b"",
        "cut": content[:3000],
        "cut in a header": content[:6700],
        "checksum": content[:148] + b"99999999" + content[156:],
    }.items():
        path = tmp_path / f"{name}.tar"
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=f"{name}.tar ") as caught:
            load_corpus(path)
        assert "\n" not in str(caught.value) and caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("type_", "line"),
    [
        (tarfile.REGTYPE, r"big should have 1,125,899,906,842,624 bytes, and the archive has 2,560$"),
        (tarfile.GNUTYPE_LONGNAME, "a name is longer than memory"),
        (tarfile.XHDTYPE, "a name is longer than memory"),
    ],
)
def test_a_member_that_claims_more_than_there_is_gets_one_line(tmp_path, type_, line):
    member = tarfile.TarInfo("big")
    member.type, member.size = type_, 2**50
    (tmp_path / "a.tar").write_bytes(member.tobuf(tarfile.GNU_FORMAT) + b"x" * 2048)
    with pytest.raises(DataError, match=f"a.tar is not a tar archive, or damaged: {line}"):
        load_corpus(tmp_path / "a.tar")


@pytest.mark.parametrize("type_", [tarfile.REGTYPE, b"Z"])
@pytest.mark.parametrize("size", [-1, -512])
def test_a_member_of_negative_size_ends_the_archive(tmp_path, size, type_):
    first = tarfile.TarInfo("first")
    second = tarfile.TarInfo("second")
    second.type, second.size = type_, size
    with tarfile.open(tmp_path / "turns.tar", "w", format=tarfile.GNU_FORMAT) as archive:
        archive.addfile(first)
        archive.addfile(second)
    found = []
    with suppress(DataError):  # newer Pythons end such an archive themselves, silently
        found.extend(islice(documents_in([tmp_path / "turns.tar"]), 10))
    assert len(found) <= 1


def test_a_file_that_changes_is_refused(tmp_path, texts, on_disk):
    _write(tmp_path, texts)
    found = load_corpus(tmp_path)
    document = found.train.documents[3]
    document.source.path.write_bytes(b"z" * document.size)
    with pytest.raises(
        DataError, match=f"{document.source.path.name} has changed since it was first read; start again"
    ):
        found.train[:]


def test_tokens_beyond_the_limit_lie_in_a_file(texts, monkeypatch):
    documents = [text.decode() for text in texts]
    tokenizer = make_tokenizer("bytes", documents, 64)
    held = packing.TokenStream.made(documents, tokenizer)
    monkeypatch.setattr(appended, "IN_MEMORY", 1000)
    stored = packing.TokenStream.made(documents, tokenizer)
    assert isinstance(stored.tokens.base, np.memmap) and held.tokens.base is None
    np.testing.assert_array_equal(stored.tokens, held.tokens)
    np.testing.assert_array_equal(stored.starts, held.starts)
    monkeypatch.setattr(packing, "_COUNTED", 100)
    expected = np.bincount(held.tokens, minlength=len(tokenizer))
    np.testing.assert_array_equal(stored.counts(len(tokenizer)), expected)


def test_a_full_disk_is_one_line(monkeypatch):
    monkeypatch.setattr(appended, "IN_MEMORY", 10)
    monkeypatch.setattr(appended.tempfile, "gettempdir", lambda: "/proc")
    with pytest.raises(DataError, match="are written to /proc, which failed: .*; set TMPDIR"):
        Appended().append(np.arange(10))
