"""Tasks of sequences: columns of labels, promoters and their negatives, strands; from their files to their scores."""

import csv
import gzip
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import refusing
from small_encoders import save_bases_model, write_lines

from asterism.cli.main import main
from asterism.errors import ConfigurationError, DataError
from asterism.randomness import of_row
from asterism.training import FineTuneConfig, evaluate, open_run, predict, train
from asterism.training.data.records.record import Record
from asterism.training.data.records.sequences import bases, labels_of, other_strand
from asterism.training.objectives.labelled import Labelled
from asterism.training.run.arithmetic import loss_of
from asterism.training.tasks.kinds.multilabel import MULTILABEL
from asterism.training.tasks.kinds.promoter import PIECES, PROMOTER, negative
from asterism.training.tasks.scores.curves import auc

pytestmark = pytest.mark.model

MOTIFS = {"tata": "TATAAA", "gc": "GGGCGG"}


def sequences(count, length=24, seed=0):
    """Random bases in which one motif, both or none was put; whether each is there is what the letters say."""
    random = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        letters = "".join(random.choice(list("ACGT"), length))
        for place, motif in enumerate(MOTIFS.values()):
            if random.random() < 0.5:
                at = int(random.integers(length // 2 - len(motif))) + place * length // 2
                letters = letters[:at] + motif + letters[at + len(motif) :]
        there = {name: int(motif in letters) for name, motif in MOTIFS.items()}
        rows.append({"id": f"s{number}", "sequence": letters, **there})
    return rows


def example(letters="ACGTACGT", columns=("a", "b"), labels=(1, 0)):
    fields = {"sequence": letters, **dict(zip(columns, labels, strict=True))}
    return MULTILABEL.task(columns=columns, length=16).examples.example(Record("x", fields), labelled=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_bases_model(tmp_path_factory.mktemp("models") / "bases")


@pytest.fixture
def settings(model, tmp_path):
    def make(task, data, **changes):
        given = {"learning_rate": 1e-2, "warmup_steps": 2, "batch_size": 16, "dtype": "float32", "pooling": "mean"}
        return FineTuneConfig(**{"task": task, "model": str(model), "data": str(data), **given, **changes})

    return make


# --- the area under the curve ---------------------------------------------------------------------------------------


def pairs(scores, there):
    """The definition: every positive against every negative."""
    won = [
        (one > other) + (one == other) / 2
        for one, is_one in zip(scores, there, strict=True)
        for other, is_other in zip(scores, there, strict=True)
        if is_one and not is_other
    ]
    return sum(won) / len(won) if won else None


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.1, 0.5, 0.9, 1e-30]), st.booleans()), min_size=1, max_size=40))
def test_the_area_is_the_share_of_pairs_in_order(rows):
    scores, there = (np.array(column) for column in zip(*rows, strict=True))
    wanted, found = pairs(scores.tolist(), there.tolist()), auc(scores, there)
    assert found is None if wanted is None else found == pytest.approx(wanted, abs=1e-12)


def test_columns_without_both_labels_are_left_out_and_said():
    task = MULTILABEL.task(columns=("a", "b", "c"), groups=("X", "X", "Y"), length=8)
    predicted = [{"a": 0.9, "b": 0.4, "c": 0.2}, {"a": 0.1, "b": 0.6, "c": 0.2}, {"a": 0.5, "b": 0.5, "c": 0.3}]
    there = [{"a": 1, "b": 1, "c": 0}, {"a": 0, "b": 0, "c": 0}, {"a": 0, "b": 1, "c": 0}]
    scores = task.answers.score(predicted, there)
    assert scores == {
        "auc": pytest.approx((1 + 0) / 2),
        "auc_X": pytest.approx(0.5),
        "micro_f1": pytest.approx(2 * 1 / (2 + 3)),  # said are a of the first and b of the second, right is the one
        "columns_scored": pytest.approx(2 / 3),
    }
    examples = [example(columns=task.answers.columns, labels=tuple(one.values())) for one in there]
    page = task.answers.page(scores, examples, [{"probabilities": one} for one in predicted])
    assert "| c | Y | 0 | left out |" in page and "| a | X | 1 | 1.0000 |" in page
    with refusing(DataError, "no-contrast", "3", "1"):
        task.answers.score(predicted[:1], there[:1])


# --- the loss -------------------------------------------------------------------------------------------------------


