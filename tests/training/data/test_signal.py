"""Signal of bigWig files: the values that pybigtools reads, and every damage refused in one line."""

import gzip
import struct
import warnings
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asterism.errors import DataError
from asterism.training.data.genomes import signal
from asterism.training.data.genomes.intervals import Interval
from asterism.training.data.genomes.signal import Signal

pybigtools = pytest.importorskip("pybigtools")


def write(path, lengths, rows):
    pybigtools.open(str(path), "w").write(lengths, rows)
    return path


@st.composite
def signals(draw):
    """Lengths of sequences, and rows that lie one behind the other."""
    lengths, rows = {}, []
    for number in range(draw(st.integers(1, 3))):
        name, place = f"chr{number}", 0
        for _ in range(draw(st.integers(number == 0, 30))):
            start = place + draw(st.integers(0, 50))
            place = start + draw(st.integers(1, 50))
            rows.append((name, start, place, draw(st.floats(-100, 100, width=32))))
        lengths[name] = place + draw(st.integers(1, 50))
    return lengths, rows


@settings(max_examples=40)
@given(signals(), st.data())
def test_values_are_those_of_pybigtools(tmp_path_factory, drawn, data):
    lengths, rows = drawn
    path = write(tmp_path_factory.mktemp("signal") / "s.bw", lengths, rows)
    ours, theirs = Signal(path), pybigtools.open(str(path))
    assert set(ours.lengths) <= set(lengths) and ours.lengths == theirs.chroms()
    for name, length in ours.lengths.items():
        start = data.draw(st.integers(0, length))
        stop = data.draw(st.integers(start, length))
        want = np.zeros(length, dtype=np.float32)
        for _, begin, end, value in (row for row in rows if row[0] == name):
            want[begin:end] = value
        assert np.array_equal(ours.values(name, start, stop), want[start:stop])
        if start < stop:
            reference = theirs.values(name, start, stop, fillna=0)
            assert np.array_equal(ours.values(name, start, stop), reference.astype(np.float32))


def test_many_sections_are_found_by_the_tree(tmp_path):
    """A hundred thousand values: branches above leaves, and a sequence in many sections."""
    value = np.random.default_rng(0).normal(size=100_000).astype(np.float32)
    rows = [("a", 3 * at, 3 * at + 2, float(one)) for at, one in enumerate(value)]
    found = Signal(write(tmp_path / "s.bw", {"a": 300_000, "b": 10}, [*rows, ("b", 2, 3, 1.0)]))
    want = np.stack([value, value, np.full_like(value, -1)], axis=1).reshape(-1)
    for start, stop in ((0, 300_000), (150_001, 150_007), (299_990, 300_000)):
        assert np.array_equal(found.values("a", start, stop, missing=-1), want[start:stop])
    assert found.values("b", 0, 10).tolist() == [0, 0, 1] + [0] * 7


def test_means_over_intervals(tmp_path):
    found = Signal(write(tmp_path / "s.bw", {"a": 100}, [("a", 10, 20, 3.0)]))
    means = found.means([Interval("a", 10, 20), Interval("a", 15, 25), Interval("a", 50, 60)])
    assert means.tolist() == [3, 1.5, 0] and means.dtype == np.float64
    assert found.means([Interval("a", 15, 25)], missing=1).tolist() == [2]
    with pytest.raises(DataError, match=r"genes\.bed, line 3: .* a:90-101 is not within the sequence's 100 letters"):
        found.means([Interval("a", 90, 101, place="genes.bed, line 3")])
    with pytest.raises(DataError, match="a:5-5 has no letters"):
        found.means([Interval("a", 5, 5)])
    with pytest.raises(DataError, match=r"has no sequence 'aa'\. Did you mean 'a'\?"):
        found.values("aa", 0, 1)


def made(order, sections, packed=True, lengths=(("a", 100),)):
    """A bigWig file of given sections, by hand: big-endian ones and all three kinds of sections are rare, and legal."""
    body, places = b"", []
    names_at = 64
    names = struct.pack(f"{order}IIIIQQ", 0x78CA8C91, 256, 4, 8, len(lengths), 0)
    names += struct.pack(f"{order}BBH", 1, 0, len(lengths))
    for number, (name, length) in enumerate(lengths):
        names += name.encode().ljust(4, b"\0") + struct.pack(f"{order}II", number, length)
    data_at = names_at + len(names)
    body = struct.pack(f"{order}I", len(sections))
    for start, end, section in sections:
        section = zlib.compress(section) if packed else section
        places.append(struct.pack(f"{order}IIIIQQ", 0, start, 0, end, data_at + len(body), len(section)))
        body += section
    index = struct.pack(f"{order}IIQIIIIQII", 0x2468ACE0, 256, len(places), 0, 0, 0, 100, 0, 1, 0)
    index += struct.pack(f"{order}BBH", 1, 0, len(places)) + b"".join(places)
    head = struct.pack(
        f"{order}IHHQQQHHQQIQ", 0x888FFC26, 4, 0, names_at, data_at, data_at + len(body), 0, 0, 0, 0, 1000 * packed, 0
    )
    return head + names + body + index


