"""Windows of genomes and arrays of chromatin profiles as data of tasks: what is read, learned and refused."""

import gzip
import json
import zipfile

import numpy as np
import pytest
from refusals import refusing
from small_encoders import save_bases_model, write_lines

from asterism.cli.main import main
from asterism.errors import ConfigurationError, DataError
from asterism.training import FineTuneConfig, evaluate, train
from asterism.training.data.genomes.sequences import open_sequences
from asterism.training.data.records import deepsea
from asterism.training.data.records.deepsea import read_deepsea, usual_columns
from asterism.training.data.records.genome_windows import interval_of, window_letters
from asterism.training.data.records.record import Record
from asterism.training.data.records.sequences import other_strand
from asterism.training.tasks.kinds.chromatin import CHROMATIN
from asterism.training.tasks.kinds.multilabel import MULTILABEL
from asterism.training.tasks.kinds.promoter import PROMOTER

pytestmark = pytest.mark.model

h5py = pytest.importorskip("h5py")

MOTIFS = ("TATAAA", "GGGCGG")
RUNS = ("A" * 9, "G" * 9)
"""Motifs that are learned in a hundred steps."""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_bases_model(tmp_path_factory.mktemp("models") / "bases")


@pytest.fixture
def settings(model):
    def make(task, data, **changes):
        given = {"learning_rate": 1e-2, "warmup_steps": 2, "batch_size": 16, "dtype": "float32", "pooling": "mean"}
        return FineTuneConfig(**{"task": task, "model": str(model), "data": str(data), **given, **changes})

    return make


# --- windows --------------------------------------------------------------------------------------------------------


@pytest.fixture
def genome(tmp_path):
    """Two sequences, and their letters as they are read."""
    random = np.random.default_rng(0)
    letters = {name: "".join(random.choice(list("ACGTacgtN"), length)) for name, length in (("one", 200), ("two", 90))}
    path = tmp_path / "genome.fa.gz"
    text = "".join(
        f">{name} x\n" + "".join(f"{one[at : at + 60]}\n" for at in range(0, len(one), 60))
        for name, one in letters.items()
    )
    path.write_bytes(gzip.compress(text.encode()))
    return path, {name: one.upper() for name, one in letters.items()}


def around(text, middle, length, strand):
    """The window by hand: so many letters with the middle in the middle, N beyond the ends."""
    padded = "N" * length + text + "N" * length
    if strand == "-":
        end = middle + length // 2 + length + 1
        return other_strand(padded[end - length : end])
    begin = middle - length // 2 + length
    return padded[begin : begin + length]