class Said(torch.nn.Module):
    """Gives the logits that it is given, with transformers' loss."""

    def forward(self, input_ids, labels):
        logits = input_ids.float()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)
        return type("Output", (), {"loss": loss, "logits": logits})()


def test_positives_count_as_often_as_they_are_asked_to():
    logits, labels = torch.tensor([[0, 3, -2], [1, -1, 4]]), torch.tensor([[1.0, 0, 1], [0, 0, 1]])
    batch = {"input_ids": logits, "labels": labels}
    for weight in (1.0, 8.0, 0.5):
        wanted = torch.nn.functional.binary_cross_entropy_with_logits(
            logits.float(), labels, pos_weight=torch.tensor(weight)
        )
        found = loss_of(Said(), batch, "float32", None, positive_weight=weight)
        assert found.item() == pytest.approx(wanted.item(), rel=1e-6)


# --- files ----------------------------------------------------------------------------------------------------------


def test_all_formats_say_the_same(settings, tmp_path):
    rows = sequences(6)
    names = list(MOTIFS)
    jsonl = write_lines(tmp_path / "a.jsonl", rows)
    listed = [{"sequence": row["sequence"], "labels": [row[name] for name in names]} for row in rows]
    lists = write_lines(tmp_path / "l.jsonl", listed)
    table, joined, fasta = tmp_path / "a.csv", tmp_path / "j.csv", tmp_path / "a.fa"
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([rows[0].keys(), *(row.values() for row in rows)])
    joined.write_text(
        "sequence,labels\n" + "".join(f"{one['sequence']},{';'.join(map(str, one['labels']))}\n" for one in listed)
    )
    fasta.write_text(
        "".join(
            f">{row['id']} a promoter\r\n{row['sequence'][:9].lower()}\r\n{row['sequence'][9:]}\n\n" for row in rows
        )
    )
    labels = write_lines(tmp_path / "labels.jsonl", [{k: v for k, v in row.items() if k != "sequence"} for row in rows])
    asked = settings("multilabel", fasta, label_table=str(labels))
    read = [
        *(MULTILABEL.examples.read(path, settings("multilabel", path)) for path in (jsonl, table, lists, joined)),
        MULTILABEL.examples.read(fasta, asked),
    ]
    for examples in read:
        assert [one.letters for one in examples] == [row["sequence"] for row in rows]
        assert [one.labels.tolist() for one in examples] == [[row[name] for name in names] for row in rows]
        assert {one.columns for one in examples} in ({tuple(names)}, {("0", "1")})
    assert read[-1][2].record.place == f"{fasta}, line 9"


def test_letters_of_bases():
    assert bases("acgtnACGTNuU", "x") == "ACGTNACGTNTT"
    assert bases("RYSWKMBDHVryswkmbdhv", "x") == "N" * 20
    for odd in ("ACE", "AC GT", "AC-", "ACÃ", "AC1"):
        with pytest.raises(DataError, match=rf"x: letter {3} of the sequence is"):
            bases(odd, "x")


@given(st.text("ACGTN", max_size=50))
def test_the_other_strand_pairs_base_by_base_and_back(letters):
    pair = {"A": "T", "C": "G", "G": "C", "T": "A", "N": "N"}
    other = other_strand(letters)
    assert [pair[one] for one in letters] == list(reversed(other)) and other_strand(other) == letters


