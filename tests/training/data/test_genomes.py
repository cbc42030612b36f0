"""Sequences: whatever file they come from, the letters are the same, and pyfaidx reads the same ones."""

import gzip
import os
import zlib

import numpy as np
import pyfaidx
import pytest
from genome_files import COMPRESSIONS, fasta, fastq, genbank, ragged, random_genome, write
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refusing

from asterism import files
from asterism.errors import DataError
from asterism.training.data.genomes import index, unpacking
from asterism.training.data.genomes.letters import indices, reverse_complement
from asterism.training.data.genomes.sequences import SequenceFile, open_sequences


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """What is kept of files is kept where nobody else looks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASTERISM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


names = st.lists(st.text("abcXYZ019.:|_-", min_size=1, max_size=9), min_size=1, max_size=4, unique=True)


@settings(max_examples=12)
@given(st.data())
def test_a_genome_reads_the_same_from_every_file(tmp_path_factory, data):
    """Line widths, ends of lines, case and compression change nothing; any stretch is found."""
    folder = tmp_path_factory.mktemp("genome")
    letters = st.text("ACGTNacgtnRykU", min_size=1, max_size=300)
    genome = {name: data.draw(letters) for name in data.draw(names)}
    table = str.maketrans("acgtnRykUu", "ACGTNNNNTT")
    want = {name: text.translate(table) for name, text in genome.items()}
    width, end = data.draw(st.integers(1, 80)), data.draw(st.sampled_from(["\n", "\r\n"]))
    texts = {
        "regular.fa": fasta(genome, width, end, data.draw(st.booleans())),
        "ragged.fa": ragged(genome),
        "reads.fq": fastq(genome),
        "flat.gb": genbank(genome),
    }
    suffix = data.draw(st.sampled_from(list(COMPRESSIONS)))
    for name, text in texts.items():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(files, "flush", lambda path: None)  # waiting for the disk would take most of the time
            for name in ("BLOCK", "PIECE"):
                patch.setattr(unpacking, name, data.draw(st.sampled_from([1, 2, 13, getattr(unpacking, name)])))
            sequences = open_sequences(write(folder, name + suffix, text))
        assert sequences.names == tuple(want)
        for key, letters in want.items():
            start = data.draw(st.integers(0, len(letters)))
            stop = data.draw(st.integers(start, len(letters)))
            assert sequences.length(key) == len(letters)
            assert sequences.read(key, start, stop).tobytes().decode() == letters[start:stop]
            assert sequences.read(key, 0, len(letters)).tobytes().decode() == letters


def test_pyfaidx_reads_the_same_of_the_file_itself(tmp_path):
    genome = random_genome(1, {"chr1": 5000, "chr2": 61, "chr3": 60}, "ACGTNacgt")
    path = write(tmp_path, "genome.fa", fasta(genome, end="\r\n"))
    ours = open_sequences(path)
    with pyfaidx.Fasta(str(path), sequence_always_upper=True) as theirs:
        assert ours.names == tuple(theirs.keys())
        for start, stop in np.random.default_rng(0).integers(0, 5000, (50, 2)).tolist():
            start, stop = min(start, stop), max(start, stop)
            assert ours.read("chr1", start, stop).tobytes().decode() == str(theirs["chr1"][start:stop])
    entries = {line.split("\t")[0]: line for line in path.with_name("genome.fa.fai").read_text().splitlines()}
    kept = ours.files[0]._indexed
    assert kept.fasta == path  # it is read where it lies
    assert {line.split("\t")[0]: line for line in kept.index.read_text().splitlines()} == entries


@given(st.data())
def test_layouts_are_those_that_allow_arithmetic(data):
    """Whether a file is read where it lies: exactly if all lines but the last are equally long and end alike."""
    rows = data.draw(st.lists(st.text("A", max_size=3), min_size=1, max_size=5))
    ends = data.draw(st.lists(st.sampled_from(["\n", "\r\n"]), min_size=len(rows), max_size=len(rows)))
    text = "".join(row + end for row, end in zip(rows, ends, strict=True))
    text = text.removesuffix(ends[-1]) if data.draw(st.booleans()) else text
    lines = text.splitlines(keepends=True)
    widths, bare = [len(line) for line in lines], [len(line.rstrip("\r\n")) for line in lines]
    used = {line[len(line.rstrip("\r\n")) :] for line in lines} - {""}
    regular = len(used) <= 1 and len(set(widths[:-1])) <= 1 and bool(lines) and bare[0] > 0
    regular = regular and bare[-1] <= bare[0]
    for cut in range(len(text) + 1):
        layout = index.FastaLayout(0)
        for part in (text[:cut], text[cut:]) if not text[:cut].endswith("\r") else (text,):
            if part:
                layout.add(part.encode())
        layout.finish()
        assert not layout.is_regular or layout.length == sum(bare)
        # One that is regular may be taken for one that is not, where an empty line ends it: it is unpacked instead.
        assert layout.is_regular <= regular
        if bare and bare[-1] > 0:
            assert layout.is_regular == regular


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_blocks_may_end_anywhere(tmp_path, monkeypatch, size):
    """Within a name, between CR and LF, before a '>': what a block holds changes nothing."""
    genome = random_genome(11, {"one": 50, "two": 21}, "ACGTN")
    for name in ("BLOCK", "PIECE"):
        monkeypatch.setattr(unpacking, name, size)
    for name in ("a.fa", "a.fa.gz"):
        sequences = open_sequences(write(tmp_path, name, fasta(genome, 10, "\r\n")))
        read = {name: sequences.read(name, 0, sequences.length(name)).tobytes().decode() for name in sequences.names}
        assert read == genome
    assert sequences.files[0].contents == open_sequences(tmp_path / "a.fa").files[0].contents


def test_both_strands():
    letters = np.frombuffer(b"ACGTNA", dtype=np.uint8)
    assert reverse_complement(letters).tobytes() == b"TNACGT"
    assert np.array_equal(reverse_complement(reverse_complement(letters[None])), letters[None])
    assert indices(letters).tolist() == [0, 1, 2, 3, 4, 0]


def test_soft_masked_letters_may_become_unknown(tmp_path):
    path = write(tmp_path, "one.fa", ">a\nACgtNu\n")
    assert open_sequences(path).read("a", 0, 6).tobytes() == b"ACGTNT"
    assert open_sequences(path, masked="N").read("a", 0, 6).tobytes() == b"ACNNNN"


def test_letters_that_become_others_are_said(tmp_path):
    assert open_sequences(write(tmp_path, "plain.fa", ">a\nacgtnACGTN\n")).notes == []
    path = write(tmp_path, "iupac.fa", ">a\nRyACGU\n")
    assert open_sequences(path).notes == [
        f"{path}: 2 letters stand for several bases (IUPAC) and become N",
        f"{path}: 1 letters are U and become T",
    ]


def test_blocks_are_counted_and_hashed_alike_from_every_file(tmp_path, monkeypatch):
    monkeypatch.setattr(index, "GRID", 64)
    genome = random_genome(2, {"one": 200, "two": 64, "three": 5}, "ACGTN")
    files = [
        SequenceFile(write(tmp_path, name, text))
        for name, text in {
            "a.fa": fasta(genome, 7),
            "b.fa.gz": fasta(genome, 70, "\r\n"),
            "c.fa": ragged(genome),
            "d.fq": fastq(genome),
        }.items()
    ]
    seen = files[0].contents
    blocks = [letters[at : at + 64] for letters in genome.values() for at in range(0, len(letters), 64)]
    assert seen.unknown == [block.count("N") for block in blocks]
    assert len(set(seen.buckets)) > 2 and all(0 <= bucket < 100 for bucket in seen.buckets)
    assert all(file.contents == seen for file in files)
    lower = SequenceFile(write(tmp_path, "e.fa", fasta({name: text.lower() for name, text in genome.items()})))
    assert lower.contents.buckets == seen.buckets  # a masked genome is split as it is without masks
    assert lower.contents.sha256 != seen.sha256


def test_what_was_read_once_is_kept_and_belongs_to_one_state_of_the_file(tmp_path, monkeypatch):
    path = write(tmp_path, "one.fa.gz", ">a\nACGT\n")
    first = SequenceFile(path)
    with monkeypatch.context() as patch:
        patch.setattr(index, "_make", None)  # nothing is read again
        assert SequenceFile(path).read("a", 0, 4).tobytes() == b"ACGT"
    path.write_bytes(COMPRESSIONS[".gz"](b">a\nTTTT\n"))
    os.utime(path, ns=(1, 1))
    assert SequenceFile(path).read("a", 0, 4).tobytes() == b"TTTT"
    assert first.read("a", 0, 4).tobytes() == b"ACGT"  # an open file is read on as it was
    assert not first._indexed.index.exists()  # and what was kept of it is gone


def test_a_folder_is_one_set_of_sequences(tmp_path):
    write(tmp_path, "chr1.fa", ">chr1\nACGT\n")
    write(tmp_path, "chr2.fa.gz", ">chr2\nGGG\n")
    write(tmp_path, "README.txt", "nothing to see")
    sequences = open_sequences(tmp_path)
    assert sequences.names == ("chr1", "chr2") and "chr2" in sequences and "chr3" not in sequences
    assert sequences.read("chr2", 1, 3).tobytes() == b"GG"
    with refusing(DataError, "unknown-sequence", "'chr11'", " Did you mean 'chr1'?"):
        sequences.read("chr11", 0, 1)
    write(tmp_path, "again.fa", ">chr1\nA\n")
    with pytest.raises(DataError, match=r"chr1\.fa: the name 'chr1' is also one of .*again\.fa"):
        open_sequences(tmp_path)


def test_stretches_beyond_the_ends_are_refused_or_unknown(tmp_path):
    sequences = open_sequences(write(tmp_path, "one.fa", ">a\nACGTA\n"))
    for start, stop in ((-1, 3), (0, 6), (4, 3), (6, 6)):
        with refusing(DataError, "interval-outside", "5"):
            sequences.read("a", start, stop)
    assert sequences.read("a", 5, 5).size == 0
    assert sequences.read_padded("a", -2, 3).tobytes() == b"NNACG"
    assert sequences.read_padded("a", 3, 7).tobytes() == b"TANN"
    assert sequences.read_padded("a", 3, 7, "-").tobytes() == b"NNTA"
    assert sequences.read_padded("a", -4, -2).tobytes() == sequences.read_padded("a", 9, 11).tobytes() == b"NN"


def test_a_forked_process_reads_on_its_own(tmp_path):
    """Two processes that share one open file move each other's place in it; reading asks for no place but its own."""
    genome = random_genome(3, {"a": 20_000})
    sequences = open_sequences(write(tmp_path, "one.fa", fasta(genome)))
    shared = os.dup(sequences.files[0]._file.fileno())  # what a forked process has
    for place in (0, 7, 30_000):
        os.lseek(shared, place, os.SEEK_SET)
        assert sequences.read("a", 5, 9).tobytes().decode() == genome["a"][5:9]
        assert os.lseek(shared, 0, os.SEEK_CUR) == place
    os.close(shared)


def test_short_members_of_gzip_cost_their_number_and_not_more(tmp_path, monkeypatch):
    """What stands behind the end of a member is copied, so not all that is there may be given at once."""
    path, given = tmp_path / "many.fa.gz", []

    class Counting:
        def __init__(self):
            self.inner = zlib.decompressobj(wbits=31)

        def decompress(self, data, most):
            given.append(len(data))
            return self.inner.decompress(data, most)

        def __getattr__(self, name):
            return getattr(self.inner, name)

    monkeypatch.setattr(unpacking, "_unpacker", lambda magic: Counting())
    path.write_bytes(gzip.compress(b">a\nAC\n") + gzip.compress(b"") * 20_000 + gzip.compress(b"GT\n"))
    assert b"".join(unpacking.blocks(path)) == b">a\nAC\nGT\n"
    assert len(given) < 21_000 and max(given) <= unpacking.PIECE < path.stat().st_size // 10
