"""Long Range Arena in small: its generators, which nothing but the task may betray, its readers, and its findings."""

import io
import json
import lzma
import math
import statistics
import tarfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from asterism.errors import DataError
from asterism.reproduce.data import listops, pathfinder, pictures, reviews
from asterism.reproduce.data.pathfinder import APART, DASH_VALUE, DOT_VALUE, JOINED, Size
from asterism.reproduce.experiment import Experiment, Results
from asterism.reproduce.experiments import arena
from asterism.reproduce.experiments.lra_image import IMAGE, LRA_IMAGE
from asterism.reproduce.experiments.lra_listops import LISTOPS, LRA_LISTOPS
from asterism.reproduce.experiments.lra_pathfinder import LRA_PATHFINDER, PATHFINDER
from asterism.reproduce.experiments.lra_text import LRA_TEXT, TEXT
from asterism.reproduce.trials import DATA, Training

EXPERIMENTS = (LRA_LISTOPS, LRA_PATHFINDER, LRA_TEXT, LRA_IMAGE)
SIZES = (Size(16, 3, 1, 2), Size(32, 6, 3, 3))


# --- ListOps ----------------------------------------------------------------------------------------------------------


def reduced(text: str) -> int:
    """The result of an expression, by replacing an innermost operation with its result until a digit is left."""
    rules = {
        "n": min,
        "x": max,
        "d": lambda digits: math.floor(statistics.median(digits)),
        "s": lambda digits: sum(digits) % 10,
    }
    while len(text) > 1:
        end = text.index(")")
        begin = max(text.rfind(letter, 0, end) for letter in rules)
        digits = [int(one) for one in text[begin + 1 : end]]
        assert 2 <= len(digits) <= listops.MOST_ARGUMENTS
        text = f"{text[:begin]}{rules[text[begin]](digits)}{text[end + 1 :]}"
    return int(text)


def depth(text: str) -> int:
    """How deep operations are nested."""
    return int(np.cumsum([{")": -1}.get(one, int(one in "nxds")) for one in text]).max())


def test_results_of_listops_are_those_of_an_evaluator_that_rewrites_the_text():
    made = list(listops.expressions(300, 100, 500, seed=0))
    assert [result for _, result in made] == [reduced(text) for text, _ in made]
    assert all(100 <= len(text) <= 500 for text, _ in made)
    assert 3 < max(depth(text) for text, _ in made) <= listops.DEEPEST
    assert {text[0] for text, _ in made} == set(listops.OPERATIONS.values())
    assert {result for _, result in made} == set(range(10))


def test_median_of_an_even_count_is_rounded_down_and_an_evaluator_sees_a_wrong_result():
    assert reduced("d82)") == 5 and reduced("d1234)") == 2 and reduced("sd82)9n31))") == 5
    assert reduced("x12)") != 1


def test_listops_depend_on_the_seed_and_are_new_in_another():
    one, same, other = ([text for text, _ in listops.expressions(40, 50, 90, seed)] for seed in (0, 0, 1))
    assert one == same and not set(one) & set(other)
    assert one[:10] == [text for text, _ in listops.expressions(10, 50, 90, 0)]


def test_listops_are_written_as_a_run_reads_them(tmp_path):
    listops.write_expressions(tmp_path / "rows.jsonl", 5, 20, 60, seed=3)
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [(row["text"], int(row["label"])) for row in rows] == list(listops.expressions(5, 20, 60, seed=3))


# --- Pathfinder -------------------------------------------------------------------------------------------------------


def dots_of(picture: np.ndarray) -> list[tuple[int, int]]:
    """The middles of the two squares of 3 x 3 pixels."""
    bright = picture == DOT_VALUE
    places = np.argwhere(bright[:-2, :-2] & bright[2:, 2:] & bright[:-2, 2:] & bright[2:, :-2] & bright[1:-1, 1:-1])
    return [(int(row) + 1, int(column) + 1) for row, column in places]


