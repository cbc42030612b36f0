"""What benchmarks/embeddings.py asks and how it scores, and the vectors of a small long model with random weights."""

import importlib
import json
import lzma
import sys

import pytest
import torch
from repository import BENCHMARKS, docs_page
from sklearn.metrics import ndcg_score
from small_checkpoints import draw_weights, undone
from torch.nn.functional import normalize
from transformers import AutoModel, BertConfig, BertModel, BertTokenizer

from asterism.models import import_checkpoint

ROW, LONG = 32, 128
WORDS = [f"word{number}" for number in range(50)]
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SIZES = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 28}


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("embeddings")


def save_bert(folder, positions: int) -> BertModel:
    """A random BERT, and a tokenizer of words."""
    with undone():
        model = BertModel(BertConfig(vocab_size=60, max_position_embeddings=positions, **SIZES)).eval()
    draw_weights(model)
    model.save_pretrained(folder)
    vocabulary = {word: number for number, word in enumerate((*SPECIAL, *WORDS, "."))}
    BertTokenizer(vocab=vocabulary).save_pretrained(folder)
    return model


@pytest.fixture
def bert(tmp_path):
    return save_bert(tmp_path / "bert", ROW)


# --- scores ---------------------------------------------------------------------------------------------------------


def test_the_scores_are_those_of_scikit_learn(script):
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(40, 30, generator=generator, dtype=torch.float64)
    right = torch.randint(30, (40,), generator=generator)
    truth = torch.nn.functional.one_hot(right, 30)
    found = script.gains(script.ranks(scores, right))
    for one, relevant, score in zip(found, truth, scores, strict=True):
        assert one.item() == pytest.approx(ndcg_score(relevant[None], score[None], k=10), abs=1e-6)
    assert 0 < (found > 0).sum() < 40


def test_equal_scores_are_no_success(script):
    assert script.ranks(torch.zeros(1, 5), torch.tensor([0])).tolist() == [5]


def test_questions_about_one_document_count_as_one(script):
    mean, error = script.over_documents(torch.tensor([1.0, 1.0, 1.0, 0.0]), torch.tensor([7, 7, 7, 9]))
    assert mean == 0.5 and error == pytest.approx(0.5)
    questions = [{"kind": kind, "document": number} for number in (0, 1) for kind in script.KINDS]
    ranks = torch.tensor([1, 11, 3, 1, 10, 1])
    found = script.measures(ranks, questions)
    assert found["title"] == {"ndcg": 1.0, "error": 0.0, "recall": 1.0}
    assert found["abstract"]["recall"] == 0.5 and found["sentence"]["ndcg"] == 0.75
    found = script.differences(ranks, torch.ones(6, dtype=torch.int64), questions)
    assert found["title"] == {"gain": 0.0, "error": 0.0}
    assert found["sentence"] == {"gain": -0.25, "error": 0.25}


def test_the_mean_of_rows_and_the_nearest_row(script):
    asked = torch.tensor([[1.0, 0.0]])
    documents = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[0.8, 0.6], [0.8, 0.6]]])
    assert script.similarities(asked, documents, best=True).tolist() == [[1.0, pytest.approx(0.8)]]
    assert script.similarities(asked, documents, best=False)[0].tolist() == pytest.approx([0.5**0.5, 0.8])


# --- the collection -------------------------------------------------------------------------------------------------


def tokenizer_of(folder) -> BertTokenizer:
    return BertTokenizer.from_pretrained(folder)


