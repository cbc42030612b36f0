"""Pictures: the same values as Pillow and NumPy read, in splits and classes, decoded when they are read; sheets."""

import base64
import hashlib
import io
import json
import os
import zipfile
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps
from refusals import refusing

from asterism.cli.main import main
from asterism.errors import ConfigurationError, DataError
from asterism.training.data.corpora.modality import parse_modality
from asterism.training.data.corpora.splits import SPLITS
from asterism.training.data.corpora.windows import draw_starts, read_windows
from asterism.training.data.images import Images, arrays, decoding
from asterism.training.data.images.compression import compressed
from asterism.training.data.images.corpus import PictureFiles
from asterism.training.data.images.sheet import GAP, GREY, given, in_rows, write_sheet

RANDOM = np.random.default_rng(0)


def noise(*shape: int) -> np.ndarray:
    return RANDOM.integers(0, 256, shape, dtype=np.uint8)


def save(path: Path, picture: Image.Image | np.ndarray, **settings: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    (picture if isinstance(picture, Image.Image) else Image.fromarray(picture)).save(path, **settings)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Two classes in two splits, in three formats."""
    root = tmp_path_factory.mktemp("pictures")
    for number in range(60):
        kind, suffix = ("dog", "cat")[number % 2], (".png", ".jpg", ".webp")[number % 3]
        save(root / ("train", "test")[number % 5 == 0] / kind / f"{number:02}{suffix}", noise(6, 5, 3))
    return root


# --- files of pictures -----------------------------------------------------------------------------------------------


def test_files_have_the_values_that_pillow_reads(folder):
    splits = Images(width=5, height=6).splits(str(folder))
    seen = 0
    for split in SPLITS:
        pieces = splits.pieces(split)
        assert isinstance(pieces.pictures, PictureFiles)
        for number, name in enumerate(pieces.pictures.names):
            with Image.open(folder / name) as picture:
                expected = np.asarray(picture.convert("RGB")).reshape(-1)
            begin, end = pieces.bounds[number : number + 2]
            assert (pieces.read(begin, end) == expected).all()
            assert (pieces.read(begin + 7, end - 3) == expected[7:-3]).all()
            seen += 1
    assert seen == 60 and len(splits.pieces("test")) == 12 * 90


def test_windows_are_whole_pictures_in_raster_order(folder):
    pieces = Images(width=5, height=6).splits(str(folder)).pieces("train")
    starts = draw_starts(pieces, 90, 8, seed=1, step=2)
    rows = read_windows(pieces, starts, 90).numpy()
    assert (starts % 90 == 0).all() and (rows[:, 0] == 0).all()
    first = pieces.pictures.read(int(starts[0]) // 90, pieces.fitting)
    assert rows[0, 1 + (3 * 5 + 4) * 3 + 2] == first[3, 4, 2]


def test_classes_stand_before_pictures(folder):
    splits = Images(width=5, height=6, classes=2).splits(str(folder))
    pieces = splits.pieces("test")
    assert splits.record()["classes"] == ["cat", "dog"]
    first = read_windows(pieces, pieces.bounds[:-1], 90)[:, 0].tolist()
    assert first == [256] * 6 + [257] * 6
    assert Images(width=5, height=6).splits(str(folder)).pieces("test").labels is None
    assert "classes" not in Images(width=5, height=6).splits(str(folder)).record()
    with refusing(DataError, "classes-differ", "2", "3"):
        Images(width=5, height=6, classes=3).splits(str(folder))


def test_nothing_is_decoded_before_it_is_read(folder, monkeypatch):
    splits = Images(width=5, height=6).splits(str(folder))
    monkeypatch.setattr(decoding, "fit", lambda *_: pytest.fail("decoded"))
    assert Images(width=5, height=6).splits(str(folder)).sha256 == splits.sha256


def test_the_identity_is_of_pictures_and_of_how_they_are_read(folder, tmp_path):
    sizes = {str(Images(5, 6).splits(str(folder)).sha256), Images(5, 5).splits(str(folder)).sha256}
    sizes.add(Images(5, 6, resize="exact").splits(str(folder)).sha256)
    assert len(sizes) == 3
    assert str(Images(5, 6, resize="exact")) == "images(width=5, height=6, resize='exact')"
    again = parse_modality("images(width=5, height=6, resize=exact)")
    assert again.splits(str(folder)).sha256 in sizes


def test_what_is_no_picture_is_left_out_and_said(folder, tmp_path):
    for name in ("train/a.png", "train/notes.txt", "train/.hidden.png"):
        save(tmp_path / "x.png", noise(6, 5, 3))
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((tmp_path / "x.png").read_bytes())
    (tmp_path / "x.png").unlink()
    splits = Images(5, 6).splits(str(tmp_path))
    assert splits.notes == ("1 of 2 files are no PNG, JPEG or WebP and are left out, such as train/notes.txt",)


MODES = {
    "1.png": lambda: Image.fromarray(noise(6, 5) > 99),
    "L.png": lambda: Image.fromarray(noise(6, 5)),
    "L.jpg": lambda: Image.fromarray(noise(6, 5)),
    "P.png": lambda: Image.fromarray(noise(6, 5, 3)).quantize(7),
    "RGB.webp": lambda: Image.fromarray(noise(6, 5, 3)),
    "LA.png": lambda: Image.fromarray(noise(6, 5)).convert("LA"),
    "RGBA.png": lambda: Image.fromarray(noise(6, 5, 3)).convert("RGBA"),
}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", MODES)
def test_modes_are_those_of_pillow(tmp_path, name, channels):
    path = save(tmp_path / name, MODES[name]())
    with Image.open(path) as picture:
        expected = np.asarray(picture.convert("RGB" if channels == 3 else "L"))
    assert (Images(5, 6, channels=channels).read_prompt(path) == expected.reshape(-1)).all()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_orientation_of_a_camera_is_followed(tmp_path, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = save(tmp_path / "a.png", noise(6, 5, 3), exif=exif)
    turned = orientation >= 5
    size = {"width": 6, "height": 5} if turned else {"width": 5, "height": 6}
    with Image.open(path) as picture:
        expected = np.asarray(ImageOps.exif_transpose(picture))
    assert (Images(**size, resize="exact").read_prompt(path) == expected.reshape(-1)).all()


def test_transparent_pixels_have_the_background_that_is_asked_for(tmp_path):
    rgba = noise(6, 5, 4)
    path = save(tmp_path / "a.png", rgba)
    with pytest.raises(DataError, match=r'a\.png has transparent pixels; say what is behind them: background="white"'):
        Images(5, 6).read_prompt(path)
    for background, behind in (("white", 255), ("black", 0)):
        found = Images(5, 6, background=background).read_prompt(path).reshape(6, 5, 3).astype(float)
        alpha = rgba[:, :, 3:] / 255
        assert np.abs(found - (rgba[:, :, :3] * alpha + behind * (1 - alpha))).max() <= 1


def test_pictures_are_cropped_squashed_or_refused(tmp_path):
    wide = np.zeros((8, 24, 3), dtype=np.uint8)
    wide[:, 8:16] = 200
    path = save(tmp_path / "wide.png", wide)
    assert (Images(8, 8).read_prompt(path) == 200).all(), "the middle"
    half = Images(4, 4).read_prompt(path)
    assert half.shape == (48,) and (half > 180).all()
    squashed = Images(3, 8, resize="squash").read_prompt(path).reshape(8, 3, 3)
    assert (squashed[:, 1] > squashed[:, 0] + 100).all() and (squashed[:, 1] > squashed[:, 2] + 100).all()
    with pytest.raises(DataError, match=r"wide\.png has 24 x 8 pixels, not 8 x 8; ask for resize="):
        Images(8, 8, resize="exact").read_prompt(path)


# --- arrays ----------------------------------------------------------------------------------------------------------


def whole(splits, split: str) -> list[bytes]:
    pieces = splits.pieces(split)
    return [pieces.read(a, b).tobytes() for a, b in zip(pieces.bounds, pieces.bounds[1:], strict=False)]


@pytest.mark.parametrize("shape", [(80, 4, 5, 3), (80, 4, 5, 1), (80, 4, 5)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_an_array_is_split_by_its_pictures(tmp_path, shape, order):
    array = noise(*shape)
    np.save(tmp_path / "a.npy", np.asarray(array, order=order))
    channels = 3 if shape[-1] == 3 else 1
    splits = Images(5, 4, channels=channels).splits(str(tmp_path / "a.npy"))
    found = [whole(splits, split) for split in SPLITS]
    assert sorted(sum(found, [])) == sorted(one.tobytes() for one in array)
    order_of = {one.tobytes(): number for number, one in enumerate(array)}
    assert all([order_of[one] for one in part] == sorted(order_of[one] for one in part) for part in found)
    assert len(found[0]) > len(found[1]) + len(found[2])
    assert Images(5, 4, channels=channels).splits(str(tmp_path)).sha256 == splits.sha256


def test_arrays_of_another_size_are_fitted_as_files_are(tmp_path):
    array = noise(3, 9, 7, 3)
    np.save(tmp_path / "train.npy", array)
    np.save(tmp_path / "val.npy", array[:1])
    np.save(tmp_path / "test.npy", array[:2])
    found = whole(Images(4, 4, channels=1).splits(str(tmp_path)), "train")
    for one, picture in zip(found, array, strict=True):
        path = save(tmp_path / "elsewhere" / "one.png", picture)
        assert one == Images(4, 4, channels=1).read_prompt(path).tobytes()
    (tmp_path / "elsewhere" / "one.png").unlink()


@pytest.mark.parametrize("kind", ["files", "arrays"])
def test_pictures_of_a_refused_size_are_refused_before_a_run_is_begun(tmp_path, capsys, kind):
    pictures = noise(3, 4, 4, 3), noise(1, 9, 7, 3)
    for split, some in zip(("train", "val"), pictures, strict=True):
        if kind == "files":
            for number, picture in enumerate(some):
                save(tmp_path / "data" / split / f"{number}.png", picture)
        else:
            (tmp_path / "data").mkdir(exist_ok=True)
            np.save(tmp_path / "data" / f"{split}.npy", some)
    words = ["--modality", "images(width=4, height=4, resize='exact')", "--context", "48", "--dtype", "float32"]
    run = tmp_path / "run"
    assert main(["train", *words, "--data", str(tmp_path / "data"), "--folder", str(run), "--steps", "1"]) == 3
    place = "val/0.png has" if kind == "files" else "val.npy: picture 0 has"
    assert f"{place} 7 x 9 pixels, not 4 x 4" in capsys.readouterr().err
    assert not run.exists()


def test_a_picture_that_its_camera_turned_has_its_size(tmp_path):
    """Its first bytes say 7 x 9."""
    exif = Image.Exif()
    exif[0x0112] = 6
    (tmp_path / "train").mkdir()
    Image.fromarray(noise(9, 7, 3)).save(tmp_path / "train" / "one.png", exif=exif)
    splits = Images(9, 7, resize="exact").splits(str(tmp_path))
    assert [len(one) for split in SPLITS for one in whole(splits, split)] == [9 * 7 * 3]


def write_cifar(root: Path, batches: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Batches as their authors describe them: a byte of label, 1024 of red, of green, of blue."""
    random = np.random.default_rng(1)
    labels = random.integers(0, 10, (batches + 1, 40), dtype=np.uint8)
    planes = random.integers(0, 256, (batches + 1, 40, 3, 32, 32), dtype=np.uint8)
    for number in range(batches + 1):
        name = f"data_batch_{number + 1}.bin" if number < batches else "test_batch.bin"
        rows = [bytes([label]) + one.tobytes() for label, one in zip(labels[number], planes[number], strict=True)]
        (root / name).write_bytes(b"".join(rows))
    return labels, planes


def test_cifar_batches(tmp_path):
    labels, planes = write_cifar(tmp_path)
    (tmp_path / "batches.meta.txt").write_text("airplane")
    splits = Images(32, 32, classes=10).splits(str(tmp_path))
    pixels = np.moveaxis(planes, 2, 4)
    assert whole(splits, "test") == [one.tobytes() for one in pixels[2]]
    assert splits.pieces("test").labels.tolist() == labels[2].tolist()
    hashes = [int.from_bytes(hashlib.sha256(one.tobytes()).digest()[:8], "big") for one in pixels[:2].reshape(80, -1)]
    assert len(whole(splits, "validation")) == sum(one % 100 >= 95 for one in hashes) > 0
    train = whole(splits, "train") + whole(splits, "validation")
    assert sorted(train) == sorted(one.tobytes() for one in pixels[:2].reshape(80, 32, 32, 3))
    homes = dict(zip(train, [*splits.pieces("train").labels, *splits.pieces("validation").labels], strict=True))
    assert all(homes[one.tobytes()] == label for one, label in zip(pixels[1], labels[1], strict=True))


@pytest.mark.parametrize("save_npz", [np.savez, np.savez_compressed])
def test_imagenet_files(tmp_path, save_npz):
    """The layout of the downsampled ImageNet: rows of planes, labels from 1 on."""
    planes, labels = noise(30, 3, 8, 8), RANDOM.integers(1, 5, 30)
    save_npz(tmp_path / "train_data_batch_1.npz", data=planes[:20].reshape(20, -1), labels=labels[:20])
    save_npz(tmp_path / "val_data.npz", data=planes[20:].reshape(10, -1), labels=labels[20:], mean=np.zeros(192))
    splits = Images(8, 8, classes=4).splits(str(tmp_path))
    pixels = np.moveaxis(planes, 1, 3)
    assert whole(splits, "validation") == [one.tobytes() for one in pixels[20:]]
    assert splits.pieces("validation").labels.tolist() == (labels[20:] - 1).tolist()
    assert sorted(whole(splits, "train") + whole(splits, "test")) == sorted(one.tobytes() for one in pixels[:20])


def test_arrays_are_mapped_not_read(tmp_path):
    """A file of 3 GB whose pictures are never touched; and what is unpacked has no name."""
    header = BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "|u1", "fortran_order": False, "shape": (1_000_000, 32, 32, 3)}
    )
    with (tmp_path / "a.npy").open("wb") as file:
        file.write(header.getvalue())
        file.truncate(len(header.getvalue()) + 1_000_000 * 3072)
    opened = arrays.open_array(tmp_path / "a.npy")
    assert opened.pictures.shape == (1_000_000, 32, 32, 3) and opened.pictures[-1].sum() == 0
    before = set(os.listdir(tmp_path))
    np.savez(tmp_path / "b.npz", data=noise(2, 12))
    assert arrays.open_array(tmp_path / "b.npz").pictures.shape == (2, 2, 2, 3)
    assert set(os.listdir(tmp_path)) == before | {"b.npz"}


