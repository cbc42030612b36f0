"""docs/howto/genomes.md: its Python runs, and its limits are those of the code."""

import re

from genome_files import fasta, random_genome, write
from repository import docs_page

from asterism.training.data.corpora import dna_tokens
from asterism.training.data.corpora.modality import parse_modality
from asterism.training.data.genomes import annotation, genome, index, intervals, ngram, unpacking
from asterism.training.data.genomes import fasta as sequences

PAGE = docs_page("howto/genomes.md").read_text()

LIMITS = {
    "a compressed file unfolds to": (unpacking.LARGEST_UNPACKED, unpacking.FREE_OF_RATIO, unpacking.LARGEST_RATIO),
    "memory for unpacking xz": (unpacking.XZ_MEMORY,),
    "sequences of a file": (index.MOST_SEQUENCES,),
    "the line of a sequence's name": (sequences.LONGEST_HEADER,),
    "a line of FASTQ": (sequences.LONGEST_READ,),
    "a line of annotation": (annotation.LONGEST_LINE,),
    "a place in annotation": (intervals.FURTHEST,),
    "a sequence that is continued": (genome.LONGEST_PROMPT,),
}


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(found.replace(",", "")) for found in re.findall(r"\d[\d,]*\d|\d", text))


def test_the_limits_are_those_of_the_code():
    rows = re.findall(r"^\| (.*?) \| (.*?) \|$", PAGE.split("## Limits")[1], re.MULTILINE)
    assert {name: numbers(text) for name, text in rows if name in LIMITS} == LIMITS
    assert len(rows) == len(LIMITS) + 1
    for number in (genome.MOST_COMPARED, genome.MOST_COUNTED, index.GRID, ngram.MOST_BASES, dna_tokens.LEARNED_FROM):
        assert f"{number:,}" in PAGE


def test_the_modalities_are_read():
    for text in re.findall(r"(?:--modality |`)[\"']?(genome\(.*?\))[\"'`]", PAGE):
        parse_modality(text)


def test_the_python_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("ASTERISM_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "genome.fa.gz", fasta(random_genome(1, {"chr1": 9000})))
    write(tmp_path, "genes.gff", "chr1\tme\tgene\t200\t400\t.\t-\t.\tName=a\n")
    write(tmp_path, "genes.tsv", "kinase\t200\t400\t-\n")
    names: dict[str, object] = {}
    for text in re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        exec(compile(text, "genomes.md", "exec"), names)
    assert len(names["window"]) == 8000 and names["window"].strand == "-"
