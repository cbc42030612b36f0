"""Tasks of causal models: which tokens are learned, packed rows, runs, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from refusals import refusing
from small_chats import CHATML, THOUGHTS, character_tokenizer, chats, completions, conversation, save_tiny_llama, words
from small_encoders import save_tiny_bert, write_lines
from small_writers import save_tiny_bart
from stopping import at_step
from tokenizers import processors
from transformers import AutoModelForCausalLM, AutoTokenizer, BloomConfig, BloomForCausalLM

from asterism.cli.main import main
from asterism.errors import ConfigurationError, DataError
from asterism.models import use_pattern
from asterism.quiet import quiet_transformers
from asterism.training import FineTuneConfig, evaluate, open_run, predict, predict_file, train
from asterism.training.data.records.record import Record
from asterism.training.run.arithmetic import loss_of
from asterism.training.tasks.continued import Continued, packed
from asterism.training.tasks.kinds.completion import COMPLETION
from asterism.training.tasks.kinds.instruction import INSTRUCTION
from asterism.training.tasks.predictor import model_inputs
from asterism.training.tasks.templates import BUILT_IN, Ending, ending_of

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    with quiet_transformers():
        return save_tiny_llama(tmp_path_factory.mktemp("models") / "llama", template=CHATML)


@pytest.fixture(scope="module")
def settings(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    made = {"complete": completions(words(60)), "instruct": chats(words(60))}
    files = {task: write_lines(folder / f"{task}.jsonl", rows) for task, rows in made.items()}

    def make(task="complete", **changes):
        values = {"learning_rate": 1e-2, "warmup_steps": 2, "batch_size": 8, "dtype": "float32", "steps": 8}
        where = {"model": str(model), "data": str(files[task])}
        return FineTuneConfig(**{"task": task, "epochs": 99.0, "length": 64} | where | values | changes)

    return make


def task_of(kind, tokenizer, **changes):
    more = {"stops": (2,), "end": 2}
    if kind is INSTRUCTION:
        more = {"stops": (5, 2), "end": 5}
    return kind.task(**{"length": 64, "target_length": 16, "cuts_targets": False} | more | changes)


def features_of(task, records, tokenizer):
    examples = [task.examples.example(Record(f"line {at}", one), labelled=True) for at, one in enumerate(records)]
    return [one for some in task.rows.training_features(examples, tokenizer) for one in some]


def spelled(feature, tokenizer):
    """The tokens of a row, and in their places those that are learned."""
    tokens = tokenizer.convert_ids_to_tokens(feature.inputs["input_ids"].tolist())
    learned = [token if label >= 0 else "-" for token, label in zip(tokens, feature.target, strict=True)]
    return tokens, learned


# --- which tokens are learned -----------------------------------------------------------------------------------------


def test_a_completion_is_learned_with_its_end():
    tokenizer = character_tokenizer()
    (feature,) = features_of(task_of(COMPLETION, tokenizer), [{"prompt": "ab>", "completion": "ba"}], tokenizer)
    assert spelled(feature, tokenizer) == (
        ["<s>", "a", "b", ">", "b", "a", "</s>"],
        ["-", "-", "-", "-", "b", "a", "</s>"],
    )


def test_a_prompt_is_not_ended():
    """Tokenizers of encoders end every text."""
    tokenizer = character_tokenizer()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    (feature,) = features_of(task_of(COMPLETION, tokenizer), [{"prompt": "a", "completion": "b"}], tokenizer)
    assert spelled(feature, tokenizer)[0] == ["<s>", "a", "b", "</s>"]


def test_answers_are_learned_by_a_template_of_chatml():
    tokenizer = character_tokenizer(CHATML)
    record = conversation("a", "bc", "d", "e", system="s")
    (feature,) = features_of(task_of(INSTRUCTION, tokenizer), [record], tokenizer)
    tokens, learned = spelled(feature, tokenizer)
    start, end = "<|im_start|>", "<|im_end|>"

    def turn(role, content, is_learned):
        head, body = [start, *role, "\n"], [*content, end]
        return [*head, *body, "\n"], ["-"] * len(head) + (body if is_learned else ["-"] * len(body)) + ["-"]

    turns = [turn("system", "s", False), turn("user", "a", False), turn("assistant", "bc", True)]
    turns += [turn("user", "d", False), turn("assistant", "e", True)]
    assert tokens == [one for some, _ in turns for one in some][:-1]  # nothing follows the end of the last answer
    assert learned == [one for _, some in turns for one in some][:-1]


def test_answers_are_learned_by_a_plain_template():
    tokenizer = character_tokenizer(BUILT_IN["plain"])
    (feature,) = features_of(task_of(INSTRUCTION, tokenizer, end=2), [conversation("a", "b", "c", "d")], tokenizer)
    tokens, learned = spelled(feature, tokenizer)
    assert "".join(tokens) == "<s>User: a\nAssistant: b</s>\nUser: c\nAssistant: d</s>"
    first, last = [" ", "b", "</s>"], [" ", "d", "</s>"]
    assert learned == ["-"] * (len("User: a\nAssistant:") + 1) + first + ["-"] * len("\nUser: c\nAssistant:") + last


def test_a_template_that_changes_earlier_answers_has_a_row_for_each():
    tokenizer = character_tokenizer(THOUGHTS)
    assert ending_of(tokenizer, "here") == Ending(5, ">>")
    features = features_of(task_of(INSTRUCTION, tokenizer), [conversation("a", "b", "c", "d")], tokenizer)
    learned = ["".join(token for token in spelled(one, tokenizer)[1] if token != "-") for one in features]
    assert learned == [">>b<|im_end|>", ">>d<|im_end|>"]
    assert ">>b" not in "".join(spelled(features[1], tokenizer)[0])


def test_a_prompt_is_what_precedes_the_answer_in_training():
    tokenizer = character_tokenizer(CHATML)
    for kind, record in ((COMPLETION, {"prompt": "ab>", "completion": "ba"}), (INSTRUCTION, conversation("a", "b"))):
        task = task_of(kind, tokenizer)
        (learned,) = features_of(task, [record], tokenizer)
        example = task.examples.example(Record("line 1", record), labelled=False)
        ((asked,),) = task.rows.features([example], tokenizer)
        prompt = asked.inputs["input_ids"].tolist()
        assert learned.inputs["input_ids"].tolist()[: len(prompt)] == prompt
        assert (learned.target[: len(prompt)] == -100).all() and learned.target[len(prompt)] >= 0


def test_a_token_across_the_border_of_an_answer_is_cut_there():
    """A tokenizer that joins the last character of a prompt with the first of an answer is never asked that way."""
    tokenizer = character_tokenizer(
        "{% for m in messages %}{{ m['content'] }}{% if m['role'] == 'assistant' %}</s>{% endif %}{% endfor %}"
    )
    tokenizer.add_tokens(["ab"])
    (feature,) = features_of(task_of(INSTRUCTION, tokenizer, end=2), [conversation("ca", "bd")], tokenizer)
    assert spelled(feature, tokenizer) == (["c", "a", "b", "d", "</s>"], ["-", "-", "b", "d", "</s>"])


# --- rows that are too long -------------------------------------------------------------------------------------------


def test_the_oldest_tokens_of_a_long_prompt_are_left_out():
    tokenizer = character_tokenizer()
    record = {"prompt": "abcdefgh", "completion": "xy"}
    (feature,) = features_of(task_of(COMPLETION, tokenizer, length=7), [record], tokenizer)
    assert "".join(spelled(feature, tokenizer)[0]) == "<s>fghxy</s>" and feature.is_cut
    with refusing(DataError, "bad-example", "line 0", "12 tokens", "place for 7", "whole()"):
        features_of(task_of(COMPLETION, tokenizer, length=7, reader="whole()"), [record], tokenizer)
    task = task_of(COMPLETION, tokenizer, length=7, target_length=3)
    ((asked,),) = task.rows.features([task.examples.example(Record("x", record), labelled=False)], tokenizer)
    assert "".join(spelled(replace(asked, target=np.zeros(4)), tokenizer)[0]) == "<s>fgh"


def test_an_answer_longer_than_the_row_is_refused_and_one_longer_than_the_setting_is_cut():
    tokenizer = character_tokenizer()
    record = {"prompt": "a", "completion": "bcdefgh"}
    with refusing(DataError, "bad-field", "line 0", "'completion'", "8 tokens", "a row of 8"):
        features_of(task_of(COMPLETION, tokenizer, length=8), [record], tokenizer)
    task = task_of(COMPLETION, tokenizer, length=8, target_length=4, cuts_targets=True)
    features = features_of(task, [record, {"prompt": "a", "completion": "b"}], tokenizer)
    assert "".join(spelled(features[0], tokenizer)[0]) == "<s>abcd</s>"
    (note,) = task.rows.notes([], [[one] for one in features])
    assert "1 of 2 training rows have an answer of more than 4 tokens" in note


# --- packing ----------------------------------------------------------------------------------------------------------


def test_packed_rows_hold_every_example_once():
    draw = np.random.default_rng(0)
    sizes = draw.integers(1, 17, 50).tolist()
    features = [
        Continued(np.full(size, at, dtype=np.int32), np.arange(size) > 0, 1).feature(99, begins=False)
        for at, size in enumerate(sizes)
    ]
    rows = packed(features, 16)
    assert all(len(row.inputs["input_ids"]) <= 16 for row in rows)
    assert len(rows) <= 1.25 * sum(sizes) / 16
    seen = []
    for row in rows:
        positions = row.inputs["position_ids"]
        for piece in np.split(np.arange(len(positions)), np.flatnonzero(positions == 0)[1:]):
            (at,) = set(row.inputs["input_ids"][piece].tolist())
            assert positions[piece].tolist() == list(range(sizes[at]))
            assert row.target[piece].tolist() == [-100] + [at] * (sizes[at] - 1)
            seen.append(at)
    assert sorted(seen) == list(range(50))


@pytest.mark.parametrize("pattern", [None, "sinks(first=1, window=3)", "interleave(window(left=2), causal())"])
def test_a_packed_batch_has_the_loss_and_the_gradients_of_one_example_per_row(model, pattern):
    tokenizer = character_tokenizer(CHATML)
    with quiet_transformers():
        network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64)
    if pattern:
        use_pattern(network, pattern)
    task = task_of(INSTRUCTION, tokenizer)
    features = features_of(task, chats(["ab", "abcd", "c", "hg"]), tokenizer)
    found = []
    for rows in (features, packed(features, 64)):
        inputs = model_inputs(rows, tokenizer)
        batch = {**inputs, **task.rows.targets(rows, inputs["input_ids"].shape[1])}
        network.zero_grad()
        loss = loss_of(network, batch, "float64", None, arguments=task.answers.arguments)
        loss.backward()
        found.append([loss.detach(), *(one.grad.clone() for one in network.parameters())])
    assert len(packed(features, 64)) < len(features)
    for alone, together in zip(*found, strict=True):  # transformers computes the loss in float32
        torch.testing.assert_close(together, alone, rtol=1e-6, atol=1e-7)


def test_a_model_that_reads_across_borders_is_not_packed(settings, tmp_path):
    with quiet_transformers():
        BloomForCausalLM(BloomConfig(vocab_size=64, hidden_size=16, n_layer=1, n_head=2)).save_pretrained(
            tmp_path / "m"
        )
        character_tokenizer().save_pretrained(tmp_path / "m")
    with refusing(ConfigurationError, "packing-leaks", "bloom"):
        train(settings(model=str(tmp_path / "m"), packing=True), tmp_path / "run", progress=False)


# --- runs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("task", "packing"), [("complete", True), ("instruct", False)])
def test_a_run_from_training_to_predictions(settings, task, packing, tmp_path, capsys):
    asked = settings(task, packing=packing, pattern="sinks(first=2, window=14)")
    report = train(asked, tmp_path / "run", progress=False)
    assert set(report.scores) == {"exact_match", "token_accuracy", "answer_loss"}
    assert any(note.startswith("packing: 54 examples in ") for note in report.notes) == packing
    assert report.baselines["most frequent"].keys() == {"exact_match", "token_accuracy"}
    assert evaluate(tmp_path / "run").scores == report.scores
    run = open_run(tmp_path / "run")
    assert run.model.config.asterism_pattern and not list((tmp_path / "run").rglob("*.bin"))
    rows = {"complete": completions, "instruct": chats}[task](["abc", "h", "gfed", "ba"])
    name = {"complete": "completion", "instruct": "answer"}[task]
    alone = [one[f"predicted_{name}"] for one in predict(run, rows, batch_size=1)]
    assert [one[f"predicted_{name}"] for one in predict(run, rows, batch_size=4)] == alone
    data = write_lines(tmp_path / "new.jsonl", rows)
    scored = predict_file(run, data, output=tmp_path / "out.jsonl", score=True, progress=False)
    assert scored.rows == 4 and set(scored.scores) == {"exact_match", "token_accuracy"}
    assert main(["report", str(tmp_path / "run"), "--output", str(tmp_path / "page.html")]) == 0


def test_the_saved_model_generates_the_same_by_itself(settings, tmp_path):
    train(settings("instruct"), tmp_path / "run", progress=False)
    with quiet_transformers():
        network = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model")
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run" / "model")
    question = [{"role": "user", "content": "abc"}]
    inputs = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with quiet_transformers():
        (found,) = network.generate(**inputs)
    (row,) = predict(tmp_path / "run", [{"messages": question}])
    text = tokenizer.decode(found[inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    assert text.strip() == row["predicted_answer"]


def test_a_run_that_is_stopped_resumes_to_the_same_bits(settings, tmp_path):
    asked = settings("instruct", packing=True, checkpoint_every=3, chat_template="plain", pattern="window(left=20)")
    train(asked, tmp_path / "whole", progress=False)
    with pytest.raises(KeyboardInterrupt), at_step(5):
        train(asked, tmp_path / "cut", progress=False)
    train(asked, tmp_path / "cut", resume=True, progress=False)
    files = ("model/model.safetensors", "predictions.jsonl", "model/chat_template.jinja")
    for name in files:
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


# --- what is refused --------------------------------------------------------------------------------------------------


def refused(settings, folder, error, code, *values, **changes):
    with refusing(error, code, *values) as caught:
        train(settings(**changes), folder / "run", progress=False)
    assert "\n" not in str(caught.value) and not (folder / "run").exists()


@pytest.mark.parametrize(
    ("messages", "values"),
    [
        ([{"role": "user", "content": "a"}], ("ends with a message of user",)),
        ([{"role": "assistant", "content": "a"}], ("holds only an answer",)),
        ([{"role": "asistant", "content": "a"}], ("message 1", "'asistant'", "Did you mean 'assistant'?")),
        ([{"role": "user", "content": None}], ("no role and content", "message 1")),
        ([{"role": "user", "content": " "}, {"role": "assistant", "content": "a"}], ("no content in message 1",)),
        ([], ("must be a list of messages",)),
        ("a", ("must be a list of messages",)),
        (["a"], ("message 1", "'a'")),
    ],
)
def test_messages_that_are_no_conversation(settings, messages, values, tmp_path):
    data = write_lines(tmp_path / "x.jsonl", [*chats(words(20)), {"messages": messages}])
    where = ("x.jsonl, line 21", "'messages'", *values)
    refused(settings, tmp_path, DataError, "bad-field", *where, task="instruct", data=str(data))


def test_templates_that_cannot_be_used(settings, tmp_path):
    with quiet_transformers():
        bare = save_tiny_llama(tmp_path / "bare")

    def refuses(error, code, *values, **changes):
        refused(settings, tmp_path, error, code, *values, task="instruct", model=str(bare), **changes)

    refuses(ConfigurationError, "chat-template-missing", "bare", "chatml, plain")
    refuses(ConfigurationError, "chat-template-unreadable", "'chatm'", chat_template="chatm")
    for number, (template, reason) in enumerate(
        [
            ("{{ raise_exception('never') }}", "never"),
            ("{% for", "cannot be used"),
            ("{{ messages | length }}", "otherwise than behind the prompt"),
            ("{% for m in messages %}{{ m['content'] }}{% endfor %}", "no special token says where to stop"),
        ]
    ):
        file = tmp_path / f"{number}.jinja"
        file.write_text(template)
        refuses(ConfigurationError, "chat-template-unusable", reason, chat_template=str(file))
    alternates = "{% if messages | length > 2 %}{{ raise_exception('too many') }}{% endif %}" + CHATML
    (tmp_path / "alternates.jinja").write_text(alternates)
    data = write_lines(tmp_path / "x.jsonl", [*chats(words(20)), conversation("a", "b", "c", "d")])
    asked = {"chat_template": str(tmp_path / "alternates.jinja"), "data": str(data)}
    refuses(DataError, "chat-template-refuses", "line 21", "too many", **asked)


def test_models_and_settings_that_do_not_fit(settings, model, tmp_path):
    with quiet_transformers():
        bart, bert = save_tiny_bart(tmp_path / "bart"), save_tiny_bert(tmp_path / "bert")
        small = save_tiny_llama(tmp_path / "small")
        larger = character_tokenizer()
        larger.add_tokens([f"<{number}>" for number in range(9)])
        larger.save_pretrained(small)

    def refuses(error, code, *values, **changes):
        refused(settings, tmp_path, error, code, *values, **changes)

    refuses(ConfigurationError, "not-a-causal-model", "bart", model=str(bart), length=16)
    refuses(ConfigurationError, "not-a-causal-model", "read the future", model=str(bert), length=16)
    refuses(ConfigurationError, "vocabulary-differs", "small", model=str(small))
    refuses(ConfigurationError, "target-fills-row", "got 64 tokens", target_length=64)
    for name, value in (("packing", True), ("pattern", "causal()"), ("chat_template", "plain")):
        with refusing(ConfigurationError, "setting-range", name, "is for task"):
            FineTuneConfig(task="generate", model="m", data="d", **{name: value})
    with refusing(ConfigurationError, "setting-range", "native_window", "needs a pattern"):
        settings(native_window="replace")
    with refusing(ConfigurationError, "setting-range", "positions", "needs a pattern"):
        settings(positions="cache")
    with refusing(ConfigurationError, "setting-range", "positions", "original, cache"):
        settings(pattern="sinks()", positions="text")
    without = character_tokenizer(eos_token=None)
    with quiet_transformers():
        endless = save_tiny_llama(tmp_path / "endless")
    without.save_pretrained(endless)
    refuses(ConfigurationError, "token-missing", "eos_token", model=str(endless))


def test_help_names_the_tasks(capsys):
    assert main(["finetune", "--help-all"]) == 0
    told = capsys.readouterr().out
    assert "--chat-template" in told and "--[no-]packing" in told and "complete (JSONL or CSV: prompt" in told


def test_lines_of_the_page_of_a_run(settings, tmp_path):
    train(settings("instruct", steps=1, warmup_steps=0), tmp_path / "run", progress=False)
    page = (tmp_path / "run" / "report.md").read_text()
    (first, *_) = [json.loads(one) for one in (tmp_path / "run" / "predictions.jsonl").read_text().splitlines()]
    assert list(first) == ["record", "answer", "predicted_answer"]
    assert "messages:\n\n> user: " in page and Path(tmp_path / "run" / "samples.jsonl").exists()


def test_a_run_continues_a_typed_prompt(settings, tmp_path, capsysbinary):
    for task, prompt, name in (("complete", "abc>", "completion"), ("instruct", "abc", "answer")):
        folder = tmp_path / task
        train(settings(task), folder, progress=False)
        row = {"prompt": prompt} if task == "complete" else conversation(prompt)
        ((said,),) = [[one[f"predicted_{name}"]] for one in predict(folder, [row])]
        more = ["--temperature", "0", "--add", str(open_run(folder).objective.task.answers.target_length)]
        assert main(["generate", str(folder), "--prompt", prompt, *more]) == 0
        border = "\n" if task == "instruct" else ""
        assert capsysbinary.readouterr().out.decode().strip() == f"{prompt}{border}{said}".strip()


def test_long_evaluations_are_announced(settings, monkeypatch, capsys, tmp_path):
    """Before the first step: answers of many tokens can take longer to write than the training takes."""
    monkeypatch.setattr("asterism.training.tasks.kinds.writing.MANY_WRITTEN", 6)
    train(settings(steps=1, target_length=7), tmp_path / "long")
    said = capsys.readouterr().err
    assert said.index("writes up to 7 tokens for each of ") < said.index("trained for")
    monkeypatch.undo()
    train(settings(steps=1, target_length=7), tmp_path / "short")
    assert "writes up to" not in capsys.readouterr().err


def test_the_report_may_be_of_the_first_examples(settings, tmp_path):
    """Their scores, predictions and baselines, as `evaluate --limit` has them; said, and free until the run is done."""
    asked = settings(report_examples=3, checkpoint_every=3)
    with pytest.raises(KeyboardInterrupt), at_step(5):
        train(replace(asked, report_examples=None), tmp_path / "run", progress=False)
    report = train(asked, tmp_path / "run", resume=True, progress=False)
    assert report.validation_examples == 3 and "the first 3 of 6 validation examples" in " ".join(report.notes)
    again = evaluate(tmp_path / "run", limit=3)
    assert (again.scores, again.baselines) == (report.scores, report.baselines) and again.examples == 3
    assert len((tmp_path / "run" / "predictions.jsonl").read_text().splitlines()) == 3
    assert evaluate(tmp_path / "run").examples == 6
    with refusing(ConfigurationError, "setting-changed", "report_examples 4", "asterism evaluate"):
        train(replace(asked, report_examples=4), tmp_path / "run", resume=True, progress=False)
    refused(settings, tmp_path / "none", ConfigurationError, "setting-range", report_examples=0)
