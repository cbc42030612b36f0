"""Tasks whose answers are texts: files, targets, what is refused, and scores."""

import csv
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from refusals import refusing
from safetensors.torch import load_file, save_file
from small_encoders import save_tiny_bert, write_lines
from small_tasks import read_examples
from small_writers import digit_tokenizer, save_tiny_bart
from stopping import at_step
from tokenizers import normalizers
from transformers import AutoModelForSeq2SeqLM
from transformers.trainer_pt_utils import LabelSmoother
from written_runs import NAMES, TEXTS, lines_of, pairs, write_pair

from asterism import presence
from asterism.cli.main import main
from asterism.errors import AsterismError, CheckpointError, ConfigurationError, DataError
from asterism.models import AsterismConfig, AsterismForConditionalGeneration
from asterism.quiet import quiet_transformers
from asterism.randomness import isolated
from asterism.training import FineTuneConfig, open_run, predict, train
from asterism.training.data.records.record import Record
from asterism.training.run.arithmetic import loss_of
from asterism.training.settings.registry import TASKS
from asterism.training.tasks.corpus import identity
from asterism.training.tasks.kinds.generation import GENERATION
from asterism.training.tasks.kinds.translation import TRANSLATION
from asterism.training.tasks.scores import texts as text_scores

pytestmark = pytest.mark.model
for package in ("rouge_score", "sacrebleu"):  # the extra `seq2seq`
    pytest.importorskip(package)


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", NAMES)
def test_pairs_of_jsonl_csv_and_two_files_of_lines_are_the_same(task, tmp_path):
    kind, names = TASKS.load(task), NAMES[task]
    texts = [("ein Wort, zwei", "one word,\ttwo"), ('"Ja\u2028"', "yes")]
    jsonl = write_lines(tmp_path / "x.jsonl", [dict(zip(names, one, strict=True)) for one in texts])
    with (tmp_path / "x.csv").open("w", newline="") as file:
        csv.writer(file).writerows([names, *texts])
    for path in (jsonl, tmp_path / "x.csv", write_pair(tmp_path, *map(list, zip(*texts, strict=True)))):
        found = read_examples(kind, Path(path))
        assert [(one.source, one.target) for one in found] == texts
        assert [kind.examples.names, found[1].record.fields[names[0]]] == [names, texts[1][0]]
    assert found[1].record.place == f"{tmp_path / 'x.de'} and {tmp_path / 'x.en'}, line 2"
    crlf = read_examples(kind, Path(write_pair(tmp_path, ["a", "b"], ["c", "d"], end="\r\n")))
    assert [(one.source, one.target) for one in crlf] == [("a", "c"), ("b", "d")]


@pytest.mark.parametrize(
    ("sources", "targets", "message"),
    [
        (["a", "b", "c"], ["d"], r"x\.de has 3 lines, .*x\.en has 1: each line of one must belong to the line of"),
        (["a"], ["b", "c", "d", "e"], r"x\.de has 1 lines, .*x\.en has 4: each"),
        (["a", "b"], ["c", " "], r"x\.de and .*x\.en, line 2: field 'target' is empty"),
        (["", "b"], ["c", "d"], r"line 1: field 'source' is empty"),
    ],
)
def test_pairs_of_files_that_do_not_belong_together(sources, targets, message, tmp_path):
    with pytest.raises(DataError, match=message) as caught:
        read_examples(TRANSLATION, Path(write_pair(tmp_path, sources, targets)))
    assert "\n" not in str(caught.value)


def test_a_name_with_a_comma_may_be_one_file(tmp_path):
    path = write_lines(tmp_path / "a,b.jsonl", pairs("generate"))
    assert len(read_examples(GENERATION, path)) == len(TEXTS)
    with pytest.raises(DataError, match=r"there is no file .*a\.de"):
        read_examples(GENERATION, tmp_path / "a.de,b.en")
    with refusing(ConfigurationError, "pair-of-files"):
        read_examples(TASKS.load("classify"), tmp_path / "a.de,b.en")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a" * 300 + ",b", "cannot read a+: File name too long$"),
        ("a\0.jsonl", r"'a\\x00\.jsonl' cannot be the name of a file$"),
        ("a\0.de,b.en", r"'a\\x00\.de' cannot be the name of a file$"),
        ("-,-", "stdin cannot be both sources and targets; give a file for one of them$"),
    ],
)
def test_what_can_be_no_file_is_refused_in_one_line(name, message):
    with pytest.raises(DataError, match=message):
        read_examples(TRANSLATION, Path(name))


