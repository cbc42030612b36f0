"""Every mesh has the curve of one process, whatever is learned, and any other mesh goes on with it."""

import random
import shutil
import signal
from dataclasses import replace

import pytest
import torch
from launched_runs import assert_same_curve, flags, launched, settings, told, trained
from small_encoders import REVIEWS, TAGGED, save_tiny_bert, word_tokenizer, write_lines
from small_writers import save_tiny_bart
from stopping import at_step
from transformers import (
    BertConfig,
    BertForTokenClassification,
    GPTNeoXConfig,
    GPTNeoXForTokenClassification,
    LlamaConfig,
    LlamaForTokenClassification,
    ModernBertConfig,
    ModernBertForTokenClassification,
)
from transformers.loss.loss_utils import LOSS_MAPPING

from asterism.models import use_pattern
from asterism.randomness import isolated
from asterism.shape import ModelConfig
from asterism.training import FineTuneConfig, RunConfig, recipe, train

pytestmark = [pytest.mark.model, pytest.mark.slow]

MESHES = {1: ["dp=1"], 2: ["dp=2", "fsdp=2", "cp=2"], 4: ["dp=4", "dp=2,cp=2", "fsdp=2,cp=2", "dp=2,fsdp=2"]}
EVERY = {"log_every": 1, "evaluation_every": 3, "checkpoint_every": 2, "dtype": "float64", "process_timeout": 120}


def bytes_small() -> RunConfig:
    """The recipe, for a few short steps."""
    short = {"context": 128, "batch_size": 4, "steps": 5, "minutes": None, "evaluation_bytes": 1000, "warmup_steps": 2}
    short |= {"dense_exchange": True}  # a window of 256 in a context of 128
    return replace(recipe("bytes-small"), **(EVERY | short | {"evaluation_every": 4}))


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return settings(tmp_path_factory.mktemp("text")).data


@pytest.mark.parametrize("processes", [2, 4])
def test_bytes_small_has_one_curve_and_goes_on_with_any_mesh(text, processes, tmp_path):
    config = replace(bytes_small(), data=text)
    train(config, tmp_path / "one", progress=False)
    with at_step(3, lambda: signal.raise_signal(signal.SIGINT)), pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "stopped", progress=False)
    whole = [(replace(config, parallel=mesh), tmp_path / mesh) for mesh in MESHES[processes]]
    begun = [(one, folder.with_name(f"{folder.name} goes on")) for one, folder in whole]
    for _, folder in begun:
        shutil.copytree(tmp_path / "stopped", folder)
    trained(processes, [*whole, *begun])
    for _, folder in (*whole, *begun):
        assert_same_curve(folder, tmp_path / "one")


@pytest.mark.parametrize("objective", ["mlm", "span_corruption", "gap_sentences", "prefix_lm"])
def test_every_objective_has_one_curve(objective, tmp_path):
    config = _pretraining(objective, tmp_path)
    train(config, tmp_path / "one", progress=False)
    jobs = [(replace(config, parallel=mesh), tmp_path / mesh) for mesh in MESHES[2]]
    trained(2, jobs)
    for _, folder in jobs:
        assert_same_curve(folder, tmp_path / "one")


def _pretraining(objective, folder) -> RunConfig:
    draw = random.Random(0)
    names, places = ("Ann", "Ben", "Cid", "Dot"), ("mill", "barn", "tower", "river")
    documents = (
        [f"{draw.choice(names)} is at the {draw.choice(places)}." for _ in range(draw.randrange(2, 9))]
        for _ in range(400)
    )
    data = write_lines(folder / "prose.jsonl", ({"text": " ".join(document)} for document in documents))
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "initializer_gain": 0.35}
    encoder_decoder = {"mixers": "window(left=8, right=8)", "decoder_mixers": "causal()"}
    shape = {
        "mlm": {"mixers": "bigbird(block=8, random=1)", "block": "post_norm", "type_vocab_size": 2},
        "prefix_lm": {"mixers": "window(left=9)"},
    }.get(objective, encoder_decoder)
    more = {} if objective == "prefix_lm" else {"tokenizer": "bpe:300"}
    return RunConfig(
        dense_exchange=True,  # a decoder's causal()
        objective=objective,
        next_sentence=objective == "mlm",
        data=str(data),
        model=ModelConfig(**size, **shape),
        **(EVERY | more | {"context": 48, "batch_size": 6, "steps": 6, "learning_rate": 5e-3, "warmup_steps": 2}),
        gradient_accumulation_steps=2,
        evaluation_bytes=2000,
    )


