"""What a finished or interrupted run is asked: evaluations, generation, its report."""

import json
import math
from dataclasses import replace

import pytest
import torch
from refusals import refusing
from tiny_run import TEXT
from transformers import AutoModelForCausalLM

from asterism import training
from asterism.errors import CheckpointError, ConfigurationError
from asterism.training.data.corpora.bytes import compressed, load_corpus
from asterism.training.data.corpora.windows import plan_pieces
from asterism.training.objectives.causal import bits_per_byte
from asterism.training.pipeline import evaluate, generate, open_run, report, resolve, train
from asterism.training.run.evaluator import Evaluator

pytestmark = pytest.mark.model

CPU = torch.device("cpu")


def test_a_new_model_needs_eight_bits_per_byte(tiny):
    model = resolve(tiny).build(CPU)[0]
    data = load_corpus(tiny.data).pieces("validation")
    plan = plan_pieces(data, tiny.context, 0, 0, len(data))
    assert bits_per_byte(model, data, plan, tiny, Evaluator()) == pytest.approx(8.0, abs=1e-6)


def test_records_train_evaluate_and_generate(tiny, tmp_path):
    data = tmp_path / "records.raw"
    data.write_bytes(b"".join(bytes(range(start, start + 16)) for start in range(100)))
    config = replace(tiny, data=str(data), record_length=16, context=16, steps=80)
    train(config, tmp_path / "run", progress=False)
    evaluation = evaluate(tmp_path / "run")
    assert evaluation.bytes_scored == 80 and evaluation.scores[0].bits_per_byte < 6
    assert len(generate(tmp_path / "run", b"", 16)) == 16
    with refusing(ConfigurationError, "minimum-context-records"):
        evaluate(tmp_path / "run", minimum_context=4)


def test_a_finished_run_reports_what_it_came_to(finished, interrupted):
    assert report(finished[0]) == report(open_run(finished[0])) == finished[1]
    with refusing(CheckpointError, "run-not-finished"):
        report(interrupted)


def test_evaluation_is_the_mean_over_every_byte_with_its_context(finished, tiny):
    folder, _ = finished
    model = open_run(folder).model
    data = load_corpus(tiny.data).validation.tolist()
    evaluation = evaluate(folder, minimum_context=[0, 20, 64], limit=100)
    assert evaluation.bytes_scored == 100 and evaluation.is_training_corpus
    assert [score.minimum_context for score in evaluation.scores] == [0, 20, 64]
    bits = 0.0
    for byte in range(64, 164):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([data[byte - 64 : byte]])).logits[0, -1]
        bits -= float(logits.double().log_softmax(0)[data[byte]]) / math.log(2)
    assert evaluation.scores[2].bits_per_byte == pytest.approx(bits / 100, abs=1e-5)
    assert evaluation.baselines == compressed([bytes(data[64:164])])


def test_evaluation_of_a_whole_split_agrees_with_the_report(finished):
    folder, report = finished
    evaluation = evaluate(folder)
    assert evaluation.scores[0].bits_per_byte == report.validation_bits_per_byte
    assert evaluation.bytes_scored == report.validation_bytes
    assert evaluation.baselines == report.baselines
    assert evaluate(folder, split="test").scores[0].bits_per_byte == pytest.approx(
        report.validation_bits_per_byte, abs=1
    )


def test_evaluation_on_other_data_says_so(finished, tmp_path):
    other = tmp_path / "other.txt"
    other.write_bytes(TEXT[::-1])
    evaluation = evaluate(finished[0], data=other)
    assert not evaluation.is_training_corpus and evaluation.corpus == str(other)
    assert evaluation.scores[0].bits_per_byte > finished[1].validation_bits_per_byte


@pytest.mark.parametrize("minimum", [-1, 65, ()])
def test_minimum_context_must_fit_the_model(finished, minimum):
    with pytest.raises(ConfigurationError, match="minimum context"):
        evaluate(finished[0], minimum_context=minimum)


def test_an_interrupted_run_can_be_evaluated_and_sampled(interrupted):
    assert evaluate(interrupted, limit=100).scores[0].bits_per_byte < 8
    assert len(generate(interrupted, b"def ", 5)) == 5


def test_generation_is_a_function_of_its_seed(finished):
    folder, _ = finished
    one = generate(folder, b"def ", 30, seed=1)
    assert len(one) == 30 and generate(folder, b"def ", 30, seed=1) == one
    assert generate(folder, b"def ", 30, seed=2) != one
    greedy = generate(folder, b"def ", 30, temperature=0)
    assert generate(folder, b"def ", 30, temperature=0, seed=9) == greedy
    assert generate(folder, b"def ", 30, top_k=1) == greedy
    assert generate(folder, b"def ", 30, top_p=1e-6) == greedy
    assert len(generate(folder, b"", 4)) == 4


def test_the_finished_model_is_a_hugging_face_model(finished):
    model = AutoModelForCausalLM.from_pretrained(finished[0] / "model")
    output = model.generate(torch.tensor([list(b"def ")]), max_new_tokens=12, do_sample=False)
    assert bytes(output[0, 4:].tolist()) == generate(finished[0], b"def ", 12, temperature=0)
    assert json.loads((finished[0] / "model" / "config.json").read_text()).get("use_cache") is not False


def test_a_prompt_beyond_the_model_is_refused(finished):
    for prompt, length in ((b"x" * 80, 1), (b"x" * 40, 30)):
        with pytest.raises(ConfigurationError, match="more than the 64 positions of this model") as caught:
            generate(finished[0], prompt, length)
        assert caught.value.exit_code == 2 and "\n" not in str(caught.value)


@pytest.mark.parametrize("settings", [{"temperature": -1.0}, {"top_k": 0}, {"top_p": 0.0}, {"length": 0}])
def test_bad_sampling_settings_are_named(finished, settings):
    with pytest.raises(ConfigurationError, match=f"generation: {next(iter(settings))}="):
        generate(finished[0], b"a", **({"length": 1} | settings))


def test_every_name_that_the_package_exports_is_there():
    for name in training.__all__:
        assert getattr(training, name) is not None, name