@pytest.mark.parametrize(
    ("task", "name", "content", "message"),
    [
        ("multilabel", "x.jsonl", '{"sequence": "ACGT"}', r"line 1: no labels"),
        ("multilabel", "x.jsonl", '{"sequence": "ACGT", "a": 2}', r"line 1: field 'a' must be 0 or 1, got 2"),
        ("multilabel", "x.jsonl", '{"sequence": "ACGT", "a": "yes"}', r"line 1: field 'a' must be 0 or 1, got 'yes'"),
        ("multilabel", "x.jsonl", '{"sequence": "ACGT", "a": NaN}', r"line 1: field 'a' must be 0 or 1, got nan"),
        ("multilabel", "x.jsonl", '{"sequence": "ACGT", "labels": 1}', r"'labels' must be a list of 0 and 1, got 1"),
        (
            "multilabel",
            "x.jsonl",
            '{"sequence": "A", "labels": [1]}\n{"sequence": "A", "labels": [1, 0]}',
            r"line 2: field 'labels' has 2 entries, the others have 1",
        ),
        (
            "multilabel",
            "x.jsonl",
            '{"sequence": "A", "a": 1}\n{"sequence": "A", "b": 1}',
            r"line 2: field 'a' is missing; there are: sequence, b",
        ),
        ("multilabel", "x.csv", "sequence,a\nMKLV,1\n", r"line 2: field 'sequence': letter 2 .* is 'K|'L'.*not a code"),
        ("multilabel", "x.csv", "sequence,a\n,1\n", r"line 2: field 'sequence' is empty"),
        ("multilabel", "x.fa", "ACGT\n", r"x\.fa, line 1: must be a header that begins with '>', got 'ACGT'"),
        ("multilabel", "x.fa", "> \nACGT\n", r"x\.fa, line 1: the header has no name after '>'"),
        ("multilabel", "x.fa", ">a\n>b\nACGT\n", r"x\.fa, line 1: 'a' has no sequence"),
        ("multilabel", "x.fa", ">a\nACGT\n>b\n", r"x\.fa, line 3: 'b' has no sequence"),
        ("multilabel", "x.fa", "\n\n", r"x\.fa holds no record"),
        ("multilabel", "x.fa", b">a\n\xff\xfe\n", r"x\.fa, line 2: is not UTF-8 text"),
        ("multilabel", "x.bam", "x", r"x\.bam: the name must end in one of"),
        ("promoter", "x.jsonl", '{"sequence": "ACGT", "label": "maybe"}', r"'label' must be yes or no, got 'maybe'"),
        (
            "promoter",
            "x.jsonl",
            '{"text": "a word", "label": "yes"}',
            r"'sequence' is missing: promoters are sequences",
        ),
        ("promoter", "x.txt", "ACGTACGT\n", r"line 1: has 8 bases; a negative is made from 20 pieces"),
        ("promoter", "x.txt", "", r"holds no record"),
    ],
)
def test_files_that_cannot_be_used_are_refused_in_one_line(settings, tmp_path, task, name, content, message):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    kind = {"multilabel": MULTILABEL, "promoter": PROMOTER}[task]
    with pytest.raises(DataError, match=message) as refused:
        kind.examples.read(path, settings(task, path))
    assert "\n" not in str(refused.value) and refused.value.exit_code == 3


def test_tables_of_labels_that_do_not_fit_are_refused(settings, tmp_path):
    fasta = tmp_path / "x.fa"
    fasta.write_text(">a\nACGT\n>b\nACGT\n")
    for rows, message in (
        ([{"id": "a", "x": 1}], r"x\.fa, line 3: field 'id' 'b' has no row in .*t\.jsonl"),
        ([{"id": "a", "x": 1}, {"id": "a", "x": 1}], r"t\.jsonl, line 2: field 'id' 'a' is in the table twice"),
        ([{"name": "a", "x": 1}], r"t\.jsonl, line 1: field 'id' is missing"),
    ):
        table = write_lines(tmp_path / "t.jsonl", rows)
        with pytest.raises(DataError, match=message):
            MULTILABEL.examples.read(fasta, settings("multilabel", fasta, label_table=str(table)))


def test_settings_that_others_read_are_refused(settings):
    with pytest.raises(ConfigurationError, match=r"augment_strands=True is for task 'multilabel' or 'promoter'"):
        settings("classify", "x.jsonl", augment_strands=True)
    with refusing(ConfigurationError, "setting-range", "column_groups", "'x'", "is for task 'multilabel'"):
        settings("promoter", "x.fa", column_groups="x")
    with refusing(ConfigurationError, "setting-range", "positive_weight", "0.0", "must be positive"):
        settings("promoter", "x.fa", positive_weight=0.0)


