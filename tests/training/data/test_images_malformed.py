"""Pictures and arrays that cannot be read: one line with the file and what is wrong with it, and little memory.

Every file is made here, beside whole ones, and is refused when the data are opened or when it is read.
"""

import io
import struct
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from asterism.cli.main import main
from asterism.errors import DataError
from asterism.training.data.corpora.splits import SPLITS
from asterism.training.data.images import Images, arrays, decoding

SIZE = 8
PIXELS = np.random.default_rng(0).integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)
FEW = 2**24
"""Bytes that refusing a file may take, far fewer than what it claims to hold."""


def encoded(format: str, mode: str = "RGB", **settings: object) -> bytes:
    out = io.BytesIO()
    Image.fromarray(PIXELS).convert(mode).save(out, format, **settings)
    return out.getvalue()


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(
    width: int = SIZE,
    height: int = SIZE,
    bits: int = 8,
    colours: int = 2,
    before: bytes = b"",
    data: bytes | None = None,
    end: bytes | None = None,
) -> bytes:
    """A PNG made by hand: by default one whose values are all 0."""
    size = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}.get(colours, 1) * max(bits // 8, 1)
    rows = zlib.compress(bytes(min(height, SIZE) * (1 + min(width, SIZE) * size))) if data is None else data
    parts = [chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colours, 0, 0, 0)), before]
    return b"".join([b"\x89PNG\r\n\x1a\n", *parts, chunk(b"IDAT", rows), chunk(b"IEND", b"") if end is None else end])


def jpeg(change: Callable[[bytearray, int], None]) -> bytes:
    """A JPEG with something changed, given the place of its frame."""
    content = bytearray(encoded("JPEG"))
    change(content, content.index(b"\xff\xc0"))
    return bytes(content)


def put(at: int, new: bytes) -> Callable[[bytearray, int], None]:
    def change(content: bytearray, frame: int) -> None:
        content[frame + at : frame + at + len(new)] = new

    return change


def webp(kind: bytes, content: bytes) -> bytes:
    body = b"WEBP" + kind + struct.pack("<I", len(content)) + content
    return b"RIFF" + struct.pack("<I", len(body)) + body


def animated(format: str) -> bytes:
    out = io.BytesIO()
    frames = [Image.fromarray(np.full((SIZE, SIZE, 3), value, np.uint8)) for value in (0, 99)]
    frames[0].save(out, format, save_all=True, append_images=frames[1:])
    return out.getvalue()


def cut(content: bytes, share: float) -> bytes:
    return content[: int(len(content) * share)]


TRANSPARENT = Image.fromarray(np.dstack([PIXELS, PIXELS[:, :, 0]]))
FRAMED = encoded("JPEG")

