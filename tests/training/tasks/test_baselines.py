"""What stands next to a fine-tuned model's scores: baselines, and notes on what it read and how it answers."""

import json
import re

import numpy as np
import pytest
from small_encoders import REVIEWS, save_bases_model, save_tiny_bert, write_lines

from asterism.training import FineTuneConfig, train
from asterism.training.objectives.labelled import Labelled
from asterism.training.run.folder import RunFolder
from asterism.training.tasks.kinds.classification import LabelAnswers
from asterism.training.tasks.scores import baselines as module
from asterism.training.tasks.scores.baselines import CountedTerms, answer_baselines, baselines
from asterism.training.tasks.scores.curves import auc

pytestmark = pytest.mark.model

TEXTS = ["a good red lamp", "a bad red lamp", "good book", "bad book , bad lamp", "the good one is good", "a bad one"]
LABELS = np.array([[1.0, 0.0], [0.0, 1.0]] * 3)


def test_weights_are_those_of_tf_idf():
    """Three documents, of which two have each of the two terms that are in more than one."""
    found = CountedTerms(["x x y", "x", "y"], np.array([[1.0], [0.0], [1.0]]), of_bases=False, is_one_each=False)
    assert list(found.terms.columns) == ["x", "y"]
    idf = np.log(4 / 3) + 1
    assert found.terms.weights == pytest.approx([idf, idf])
    first = np.array([1 + np.log(2), 1.0])
    (row,) = found._matrix([{"x": 2, "y": 1, "x y": 1}]).toarray()
    assert row == pytest.approx([*first / np.linalg.norm(first), 1.0])


@pytest.mark.parametrize("is_one_each", (True, False))
def test_the_regression_is_at_its_optimum(is_one_each):
    """Where the slope of likelihood and prior is 0; of the constants, that the mean said is the mean there is."""
    found = CountedTerms(TEXTS, LABELS, of_bases=False, is_one_each=is_one_each)
    said = found.probabilities(TEXTS)
    assert said.mean(0) == pytest.approx(LABELS.mean(0), abs=1e-3)
    matrix = found._matrix([module.Counter(found.pieces(text)) for text in TEXTS])
    slope = matrix.T @ (said - LABELS) + np.vstack([found.weights[:-1], np.zeros((1, 2))])
    assert np.abs(slope).max() < 1e-2
    assert (said.argmax(1) == LABELS.argmax(1)).all()


def test_equal_to_scikit_learn():
    pytest.importorskip("sklearn")
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    pattern = {"ngram_range": (1, 2), "min_df": 2, "sublinear_tf": True, "token_pattern": r"\w+"}
    vectors = TfidfVectorizer(**pattern)
    other = LogisticRegression(max_iter=1000, tol=1e-8).fit(vectors.fit_transform(TEXTS), LABELS.argmax(1))
    found = CountedTerms(TEXTS, LABELS[:, 1:], of_bases=False, is_one_each=False)
    wanted = other.predict_proba(vectors.transform(TEXTS))[:, 1]
    assert found.probabilities(TEXTS)[:, 0] == pytest.approx(wanted, abs=1e-3)


def test_stretches_of_bases_are_counted():
    random = np.random.default_rng(0)
    texts = ["".join(random.choice(list("ACGT"), 60)) for _ in range(80)]
    texts = [text[:20] + "TATAAA" + text[26:] if number % 2 else text for number, text in enumerate(texts)]
    labels = np.array([[float("TATAAA" in text)] for text in texts])
    found = CountedTerms(texts[:60], labels[:60], of_bases=True, is_one_each=False)
    assert auc(found.probabilities(texts[60:])[:, 0], labels[60:, 0] > 0) > 0.8


def test_beyond_its_limits_only_the_frequencies_are_scored(monkeypatch):
    training = list(zip(TEXTS, LABELS, strict=True))
    score = lambda found: {"mean": float(found[:, 0].mean())}  # noqa: E731
    assert baselines(training, TEXTS, score, is_one_each=True).keys() == {"most frequent", "counted words"}
    assert baselines(training, TEXTS, score)["most frequent"] == {"mean": 0.5}
    monkeypatch.setattr(module, "MOST_LETTERS", 40)
    assert baselines(training, TEXTS, score).keys() == {"most frequent"}
    assert baselines(training, ["a"], score).keys() == {"most frequent", "counted words"}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {"bases": save_bases_model(folder / "bases"), "bert": save_tiny_bert(folder / "bert")}


