"""Files of genomes and annotation that are not what they should be: one line with the file and the place.

Whatever is wrong, nothing is kept of it, and no more memory is taken than a few blocks.
"""

import bz2
import gzip
import lzma
import os
import re
import tracemalloc
import zlib
from pathlib import Path

import pytest
from genome_files import bgzip, fasta, random_genome
from refusals import refusing

from asterism import files
from asterism.cli.main import main
from asterism.errors import DataError
from asterism.training.data.genomes import index, unpacking
from asterism.training.data.genomes.annotation import read_annotation, read_bed
from asterism.training.data.genomes.sequences import open_sequences

GENOME = fasta(random_genome(1, {"a": 4000, "b": 300})).encode()
GZIPPED, XZ = gzip.compress(GENOME), lzma.compress(GENOME)
READ = b"@r\nACGT\n+\nIIII\n"


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


def hungry() -> bytes:
    """xz that asks for more memory than is allowed, for a window of a gigabyte."""
    small = bytearray(lzma.compress(b">a\nACGT\n"))
    at = small.index(b"\x21\x01", 12)  # the filter of LZMA2 and the size of its properties: the size of the window
    small[at + 2] = 37
    header = bytes(small[12 : 12 + 4 * (small[12] + 1) - 4])
    small[12 + len(header) : 16 + len(header)] = zlib.crc32(header).to_bytes(4, "little")
    return bytes(small)


def locus(length: int = 8, unit: str = "bp") -> bytes:
    return f"LOCUS       R {length} {unit} DNA linear\nFEATURES             Location/Qualifiers\n".encode()


ORIGIN = b"ORIGIN\n        1 acgtacgt\n//\n"


def located(location: str) -> bytes:
    return locus() + f"     gene            {location}\n".encode() + ORIGIN