PICTURES: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "an empty PNG": ("a.png", lambda: b"", "is empty"),
    "a PNG of one byte": ("a.png", lambda: b"\x89", "is no PNG, JPEG or WebP file: its first bytes are 89"),
    "a PNG that ends behind its magic": ("a.png", lambda: png()[:8], "is cut off"),
    "a PNG that ends in its header": ("a.png", lambda: png()[:20], "is cut off"),
    "a PNG without header": ("a.png", lambda: png()[:8] + png()[33:], "begins with IHDR"),
    "a PNG with a short header": (
        "a.png",
        lambda: png()[:8] + chunk(b"IHDR", b"\0" * 8) + png()[33:],
        "begins with IHDR",
    ),
    "a quarter of a PNG": ("a.png", lambda: cut(encoded("PNG"), 0.25), "is cut off"),
    "a half of a PNG": ("a.png", lambda: cut(encoded("PNG"), 0.5), "is cut off"),
    "a PNG without its last byte": ("a.png", lambda: encoded("PNG")[:-1], "is cut off"),
    "a PNG without an end": ("a.png", lambda: png(end=b""), "is cut off"),
    "a PNG that claims 4 GB of text": (
        "a.png",
        lambda: png(before=struct.pack(">I", 2**32 - 1) + b"tEXt"),
        "is cut off",
    ),
    "a PNG of no columns": ("a.png", lambda: png(width=0), "has no pixels"),
    "a PNG of no rows": ("a.png", lambda: png(height=0), "has no pixels"),
    "a PNG of 10^9 pixels": ("a.png", lambda: png(31_623, 31_623), "has 31,623 x 31,623 pixels; at most 67,108,864"),
    "a PNG of 2^62 pixels": ("a.png", lambda: png(2**31 - 1, 2**31 - 1), "at most 67,108,864 are read"),
    "a PNG one row too high": ("a.png", lambda: png(2**13, 2**13 + 1), "has 8,192 x 8,193 pixels"),
    "a PNG of 16 bits": ("a.png", lambda: png(bits=16), "has 16 bits a value; values of 8 bits are read"),
    "a grey PNG of 16 bits": ("a.png", lambda: png(bits=16, colours=0), "has 16 bits"),
    "a PNG of 16 bits with alpha": ("a.png", lambda: png(bits=16, colours=6), "has 16 bits"),
    "a PNG of 3 bits": ("a.png", lambda: png(bits=3), "cannot be decoded"),
    "a PNG of unknown colours": ("a.png", lambda: png(colours=5), "cannot be decoded"),
    "a PNG of two sizes": ("a.png", lambda: png(before=png(9, 9)[8:33]), "has two sizes|cannot be decoded"),
    "a PNG of two sizes, one of 10^9 pixels": (
        "a.png",
        lambda: png(before=png(31_623, 31_623)[8:33]),
        "cannot be decoded",
    ),
    "a PNG without data": ("a.png", lambda: png(data=b""), "cannot be decoded"),
    "a PNG with half its data": ("a.png", lambda: png(data=zlib.compress(bytes(90))), "cannot be decoded"),
    "a PNG whose data are noise": ("a.png", lambda: png(data=PIXELS.tobytes()), "cannot be decoded"),
    "a PNG whose data are cut": ("a.png", lambda: png(data=zlib.compress(PIXELS.tobytes())[:60]), "cannot be decoded"),
    "a PNG whose data have another sum": (
        "a.png",
        lambda: png(data=zlib.compress(bytes(SIZE * (1 + SIZE * 3)))[:-4] + b"\1\2\3\4"),
        "cannot be decoded",
    ),
    "a PNG whose header has another sum": ("a.png", lambda: png()[:29] + b"\0\0\0\0" + png()[33:], "cannot be decoded"),
    "a PNG with 100 MB of packed text": (
        "a.png",
        lambda: png(before=chunk(b"zTXt", b"Comment\0\0" + zlib.compress(bytes(100_000_000)))),
        "cannot be decoded: Decompressed data too large",
    ),
    "a PNG with frames": ("a.png", lambda: animated("PNG"), "has several frames"),
    "a transparent PNG": ("a.png", lambda: saved(TRANSPARENT, "PNG"), 'transparent pixels; say .* background="white"'),
    "a palette with a transparent colour": (
        "a.png",
        lambda: saved(Image.fromarray(PIXELS).quantize(4), "PNG", transparency=3),
        "has transparent pixels",
    ),
    "an empty JPEG": ("a.jpg", lambda: b"", "is empty"),
    "a JPEG of its magic alone": ("a.jpg", lambda: b"\xff\xd8\xff", "is cut off"),
    "a JPEG of its magic and an end": ("a.jpg", lambda: b"\xff\xd8\xff\xd9", "is damaged|is cut off"),
    "a quarter of a JPEG": ("a.jpg", lambda: cut(FRAMED, 0.25), "is cut off"),
    "a half of a JPEG": ("a.jpg", lambda: cut(FRAMED, 0.5), "is cut off"),
    "a JPEG without its last byte": ("a.JPEG", lambda: FRAMED[:-1], "is cut off"),
    "a JPEG with noise behind its magic": ("a.jpg", lambda: b"\xff\xd8\xff" + bytes(100), "is damaged|is cut off"),
    "a JPEG whose markers have no length": ("a.jpg", lambda: b"\xff\xd8\xff\xe0\0\0" + FRAMED[20:], "before its data"),
    "a JPEG without a frame": ("a.jpg", lambda: jpeg(put(1, b"\xe1")), "a JPEG file has a frame before its data"),
    "a JPEG of 12 bits": ("a.jpg", lambda: jpeg(put(4, b"\x0c")), "has 12 bits a value"),
    "a JPEG of no rows": ("a.jpg", lambda: jpeg(put(5, b"\0\0")), "has no pixels"),
    "a JPEG of 4 * 10^9 pixels": ("a.jpg", lambda: jpeg(put(5, b"\xff" * 4)), "has 65,535 x 65,535 pixels"),
    "a JPEG without loss": ("a.jpg", lambda: jpeg(put(1, b"\xc3")), "cannot be decoded"),
    "a JPEG of no channels": ("a.jpg", lambda: jpeg(put(9, b"\0")), "cannot be decoded"),
    "a JPEG for printing": ("a.jpg", lambda: encoded("JPEG", "CMYK"), "its colours are CMYK, which are not read"),
    "an empty WebP": ("a.webp", lambda: b"", "is empty"),
    "a half of a WebP": ("a.webp", lambda: cut(encoded("WEBP"), 0.5), "is cut off"),
    "a WebP without its last byte": ("a.webp", lambda: encoded("WEBP", lossless=True)[:-1], "is cut off"),
    "a WebP of no known kind": ("a.webp", lambda: webp(b"VP9 ", bytes(40)), "begins with VP8, VP8L or VP8X"),
    "a WebP of 2^48 pixels": (
        "a.webp",
        lambda: webp(b"VP8X", bytes(4) + b"\xff" * 6 + bytes(30)),
        "at most 67,108,864",
    ),
    "a WebP of 2^28 pixels": (
        "a.webp",
        lambda: webp(b"VP8L", b"\x2f" + b"\xff" * 4 + bytes(40)),
        "has 16,384 x 16,384",
    ),
    "a WebP whose data are noise": (
        "a.webp",
        lambda: webp(b"VP8L", b"\x2f\7\xc0\1\0" + PIXELS.tobytes()),
        "be decoded",
    ),
    "a WebP of no columns": ("a.webp", lambda: webp(b"VP8 ", bytes(40)), "has no pixels"),
    "a WebP with frames": ("a.webp", lambda: animated("WEBP"), "has several frames"),
    "a transparent WebP": ("a.webp", lambda: saved(TRANSPARENT, "WEBP", lossless=True), "has transparent pixels"),
    "a GIF that is called PNG": ("a.png", lambda: encoded("GIF", "P"), "is no PNG, JPEG or WebP .* 47 49 46 38"),
    "a BMP that is called JPEG": ("a.jpg", lambda: encoded("BMP"), "is no PNG, JPEG or WebP"),
    "a page that says that a picture is gone": ("a.jpg", lambda: b"<html>404</html>", "is no PNG, JPEG or WebP"),
    "a picture of another size": (
        "a.png",
        lambda: saved(Image.new("L", (9, 8)), "PNG"),
        "has 9 x 8 pixels, not 8 x 8; ask for resize=",
    ),
}


