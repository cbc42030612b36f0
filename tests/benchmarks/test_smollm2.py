"""What benchmarks/smollm2.py cuts, scores and times, with a small Llama of random weights."""

import importlib
import json
import lzma
import re
from types import SimpleNamespace

import pytest
import torch
from repository import BENCHMARKS, docs_page
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

from asterism.models import use_pattern

pytestmark = pytest.mark.model

SIZES = dict(vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)


@pytest.fixture
def smollm2(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("smollm2")


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES, intermediate_size=48, max_position_embeddings=256))
    model.save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


def test_no_text_is_in_two_files(tmp_path, smollm2):
    more = {"obsoletes": [], "updates": ["RFC7"]}
    rows = [
        {"id": f"rfc{number}", "title": f"Title {number}", "text": f"{number:05d}" * 7000} | more
        for number in range(2110)
    ]
    with lzma.open(tmp_path / "rows.jsonl.xz", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    smollm2.write_texts(tmp_path / "rows.jsonl.xz", tmp_path / "texts")
    read = {
        name: [json.loads(line) for line in (tmp_path / "texts" / f"{name}.jsonl").read_text().splitlines()]
        for name in ("train", "short", "long")
    }
    assert [len(read[name]) for name in ("train", "short", "long")] == [2000, 4, 10]
    assert all(len(row["completion"]) == 6000 for row in read["train"])
    kinds = [
        {row["completion"][:5] for row in read["train"]},
        {row["completion"][:5] for row in read["short"]},
        {row["text"][:5] for row in read["long"]},
    ]
    assert sum(map(len, kinds)) == len(set.union(*kinds)) == 2014


def test_questions_are_about_the_first_page(smollm2):
    page = "Request for Comments: 9042\n\n   Updates: 5228        June 2021\n\n   An abstract of May 2020."
    row = {"id": "rfc9042", "text": page, "obsoletes": [], "updates": ["RFC5228", "RFC17"]}
    asked = {
        one["messages"][0]["content"].split("\n\n")[1]: one["messages"][1]["content"] for one in smollm2.questions(row)
    }
    assert asked == {
        "When was it published?": "June 2021",
        "What is its number?": "9042",
        "Which documents does it replace?": "none",
        "Which documents does it update?": "RFC5228, RFC17",
    }
    assert len(smollm2.questions(row | {"text": "No date, no number."})) == 2


def test_losses_are_means_between_places(folder, smollm2, monkeypatch):
    monkeypatch.setattr(smollm2, "EDGES", (0, 16, 600, 700))
    row = torch.randint(60, (1, 700), generator=torch.Generator().manual_seed(1))
    for pattern in (smollm2.DENSE, "window(left=7)"):
        model = smollm2.load(folder, pattern)
        nats = functional.cross_entropy(model(row).logits[0, :-1], row[0, 1:], reduction="none").detach()
        wanted = [nats[:15].mean(), nats[15:599].mean(), nats[599:].mean()]
        assert smollm2.losses_of(model, row) == pytest.approx([float(one) for one in wanted], abs=1e-5)


def test_an_endless_text_is_read_whole_and_block_by_block(folder, smollm2, monkeypatch, tmp_path):
    monkeypatch.setattr(smollm2, "BLOCK", 300)
    monkeypatch.setattr(smollm2, "BLOCKS", 2)
    monkeypatch.setattr(smollm2.AutoTokenizer, "from_pretrained", lambda folder: Letters())
    letters = "".join(chr(1 + number * number % 59) for number in range(250))
    (tmp_path / "long.jsonl").write_text("".join(json.dumps({"text": letters}) + "\n" for _ in range(3)))
    arguments, record = SimpleNamespace(model=folder, texts=tmp_path / "long.jsonl"), {}
    assert list(smollm2.measure_endless(arguments, record)) == [smollm2.SINKS, smollm2.WITHIN, "block by block"]
    row = Letters()("\n\n".join([letters] * 3), "pt").input_ids[:, :600]
    for name, options in ((smollm2.SINKS, {}), (smollm2.WITHIN, {"positions": "cache"})):
        model = use_pattern(LlamaForCausalLM.from_pretrained(folder).eval(), smollm2.SINKS, **options)
        nats = functional.cross_entropy(model(row).logits[0, :-1], row[0, 1:], reduction="none").detach()
        assert record[name] == pytest.approx([float(nats[:299].mean()), float(nats[299:].mean())], abs=1e-5)
    model = use_pattern(LlamaForCausalLM.from_pretrained(folder).eval(), smollm2.SINKS)
    second = functional.cross_entropy(model(row[:, 300:]).logits[0, :-1], row[0, 301:]).item()
    assert record["block by block"] == pytest.approx([record[smollm2.SINKS][0], second], abs=1e-5)
    assert record[smollm2.SINKS] != record[smollm2.WITHIN]


def test_a_turn_leaves_the_cache_as_it_was(folder, smollm2):
    for pattern, context, keys in ((smollm2.DENSE, 200, 200), (smollm2.DENSE, 300, 300), (smollm2.SINKS, 300, 300)):
        model = smollm2.load(folder, pattern)
        cache, seconds = smollm2.filled(model, pattern, context)
        assert (seconds is None) == (pattern == smollm2.DENSE and context > 256)  # beyond the model's positions
        before = smollm2.bytes_of(cache.layers)
        assert smollm2.rate_of(model, cache, 5) > 0
        assert cache.get_seq_length() == keys
        if pattern == smollm2.DENSE:
            assert before == smollm2.bytes_of(cache.layers) == 2 * 2 * 2 * 8 * 4 * context


def test_a_pattern_is_followed(folder, smollm2):
    row = torch.randint(60, (1, 200), generator=torch.Generator().manual_seed(1))
    model = smollm2.load(folder, smollm2.WINDOW)
    wanted = use_pattern(LlamaForCausalLM.from_pretrained(folder).eval(), smollm2.WINDOW)
    assert torch.equal(model(row).logits, wanted(row).logits)
    assert not torch.equal(model(row).logits, smollm2.load(folder, smollm2.DENSE)(row).logits)


class Letters:
    """A tokenizer whose tokens are letters."""

    eos_token_id = 0

    def __call__(self, text, return_tensors=None):
        ids = [ord(letter) for letter in text]
        return SimpleNamespace(input_ids=torch.tensor([ids]) if return_tensors else ids)

    def decode(self, ids):
        return "".join(map(chr, ids))


def test_a_number_stands_as_far_from_the_end_as_asked(smollm2):
    longest = len(" There and back again.")
    for distance in (80, 100, 101, 500, 3000):
        text, number = smollm2.prompt(Letters(), distance, seed=3)
        before, behind = text.split(f"{number}.")
        assert distance <= len(behind) < distance + longest and number not in before
    words = {len(smollm2.prompt(Letters(), distance, seed=3)[0].split()) for distance in (80, 100, 101, 500, 3000)}
    assert len(words) == 1, "texts of one length, wherever the number stands"
    assert smollm2.prompt(Letters(), 100, seed=4) != smollm2.prompt(Letters(), 100, seed=3)


@pytest.mark.parametrize("says, found", ((" it is {}.", True), (" it is 12.", False)))
def test_a_number_is_found_where_it_is_written(smollm2, says, found):
    number = smollm2.prompt(Letters(), 100, seed=3)[1]

    def generate(tokens, max_new_tokens, **options):
        assert max_new_tokens >= len(number)
        return torch.cat([tokens, Letters()(says.format(number), "pt").input_ids], 1)

    model = SimpleNamespace(generate=generate, config=LlamaConfig(**SIZES, attn_implementation="sdpa"))
    assert smollm2.finds(model, Letters(), 100, seed=3) == found


def test_the_page_has_the_figures_of_the_record(smollm2, capsys):
    """Every cell of its tables that is measured by the script, and the difference that its text names."""
    record = json.loads((BENCHMARKS / "results" / "smollm2.json").read_text())
    smollm2.report(record)
    lines, page = capsys.readouterr().out.splitlines(), docs_page("smollm2.md").read_text()
    tables = [line for line in lines if re.match(r"\| [`\d]", line)]
    rows = [line.split(" | ", 1)[1] for line in tables]
    assert len(rows) == len(record["losses"]) + len(record["needles"]) - 1 + len(record["rates"]) + len(
        record["endless"]
    )
    assert all(f" | {row}\n" in page for row in rows), [row for row in rows if f" | {row}\n" not in page]
    (difference,) = (line for line in lines if line.startswith("learned under the pattern"))
    assert difference.endswith("0.060 ± 0.008, -0.010 ± 0.012, -0.061 ± 0.006, -0.060 ± 0.006, -0.055 ± 0.004")