def settings(model, data, task, **changes):
    short = {"batch_size": 8, "steps": 1, "dtype": "float32", "warmup_steps": 0, "learning_rate": 1e-9}
    return FineTuneConfig(**{"task": task, "model": str(model), "data": str(data), **short, **changes})


def test_a_report_has_baselines_and_says_if_all_answers_are_the_same(models, tmp_path, capsys, monkeypatch):
    data = write_lines(tmp_path / "in.jsonl", REVIEWS * 4)
    monkeypatch.setattr(Labelled, "_score", lambda self, examples, said: {"accuracy": 0.5, "macro_f1": 1 / 3})
    predict = module.np.zeros(2)
    monkeypatch.setattr(LabelAnswers, "_probabilities", lambda *_: predict + 1)
    report = train(settings(models["bert"], data, "classify"), tmp_path / "run")
    assert report.baselines["counted words"]["accuracy"] == 1.0 > report.baselines["most frequent"]["accuracy"]
    (line,) = [one for one in str(report).splitlines() if one.startswith("accuracy")]
    assert line.startswith("accuracy                0.5000   without a model: most frequent 0.")
    assert line.endswith("counted words 1.0000")
    (note,) = [one for one in report.notes if "answers the same" in one]
    err = capsys.readouterr().err
    assert 'to all 5 examples, "bad", although the right answers differ' in note and note in err
    assert re.search(r"^data: \d+ training examples and 5 for validation$", err, re.MULTILINE)
    shares = re.search(r"^classes: (\d+): (.*)$", err, re.MULTILINE)
    assert shares and int(shares[1]) == len(shares[2].split(", ")) and re.fullmatch(r"(\w+ \d+%(, )?)+", shares[2])
    assert re.search(r"^lengths: \d+ to \d+ tokens a row, median \d+; 0% of the documents cut$", err, re.MULTILINE)


def test_how_many_documents_are_cut_is_said_before_the_first_step(models, tmp_path):
    long = [{**one, "text": one["text"] + " the lamp is red"} for one in REVIEWS[:6]]
    data = write_lines(tmp_path / "in.jsonl", [*long, *REVIEWS[6:]])
    held = write_lines(tmp_path / "held.jsonl", REVIEWS)
    asked = settings(models["bert"], data, "classify", length=6, validation=str(held))
    report = train(asked, tmp_path / "run", progress=False)
    note = "50% of the training documents (6 of 12) are longer than 6 tokens and cut there"
    assert any(one.startswith(note) for one in report.notes)
    assert any(one.startswith(note) for one in RunFolder(tmp_path / "run").read_record()["notes"])


def test_of_examples_that_are_read_on_demand_some_are_looked_at(models, tmp_path):
    rows = [{"sequence": "ACGT" * (2 + number % 2), "x": number % 2} for number in range(8)]
    data = write_lines(tmp_path / "in.jsonl", rows)
    asked = settings(models["bases"], data, "multilabel", length=12, validation=str(data))
    report = train(asked, tmp_path / "run", progress=False)
    assert any(one.startswith("50% of the training documents (4 of 8) are longer than 12") for one in report.notes)
    assert report.baselines["counted bases"]["auc"] == 1.0 and report.baselines["most frequent"]["auc"] == 0.5
    assert json.loads((tmp_path / "run" / "run.json").read_text())["result"]["baselines"] == report.baselines


def test_the_answer_to_the_nearest_prompt_is_that_by_scikit_learn():
    pytest.importorskip("sklearn")
    from sklearn.feature_extraction.text import TfidfVectorizer

    draw = np.random.default_rng(0)
    prompts = [" ".join(draw.choice(list("abcdefgh"), draw.integers(2, 9))) for _ in range(150)]
    training, asked = [(text, f"{number % 7}") for number, text in enumerate(prompts[:60])], prompts[60:]
    said = {}

    def score(answers):
        said[len(said)] = answers
        return {"exact_match": 0.0}

    assert list(answer_baselines(training, asked, score)) == ["most frequent", "nearest prompt"]
    vectors = TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True, token_pattern=r"\w+")
    known = vectors.fit_transform(prompts[:60])
    likeness = (vectors.transform(asked) @ known.T).toarray()
    found = [one[int(text) :: 7].max() for one, text in zip(likeness, said[1], strict=True)]
    assert said[0] == ["0"] * 90 and found == pytest.approx(likeness.max(1), abs=1e-9)


def test_prompts_without_a_common_word_have_no_nearest_one():
    found = answer_baselines([("a", "x"), ("b", "y"), ("c", "y")], ["d"], lambda said: {"said": said})
    assert found == {"most frequent": {"said": ["y"]}}