def test_the_identity_of_a_pair_is_that_of_both_files(tmp_path):
    pair = write_pair(tmp_path, ["a"], ["b"])
    before = identity(pair, None)
    assert before == identity(pair, None)
    for name in ("x.de", "x.en"):
        (tmp_path / name).write_text("c\n")
        assert identity(pair, None) != before
        before = identity(pair, None)


# --- what is learned --------------------------------------------------------------------------------------------------


def task_of(kind=GENERATION, **changes):
    return kind.task(**{"length": 8, "target_length": 6, "cuts_targets": True, "start": 2} | changes)


def features_of(task, examples, tokenizer):
    found = [task.examples.example(task_record(one, task.examples.names), labelled=True) for one in examples]
    return found, list(task.rows.features(found, tokenizer))


def task_record(texts, names):
    return Record("here", dict(zip(names, texts, strict=True)))


def test_the_model_learns_the_target_up_to_its_end():
    tokenizer = digit_tokenizer()
    task = task_of(source_prefix="short : ")
    _, features = features_of(task, [("one two", "three"), ("four", "five six seven")], tokenizer)

    def ids(text):
        return tokenizer.convert_tokens_to_ids(text.split())

    assert features[0][0].inputs["input_ids"].tolist() == ids("<s> short : one two </s>")
    labels = task.rows.targets([one for (one,) in features], 7)["labels"]
    assert labels.tolist() == [[*ids("<s> three </s>"), -100, -100], ids("<s> five six seven </s>")]


def test_a_target_does_not_begin_with_what_the_decoder_begins_with():
    tokenizer = digit_tokenizer()
    ids = tokenizer.convert_tokens_to_ids(["<s>", "five", "six", "</s>"])
    for start, expected in ((ids[0], ids[1:]), (ids[-1], ids)):
        _, ((feature,),) = features_of(task_of(start=start), [("one", "five six")], tokenizer)
        assert feature.target.tolist() == expected


def test_a_decoder_with_rotary_positions_learns_where_a_text_begins(settings, tmp_path):
    """It begins with <s>, as texts of its tokenizer do: reading that twice it could not tell the first from the second.

    What it must learn is one text for all, of three tokens; in doubt at two places its loss stayed above 2 log(2) / 4.
    """
    tokens = {"decoder_start_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "vocab_size": 17}
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "position_type": "rotary"}
    config = AsterismConfig(mixers="dense()", decoder_mixers="causal()", **sizes, **tokens)
    with isolated(1), quiet_transformers():
        AsterismForConditionalGeneration(config).save_pretrained(tmp_path / "model")
        digit_tokenizer().save_pretrained(tmp_path / "model")
    data = write_lines(tmp_path / "x.jsonl", [{"input": text, "output": "one two"} for text in TEXTS])
    asked = settings("generate", model=str(tmp_path / "model"), data=str(data), target_length=6, steps=40)
    report = train(asked, tmp_path / "run", progress=False)
    losses = [row["loss"] for row in lines_of(tmp_path / "run" / "history.jsonl") if "loss" in row]
    assert losses[-1] < 0.1 and report.scores["exact_match"] == 1.0


def test_a_tokenizer_that_ends_nothing_has_its_texts_ended():
    tokenizer = digit_tokenizer()
    tokenizer.backend_tokenizer.post_processor = None
    _, ((feature,),) = features_of(task_of(), [("one", "two three")], tokenizer)
    assert feature.target.tolist() == tokenizer.convert_tokens_to_ids(["two", "three", "</s>"])


def test_a_target_that_is_cut_off_still_ends_and_is_noted():
    tokenizer = digit_tokenizer()
    task = task_of(target_length=4)
    examples, features = features_of(task, [("one", "one two three"), ("one", "one two")], tokenizer)
    words = [
        [tokenizer.convert_ids_to_tokens(t) for t in row]
        for row in task.rows.targets([one for (one,) in features], 4)["labels"].tolist()
    ]
    assert words == [["<s>", "one", "two", "</s>"]] * 2
    assert task.rows.notes(examples, features) == [
        "1 of 2 training targets have more than 4 tokens and were cut off: a greater target_length would keep them"
        " whole"
    ]
    assert task.rows.notes(examples[1:], features[1:]) == []
    with pytest.raises(DataError, match=r"field 'output' has 5 tokens, the decoder takes 4; leave it out, or give"):
        task.changed(cuts_targets=False).rows.notes(examples, features)


