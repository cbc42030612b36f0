"""Signal of bigWig files: the values that pybigtools reads, and every damage refused in one line."""

import struct
import warnings
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asterism.errors import DataError
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
def test_values_are_those_of_pybigtools(tmp_path_factory, signal, data):
    lengths, rows = signal
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
    signal = Signal(write(tmp_path / "s.bw", {"a": 300_000, "b": 10}, [*rows, ("b", 2, 3, 1.0)]))
    want = np.stack([value, value, np.full_like(value, -1)], axis=1).reshape(-1)
    for start, stop in ((0, 300_000), (150_001, 150_007), (299_990, 300_000)):
        assert np.array_equal(signal.values("a", start, stop, missing=-1), want[start:stop])
    assert signal.values("b", 0, 10).tolist() == [0, 0, 1] + [0] * 7


def test_means_over_intervals(tmp_path):
    signal = Signal(write(tmp_path / "s.bw", {"a": 100}, [("a", 10, 20, 3.0)]))
    means = signal.means([Interval("a", 10, 20), Interval("a", 15, 25), Interval("a", 50, 60)])
    assert means.tolist() == [3, 1.5, 0] and means.dtype == np.float64
    assert signal.means([Interval("a", 15, 25)], missing=1).tolist() == [2]
    with pytest.raises(DataError, match=r"genes\.bed, line 3: .* a:90-101 is not within the sequence's 100 letters"):
        signal.means([Interval("a", 90, 101, place="genes.bed, line 3")])
    with pytest.raises(DataError, match="a:5-5 has no letters"):
        signal.means([Interval("a", 5, 5)])
    with pytest.raises(DataError, match=r"has no sequence 'aa'\. Did you mean 'a'\?"):
        signal.values("aa", 0, 1)


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
            signal = Signal(path)
            for name, length in signal.lengths.items():
                signal.values(name, 0, min(length, 2000))
        except DataError as error:
            refused += 1
            assert "\n" not in str(error) and str(path) in str(error)
    assert refused > len(damaged) // 2
