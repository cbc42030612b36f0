"""Reviews read whole and cut: who is asked about what, what figures decide, and a small run from file to figures."""

import json
import lzma
from dataclasses import replace

import numpy as np
import pytest

from asterism.reproduce.data.reviews import TEST, TRAIN, cut_reviews
from asterism.reproduce.experiment import Results
from asterism.reproduce.experiments import reviews
from asterism.reproduce.experiments.reviews import LONG, REVIEWS, SHORT
from asterism.reproduce.trials import DATA, Training


def made_up(cut: tuple[float, float], middle: tuple[float, float], whole: tuple[float, float]) -> Results:
    """Accuracies on short and on long reviews, by the tokens read."""
    found = dict(zip(("64 tokens", "512 tokens", "4,096 tokens"), (cut, middle, whole), strict=True))
    return Results(
        [
            {"trial": name, "seed": 0, "figures": {SHORT: short, LONG: long}}
            for name, (short, long) in (found | {reviews.COUNTED: (0.86, 0.87)}).items()
        ]
    )


@pytest.mark.parametrize(
    ("accuracies", "holds"),
    [
        (((0.7, 0.6), (0.85, 0.80), (0.855, 0.84)), [True, True, True]),  # 0.5 points of 78% and 4 of 10%
        (((0.7, 0.6), (0.85, 0.80), (0.87, 0.80)), [False, False, True]),
        (((0.84, 0.6), (0.85, 0.80), (0.85, 0.81)), [True, True, False]),
    ],
)
def test_what_accuracies_decide(accuracies, holds):
    results = made_up(*accuracies)
    assert [finding.holds for finding in REVIEWS.findings(results)] == holds
    assert [finding.holds for finding in REVIEWS.findings(Results([]))] == [None] * 3
    assert len(REVIEWS.table(results).rows) == 4 + 2
    assert REVIEWS.draw(results).axes


def test_reviews_are_chosen_by_their_words(tmp_path):
    with lzma.open(tmp_path / "all.xz", "wt") as file:
        for count in range(1, 41):
            file.write(json.dumps({"text": "word " * count, "label": "pos" if count % 2 else "neg"}) + "\n")
    found = cut_reviews(tmp_path / "all.xz", 10, None, seed=0, words=range(11, 21))
    assert sorted(len(text.split()) for text, _ in found) == list(range(11, 21))
    assert all(label == ("pos" if len(text.split()) % 2 else "neg") for text, label in found)


def test_a_small_run_is_scored(tmp_path, monkeypatch):
    monkeypatch.setattr(reviews, "LEARNED", 40)
    monkeypatch.setattr(reviews, "ASKED", 6)
    monkeypatch.setattr(reviews, "VOCABULARY", 300)
    random = np.random.Generator(np.random.Philox(0))
    (tmp_path / DATA).mkdir()
    for name in (TRAIN, TEST):
        with lzma.open(tmp_path / DATA / name, "wt") as file:
            for number in range(240):
                text = " ".join(random.choice(["good", "bad", "film", "plot"], 12 if number % 2 else 460))
                file.write(json.dumps({"text": text, "label": "pos" if number % 3 else "neg"}) + "\n")
    counted, cut, *_ = REVIEWS.trials("laptop")
    assert isinstance(cut, Training)
    short = replace(cut, config=replace(cut.config, steps=2, warmup_steps=1, batch_size=4))
    for figures in (counted.run(tmp_path), short.run(tmp_path)):
        assert {SHORT, LONG} <= set(figures)
        assert all(0 <= figures[length] <= 1 for length in (SHORT, LONG))
    lines = (tmp_path / DATA / "test-451-100000.jsonl").read_text().splitlines()
    assert len(lines) == 6 and all(len(json.loads(line)["text"].split()) == 460 for line in lines)