def test_a_target_without_a_token_is_refused():
    tokenizer = digit_tokenizer()
    tokenizer.backend_tokenizer.pre_tokenizer = None
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace("-", "")
    with pytest.raises(DataError, match="field 'output' has nothing of which the tokenizer makes a token"):
        features_of(task_of(), [("one", "--")], tokenizer)


@pytest.mark.parametrize("model", ["bart", "t5"])
def test_label_smoothing_is_that_of_transformers(models, model):
    with quiet_transformers():
        network = AutoModelForSeq2SeqLM.from_pretrained(models[model])
    draw = torch.Generator().manual_seed(0)
    batch = {"input_ids": torch.randint(4, 17, (3, 7), generator=draw)}
    labels = torch.randint(4, 17, (3, 5), generator=draw)
    labels[0, 3:] = labels[2, 1:] = -100
    batch |= {"attention_mask": torch.ones(3, 7, dtype=torch.int64), "labels": labels}
    plain = loss_of(network, batch, "float32", None)
    assert torch.equal(plain, network(**batch).loss)
    smooth = loss_of(network, batch, "float32", None, label_smoothing=0.2)
    expected = LabelSmoother(epsilon=0.2)(network(**batch), labels)
    torch.testing.assert_close(smooth, expected)
    logits = network(**batch).logits
    by_torch = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.2)
    torch.testing.assert_close(smooth, by_torch)
    assert abs(smooth - plain) > 1e-3


# --- what is refused --------------------------------------------------------------------------------------------------


def test_what_a_model_or_its_tokenizer_lacks(settings, models, tmp_path):
    def refused(error, message, task="generate", **changes):
        if "model" in changes:
            changes["model"] = str(changes["model"])
        with pytest.raises(error, match=message) as caught:
            train(settings(task, **changes), tmp_path / "run", progress=False)
        assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()

    with quiet_transformers():
        bert = save_tiny_bert(tmp_path / "bert")
    refused(ConfigurationError, "bert holds a bert model, which cannot generate text from text; give an", model=bert)
    refused(
        ConfigurationError, "target_length: got 25 tokens, but the decoder in .* takes at most 24", target_length=25
    )
    refused(ConfigurationError, "length: got 25 tokens, but .* takes at most 24", length=25)
    no_limit = {"model": str(models["t5"]), "length": None}
    refused(ConfigurationError, "length: the model in .*t5 has no maximum length", **no_limit)
    refused(
        ConfigurationError,
        "target_length: the decoder in .*t5 has no maximum length",
        **no_limit | {"length": 8, "target_length": None},
    )
    for name, message in (
        ("eos_token", r"the tokenizer in .* has no end-of-sequence token \(eos_token\), which ends an answer; give it"),
        ("pad_token", r"the tokenizer in .* has no padding token \(pad_token\), which fills up"),
    ):
        with quiet_transformers():
            folder = save_tiny_bart(tmp_path / name)
        digit_tokenizer(without=[name]).save_pretrained(folder)
        refused(ConfigurationError, message, model=folder)
    with quiet_transformers():
        folder = save_tiny_bart(tmp_path / "startless")
    document = json.loads((folder / "config.json").read_text())
    for changes, error, message in (
        ({"decoder_start_token_id": None}, ConfigurationError, "has no decoder_start_token_id"),
        (
            {"decoder_start_token_id": 17},
            ConfigurationError,
            "has decoder_start_token_id 17, but the decoder has tokens",
        ),
        (
            {"decoder_start_token_id": -1},
            ConfigurationError,
            "has decoder_start_token_id -1, but the decoder has tokens 0",
        ),
        ({"pad_token_id": -1}, ConfigurationError, "has pad_token_id -1, but the decoder has tokens 0 to 16$"),
        ({"vocab_size": -3, "pad_token_id": -4, "decoder_start_token_id": -4}, ConfigurationError, "has pad_token_id"),
    ):
        (folder / "config.json").write_text(json.dumps(document | changes))
        refused(error, f"the config.json in .*startless {message}", model=folder)


