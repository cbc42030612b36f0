"""Data that change, loop, hang, or have names that no program likes: whatever reads them says so in one line."""

import os
import resource
import shutil
import signal
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

from asterism.errors import AsterismError, CheckpointError, ConfigurationError, DataError
from asterism.training.data.corpora.folders import list_folder
from asterism.training.data.corpora.modality import parse_modality
from asterism.training.data.genomes.index import index_of

READERS = {"images(width=8, height=8)": ".png", "audio(rate=8000)": ".wav", "genome()": ".fa", "bytes()": ".raw"}
"""Every modality, and how the names of its files end."""


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASTERISM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@contextmanager
def refused(error: type[AsterismError], message: str):
    """In one line, and before a reader that hangs is given up."""

    def give_up(*_):
        raise TimeoutError("it hangs")

    previous = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(60)
    try:
        with pytest.raises(error, match=message) as seen:
            yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
    assert "\n" not in str(seen.value)


def write(path: Path, seed: int = 0, rate: int = 8000) -> Path:
    """A file of the kind that the end of its name says: noise, of equal length for every seed."""
    random = np.random.Generator(np.random.Philox(seed))
    match path.suffix:
        case ".png":
            Image.fromarray(random.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(path, compress_level=0)
        case ".wav":
            soundfile.write(path, random.uniform(-0.5, 0.5, 5000), rate)
        case ".fa":
            path.write_bytes(b">one\n" + random.choice(np.frombuffer(b"ACGT", dtype=np.uint8), 400_000).tobytes())
        case _:
            path.write_bytes(random.bytes(4000))
    return path


# --- folders ---------------------------------------------------------------------------------------------------------


def test_links_to_folders_are_followed(tmp_path):
    """What lay behind a link was passed over, without a word."""
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "data"
    elsewhere.mkdir()
    folder.mkdir()
    (elsewhere / "a.png").touch()
    (folder / "train").symlink_to(elsewhere)
    assert list_folder(folder) == ["train/a.png"]


@pytest.mark.parametrize("target", ("data", "data/one"))
def test_a_folder_that_links_meet_twice_is_refused(tmp_path, target):
    (tmp_path / "data" / "one").mkdir(parents=True)
    (tmp_path / "data" / "two").symlink_to(tmp_path / target)
    with refused(DataError, "is the same folder as .*, by a link; remove one of them"):
        list_folder(tmp_path / "data")


@pytest.mark.parametrize("is_folder", (False, True))
def test_names_that_are_no_utf_8_are_refused(tmp_path, is_folder):
    """The name of a class is hashed and written down."""
    name = os.fsencode(tmp_path) + b"/b\xff"
    if is_folder:
        os.mkdir(name)
    else:
        os.close(os.open(name, os.O_CREAT))
    with refused(DataError, r"holds the name b'b\\xff', which is not UTF-8: rename it"):
        list_folder(tmp_path)


@pytest.mark.parametrize("text", READERS)
def test_paths_that_no_file_can_have(text):
    for path, message in (("a" * 5000, "File name too long|there is no"), ("a\0b", "no f|cannot be the name")):
        with refused(DataError, message):
            parse_modality(text).splits(path)


# --- what is no file, and what is one no longer ----------------------------------------------------------------------


@pytest.mark.parametrize("text", READERS)
def test_prompts_that_are_no_files(tmp_path, text):
    """Reading a pipe that nobody writes to, or a device, would never end."""
    modality = parse_modality(text)
    os.mkfifo(pipe := tmp_path / f"pipe{READERS[text]}")
    for path in (pipe, Path("/dev/zero")):
        with refused(DataError, "neither a file|is not a file|is empty"):
            modality.read_prompt(path)
    if text != "genome()":  # a folder of one sequence is one
        with refused(DataError, "is a folder; name a file|Is a directory"):
            modality.read_prompt(tmp_path)


def test_a_prompt_of_bytes_has_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr("asterism.training.data.corpora.bytes.LONGEST_PROMPT", 100)
    with refused(DataError, "has 4,000 bytes; a prompt may have at most 100: cut it"):
        parse_modality("bytes()").read_prompt(write(tmp_path / "a.raw"))


@pytest.mark.parametrize("text", [text for text in READERS if text != "bytes()"])
def test_data_that_change_after_they_were_opened(tmp_path, text):
    """A file of the same length, with other contents, would be read without a word."""
    end = READERS[text]
    path = write(tmp_path / f"a{end}")
    if text == "genome()":
        splits = parse_modality('genome(validation="one:1-100000")').splits(str(path))
    else:
        for number in range(1, 4):
            write(tmp_path / f"b{number}{end}", number)
        splits = parse_modality(text).splits(str(tmp_path))
    pieces, first = first_place(splits, path)
    assert len(pieces.read(first, first + 50)) == 50
    write(path, 9)
    if hasattr(pieces, "_block"):
        pieces._block.cache_clear()  # sounds that were decoded last stay in memory
    with refused(DataError, f"a{end}.* has changed since it was .*; start again"):
        pieces.read(first, first + 50)


def first_place(splits, path: Path):
    """The pieces, and where in them those begin that are read from a file."""
    for pieces in map(splits.pieces, ("train", "validation", "test")):
        files = [path]
        if hasattr(pieces, "recordings"):
            files = [recording.path for recording in pieces.recordings]
        elif hasattr(pieces, "pictures"):
            files = [pieces.pictures.root / name for name in pieces.pictures.names]
        if path in files:
            return pieces, int(pieces.bounds[files.index(path)])
    raise AssertionError(path)


def test_a_recording_that_gets_another_rate(tmp_path):
    for number in range(3):
        write(tmp_path / f"{number}.wav", number)
    splits = parse_modality("audio(rate=8000)").splits(str(tmp_path))
    pieces, first = first_place(splits, tmp_path / "0.wav")
    write(tmp_path / "0.wav", rate=16_000)
    with refused(DataError, "has changed since it was first read; start again"):
        pieces.read(first, first + 50)


@pytest.mark.parametrize("content", (b"", b"one\tx\ty\n", b"one\t1000000000\t5\t60\t61\n"), ids=repr)
def test_a_damaged_index_of_a_genome_is_made_again(tmp_path, content):
    """In the cache, which outlives the program that wrote it."""
    path = write(tmp_path / "a.fa")
    expected = parse_modality("genome()").read_prompt(path)
    index_of(path).index.write_bytes(content)
    np.testing.assert_array_equal(parse_modality("genome()").read_prompt(path), expected)


# --- what is written -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", READERS)
def test_a_disk_that_takes_no_more_leaves_nothing_and_is_one_line(tmp_path, text, capfd):
    """libsndfile printed a traceback for every call that failed."""
    modality, output = parse_modality(text), tmp_path / f"out{READERS[text]}"
    random = np.random.Generator(np.random.Philox(0))
    sequences = [random.choice(np.frombuffer(b"ACGT", dtype=np.uint8), 192) for _ in range(40)]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, limits[1]))
    try:
        with refused(CheckpointError, "cannot be written: File too large; see to it"):
            modality.write(sequences, output)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr().err == ""


