"""Small genomes and the files that hold them, in every form that is read; nothing of the readers is used."""

import gzip
import lzma
import struct
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np


def random_genome(seed: int, lengths: Mapping[str, int], letters: str = "ACGT") -> dict[str, str]:
    random = np.random.default_rng(seed)
    return {name: "".join(random.choice(list(letters), length)) for name, length in lengths.items()}


def fasta(genome: Mapping[str, str], width: int = 60, end: str = "\n", last_end: bool = True) -> str:
    """FASTA with lines of `width` letters."""
    text = ""
    for name, letters in genome.items():
        rows = [letters[at : at + width] for at in range(0, len(letters), width)]
        text += f">{name} a description\twith a tab{end}" + "".join(f"{row}{end}" for row in rows)
    return text if last_end else text.removesuffix(end)


def ragged(genome: Mapping[str, str], seed: int = 0) -> str:
    """FASTA whose lines have any lengths, and empty ones among them."""
    random = np.random.default_rng(seed)
    text = ""
    for name, letters in genome.items():
        text += f">{name}\n"
        while letters:
            cut = int(random.integers(0, 30))
            text, letters = text + letters[:cut] + "\n", letters[cut:]
    return text


def fastq(genome: Mapping[str, str]) -> str:
    return "".join(f"@{name} x\n{letters}\n+{name}\n{'@' * len(letters)}\n" for name, letters in genome.items())


def genbank(genome: Mapping[str, str], features: str = "") -> str:
    text = ""
    for name, letters in genome.items():
        text += f"LOCUS       {name} {len(letters)} bp    DNA     linear   BCT 01-JAN-2000\nDEFINITION  made up.\n"
        text += f"FEATURES             Location/Qualifiers\n{features}ORIGIN\n"
        for at in range(0, len(letters), 60):
            row = letters[at : at + 60].lower()
            text += f"{at + 1:>9} {' '.join(row[part : part + 10] for part in range(0, len(row), 10))}\n"
        text += "//\n"
    return text


def bgzip(data: bytes, size: int = 1000) -> bytes:
    """What bgzip writes (SAM specification, 4.1): gzip members that say how long they are, and an empty one."""
    blocks = []
    for part in [data[at : at + size] for at in range(0, len(data), size)] + [b""]:
        deflate = zlib.compressobj(wbits=-15)
        body = deflate.compress(part) + deflate.flush()
        head = b"\x1f\x8b\x08\x04\0\0\0\0\0\xff\x06\0BC\x02\0" + struct.pack("<H", len(body) + 25)
        blocks.append(head + body + struct.pack("<II", zlib.crc32(part), len(part)))
    return b"".join(blocks)


COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bgz": bgzip,
    ".xz": lzma.compress,
}


def write(folder: Path, name: str, text: str) -> Path:
    """A file that is compressed as its name says."""
    path = folder / name
    compress = COMPRESSIONS.get(path.suffix, bytes)
    path.write_bytes(compress(text.encode()))
    return path