SEQUENCES = {
    "empty.fa": (b"", "empty.fa is empty"),
    "lines.fa": (b"\n\n", "line 1: a FASTA file begins with '>'"),
    "bare.fa": (b"ACGT\n", r"line 1: a FASTA file begins with '>', this one with b'ACGT\\n'"),
    "comment.fa": (b";old\n>a\nACGT\n", "line 1: a FASTA file begins with '>'"),
    "mark.fa": (b"\xef\xbb\xbf>a\nACGT\n", "line 1: a FASTA file begins with '>'"),
    "utf16.fa": (">a\nACGT\n".encode("utf-16"), "line 1: a FASTA file begins with '>'"),
    "garbage.fa": (bytes(range(256)) * 20, "line 1: a FASTA file begins with '>'"),
    "picture.fa": (b"\x89PNG\r\n\x1a\n" + bytes(50), "line 1: a FASTA file begins with '>'"),
    "name.fa": (b">a\n", "line 1: the sequence 'a' has no letters"),
    "cut.fa": (b">a\nACGT\n>b", "line 3: the file ends after a name"),
    "old-mac.fa": (b">a\rACGT\r", "line 1: the file ends after a name"),
    "hollow.fa": (b">a\n\n>b\nACGT\n", "line 1: the sequence 'a' has no letters"),
    "nameless.fa": (b">a\nACGT\n>\nACGT\n", "line 3: the sequence has no name after '>'"),
    "spaced.fa": (b"> a\nACGT\n", "line 1: the sequence has no name after '>'"),
    "twice.fa": (b">a x\nACGT\n>b\nA\n>a y\nACGT\n", "line 5: the name 'a' was given before, in line 1"),
    "accent.fa": (">chr\u00e9\nACGT\n".encode(), "line 1: the name b'chr.*' must be printable ASCII"),
    "latin.fa": (b">chr\xe9\nACGT\n", "line 1: the name b'chr.*' must be printable ASCII"),
    "control.fa": (b">a\x01b\nACGT\n", "line 1: the name .* must be printable ASCII"),
    "wide.fa": (b">a" + b"x" * 70_000 + b"\nACGT\n", "line 1: the name's line has more than 65,536 bytes"),
    "inside.fa": (b">a\nACGT\nAC>b\nACGT\n", "line 3, column 3: '>' stands inside a line"),
    "nul.fa": (b">a\nACGT\nAC\0GT\n", r"line 3, column 3: '\\x00' is not a letter of DNA"),
    "tab.fa": (b">a\nAC\tGT\n", r"line 2, column 3: '\\t' is not a letter of DNA"),
    "space.fa": (b">a\nACGT ACGT\n", "line 2, column 5: ' ' is not a letter of DNA"),
    "gap.fa": (b">a\nACGT\n\nAC-GT\n", "line 4, column 3: '-' is a gap of an alignment"),
    "stop.fa": (b">a\nACGT*\n", r"line 2, column 5: '\*' is a gap"),
    "protein.fa": (b">a\nMKVLAT\n", "line 2, column 4: 'L' stands for an amino acid"),
    "lower-protein.fa": (b">a\nmkvat\nef", "line 3, column 1: 'e' stands for an amino acid"),
    "number.fa": (b">a\n1 ACGT\n", "line 2, column 1: '1' is not a letter of DNA"),
    "unsure.fa": (b">a\nACG?\n", r"line 2, column 4: '\?' is not a letter of DNA"),
    "carriage.fa": (b">a\nACGT\rACGT\n", r"line 2, column 5: '\\r' is not a letter of DNA"),
    "eight-bit.fa": (b">a\nAC\xe9T\n", "line 2, column 3: '\u00e9' is not a letter of DNA"),
    "late.fa": (b">a\n" + b"ACGT" * 500_000 + b"!\n", "line 2, column 2,000,001: '!' is not a letter of DNA"),
    "cut.fa.gz": (GZIPPED[:-500], "breaks off at byte"),
    "head.fa.gz": (GZIPPED[:6], "breaks off at byte 6"),
    "tail.fa.gz": (GZIPPED[:-1], "breaks off at byte"),
    "sum.fa.gz": (flipped(GZIPPED, len(GZIPPED) - 6), "cannot be unpacked near byte .*incorrect data check"),
    "bits.fa.gz": (flipped(GZIPPED, 300), "cannot be unpacked near byte"),
    "behind.fa.gz": (GZIPPED + b"more", "has bytes after its end, 6d 6f 72 65"),
    "plain.fa.gz": (GENOME, "is not compressed as its name says: it begins with 3e 61"),
    "hollow.fa.gz": (gzip.compress(b""), "is empty"),
    "nested.fa.gz": (gzip.compress(GZIPPED), "line 1: a FASTA file begins with '>'"),
    "protein.fa.gz": (gzip.compress(b">a\nACGT\nMKV*L\n"), "line 3, column 4: "),
    "endless.fa.gz": (None, r"has .* bytes and unpacks to more than 1.*; beyond 16,777,216 bytes the limit is 200"),
    "cut.fa.bgz": (bgzip(GENOME)[:-28], "lacks the block that ends it"),
    "short.fa.bgz": (bgzip(GENOME)[:900], "lacks the block that ends it"),
    "cut.fa.xz": (XZ[:-40], "breaks off at byte"),
    "bits.fa.xz": (flipped(XZ, 200), "cannot be unpacked near byte 0: Corrupt input data"),
    "behind.fa.xz": (XZ + b"more", "has bytes after its end, 6d 6f 72 65"),
    "wrong.fa.xz": (GZIPPED, "is not compressed as its name says: it begins with 1f 8b"),
    "hungry.fa.xz": (hungry(), "cannot be unpacked near byte 0: Memory usage limit"),
    "endless.fa.xz": (None, "unpacks to more than"),
    "genome.zip": (b"PK\x03\x04" + bytes(40), "genome.zip is a zip archive; unpack it"),
    "genome.fa.bz2": (bz2.compress(GENOME), "is compressed by bzip2"),
    "genome.fa.zst": (b"\x28\xb5\x2f\xfd" + bytes(40), "is compressed by zstd"),
    "cut.fq": (READ + READ[:-6], "line 5: the read has 3 of its four lines"),
    "lost.fq": (READ + b"ACGT\n+\nIIII\n", "line 5: a read of FASTQ begins with '@'"),
    "minus.fq": (b"@r\nACGT\n-\nIIII\n", r"line 3: a line '\+' must separate"),
    "short.fq": (READ + b"@s\nACGT\n+\nIII\n", "line 8: 4 letters need 4 qualities, .* there are 3"),
    "quality.fq": (b"@r\nACGT\n+\nII I\n", "line 4: 4 letters need 4 qualities, each from '!' to '~'"),
    "letter.fq": (READ + b"@s\nAC.T\n+\nIIII\n", "line 6, column 3: '.' is a gap"),
    "hollow.fq": (b"@r\n\n+\n\n", "line 1: the sequence 'r' has no letters"),
    "latin.fq": (b"@r\xe9\nACGT\n+\nIIII\n", "line 1: is not UTF-8 text: byte 3"),
    "cut.gb": (locus() + ORIGIN[:-3], "line 4: the file ends within the record 'R'"),
    "protein.gb": (locus(unit="aa") + ORIGIN, "line 1: the record 'R' is a protein"),
    "length.gb": (locus(9) + ORIGIN, "line 5: the record has 8 letters; its LOCUS line has 9"),
    "count.gb": (locus() + ORIGIN.replace(b" 1 ", b" 2 "), "line 4: the line begins with '2', not with its"),
    "letter.gb": (locus() + ORIGIN.replace(b"acgt", b"ac-t"), "line 4: '-' is not a letter of DNA"),
    "absent.gb": (locus() + b"//\n", "line 1: the record has no sequence"),
    "locus.gb": (b"LOCUS       R\n", "line 1: a record of GenBank begins with 'LOCUS NAME LENGTH bp'"),
}