def reached(picture: np.ndarray, start: tuple[int, int], ends: list[tuple[int, int]]) -> set[tuple[int, int]]:
    """The pixels of curves that steps of at most two pixels reach from a dot."""
    there = {tuple(place) for place in np.argwhere(picture == DASH_VALUE).tolist()} | set(ends)
    seen, left = {start}, [start]
    while left:
        row, column = left.pop()
        near = {(row + down, column + right) for down in range(-2, 3) for right in range(-2, 3)}
        left += (new := (near & there) - seen)
        seen |= new
    return seen


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_flood_from_a_dot_finds_the_other_in_joined_pictures_alone(size):
    for scene in pathfinder.scenes(60, size, seed=0):
        picture = pathfinder.drawn(scene, size.side)
        dots = dots_of(picture)
        assert sorted(dots) == sorted(scene.dots)
        flood = reached(picture, dots[0], dots)
        assert (dots[1] in flood) == (scene.label == JOINED)
        assert len(flood) >= 3 * size.dashes - 2 * (scene.label == JOINED) - 1


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_classes_of_pathfinder_are_equally_many_and_have_the_same_pixels(size):
    scenes = list(pathfinder.scenes(60, size, seed=1))
    assert Counter(scene.label for scene in scenes) == {JOINED: 30, APART: 30}
    dashes = 3 * (2 * size.dashes + size.distractors * size.short)
    for scene in scenes:
        counts = Counter(pathfinder.drawn(scene, size.side).reshape(-1).tolist())
        # A dot hides two pixels of the dash that it ends.
        assert counts == {0: size.side**2 - dashes + 4 - 18, DASH_VALUE: dashes - 4, DOT_VALUE: 18}
        assert sorted(len(curve) for curve in scene.curves) == sorted(
            [3 * size.dashes] * 2 + [3 * size.short] * size.distractors
        )


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_the_distance_of_dots_says_nothing_of_the_class(size):
    for scene in pathfinder.scenes(60, size, seed=2):
        ends = [curve[at] for curve in scene.curves[:2] for at in (0, -1)]
        assert set(scene.dots) <= set(ends)
        far = {math.dist(scene.dots[0], end): end for end in ends if end not in scene.dots}
        own = next(curve for curve in scene.curves[:2] if scene.dots[0] in (curve[0], curve[-1]))
        joins = scene.dots[1] in (own[0], own[-1])
        assert joins == (scene.label == JOINED)
        # An end that would give the other class is exactly as far.
        found = far[math.dist(*scene.dots)]
        assert (found in (own[0], own[-1])) != joins


def test_pathfinder_depends_on_the_seed_and_is_written_as_bytes_by_class(tmp_path):
    size = SIZES[0]
    one, same, other = (list(pathfinder.scenes(8, size, seed)) for seed in (0, 0, 1))
    assert one == same and {scene.dots for scene in one} != {scene.dots for scene in other}
    pathfinder.write_scenes(tmp_path / "made", 8, size, 0)
    files = sorted((tmp_path / "made").glob("*/*.bin"), key=lambda path: path.name)
    assert [path.parent.name for path in files] == [scene.label for scene in one]
    drawn = [pathfinder.drawn(scene, size.side).tobytes() for scene in one]
    assert [path.read_bytes() for path in files] == drawn


# --- data of the user -------------------------------------------------------------------------------------------------


def write_archive(path: Path, of_each: int, side: int = 32) -> None:
    """An archive of plain pictures, the second class brighter than the first."""
    with tarfile.open(path, "w:gz") as archive:
        for split in ("train", "test"):
            for level, label in ((40, "cat"), (200, "ship")):
                for number in range(of_each):
                    held = io.BytesIO()
                    Image.new("RGB", (side, side), (level + number,) * 3).save(held, "JPEG")
                    entry = tarfile.TarInfo(f"{split}/{label}/{number:04}.jpg")
                    entry.size = held.tell()
                    held.seek(0)
                    archive.addfile(entry, held)


