"""Annotation: each format read a second time by the test, and places that are right to the letter."""

import re
from urllib.parse import quote

import pytest
from genome_files import COMPRESSIONS, fasta, genbank, random_genome, write
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refusing

from asterism.errors import ConfigurationError, DataError
from asterism.training.data.genomes.annotation import read_annotation, read_bed, read_table
from asterism.training.data.genomes.intervals import Interval
from asterism.training.data.genomes.sequences import open_sequences

GENE = st.builds(
    lambda start, length, strand, name: Interval("chr1", start, start + length, strand, name, "gene"),
    st.integers(0, 10**9),
    st.integers(1, 10**6),
    st.sampled_from("+-."),
    st.text("abcXYZ019.;=,%& \u00e9", min_size=1, max_size=12)
    .map(str.strip)
    .filter(lambda name: name not in ("", ".")),
)


def bed(genes: list[Interval]) -> str:
    rows = [f"{g.sequence}\t{g.start}\t{g.end}\t{g.name}\t0\t{g.strand}\n" for g in genes]
    return "#made up\ntrack name=x\n" + "".join(rows)


def gff(genes: list[Interval]) -> str:
    rows = [
        f"{g.sequence}\tme\tgene\t{g.start + 1}\t{g.end}\t.\t{g.strand}\t.\tID=x;Name={quote(g.name)};Note=a%3Bb\n"
        for g in genes
    ]
    return "##gff-version 3\n\n" + "".join(rows) + "##FASTA\n>chr1\nACGT\n"


def gtf(genes: list[Interval]) -> str:
    rows = [
        f'{g.sequence}\tme\tgene\t{g.start + 1}\t{g.end}\t.\t{g.strand}\t.\tlevel 2; gene_name "{g.name}"; t "; b";\n'
        for g in genes
    ]
    return "".join(rows)


def table(genes: list[Interval], separator: str) -> str:
    rows = [
        separator.join([f'"{g.name}"', g.strand, str(g.end), str(g.start + 1), "gene", "chr1"]) + "\r\n" for g in genes
    ]
    return separator.join(["Name", "strand", "End", "Start", "type", "chrom"]) + "\r\n" + "".join(rows)


@settings(max_examples=40)
@given(st.lists(GENE, min_size=1, max_size=5), st.sampled_from(list(COMPRESSIONS)))
def test_every_format_says_the_same(tmp_path_factory, genes, suffix):
    folder = tmp_path_factory.mktemp("annotation")
    texts = {"g.gff3": gff(genes), "g.gtf": gtf(genes), "g.tsv": table(genes, "\t"), "g.csv": table(genes, ",")}
    for name, text in texts.items():
        path = write(folder, name + suffix, text)
        assert list(read_annotation(path)) == genes, name
    path = write(folder, f"g.bed{suffix}", bed(genes))
    assert [(one.start, one.end, one.strand, one.name) for one in read_annotation(path)] == [
        (one.start, one.end, one.strand, one.name) for one in genes
    ]


def test_an_interval_knows_its_line(tmp_path):
    path = write(tmp_path, "g.bed", "# a comment\nchr1 5 9\nchr1 0 0\n")
    first, second = read_bed(path)
    assert (first, second) == (Interval("chr1", 5, 9), Interval("chr1", 0, 0))
    assert first.place == f"{path}, line 2" and len(second) == 0


def test_tables_without_names_of_columns_and_sequences(tmp_path):
    path = write(tmp_path, "genes.tsv", "initiation protein \t1\t1524\t+\tdnaA\nunknown\t4434\t4997\t-1\t-\n")
    columns = ("product", "start", "end", "strand", "name")
    assert list(read_table(path, columns=columns, sequence="chr")) == [
        Interval("chr", 0, 1524, "+", "dnaA"),
        Interval("chr", 4433, 4997, "-", "-"),
    ]
    shifted = list(read_table(path, columns=columns, sequence="chr", zero_based=True))
    assert [(one.start, one.end) for one in shifted] == [(1, 1524), (4434, 4997)]


GENBANK_FEATURES = """\
     source          1..300
                     /organism="made up"
     gene            complement(<10..>20)
                     /note="a quotation over two lines
                     /gene=not this one"
                     /locus_tag="T1"
                     /gene="first"
     CDS             join(31..40,complement(51..60),
                     71)
                     /product="a ""quoted""
                     product"
     misc_feature    complement(join(80..90,100..110))
"""


def test_features_of_genbank_and_their_letters(tmp_path):
    genome = random_genome(4, {"REC.1": 300})
    path = write(tmp_path, "r.gb", genbank(genome, GENBANK_FEATURES))
    found = list(read_annotation(path))
    assert found == [
        Interval("REC.1", 0, 300, "+", "", "source"),
        Interval("REC.1", 9, 20, "-", "first", "gene"),
        Interval("REC.1", 30, 40, "+", 'a "quoted" product', "CDS"),
        Interval("REC.1", 50, 60, "-", 'a "quoted" product', "CDS"),
        Interval("REC.1", 70, 71, "+", 'a "quoted" product', "CDS"),
        Interval("REC.1", 99, 110, "-", "", "misc_feature"),
        Interval("REC.1", 79, 90, "-", "", "misc_feature"),
    ]
    sequences = open_sequences(path)
    other = str.maketrans("ACGT", "TGCA")
    # complement(join(a, b)) is the other strand of a and b as one
    joined = "".join(one.letters(sequences).tobytes().decode() for one in found[-2:])
    assert joined == (genome["REC.1"][79:90] + genome["REC.1"][99:110]).translate(other)[::-1]


@given(st.integers(3, 40), st.integers(1, 12), st.sampled_from("+-."), st.sampled_from(["start", "centre", "end"]))
def test_windows_around_an_anchor_mirror_each_other(start, length, strand, anchor):
    """On the other strand a window is that of the mirrored interval in the mirrored sequence."""
    one = Interval("a", start, start + length, strand)
    before, after = 5, 7
    seen = one.around(before, after, anchor)
    size = 60
    if strand == "-":
        mirrored = Interval("a", size - one.end, size - one.start, "+").around(before, after, anchor)
        assert (seen.start, seen.end) == (size - mirrored.end, size - mirrored.start)
    else:
        place = {"start": start, "centre": start + length // 2, "end": start + length - 1}[anchor]
        assert (seen.start, seen.end) == (place - before, place + after)
    assert len(seen) == 12 and seen.strand == strand


def test_letters_of_a_strand_and_beyond_the_end(tmp_path):
    sequences = open_sequences(write(tmp_path, "one.fa", fasta({"a": "AACGT"})))
    assert Interval("a", 1, 4, "+").letters(sequences).tobytes() == b"ACG"
    assert Interval("a", 1, 4, "-").letters(sequences).tobytes() == b"CGT"
    bed = write(tmp_path, "b.bed", "a\t1\t4\na\t2\t6\nb\t0\t1\n")
    _, beyond, unknown = read_bed(bed)
    with pytest.raises(DataError, match=re.escape(f"{bed}, line 2: a:2-6 (0-based, half-open) is not within")):
        beyond.letters(sequences)
    with pytest.raises(DataError, match=re.escape(f"{bed}, line 3: ") + ".*has no sequence 'b'"):
        unknown.letters(sequences)
    with refusing(DataError, "interval-outside", "a", "2-3"):
        Interval("a", 0, 1).around(2, 3).letters(sequences)


def test_a_name_that_says_no_format_is_refused(tmp_path):
    with refusing(ConfigurationError, "annotation-suffix", ".bed, .gff, "):
        read_annotation(tmp_path / "genes.xls")