GFF = b"chr1\tme\tgene\t1\t9\t.\t+\t.\tID=x\n"

ANNOTATION = {
    "empty.bed": (b"", "empty.bed is empty"),
    "reversed.bed": (b"a\t1\t2\na\t9\t5\n", "line 2: start 9 is after end 5"),
    "negative.bed": (b"a\t-1\t5\n", "line 1: start -1 is before the first letter, number 0"),
    "two.bed": (b"a\t1\n", "line 1: BED needs columns 3 to 12, seen: 2"),
    "thirteen.bed": (b"\t".join([b"1"] * 13), "line 1: BED needs columns 3 to 12, seen: 13"),
    "uneven.bed": (b"a\t1\t2\tx\na\t1\t2\n", "line 2: BED needs columns 4, as above, seen: 3"),
    "strand.bed": (b"a\t1\t2\tx\t0\tforward\n", r"line 1: strand must be .* got 'forward'"),
    "fraction.bed": (b"a\t1.5\t2\n", "line 1: start must be a whole number, got '1.5'"),
    "nan.bed": (b"a\t1\tNaN\n", "line 1: end must be a whole number, got 'NaN'"),
    "digits.bed": ("a\t\u0661\t2\n".encode(), "line 1: start must be a whole number"),
    "far.bed": (b"a\t1\t" + b"9" * 400, "line 1: end must be at most 1,099,511,627,776, got 99999999999999999999"),
    "unnamed.bed": (b"\t1\t2\n", "line 1: the sequence has no name"),
    "latin.bed": (b"a\t1\t2\tx\na\t1\t2\t\xe9\n", "line 2: is not UTF-8 text: byte 7 of the line"),
    "nul.bed": (b"a\t1\t2\0\n", "line 1: has a NUL byte at 6"),
    "endless.bed": (b"a\t1\t2\n" + b"x" * 3_000_000, "line 2: has more than 1,048,576 bytes"),
    "cut.bed.gz": (gzip.compress(b"a\t1\t2\n" * 9)[:-9], "breaks off at byte"),
    "eight.gff": (GFF.replace(b"\t+", b""), "line 1: GFF needs 9 columns, separated by tabs; seen: 8"),
    "spaces.gff": (GFF.replace(b"\t", b" "), "line 1: GFF needs 9 columns, separated by tabs; seen: 1"),
    "zero.gff": (GFF + GFF.replace(b"\t1\t", b"\t0\t"), "line 2: start 0 is before the first letter"),
    "reversed.gff": (GFF.replace(b"\t9\t", b"\t0\t"), "line 1: start 1 is after end 0"),
    "strand.gff": (GFF.replace(b"+", b"1"), "line 1: strand must be .* got '1'"),
    "phase.gff": (GFF.replace(b"\t.\tID", b"\t3\tID"), "line 1: phase must be 0, 1, 2 or '.', got '3'"),
    "attribute.gff": (GFF.replace(b"ID=x", b'gene_id "x"'), "line 1: the attribute .* is not KEY=VALUE; is this GTF?"),
    "attribute.gtf": (GFF, "line 1: the attributes from 'ID=x' on must be of the form KEY"),
    "open.gtf": (GFF.replace(b"ID=x", b'gene_id "x'), "line 1: the attributes from .* on must be of the form KEY"),
    "columns.tsv": (
        b"name\tbegin\n",
        "line 1: the table has no column for end and sequence; its columns are: name",
    ),
    "ragged.tsv": (b"chr\tstart\tend\na\t1\t2\na\t1\n", "line 3: 3 columns are needed, seen: 2"),
    "reversed.tsv": (b"chr\tstart\tend\tstrand\na\t9\t2\t-\n", "line 2: start 9 is after end 2; on either strand"),
    "strand.tsv": (b"chr\tstart\tend\tstrand\na\t1\t2\tW\n", "line 2: strand must be .* got 'W'"),
    "quote.csv": (b'chr,start,end\n"a,1,2\n', "line 2: unexpected end of data"),
    "nan.csv": (b"chr,start,end\na,nan,2\n", "line 2: start must be a whole number, got 'nan'"),
    "other.gb": (located("J00194.1:1..4"), "line 3: the location 'J00194.1:1..4' cannot be read"),
    "between.gb": (located("3^4"), r"line 3: the location '3\^4' cannot be read"),
    "bracket.gb": (located("join(1..2,3..4"), "line 3: the location .* cannot be read"),
    "deep.gb": (located("join(" * 12 + "1" + ")" * 12), "line 3: the location has more than 8 nested operators"),
    "reversed.gb": (located("7..3"), "line 3: start 7 is after end 3"),
    "nowhere.gb": (locus() + b"     gene\n" + ORIGIN, "line 3: the feature 'gene' has no location"),
    "orphan.gb": (locus() + b"                     /gene=x\n" + ORIGIN, "line 3: a qualifier comes before"),
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("ASTERISM_CACHE", str(folder))
    return folder


def endless(name: str) -> bytes:
    """Twenty million letters in a file of some kilobytes."""
    letters = b">a\n" + b"A" * 20_000_000
    return gzip.compress(letters) if name.endswith(".gz") else lzma.compress(letters, preset=0)


def refuse(path: Path, message: str, read, most: int = 24 << 20) -> None:
    """One line with the file, exit code 3, and no more than `most` bytes of Python's memory."""
    tracemalloc.start()
    try:
        with pytest.raises(DataError) as caught:
            read(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    said = str(caught.value)
    assert re.search(message, said), said
    assert str(path) in said and "\n" not in said and len(said) < 400 + len(str(path))
    assert caught.value.exit_code == 3
    assert peak < most


def left_in(cache):
    """The files of a cache, but for the lock that one process at a time makes an index under."""
    return [path for path in cache.rglob("*") if path.is_file() and path.name != "making.lock"]


@pytest.mark.parametrize("name", SEQUENCES)
def test_sequences_are_refused(tmp_path, cache, name):
    content, message = SEQUENCES[name]
    path = tmp_path / name
    path.write_bytes(endless(name) if content is None else content)
    refuse(path, message, open_sequences)
    assert left_in(cache) == []


@pytest.mark.parametrize("name", ANNOTATION)
def test_annotation_is_refused(tmp_path, name):
    content, message = ANNOTATION[name]
    path = tmp_path / name
    path.write_bytes(content)
    refuse(path, message, lambda path: list(read_annotation(path)))


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (b">a", "line 1: the name's line has more than 65,536 bytes"),
        (b">a\nACGT", r"line 2, column 5: '\\x00' is not a letter of DNA"),
        (b"@r\nACGT", "line 2: has more than 16,777,216 bytes"),
        (b"LOCUS       R 8 bp DNA\n", "line 2: has more than 65,536 bytes"),
    ],
)
def test_a_line_of_a_gigabyte_takes_no_gigabyte(tmp_path, start, message):
    path = tmp_path / "absurd.fa"
    path.write_bytes(start)
    os.truncate(path, 1 << 30)  # a file with a hole takes no room
    refuse(path, message, open_sequences, most=80 << 20)