def section(order, kind, count, items, start=0, step=0, span=0, owner=0):
    return struct.pack(f"{order}IIIIIBBH", owner, start, 100, step, span, kind, 0, count) + items


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("packed", [True, False])
def test_all_kinds_of_sections_in_both_orders_of_bytes(tmp_path, order, packed):
    path = tmp_path / "s.bw"
    sections = [
        (0, 10, section(order, 1, 2, struct.pack(f"{order}IIfIIf", 0, 3, 1.5, 5, 6, 2.5))),
        (20, 40, section(order, 2, 2, struct.pack(f"{order}IfIf", 20, 3.5, 30, 4.5), span=2)),
        (50, 70, section(order, 3, 2, struct.pack(f"{order}ff", 5.5, 6.5), start=50, step=10, span=1)),
    ]
    path.write_bytes(made(order, sections, packed))
    want = np.zeros(100)
    want[0:3], want[5], want[20:22], want[30:32], want[50], want[60] = 1.5, 2.5, 3.5, 4.5, 5.5, 6.5
    assert Signal(path).values("a", 0, 100).tolist() == want.tolist()
    if order == "<":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            assert pybigtools.open(str(path)).values("a", 0, 100, fillna=0).tolist() == want.tolist()


def one(items: bytes, kind: int = 1, count: int = 1) -> bytes:
    return made("<", [(0, 10, section("<", kind, count, items))])


WHOLE = one(struct.pack("<IIf", 0, 3, 1.5))


def changed(at: int, form: str, value: int) -> bytes:
    return WHOLE[:at] + struct.pack(form, value) + WHOLE[at + struct.calcsize(form) :]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"not signal at all", "is no bigWig file: it begins with 6e 6f 74 20"),
        (WHOLE[:3], "has 3 bytes, its header should end at 4"),
        (WHOLE[:60], "has 60 bytes, its header should end at 64"),
        (WHOLE[:80], "has 80 bytes, its list of names should end at 96"),
        (WHOLE[:-70], "its index should end at .*; is the download complete"),
        (WHOLE[:-1], "its index should end at"),
        (changed(0, "<I", 0x8789F2EB), "is bigBed; signal is read from bigWig"),
        (gzip.compress(WHOLE), "is compressed; a bigWig file is read as it is"),
        (changed(8, "<Q", 1 << 60), "its list of names should end at 1,152,921,504,606,847,008"),
        (changed(72, "<I", 1 << 30), "claims 1 names of 1,073,741,824 bytes; at most 1,000,000 of 1,024 are read"),
        (changed(80, "<Q", 1 << 50), "claims 1,125,899,906,842,624 names of 4 bytes"),
        (changed(80, "<Q", 2), "claims 2 sequences and names 1"),
        (changed(100, "<I", 0), r"has a sequence called ''"),
        (changed(24, "<Q", 70), "there is no index at byte 70"),
        (changed(len(WHOLE) - 8, "<Q", 1 << 40), "claims 1,099,511,627,776 bytes, at most 16,777,216 are read"),
        (changed(len(WHOLE) - 16, "<Q", 0), "section at byte 0: is damaged: "),
        (one(struct.pack("<IIf", 0, 3, float("nan"))), "section at byte .*: the value nan at a:0-3 is refused"),
        (one(struct.pack("<IIf", 0, 3, float("-inf"))), "the value -inf at a:0-3 is refused"),
        (one(struct.pack("<IIf", 90, 101, 1)), "the value 1.0 at a:90-101 is refused: .* within the 100 letters"),
        (one(struct.pack("<IIf", 5, 5, 1)), "the value 1.0 at a:5-5 is refused"),
        (one(b"", kind=7), "1 values of kind 7 do not fit into 24 bytes"),
        (one(struct.pack("<f", 1), kind=3, count=60_000), "60,000 values of kind 3 do not fit into 28 bytes"),
        (one(bytes(20_000_000)), "breaks off, or has more than 16,777,216 bytes"),
    ],
)
def test_what_is_no_signal_is_refused(tmp_path, content, message):
    path = tmp_path / "s.bw"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        Signal(path).values("a", 0, 50)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)


def test_a_tree_that_leads_to_itself_ends(tmp_path):
    """A branch whose child is the branch: at the limit of entries, not never."""
    at = struct.unpack("<Q", WHOLE[24:32])[0] + 48
    node = struct.pack("<BBH", 0, 0, 2) + 2 * struct.pack("<IIIIQ", 0, 0, 0, 100, at)
    path = tmp_path / "s.bw"
    path.write_bytes(WHOLE[:at] + node)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(signal, "MOST_ENTRIES", 1000)
        with pytest.raises(DataError, match="its index leads through more than 1,000 entries"):
            Signal(path).values("a", 0, 50)


def test_no_damage_does_more_than_raise(tmp_path):
    """Any byte may be wrong, and the file may end anywhere: a DataError of one line, or values."""
    rows = [("a", 10, 20, 1.5), ("a", 20, 21, -2.0), ("b", 0, 500, 1.0)]
    whole = write(tmp_path / "s.bw", {"a": 1000, "b": 500}, rows).read_bytes()
    path, random, refused = tmp_path / "t.bw", np.random.default_rng(0), 0
    damaged = [whole[:cut] for cut in range(0, len(whole), 5)]
    for _ in range(400):
        data = bytearray(whole)
        for at in random.integers(0, len(whole), 3):
            data[at] = int(random.integers(0, 256))
        damaged.append(bytes(data))
    for data in damaged:
        path.write_bytes(data)
        try:
            found = Signal(path)
            for name, length in found.lengths.items():
                found.values(name, 0, min(length, 2000))
        except DataError as error:
            refused += 1
            assert "\n" not in str(error) and str(path) in str(error)
    assert refused > len(damaged) // 2
