"""The model `asterism` of lm-evaluation-harness has the log-likelihoods of HFLM and writes what HFLM writes."""

import importlib.util
import json
import shutil
import subprocess
import sys
import tomllib

import pytest
import torch
from causal_folders import save_causal, train_bytes
from refusals import refusing
from repository import ROOT
from transformers import AutoModelForCausalLM

from asterism.errors import ConfigurationError
from asterism.lazy import imported
from asterism.models import use_pattern
from asterism.presence import require_package
from asterism.quiet import quiet_transformers
from asterism.training import open_run

pytestmark = pytest.mark.model

HAS_HARNESS = importlib.util.find_spec("lm_eval") is not None
needs_harness = pytest.mark.skipif(not HAS_HARNESS, reason="lm-eval is not installed: pip install '.[lm-eval]'")
warns = pytest.mark.filterwarnings("ignore")  # of lm-eval and of the libraries that it brings

QUESTIONS = [
    {"question": f"The grass is green. The sky is blue. {'Here we go. ' * number}The grass is", "answer": number % 2}
    for number in range(8)
]
TASK = """
task: {name}
dataset_path: json
dataset_kwargs:
  data_files: {data}
test_split: train
output_type: {kind}
doc_to_text: "{{{{question}}}}"
target_delimiter: ""
"""
CHOICE = """
doc_to_choice: [" green", " blue"]
doc_to_target: answer
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
WRITE = """
doc_to_target: " green"
generation_kwargs: {do_sample: false, until: ["\\n"], max_gen_toks: 8}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A windowed model, and a run of bytes."""
    folder = tmp_path_factory.mktemp("harness")
    return save_causal(folder / "mistral"), train_bytes(folder / "bytes")


@pytest.fixture
def answers(tmp_path, monkeypatch):
    """What a model answers to two offline tasks: log-likelihoods of the choices, and texts."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    data = tmp_path / "questions.jsonl"
    data.write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
    for name, kind, rest in (("choose", "multiple_choice", CHOICE), ("write", "generate_until", WRITE)):
        (tmp_path / f"{name}.yaml").write_text(TASK.format(name=name, data=data, kind=kind) + rest)

    def answers(model, arguments=None, batch_size=3):
        import lm_eval
        from lm_eval.tasks import TaskManager

        manager = TaskManager(include_path=str(tmp_path), include_defaults=False)
        found = lm_eval.simple_evaluate(
            model, arguments, tasks=["choose", "write"], task_manager=manager, batch_size=batch_size, bootstrap_iters=0
        )["samples"]
        likelihoods = [[answer[0] for answer in one["filtered_resps"]] for one in found["choose"]]
        return torch.tensor(likelihoods, dtype=torch.float64), [one["filtered_resps"] for one in found["write"]]

    return answers


@needs_harness
@warns
def test_a_native_pattern_answers_as_hflm(folders, answers):
    """As HFLM with the model given as an object, and as HFLM with transformers' own attention."""
    from lm_eval.models.huggingface import HFLM
    from transformers import AutoTokenizer

    import asterism.evaluation.harness  # noqa: F401

    folder = str(folders[0])
    with quiet_transformers():
        model = AutoModelForCausalLM.from_pretrained(folder, dtype="float64", attn_implementation="sdpa")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ours, written = answers("asterism", {"pretrained": folder, "pattern": "native"})
    theirs, their_written = answers(HFLM(pretrained=model, tokenizer=tokenizer, batch_size=1))
    given, given_written = answers(HFLM(pretrained=use_pattern(model, "native"), tokenizer=tokenizer, batch_size=3))
    wider, _ = answers("asterism", {"pretrained": folder, "pattern": "causal()", "native_window": "replace"})
    assert (ours - theirs).abs().max() < 1e-6 and (ours - given).abs().max() < 1e-6
    assert (ours - wider).abs().max() > 1e-3
    assert written == given_written == their_written


