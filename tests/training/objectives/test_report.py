"""The final report of a run: at most `report_bytes` of the validation split are read, scored and compressed."""

import json
from dataclasses import replace

import pytest
from refusals import refusing

from asterism.errors import ConfigurationError
from asterism.training.data.corpora import bytes as corpus_module
from asterism.training.data.corpora.bytes import compressed, load_corpus
from asterism.training.data.corpora.splits import ArrayPieces
from asterism.training.objectives.causal import CausalTokens
from asterism.training.pipeline import evaluate, open_run, report, train
from asterism.training.run.evaluator import Evaluator
from asterism.training.settings.configuration import ModelConfig, RunConfig

TEXT = b"".join(b"def f%d(x):\n    return x + %d\n\n" % (number, number % 7) for number in range(1200))
SHORT = ModelConfig(mixers="window(left=15)", hidden_size=32, num_hidden_layers=1, num_attention_heads=2)


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """A run of two steps, whose report is of 500 bytes."""
    text = tmp_path_factory.mktemp("data") / "code.txt"
    text.write_bytes(TEXT)
    loop = {"batch_size": 8, "steps": 2, "log_every": 1, "evaluation_bytes": 640, "dtype": "float32"}
    return RunConfig(model=SHORT, data=str(text), context=64, report_bytes=500, **loop)


@pytest.fixture(scope="module")
def finished(few, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "finished"
    return folder, train(few, folder, progress=False)


def test_the_report_is_what_evaluate_says_of_the_same_part(finished):
    folder, report = finished
    asked = evaluate(folder, limit=500, progress=False)
    assert asked.bytes_scored == report.validation_bytes == 500
    assert asked.baselines == report.baselines
    assert asked.scores[0].bits_per_byte == report.validation_bits_per_byte
    assert str(report).splitlines()[-1] == f"saved in {folder}"
    (note,) = [note for note in report.notes if "report_bytes" in note]
    whole = len(load_corpus(json.loads((folder / "run.json").read_text())["config"]["data"]).validation)
    assert note == (
        f"the report is of 500 of {whole - 1:,} bytes of the validation split, from its beginning:"
        " report_bytes=500 sets how many"
    )


def test_data_within_the_limit_are_scored_whole(finished, few, tmp_path):
    """The same weights: what is reported differs by the limit alone."""
    full = train(replace(few, report_bytes=RunConfig.report_bytes), tmp_path / "run", progress=False)
    asked = evaluate(finished[0], progress=False)
    assert RunConfig.report_bytes == 2**24 and not any("report_bytes" in note for note in full.notes)
    assert (full.validation_bytes, full.validation_bits_per_byte) == (asked.bytes_scored, asked.scores[0].bits_per_byte)
    validation = load_corpus(few.data).validation
    assert full.validation_bytes == len(validation) - 1
    assert full.baselines == asked.baselines == compressed([validation[1:].tobytes()])


def test_no_more_is_read_than_is_reported(finished, few, monkeypatch):
    """Bytes are counted where they are read; the rest of the split may be larger than memory."""
    read = []
    monkeypatch.setattr(corpus_module, "COMPRESSED_AT_ONCE", 128)

    def counted(self, start, stop):
        read.append((start, stop))
        return self.values[start:stop]

    run = open_run(finished[0])
    objective, corpus = run.objective, CausalTokens.prepare(few, CausalTokens.vocabulary(few, None))[1]
    monkeypatch.setattr(ArrayPieces, "read", counted)
    outcome = objective.evaluate(run.model, corpus, Evaluator(few.at_the_end))
    objective.results(corpus, outcome.metrics, 2)
    assert max(stop for _, stop in read) == 501
    assert max(stop - start for start, stop in read) <= 128 and sum(stop - start for start, stop in read) < 3 * 501


def test_what_is_compressed_in_pieces_takes_what_it_takes_whole():
    blocks = [TEXT[at : at + 777] for at in range(0, len(TEXT), 777)]
    assert compressed(blocks) == compressed([TEXT])


def test_a_finished_run_is_not_reported_anew(finished, few, monkeypatch):
    def refuse(*arguments, **named):
        raise AssertionError("evaluated again")

    monkeypatch.setattr(CausalTokens, "evaluate", refuse)
    folder, made = finished
    assert train(few, folder, resume=True, progress=False) == made == report(folder)
    with pytest.raises(
        ConfigurationError, match=r"^resume: got report_bytes 7, but .* 500; it is finished: .*evaluate"
    ):
        train(replace(few, report_bytes=7), folder, resume=True, progress=False)


def test_a_run_that_goes_on_may_report_of_more(few, tmp_path, monkeypatch):
    def stopped(*arguments, **named):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(CausalTokens, "evaluate", stopped)
        train(few, tmp_path / "run", progress=False)
    more = replace(few, report_bytes=900)
    assert train(more, tmp_path / "run", resume=True, progress=False).validation_bytes == 900
    assert open_run(tmp_path / "run").config.report_bytes == 900
    assert train(more, tmp_path / "run", resume=True, progress=False).validation_bytes == 900


TOKENS = ModelConfig(mixers="window(left=7, right=7)", hidden_size=32, num_hidden_layers=1, num_attention_heads=2)
WRITER = replace(TOKENS, decoder_mixers="causal()", num_decoder_layers=1)


@pytest.mark.parametrize(
    ("objective", "model", "counted"),
    [("mlm", TOKENS, "tokens_masked"), ("span_corruption", WRITER, "target_tokens")],
)
def test_rows_of_tokens_are_reported_within_the_limit(objective, model, counted, few, tmp_path):
    config = replace(few, objective=objective, model=model, tokenizer="bpe:300", steps=1)
    made = train(config, tmp_path / "run", progress=False)
    asked = evaluate(tmp_path / "run", limit=500, progress=False)
    whole = evaluate(tmp_path / "run", progress=False)
    assert getattr(made, counted) == getattr(asked, counted) < getattr(whole, counted)
    loss = "masked_loss" if objective == "mlm" else "target_loss"
    assert getattr(made, f"validation_{loss}") == getattr(asked, loss)
    assert [note for note in made.notes if "from its beginning: report_bytes=500" in note]


def test_a_report_of_nothing_is_refused(few):
    with refusing(ConfigurationError, "setting-range", "report_bytes", "0", "must be at least 1"):
        replace(few, report_bytes=0)
