"""Summaries of documents that are read in parts: what parts are to say, and what is said again of what they said."""

import json

import pytest
from small_encoders import write_lines
from small_writers import digit_texts, digit_tokenizer, save_tiny_bart
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from asterism.errors import ConfigurationError
from asterism.quiet import quiet_transformers
from asterism.training import FineTuneConfig, evaluate, open_run, predict, predict_file, train
from asterism.training.ask import prediction
from asterism.training.data.records.record import Record
from asterism.training.tasks.encoding import encode
from asterism.training.tasks.kinds.generation import GENERATION
from asterism.training.tasks.kinds.summarization import SUMMARIZATION
from asterism.training.tasks.kinds.translation import TRANSLATION
from asterism.training.tasks.kinds.writing import Pair

pytestmark = pytest.mark.model
pytest.importorskip("rouge_score")  # the extra `seq2seq`

READER = "iterated(length=12, stride=2)"
DOCUMENTS = [" ".join(digit_texts(6, longest=6, seed=number)) for number in range(12)]
"""Of some twenty words each."""


def pair(document: str, summary: str | None = None) -> Pair:
    return Pair(Record("here", {}), document, summary)


def task(kind=SUMMARIZATION, **settings):
    return kind.task(**{"length": 12, "target_length": 8, "cuts_targets": True, "start": 2, **settings})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run; tests must not change it."""
    folder = tmp_path_factory.mktemp("run")
    examples = [
        {"document": text, "summary": f"{text.split()[0]} : short . {text.split()[-1]} ."} for text in DOCUMENTS
    ]
    with quiet_transformers():
        bart = save_tiny_bart(folder / "bart", positions=64)
    data = write_lines(folder / "data.jsonl", examples * 2)
    values = {
        "learning_rate": 1e-2,
        "warmup_steps": 2,
        "batch_size": 4,
        "dtype": "float32",
        "steps": 200,
        "epochs": 99.0,
    }
    config = FineTuneConfig(task="summarize", model=str(bart), data=str(data), reader=READER, target_length=8, **values)
    report = train(config, folder / "run", progress=False)
    assert report.training_features > report.training_examples
    return folder / "run"


def test_parts_cover_the_document_and_say_their_own_sentences():
    document = "one two three one two three one two three one four five six four five six four five seven eight"
    example = pair(document, "seven eight . : two three . \n three")
    reading = task(reader="iterated(stride=1)")
    tokenizer = digit_tokenizer()
    (asked,) = reading.rows.features([example], tokenizer)
    assert [row.row for row in asked] == [((0, 10),), ((9, 19),), ((18, 20),)]
    (learned,) = reading.rows.training_features([example], tokenizer)
    texts = [tokenizer.decode(row.target, skip_special_tokens=True) for row in learned]
    assert [row.row for row in learned] == [((0, 10),), ((18, 20),)]
    assert texts == [": two three . three", "seven eight ."]
    assert all(len(row.inputs["input_ids"]) <= 12 for row in [*asked, *learned])


def test_a_document_that_fits_is_summarised_at_once():
    example = pair("one two three", "three .")
    for reader in ("whole()", "cut()", "selected(k=2)", "iterated(stride=1)"):
        reading, tokenizer = task(reader=reader), digit_tokenizer()
        for make in (reading.rows.features, reading.rows.training_features):
            ((feature,),) = make([example], tokenizer)
            assert tokenizer.decode(feature.inputs["input_ids"]) == "<s> one two three </s>"
            assert tokenizer.decode(feature.target) == "<s> three . </s>"
        assert reading.rows.again(example, [feature], ["one"], tokenizer) == []


def test_a_prefix_stands_before_every_part():
    reading, tokenizer = task(reader="iterated()", source_prefix="short : "), digit_tokenizer()
    (parts,) = reading.rows.features([pair("one two three four five six seven eight nine")], tokenizer)
    assert [tokenizer.decode(row.inputs["input_ids"]) for row in parts] == [
        "<s> short : one two three four five six seven eight </s>",
        "<s> short : nine </s>",
    ]
    ((cut,),) = task(source_prefix="short : ").rows.features(
        [pair("one two three four five six seven eight nine")], tokenizer
    )
    assert cut.inputs["input_ids"].tolist() == parts[0].inputs["input_ids"].tolist()


@pytest.mark.parametrize("prefix", ["", "to: ", "to:"])
@pytest.mark.parametrize("text", ["Hello", "Hello Guten"])
def test_a_word_belongs_to_the_document_also_with_the_space_of_the_prefix(prefix, text):
    """The tokens of T5 and Pegasus begin with the space before the word."""
    pieces = ["<pad>", "</s>", "<unk>", *("▁Hello", "▁to", ":", "▁Guten", "Hello")]
    made = Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=2))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    (encoded,) = encode([text], PreTrainedTokenizerFast(tokenizer_object=made), prefix=prefix)
    words = text.split()
    assert (encoded.tokens, encoded.around) == (len(words), 1 + len(prefix.split() and ["to", ":"]))
    begins, ends = encoded.characters.T.tolist()
    assert [text[begin:end].strip() for begin, end in zip(begins, ends, strict=True)] == words


def test_what_parts_said_is_read_again_until_it_fits():
    reading, tokenizer = task(reader="iterated()"), digit_tokenizer()
    example = pair(" ".join(["one"] * 45))
    (parts,) = reading.rows.features([example], tokenizer)
    assert len(parts) == 5
    again = reading.rows.again(
        example, parts, ["two two two", "", "three three three", "four four four", "five five"], tokenizer
    )
    assert [tokenizer.decode(row.inputs["input_ids"]) for row in again] == [
        "<s> two two two three three three four four four five </s>",
        "<s> five </s>",
    ]
    (last,) = reading.rows.again(example, again, ["six", "seven"], tokenizer)
    assert tokenizer.decode(last.inputs["input_ids"]) == "<s> six seven </s>"
    assert reading.rows.again(example, [last], ["eight"], tokenizer) == []
    assert reading.answers.predict(example, [last], ["eight"]) == {"summary": "eight"}
    (first,) = reading.rows.again(example, parts, [" ".join(["two"] * 10)] * 5, tokenizer)  # as long as before
    assert first.inputs["input_ids"].tolist() == tokenizer(" ".join(["two"] * 10)).input_ids
    assert reading.rows.again(example, parts, [""] * 5, tokenizer) == []
    assert reading.answers.predict(example, parts, [""] * 5) == {"summary": ""}


def test_summaries_are_those_of_the_parts_apart(run):
    """By hand, with the same model: ten words at a time, sharing two; what was said is read again."""
    opened = open_run(run)

    def one(text):
        (row,) = predict(opened, [{"document": text}], reader="whole()")
        return row["predicted_summary"]

    seen = set()
    for row in predict(opened, [{"document": text} for text in DOCUMENTS]):
        said, rounds = row["document"], 0
        while len(words := said.split()) > 10:
            parts = [" ".join(words[at : at + 10]) for at in range(0, len(words) - 2, 8)]
            said, rounds = "\n".join(filter(None, map(one, parts))), rounds + 1
            assert len(said.split()) < len(words)
        assert row["predicted_summary"] == one(said)
        seen.add(rounds)
    assert max(seen) >= 1


def test_batches_and_stops_change_nothing(run, tmp_path):
    data = write_lines(tmp_path / "in.jsonl", [{"document": text} for text in DOCUMENTS])
    opened = open_run(run)
    first, *others = (
        [
            row["predicted_summary"]
            for row in predict(opened, [{"document": text} for text in DOCUMENTS], batch_size=size)
        ]
        for size in (1, 3, 7)
    )
    assert others == [first, first] and len(set(first)) > 1
    write = prediction.PredictionOutput.write

    def stopping(self, *arguments):
        if self.rows == 5:
            raise KeyboardInterrupt
        write(self, *arguments)

    asked = {"data": data, "batch_size": 1, "progress": False}
    predict_file(opened, output=tmp_path / "whole", **asked)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prediction.PredictionOutput, "write", stopping)
        with pytest.raises(KeyboardInterrupt):
            predict_file(opened, output=tmp_path / "parts", **asked)
    assert predict_file(opened, output=tmp_path / "parts", resume=True, **asked).rows_before == 5
    assert (tmp_path / "parts").read_bytes() == (tmp_path / "whole").read_bytes()


def test_the_run_remembers_and_may_be_asked_otherwise(run):
    record = json.loads((run / "run.json").read_text())
    assert (record["decided"]["reader"], record["decided"]["length"]) == ("iterated(stride=2)", 12)
    own, cut = evaluate(run), evaluate(run, reader="cut(length=12)")
    assert (own.reader, cut.reader) == ("iterated(stride=2)", "cut()")
    assert set(own.scores) == set(cut.scores) and own.metric == "rougeLsum"


def test_readers_that_do_not_suit_are_refused():
    for kind, reader, message in (
        (
            SUMMARIZATION,
            "windows(stride=2)",
            r"windows\(stride=2\) cannot be used for summarization; choose whole, cut, sel",
        ),
        (SUMMARIZATION, "iterated(k=3)", r"iterated reads all summaries of parts again, so it takes no k, got k=3"),
        (TRANSLATION, "selected()", r"selected\(\) cannot be used for translation; choose whole, cut$"),
        (GENERATION, "iterated()", r"iterated\(\) cannot be used for generation; choose whole, cut, selected$"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            task(kind, reader=reader)
