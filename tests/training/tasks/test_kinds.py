"""What tasks are made of: three values each, which do their part alone, and a record that makes them again."""

import json

import numpy as np
import pytest
from small_encoders import word_tokenizer

from asterism.errors import ConfigurationError
from asterism.lazy import imported
from asterism.training.data.records.record import Record
from asterism.training.settings.registry import FILE_TASKS, TASKS
from asterism.training.tasks.kinds.classification import CLASSIFICATION, DocumentExamples, DocumentRows, LabelAnswers

pytestmark = pytest.mark.model

SEQUENCES = {
    **{"length": 8, "reader": "cut()", "columns": ["a", "b"], "groups": ["x", "y"], "pooling": None},
    **{"positive_weight": 2.0, "augment_strands": False, "average_strands": True, "genome": "g.fa", "window": 100},
}
WRITING = {
    **{"length": 12, "reader": "cut()", "target_length": 8, "cuts_targets": True, "num_beams": 3, "asks": True},
    **{"length_penalty": 1.0, "no_repeat_ngram_size": 0, "source_prefix": "short : ", "start": 2},
}
CONTINUING = {
    **{"length": 12, "reader": "whole()", "target_length": 8, "cuts_targets": True, "num_beams": 3, "asks": False},
    **{"length_penalty": 1.0, "no_repeat_ngram_size": 0, "packing": True, "end": 5, "stops": [5, 2]},
}
LABELS = {"length": 8, "reader": "windows(stride=2, pool=max)", "labels": ["a", "b"], "several": True, "pooling": "cls"}
RECORDS = {
    "classify": LABELS,
    "tag": {"length": 8, "reader": "whole()", "labels": ["B-X", "O"], "unread": "O"},
    "qa": {"length": 30, "reader": "iterated(k=2)", "max_answer_length": 9, "may_have_none": True},
    "multilabel": SEQUENCES,
    "promoter": {**SEQUENCES, "columns": ["promoter"], "groups": []},
    "chromatin": SEQUENCES,
    "summarize": {**WRITING, "reader": "iterated(stride=1)"},
    "translate": {**WRITING, "asks": False},
    "generate": {**WRITING, "reader": "selected(k=2)"},
    "complete": CONTINUING,
    "instruct": {**CONTINUING, "lead": ">>"},
    "files": {**LABELS, "reader": "cut()", "modality": "bytes()"},
}
"""As they stand in run.json."""


def kind_of(name):
    return imported(FILE_TASKS["classify"]) if name == "files" else TASKS.load(name)


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_makes_the_task_again(name):
    task = kind_of(name).from_record(RECORDS[name])
    assert json.loads(json.dumps(task.record())) == RECORDS[name]
    assert kind_of(name).from_record(task.record()) == task == task.changed()


def test_there_is_a_record_of_every_task():
    assert RECORDS.keys() == TASKS.keys() | {"files"}


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.parametrize("change", [{"colour": 1}, {"length": "8"}, {"reader": None}, {"length": True}])
def test_a_record_of_something_else_is_refused(name, change):
    with pytest.raises(TypeError, match="colour|length|reader"):
        kind_of(name).from_record({**RECORDS[name], **change})
    with pytest.raises(TypeError, match=r"its fields must be .*length"):
        kind_of(name).from_record({one: value for one, value in RECORDS[name].items() if one != "length"})


def test_a_field_of_several_values_is_the_same_in_all():
    task = CLASSIFICATION.from_record(RECORDS["classify"])
    for one in (task, task.changed(labels=("c", "d"), several=False, reader="windows()")):
        assert one.rows.labels == one.answers.labels and one.rows.reader == one.answers.reader
        assert one.examples.several == one.rows.several == one.answers.several
    with pytest.raises(ConfigurationError, match="reader: windows: pool must be mean or max for this task, got span"):
        task.changed(reader="windows(pool=span)")
    with pytest.raises(TypeError, match="classification has no field colour"):
        task.changed(colour=1)


def test_examples_rows_and_answers_do_their_part_alone():
    example = DocumentExamples(several=False).example(
        Record("x", {"text": "the red lamp", "label": "b"}), labelled=True
    )
    assert (example.text, DocumentExamples(several=False).gold(example)) == ("the red lamp", "b")
    rows = DocumentRows(length=4, labels=("a", "b"), several=False)
    ((feature,),) = rows.features([example], word_tokenizer())
    assert len(feature.inputs["input_ids"]) == 4 and feature.is_cut and feature.target == 1
    answers = LabelAnswers(labels=("a", "b"), several=False)
    prediction = answers.predict(example, [feature], [(np.array([0.0, 3.0], np.float32),)])
    assert prediction["label"] == "b" and answers.score(["b"], ["b"])["accuracy"] == 1
