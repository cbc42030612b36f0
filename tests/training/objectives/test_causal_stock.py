"""Causal runs that begin with a model of transformers: its pattern, its loss, exact resumption, and refusals."""

import json
from dataclasses import replace

import pytest
import torch
from causal_folders import WINDOW, save_causal
from refusals import refusing
from safetensors.torch import load_file
from small_checkpoints import undone
from stopping import at_step
from transformers import AutoModelForCausalLM, AutoTokenizer, BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

from asterism.errors import CheckpointError, ConfigurationError, PatternError
from asterism.evaluation import open_causal
from asterism.training.ask.estimate import estimate
from asterism.training.pipeline import evaluate, generate, open_run, resolve, train
from asterism.training.settings.configuration import RunConfig

pytestmark = pytest.mark.model

SINKS = "sinks(first=2, window=6)"


def save_gpt2(folder):
    """A GPT-2 with learned positions for 40 tokens, and the tokenizer of the other models."""
    save_causal(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    sizes = {
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 40,
        "vocab_size": len(tokenizer),
        "bos_token_id": 2,
        "eos_token_id": 3,
    }
    with undone():
        model = GPT2LMHeadModel(GPT2Config(**sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = tmp_path_factory.mktemp("models")
    llama = save_causal(made / "llama", windowed=False)
    return {"llama": llama, "mistral": save_causal(made / "mistral"), "gpt2": save_gpt2(made / "gpt2")}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "texts.jsonl"
    texts = [f"The grass is green. The number is {n % 10}. " * (1 + n % 3) for n in range(400)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def config_of(folder, data, **changes):
    sizes = {"context": 32, "batch_size": 4, "steps": 12, "log_every": 4, "evaluation_every": 8, "checkpoint_every": 4}
    values = {"learning_rate": 3e-3, "warmup_steps": 2, "dtype": "float32", "evaluation_bytes": 500, **sizes}
    return RunConfig(init_from=str(folder), data=str(data), **values | changes)


@pytest.mark.parametrize("kind", ["llama", "mistral", "gpt2"])
def test_any_causal_model_learns_by_its_pattern(kind, folders, data, tmp_path):
    pattern = None if kind == "mistral" else SINKS
    config = config_of(folders[kind], data, pattern=pattern)
    report = train(config, tmp_path / "run", progress=False)
    run = open_run(tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[-1] < losses[0]
    own = f"window(left={WINDOW - 1}, "
    assert (own if pattern is None else "sinks") in str(run.model.config.asterism_pattern)
    assert evaluate(run, progress=False).scores[0].bits_per_byte == report.validation_bits_per_byte
    assert generate(run, b"The grass", 8, seed=1) == generate(run, b"The grass", 8, seed=1)
    stock = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model")
    tokens = torch.arange(30)[None] % 300
    with torch.no_grad():
        assert torch.equal(stock(input_ids=tokens).logits, run.model(input_ids=tokens).logits)
    assert open_causal(tmp_path / "run").continued("The grass", 3)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_the_loss_is_that_of_the_documents_alone(kind, folders, data):
    setup = resolve(config_of(folders[kind], data, dtype="float64", pattern="causal()"))
    model, _ = setup.build(torch.device("cpu"))
    model.eval()
    batch = setup.objective.batch(setup.corpus, 3)
    assert set(batch) == {"input_ids", "position_ids", "shift_labels", "labels"}
    starts = batch["position_ids"] == 0
    assert starts[:, 1:].any()
    nats = count = 0
    for row in range(len(starts)):
        begins = [*starts[row].nonzero()[:, 0].tolist(), 32]
        for begin, end in zip(begins[:-1], begins[1:], strict=True):
            with torch.no_grad():
                logits = model(input_ids=batch["input_ids"][row : row + 1, begin:end]).logits[0].double()
            wanted = batch["shift_labels"][row, begin:end]
            nats -= float(logits.log_softmax(-1).gather(1, wanted[:, None]).sum())
            count += len(wanted)
    with torch.no_grad():
        assert float(model(**batch).loss) == pytest.approx(nats / count, rel=1e-6)
        shifted = {name: one for name, one in batch.items() if name != "shift_labels"}
        outer = float(
            torch.nn.functional.cross_entropy(
                model(**{name: batch[name] for name in ("input_ids", "position_ids")}).logits[:, :-1].flatten(0, 1),
                batch["shift_labels"][:, :-1].flatten(),
            )
        )
        assert float(model(**shifted).loss) == pytest.approx(outer, rel=1e-6)


def test_such_a_run_resumes_to_the_same_bits(folders, data, tmp_path):
    config = config_of(folders["llama"], data, pattern=SINKS)
    whole = train(config, tmp_path / "whole", progress=False)
    with pytest.raises(KeyboardInterrupt), at_step(6):
        train(config, tmp_path / "run")
    resumed = train(config, tmp_path / "run", resume=True, progress=False)
    assert resumed.validation_bits_per_byte == whole.validation_bits_per_byte
    one, two = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("whole", "run"))
    assert all(torch.equal(one[name], two[name]) for name in one.keys() | two.keys())


def test_a_model_of_ours_takes_another_pattern(folders, data, tmp_path):
    from_llama = config_of(folders["llama"], data, steps=2)
    ours = replace(from_llama, init_from=None, tokenizer="bpe:300", steps=2)
    train(ours, tmp_path / "ours", progress=False)
    other = replace(from_llama, init_from=str(tmp_path / "ours"), pattern="window(left=3)")
    assert resolve(other).shape.mixers == "window(left=3)"
    with refusing(PatternError, "reads-future"):
        resolve(replace(other, pattern="window(left=3, right=3)")).build(torch.device("cpu"))


def test_models_that_do_not_fit_are_refused(folders, data, tmp_path):
    with refusing(ConfigurationError, "context-beyond-model", "40", "41"):
        resolve(config_of(folders["gpt2"], data, context=41))
    with refusing(PatternError, "reads-future", "window(left=3, right=3)"):
        resolve(config_of(folders["llama"], data, pattern="window(left=3, right=3)"))
    with refusing(ConfigurationError, "setting-range", "pattern", "init_from"):
        RunConfig(pattern="causal()")
    with refusing(CheckpointError, "not-our-model", "llama"):
        resolve(config_of(folders["llama"], data, objective="mlm"))
    with refusing(ConfigurationError, "estimate-of-stock", "llama"):
        estimate(config_of(folders["llama"], data))
    bert = tmp_path / "bert"
    save_causal(bert)
    (bert / "model.safetensors").unlink()
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    with undone():
        BertForMaskedLM(BertConfig(vocab_size=500, **sizes)).save_pretrained(bert)
    with refusing(ConfigurationError, "model-not-causal", "bert"):
        resolve(config_of(bert, data))