def saved(picture: Image.Image, format: str, **settings: object) -> bytes:
    out = io.BytesIO()
    picture.save(out, format, **settings)
    return out.getvalue()


def npy(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, array, allow_pickle=True)
    return out.getvalue()


def header(text: str, version: bytes = b"\1\0", content: bytes = bytes(200)) -> bytes:
    """An .npy whose header is this text."""
    return b"\x93NUMPY" + version + struct.pack("<H", len(text) + 1) + text.encode() + b"\n" + content


def npz(compression: int = zipfile.ZIP_STORED, **members: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return out.getvalue()


def claiming(content: bytes, size: int) -> bytes:
    """An archive that says of its first member, in its directory, that it has so many bytes."""
    at = content.index(b"PK\1\2")
    return content[: at + 24] + struct.pack("<I", size) + content[at + 28 :]


ROWS = np.zeros((5, 3 * SIZE * SIZE), dtype=np.uint8)
LABELS = npy(np.array([1, 2, 3, 2, 1]))
SHAPED = "{'descr': '|u1', 'fortran_order': False, 'shape': %s}"

ARRAYS: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "an empty array file": ("train.npy", lambda: b"", "is no .npy array: its first bytes are none"),
    "an array file of other magic": (
        "train.npy",
        lambda: b"PK\3\4" + bytes(99),
        "is no .npy array: its first bytes are 50",
    ),
    "an array that ends in its header": ("train.npy", lambda: npy(ROWS)[:40], r"train\.npy: "),
    "an array without its last byte": (
        "train.npy",
        lambda: npy(PIXELS[None])[:-1],
        "is cut off: its array .* 192 bytes",
    ),
    "an array of no pictures": ("train.npy", lambda: npy(np.zeros((0, 8, 8, 3), np.uint8)), "holds an empty array"),
    "an array of Python objects": ("train.npy", lambda: npy(np.array([[[{}]]])), "holds Python objects, .* never read"),
    "an array of 16 bits": (
        "train.npy",
        lambda: npy(np.zeros((4, 8, 8, 3), np.uint16)),
        "holds uint16; values of 8 bits",
    ),
    "an array of NaN": ("train.npy", lambda: npy(np.full((4, 8, 8, 3), np.nan)), "holds float64; values of 8 bits"),
    "an array of signed values": ("train.npy", lambda: npy(np.zeros((4, 8, 8, 3), np.int8)), "holds int8"),
    "an array of booleans": ("train.npy", lambda: npy(np.zeros((4, 8, 8, 3), bool)), "holds bool"),
    "an array of one axis": ("train.npy", lambda: npy(np.zeros(9, np.uint8)), r"has shape \(9,\), not \[pictures,"),
    "an array of five axes": (
        "train.npy",
        lambda: npy(np.zeros((2, 2, 8, 8, 3), np.uint8)),
        "has shape .2, 2, 8, 8, 3",
    ),
    "an array of four channels": ("train.npy", lambda: npy(np.zeros((2, 8, 8, 4), np.uint8)), "or .* 1 or 3 channels"),
    "an array with planes first": ("train.npy", lambda: npy(np.zeros((2, 3, 8, 8), np.uint8)), r"shape \(2, 3, 8, 8\)"),
    "an array of another size": (
        "train.npy",
        lambda: npy(np.zeros((2, 8, 9, 3), np.uint8)),
        "picture 0 has 9 x 8 pixels",
    ),
    "an array of a later version": ("train.npy", lambda: header(SHAPED % "(2, 8)", b"\x09\0"), "of version .9, 0."),
    "an array whose header is no dictionary": ("train.npy", lambda: header("[1, 2]"), "its header cannot be read"),
    "an array whose header would be run": (
        "train.npy",
        lambda: header("__import__('os').abort()"),
        r"train\.npy: is damaged: its header cannot be read",
    ),
    "an array of a negative shape": (
        "train.npy",
        lambda: header(SHAPED % "(-1, 8, 8, 3)"),
        r"its shape is \(-1, 8, 8, 3\)",
    ),
    "an array of 2^60 pictures": (
        "train.npy",
        lambda: header(SHAPED % f"({2**60}, 8, 8, 3)"),
        "is cut off: .* needs 221,",
    ),
    "an array of 2^200 pictures": ("train.npy", lambda: header(SHAPED % f"({2**200}, 8, 8, 3)"), r"train\.npy: "),
    "an archive that is none": ("train.npz", lambda: b"PK\3\4" + bytes(99), "is no .npz file, which is a zip archive"),
    "an empty archive": ("train.npz", lambda: npz(), "has no array 'data'; it holds nothing"),
    "a half of an archive": ("train.npz", lambda: cut(npz(data=npy(ROWS)), 0.5), "is no .npz file"),
    "an archive of pickles": ("train.npz", lambda: npz(data=npy(np.array([[{}]]))), "holds Python objects"),
    "an archive of 16 bits": ("train.npz", lambda: npz(data=npy(ROWS.astype(np.uint16))), "data holds uint16"),
    "an archive of no squares": ("train.npz", lambda: npz(data=npy(ROWS[:, :-1])), "data has rows of 191 values"),
    "an archive with too few labels": ("train.npz", lambda: npz(data=npy(ROWS), labels=LABELS[:-8]), "is cut off"),
    "an archive with another label count": (
        "train.npz",
        lambda: npz(data=npy(ROWS), labels=npy(np.ones(4, np.int64))),
        r"labels has shape \(4,\) of int64, not one whole number for each picture",
    ),
    "an archive with fractions as labels": (
        "train.npz",
        lambda: npz(data=npy(ROWS), labels=npy(np.full(5, np.nan))),
        "labels has shape .* of float64",
    ),
    "an archive with a label of 0": (
        "train.npz",
        lambda: npz(data=npy(ROWS), labels=npy(np.array([1, 2, 0, 1, 1]))),
        "picture 2 has label 0; labels are counted from 1 on",
    ),
    "an archive with a label beyond the classes": (
        "train.npz",
        lambda: npz(data=npy(ROWS), labels=npy(np.array([1, 2, 3, 11, 1]))),
        "picture 3 is of class 10, counted from 0; the model has 10 classes",
    ),
    "an archive that claims more than it holds": (
        "train.npz",
        lambda: claiming(npz(zipfile.ZIP_DEFLATED, data=npy(ROWS)[:-9]), 960 + 128),
        "is cut off: its array .5, 192. of uint8 needs 960 bytes",
    ),
    "an archive whose data are fewer than it says": (
        "train.npz",
        lambda: npz(zipfile.ZIP_DEFLATED, data=npy(ROWS)[:-9]),
        "is cut off: its array .5, 192. of uint8 needs 960 bytes",
    ),
    "an archive packed in another way": (
        "train.npz",
        lambda: npz(zipfile.ZIP_LZMA, data=npy(ROWS)),
        "packed by method 14",
    ),
    "an archive with another sum": (
        "train.npz",
        lambda: npz(data=npy(ROWS)).replace(npy(ROWS), npy(ROWS + 1), 1),
        "Bad CRC-32",
    ),
    "an empty batch": ("data_batch_1.bin", lambda: b"", "has 0 bytes, not pictures of CIFAR-10 of 3,073 bytes each"),
    "a batch without its last byte": (
        "data_batch_1.bin",
        lambda: bytes(3073 * 4 - 1),
        "has 12,291 bytes, not pictures",
    ),
    "a batch with a label of 10": (
        "data_batch_1.bin",
        lambda: bytes(3073 * 3) + b"\x0a" + bytes(3072),
        "picture 3 has label 10; CIFAR-10 has labels 0 to 9",
    ),
}


