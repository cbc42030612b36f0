import json
import os
import socket
import subprocess
import sys

import pytest
from refusals import refusing
from run_folders import causal, finished, history, tuned, write_lines, write_model, write_run

from asterism.errors import CheckpointError
from asterism.report import is_page
from asterism.report.compared import describe_runs, differences, document_of
from asterism.report.described import JUDGED, describe


def test_a_finished_run(tmp_path):
    one = describe(finished(tmp_path / "run")).document
    assert one["status"]["state"] == "finished" and one["status"]["text"] == "Finished after 40 steps."
    assert one["status"]["next"] == [
        f"asterism evaluate {tmp_path}/run",
        f"asterism generate {tmp_path}/run --prompt TEXT",
    ]
    score = one["score"]
    assert (score["value"], score["baselines"], score["is_final"]) == (2.5, {"zlib": 3.25}, True)
    assert score["scored"] == "1,000 bytes of the validation split" and one["notes"] == ["a note", "another"]
    assert one["environment"]["instruction set"] == "avx2" and one["environment"]["seed"] == "0"
    assert one["data"]["train, bytes"] == "9,000" and one["files"]["model"] == str(tmp_path / "run" / "model")
    assert one["left_out"] == {}


def test_what_it_costs(tmp_path):
    cost = describe(finished(tmp_path / "run")).document["cost"]
    assert (cost["parameters"], cost["steps"], cost["seconds"], cost["peak_memory"]) == (4456, 40, 30, 10**9)
    assert (cost["tokens_per_step"], cost["tokens"]) == (128, 5120)
    products = 3 * 2 * 32 * (256 * 8 + 8 * 8)  # of the head and a query matrix; tables of embeddings take none
    pairs = 2 * 3.5 * (4 * (32 * 4 - 6) * 8)  # in each of two layers, each token reads itself and 3 before, 6 missing
    assert cost["flops_per_step"] == 4 * (products + pairs)
    assert cost["flops"] == 40 * cost["flops_per_step"]
    assert cost["speed"] == {"bytes per second": 1000.0}


def test_a_run_that_was_stopped_and_one_without_a_checkpoint(tmp_path):
    folder = write_run(tmp_path / "run")
    one = describe(folder).document
    assert one["status"]["state"] == "stopped" and "no checkpoint" in one["status"]["text"]
    assert one["score"]["value"] == history()[-1]["validation_bits_per_byte"] and not one["score"]["is_final"]
    assert "cost" in one["left_out"]
    write_model(folder / "checkpoints" / "step-00000040")
    (folder / "checkpoints" / "step-00000040" / "state.json").write_text("{}")
    two = describe(folder).document
    assert "step-00000040" in two["status"]["text"] and two["cost"]["parameters"] > 0
    assert two["status"]["next"] == [f"asterism train --folder {folder} --resume"]


def test_a_run_that_is_being_written_is_told_from_one_that_was_killed(tmp_path):
    folder = write_run(tmp_path / "run")
    (folder / ".lock").write_text(f"process {os.getpid()} on {socket.gethostname()}")
    assert describe(folder).document["status"]["state"] == "running"
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (folder / ".lock").write_text(f"process {ended.pid} on {socket.gethostname()}")
    assert describe(folder).document["status"]["state"] == "stopped"
    (folder / ".lock").write_text("process 1 on another.machine")
    assert describe(folder).document["status"]["state"] == "running"


def test_what_is_damaged_is_left_out(tmp_path):
    folder = finished(tmp_path / "run")
    (folder / "history.jsonl").write_text('{"step": 10, "seconds": 1, "loss": NaN}\n{"step": 20, "sec')
    (folder / "model" / "model.safetensors").write_bytes(b"\x00" * 40)
    (folder / "model" / "config.json").write_text("{")
    found = describe(folder)
    assert "not finite" in found.left_out["curves"] and "cost" in found.left_out
    assert found.document["curves"] == []
    (folder / "history.jsonl").unlink()
    assert describe(folder).left_out["curves"] == "history.jsonl is missing."


