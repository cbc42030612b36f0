"""Annotation along genomes, as intervals: BED, GFF3 and GTF, GenBank, and tables of genes; plain, gzip, bgzip or xz.

    BED        0-based, half-open; 3 to 12 columns, of which the first six are read
    GFF3, GTF  1-based, the end is within; nine columns
    GenBank    1-based, the end is within (`genbank.py`)
    table      TSV or CSV with named columns; 1-based with the end within, or as BED counts if that is said

Readers yield one interval after another and hold only one line. Errors name the file and the line. Only comments and
empty lines are skipped. (Libraries for GFF first build a database or whole records, and name no lines.)
"""

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote

from asterism.errors import ConfigurationError, DataError, shown
from asterism.training.data.genomes.genbank import read_genbank
from asterism.training.data.genomes.intervals import Interval, interval
from asterism.training.data.genomes.unpacking import lines

LONGEST_LINE = 1 << 20
"""Bytes of a line of annotation."""

_GFF_NAMES = ("Name", "gene", "gene_name", "locus_tag", "ID", "gene_id", "transcript_id")
"""Attributes that may hold the name of a feature, best first."""

_GTF_ATTRIBUTE = re.compile(r'\s*(\S+)\s+("(?:[^"\\]|\\.)*"|[^\s";]+)\s*(?:;|$)')
_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "sequence": ("sequence", "seqid", "seqname", "seqnames", "chrom", "chromosome", "chr", "contig", "accession"),
    "start": ("start", "begin", "chromstart", "txstart"),
    "end": ("end", "stop", "chromend", "txend"),
    "strand": ("strand",),
    "name": ("name", "gene", "symbol", "gene_name", "locus_tag", "locus", "gene_id", "id"),
    "kind": ("kind", "type", "feature", "biotype"),
}
"""Possible names of the columns of a table, best first; case does not matter."""

_STRANDS = {"+": "+", "-": "-", ".": ".", "": ".", "1": "+", "-1": "-", "+1": "+", "?": ".", "0": "."}
"""How strands are written in tables."""


def read_annotation(path: str | Path) -> Iterator[Interval]:
    """The intervals of a file of any format, which is known by the end of its name, before .gz, .bgz or .xz.

    Raises ConfigurationError for a name with an unknown suffix, and DataError for a file that cannot be read.
    """
    name = Path(path).name.lower()
    for suffix in (".gz", ".bgz", ".xz"):
        name = name.removesuffix(suffix)
    for suffixes, reader in READERS.items():
        if name.endswith(suffixes):
            return reader(path)
    known = ", ".join(suffix for suffixes in READERS for suffix in suffixes)
    raise ConfigurationError("annotation-suffix", f"{path}: the name of an annotation must end in one of {known}")


def read_bed(path: str | Path) -> Iterator[Interval]:
    """The lines of a BED file. Columns are separated by tabs, or else by spaces; all lines have equally many."""
    width = 0
    for number, line in lines(path, LONGEST_LINE):
        if not line.strip() or line.startswith(("#", "track ", "browser ", "track\t", "browser\t")):
            continue
        place = f"{path}, line {number:,}"
        cells = line.split("\t") if "\t" in line else line.split()
        width = width or len(cells)
        if len(cells) != width or not 3 <= width <= 12:
            needed = f"{width}, as above" if 3 <= width <= 12 and len(cells) != width else "3 to 12"
            raise DataError("too-few-columns", f"{place}: BED needs columns {needed}, seen: {len(cells)}")
        sequence, start, end, name, _, strand = [*cells[:6], *("", "", ".")[len(cells) - 3 :]][:6]
        yield interval(place, sequence, start, end, strand, "" if name == "." else name, "", first=0)


def read_gff(path: str | Path) -> Iterator[Interval]:
    """The features of a GFF3 file, up to "##FASTA". Escapes (%2C) are undone.

    A feature is called by the first of these attributes that it has: Name, gene, gene_name, locus_tag, ID, gene_id,
    transcript_id.
    """
    yield from _features(path, _gff_attributes, unquote)


def read_gtf(path: str | Path) -> Iterator[Interval]:
    """The features of a GTF (GFF2) file, with names as in GFF3."""
    yield from _features(path, _gtf_attributes, str)


