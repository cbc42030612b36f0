"""Genomes to train on: blocks of their sequences as pieces, whose values are the letters A, C, G, T and N.

A letter is a byte, so bits per byte are bits per base. In training a window is read from either strand with equal
probability, unless that is turned off; what is scored is read as the file has it.
"""

import hashlib
import lzma
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np

from asterism.calls import is_whole
from asterism.errors import DataError
from asterism.files import replacing_file
from asterism.training.data.corpora.folders import split_homes
from asterism.training.data.corpora.modality import Modality
from asterism.training.data.corpora.splits import SPLITS, Pieces, Split, Splits
from asterism.training.data.genomes import documents, letters
from asterism.training.data.genomes.intervals import Interval
from asterism.training.data.genomes.letters import BASES, UNKNOWN, Masked
from asterism.training.data.genomes.ngram import yardsticks
from asterism.training.data.genomes.regions import Parts, divide, parse_regions
from asterism.training.data.genomes.sequences import SequenceFile, Sequences, files_below, open_sequences

LONGEST_PROMPT = 1 << 24
"""Bases of a sequence that is to be continued."""

MOST_COMPARED = 1 << 22
"""Bases on which compressors and simple models are tried: the first ones of more."""

MOST_COUNTED = 1 << 23
"""Bases that simple models count: pieces from all over the training split, if that has more."""

MOST_PASSES = 1_000

SAMPLED = 600
"""Bases that a sample of a run shows."""

COLUMNS = 60
"""Letters of a line that is written."""


