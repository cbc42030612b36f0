"""Training on from a model that is there: the road from a dense checkpoint to a long one, resumption, and refusals."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from refusals import refusing
from safetensors.torch import load_file, save_file
from small_encoders import WORDS, save_tiny_bert, word_tokenizer, write_lines
from stopping import at_step
from transformers import BertConfig, BertForPreTraining

from asterism.cli.main import main
from asterism.errors import CheckpointError, ConfigurationError, DataError
from asterism.models import AsterismConfig, AsterismForCausalLM, AsterismForMaskedLM, import_checkpoint
from asterism.patterns import in_full
from asterism.quiet import quiet_transformers
from asterism.training import FineTuneConfig
from asterism.training.pipeline import evaluate, open_run, resolve, train
from asterism.training.run import fitting
from asterism.training.run.folder import RunFolder
from asterism.training.settings.configuration import ModelConfig, RunConfig

pytestmark = pytest.mark.model

PATTERN = "window(left=4, right=4) | global_tokens(positions=(0,))"
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Files of words that the tokenizer of the tiny BERT knows."""
    folder = tmp_path_factory.mktemp("texts")
    random = np.random.Generator(np.random.Philox(3))
    for number in range(80):
        (folder / f"{number}.txt").write_text(" ".join(random.choice(WORDS, 120)))
    return folder


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    with quiet_transformers():
        return save_tiny_bert(tmp_path_factory.mktemp("models") / "bert")


@pytest.fixture(scope="module")
def long(bert, tmp_path_factory):
    """The tiny BERT, of 32 tokens, imported with twice as many and a sparse pattern."""
    folder = tmp_path_factory.mktemp("long") / "model"
    import_checkpoint(bert, folder, length=64, pattern=PATTERN)
    return folder


@pytest.fixture
def config(long, texts):
    return RunConfig(
        init_from=str(long),
        objective="mlm",
        data=str(texts),
        context=64,
        batch_size=2,
        steps=6,
        warmup_steps=1,
        learning_rate=1e-2,
        dtype="float32",
        log_every=1,
        evaluation_every=3,
        checkpoint_every=2,
        evaluation_bytes=2000,
    )


def tensors(folder):
    return load_file(folder / "model.safetensors")


