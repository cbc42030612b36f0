"""Documents as streams of tokens: their borders, the bytes that their tokens stand for, and what a model reads."""

import json

import numpy as np
import pytest
import torch
from refusals import refusing
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from asterism.errors import ConfigurationError, DataError
from asterism.training.data.corpora.bytes import load_documents
from asterism.training.data.corpora.splits import Border
from asterism.training.data.corpora.tokenization import ENDING, encode_with_ends, load_tokenizer, make_tokenizer
from asterism.training.data.corpora.tokens import TokenSplits, decoded
from asterism.training.data.corpora.windows import model_inputs, plan_pieces, read_windows

pytestmark = pytest.mark.model

DOCUMENTS = [f"größe {n} = €{n * 37}\n" * (1 + n % 4) for n in range(400)]


def words(normalizer=None):
    """A tokenizer of whole words, which are not byte-level; it drops the white space between them."""
    text = {word for one in DOCUMENTS for word in one.split()}
    known = {"[UNK]": 0, "</s>": 1} | {word: 2 + at for at, word in enumerate(sorted(text))}
    tokenizer = Tokenizer(models.WordLevel(known, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", unk_token="[UNK]")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "documents.jsonl"
    path.write_text("".join(json.dumps({"text": one}) + "\n" for one in DOCUMENTS))
    return load_documents(path)


@pytest.fixture(scope="module")
def learned(corpus):
    return make_tokenizer("bpe:300", corpus.documents("train"), 32)


@pytest.mark.parametrize("kind", ["learned", "words"])
def test_a_stream_holds_the_bytes_of_its_documents(kind, corpus, learned):
    pieces = TokenSplits(corpus, learned if kind == "learned" else words()).pieces("validation")
    whole = b"".join(one.encode() + b"\0" for one in corpus.documents("validation"))
    assert len(whole) == corpus.length("validation")
    size = len(pieces)
    offsets = pieces.bytes_before(np.arange(size + 1))
    assert offsets[:2].tolist() == [0, 0] and offsets[-1] == len(whole) and (np.diff(offsets) >= 0).all()
    tokens = pieces.read(0, size)
    assert pieces.read(3, 9).tolist() == tokens[3:9].tolist() and pieces.read(0, 0).size == 0
    borders = np.flatnonzero(tokens == pieces.border.end)
    assert [whole[at - 1] for at in offsets[borders[1:] + 1].tolist()] == [0] * (len(borders) - 1)
    assert b"".join(pieces.text(5, 70)) == whole[5:70] and b"".join(pieces.text(0, len(whole))) == whole


def test_a_token_of_bytes_has_as_many_as_it_stands_for(corpus, learned):
    pieces = TokenSplits(corpus, learned).pieces("validation")
    offsets = pieces.bytes_before(np.arange(len(pieces) + 1))
    document = next(corpus.documents("validation")).encode()
    at = 1
    while offsets[at] < len(document):
        token = learned.convert_ids_to_tokens(int(pieces.read(at, at + 1)[0]))
        assert offsets[at + 1] - offsets[at] == len(token)  # a byte-level token has a letter for each byte
        at += 1
    assert decoded(learned, pieces.read(1, at)).encode() == document


def test_bytes_and_places_are_inverse(corpus, learned):
    pieces = TokenSplits(corpus, learned).pieces("train")
    offsets = pieces.bytes_before(np.arange(len(pieces) + 1))
    for size in (0, 1, 17, int(offsets[-1])):
        place = pieces.place_of(size)
        assert offsets[place] >= size and (place == 0 or offsets[place - 1] < size)
    assert pieces.place_of(10**12) == len(pieces)


def test_ends_of_tokens_follow_the_offsets_of_the_tokenizer():
    tokenizer = words()
    assert encode_with_ends(tokenizer, "größe 0 = €0\n").tolist() == [7, 9, 11, 17]  # with the space before each word


def test_what_a_tokenizer_does_not_restore_is_counted(corpus, learned):
    assert TokenSplits(corpus, learned).pieces("validation").changed()[0] == 0
    wrong, compared = TokenSplits(corpus, words(normalizers.Lowercase())).pieces("validation").changed()
    assert wrong == compared == len(list(corpus.documents("validation")))


def test_windows_score_every_byte_once(corpus, learned):
    pieces = TokenSplits(corpus, learned).pieces("validation")
    plan = plan_pieces(pieces, 16, 0, 0, len(pieces))
    assert plan.bytes_scored == corpus.length("validation")
    thin = plan.thin(100)
    assert 50 < thin.bytes_scored < 200 and len(thin.sizes) == len(thin.starts) < len(plan.starts)


def test_documents_do_not_read_one_another():
    window = torch.tensor([[7, 8, 3, 9, 3, 3, 5], [3, 4, 4, 4, 4, 4, 3]])
    given = model_inputs(window, Border(end=3, start=2))
    assert given["input_ids"].tolist() == [[7, 8, 2, 9, 2, 2], [2, 4, 4, 4, 4, 4]]
    assert given["position_ids"].tolist() == [[0, 1, 0, 1, 0, 0], [0, 1, 2, 3, 4, 5]]
    assert given["shift_labels"].tolist() == [[8, 3, 9, 3, 3, 5], [4, 4, 4, 4, 4, 3]]
    assert list(model_inputs(window)) == ["input_ids", "shift_labels"]


def test_a_stream_begins_with_a_border(corpus, learned):
    pieces = TokenSplits(corpus, learned).pieces("train")
    rows = read_windows(pieces, np.array([1, 2]), 8)
    tokens = pieces.read(0, 10).tolist()
    assert rows.tolist() == [tokens[:9], tokens[1:]] and tokens[0] == learned.sep_token_id


def test_tokenizers_that_cannot_be_used_are_refused(corpus, tmp_path):
    with refusing(DataError, "missing-tokenizer", "nowhere"):
        load_tokenizer(tmp_path / "nowhere", ENDING)
    plain = words()
    plain.eos_token = None
    plain.save_pretrained(tmp_path / "endless")
    with refusing(DataError, "special-tokens-missing", "eos_token or sep_token", "predicting the next token"):
        load_tokenizer(tmp_path / "endless", ENDING)

    class Slow:
        is_fast = False

    with refusing(ConfigurationError, "slow-tokenizer", "fast"):
        TokenSplits(corpus, Slow())
