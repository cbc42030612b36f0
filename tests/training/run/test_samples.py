"""What a run keeps for people to look at: samples at every evaluation, its machine, its memory."""

import json
import platform

from asterism.training.objectives.causal import PROMPT
from asterism.training.pipeline import train
from asterism.training.run.folder import RunFolder


def samples(folder):
    return [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]


def test_the_model_continues_the_validation_split_at_every_evaluation(finished, text):
    folder, _ = finished
    found = samples(folder)
    assert [one["step"] for one in found] == [10, 20, 30]
    (prompt,) = {one["prompt"] for one in found}
    assert len(prompt) == min(PROMPT, 64 // 4) and prompt in text.read_text()
    assert all(len(one["text"].encode(errors="replace")) >= 64 - len(prompt) for one in found)
    assert len({one["text"] for one in found}) == 3


def test_a_run_that_was_interrupted_keeps_the_same_samples(finished, interrupted, tiny):
    assert [one["step"] for one in samples(interrupted)] == [10]
    train(tiny, interrupted, resume=True, progress=False)
    assert samples(interrupted) == samples(finished[0])


def test_samples_behind_the_checkpoint_are_forgotten(tmp_path):
    run = RunFolder(tmp_path)
    for step in (10, 20):
        run.append_samples(step, [{"text": "a"}, {"text": "b"}])
    run.append_samples(20, [{"text": "c"}])  # the step is tried again
    run.append_samples(30, [])
    assert [(one["step"], one["text"]) for one in samples(tmp_path)] == [(10, "a"), (10, "b"), (20, "c")]
    path = tmp_path / "samples.jsonl"
    path.write_text(f"{path.read_text()}damaged\n{{}}\n")
    damage = run.cut_history(10)
    assert all(f"line {number}" in one for number, one in zip((4, 5), damage, strict=True))
    assert [one["step"] for one in samples(tmp_path)] == [10, 10]


def test_the_machine_and_the_memory_are_recorded(finished):
    record = RunFolder(finished[0]).read_record()
    assert record["machine"]["system"] == platform.platform() and int(record["machine"]["threads"]) >= 1
    assert {"processor", "instruction_set", "cores", "memory"} <= record["machine"].keys()
    assert 10**7 < record["peak_memory"] < 10**12