# --- what is written -------------------------------------------------------------------------------------------------


def test_a_sheet_holds_the_pictures(tmp_path):
    pictures = [noise(5, 4, 3) for _ in range(5)]
    assert [len(row) for row in in_rows(pictures)] == [3, 2]
    write_sheet(in_rows(pictures), tmp_path / "sheet.png")
    sheet = np.asarray(Image.open(tmp_path / "sheet.png"))
    times = 13  # 64 pixels and more
    assert sheet.shape == (2 * (5 * times + GAP) + GAP, 3 * (4 * times + GAP) + GAP, 3)
    for number, picture in enumerate(pictures):
        top, left = GAP + (number // 3) * (5 * times + GAP), GAP + (number % 3) * (4 * times + GAP)
        assert (sheet[top : top + 5 * times : times, left : left + 4 * times : times] == picture).all()
    assert (sheet[:GAP] == GREY).all() and (sheet[GAP + 5 * times + GAP :, 2 * (4 * times + GAP) + GAP :] == GREY).all()


def test_completions_stand_between_what_was_given_and_the_original(tmp_path):
    images = Images(4, 5, channels=1)
    originals, made = noise(2, 20), noise(2, 20)
    images.write_completions(list(originals), [8, 8], [[one] for one in made], tmp_path / "sheet.png")
    sheet = np.asarray(Image.open(tmp_path / "sheet.png"))
    cells = [
        [sheet[GAP + r * 67 : 67 + r * 67 : 13, GAP + c * 54 : 54 + c * 54 : 13] for c in range(3)] for r in (0, 1)
    ]
    for row, original, one in zip(cells, originals, made, strict=True):
        assert (row[0].reshape(-1) == given(original, 8)).all() and (row[0][2:] == GREY).all()
        assert (row[1].reshape(-1) == one).all() and (row[2].reshape(-1) == original).all()


def test_a_half_is_of_whole_rows():
    images = Images(4, 5)
    assert images.kept(60, None) == 24 and images.kept(60, 0.7) == 48 and images.kept(60, 1.0) == 60


def test_compressors_are_counted_by_their_data_alone():
    """Noise takes its own size, and a flat picture next to nothing: what a file says about itself is not counted.

    JPEG XL is: of noise it says more about its own codes than others do."""
    for channels in (1, 3):
        flat = np.full((4, 32, 32, channels), 7, dtype=np.uint8)
        for array, least, most, of_jpeg_xl in ((noise(4, 32, 32, channels), 7.9, 8.6, 9.2), (flat, 0, 0.3, 0.3)):
            bits = compressed(array)
            assert least < bits.pop("jpeg xl lossless") < of_jpeg_xl
            assert all(least < one < most for one in bits.values()), bits


def smooth(count: int, side: int, channels: int) -> np.ndarray:
    """Planes that rise evenly, their channels alike, with a little noise: what neighbours say much about."""
    random = np.random.default_rng(count)
    slope = random.uniform(-3, 3, (count, 2, 1, 1, 1))
    at = np.arange(side)
    planes = 128 + slope[:, 0] * (at[:, None, None] - side / 2) + slope[:, 1] * (at[None, :, None] - side / 2)
    planes = planes + random.normal(0, 1, (count, side, side, channels)) + random.uniform(-20, 20, (count, 1, 1, 1))
    return np.clip(planes.round(), 0, 255).astype(np.uint8)


def test_baselines_are_of_the_pictures_that_are_scored(tmp_path):
    np.save(tmp_path / "train.npy", smooth(50, 8, 3))
    np.save(tmp_path / "val.npy", smooth(4, 8, 3))
    np.save(tmp_path / "test.npy", np.concatenate([smooth(9, 8, 3), noise(9, 8, 8, 3)]))
    images = Images(8, 8)
    splits = images.splits(str(tmp_path))
    even, all_of_them = (images.baselines(splits, "test", 0, pictures * 192) for pictures in (9, 18))
    noisy = images.baselines(splits, "test", 9 * 192, 18 * 192)
    assert even.keys() == {"png", "webp lossless", "jpeg xl lossless"}
    assert max(even.values()) < 7 < min(noisy.values())
    for name, bits in all_of_them.items():
        assert bits == pytest.approx((even[name] + noisy[name]) / 2)


# --- refusals of settings --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("images()", "missing a required argument: 'width'"),
        ("images(width=0, height=3)", "width=0 must be a whole number above 0"),
        ("images(width=3, height='4')", "height='4' must be a whole number above 0"),
        ("images(width=True, height=3)", "width=True must be a whole number"),
        ("images(8, 8, channels=4)", "channels=4 must be 1 or 3"),
        ("images(8, 8, channels=True)", "channels=True must be 1 or 3"),
        ("images(4096, 4096)", "gives more than 16,777,216 values"),
        ("images(8, 8, resize=crp)", r"resize='crp' must be one of crop, squash, exact\. Did you mean 'crop'"),
        ("images(8, 8, background=red)", "background='red' must be one of None, white, black"),
        ("images(8, 8, classes=0)", "classes=0 must be at least 1"),
        ("images(widht=8, height=8)", "has no argument 'widht'. Did you mean 'width'"),
    ],
)
def test_settings_that_cannot_work(text, message):
    with pytest.raises(ConfigurationError, match=message) as caught:
        parse_modality(text)
    assert "\n" not in str(caught.value)