def test_targets_that_cannot_be_learned(settings, tmp_path):
    long = " ".join(["one"] * 30)
    rows = [*pairs("generate"), {"input": "one", "output": long}]
    data = write_lines(tmp_path / "t.jsonl", rows)
    validation = write_lines(tmp_path / "v.jsonl", rows[-3:])
    own = {"data": str(data), "validation": str(validation)}
    with pytest.raises(DataError, match=r"t\.jsonl, line 49: field 'output' has 32 tokens, the decoder takes 24;"):
        train(settings("generate", **own), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()
    report = train(
        settings("generate", **own, steps=1, warmup_steps=0, target_length=24), tmp_path / "run", progress=False
    )
    assert [note for note in report.notes if "answers the same" not in note] == [
        "1 of 49 training targets have more than 24 tokens and were cut off: a greater target_length would keep them"
        " whole"
    ]
    write_lines(data, [*pairs("generate"), {"input": "one", "output": ""}])
    with refusing(DataError, "bad-field", "t.jsonl, line 49", "'output'", "is empty"):
        train(settings("generate", **own), tmp_path / "other", progress=False)


def test_a_model_that_is_not_whole(settings, models, tmp_path):
    folder = Path(shutil.copytree(models["bart"], tmp_path / "lacking"))
    tensors = load_file(folder / "model.safetensors")
    name = "model.decoder.layers.0.encoder_attn.k_proj.weight"
    save_file({key: value for key, value in tensors.items() if key != name}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=f"lacking lacks the model's tensor {name}"):
        train(settings("generate", model=str(folder)), tmp_path / "run", progress=False)
    document = json.loads((folder / "config.json").read_text())
    for change, message in (
        ({"decoder_ffn_dim": 8}, r"has another shape of the model's tensor model\.decoder\.layers\.0\.fc1"),
        ({"decoder_layers": 0}, r"has, and its config\.json does not know, the model's tensor model\.decoder\.layers"),
    ):
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(document | change))
        with pytest.raises(CheckpointError, match=f"lacking {message}"):
            train(settings("generate", model=str(folder)), tmp_path / "run", progress=False)


def test_answers_of_a_model_that_is_not_finite(finished, monkeypatch):
    run = open_run(finished["generate"][0])
    with torch.no_grad():
        run.model.model.decoder.layers[0].fc1.weight[0, 0] = float("nan")
    with refusing(AsterismError, "answers-not-finite"):
        list(predict(run, [{"input": "one"}]))