@pytest.mark.parametrize("length", [1, 8, 31, 64])
def test_windows_have_the_middle_of_their_interval_in_their_middle(settings, genome, tmp_path, length):
    path, letters = genome
    rows = [
        ("one", 100, 103, "a", "+"),
        ("one", 100, 103, "b", "-"),
        ("two", 0, 2, "c", "+"),
        ("two", 85, 90, "d", "."),
    ]
    bed = tmp_path / "x.bed"
    bed.write_text("".join(f"{name}\t{start}\t{end}\t{one}\t0\t{strand}\n" for name, start, end, one, strand in rows))
    table = write_lines(tmp_path / "t.jsonl", [{"id": one[3], "hit": number % 2} for number, one in enumerate(rows)])
    asked = settings("multilabel", bed, genome=str(path), window=length, label_table=str(table))
    examples = MULTILABEL.examples.read(bed, asked)
    assert [one.letters for one in examples] == [
        around(letters[name], start + (end - start) // 2, length, strand)
        if strand != "-"
        else around(letters[name], end - 1 - (end - start) // 2, length, "-")
        for name, start, end, _, strand in rows
    ]
    assert [one.labels.tolist() for one in examples] == [[0], [1], [0], [1]] and examples[0].columns == ("hit",)
    assert [one.record.place for one in examples[1:3]] == [f"{bed}, line 2", f"{bed}, line 3"]


def test_a_codon_stands_in_the_middle_whatever_its_strand(settings, genome, tmp_path):
    """The first letter of the second half is the middle one of the codon, as its strand reads."""
    path, letters = genome
    bed = tmp_path / "x.bed"
    bed.write_text("one\t50\t53\tyes\t0\t+\none\t50\t53\tno\t0\t-\n")
    plus, minus = PROMOTER.examples.read(bed, settings("promoter", bed, genome=str(path), window=20))
    assert plus.letters[9:12] == letters["one"][50:53] and minus.letters[9:12] == other_strand(letters["one"][50:53])
    assert (plus.labels.tolist(), minus.labels.tolist()) == ([1], [0])


def test_a_window_is_of_an_interval_that_is_there(genome):
    """Also of one that comes from no file, as rows of Python do."""
    sequences = open_sequences(genome[0])
    row = Record("rows[3]", {"chromosome": "one", "start": 198, "end": 201})
    with refusing(DataError, "interval-outside", "rows[3]", " one:198", "201", "200"):
        window_letters(sequences, interval_of(row), 8)


@pytest.mark.parametrize(
    ("bed", "message"),
    [
        ("one\t150\t201\tyes\n", r"x\.bed, line 1: one:150-201 .* is not within the sequence's 200 letters"),
        ("three\t1\t2\tyes\n", r"x\.bed, line 1: .*has no sequence 'three'"),
        ("one\t5\t2\tyes\n", r"x\.bed, line 1: start 5 is after end 2"),
        ("one\t-5\t2\tyes\n", r"x\.bed, line 1: start -5 is before the first letter"),
        ("one\t5\t7\tmaybe\n", r"x\.bed, line 1: field 'id' must be yes or no, got 'maybe'"),
        ("one\t5\n", r"x\.bed, line 1: BED needs columns 3 to 12, seen: 2"),
        ("", r"x\.bed (holds no record|is empty)"),
        ("one\t5\t7\tyes\t0\t*\n", r"x\.bed, line 1: strand must be .* got '\*'"),
    ],
)
def test_intervals_that_cannot_be_used_are_refused_in_one_line(settings, genome, tmp_path, bed, message):
    path = tmp_path / "x.bed"
    path.write_text(bed)
    with pytest.raises(DataError, match=message) as refused:
        PROMOTER.examples.read(path, settings("promoter", path, genome=str(genome[0])))
    assert "\n" not in str(refused.value)


def test_what_is_no_interval_or_has_no_label_is_refused(settings, genome, tmp_path):
    bed, lines = tmp_path / "x.bed", tmp_path / "x.jsonl"
    bed.write_text("one\t5\t7\ta\n")
    lines.write_text('{"sequence": "ACGT", "a": 1}\n')
    with refusing(DataError, "labels-in-table", "line 1"):
        MULTILABEL.examples.read(bed, settings("multilabel", bed, genome=str(genome[0])))
    with refusing(DataError, "not-intervals", "x.jsonl", ".bed"):
        MULTILABEL.examples.read(lines, settings("multilabel", lines, genome=str(genome[0])))
    with refusing(ConfigurationError, "setting-range", "window", "0", "must be at least 1"):
        settings("multilabel", bed, genome="x", window=0)


@pytest.mark.slow
def test_windows_are_learned_and_predicted(settings, tmp_path):
    """Positives have a run of G in the middle of their strand, which read from the other strand is one of C."""
    random = np.random.default_rng(3)
    text, lines = list("".join(random.choice(list("ACGT"), 12_000))), []
    for number in range(200):
        at, yes, strand = 60 * number + 20, number % 2, "+-"[number // 2 % 2]
        if yes:
            text[at : at + 12] = ("G" if strand == "+" else "C") * 12
        else:
            text[at : at + 12] = ("C" if strand == "+" else "G") * 12
        lines.append(f"chr\t{at + 5}\t{at + 6}\t{'yes' if yes else 'no'}\t0\t{strand}\n")
    fasta, bed, new = tmp_path / "g.fa", tmp_path / "x.bed", tmp_path / "new.bed"
    fasta.write_text(">chr\n" + "".join(text) + "\n")
    bed.write_text("".join(lines))
    new.write_text("".join(lines[:6]))
    run = tmp_path / "run"
    report = train(settings("promoter", bed, genome=str(fasta), window=24, epochs=6.0), run, progress=False)
    assert (report.training_examples, report.validation_examples) == (180, 20)
    assert report.scores["f1"] > 0.9
    assert evaluate(run, data=new).scores["f1"] > 0.9
    main(["predict", str(run), "--data", str(new), "--output", str(tmp_path / "said.jsonl")])
    said = [json.loads(line) for line in (tmp_path / "said.jsonl").read_text().splitlines()]
    assert said[2]["start"] == 145 and said[2]["strand"] == "-" and said[2]["chromosome"] == "chr"
    assert [one["predicted_label"] for one in said] == ["no", "yes"] * 3


# --- chromatin ------------------------------------------------------------------------------------------------------


def profiles(count, length=24, seed=0, shuffled=False, motifs=MOTIFS):
    """One-hot bases [n, 4, length] in DeepSEA's order; labels [n, 3]: whether each motif is there, and chance."""
    random = np.random.default_rng(seed)
    letters, labels = [], np.zeros((count, 3), dtype=np.uint8)
    for number in range(count):
        text = "".join(random.choice(list("ACGT"), length))
        for place, motif in enumerate(motifs):
            if random.random() < 0.4:
                at = int(random.integers(length // 2 - len(motif))) + place * length // 2
                text = text[:at] + motif + text[at + len(motif) :]
        letters.append(text)
        labels[number] = [*(motif in text for motif in motifs), random.random() < 0.5]
    if shuffled:
        labels = labels[random.permutation(count)]
    bits = np.stack([[[base == one for one in text] for base in "AGCT"] for text in letters]).astype(np.uint8)
    return letters, bits, labels


def save_profiles(path, bits, labels, prefix="train", **more):
    arrays = {f"{prefix}xdata": bits, f"{prefix}data": labels}
    if path.suffix == ".npz":
        np.savez(path, **arrays, **more)
    elif path.suffix == ".mat" and path.stem.endswith("5"):
        import scipy.io

        scipy.io.savemat(path, arrays)
    else:  # the axes the other way round, as MATLAB saves them
        with h5py.File(path, "w", userblock_size=512 if path.suffix == ".mat" else 0) as file:
            for name, one in arrays.items():
                file.create_dataset(name, data=one.T)
        if path.suffix == ".mat":
            with path.open("r+b") as file:
                file.write(b"MATLAB 7.3 MAT-file".ljust(128))
    return path


@pytest.mark.parametrize("name", ["x.npz", "v5.mat", "v7.mat", "x.h5", "x.hdf5"])
def test_arrays_of_all_kinds_say_the_same(tmp_path, name):
    letters, bits, labels = profiles(7)
    bits[2, :, 5] = 0
    letters[2] = letters[2][:5] + "N" + letters[2][6:]
    for prefix in ("train", "valid"):
        examples = read_deepsea(save_profiles(tmp_path / f"{prefix}-{name}", bits, labels, prefix))
        assert len(examples) == 7 and [one.letters for one in examples] == letters
        assert [one.labels.tolist() for one in examples] == labels.tolist()
        assert [one.letters for one in examples[2:4]] == letters[2:4] and examples[0].columns == ("0", "1", "2")


@pytest.mark.parametrize("target", ["/trainxdata", "/nowhere"])
def test_links_that_lead_nowhere_are_refused(tmp_path, target):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["trainxdata"] = h5py.SoftLink(target)
    with pytest.raises(DataError, match="x.h5: trainxdata cannot be read: .*") as refused:
        read_deepsea(tmp_path / "x.h5")
    assert "\n" not in str(refused.value)


def test_channels_last_are_known_by_their_number(tmp_path):
    letters, bits, labels = profiles(7)
    examples = read_deepsea(save_profiles(tmp_path / "x.npz", bits.transpose(0, 2, 1), labels))
    assert [one.letters for one in examples] == letters


def test_the_groups_of_deepsea():
    columns = usual_columns(919)
    groups = CHROMATIN.examples.usual_groups(columns)
    assert [groups.count(one) for one in ("TF", "DHS", "HM")] == [690, 125, 104]
    assert [name.split("-")[0] for name in columns] == list(groups)
    assert (groups[124], groups[125], groups[814], groups[815]) == ("DHS", "TF", "TF", "HM")
    assert CHROMATIN.examples.usual_groups(["a"]) == ()


def chromatin(settings, tmp_path, shuffled, train_count, motifs=MOTIFS, **changes):
    folder = tmp_path / ("shuffled" if shuffled else "true")
    folder.mkdir()
    _, bits, labels = profiles(train_count, shuffled=shuffled, motifs=motifs)
    _, test_bits, test_labels = profiles(300, seed=1, shuffled=shuffled, motifs=motifs)
    data = save_profiles(folder / "train.h5", bits, labels)
    validation = save_profiles(folder / "valid5.mat", test_bits, test_labels, "valid")
    groups = write_lines(
        folder / "g.jsonl", [{"column": str(one), "group": "motif" if one < 2 else "chance"} for one in range(3)]
    )
    config = settings("chromatin", data, validation=str(validation), column_groups=str(groups), **changes)
    return train(config, folder / "run", progress=False)


def test_a_motif_decides_and_chance_does_not(settings, tmp_path):
    """Near 1 where a motif decides, near 1/2 where nothing does."""
    report = chromatin(settings, tmp_path, False, 320, RUNS, epochs=6.0)
    assert report.metric == "auc" and report.scores["auc_motif"] > 0.95
    assert abs(report.scores["auc_chance"] - 0.5) < 0.12  # 3.6 standard deviations of 300 examples
    assert (tmp_path / "true" / "run" / "report.md").read_text().count("| motif |") == 2
    assert json.loads((tmp_path / "true" / "run" / "run.json").read_text())["decided"]["positive_weight"] == 8.0


@pytest.mark.slow
def test_shuffled_labels_teach_nothing(settings, tmp_path):
    """The same data, once as they are and once with the labels of other examples; five times as long.

    Four seeds end at 0.968, 0.971, 0.980 and 0.996, and a seed ends elsewhere on another processor.
    """
    found = [chromatin(settings, tmp_path, one, 1500, epochs=10.0).scores["auc_motif"] for one in (False, True)]
    assert found[0] > 0.95 and abs(found[1] - 0.5) < 0.08


def object_array(path):
    np.savez(path, trainxdata=np.array([{}], dtype=object), traindata=np.zeros((1, 1)))


def renamed(path):
    np.savez(path, x=np.zeros((2, 4, 3)), y=np.zeros((2, 1)))


def two_pairs(path):
    one = {"xdata": np.zeros((2, 4, 3)), "data": np.zeros((2, 1))}
    np.savez(path, **{f"{prefix}{name}": array for prefix in ("train", "test") for name, array in one.items()})


def claims_much(path):
    """A header of 2^40 bytes in front of nothing."""
    with zipfile.ZipFile(path, "w") as archive, archive.open("trainxdata.npy", "w") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": "|u1", "fortran_order": False, "shape": (1 << 28, 4, 1024)}
        )


@pytest.mark.parametrize(
    ("name", "write", "message"),
    [
        ("x.npz", lambda path: None, r"there is no file"),
        ("x.npz", lambda path: path.write_bytes(b""), r"x\.npz cannot be read"),
        ("x.npz", lambda path: path.write_bytes(b"PK\x03\x04 and no more"), r"x\.npz cannot be read"),
        ("x.npz", object_array, r"trainxdata\.npy holds Python objects, which are never unpickled"),
        ("x.npz", renamed, r"must hold one pair such as trainxdata and traindata; its arrays are: none"),
        ("x.npz", two_pairs, r"must hold one pair"),
        ("x.npz", claims_much, r"trainxdata\.npy has 1,024\.0 GiB, but the limit .* is 4 GiB"),
        (
            "x.npz",
            lambda path: save_profiles(path, np.zeros((2, 4, 3)), np.zeros((3, 1))),
            r"\[2, 4, 3\] and .*\[3, 1\]",
        ),
        ("x.npz", lambda path: save_profiles(path, np.zeros((2, 5, 3)), np.zeros((2, 1))), r"must be \[n, 4, length\]"),
        ("x.npz", lambda path: save_profiles(path, np.zeros((0, 4, 3)), np.zeros((0, 1))), r"must be \[n, 4, length\]"),
        (
            "x.npz",
            lambda path: save_profiles(path, np.zeros((2, 4, 3)), np.zeros((2, 2)), columns=["a", "a"]),
            r"columns must name the 2 columns, each once",
        ),
        ("x.mat", lambda path: path.write_bytes(b"what is this"), r"is neither MATLAB 5 nor HDF5"),
        (
            "x.mat",
            lambda path: path.write_bytes(b"MATLAB 5.0 MAT-file".ljust(128)),
            r"must hold one pair|cannot be read",
        ),
        ("x.h5", lambda path: path.write_bytes(b"\x89HDF\r\n\x1a\n cut"), r"x\.h5 cannot be read"),
    ],
)
def test_arrays_that_cannot_be_used_are_refused_in_one_line(tmp_path, name, write, message):
    path = tmp_path / name
    write(path)
    with pytest.raises(DataError, match=message) as refused:
        read_deepsea(path)
    assert "\n" not in str(refused.value)


def test_values_that_are_not_bits_are_refused_where_they_are_read(tmp_path):
    _, bits, labels = profiles(3)
    for change, message in (
        (lambda bits, labels: bits.__setitem__((1, 0, 0), 7), r"example 1: the bases must be 0 and 1"),
        (lambda bits, labels: bits.__setitem__((1, slice(0, 2), 4), 1), r"example 1: base 4 has more than one letter"),
        (lambda bits, labels: labels.__setitem__((1, 2), np.nan), r"example 1: the labels must be 0 and 1"),
    ):
        changed = bits.copy(), labels.astype(np.float32)
        change(*changed)
        examples = read_deepsea(save_profiles(tmp_path / "x.npz", *changed))
        assert examples[0].labels.tolist() == labels[0].tolist()
        with pytest.raises(DataError, match=message):
            examples[1]


def test_large_matlab_arrays_are_refused_before_they_are_read(tmp_path, monkeypatch):
    _, bits, labels = profiles(50)
    path = save_profiles(tmp_path / "v5.mat", bits, labels)
    monkeypatch.setattr(deepsea, "LARGEST_ARRAY", 1000)
    with refusing(DataError, "deepsea-too-large", "trainxdata", "0.0"):
        read_deepsea(path)
    assert len(read_deepsea(save_profiles(tmp_path / "x.h5", bits, labels))) == 50