def beside_whole_ones(root: Path, name: str, content: bytes) -> Path:
    """The file in a folder whose other files are whole."""
    if name in ("a.png", "a.jpg", "a.JPEG", "a.webp"):
        for split in SPLITS:
            (root / split).mkdir()
            (root / split / "whole.png").write_bytes(png())
        (root / "train" / name).write_bytes(content)
        return root / "train" / name
    (root / name).write_bytes(content)
    return root / name


def read_all(root: Path, images: Images) -> None:
    splits = images.splits(str(root))
    for split in SPLITS:
        pieces = splits.pieces(split)
        for begin, end in zip(pieces.bounds[:-1].tolist(), pieces.bounds[1:].tolist(), strict=True):
            pieces.read(begin, end)


@pytest.mark.parametrize("case", [*PICTURES, *ARRAYS])
def test_a_malformed_file_is_refused_in_one_line(tmp_path, case):
    name, content, message = (PICTURES | ARRAYS)[case]
    path = beside_whole_ones(tmp_path, name, content())
    before = sorted(tmp_path.rglob("*"))
    labels = name.endswith(".npz")
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=message) as caught:
            read_all(tmp_path, Images(SIZE, SIZE, resize="exact", classes=10 if labels else None))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    said = str(caught.value)
    assert (
        str(path) in said and "\n" not in said and len(said) < 500 + len(str(tmp_path)) and caught.value.exit_code == 3
    )
    assert peak < FEW
    assert sorted(tmp_path.rglob("*")) == before