class GenomePieces(Pieces):
    """One split: blocks of sequences, read when they are asked for."""

    def __init__(self, sequences: Sequences, parts: Parts, both_strands: bool) -> None:
        self.sequences, self.parts, self.both_strands = sequences, parts, both_strands
        self.bounds = np.concatenate([[0], np.cumsum(parts.sizes)]).astype(np.int64)

    def read(self, start: int, stop: int) -> np.ndarray:
        piece = int(np.searchsorted(self.bounds, start, side="right")) - 1
        begin = int(self.parts.starts[piece]) - int(self.bounds[piece])
        return self.sequences.read(self.sequences.names[self.parts.owners[piece]], begin + start, begin + stop)

    def turned(self, values: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """As the other strand reads them, for every second window."""
        return letters.reverse_complement(values) if self.both_strands and random.random() < 0.5 else values

    def stretches(self, first: int, stop: int) -> Iterator[np.ndarray]:
        """The letters of the places first .. stop - 1, piece by piece: uint8 [letters] each."""
        for begin, end in zip(self.bounds[:-1].tolist(), self.bounds[1:].tolist(), strict=True):
            if max(first, begin) < min(stop, end):
                yield self.read(max(first, begin), min(stop, end))

    def sampled(self, most: int) -> Iterator[np.ndarray]:
        """Whole pieces, spread evenly over the split, of about `most` letters; all of them if there are not more."""
        every = -(-len(self) // most)
        for begin, end in zip(self.bounds[:-1:every].tolist(), self.bounds[1::every].tolist(), strict=True):
            yield self.read(begin, end)


class GenomeSplits(Splits):
    """The sequences of a corpus, divided; training passes over them so many times to make documents."""

    unit = "bases"

    def __init__(
        self,
        name: str,
        sha256: str,
        sequences: Sequences,
        parts: dict[Split, Parts],
        *,
        strands: bool,
        passes: int = documents.PASSES,
    ) -> None:
        self.name, self.sha256, self.sequences, self.parts, self.passes = name, sha256, sequences, parts, passes
        self._pieces = {split: GenomePieces(sequences, parts[split], strands and split == "train") for split in SPLITS}

    def pieces(self, split: Split) -> GenomePieces:
        return self._pieces[split]

    def documents(self, split: Split) -> Iterator[str]:
        """As `documents.py` makes them, a sentence in each line: always the same ones."""
        parts = self.parts[split]
        regions = documents.joined(
            Interval(self.sequences.names[owner], start, start + size)
            for owner, start, size in zip(
                parts.owners.tolist(), parts.starts.tolist(), parts.sizes.tolist(), strict=True
            )
        )
        if split != "train":
            return documents.scored_documents(self.sequences, regions, seed=0)
        both = self._pieces[split].both_strands
        return documents.training_documents(self.sequences, regions, seed=0, passes=self.passes, both_strands=both)


class Genome(Modality):
    """Sequences as FASTA, FASTQ or GenBank: a file, or a folder of them, perhaps with train/, validation/ and test/.

    validation, test    regions: "chr8 chr9", "chr7:30,508,751-35,296,850"; else blocks of 2^17 bases, chosen by hash
    masked              what lower case becomes: "upper" for the base itself, "N"
    most_unknown        a block of which a larger share is N is left out
    reverse_complement  whether training reads every second window, or document, from the other strand
    passes              how often training passes over a sequence to make documents for tokens (`documents.py`)
    """

    name, unit = "genome", "bases"
    outputs = (".fa", ".fasta", ".fna", ".fas", ".txt")

    def __init__(
        self,
        validation: str | None = None,
        test: str | None = None,
        masked: str = "upper",
        most_unknown: float = 0.5,
        reverse_complement: bool = True,
        passes: int = documents.PASSES,
    ) -> None:
        for argument, value in (("validation", validation), ("test", test)):
            holds = value is None or isinstance(value, str) and bool(value.split())
            self._require(argument, value, holds, "must name regions, such as 'chr8'")
        self._require("masked", masked, masked in get_args(Masked), "must be 'upper' or 'N'")
        holds = isinstance(most_unknown, int | float) and not isinstance(most_unknown, bool) and 0 <= most_unknown <= 1
        self._require("most_unknown", most_unknown, holds, "must be from 0 to 1")
        turned = reverse_complement
        self._require("reverse_complement", turned, isinstance(turned, bool), "must be True or False")
        self._require("passes", passes, is_whole(passes, 1, MOST_PASSES), f"must be from 1 to {MOST_PASSES}")
        self.validation, self.test, self.masked = validation, test, masked
        self.most_unknown, self.reverse_complement, self.passes = most_unknown, reverse_complement, passes

    def splits(self, path: str | None) -> GenomeSplits:
        if path is None:
            raise DataError("genome-needs-file", "data: a genome needs a file or folder of sequences; give its path")
        sequences, homes = self._open(Path(path))
        regions = {
            split: parse_regions(text, sequences)
            for split, text in zip(SPLITS[1:], (self.validation, self.test), strict=True)
            if text is not None
        }
        if regions and homes:
            raise DataError(
                "splits-and-regions",
                f"data: {path} has folders that are splits, and regions were named too; use one of them",
            )
        parts, left_out = divide(sequences, regions, homes, self.most_unknown)
        splits = GenomeSplits(
            path,
            self._identity(sequences, homes),
            sequences,
            parts,
            strands=self.reverse_complement,
            passes=self.passes,
        )
        notes = sequences.notes
        if left_out:
            notes = [*notes, f"{path}: {left_out:,} bases in blocks that are mostly N are left out (most_unknown)"]
        splits.notes = tuple(notes)
        if not len(splits.pieces("train")) or not len(splits.pieces("validation")):
            raise DataError(
                "empty-split",
                f"data: {path} is too small to be split by blocks of 131,072 bases: a split is empty; name regions,"
                ' such as genome(validation="chr1:1-50000", test="chr2")',
            )
        return splits

    def baselines(self, splits: Splits, split: Split, first: int, stop: int) -> dict[str, float]:
        """Bits per base of zlib, xz and models of several orders; the models count both strands of the training
        split.
        """
        assert isinstance(splits, GenomeSplits)
        last = min(stop, first + MOST_COMPARED)
        scored = [*splits.pieces(split).stretches(first, last)]
        found = {
            **compressed(np.concatenate(scored)),
            **yardsticks(splits.pieces("train").sampled(MOST_COUNTED), scored),
        }
        cut = "" if last == stop else f", first {MOST_COMPARED:,}"
        return {f"{name}{cut}": bits for name, bits in found.items()}

    def read_prompt(self, path: Path) -> np.ndarray:
        """The letters of a file with a single sequence."""
        sequences = open_sequences(path, self.masked)  # type: ignore[arg-type]
        if len(sequences.names) > 1:
            raise DataError(
                "prompt-sequences", f"prompt: {path} holds {len(sequences.names):,} sequences; a prompt must hold one"
            )
        name = sequences.names[0]
        if sequences.length(name) > LONGEST_PROMPT:
            raise DataError(
                "prompt-too-long",
                f"prompt: {path} has {sequences.length(name):,} bases; a prompt may have at most {LONGEST_PROMPT:,}",
            )
        return sequences.read(name, 0, sequences.length(name))

    def write(self, sequences: Sequence[np.ndarray], output: Path) -> list[Path]:
        """FASTA with lines of 60 letters; the sequences are called sample1, sample2, ...

        Other values become N, and the header line says how often.
        """
        return self._write([(f"sample{number}", one) for number, one in enumerate(sequences, start=1)], output)

    def write_completions(
        self,
        originals: Sequence[np.ndarray],
        kept: Sequence[int],
        completions: Sequence[Sequence[np.ndarray]],
        output: Path,
    ) -> list[Path]:
        """As `write`: original1, then completion1.1, completion1.2, ... with how many of their bases were given."""
        named: list[tuple[str, np.ndarray]] = []
        for number, (original, given, made) in enumerate(zip(originals, kept, completions, strict=True), start=1):
            named.append((f"original{number}", original))
            named += [(f"completion{number}.{row} given={given}", one) for row, one in enumerate(made, start=1)]
        return self._write(named, output)

    def samples(self, values: np.ndarray, expected: np.ndarray, drawn: np.ndarray) -> list[dict[str, Any]]:
        """The first bases, and what was expected at each; what is no letter is "?"."""
        right, guessed = (
            "".join(chr(one) if one in (*BASES, UNKNOWN) else "?" for one in each[:SAMPLED].tolist())
            for each in (values, expected)
        )
        return [{"bases": right, "guessed": guessed}]

    def _write(self, named: Sequence[tuple[str, np.ndarray]], output: Path) -> list[Path]:
        self.refuse_output(output)
        with replacing_file(output) as unfinished, unfinished.open("wb") as file:
            for name, values in named:
                known = letters.indices(values) < len(BASES)
                strange = int((~known & (values != UNKNOWN)).sum())
                note = f" of which {strange:,} were no letters and became N" if strange else ""
                file.write(f">{name} {len(values):,} bases{note}\n".encode())
                text = np.where(known, values, UNKNOWN).astype(np.uint8).tobytes()
                file.writelines(text[at : at + COLUMNS] + b"\n" for at in range(0, len(text), COLUMNS))
        return [output]

    def _open(self, path: Path) -> tuple[Sequences, dict[str, Split]]:
        """The sequences, and the splits of those that folders say."""
        if not os.path.isdir(path):
            return open_sequences(path, self.masked), {}  # type: ignore[arg-type]
        found = files_below(path)
        homes = split_homes(path, [file.relative_to(path).as_posix() for file in found])
        files = [SequenceFile(file, self.masked) for file in found]  # type: ignore[arg-type]
        of_name = {
            name: homes[file.path.relative_to(path).parts[0]] for file in files if homes for name in file.lengths
        }
        return Sequences(files), of_name

    def _identity(self, sequences: Sequences, homes: dict[str, Split]) -> str:
        """The hash of the letters and of their division into splits; it does not depend on how training turns them."""
        how = (self.validation, self.test, self.masked, float(self.most_unknown))
        digest = hashlib.sha256(repr(how).encode())
        for file in sequences.files:
            digest.update(file.contents.sha256.encode())
            digest.update(homes.get(next(iter(file.lengths)), "").encode())
        return digest.hexdigest()


def compressed(bases: np.ndarray) -> dict[str, float]:
    """Bits per base that zlib and xz need for letters, uint8 [bases], at their strongest settings.

    xz is given letters, or two bits a base and 8 bytes for each run of N, whichever is less.
    """
    text, numbers = bases.tobytes(), letters.indices(bases)
    unknown = (numbers == 4).astype(np.int8)
    runs = int((np.diff(unknown, prepend=np.int8(0)) == 1).sum())
    # Four bases to a byte: A C G T is 00 01 10 11, 27. The last byte is filled up by bases from the beginning.
    known = np.resize(numbers[numbers < 4], -(-int((numbers < 4).sum()) // 4) * 4).reshape(-1, 4)
    packed = (known << np.array([6, 4, 2, 0], dtype=np.uint8)).sum(axis=1, dtype=np.uint8).tobytes()
    sizes = {
        "xz of letters": len(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME)),
        "xz of 2 bits a base": len(lzma.compress(packed, preset=9 | lzma.PRESET_EXTREME)) + 8 * runs,
    }
    best = min(sizes, key=lambda name: sizes[name])
    return {"zlib": 8 * len(zlib.compress(text, 9)) / len(text), best: 8 * sizes[best] / len(text)}