def test_pictures_are_grey_bytes_in_the_folder_of_their_class(tmp_path):
    write_archive(tmp_path / pictures.ARCHIVE, 3)
    pictures.write_pictures(tmp_path / "made", tmp_path / pictures.ARCHIVE, "train", 2)
    files = sorted((tmp_path / "made").glob("*/*.bin"))
    assert [path.parent.name for path in files] == ["cat", "cat", "ship", "ship"]
    assert [set(path.read_bytes()) for path in files] == [{40}, {41}, {200}, {201}]
    assert {path.stat().st_size for path in files} == {1024}


def test_archives_that_do_not_do_are_refused(tmp_path):
    with pytest.raises(DataError, match="cannot read"):
        pictures.grey_pictures(tmp_path / "none.tar.gz", "train", 1)
    for name, value in (("GNU.sparse.map", "x,y"), ("size", "9" * 40)):
        with tarfile.open(tmp_path / "hostile.tar", "w", format=tarfile.PAX_FORMAT) as archive:
            member = tarfile.TarInfo("train/cat/0.jpg")
            member.pax_headers = {name: value}
            archive.addfile(member)
        with pytest.raises(DataError, match="cannot read"):
            pictures.grey_pictures(tmp_path / "hostile.tar", "train", 1)
    with tarfile.open(tmp_path / "damaged.tar.xz", "w:xz") as archive:
        member = tarfile.TarInfo("train/cat/0.jpg")
        member.size = 2**16
        archive.addfile(member, io.BytesIO(np.random.default_rng(0).bytes(member.size)))
    content = bytearray((tmp_path / "damaged.tar.xz").read_bytes())
    content[2**15 : 2**15 + 99] = bytes(99)
    (tmp_path / "damaged.tar.xz").write_bytes(content)
    with pytest.raises(DataError, match="cannot read"):
        pictures.grey_pictures(tmp_path / "damaged.tar.xz", "train", 1)
    write_archive(tmp_path / "few.tar.gz", 1)
    with pytest.raises(DataError, match="must have 2 pictures of each class, got 1"):
        pictures.grey_pictures(tmp_path / "few.tar.gz", "train", 2)
    with pytest.raises(DataError, match="got 0"):
        pictures.grey_pictures(tmp_path / "few.tar.gz", "other", 1)
    write_archive(tmp_path / "small.tar.gz", 1, side=16)
    with pytest.raises(DataError, match="must have 32 x 32 pixels"):
        pictures.grey_pictures(tmp_path / "small.tar.gz", "train", 1)


def write_film_reviews(path: Path, count: int) -> None:
    """Reviews of which a word has the label."""
    with lzma.open(path, "wt", encoding="utf-8") as file:
        for number in range(count):
            kind = ("pos", "neg")[number % 2]
            file.write(json.dumps({"text": f"{kind} é {number:03} and more", "label": kind}) + "\n")


def test_reviews_are_chosen_by_the_seed_and_cut_between_characters(tmp_path):
    write_film_reviews(tmp_path / "all.xz", 40)
    found = reviews.cut_reviews(tmp_path / "all.xz", 10, 5, seed=0)
    assert set(found) == {("pos ", "pos"), ("neg ", "neg")}
    whole = reviews.cut_reviews(tmp_path / "all.xz", 40, 100, seed=0)
    assert len(set(whole)) == 40 and all(text.startswith(label) for text, label in whole)
    assert whole[:10] == reviews.cut_reviews(tmp_path / "all.xz", 10, 100, seed=0)
    assert whole != reviews.cut_reviews(tmp_path / "all.xz", 40, 100, seed=1)