def test_there_are_enough_of_them():
    assert len(PICTURES) + len(ARRAYS) >= 70


def test_whole_files_are_read(tmp_path):
    """What the malformed ones are made of is read, so they are refused for what is changed in them alone."""
    for name, content in (("a.png", encoded("PNG")), ("a.jpg", FRAMED), ("a.webp", encoded("WEBP"))):
        beside = tmp_path / name.replace(".", "_")
        beside.mkdir()
        beside_whole_ones(beside, name, content)
        read_all(beside, Images(SIZE, SIZE, resize="exact"))
    for number, content in enumerate((npz(data=npy(ROWS), labels=LABELS), npz(zipfile.ZIP_DEFLATED, data=npy(ROWS)))):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "train.npz").write_bytes(content)
        read_all(tmp_path / str(number), Images(SIZE, SIZE, resize="exact", classes=None if number else 3))


def test_a_bomb_of_an_archive_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(arrays, "MOST_UNPACKED", 2**20)
    (tmp_path / "train.npz").write_bytes(npz(zipfile.ZIP_DEFLATED, data=npy(np.zeros((2**13, 192), np.uint8))))
    monkeypatch.setattr(arrays.tempfile, "TemporaryFile", lambda: pytest.fail("unpacked"))
    with pytest.raises(DataError, match=r"array data\.npy has 1,572,992 bytes; at most 1,048,576 are unpacked"):
        Images(SIZE, SIZE).splits(str(tmp_path))