def test_from_a_dense_checkpoint_to_a_long_one_that_is_trained_and_fine_tuned(bert, texts, tmp_path, capsys):
    words = ["import", str(bert), "--output", str(tmp_path / "long"), "--length", "64", "--pattern", PATTERN]
    assert main(words) == 0
    capsys.readouterr()
    start = ["train", "--objective", "mlm", "--init-from", str(tmp_path / "long"), "--data", str(texts)]
    settings = ["--context", "64", "--batch-size", "2", "--steps", "3", "--dtype", "float32"]
    assert main([*start, *settings, "--folder", str(tmp_path / "run"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 3
    trained = AsterismConfig.from_pretrained(tmp_path / "run" / "model")
    assert (trained.mixers, trained.max_position_embeddings, trained.block) == (in_full(PATTERN), 64, "post_norm")
    examples = [{"text": f"the lamp is {word} " * 9, "label": word} for word in ("red", "blue") for _ in range(10)]
    data = write_lines(tmp_path / "reviews.jsonl", examples)
    config = FineTuneConfig(task="classify", model=str(tmp_path / "run"), data=str(data), steps=2, dtype="float32")
    assert train(config, tmp_path / "reviews", progress=False).steps == 2


def test_the_run_begins_with_the_weights_and_learns(config, long, tmp_path):
    built, there = resolve(config).build(CPU)[0].state_dict(), tensors(long)
    assert built.keys() - there.keys() == {"lm_head.decoder.weight"}, "which is tied"
    assert all(torch.equal(built[name], tensor) for name, tensor in there.items() if name in built)
    report = train(replace(config, steps=40), tmp_path / "run", progress=False)
    history = RunFolder(tmp_path / "run").read_history()
    assert report.validation_masked_loss < history[0]["loss"] - 0.3


def test_a_run_resumes_to_the_same_bits_without_the_model_it_began_with(config, long, tmp_path):
    whole = train(config, tmp_path / "whole", progress=False)
    start = shutil.copytree(long, tmp_path / "start")
    config = replace(config, init_from=str(start))

    with pytest.raises(KeyboardInterrupt), at_step(3):
        train(config, tmp_path / "parts", progress=False)
    shutil.rmtree(start)
    assert open_run(tmp_path / "parts").config == config
    resumed = train(config, tmp_path / "parts", resume=True, progress=False)
    ours, theirs = (tensors(tmp_path / name / "model") for name in ("whole", "parts"))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert resumed.validation_masked_loss == whole.validation_masked_loss
    assert evaluate(tmp_path / "parts").masked_loss == pytest.approx(whole.validation_masked_loss)
    with refusing(ConfigurationError, "setting-changed", "init_from", "'elsewhere'"):
        train(replace(config, init_from="elsewhere"), tmp_path / "parts", resume=True, progress=False)


def test_a_run_that_was_cut_off_at_once_no_longer_needs_the_model_it_began_with(config, long, tmp_path, monkeypatch):
    whole = train(config, tmp_path / "whole", progress=False)
    start = shutil.copytree(long, tmp_path / "start")
    config = replace(config, init_from=str(start))

    def power_cut(session):
        raise RuntimeError("power cut")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="power cut"):
        patch.setattr(fitting, "take_steps", power_cut)
        train(config, tmp_path / "parts", progress=False)
    shutil.rmtree(start)
    resumed = train(config, tmp_path / "parts", resume=True, progress=False)
    assert resumed.validation_masked_loss == whole.validation_masked_loss


def test_bytes_are_trained_on_from_a_run(texts, tmp_path):
    model = ModelConfig(mixers="window(left=9)", hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    first = RunConfig(
        model=model, data=str(texts), context=32, batch_size=4, steps=20, dtype="float32", evaluation_bytes=2000
    )
    before = train(first, tmp_path / "first", progress=False)
    on = replace(first, init_from=str(tmp_path / "first"), model=ModelConfig())
    after = train(on, tmp_path / "second", progress=False)
    assert after.validation_bits_per_byte < before.validation_bits_per_byte
    built, there = resolve(on).build(CPU)[0].state_dict(), tensors(tmp_path / "first" / "model")
    assert all(torch.equal(built[name], there[name]) for name in there)


def test_both_heads_of_pre_training_can_go_on_with_one_or_both(bert, config, tmp_path):
    fields = BertConfig.from_pretrained(bert).to_dict() | {"architectures": None}
    with quiet_transformers():
        BertForPreTraining(BertConfig(**fields)).save_pretrained(tmp_path / "source")
    word_tokenizer().save_pretrained(tmp_path / "source")
    assert import_checkpoint(tmp_path / "source", tmp_path / "both", length=64).model == "AsterismForPreTraining"
    one = replace(config, init_from=str(tmp_path / "both"), steps=1)
    assert type(resolve(one).build(CPU)[0]).__name__ == "AsterismForMaskedLM"
    both = train(replace(one, next_sentence=True), tmp_path / "run", progress=False)
    assert both.next_sentence_accuracy is not None


# --- what is refused --------------------------------------------------------------------------------------------------


def _shape(**fields):
    sizes = {"vocab_size": 256, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return AsterismConfig(**(sizes | fields))


def _without_layers(folder):
    there = tensors(folder)
    kept = {name: tensor for name, tensor in there.items() if ".layers.0.mixer.key" not in name}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})


def _with_a_number_for_its_labels(folder):
    document = json.loads((folder / "config.json").read_text()) | {"id2label": 3}
    (folder / "config.json").write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("spoil", "change", "error", "message"),
    [
        (None, {"context": 65}, ConfigurationError, "reads 64 tokens, too few for context=65; give a shorter context"),
        (
            None,
            {"objective": "causal"},
            CheckpointError,
            "AsterismForMaskedLM; objective causal trains an AsterismForC",
        ),
        (None, {"next_sentence": True}, CheckpointError, "with next_sentence trains an AsterismForPreTraining"),
        (None, {"init_from": "missing"}, CheckpointError, "init_from: missing is not the folder of a model or a run"),
        (
            lambda folder: word_tokenizer([f"word{number}" for number in range(90)]).save_pretrained(folder),
            {},
            ConfigurationError,
            r"init_from: the tokenizer in .* has 95 tokens, but the model embeds 29",
        ),
        (_with_a_number_for_its_labels, {}, DataError, "start holds no readable tokenizer"),
        (
            _with_a_number_for_its_labels,
            {"objective": "causal"},
            DataError,
            "start holds no readable tokenizer",
        ),
        (_without_layers, {}, CheckpointError, r"lacks the tensor model\.layers\.0\.mixer\.key"),
    ],
)
def test_a_start_that_cannot_be_one(spoil, change, error, message, config, long, tmp_path):
    start = shutil.copytree(long, tmp_path / "start")
    if spoil is not None:
        spoil(start)
    with pytest.raises(error, match=message) as caught:
        train(replace(config, **({"init_from": str(start)} | change)), tmp_path / "run", progress=False)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_start_of_another_kind(bert, config, tmp_path):
    with refusing(CheckpointError, "not-our-model", "'bert'", ": `asterism import` makes one"):
        train(replace(config, init_from=str(bert)), tmp_path / "run", progress=False)
    AsterismForCausalLM(_shape(vocab_size=300)).save_pretrained(tmp_path / "causal")
    with pytest.raises(
        ConfigurationError, match="causal has no tokenizer, .* 256 bytes, but its model has a vocabulary of 300"
    ):
        train(replace(config, init_from=str(tmp_path / "causal"), objective="causal"), tmp_path / "run", progress=False)
    AsterismForMaskedLM(_shape(mixers="dense()")).save_pretrained(tmp_path / "bare")
    with pytest.raises(Exception, match="tokenizer: .*bare") as caught:
        train(replace(config, init_from=str(tmp_path / "bare")), tmp_path / "run", progress=False)
    assert "\n" not in str(caught.value)


def test_a_model_or_tokenizer_besides_a_start_is_refused(config, long, capsys, tmp_path):
    with pytest.raises(ConfigurationError, match="brings its own model and tokenizer; leave model out"):
        replace(config, model=ModelConfig(hidden_size=64))
    with pytest.raises(ConfigurationError, match="brings its own model and tokenizer; leave model, tokenizer out"):
        replace(config, model=ModelConfig(hidden_size=64), tokenizer="bpe:300")
    words = ["train", "--objective", "mlm", "--init-from", str(long), "--folder", str(tmp_path / "run")]
    for flag, name in (("--model.hidden-size=64", "model"), ("--tokenizer=bpe:300", "tokenizer")):
        assert main([*words, flag]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1) and f"leave {name} out" in err
    assert not (tmp_path / "run").exists()


def test_a_dry_run_counts_the_model_it_begins_with(long, capsys):
    assert main(["train", "--objective", "mlm", "--init-from", str(long), "--context", "64", "--dry-run"]) == 0
    out = capsys.readouterr().out
    parameters = AsterismForMaskedLM.from_pretrained(long).num_parameters()
    assert f"init from   {long}, in place of" in out
    assert f"mixers      {PATTERN}\n" in out and f"parameters  {parameters:,}\n" in out