def test_reviews_that_do_not_do_are_refused(tmp_path):
    write_film_reviews(tmp_path / "few.xz", 2)
    with pytest.raises(DataError, match="must have at least 3 reviews, got 2"):
        reviews.cut_reviews(tmp_path / "few.xz", 3, 5, seed=0)
    (tmp_path / "plain.xz").write_text("no archive")
    (tmp_path / "other.xz").write_bytes(lzma.compress(b'{"words": 1}\n'))
    for name in ("plain.xz", "other.xz", "none.xz"):
        with pytest.raises(DataError, match="cannot read"):
            reviews.cut_reviews(tmp_path / name, 1, 5, seed=0)


# --- models without attention -----------------------------------------------------------------------------------------


def test_a_regression_learns_what_is_linear_and_no_more():
    random = np.random.default_rng(0)
    rows = random.normal(size=(400, 6))
    linear = np.where(rows[:, 0] + rows[:, 1] > 0, "yes", "no").tolist()
    crossed = np.where(rows[:, 0] * rows[:, 1] > 0, "yes", "no").tolist()
    for labels, least, most in ((linear, 0.95, 1.0), (crossed, 0.3, 0.65)):
        said = arena.regression(rows[:300], labels[:300], rows[300:])
        assert least <= np.mean(np.array(said) == labels[300:]) <= most


def test_the_most_frequent_class_is_that_of_training():
    found = arena.simple_figures(["a", "b", "b", "b"], ["a", "a", "b"], ["a", "b", "b", "a"])
    assert found == {"accuracy": 0.75, "most frequent": 0.5}


@pytest.mark.slow
def test_pixels_of_pathfinder_say_nothing_to_a_regression_and_those_near_the_line_say_much():
    sizes = replace(PATHFINDER.sizes["laptop"], rows=500, tested=500, length=256)
    known, tested = (list(pathfinder.scenes(500, SIZES[0], seed)) for seed in (0, 1))
    pixels, new = (
        np.stack([pathfinder.drawn(scene, 16).reshape(-1) for scene in some]).astype(float) for some in (known, tested)
    )
    labels, right = ([scene.label for scene in some] for some in (known, tested))
    found = arena.simple_figures(arena.regression(pixels, labels, new), labels, right)
    assert found["most frequent"] == 0.5 and abs(found["accuracy"] - 0.5) < 0.08
    assert 0.8 < PATHFINDER.simple.score(Path(), sizes, 500)["accuracy"] < 0.97


def test_symbols_of_listops_say_something():
    sizes = replace(LISTOPS.sizes["laptop"], rows=800, tested=500)
    found = LISTOPS.simple.score(Path(), sizes, 800)
    assert found["accuracy"] > found["most frequent"] + 0.03


def test_words_and_pixels_are_read_from_the_folder_of_data(tmp_path):
    for name in (reviews.TRAIN, reviews.TEST):
        write_film_reviews(tmp_path / name, 60)
    sizes = replace(TEXT.sizes["laptop"], rows=60, tested=60)
    assert TEXT.simple.score(tmp_path, sizes, 40) == {"accuracy": 1.0, "most frequent": 0.5}
    write_archive(tmp_path / pictures.ARCHIVE, 4)
    sizes = replace(IMAGE.sizes["laptop"], rows=40, tested=40)
    assert IMAGE.simple.score(tmp_path, sizes, 40)["accuracy"] == 1.0


# --- experiments ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda one: one.name)
def test_runs_differ_in_their_pattern_alone_and_names_say_what_decides_files(experiment):
    runs = [one for one in experiment.trials("laptop") if isinstance(one, Training)]
    assert [one.name for one in runs] == list(arena.MODELS)
    assert len({one.config.model for one in runs}) == len(runs)
    assert {one.name for one in runs if one.config.learning_rate != arena.RATE} == {"FNet"}
    assert len({replace(one.config, model="same", learning_rate=1.0) for one in runs}) == 1
    assert len({json.dumps(one.settings()) for one in experiment.trials("laptop")}) == len(runs) + 1
    more = experiment.trials("workstation")[-1]
    assert set(experiment.setting) == {"laptop", "workstation"} and more.seed == 2
    assert runs[-1].config.data != more.config.data or experiment is LRA_TEXT or experiment is LRA_IMAGE


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda one: one.name)
def test_what_is_set_is_what_is_said(experiment):
    sizes = experiment.trials.args[0].sizes["laptop"]
    said = experiment.setting["laptop"]
    for number in (sizes.steps, sizes.batch, sizes.tested):
        assert f"{number:,}" in said or f"{number}" in said


