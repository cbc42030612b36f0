"""Conversations with a run: turns, the cache between them, streamed pieces, and what is refused."""

import io
import sys

import pytest
import torch
from refusals import refusing
from small_chats import CHATML, THOUGHTS, chats, completions, save_tiny_llama, words
from small_encoders import write_lines

from asterism.cli.main import main
from asterism.errors import ConfigurationError
from asterism.quiet import quiet_transformers
from asterism.training import FineTuneConfig, open_run, predict, train
from asterism.training.ask.chat import CharacterStreamer, Chat
from asterism.training.settings.sampling import Sampling

pytestmark = pytest.mark.model
PATTERNS = (None, "sinks(first=2, window=14)")
GREEDY = Sampling(temperature=0)


def run_of(folder, task="instruct", *, template=CHATML, **changes):
    with quiet_transformers():
        model = save_tiny_llama(folder / "llama", template=template)
    data = write_lines(folder / "x.jsonl", {"instruct": chats, "complete": completions}[task](words(60)))
    values = {"learning_rate": 1e-2, "warmup_steps": 2, "batch_size": 8, "dtype": "float32", "steps": 12}
    where = {"model": str(model), "data": str(data), "length": 64, "epochs": 99.0}
    train(FineTuneConfig(task=task, **where, **values, **changes), folder / "run", progress=False)
    return folder / "run"


@pytest.fixture(scope="module", params=PATTERNS)
def folder(request, tmp_path_factory):
    return run_of(tmp_path_factory.mktemp("chat"), pattern=request.param)


def test_each_turn_answers_as_the_whole_conversation_does(folder):
    run = open_run(folder)
    chat, most = Chat(run, GREEDY, 6), {"max_new_tokens": 6, "do_sample": False}
    for turn, text in enumerate(["abc", "hg", "fedc"]):
        said = chat.answer(text)
        assert (chat.reused > 0) == (turn > 0)
        asked = run.objective.conversation(chat.messages[:-1])
        whole = run.objective.continued(run.model, asked, most)
        assert run.objective.written(asked, whole).decode().removeprefix("\n") == said
    assert [one["role"] for one in chat.messages] == ["user", "assistant"] * 3


def test_the_first_turn_is_what_predict_says(folder):
    run = open_run(folder)
    chat = Chat(run, GREEDY, run.objective.task.answers.target_length)
    (row,) = predict(run, [{"messages": [{"role": "user", "content": "abc"}]}])
    assert chat.answer("abc").strip() == row["predicted_answer"]


def test_pieces_are_the_answer_and_draws_follow_the_seed(folder):
    run, said = open_run(folder), []
    for seed in (1, 1, 2):
        pieces: list[str] = []
        chat = Chat(run, Sampling(seed=seed), 12)
        answers = [chat.answer(text, pieces.append) for text in ("ab", "cd")]
        assert "".join(pieces).replace(" ", "").strip() == "".join(answers).replace(" ", "").strip()
        said.append(answers)
    assert said[0] == said[1] != said[2]


def test_a_template_that_changes_earlier_answers_has_the_conversation_read_again(tmp_path):
    run = open_run(run_of(tmp_path, template=THOUGHTS))
    chat = Chat(run, GREEDY, 6)
    chat.answer("abc")
    chat.messages[-1]["content"] = "cba"  # as if thoughts were left out
    chat.answer("de")
    assert chat.reused == 0


def test_lines_of_standard_input_are_answered(folder, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO("abc\n\nhg\n"))
    assert main(["generate", str(folder), "--chat", "--add", "6", "--temperature", "0"]) == 0
    chat = Chat(open_run(folder), GREEDY, 6)
    lines = [chat.answer(text) for text in ("abc", "hg")]
    told = capsys.readouterr().out
    assert told.replace(" ", "") == "".join(f"{line}\n" for line in lines).replace(" ", "")


def test_characters_of_several_tokens_are_written_whole():
    class Letters:
        def decode(self, tokens, **how):
            return bytes(tokens).decode(errors="replace")

    found: list[str] = []
    pieces = CharacterStreamer(Letters(), found.append)
    pieces.put(torch.tensor([[1, 2]]))
    for byte in "aé€".encode():
        pieces.put(torch.tensor([byte]))
    assert "".join(found) == "aé€" and "\ufffd" not in "".join(found)


def test_what_is_refused(folder, tmp_path, capsys):
    completing = run_of(tmp_path, "complete")
    with refusing(ConfigurationError, "answers-no-messages", "--task instruct"):
        Chat(open_run(completing), GREEDY, 6)
    assert main(["generate", str(folder), "--chat", "--prompt", "a"]) == 2
    assert "--prompt has no meaning with --chat" in capsys.readouterr().err
    assert main(["generate", str(folder), "--chat", "--dense-exchange"]) == 2