def test_what_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.fa")
    refuse(tmp_path / "pipe.fa", "is not a file", open_sequences)
    refuse(tmp_path / "absent.fa", "there is no file", open_sequences)
    refuse(tmp_path / "absent.bed", "there is no file", lambda path: list(read_bed(path)))
    with refusing(DataError, "file-name"):
        open_sequences("a\0b")
    (tmp_path / "folder").mkdir()
    refuse(tmp_path / "folder", "holds no sequences: files whose names end in .fa", open_sequences)


def test_the_limit_of_what_is_unpacked_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(unpacking, "LARGEST_UNPACKED", 4000)
    path = tmp_path / "large.fa.gz"
    path.write_bytes(GZIPPED)
    refuse(path, "unpacks to more than the limit of 4,000 bytes", open_sequences)


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "growing.fa"
    path.write_bytes(GENOME)
    make = index._make

    def make_and_grow(path, folder):
        make(path, folder)
        path.write_bytes(GENOME + b">c\nACGT\n")

    monkeypatch.setattr(index, "_make", make_and_grow)
    refuse(path, "changed while it was read", open_sequences)
    monkeypatch.undo()
    assert open_sequences(path).names == ("a", "b", "c")


def test_a_full_disk_is_said_in_a_line(tmp_path, cache, monkeypatch):
    def refuse_to_flush(path):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(files, "flush", refuse_to_flush)
    path = tmp_path / "genome.fa.gz"
    path.write_bytes(GZIPPED)
    with pytest.raises(
        DataError, match=r"No space left on device; make room .* \(ASTERISM_CACHE sets the folder"
    ) as caught:
        open_sequences(path)
    assert "\n" not in str(caught.value)
    assert left_in(cache) == []


@pytest.mark.model
@pytest.mark.parametrize("name", ["protein.fa", "cut.fa.gz", "hollow.fa", "garbage.fa", "short.fq"])
def test_the_verb_ends_with_code_3_and_leaves_nothing(tmp_path, capsys, name):
    path, run = tmp_path / name, tmp_path / "run"
    path.write_bytes(SEQUENCES[name][0])
    assert main(["train", "--data", str(path), "--modality", "genome()", "--folder", str(run), "--steps", "1"]) == 3
    seen = capsys.readouterr()
    assert re.search(SEQUENCES[name][1], seen.err) and not seen.out
    assert [line for line in seen.err.splitlines() if line.strip()] == [seen.err.strip()]
    assert not run.exists()
