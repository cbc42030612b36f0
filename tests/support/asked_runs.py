"""Finished runs of tasks on small data, to be asked."""

import io
from pathlib import Path

import pytest
from small_encoders import QUESTIONS, REVIEWS, TAGGED, save_tiny_bert, write_lines

from asterism.quiet import quiet_transformers
from asterism.training import FineTuneConfig, predict_file, train
from asterism.training.ask import prediction

LONG = {"text": "the lamp is red and the book of anna is in the cellar .", "label": "good"}
EXAMPLES = {"classify": [*REVIEWS * 3, LONG], "tag": TAGGED * 3, "qa": QUESTIONS * 3}
"""The validation examples of each run, of several lengths."""
INPUTS = {"classify": ("text",), "tag": ("tokens",), "qa": ("context", "question")}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A finished run of each task, with the file of its validation examples; tests must not change them."""
    folder = tmp_path_factory.mktemp("runs")
    unanswered = {**QUESTIONS[0], "question": "where is the book", "answers": []}
    made = {}
    with quiet_transformers():
        bert = save_tiny_bert(folder / "bert")
    for task, examples in EXAMPLES.items():
        validation = write_lines(folder / f"{task}-validation.jsonl", examples)
        training = write_lines(folder / f"{task}.jsonl", [*examples, unanswered] if task == "qa" else examples)
        config = FineTuneConfig(
            **{"task": task, "model": str(bert), "data": str(training), "validation": str(validation)},
            **{"learning_rate": 5e-3, "warmup_steps": 2, "batch_size": 4, "dtype": "float32", "epochs": 2.0},
            **({"reader": "windows(length=14, stride=4)"} if task == "qa" else {}),
        )
        train(config, folder / task, progress=False)
        made[task] = folder / task, validation
    return made


def lines_of(path: Path) -> list[str]:
    return list(io.StringIO(path.read_bytes().decode(), newline="\n"))


def bare(task: str, examples: list[dict]) -> list[dict]:
    """Examples without their labels."""
    return [{name: one[name] for name in INPUTS[task]} for one in examples]


def stopped(run: Path, data: Path, out: Path, rows: int) -> None:
    """An output that was stopped after so many rows, with batches of one."""
    out.unlink(missing_ok=True)
    write = prediction.PredictionOutput.write

    def stopping(self, *arguments):
        if self.rows == rows:
            raise KeyboardInterrupt
        write(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prediction.PredictionOutput, "write", stopping)
        with pytest.raises(KeyboardInterrupt):
            predict_file(run, data, output=out, batch_size=1, progress=False)