@pytest.mark.model
@pytest.mark.parametrize("mixer", [1, -1], ids=["window", "FNet"])
@pytest.mark.parametrize("task", (LISTOPS, PATHFINDER), ids=lambda one: one.title)
def test_a_run_of_each_kind_of_rows_reports_accuracy(tmp_path, task, mixer):
    length = 502 if task is LISTOPS else 256
    sizes = arena.Sizes(length=length, rows=200, tested=8, steps=2, batch=4)
    small = replace(task, sizes={"laptop": sizes})
    (tmp_path / DATA).mkdir()
    found = arena.trials(small, "laptop")[mixer].run(tmp_path)
    assert 0 <= found["accuracy"] <= 1 and 50_000 < found["parameters"] < 100_000


def made_up(task: arena.Arena, frequent: float, simple: float, right: dict[str, float]) -> Results:
    """Results of these accuracies."""
    rows = [{"trial": task.simple.name, "figures": {"accuracy": simple, "most frequent": frequent}}]
    rows += [{"trial": name, "figures": {"accuracy": value, "minutes": 1.0}} for name, value in right.items()]
    return Results(rows)


RIGHT = dict(zip(arena.MODELS, (0.20, 0.30, 0.39, 0.40, 0.40, 0.40, 0.38), strict=True))


def verdicts(experiment: Experiment, results: Results) -> list[bool | None]:
    """Whether each finding holds."""
    return [one.holds for one in experiment.findings(results)]


def test_findings_are_decided_by_figures():
    every = made_up(LISTOPS, 0.1, 0.25, RIGHT)
    assert verdicts(LRA_LISTOPS, every) == [True] * 7
    # A window of 17 has 0.269 above the most frequent class, less than nine tenths of 0.3.
    near = made_up(LISTOPS, 0.1, 0.25, RIGHT | {"window of 17": 0.369})
    assert verdicts(LRA_LISTOPS, near) == [True, False, True, True, True, True, True]
    better = made_up(LISTOPS, 0.1, 0.45, RIGHT | {"window of 257": 0.43, "FNet": 0.36})
    assert verdicts(LRA_LISTOPS, better) == [True, True, True, False, True, False, False]
    flat = made_up(LISTOPS, 0.1, 0.25, dict.fromkeys(arena.MODELS, 0.12))
    assert verdicts(LRA_LISTOPS, flat) == [False, None, None, True, False, False, None]
    assert verdicts(LRA_LISTOPS, Results([])) == [None] * 7
    assert "10.0%" in str(LRA_LISTOPS.findings(every)[0])


def test_tables_and_plots_show_what_there_is():
    for experiment, task in zip(EXPERIMENTS, (LISTOPS, PATHFINDER, TEXT, IMAGE), strict=True):
        table = experiment.table(made_up(task, 0.1, 0.25, RIGHT))
        assert [row[0] for row in table.rows] == [
            "most frequent class",
            task.simple.name,
            *arena.MODELS,
            *arena.PUBLISHED,
        ]
        assert table.rows[7][1] == "40.0%" and table.rows[9][2] == f"{task.published['small setting, softmax']}%"
        (axes,) = experiment.draw(made_up(task, 0.1, 0.25, RIGHT)).axes
        assert len(axes.lines) == 5
        (axes,) = experiment.draw(Results([])).axes
        assert len(axes.lines) == 1


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda one: one.name)
def test_published_sizes_can_be_counted(experiment):
    for config, parameters in experiment.published().values():
        assert parameters is None and config.model.hidden_size == 64 and config.learning_rate == 1e-4