@needs_harness
@warns
def test_a_run_answers_as_its_model_predicts(folders, answers):
    """The log-likelihood of a text is the sum over its bytes, read off the run's model."""
    import asterism.evaluation.harness  # noqa: F401

    ours, written = answers("asterism", {"pretrained": str(folders[1])})
    model = open_run(folders[1]).model
    for question, found in zip(QUESTIONS, ours.tolist(), strict=True):
        for choice, likelihood in zip((b" green", b" blue"), found, strict=True):
            start = question["question"].encode()
            with torch.no_grad():
                logits = model(torch.tensor([list(start + choice)])).logits.double()
            tokens = torch.tensor([list(start + choice)])[0]
            each = logits[0, :-1].log_softmax(-1).gather(1, tokens[1:, None])
            assert likelihood == pytest.approx(each[len(start) - 1 :].sum().item(), abs=1e-4)
    assert len(written) == len(QUESTIONS)


@needs_harness
def test_an_entry_point_finds_the_class():
    """As versions that look for plugins register it, before this module is imported."""
    script = """
from importlib.metadata import EntryPoint
from lm_eval.api.registry import get_model, model_registry
place = EntryPoint("asterism", "asterism.evaluation.harness:AsterismLM", "lm_eval.models")
model_registry.register("asterism", target=place)
print(get_model("asterism").__name__)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "AsterismLM\n", done.stderr


@needs_harness
@warns
def test_arguments_that_would_be_passed_over_are_refused(folders):
    from asterism.evaluation.harness import AsterismLM

    with refusing(ConfigurationError, "unknown-argument", "'patern'", "'pattern'"):
        AsterismLM(str(folders[0]), patern="native")
    with refusing(ConfigurationError, "unknown-argument", "'peft'"):
        AsterismLM(str(folders[0]), peft="adapter")
    with refusing(ConfigurationError, "pattern-of-a-run", str(folders[1])):
        AsterismLM(str(folders[1]), pattern="native")


@needs_harness
def test_a_tokenizer_without_an_end_is_refused(folders, tmp_path):
    from asterism.evaluation.harness import AsterismLM

    folder = shutil.copytree(folders[0], tmp_path / "endless")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["eos_token"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    with refusing(ConfigurationError, "tokenizer-without-end", "eos_token"):
        AsterismLM(str(folder))


@needs_harness
@pytest.mark.slow
def test_the_command_answers(folders, tmp_path):
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
    text = TASK.format(name="choose", data=tmp_path / "questions.jsonl", kind="multiple_choice") + CHOICE
    (tmp_path / "choose.yaml").write_text(text)
    command = [sys.executable, "-m", "asterism.evaluation.lm_eval", "--model", "asterism", "--tasks", "choose"]
    arguments = ["--model_args", f"pretrained={folders[0]},pattern=native & sinks(first=1, window=8)"]
    places = ["--include_path", str(tmp_path), "--batch_size", "2"]
    done = subprocess.run([*command, *arguments, *places], capture_output=True, text=True)
    assert done.returncode == 0 and "|choose|" in done.stdout.replace(" ", ""), done.stderr
    wrong = subprocess.run([*command, "--model_args", "pretrained=nowhere", *places], capture_output=True, text=True)
    assert wrong.returncode == 4
    assert wrong.stderr.splitlines()[-1].startswith("asterism: error: nowhere is not a folder")


def test_the_entry_point_is_the_class():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    place = project["entry-points"]["lm_eval.models"]["asterism"]
    if HAS_HARNESS:
        assert imported(place).__name__ == "AsterismLM"
    else:
        with refusing(ConfigurationError, "package-missing", "lm-eval", ".[lm-eval]"):
            imported(place)
    assert any(line.startswith("lm-eval[hf]>=") for line in project["optional-dependencies"]["lm-eval"])


@pytest.mark.skipif(HAS_HARNESS, reason="lm-eval is installed")
def test_without_the_package_the_command_is_one_line():
    command = [sys.executable, "-m", "asterism.evaluation.lm_eval", "--model", "asterism"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("asterism: error: ") and line.endswith("pip install '.[lm-eval]' in a checkout")
    with refusing(ConfigurationError, "package-missing", "lm-eval"):
        require_package("lm-eval", "lm_eval", "lm-eval", "this")
