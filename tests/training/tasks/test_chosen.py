"""What a reader chose to read stands next to each prediction of the run folder."""

import json

import pytest
from small_encoders import save_tiny_bert, write_lines

from asterism.training import FineTuneConfig, train

pytestmark = pytest.mark.model

FILLER = "the a red blue green of paris rome is . " * 6


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chosen")
    records = []
    for number in range(12):
        place = ("cellar", "attic", "garden")[number % 3]
        before = f"{FILLER[number:]}the coin is in the "
        answers = [{"text": place, "answer_start": len(before)}]
        context = f"{before}{place} . {FILLER}"
        records.append({"context": context, "question": "where is the coin", "answers": answers})
    data = write_lines(folder / "data.jsonl", records)
    model = save_tiny_bert(folder / "bert", positions=64)
    return FineTuneConfig, {"task": "qa", "model": str(model), "data": str(data), "length": 40, "dtype": "float32"}


@pytest.mark.parametrize("reader", ["selected(k=1, stride=16)", "iterated(k=1, stride=16)", "windows(stride=16)"])
def test_the_answer_lies_in_what_was_read(settings, reader, tmp_path):
    config, values = settings
    given = {"steps": 2, "epochs": 99.0, "batch_size": 4, "validation_fraction": 0.5, "reader": reader}
    train(config(**values, **given), tmp_path / "run", progress=False)
    lines = [json.loads(line) for line in (tmp_path / "run" / "predictions.jsonl").read_text().splitlines()]
    assert len(lines) == 6
    for line in lines:
        if reader.startswith("windows"):
            assert "read" not in line  # all of it was
            continue
        begin = line["predicted_answer_start"]
        ((first, end),) = line["read"]
        assert first <= begin and begin + len(line["predicted_answer"]) <= end
        assert end - first < 300  # of 500 characters and more
