"""What benchmarks/digits.py and m5.py do, on a small archive of tones."""

import importlib
import json
import subprocess
import sys
import tarfile
from io import BytesIO
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from repository import BENCHMARKS, docs_page
from sound_files import encoded, tone

from asterism.models import AsterismConfig, AsterismForCausalLM


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module


@pytest.fixture
def archive(tmp_path):
    """Ten tones instead of ten digits, two recordings each of indices 4 (test), 5 (validation), 8 and 49 (training)."""
    path = tmp_path / "digits.tar.xz"
    with tarfile.open(path, "w:xz") as members:
        for digit in range(10):
            for index in (4, 5, 8, 49):
                for speaker in ("ann", "bob"):
                    sound = encoded(tone(300 + 10 * digit, 8000, 200 + 300 * digit, seed=index), 8000)
                    add(members, f"spoken/{digit}_{speaker}_{index}.wav", sound)
        add(members, "spoken/readme.txt", b"no sound")
        add(members, "spoken/../../outside_x_1.wav", encoded(tone(300, 8000)))
        add(members, "spoken/0_ann.wav", b"no index")
    return path


def add(members, name, content):
    member = tarfile.TarInfo(name)
    member.size = len(content)
    members.addfile(member, BytesIO(content))


def test_recordings_are_split_by_index_and_stay_in_the_folder(script, archive, tmp_path):
    folder = tmp_path / "deep" / "data"
    assert script("digits").unpack(archive, folder) == {"test": 20, "validation": 20, "train": 40}
    assert (folder / "test" / "3" / "3_ann_4.wav").is_file() and (folder / "validation" / "3" / "3_bob_5.wav").is_file()
    assert len(list((folder / "train" / "9").iterdir())) == 4
    written = {path for path in tmp_path.rglob("*") if path.is_file()} - {archive}
    assert all(folder in path.parents for path in written) and len(written) == 80


def test_m5_is_as_wide_as_it_may_be_and_learns_tones(script):
    m5 = script("m5")
    model = m5.of_weights(4, 20_000)
    count = sum(one.numel() for one in model.parameters())
    wider = m5.m5(4, model[0].out_channels + 1)
    assert count <= 20_000 < sum(one.numel() for one in wider.parameters())
    clips = [tone(500 + 20 * number, 8000, 300 * (1 + number % 4), seed=number)[:, 0] for number in range(40)]
    rows, labels = m5.padded(clips, 1200), np.arange(40) % 4
    assert rows.dtype == np.float32 and not rows[0, 500:].any() and rows[0, :500].any()
    before = (m5.answers(model, rows) == labels).mean()
    m5.learn(model, rows, labels, steps=60, seed=0)
    assert (m5.answers(model, rows) == labels).mean() > max(0.9, before)


def test_a_regression_tells_classes_apart_and_is_the_same_each_time(script):
    probe = script("probe")
    random = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % 3
    features = torch.randn(60, 8, generator=random)
    features[:, :3] += 4 * torch.nn.functional.one_hot(labels, 3)
    part = (features, labels)
    layer, penalty = probe.regress(part, part)
    assert (layer(features).argmax(1) == labels).float().mean() > 0.95 and penalty in probe.PENALTIES
    torch.testing.assert_close(probe.regress(part, part)[0].weight, layer.weight, rtol=0, atol=0)


@pytest.mark.model
def test_states_of_a_clip_know_nothing_of_the_others(script):
    """Alone or padded in a batch, of any length; and they are the means and deviations of what the model says."""
    probe = script("probe")
    config = AsterismConfig(
        vocab_size=256,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        mixers="window(left=3)",
        position_type="rotary",
        max_position_embeddings=64,
    )
    torch.manual_seed(0)
    model = AsterismForCausalLM(config).eval()
    run = SimpleNamespace(model=model, config=SimpleNamespace(dtype="float32"))
    clips = [np.random.default_rng(size).integers(0, 256, size).astype(np.uint8) for size in (9, 30, 4)]
    together = probe.states(run, clips)
    assert together.shape == (3, 2 * 3 * 16)
    torch.testing.assert_close(torch.cat([probe.states(run, [clip]) for clip in clips]), together)
    with torch.no_grad():
        hidden = model(torch.tensor([[0, *clips[0].tolist()]]), output_hidden_states=True).hidden_states
    torch.testing.assert_close(together[0, :16], hidden[0][0, 1:].mean(0))
    torch.testing.assert_close(together[0, -16:], hidden[2][0, 1:].std(0, correction=0))


def test_the_page_has_the_figures_of_the_results():
    record = json.loads((BENCHMARKS / "results" / "digits.json").read_text())
    page, density = docs_page("results/sound.md").read_text(), record["density"]
    bits = density["baselines"] | {"`sound-tiny`": density["bits_per_sample"]}
    for name, value in bits.items():
        assert f"| {name} | {value:.3f} |" in page
    for name in ("probe", "attention", "m5"):
        (row,) = (line for line in page.splitlines() if line.startswith(f"| `{name}`"))
        minutes, accuracy, milliseconds = row.split(" | ")[2:]
        assert minutes.split(",")[0] == f"{record[name]['training_seconds'] / 60:.1f}"
        assert f"{record[name]['weights']:,}" in row and accuracy == f"{record[name]['accuracy']:.3f}"
        assert milliseconds == f"{1000 * record[name]['seconds_per_clip']:.0f} |"
    assert f"| M5 hears | {' | '.join(map(str, record['generated']['heard_by_m5']))} |" in page


@pytest.mark.slow
@pytest.mark.model
def test_the_whole_script_on_tones(archive, tmp_path):
    output = tmp_path / "digits.json"
    few = ("--steps", "2", "--attention-steps", "2", "--m5-steps", "3")
    command = [sys.executable, BENCHMARKS / "digits.py", archive, tmp_path / "runs", output, *few]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    record = json.loads(output.read_text())
    assert record["attention"]["weights"] * 0.97 < record["m5"]["weights"] <= record["attention"]["weights"]
    assert record["density"]["samples"] == sum(2 * (300 + 10 * digit) for digit in range(10))
    assert len(record["generated"]["heard_by_m5"]) == 10 and output.with_suffix(".png").is_file()
    assert "| order-2 |" in printed and "| m5 |" in printed
    again = subprocess.run(command, capture_output=True, text=True, check=True)
    assert again.stdout == printed and "density" not in again.stderr
    told = subprocess.run([*command[:2], "--report", output], capture_output=True, text=True, check=True).stdout
    assert told == printed