def test_pipes_are_not_waited_for(tmp_path):
    folder = finished(tmp_path / "run")
    (folder / "predictions.jsonl").touch()
    for path in (folder / "history.jsonl", folder / "model" / "model.safetensors", folder / "model" / "config.json"):
        path.unlink()
        os.mkfifo(path)
    for name in (".lock", "samples.jsonl"):
        os.mkfifo(folder / name)
    assert set(describe(folder).left_out) == {"curves", "cost", "samples"}
    os.mkfifo(tmp_path / "report.html")
    assert not is_page(tmp_path / "report.html")


@pytest.mark.parametrize(
    "result",
    [
        {},
        {"steps": "x", "minutes": None, "notes": 3, "baselines": [1]},
        {"validation_bits_per_byte": [1], "notes": [{}]},
    ],
)
def test_results_that_are_anything(tmp_path, result):
    found = describe(write_run(tmp_path / "run", result=result, decided=[], versions=3, machine=[1], peak_memory="x"))
    json.dumps(found.document, allow_nan=False)


def test_what_is_no_run_is_refused(tmp_path):
    with refusing(CheckpointError, "not-a-run-folder", "none"):
        describe(tmp_path / "none")
    with refusing(CheckpointError, "file-name"):
        describe("a\0b")
    folder = write_run(tmp_path / "run")
    (folder / "run.json").write_text((folder / "run.json").read_text().replace('"seed": 0', '"seed": 1'))
    with refusing(CheckpointError, "file-tampered"):
        describe(folder)


def test_samples_over_steps(tmp_path):
    folder = write_run(tmp_path / "run")
    lines = [{"step": step, "prompt": "p", "text": f"written {step}"} for step in range(100)]
    write_lines(folder / "samples.jsonl", lines)
    found = describe(folder)
    assert len(found.document["samples"]) == 60 and "40 samples are not shown" in found.left_out["samples"]
    assert found.document["samples"][-1] == {"step": 99, "texts": {"prompt": "p", "written": "written 99"}}


def test_runs_that_differ_in_their_settings(tmp_path):
    write_run(tmp_path / "a" / "run")
    write_run(tmp_path / "b" / "run", causal(seed=3))
    runs = describe_runs([tmp_path / "a" / "run", tmp_path / "b" / "run"])
    assert list(runs) == ["run", "run (2)"]
    assert differences(runs) == {"seed": {"run": 0, "run (2)": 3}, "environment: seed": {"run": "0", "run (2)": "3"}}
    assert [one["name"] for one in document_of(runs)["runs"]] == ["run", "run (2)"]


def test_runs_of_two_kinds_differ_in_what_both_have(tmp_path):
    data = write_lines(tmp_path / "data.jsonl", [{"text": "x", "label": "a"}])
    folders = [write_run(tmp_path / "a"), tuned(tmp_path / "b", "classify", data, [])]
    found = differences(describe_runs(folders))
    assert found["kind"] == {"a": "train", "b": "finetune"} and found["learns"] == {"a": "causal", "b": "classify"}
    assert "context" not in found and "reader" not in found and "batch_size" not in found


@pytest.mark.model
def test_objectives_are_judged_by_what_their_classes_say():
    from asterism.training.settings.registry import OBJECTIVES

    assert set(JUDGED) == set(OBJECTIVES) - {"labelled"}
    for name, judged in JUDGED.items():
        objective = OBJECTIVES.load(name)
        reported = {metric.name: metric.reported for metric in objective.metrics}
        assert (objective.metric.name, reported[judged.metric]) == (judged.metric, judged.result)
        assert judged.counted in reported.values() and objective.metric.lower_is_better


@pytest.mark.model
@pytest.mark.parametrize("name", ["bytes-small", "bigbird-tiny"])
def test_flops_are_those_of_a_dry_run(name):
    from dataclasses import asdict

    import torch

    from asterism.report.cost import Weights, flops_per_step
    from asterism.report.layers import draw_layers
    from asterism.training import recipe
    from asterism.training.ask.estimate import _foundations, estimate
    from asterism.training.run.arithmetic import settled

    config = settled(recipe(name))
    objective, _, shape = _foundations(config, None)
    with torch.device("meta"):
        model = objective.model_class(config)(shape)
    weights = Weights({one: tuple(tensor.shape) for one, tensor in model.named_parameters()}, 0)
    found = flops_per_step(asdict(config), weights, draw_layers(shape.to_dict(), config.context))
    assert found == pytest.approx(estimate(config).flops_per_step, rel=0.01)
