"""Corpora and windows: every byte in one split, every scored byte scored once, every refusal one clear line."""

import hashlib
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refusing

from asterism.errors import DataError
from asterism.labels import IGNORED
from asterism.training.data.corpora.bytes import load_corpus
from asterism.training.data.corpora.splits import SPLITS, ArrayPieces
from asterism.training.data.corpora.windows import draw_starts, plan_pieces, read_windows


def test_standard_library_splits_are_disjoint_and_known_by_hash():
    corpus = load_corpus()
    sizes = {split: len(corpus.split(split)) for split in SPLITS}
    assert sum(sizes.values()) > 8_000_000
    assert 0.85 < sizes["train"] / sum(sizes.values()) < 0.95
    assert min(sizes.values()) > 100_000
    files = {split: set(corpus.split(split).tobytes().split(b"\0")) - {b""} for split in SPLITS}
    assert not files["train"] & files["validation"] and not files["train"] & files["test"]
    assert corpus.sha256 == load_corpus().sha256
    joined = b"".join(corpus.split(split).tobytes() for split in SPLITS)
    assert corpus.sha256 == hashlib.sha256(joined).hexdigest()
    assert b"class TestCase" in joined and b"site-packages/torch" not in joined


def test_a_file_is_split_by_position(tmp_path):
    path = tmp_path / "some.bin"
    path.write_bytes(bytes(range(200)) * 5)
    corpus = load_corpus(path)
    assert [len(corpus.split(split)) for split in SPLITS] == [900, 50, 50]
    assert b"".join(corpus.split(split).tobytes() for split in SPLITS) == path.read_bytes()
    assert corpus.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert not corpus.train.flags.writeable


def test_enwik8_splits_as_published_and_must_be_whole(tmp_path):
    path = tmp_path / "enwik8"
    with path.open("wb") as file:
        file.truncate(100_000_000)
    corpus = load_corpus(path)
    assert [len(corpus.split(split)) for split in SPLITS] == [90_000_000, 5_000_000, 5_000_000]
    path.write_bytes(b"a" * 1000)
    with refusing(DataError, "incomplete-download", "enwik8", "1,000", "100,000,000"):
        load_corpus(path)


def test_a_folder_is_split_by_file_whatever_else_it_holds(tmp_path):
    for number in range(100):
        (tmp_path / f"{number % 3}").mkdir(exist_ok=True)
        (tmp_path / f"{number % 3}" / f"{number}.txt").write_bytes(b"file %d;" % number)
    before = load_corpus(tmp_path)
    assert sum(len(before.split(split)) for split in SPLITS) == sum(len(b"file %d;" % n) + 1 for n in range(100))
    homes = {name: split for split in SPLITS for name in before.split(split).tobytes().split(b"\0")}
    (tmp_path / "0" / "another.txt").write_bytes(b"another;")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "hidden").write_bytes(b"hidden")
    after = load_corpus(tmp_path)
    assert all(name in after.split(split).tobytes().split(b"\0") for name, split in homes.items())
    assert b"hidden" not in b"".join(after.split(split).tobytes() for split in SPLITS)
    assert after.sha256 != before.sha256


def test_records_are_never_cut(tmp_path):
    path = tmp_path / "images.raw"
    path.write_bytes(b"".join(bytes([number]) * 12 for number in range(50)))
    corpus = load_corpus(path, record_length=12)
    assert [len(corpus.split(split)) for split in SPLITS] == [46 * 12, 24, 24]
    assert set(np.unique(corpus.validation)) == {46, 47}


def _make(tmp_path, kind):
    path = tmp_path / kind
    if kind == "empty":
        path.write_bytes(b"")
    elif kind == "empty folder":
        path.mkdir()
    elif kind == "broken link":
        path.mkdir()
        (path / "a").symlink_to(tmp_path / "nowhere")
    elif kind == "few bytes":
        path.write_bytes(b"0123456789")
    elif kind == "one file in a folder":
        path.mkdir()
        (path / "a").write_bytes(b"only")
    elif kind == "device":
        path = "/dev/null"
    return path


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("missing", "there is no file or folder .*missing"),
        ("empty", "empty is empty"),
        ("empty folder", "empty folder holds no files"),
        ("broken link", "cannot read .*broken link/a: No such file or directory"),
        ("few bytes", "few bytes is too small to split: its validation split is empty"),
        ("one file in a folder", "has 1 documents, too few: their hashes put none into the"),
        ("device", "/dev/null is neither a file nor a folder"),
    ],
)
def test_bad_data_gets_one_clear_line(tmp_path, kind, message):
    with pytest.raises(DataError, match=message) as caught:
        load_corpus(_make(tmp_path, kind))
    assert caught.value.exit_code == 3
    assert "\n" not in str(caught.value)