@pytest.mark.parametrize(("task", "package"), [("summarize", "rouge-score"), ("translate", "sacrebleu")])
def test_a_scorer_that_is_not_installed(settings, finished, task, package, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(presence, "find_spec", lambda name: None)
    message = f"scoring needs {package}, which is not installed: pip install '.[seq2seq]' in a checkout"
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        train(settings(task), tmp_path / "run", progress=False)
    folder = str(finished[task][0])
    assert main(["evaluate", folder]) == 2
    assert capsys.readouterr().err == f"asterism: error: {message}\n"
    data = write_lines(tmp_path / "in.jsonl", pairs(task))
    assert main(["predict", folder, "--data", str(data), "--score"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err == f"asterism: error: {message}\n"
    assert len(list(predict(folder, pairs(task)[:2]))) == 2  # who only asks needs none


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target_length": 0}, "target_length=0 must be at least 1"),
        ({"num_beams": 0}, "num_beams=0 must be at least 1"),
        ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size=-1 must not be negative"),
        ({"label_smoothing": 1.0}, r"label_smoothing=1.0 must be in \[0, 1\)"),
        ({"length_penalty": float("nan")}, "length_penalty=nan must be finite"),
        ({"source_prefix": "a\ud800"}, r"source_prefix='a\\ud800' has half of a surrogate pair without the other$"),
        (
            {"pooling": "mean"},
            "pooling='mean' is for task 'classify' or 'multilabel' or 'promoter' or 'chromatin', not",
        ),
        ({"task": "tag", "num_beams": 2}, "num_beams=2 is for task 'summarize' or .* or 'instruct', not 'tag'"),
    ],
)
def test_settings_that_cannot_work(settings, changes, message):
    with pytest.raises(ConfigurationError, match=message):
        settings("generate", **changes)


# --- scores -----------------------------------------------------------------------------------------------------------


def test_exact_match_and_token_accuracy_by_hand():
    predicted, there = ["a  b", "a b c", "", "x"], ["a b", "a c", "d", "x"]
    assert text_scores.exact_match(predicted, there) == 2 / 4
    # places: 2 + 3 + 1 + 1; right: a b, a, none, x
    assert text_scores.token_accuracy(predicted, there) == 4 / 7
    assert text_scores.token_accuracy([""], [""]) == 1.0


def test_rouge_by_hand():
    """Lin 2004, section 3.2, example S1 and S2, and F1 of n-grams counted by hand."""
    found = text_scores.rouge(["police kill the gunman"], ["police killed the gunman"])
    assert found == {"rouge1": 1, "rouge2": 1, "rougeL": 1, "rougeLsum": 1}  # "killed" is stemmed
    found = text_scores.rouge(["the gunman kill police"], ["police killed the gunman"])
    assert found["rouge1"] == 1 and found["rouge2"] == pytest.approx(1 / 3) and found["rougeL"] == 1 / 2
    # Lin's summary level: the union of what two sentences share with "w1 w2 w3 w4 w5" has 4 of its 5 words
    text = "w1 w2 w6 w7 w8\nw1 w3 w8 w9 w5"
    both = text_scores.rouge([text], ["w1 w2 w3 w4 w5"])
    assert both["rougeLsum"] == pytest.approx(2 * (4 / 5) * (4 / 10) / (4 / 5 + 4 / 10))
    assert text_scores.rouge([text.replace("\n", ". ")], ["w1 w2 w3 w4 w5"]) == both
    two = text_scores.rouge(["a", "b"], ["a", "c"])
    assert set(two.values()) <= {0.0, 0.5} and two["rouge1"] == 0.5


def test_bleu_and_chrf_by_hand():
    same = text_scores.bleu_and_chrf(["the cat sat on the mat ."] * 2, ["the cat sat on the mat ."] * 2)
    assert same == {"bleu": pytest.approx(1), "chrf": pytest.approx(1)}
    # one word of seven is wrong, in the middle: precisions 6/7, 4/6, 2/5, 1/4, no brevity penalty
    found = text_scores.bleu_and_chrf(["a b c x e f g"], ["a b c d e f g"])
    assert found["bleu"] == pytest.approx((6 / 7 * 4 / 6 * 2 / 5 * 0.5 / 4) ** 0.25)  # 4-grams: 0, smoothed to 1/2
    # corpus BLEU adds up counts before it divides: it is no mean of sentences
    assert text_scores.bleu_and_chrf(["a b c d e", "x"], ["a b c d e", "y"])["bleu"] == pytest.approx(
        (5 / 6 * 4 / 4 * 3 / 3 * 2 / 2) ** 0.25
    )


def test_papers_settings_can_be_said():
    """BigBird's summaries of arXiv (Zaheer 2020, appendix E.5): 3072 and 256 tokens, beams 5, penalty 0.8."""
    config = FineTuneConfig(
        task="summarize",
        model="m",
        data="d",
        length=3072,
        target_length=256,
        num_beams=5,
        length_penalty=0.8,
        batch_size=128,
        learning_rate=1e-4,
        warmup_steps=10_000,
        optimizer="adafactor",
        schedule="inverse_sqrt",
    )
    assert config.name == "finetune-summarize"


def test_adafactor_resumes_to_the_same_bits(settings, tmp_path):
    """It learns, and keeps sums of rows and columns alone."""
    config = settings("generate", steps=9, checkpoint_every=4, optimizer="adafactor", schedule="inverse_sqrt")
    config = replace(config, learning_rate=0.1, log_every=1)
    train(config, tmp_path / "whole", progress=False)
    with pytest.raises(KeyboardInterrupt), at_step(6):
        train(config, tmp_path / "parts", progress=False)
    (checkpoint,) = (tmp_path / "parts" / "checkpoints").iterdir()
    kept = load_file(checkpoint / "optimizer.safetensors")
    assert kept["row_var.model.shared.weight"].shape == (17, 1)
    assert kept["col_var.model.shared.weight"].shape == (1, 32)
    train(config, tmp_path / "parts", resume=True, progress=False)
    first, second = (tmp_path / run / "model" / "model.safetensors" for run in ("whole", "parts"))
    assert first.read_bytes() == second.read_bytes()
    losses = [entry["loss"] for entry in lines_of(tmp_path / "whole" / "history.jsonl") if "loss" in entry]
    assert losses[-1] < 0.7 * losses[0]
