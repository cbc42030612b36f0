"""Scores that are written here, compared with those of scikit-learn and seqeval on drawn labels."""

import random

import numpy as np
import pytest

from asterism.training.tasks.scores.baselines import CountedTerms
from asterism.training.tasks.scores.curves import auc
from asterism.training.tasks.scores.labels import accuracy, bio_spans, count, macro_f1, micro_f1

metrics = pytest.importorskip("sklearn.metrics")
seqeval = pytest.importorskip("seqeval.metrics")
entities = pytest.importorskip("seqeval.metrics.sequence_labeling").get_entities

SEEDS = range(20)


@pytest.mark.parametrize("seed", SEEDS)
def test_single_labels(seed):
    draw = random.Random(seed)
    said, there = (draw.choices("abcde", k=30) for _ in range(2))
    assert accuracy(said, there) == pytest.approx(metrics.accuracy_score(there, said))
    found = macro_f1([(one,) for one in said], [(one,) for one in there])
    assert found == pytest.approx(metrics.f1_score(there, said, average="macro", zero_division=0))


@pytest.mark.parametrize("seed", SEEDS)
def test_any_number_of_labels(seed):
    """In columns: those of labels that nobody says, and that are nowhere, are left out."""
    draw = np.random.default_rng(seed)
    said, there = (draw.random((12, 6)) < draw.choice([0.1, 0.4, 0.8]) for _ in range(2))
    as_sets = [[set(np.flatnonzero(row)) for row in rows] for rows in (said, there)]
    occur = (said | there).any(0)
    for ours, average in ((micro_f1, "micro"), (macro_f1, "macro")):
        theirs = metrics.f1_score(there[:, occur], said[:, occur], average=average, zero_division=0)
        assert ours(*as_sets) == pytest.approx(theirs), average


@pytest.mark.parametrize("seed", SEEDS)
def test_areas_under_the_curve(seed):
    draw = np.random.default_rng(seed)
    there = np.append(draw.random(40) < 0.3, [True, False])
    for scores in (draw.normal(size=42), draw.integers(4, size=42) / 4):  # with ties and without
        assert auc(scores, there) == pytest.approx(metrics.roc_auc_score(there, scores), abs=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_spans_of_tags(seed):
    """Of tags in any order, also of an I that follows nothing of its kind."""
    draw = random.Random(seed)
    tags = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
    said, there = ([draw.choices(tags, k=draw.randint(1, 12)) for _ in range(8)] for _ in range(2))
    said = [(one * 12)[: len(other)] for one, other in zip(said, there, strict=True)]
    for one in said + there:
        assert bio_spans(one) == {(kind, first, last + 1) for kind, first, last in entities(one)}
    found = count([bio_spans(one) for one in said], [bio_spans(one) for one in there])
    for name in ("precision", "recall", "f1"):
        theirs = getattr(seqeval, f"{name}_score")(there, said, zero_division=0)
        assert getattr(found, name) == pytest.approx(theirs), name


@pytest.mark.parametrize("is_one_each", [True, False])
def test_the_regression_on_counted_words(is_one_each):
    linear = pytest.importorskip("sklearn.linear_model")
    vectorizer = pytest.importorskip("sklearn.feature_extraction.text").TfidfVectorizer
    draw = np.random.default_rng(0)
    words = np.array([f"word{number}" for number in range(30)])
    kinds = draw.integers(3, size=90)
    texts = [" ".join(draw.choice(words[kind * 8 : kind * 8 + 14], size=12)) for kind in kinds]
    labels = np.eye(3)[kinds]
    ours = CountedTerms(texts[:60], labels[:60], of_bases=False, is_one_each=is_one_each).probabilities(texts[60:])
    terms = vectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True)
    train, test = terms.fit_transform(texts[:60]), terms.transform(texts[60:])
    exact = {"tol": 1e-9, "max_iter": 10_000}
    if is_one_each:
        theirs = linear.LogisticRegression(**exact).fit(train, kinds[:60]).predict_proba(test)
    else:
        each = [linear.LogisticRegression(**exact).fit(train, column) for column in labels[:60].T]
        theirs = np.stack([one.predict_proba(test)[:, 1] for one in each], axis=1)
    assert ours == pytest.approx(theirs, abs=1e-3)