def test_pillow_is_asked_for_by_the_extra_that_brings_it(monkeypatch, tmp_path):
    monkeypatch.setattr("asterism.presence.find_spec", lambda name: None)
    for ask in (lambda: Images(8, 8).splits(str(tmp_path)), lambda: Images(8, 8).refuse_output(tmp_path / "a.png")):
        with refusing(ConfigurationError, "package-missing", "Pillow", "images"):
            ask()


# --- a run -----------------------------------------------------------------------------------------------------------


@pytest.mark.model
def test_a_run_trains_on_pictures_and_completes_them(folder, tmp_path, capsys):
    from asterism.training.pipeline import evaluate, train
    from asterism.training.run.folder import RunFolder
    from asterism.training.settings.configuration import ModelConfig, RunConfig

    (folder / "train" / "dog" / "labels.txt").write_text("dog")
    model = ModelConfig(
        mixers="strided(stride=15)",
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        position_type="factorised",
        position_shape=(6, 5, 3),
    )
    config = RunConfig(model=model, data=str(folder), modality="images(width=5, height=6, classes=2)", context=90)
    config = replace(config, batch_size=4, steps=3, warmup_steps=1, dtype="float32")
    report = train(config, tmp_path / "run", progress=False)
    notes = RunFolder(tmp_path / "run").read_record()["notes"]
    assert [note for note in notes if note.endswith("are left out, such as train/dog/labels.txt")]
    assert report.validation_bits_per_byte == pytest.approx(8, abs=1)
    (sample,) = [json.loads(line) for line in (tmp_path / "run" / "samples.jsonl").read_text().splitlines()]
    assert sample["shown"] == ["original", "each value from those before", "given", "completed"]
    with Image.open(io.BytesIO(base64.b64decode(sample["picture"].removeprefix("data:image/png;base64,")))) as sheet:
        original, _, given, completed = np.array_split(np.asarray(sheet)[2:, 2:], 4, axis=1)
    half = len(original) // 2 - 2
    assert (original[:half] == given[:half]).all() and (original[:half] == completed[:half]).all()
    assert (given[half + 4 :] == 128).all() and (completed[half + 4 :] != original[half + 4 :]).any()
    assert {"png", "webp lossless"} <= report.baselines.keys()
    assert evaluate(tmp_path / "run", split="test").bytes_scored == 12 * 90
    for extra in (["--complete", "3"], ["--label", "dog", "cat", "--count", "2"], ["--count", "4"]):
        sheet = tmp_path / f"{extra[0][2:]}.png"
        assert main(["generate", str(tmp_path / "run"), "--output", str(sheet), *extra, "--json"]) == 0
        made = json.loads(capsys.readouterr().out)
        assert made["files"] == [str(sheet)] and made["unit"] == "values" and made["milliseconds_per_value"] > 0
        with Image.open(sheet) as picture:
            assert picture.format == "PNG"
    prompt = next((folder / "test" / "cat").iterdir())
    command = ["generate", str(tmp_path / "run"), "--prompt", str(prompt), "--label", "0"]
    assert main([*command, "--output", str(tmp_path / "one.png"), "--keep", "0.5"]) == 0
    assert main([*command, "--output", str(tmp_path / "one.jpg")]) == 2
    assert main(["generate", str(tmp_path / "run"), "--prompt", "x"]) == 2
    assert "give --output FILE.png" in capsys.readouterr().err


def test_an_npz_needs_its_data(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("other.npy", b"x")
    with pytest.raises(DataError, match=r"a\.npz: has no array 'data'; it holds other\.npy"):
        Images(8, 8).splits(str(tmp_path))