def body_of(sentences: int, first: int = 0) -> str:
    """Sentences of fourteen words; no two of them are equal, but one stands there twice."""
    made = []
    for number in range(first, first + sentences):
        digits = [WORDS[number // 50**place % 50] for place in range(3)]
        made.append(" ".join(["Word0", *digits, *WORDS[:10]]) + ".")
    return "\n".join([*made[:-1], made[sentences // 2], made[-1]])


def test_sentences_are_taken_out_of_the_depth(script, bert, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "DEEP", (30, 120))
    tokenizer, body = tokenizer_of(tmp_path / "bert"), body_of(12)
    lines = body.split("\n")
    asked, rest = script.take_sentences(tokenizer, body, 2)
    assert asked == [lines[2], lines[4]]  # 15 tokens each: of lines 2 to 7, the first and the third; line 6 is repeated
    assert rest.split("\n") == [*lines[:2], "", lines[3], "", *lines[5:]]
    assert script.take_sentences(tokenizer, "Word0 word1.", 2) == ([], "Word0 word1.")
    assert script.text_of(tokenizer, body, 16) == f"{lines[0]}\nWord0"
    assert script.text_of(tokenizer, "word1 word2", 3) == ""


def test_rows_of_a_text(script, bert, tmp_path):
    tokenizer = tokenizer_of(tmp_path / "bert")
    rows = script.rows_of(tokenizer, " ".join(WORDS), script.Way("dense()", 22))
    assert [row.tolist() for row in rows] == [
        [2, *range(5 + begin, 5 + min(begin + 20, 50)), 3] for begin in (0, 20, 40)
    ]
    assert len(script.rows_of(tokenizer, " ".join(WORDS), script.Way("dense()", 22, 1))) == 1


# --- the long model -------------------------------------------------------------------------------------------------


def test_blocks_of_the_old_length_are_the_old_model(script, bert, tmp_path):
    """The table of positions repeats, so each block is read as the checkpoint reads a row of its own."""
    import_checkpoint(tmp_path / "bert", tmp_path / "long", length=LONG, pattern=f"blocks({ROW})")
    row = torch.randint(5, 60, (LONG,), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        theirs = bert(row.view(-1, ROW)).last_hidden_state.view(LONG, -1)
    ours = AutoModel.from_pretrained(tmp_path / "long").eval()
    expected = normalize(theirs.mean(0), dim=0)
    assert (script.embed(ours, [row])[0] - expected).abs().max() < 1e-5
    ours.config.mixers = "dense()"
    dense = AutoModel.from_pretrained(tmp_path / "long", config=ours.config).eval()
    assert (script.embed(dense, [row])[0] - expected).abs().max() > 1e-2


def test_sentence_transformers_gives_the_same_vectors(script, bert, tmp_path):
    library = pytest.importorskip("sentence_transformers")
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds.items()]
    modules = [{"idx": number, "name": str(number), **module} for number, module in enumerate(modules)]
    (tmp_path / "bert" / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "bert" / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 24, "pooling_mode_mean_tokens": True}
    (tmp_path / "bert" / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (tmp_path / "bert" / "sentence_bert_config.json").write_text('{"max_seq_length": 32, "do_lower_case": false}')
    import_checkpoint(tmp_path / "bert", tmp_path / "long", length=LONG, pattern="window(left=8, right=8)")
    texts = [" ".join(WORDS[:count] * 2) for count in (50, 7)]
    found = library.SentenceTransformer(str(tmp_path / "long"), device="cpu").encode(texts)
    ours, tokenizer = AutoModel.from_pretrained(tmp_path / "long").eval(), tokenizer_of(tmp_path / "long")
    rows = [script.rows_of(tokenizer, text, script.Way("", LONG))[0] for text in texts]
    assert (torch.from_numpy(found) - script.embed(ours, rows)).abs().max() < 1e-5


# --- the whole ------------------------------------------------------------------------------------------------------


def made_up(number: int) -> dict[str, str]:
    abstract = " ".join(WORDS[number : number + 12])
    text = f"Abstract\n\n   {abstract}\n\n1.  Introduction\n\n   " + body_of(320, 1000 * number).replace(
        "\n", "\n\n   "
    )
    return {"id": f"rfc{number}", "title": f"word{number}", "abstract": abstract, "text": text}


def test_from_a_file_to_the_table(script, tmp_path, monkeypatch, capsys):
    save_bert(tmp_path / "bert", 512)
    with lzma.open(tmp_path / "rfcs.xz", "wt") as file:
        file.writelines(json.dumps(made_up(number)) + "\n" for number in range(3))
    monkeypatch.setattr(
        script, "WAYS", {name: script.WAYS[name] for name in ("cut-512", "windows-best", "long-blocks")}
    )
    output = tmp_path / "results.json"
    words = [str(tmp_path / name) for name in ("rfcs.xz", "bert", "runs", "results.json")]
    monkeypatch.setattr(sys, "argv", ["embeddings.py", *words, "--documents", "2", "--sentences", "3"])
    script.main()
    printed = capsys.readouterr().out
    record = json.loads(output.read_text())
    assert record["questions"] == {"title": 2, "abstract": 2, "sentence": 6}
    tokens = {row["name"]: row["tokens_per_document"] for row in record["rows"]}
    assert tokens == {
        "cut-512": 512,
        "windows-best": 4096,
        "long-blocks": 4082,
        "bm25-cut-512": 510,
        "bm25": 4080,
    }
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*/*")}
    script.main()
    assert capsys.readouterr().out == printed and json.loads(output.read_text()) == record
    assert kept == {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*/*")}
    monkeypatch.setattr(sys, "argv", ["embeddings.py", *words, "--documents", "4"])
    with pytest.raises(SystemExit, match="has 3 documents of 4,080 tokens, not 4"):
        script.main()
    monkeypatch.setattr(sys, "argv", ["embeddings.py", *words, "--documents", "1"])
    with pytest.raises(SystemExit, match="2"):
        script.main()
    (tmp_path / "bert" / "model.safetensors").unlink()
    monkeypatch.setattr(sys, "argv", ["embeddings.py", *words])
    with pytest.raises(SystemExit, match="safetensors is not a file"):
        script.main()


def test_the_page_shows_the_results(script, capsys):
    record = json.loads((BENCHMARKS / "results" / "embeddings.json").read_text())
    script.report(record)
    scores, differences, _ = capsys.readouterr().out.split("\n\n")
    page = docs_page("embed.md").read_text()
    assert scores in page and differences in page and len(scores.splitlines()) == 12
    assert record["date"] in page and f"{record['documents']} RFCs of {script.DOCUMENT:,} tokens" in page