def read_table(
    path: str | Path, *, columns: Sequence[str] = (), sequence: str = "", zero_based: bool = False
) -> Iterator[Interval]:
    """The rows of a table with columns for start and end, and perhaps for sequence, strand, name and kind.

    columns     what the columns are, for a table whose first line does not say so
    sequence    the sequence of all rows, for a table without such a column
    zero_based  whether places count as in BED; else the first letter has number 1 and the end is within

    Raises DataError for columns that are missing, and rows that have more or fewer of them than the first line.
    """
    rows = _rows(path)
    if not columns:
        _, columns = next(rows, ("", []))
    places = _columns_of(path, columns, needs_sequence=not sequence)
    for place, row in rows:
        if len(row) != len(columns):
            raise DataError("too-few-columns", f"{place}: {len(columns)} columns are needed, seen: {len(row)}")
        cell = {what: row[at].strip() for what, at in places.items()}
        strand = _STRANDS.get(cell.get("strand", "."), cell.get("strand", ""))
        yield interval(
            place,
            cell.get("sequence", sequence),
            cell["start"],
            cell["end"],
            strand,
            cell.get("name", ""),
            cell.get("kind", ""),
            first=0 if zero_based else 1,
        )


READERS: Mapping[tuple[str, ...], Callable[[str | Path], Iterator[Interval]]] = {
    (".bed",): read_bed,
    (".gff", ".gff3"): read_gff,
    (".gtf", ".gff2"): read_gtf,
    (".gb", ".gbk", ".gbff", ".genbank"): read_genbank,
    (".tsv", ".csv", ".txt"): read_table,
}
"""The readers, by what names of files end with."""


def _features(
    path: str | Path, attributes_of: Callable[[str, str], Mapping[str, str]], unescape: Callable[[str], str]
) -> Iterator[Interval]:
    for number, line in lines(path, LONGEST_LINE):
        if line.startswith("##FASTA"):
            return
        if not line.strip() or line.startswith("#"):
            continue
        place = f"{path}, line {number:,}"
        cells = line.split("\t")
        if len(cells) != 9:
            raise DataError("too-few-columns", f"{place}: GFF needs 9 columns, separated by tabs; seen: {len(cells)}")
        sequence, _, kind, start, end, _, strand, phase, described = cells
        if phase not in (".", "0", "1", "2"):
            raise DataError("gff-phase", f"{place}: phase must be 0, 1, 2 or '.', got {shown(phase[:40])}")
        attributes = attributes_of(place, described)
        name = next((attributes[key] for key in _GFF_NAMES if key in attributes), "")
        strand = "." if strand == "?" else strand
        yield interval(place, unescape(sequence), start, end, strand, name, unescape(kind), first=1)


def _gff_attributes(place: str, text: str) -> dict[str, str]:
    """What "ID=gene1;Name=a%2Cb" says."""
    attributes = {}
    for part in text.split(";") if text.strip() != "." else ():
        key, equals, value = part.strip().partition("=")
        if not part.strip():
            continue
        if not equals or not key:
            raise DataError(
                "gff-attribute", f"{place}: the attribute {shown(part.strip()[:40])} is not KEY=VALUE; is this GTF?"
            )
        attributes[unquote(key)] = unquote(value)
    return attributes


def _gtf_attributes(place: str, text: str) -> dict[str, str]:
    """What 'gene_id "gene1"; level 2;' says; of a key that is given twice, the first."""
    attributes: dict[str, str] = {}
    position = 0
    while text[position:].strip() not in ("", "."):
        if (found := _GTF_ATTRIBUTE.match(text, position)) is None:
            rest = shown(text[position:].strip()[:40])
            raise DataError("gtf-attribute", f'{place}: the attributes from {rest} on must be of the form KEY "VALUE";')
        attributes.setdefault(found[1], found[2].strip('"'))
        position = found.end()
    return attributes


def _rows(path: str | Path) -> Iterator[tuple[str, list[str]]]:
    """The cells of each line, and where it stands. Tabs separate if the first line has one, else commas."""
    separator = ""
    for number, line in lines(path, LONGEST_LINE):
        if not line.strip():
            continue
        place = f"{path}, line {number:,}"
        separator = separator or ("\t" if "\t" in line else ",")
        try:
            yield place, next(csv.reader([line], delimiter=separator, strict=True))
        except csv.Error as error:
            raise DataError("bad-interval", f"{place}: {error}") from None


def _columns_of(path: str | Path, columns: Sequence[str], *, needs_sequence: bool) -> dict[str, int]:
    """Which column is what. Raises DataError for what is missing."""
    names = [column.strip().lower().lstrip("#") for column in columns]
    found = {}
    for what, choices in _COLUMNS.items():
        here = next((names.index(choice) for choice in choices if choice in names), None)
        if here is not None:
            found[what] = here
    needed = ["start", "end", *(["sequence"] if needs_sequence else [])]
    if missing := [what for what in needed if what not in found]:
        there = ", ".join(columns)[:200] or "none"
        raise DataError(
            "missing-columns",
            f"{path}, line 1: the table has no column for {' and '.join(missing)}; its columns are: {there}",
        )
    return found