# --- promoters ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [20, 21, 300, 999])
def test_a_negative_keeps_eight_pieces_of_twenty(length):
    random = np.random.default_rng(length)
    letters = "".join(random.choice(list("ACGT"), length))
    made = negative(letters, seed=3)
    assert made == negative(letters, seed=3) and len(made) == length and set(made) <= set("ACGT")
    assert made != negative(letters, seed=4)
    ends = [round(length * piece / PIECES) for piece in range(PIECES + 1)]
    kept = sum(letters[a:b] == made[a:b] for a, b in zip(ends, ends[1:], strict=False))
    by_chance = 12 * 4.0 ** -(length // PIECES)
    assert 8 <= kept <= 8 + math.ceil(by_chance + 3 * by_chance**0.5)
    if length == 999:
        share = np.mean([a == b for a, b in zip(letters, made, strict=True)])
        assert share == pytest.approx(8 / 20 + 12 / 20 / 4, abs=0.05)  # random bases are right once in four


def test_replaced_pieces_are_drawn_anew_for_each_promoter():
    letters = ["A" * 300, "C" * 300, "G" * 300, "T" * 300] + ["AC" * 150, "GT" * 150, "AG" * 150, "CT" * 150]
    kept = set()
    for one in letters:
        made = negative(one, 0)
        kept.add(tuple(made[at : at + 15] == one[at : at + 15] for at in range(0, 300, 15)))
    assert len(kept) == len(letters)


def test_a_promoter_and_its_negative_are_on_one_side(settings, tmp_path):
    letters = [row["sequence"] for row in sequences(40)]
    path = tmp_path / "p.txt"
    path.write_text("\n".join([*letters, letters[3], letters[7].lower()]) + "\n")
    training, validation = PROMOTER.examples.divided(settings("promoter", path, seed=5, validation_fraction=0.25))
    assert len(training) == 60 and len(validation) == 20  # what stands there twice counts once
    for side in (training, validation):
        assert [one.labels.tolist() for one in side] == [[1], [0]] * (len(side) // 2)
        assert all(side[at + 1].letters == negative(side[at].letters, 5) for at in range(0, len(side), 2))
    assert not {one.letters for one in training} & {one.letters for one in validation}
    read = PROMOTER.examples.read(path, settings("promoter", path, seed=5))
    assert {one.letters for one in read} == {one.letters for one in [*training, *validation]}


def test_labelled_promoters_are_taken_as_they_are(settings, tmp_path):
    rows = [{"sequence": "ACGT", "label": one} for one in ("yes", "NO", 1, 0, True, False, "true")]
    path = write_lines(tmp_path / "p.jsonl", rows)
    assert [one.labels.tolist() for one in PROMOTER.examples.read(path, settings("promoter", path))] == [
        [one] for one in (1, 0, 1, 0, 1, 0, 1)
    ]
    fasta = tmp_path / "p.fa"
    fasta.write_text(">a\nACGT\n>b\nAAAA\n")
    table = write_lines(tmp_path / "t.jsonl", [{"id": "a", "label": "no"}, {"id": "b", "label": "yes"}])
    read = PROMOTER.examples.read(fasta, settings("promoter", fasta, label_table=str(table)))
    assert [(one.letters, one.labels.tolist()) for one in read] == [("ACGT", [0]), ("AAAA", [1])]


# --- runs -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def learned(model, tmp_path_factory):
    """A run whose columns are motifs, which was drawn on one strand."""
    folder = tmp_path_factory.mktemp("learned")
    data = write_lines(folder / "train.jsonl", sequences(800))
    groups = folder / "groups.csv"
    groups.write_text("column,group\ngc,rich\ntata,poor\n")
    config = FineTuneConfig(
        task="multilabel",
        model=str(model),
        data=str(data),
        column_groups=str(groups),
        pooling="mean",
        positive_weight=2.0,
        learning_rate=5e-3,
        warmup_steps=5,
        batch_size=16,
        epochs=10.0,
        dtype="float32",
    )
    return folder / "run", train(config, folder / "run", progress=False)


@pytest.mark.slow
def test_motifs_are_learned(learned):
    folder, report = learned
    assert report.metric == "auc" and report.training_examples == report.training_features == 720
    assert report.scores["auc"] > 0.9
    assert report.scores["auc"] == pytest.approx((report.scores["auc_rich"] + report.scores["auc_poor"]) / 2)
    assert report.scores["columns_scored"] == 1
    page = (folder / "report.md").read_text()
    assert "| tata | poor |" in page and "- auc: " in page
    rows = [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()]
    assert len(rows) == report.validation_examples == 80
    assert set(rows[0]["predicted_probabilities"]) == set(MOTIFS)
    assert evaluate(folder).scores == report.scores


def test_files_of_all_formats_are_predicted_alike(learned, tmp_path, capsys):
    folder, _ = learned
    rows = sequences(5, seed=1)
    bare = [{"id": row["id"], "sequence": row["sequence"]} for row in rows]
    wanted = [row["predicted_probabilities"] for row in predict(folder, bare)]
    fasta, lines = tmp_path / "new.fa", write_lines(tmp_path / "new.jsonl", rows)
    fasta.write_text("".join(f">{row['id']}\n{row['sequence']}\n" for row in rows))
    table = tmp_path / "new.csv"
    table.write_text("id,sequence,tata,gc\n" + "".join(",".join(map(str, row.values())) + "\n" for row in rows))
    packed = tmp_path / "packed.fa.gz"
    packed.write_bytes(gzip.compress(fasta.read_bytes()))
    for path in (fasta, packed, lines):
        main(["predict", str(folder), "--data", str(path), "--output", str(tmp_path / f"{path.name}.out")])
        written = [json.loads(line) for line in (tmp_path / f"{path.name}.out").read_text().splitlines()]
        assert [one["predicted_probabilities"] for one in written] == wanted
        assert [one["sequence"] for one in written] == [row["sequence"] for row in rows]
    main(["predict", str(folder), "--data", str(table), "--score", "--output", str(tmp_path / "csv.out")])
    with (tmp_path / "csv.out").open() as file:
        written = list(csv.DictReader(file))
    assert [float(one["predicted_probability_tata"]) for one in written] == [one["tata"] for one in wanted]
    assert "auc" in capsys.readouterr().err


def test_scores_of_a_prediction_that_went_on_are_those_of_all(learned, tmp_path):
    """Rows that were written before are scored by what stands in the file."""
    folder, _ = learned
    rows = sequences(40, seed=2)
    table = tmp_path / "new.csv"
    table.write_text("id,sequence,tata,gc\n" + "".join(",".join(map(str, row.values())) + "\n" for row in rows))
    from asterism.training import predict_file
    from asterism.training.ask import prediction

    whole = predict_file(folder, table, output=tmp_path / "whole.csv", score=True, batch_size=1, progress=False)
    written = []
    original = prediction.PredictionOutput.write

    def stopping(self, *arguments):
        if len(written) == 30:
            raise KeyboardInterrupt
        written.append(1)
        original(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prediction.PredictionOutput, "write", stopping)
        with pytest.raises(KeyboardInterrupt):
            predict_file(folder, table, output=tmp_path / "part.csv", score=True, batch_size=1, progress=False)
    report = predict_file(
        folder, table, output=tmp_path / "part.csv", score=True, batch_size=1, resume=True, progress=False
    )
    assert report.rows_before == 30 and report.scores == whole.scores
    assert (tmp_path / "part.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()


def test_an_answer_for_both_strands_is_their_mean(learned, settings, tmp_path):
    """And it is the same for a sequence and its reverse complement, to the last digit."""
    folder, _ = learned
    rows = [{"sequence": row["sequence"]} for row in sequences(4, seed=3)]
    others = [{"sequence": other_strand(row["sequence"])} for row in rows]
    data = write_lines(tmp_path / "train.jsonl", sequences(40))
    run = tmp_path / "both"
    both = settings("multilabel", data, model=str(folder), average_strands=True, augment_strands=True, epochs=1.0)
    report = train(both, run, progress=False)
    assert report.validation_features == 2 * report.validation_examples
    opened = open_run(run)
    found = [[one["predicted_probabilities"]["gc"] for one in predict(opened, some)] for some in (rows, others)]
    assert found[0] == found[1]
    plain = open_run(run)
    object.__setattr__(plain.objective.task.rows, "average_strands", False)
    each = [[one["predicted_probabilities"]["gc"] for one in predict(plain, some)] for some in (rows, others)]
    assert found[0] == pytest.approx(np.mean(each, axis=0), rel=1e-3) and each[0] != each[1]


def test_training_draws_either_strand_by_seed_and_step(settings, tmp_path, model):
    from asterism.training.tasks.models import load_tokenizer

    tokenizer, _ = load_tokenizer(model)
    one = example("AACCGG")
    task = MULTILABEL.task(columns=("a", "b"), length=16, augment_strands=True)

    def draw(task, one, steps):
        drawn = (task.rows.drawn(one, tokenizer, of_row(0, step, 0)) for step in range(steps))
        return [feature.inputs["input_ids"].tolist() for feature in drawn]

    drawn = draw(task, one, 40)
    kinds = {tuple(row) for row in drawn}
    assert kinds == {tuple(tokenizer(letters)["input_ids"]) for letters in ("AACCGG", "CCGGTT")}
    assert drawn == draw(task, one, 40)
    assert 8 < sum(row == drawn[0] for row in drawn) < 32
    plain = MULTILABEL.task(columns=("a", "b"), length=16)
    assert len({tuple(row) for row in draw(plain, one, 9)}) == 1
    text = plain.examples.example(Record("x", {"text": "t", "a": 1, "b": 0}), labelled=True)
    with refusing(DataError, "no-other-strand", "x"):
        draw(task, text, 20)


def test_a_batch_is_a_function_of_seed_and_step(settings, tmp_path):
    data = write_lines(tmp_path / "train.jsonl", sequences(50))
    setup = Labelled.resolve(settings("multilabel", data, augment_strands=True, epochs=1.0), None)
    again = Labelled.resolve(settings("multilabel", data, augment_strands=True, epochs=1.0), None)
    for step in (0, 1, 2):
        first, second = (one.objective.batch(one.corpus, step) for one in (setup, again))
        assert all(torch.equal(first[name], second[name]) for name in first)
    assert setup.objective.positive_weight == 1.0 and first["labels"].dtype == torch.float32


def test_promoters_are_learned_and_said(settings, tmp_path):
    """What makes a promoter here is that T and A alternate all along, which a negative keeps in part."""
    random = np.random.default_rng(0)
    letters = ["".join("TA"[(at + shift) % 2] for at in range(40)) for shift in random.integers(2, size=160)]
    letters = [one[:at] + "GC" + one[at + 2 :] for one, at in zip(letters, random.integers(38, size=160), strict=True)]
    path = tmp_path / "p.txt"
    path.write_text("\n".join(letters) + "\n")
    run = tmp_path / "run"
    report = train(settings("promoter", path, epochs=15.0), run, progress=False)
    assert report.metric == "f1" and set(report.scores) == {"f1", "precision", "recall", "accuracy", "auc"}
    assert report.scores["f1"] > 0.9
    row = next(iter(predict(run, [{"sequence": letters[0]}])))
    assert row["predicted_label"] == "yes" and row["predicted_probability"] > 0.5
    main(["predict", str(run), "--data", str(path), "--format", "sequences", "--output", str(tmp_path / "said.jsonl")])
    said = [json.loads(line) for line in (tmp_path / "said.jsonl").read_text().splitlines()]
    assert len(said) == 160 and said[0]["sequence"] == letters[0]


def test_a_group_for_every_column_is_asked_for(settings, tmp_path):
    data = write_lines(tmp_path / "train.jsonl", sequences(20))
    for content, message in (
        ("column,group\ngc,x\n", r"column_groups: 1 columns, such as 'tata', have no group"),
        ("column,group\ngc,x\ngc,y\n", r"line 3: field 'column' 'gc' has a group already"),
        ("name,group\ngc,x\n", r"line 2: field 'column' is missing"),
    ):
        groups = tmp_path / "g.csv"
        groups.write_text(content)
        with pytest.raises(DataError, match=message):
            Labelled.resolve(settings("multilabel", data, column_groups=str(groups)), None)


def test_the_verb_refuses_in_one_line(model, tmp_path, capsys):
    """Exit 3 for data, 2 for settings; no run folder is begun."""
    (tmp_path / "x.fa").write_text(">a\nACXT\n")
    words = ["finetune", "--model", str(model), "--data", str(tmp_path / "x.fa"), "--folder", str(tmp_path / "run")]
    for more, code in (
        (["--task", "promoter"], 3),
        (["--task", "multilabel"], 3),
        (["--task", "chromatin", "--data", str(tmp_path / "no.mat")], 3),
        (["--task", "promoter", "--genome", str(tmp_path / "none.fa"), "--data", str(tmp_path / "none.bed")], 3),
        (["--task", "promoter", "--modality", "bytes()"], 2),
        (["--task", "promoter", "--positive-weight", "-1"], 2),
    ):
        assert main([*words, *more]) == code
        assert len(capsys.readouterr().err.strip().splitlines()) == 1 and not (tmp_path / "run").exists()


def test_other_columns_than_those_of_the_training_data_are_refused(learned, tmp_path):
    folder, _ = learned
    other = write_lines(tmp_path / "x.jsonl", [{"sequence": "ACGT", "tata": 1, "cg": 0}])
    with refusing(DataError, "columns-differ", "x.jsonl, line 1", "2"):
        evaluate(folder, data=other)
    with refusing(DataError, "missing-field", "'gc'"):
        labels_of(Record("x", {"sequence": "A", "tata": 1}), ("tata", "gc"))
