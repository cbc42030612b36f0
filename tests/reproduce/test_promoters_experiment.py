"""Promoters: their splits and negatives, the models without attention, what F1 decides, and small runs."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from refusals import refusing

from asterism.errors import DataError
from asterism.reproduce import convolution
from asterism.reproduce.convolution import learn_convolution, learn_kmers, learn_places, scores
from asterism.reproduce.data import promoters as data
from asterism.reproduce.data.promoters import BASES, SOURCE, Labelled, labelled, split_of
from asterism.reproduce.experiment import Results
from asterism.reproduce.experiments.promoters import (
    BIGBIRD,
    CNNPROM,
    CONVOLUTION,
    COUNTED,
    DENSE,
    FIGURES,
    MIXERS,
    PLACES,
    PROMOTERS,
    TOKENS,
)
from asterism.reproduce.trials import DATA, Baseline, Training
from asterism.search.budget import keys_read
from asterism.training.data.corpora.splits import SPLITS
from asterism.training.tasks.kinds.promoter import negative


def drawn(count: int, length: int = BASES, seed: int = 0) -> list[str]:
    """Sequences that are rich in G."""
    random = np.random.default_rng(seed)
    return ["".join(random.choice(list("ACGT"), length, p=(0.1, 0.1, 0.7, 0.1))) for _ in range(count)]


@pytest.fixture
def source(tmp_path):
    lines = drawn(50)
    path = tmp_path / DATA / SOURCE.name
    path.parent.mkdir()
    path.write_text("\n".join([*lines, "", lines[0].lower()]) + "\n")
    return path


# --- data -------------------------------------------------------------------------------------------------------------


def test_a_byte_order_mark_is_no_base(source):
    before = split_of(source, 0, "test")
    source.write_bytes(b"\xef\xbb\xbf" + source.read_bytes())
    assert split_of(source, 0, "test") == before


def test_each_promoter_is_in_one_split_of_each_seed(source):
    every = sorted(drawn(50))
    tested = set()
    for seed in range(5):
        parts = [split_of(source, seed, split) for split in SPLITS]
        assert [len(part) for part in parts] == [40, 5, 5] and sorted(sum(parts, [])) == every
        assert parts == [split_of(source, seed, split) for split in SPLITS]
        tested.add(tuple(parts[2]))
    assert len(tested) == 5


def test_a_negative_stands_behind_its_promoter(source):
    letters, labels = labelled(source, 3, "test")
    assert letters[::2] == split_of(source, 3, "test") and labels.tolist() == [1, 0] * 5
    assert letters[1::2] == [negative(one, 3) for one in letters[::2]] != [negative(one, 4) for one in letters[::2]]


@pytest.mark.parametrize(
    ("content", "code", "seen"),
    [
        (None, "promoters-file", "No such file"),
        (b"\xfd7zXZ\x00\xff", "promoters-file", "utf-8"),
        (b"", "too-few-promoters", "10 promoters or more, got 0"),
        (b"ACGT\n", "promoter-length", "line 1 must have 300 bases, got 4"),
        (b">chr1\n" + b"A" * BASES, "promoter-length", "line 1"),
        (b"A" * BASES + b"\n" + b"C" * (BASES - 1) + b"!", "bad-letter", "line 2: letter 300"),
        (b"\n".join([b"A" * BASES] * 20), "too-few-promoters", "got 1"),
    ],
)
def test_a_file_that_is_none_of_promoters_is_one_line(tmp_path, content, code, seen):
    path = tmp_path / SOURCE.name
    if content is not None:
        path.write_bytes(content)
    with refusing(DataError, code, str(path), seen) as caught:
        data.promoters(path)
    assert "\n" not in str(caught.value)


# --- models without attention -----------------------------------------------------------------------------------------


def rich(counts: tuple[int, int, int], length: int) -> list[Labelled]:
    """Promoters that are rich in G, and their negatives."""
    parts = []
    for seed, count in enumerate(counts):
        letters = [one for text in drawn(count, length, seed) for one in (text, negative(text, 0))]
        parts.append(Labelled(letters, np.tile([1, 0], count)))
    return parts


def test_models_without_attention_learn():
    parts = rich((120, 40, 40), 60)
    words = learn_kmers(*parts)
    assert words.scores["f1"] > 0.9 and words.parameters == 4 + 16 + 64 + 256 + 1024 + 4096 + 1
    assert learn_convolution(*parts, seed=0, steps=100).scores["auc"] > 0.9


def test_a_convolution_depends_on_its_seed_and_draws_from_no_global_generator():
    parts = rich((4, 20, 20), 60)  # fewer than a batch
    before = torch.get_rng_state()
    found = [learn_convolution(*parts, seed=seed, steps=9) for seed in (0, 1)]
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(5)
    again = [learn_convolution(*parts, seed=seed, steps=9) for seed in (0, 1)]
    assert found == again and found[0].scores != found[1].scores


def test_validation_chooses_among_eight_checks(monkeypatch):
    """The weights of the check that validation scores best answer the test, not the last."""
    seen: list[float] = []

    def scored(probabilities, labels):
        seen.append(float(probabilities.sum()))
        return {"f1": 1.0 if len(seen) == 3 else 0.5}

    monkeypatch.setattr(convolution, "scores", scored)
    train, validation, _ = rich((20, 10, 10), 60)
    learn_convolution(train, validation, validation, seed=0, steps=20)
    assert len(seen) == 8 + 1 and seen[8] == seen[2] and len(set(seen[:8])) == 8


@pytest.mark.parametrize(("place", "is_read"), [(799, True), (800, False)])
def test_places_tell_what_stands_where(place, is_read):
    """One base decides, of 801: the last place that is read, or beyond it the last that is not."""
    random = np.random.default_rng(3)
    parts = []
    for count in (400, 200, 200):
        letters = np.full((count, 801), "C")
        letters[:, :400] = random.choice(list("CG"), (count, 400))
        labels = np.arange(count) % 2
        letters[:, place] = np.where(labels, "A", "T")
        parts.append(Labelled(["".join(one) for one in letters], labels))
    area = learn_places(*parts).scores["auc"]
    assert area > 0.9 if is_read else area < 0.7


def test_words_are_counted_as_shares():
    counted = convolution._words("AACGN")
    assert counted[:4].tolist() == [0.5, 0.25, 0.25, 0.0]
    pairs = counted[4:20]
    assert pairs.sum() == pytest.approx(1) and np.count_nonzero(pairs) == 3  # AA, AC, CG


def test_scores_are_those_of_promoters():
    found = scores(np.array([0.9, 0.8, 0.2, 0.6]), np.array([1, 0, 1, 1]))
    assert found["precision"] == found["recall"] == found["f1"] == pytest.approx(2 / 3)
    assert set(FIGURES) <= set(found)


# --- trials -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scale", "seeds"), [("laptop", 3), ("workstation", 5)])
def test_all_models_of_a_seed_have_its_split(scale, seeds):
    trials = PROMOTERS.trials(scale)
    assert [trial.seed for trial in trials] == [seed for seed in range(seeds) for _ in range(5)]
    assert {trial.name for trial in trials} == {*MIXERS, CONVOLUTION, COUNTED, PLACES}
    for trial in trials:
        if isinstance(trial, Training):
            settings = trial.settings()
            assert (settings["data"], settings["validation"]) == (
                f"train-{trial.seed}.txt",
                f"validation-{trial.seed}.txt",
            )
            assert settings["dtype"] == "float32" and settings["mixers"] == MIXERS[trial.name]
        assert trial.settings()["seed"] == trial.seed
    steps = {trial.name: trial.settings().get("steps") for trial in trials}
    assert steps[DENSE] == steps[BIGBIRD] and steps[CONVOLUTION] > 0 and steps[COUNTED] is None


def test_the_pattern_reads_few_keys():
    tokens = BASES // 3 + 2
    assert keys_read(MIXERS[DENSE], tokens, 2) == tokens <= TOKENS
    assert keys_read(MIXERS[BIGBIRD], tokens, 2) < 0.35 * tokens


@pytest.mark.usefixtures("source")
def test_small_runs_are_scored(tmp_path):
    """From the file to the figures: a run of each pattern, then the others on the same test split."""
    for trial in PROMOTERS.trials("laptop")[5:10]:
        if isinstance(trial, Training):
            config = replace(trial.config, steps=2, warmup_steps=1, batch_size=4, evaluation_every=2)
            trial = replace(trial, config=config)
        elif trial.name == CONVOLUTION:
            assert isinstance(trial, Baseline)
            trial = replace(trial, measure=lambda folder, measure=trial.measure: measure(folder, steps=8))
        figures = trial.run(tmp_path)
        assert {*FIGURES, "minutes", "parameters"} <= set(figures)
        assert all(0 <= figures[name] <= 1 for name in FIGURES)
    for split, count in zip(SPLITS, (40, 5, 5), strict=True):
        lines = (tmp_path / DATA / f"{split}-1.txt").read_text().split()
        assert lines == split_of(tmp_path / DATA / SOURCE.name, 1, split) and len(lines) == count


# --- findings ---------------------------------------------------------------------------------------------------------


def made_up(**f1: tuple[float, ...]) -> Results:
    """F1 of every seed, by the first letters of models."""
    names = {"dense": DENSE, "bigbird": BIGBIRD, "convolution": CONVOLUTION, "counted": COUNTED}
    return Results(
        [
            {"trial": names[name], "seed": seed, "figures": {"f1": value}}
            for name, values in f1.items()
            for seed, value in enumerate(values)
        ]
    )


@pytest.mark.parametrize(
    ("bigbird", "convolution", "counted", "holds"),
    [
        ((0.93, 0.92), (0.95, 0.94), (0.91, 0.90), [False, True, True]),
        ((0.93, 0.92), (0.91, 0.90), (0.95, 0.94), [True, False, True]),
        ((0.93, 0.92), (0.925, 0.95), (0.925, 0.90), [None, None, True]),
        ((0.95, 0.94), (0.9,), (0.9,), [None, None, False]),
        ((0.90, 0.91), (0.95, 0.94), (0.8, 0.8), [False, True, False]),
    ],
)
def test_what_scores_decide(bigbird, convolution, counted, holds):
    results = made_up(bigbird=bigbird, convolution=convolution, counted=counted, dense=(0.93, 0.92))
    assert [finding.holds for finding in PROMOTERS.findings(results)] == holds


@pytest.mark.parametrize("results", [Results([]), made_up(bigbird=(0.9, 0.91)), made_up(dense=(0.9,), counted=(0.8,))])
def test_missing_figures_leave_findings_open(results):
    found = PROMOTERS.findings(results)
    assert [finding.holds for finding in found] == [None] * 3
    assert all("Missing" in finding.seen for finding in found)
    assert PROMOTERS.draw(results).axes


def test_the_paper_stands_next_to_our_scores():
    rows = {row[0]: row[1:] for row in PROMOTERS.table(made_up(bigbird=(0.9, 0.92), counted=(0.8,))).rows}
    assert rows[BIGBIRD] == ("0.910 ± 0.010", "-", "-", "-", "0.999", "-")
    assert rows[COUNTED][:1] == ("0.800",) and rows[COUNTED][4] == "-"
    assert rows[CONVOLUTION][4] == "0.956" and rows[CNNPROM][4] == "0.697"