@pytest.mark.parametrize("task", ["classify", "generate"])
def test_every_task_has_one_curve(task, tmp_path):
    words = ["zero", "one", "two", "three"]
    pairs = [{"input": f"{one} {other} .", "output": f"{other} {one}"} for one in words for other in words]
    model = {"classify": save_tiny_bert, "generate": save_tiny_bart}[task](tmp_path / "model")
    data = write_lines(tmp_path / "data.jsonl", {"classify": REVIEWS * 3, "generate": pairs}[task])
    config = FineTuneConfig(
        task=task, model=str(model), data=str(data), batch_size=4, steps=6, learning_rate=5e-3, warmup_steps=2, **EVERY
    )
    train(config, tmp_path / "one", progress=False)
    jobs = [(replace(config, parallel=mesh), tmp_path / mesh) for mesh in ("dp=2", "fsdp=2")]
    trained(2, jobs)
    for _, folder in jobs:
        assert_same_curve(folder, tmp_path / "one")
        assert (folder / "predictions.jsonl").read_text() == (tmp_path / "one" / "predictions.jsonl").read_text()


FAMILIES = {
    "bert": (BertForTokenClassification, BertConfig, {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}),
    "modernbert": (ModernBertForTokenClassification, ModernBertConfig, {"initializer_cutoff_factor": 3.0}),
    "llama": (LlamaForTokenClassification, LlamaConfig, {"num_key_value_heads": 2, "classifier_dropout": 0.0}),
    "gpt_neox": (GPTNeoXForTokenClassification, GPTNeoXConfig, {"classifier_dropout": 0.0}),
}


def save_with_pattern(family, folder):
    """A tiny model of transformers with random weights. At 32 tokens the pattern needs 6 of the 16 of another process,
    and in rows of 6, as the data are, all of them."""
    tokenizer = word_tokenizer()
    kind, configuration, more = FAMILIES[family]
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
    config = configuration(
        vocab_size=len(tokenizer), max_position_embeddings=32, initializer_range=0.2, **sizes, **ids, **more
    )
    with isolated(1):
        model = kind(config)
    pattern = "window(left=6)" if family in ("llama", "gpt_neox") else "window(6, 6)"
    use_pattern(model, pattern, native_window="replace").save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def unrounded(logits, labels, config, **_):
    """The loss of one process as transformers computes it, but for its rounding of logits to float32."""
    return torch.nn.functional.cross_entropy(logits.view(-1, config.num_labels), labels.view(-1))


def test_models_of_transformers_share_tokens_and_two_go_on_with_what_one_began(tmp_path, monkeypatch):
    monkeypatch.setitem(LOSS_MAPPING, "ForTokenClassification", unrounded)
    data = write_lines(tmp_path / "data.jsonl", TAGGED * 2)
    jobs, fields = [], {"task": "tag", "data": str(data), "length": 32, "batch_size": 4, "learning_rate": 5e-3}
    for family in FAMILIES:
        model = save_with_pattern(family, tmp_path / family)
        config = FineTuneConfig(model=str(model), steps=6, warmup_steps=2, **fields, **EVERY)
        train(config, tmp_path / f"{family} one", progress=False)
        begun = tmp_path / f"{family} goes on"
        with at_step(3, lambda: signal.raise_signal(signal.SIGINT)), pytest.raises(KeyboardInterrupt):
            train(config, begun, progress=False)
        jobs += [(replace(config, parallel="cp=2"), folder) for folder in (tmp_path / f"{family} two", begun)]
    trained(2, jobs)
    for family in FAMILIES:
        for kind in ("two", "goes on"):
            assert_same_curve(tmp_path / f"{family} {kind}", tmp_path / f"{family} one")


AS_PROCESS_1 = """
import os, sys
from asterism.cli.main import main
from asterism.training.run import processes
if os.environ["RANK"] == "1":
    processes.version = lambda name: "0.1"
sys.exit(main(sys.argv[1:]))
"""


def test_other_versions_in_one_process_are_named_once(text, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(AS_PROCESS_1)
    words = [*flags(replace(bytes_small(), data=text), tmp_path), "--folder", str(tmp_path / "run")]
    process = launched(2, words, program=(str(script),))
    _, errors = process.communicate(timeout=180)
    (line,) = told(errors)
    assert f"the version of torch is {torch.__version__} in process 0, 0.1 in process 1" in line
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"parallel": "dp=3"}, "parallel: a mesh dp=3 has 3 processes, there are 2"),
        ({"parallel": "fsdp=2", "optimizer": "adafactor"}, "parallel: fsdp divides the rows of matrices"),
        ({"batch_size": 1}, "parallel: dp and fsdp cut a batch into 2 parts, but a slice of it has 1 sequences"),
    ],
)
def test_what_cannot_be_shared_is_refused_in_one_line(text, changes, line, tmp_path):
    config = replace(bytes_small(), data=text, **changes)
    process = launched(2, [*flags(config, tmp_path), "--folder", str(tmp_path / "run")])
    _, errors = process.communicate(timeout=180)
    (said,) = told(errors)
    assert said.startswith(f"asterism: error: {line}")
    assert process.returncode != 0
    assert not (tmp_path / "run" / "run.json").exists()
