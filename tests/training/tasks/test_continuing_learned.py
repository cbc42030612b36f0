"""A small model learns a task completely: it reverses words that it has never seen, each time."""

import pytest
from small_chats import CHATML, chats, completions, save_tiny_llama, words
from small_encoders import write_lines

from asterism.quiet import quiet_transformers
from asterism.training import FineTuneConfig, predict_file, train

pytestmark = [pytest.mark.model, pytest.mark.slow]


@pytest.mark.parametrize(("task", "make"), [("complete", completions), ("instruct", chats)])
def test_words_are_reversed_without_a_mistake(task, make, tmp_path):
    with quiet_transformers():
        model = save_tiny_llama(tmp_path / "llama", template=CHATML, width=64)
    texts = words(3000, longest=4)
    data, unseen = make(texts[:-200]), make(texts[-200:])
    asked = FineTuneConfig(
        task=task,
        model=str(model),
        data=str(write_lines(tmp_path / "x.jsonl", data)),
        pattern="sinks(first=1, window=40)",
        packing=True,
        length=128,
        batch_size=8,
        steps=400,
        epochs=999.0,
        learning_rate=3e-3,
        warmup_steps=30,
        evaluation_every=400,
        dtype="float32",
    )
    report = train(asked, tmp_path / "run", progress=False)
    assert report.scores["exact_match"] == 1.0 > 10 * report.baselines["most frequent"]["exact_match"]
    written = write_lines(tmp_path / "new.jsonl", unseen)
    found = predict_file(tmp_path / "run", written, output=tmp_path / "out.jsonl", score=True, progress=False)
    assert found.scores["exact_match"] == 1.0 and report.scores["answer_loss"] < 0.02