def test_unreadable_data_names_the_file(tmp_path, monkeypatch):
    path = tmp_path / "secret"
    path.write_bytes(b"x" * 100)

    def refuse(*arguments, **options):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(np, "memmap", refuse)
    with pytest.raises(DataError, match="cannot read .*secret: Permission denied"):
        load_corpus(path)


@pytest.mark.parametrize("record_length", [0, -3, 7])
def test_records_must_fill_the_file(tmp_path, record_length):
    path = tmp_path / "images.raw"
    path.write_bytes(bytes(120))
    with pytest.raises(DataError, match=f"120 bytes, not a multiple of the record length {record_length}"):
        load_corpus(path, record_length=record_length)


def test_records_need_a_file_of_their_own(tmp_path):
    with refusing(DataError, "records-need-file"):
        load_corpus(record_length=12)
    with refusing(DataError, "records-single-file"):
        load_corpus(tmp_path, record_length=12)


def test_a_split_must_hold_one_sequence(tmp_path):
    path = tmp_path / "short"
    path.write_bytes(bytes(1300))
    corpus = load_corpus(path)
    assert len(corpus.require("validation", 64)) == 65
    with pytest.raises(
        DataError, match="the validation split of .* has 65 bytes, but a sequence of context 65 needs 66"
    ):
        corpus.require("validation", 65)
    records = load_corpus(path, record_length=65)
    assert len(records.require("validation", 65)) == 65


LABELLED = ArrayPieces(np.arange(100, dtype=np.uint8), np.array([0, 40, 43, 100]), labels=np.array([2, 0, 1]))
"""Three pieces: longer than a window of 5, shorter, longer."""


def test_windows_read_one_value_behind_what_they_predict():
    stream = ArrayPieces(np.arange(100, dtype=np.uint8), is_stream=True)
    rows = read_windows(stream, np.array([1, 40]), 5)
    assert rows.tolist() == [[0, 1, 2, 3, 4, 5], [39, 40, 41, 42, 43, 44]]
    records = ArrayPieces(np.arange(100, dtype=np.uint8), np.arange(0, 101, 5))
    rows = read_windows(records, np.array([0, 40]), 5)
    assert rows.tolist() == [[0, 0, 1, 2, 3, 4], [0, 40, 41, 42, 43, 44]]


def test_windows_end_with_their_piece_and_begin_with_its_class():
    rows = read_windows(LABELLED, np.array([0, 39, 40, 43, 95]), 5)
    pad = IGNORED
    assert rows.tolist() == [
        [258, 0, 1, 2, 3, 4],
        [38, 39, pad, pad, pad, pad],
        [256, 40, 41, 42, pad, pad],
        [257, 43, 44, 45, 46, 47],
        [94, 95, 96, 97, 98, 99],
    ]


def test_training_reads_pieces_turned_by_a_generator_of_the_window():
    class Turning(ArrayPieces):
        def turned(self, values, random):
            return values[::-1] if random.random() < 0.5 else values

    pieces = Turning(np.arange(64, dtype=np.uint8), np.arange(0, 65, 4))
    starts = np.arange(0, 64, 4)
    plain, turned = read_windows(pieces, starts, 4), read_windows(pieces, starts, 4, turn=(3, 7))
    is_turned = [row == [0, *reversed(there[1:])] for row, there in zip(turned.tolist(), plain.tolist(), strict=True)]
    assert 0 < sum(is_turned) < 16
    assert all(
        turn or row == there for turn, row, there in zip(is_turned, turned.tolist(), plain.tolist(), strict=True)
    )
    assert turned.equal(read_windows(pieces, starts, 4, turn=(3, 7)))
    assert not turned.equal(read_windows(pieces, starts, 4, turn=(3, 8)))


def pieces_of(lengths, is_stream=False):
    bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return ArrayPieces(np.zeros(bounds[-1], dtype=np.uint8), bounds, is_stream=is_stream)