# --- texts and headers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ("images", "bytes(record_length=True)", "bytes(record_length=1.0)"))
def test_texts_that_are_no_modality(text):
    with refused(ConfigurationError, "missing a required argument: 'width'|must be at least 1"):
        parse_modality(text)


@pytest.mark.parametrize("region", ("one:,-5", "one:1-,", "one:١-٥"))
def test_regions_without_digits(tmp_path, region):
    path = write(tmp_path / "a.fa")
    with refused(DataError, "has no sequence"):
        parse_modality(f"genome(validation={region!r})").splits(str(path))


def test_the_header_of_an_array_in_a_grammar_that_never_ends(tmp_path):
    header = b"(" * 5000 + b"\n"
    path = tmp_path / "a.npy"
    path.write_bytes(b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header)
    with refused(DataError, r"a\.npy: .*EOF|a\.npy"):
        parse_modality("images(width=8, height=8)").splits(str(path))


def test_what_pillow_cannot_identify_is_said_in_our_words(tmp_path):
    content = write(tmp_path / "a.png").read_bytes()
    (tmp_path / "b.png").write_bytes(content[:25] + b"\7" + content[26:])  # a type of colours that there is not
    with refused(DataError, r"b\.png cannot be decoded: what a PNG file says of itself is damaged"):
        parse_modality("images(width=8, height=8)").read_prompt(tmp_path / "b.png")


def test_copies_are_no_other_pictures(tmp_path):
    """A link to a file is the file."""
    (tmp_path / "one").mkdir()
    write(tmp_path / "one" / "a.png")
    (tmp_path / "one" / "b.png").symlink_to("a.png")
    shutil.copy(tmp_path / "one" / "a.png", tmp_path / "one" / "c.png")
    splits = parse_modality("images(width=8, height=8)").splits(str(tmp_path))
    assert sorted(len(splits.pieces(split)) for split in ("train", "validation", "test")) == [0, 0, 3 * 192]
