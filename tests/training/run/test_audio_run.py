"""The whole road of a sound: recordings are trained on, scored beside simple means, and heard again as files."""

import base64
import io
import json

import numpy as np
import pytest
import soundfile
from sound_files import encoded, malformed, tone, write_folder

from asterism.cli.main import main
from asterism.training.data.audio import Audio
from asterism.training.data.audio.baselines import flac_bits, order2_bits
from asterism.training.data.audio.mulaw import decode

pytestmark = pytest.mark.model

CONTEXT = 256
SETTINGS = [
    *(
        "--context",
        str(CONTEXT),
        "--batch-size",
        "4",
        "--steps",
        "40",
        "--warmup-steps",
        "4",
        "--learning-rate",
        "1e-2",
    ),
    *("--model.mixers", "window(left=15) | global_keys(0) & causal()", "--model.position-type", "rotary"),
    *("--model.hidden-size", "32", "--model.num-hidden-layers", "2", "--model.num-attention-heads", "2"),
    *("--dtype", "float32", "--evaluation-every", "100", "--checkpoint-every", "100"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Low and high tones, from 0.04 to 0.05 seconds long: 300 to 400 samples."""
    return write_folder(tmp_path_factory.mktemp("data") / "tones", classes=2, each=10, frames=300)


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "run"
    words = ["--data", str(folder), "--modality", "audio(rate=8000, classes=2)", "--folder", str(run)]
    assert main(["train", *words, *SETTINGS]) == 0
    return run


def test_the_end_of_a_run_keeps_a_sound_and_its_picture(run, folder):
    (sample,) = [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]
    assert sample["step"] == 40 and sample["shown"] == ["original", "each value from those before", "continued"]
    assert base64.b64decode(sample["picture"].partition(",")[2]).startswith(b"\x89PNG")
    heard, rate = soundfile.read(io.BytesIO(base64.b64decode(sample["sound"].partition(",")[2])))
    pieces = Audio(8000).splits(str(folder)).pieces("validation")
    original = decode(pieces.read(0, CONTEXT))
    assert (rate, len(heard), sample["heard"]) == (8000, CONTEXT, "continued")
    np.testing.assert_allclose(heard[: CONTEXT // 2], original[: CONTEXT // 2], atol=1e-4)
    assert not np.allclose(heard[CONTEXT // 2 :], original[CONTEXT // 2 :], atol=1e-4)


def test_recordings_are_learned_and_scored_beside_simple_means(run, folder, capsys):
    assert main(["evaluate", str(run), "--split", "test", "--json"]) == 0
    scored = json.loads(capsys.readouterr().out)
    pieces = Audio(8000).splits(str(folder)).pieces("test")
    assert scored["bytes_scored"] == len(pieces)
    assert scored["baselines"] == {
        "flac": flac_bits(pieces, 0, len(pieces), 8000),
        "order-2": order2_bits(Audio(8000).splits(str(folder)).pieces("train"), pieces, 0, len(pieces)),
    }
    assert scored["scores"][0]["bits_per_byte"] < 8
    record = json.loads((run / "run.json").read_text())
    assert record["corpus"]["classes"] == ["0", "1"] and record["corpus"]["clips"] == {
        "train": 20,
        "validation": 20,
        "test": 20,
    }


def test_a_model_of_sounds_is_heard(run, tmp_path, capsys):
    """A new sound of each class, longer than the context; a recording at another rate that goes on; completions."""
    words = ["generate", str(run), "--output", str(tmp_path / "new.wav"), "--length", "300", "--json"]
    assert main([*words, "--label", "1", "0"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert [file.rpartition("/")[2] for file in made["files"]] == ["new-0.wav", "new-1.wav", "new.png"]
    assert {soundfile.info(file).frames for file in made["files"][:2]} == {300} and made["unit"] == "samples"
    prompt = tmp_path / "prompt.flac"
    prompt.write_bytes(encoded(tone(200, 16_000, channels=2), 16_000, "FLAC"))
    words = ["--prompt", str(prompt), "--label", "0", "--length", "50"]
    assert main(["generate", str(run), "--output", str(tmp_path / "on.wav"), *words]) == 0
    heard = Audio(8000).read_prompt(tmp_path / "on.wav")
    np.testing.assert_array_equal(heard[:100], Audio(8000).read_prompt(prompt))
    assert len(heard) == 150
    assert main(["generate", str(run), "--output", str(tmp_path / "half.wav"), "--complete", "2"]) == 0
    assert len(list(tmp_path.glob("half*.wav"))) == 4 and (tmp_path / "half.png").is_file()


def test_a_malformed_file_ends_the_verbs_with_its_name_and_exit_code_3(folder, run, tmp_path, capsys):
    content, _ = malformed()["wav cut at 1000"]
    bad = tmp_path / "bad.wav"
    bad.write_bytes(content)
    reason = f"{bad} is cut off: its header promises 4,000 bytes of samples, 956 are there"
    words = ["--data", str(tmp_path), "--modality", "audio(rate=8000)", "--folder", str(tmp_path / "run")]
    assert main(["train", *words, *SETTINGS]) == 3
    assert capsys.readouterr().err.splitlines()[-1] == f"asterism: error: data: {reason}"
    words = ["--prompt", str(bad), "--label", "0", "--output", str(tmp_path / "on.wav")]
    assert main(["generate", str(run), *words]) == 3
    assert capsys.readouterr().err.splitlines()[-1] == f"asterism: error: prompt: {reason}"
    assert [path.name for path in tmp_path.iterdir()] == ["bad.wav"]