def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path):
    path = beside_whole_ones(tmp_path, "a.png", b"")
    with path.open("r+b") as file:
        file.truncate(decoding.MOST_BYTES + 1)
    with pytest.raises(DataError, match=r"a\.png has 67,108,865 bytes; pictures of at most 67,108,864 are read"):
        Images(SIZE, SIZE).splits(str(tmp_path))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda root: None, "holds no PNG, JPEG or WebP files, no .npy or .npz arrays, and no CIFAR-10"),
        (lambda root: (root / "gone.png").symlink_to("nowhere"), r"cannot read .*gone\.png: No such file"),
        (
            lambda root: [(root / name).write_bytes(npy(ROWS)) for name in ("a.npy", "a.png")],
            "a.npy and a.png: give arrays",
        ),
        (
            lambda root: [(root / name).write_bytes(npy(ROWS)) for name in ("a.npy", "train.npy")],
            "a.npy: its name must begin with its split",
        ),
        (
            lambda root: (root / "test_batch.bin").write_bytes(bytes(3073)),
            "has arrays of the test split, but none for train",
        ),
    ],
)
def test_folders_that_cannot_be_read(tmp_path, make, message):
    make(tmp_path)
    with pytest.raises(DataError, match=message) as caught:
        read_all(tmp_path, Images(SIZE, SIZE))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("given", ["none", "missing", "text"])
def test_paths_that_hold_no_pictures(tmp_path, given):
    (tmp_path / "text").write_text("hello")
    path = None if given == "none" else str(tmp_path / given)
    with pytest.raises(
        DataError, match="give its path|cannot read .*missing|is neither a folder of pictures nor an array"
    ):
        Images(SIZE, SIZE).splits(path)


@pytest.mark.model
def test_the_verb_says_one_line_and_leaves_no_run(tmp_path, capsys):
    beside_whole_ones(tmp_path, "a.png", png(bits=16))
    words = f"train --data {tmp_path} --modality images(width=8,height=8) --context 192 --folder {tmp_path / 'run'}"
    assert main(words.split()) == 3
    assert capsys.readouterr().err.splitlines() == [
        f"asterism: error: data: {tmp_path / 'train' / 'a.png'} has 16 bits a value; values of 8"
        " bits are read: convert it"
    ]
    assert not (tmp_path / "run").exists()