LENGTHS = st.lists(st.integers(1, 50), min_size=1, max_size=6)


@given(st.integers(1, 20), LENGTHS, st.integers(0, 2**32), st.integers(0, 2**40))
def test_drawn_windows_lie_inside_and_depend_on_seed_and_step_only(context, lengths, seed, step):
    state = np.random.get_state()[1].copy()
    size = context + 1 + sum(lengths)
    stream, pieces = pieces_of([size], is_stream=True), pieces_of(lengths)
    starts = draw_starts(stream, context, 8, seed=seed, step=step)
    assert starts.min() >= 1 and starts.max() + context <= size
    drawn = draw_starts(pieces, context, 8, seed=seed, step=step)
    for start in drawn.tolist():
        home = int(np.searchsorted(pieces.bounds, start, side="right")) - 1
        begin, end = pieces.bounds[home], pieces.bounds[home + 1]
        assert start == begin or (begin <= start and start + context <= end)
    assert np.array_equal(drawn, draw_starts(pieces, context, 8, seed=seed, step=step))
    assert np.array_equal(np.random.get_state()[1], state)


def test_draws_reach_both_ends_and_differ_between_steps_and_seeds():
    draws = {
        key: draw_starts(pieces_of([10], is_stream=True), 7, 64, seed=key[0], step=key[1]).tolist()
        for key in [(0, 0), (0, 1), (1, 0)]
    }
    assert all(set(drawn) == {1, 2, 3} for drawn in draws.values())
    assert len({tuple(drawn) for drawn in draws.values()}) == 3


def test_pieces_are_drawn_by_the_windows_they_fill_from_every_place():
    pieces = pieces_of([10, 3, 5])
    drawn = draw_starts(pieces, 5, 4000, seed=0, step=0)
    assert set(drawn.tolist()) == {*range(6), 10, 13}
    shares = [np.mean(drawn < 10), np.mean(drawn == 10), np.mean(drawn == 13)]
    assert np.allclose(shares, [1 / 2, 1 / 4, 1 / 4], atol=0.03)


@given(st.integers(1, 30), LENGTHS, st.booleans(), st.data())
def test_scoring_covers_every_value_once_with_enough_context(context, lengths, is_stream, data):
    pieces = pieces_of([context + sum(lengths)] if is_stream else lengths, is_stream)
    lead = data.draw(st.integers(0, context))
    minimum = data.draw(st.integers(0, lead))
    stop = data.draw(st.integers(context + 1, len(pieces))) if is_stream and len(pieces) > context else len(pieces)
    plan = plan_pieces(pieces, context, minimum, lead, stop)
    scored = []
    for start, first, last in zip(plan.starts.tolist(), plan.firsts.tolist(), plan.stops.tolist(), strict=True):
        home = int(np.searchsorted(pieces.bounds, start, side="right")) - 1
        begin, end = pieces.bounds[home], pieces.bounds[home + 1]
        assert begin <= start and start + last <= min(end, stop) and 0 <= first < last <= context
        # Position i has i + 1 values before it in the window; one fewer where the window begins with its piece.
        assert first + (start > begin) >= minimum
        scored.extend(range(start + first, start + last))
    bounds = zip(pieces.bounds[:-1].tolist(), pieces.bounds[1:].tolist(), strict=True)
    wanted = [place for begin, end in bounds for place in range(begin + max(lead, is_stream), min(end, stop))]
    assert scored == wanted
    assert plan.bytes_scored == len(wanted)


def test_records_are_scored_whole_and_thinning_keeps_windows_spread():
    plan = plan_pieces(pieces_of([12] * 10), 12, 0, 0, 120)
    assert plan.starts.tolist() == list(range(0, 120, 12)) and plan.bytes_scored == 120
    thin = plan.thin(50)
    assert thin.starts.tolist() == [0, 36, 72, 108] and thin.bytes_scored == 48
    assert plan.thin(1000).starts.tolist() == plan.starts.tolist()


def test_a_pipe_in_a_folder_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with refusing(DataError, "bad-entry", "pipe"):
        load_corpus(tmp_path)


def test_the_public_names_of_runs_are_there():
    import asterism.training as training

    for name in training.__all__:
        assert getattr(training, name) is not None
    assert training.load_corpus is load_corpus
