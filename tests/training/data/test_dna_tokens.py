"""Tokens of DNA: every text comes back to the letter, from the tokenizer that was made and from the saved one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asterism.errors import ConfigurationError
from asterism.training.data.corpora import dna_tokens
from asterism.training.data.corpora.tokenization import (
    SPECIAL_TOKENS,
    encode,
    load_tokenizer,
    make_tokenizer,
    vocabulary,
)

NAMES = ("bases", "kmer:2", "kmer:6", "dna-bpe:300")
DNA = st.text(alphabet="ACGTN", max_size=400) | st.text(alphabet="ACGT", max_size=400)


def made_up_text(letters: int, seed: int = 0) -> str:
    """Bases with a few words that come again and again."""
    random = np.random.default_rng(seed)
    words = ["".join(random.choice(list("ACGT"), 12)) for _ in range(5)]
    text = ""
    while len(text) < letters:
        text += words[random.integers(5)] + "".join(random.choice(list("ACGT"), random.integers(20)))
    return text[:letters]


DOCUMENTS = ["\n".join(made_up_text(700, seed) for seed in range(4)), made_up_text(5_000, 9) + "NNNNNN"]


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    """Of each name the tokenizer that was made, and what its folder gives back."""
    found = {}
    for name in NAMES:
        made = make_tokenizer(name, DOCUMENTS, 64)
        folder = tmp_path_factory.mktemp("tokenizer")
        made.save_pretrained(folder)
        assert (folder / "tokenizer.json").exists()
        found[name] = (made, load_tokenizer(folder))
    return found


@pytest.mark.parametrize("name", NAMES)
@given(text=DNA)
def test_every_sequence_comes_back(tokenizers, name, text):
    made, loaded = tokenizers[name]
    (tokens,) = encode(made, [text])
    np.testing.assert_array_equal(next(encode(loaded, [text])), tokens)
    assert made.decode(tokens) == loaded.decode(tokens) == text
    assert "".join(made.convert_ids_to_tokens(tokens)) == text
    assert not set(tokens.tolist()) & set(made.all_special_ids)


@pytest.mark.parametrize("name", NAMES)
def test_lines_are_apart_and_their_ends_are_no_text(tokenizers, name):
    tokenizer, _ = tokenizers[name]
    lines = ["ACGTACGTA", "CCN", "GATTACAGATTACA"]
    together = [token for one in encode(tokenizer, lines) for token in one]
    for text in ("\n".join(lines), "\r\n".join(lines) + "\n"):
        np.testing.assert_array_equal(next(encode(tokenizer, [text])), together)


@pytest.mark.parametrize(
    ("name", "size"), [("bases", 10), ("kmer:2", 26), ("kmer:6", 4106), ("kmer:8", 65_546), ("dna-bpe:300", 300)]
)
def test_the_vocabulary_is_known_before_it_is_made(name, size):
    assert vocabulary(name).size == size
    tokenizer = make_tokenizer(name, DOCUMENTS, 64)
    assert len(tokenizer) == size and len(set(tokenizer.get_vocab().values())) == size
    assert [getattr(tokenizer, role) for role in SPECIAL_TOKENS] == list(SPECIAL_TOKENS.values())
    assert tokenizer("AC", "GT")["input_ids"][0] == tokenizer.cls_token_id


def test_six_bases_are_one_token_and_the_rest_are_single():
    tokenizer = make_tokenizer("kmer:6", [], 64)
    assert tokenizer.tokenize("ACGTAC" "GGGTTT" "ACNGATTACAA") == [
        "ACGTAC", "GGGTTT", "A", "C", "N", "GATTAC", "A", "A"
    ]  # fmt: skip


def test_other_letters_are_unknown_and_take_no_neighbour_along():
    for name in NAMES:
        tokenizer = make_tokenizer(name, DOCUMENTS, 64)
        assert tokenizer.tokenize("ARaC") == ["A", "[UNK]", "[UNK]", "C"], name


def test_pieces_are_learned_from_what_comes_again_and_are_no_longer_than_sixteen():
    tokenizer = make_tokenizer("dna-bpe:300", DOCUMENTS, 64)
    again = make_tokenizer("dna-bpe:300", DOCUMENTS, 64)
    assert again.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()
    held_out = made_up_text(5_000, 7)
    (tokens,) = encode(tokenizer, [held_out])
    assert len(held_out) / len(tokens) > 2.5
    repeated = make_tokenizer("dna-bpe:300", ["ACGTTGCA" * 900], 64)
    assert max(len(token) for token in repeated.get_vocab() if token.isalpha()) == 16


def test_frequencies_of_merged_tokens_predict_random_bases_with_more_than_two_bits():
    """As `genomics` finds for a genome: probability goes to neighbours that would have been merged."""
    text = "".join(np.random.default_rng(0).choice(list("ACGT"), 100_000))
    found = {}
    for name in ("bases", "dna-bpe:300"):
        (tokens,) = encode(make_tokenizer(name, [text], 64), [text])
        counts = np.bincount(tokens)[np.unique(tokens)]
        found[name] = float(counts @ -np.log2(counts / len(tokens))) / len(text)
    assert abs(found["bases"] - 2) < 0.001 and 2.05 < found["dna-bpe:300"] < 2.15


def test_what_is_learned_from_is_cut_and_ends(monkeypatch):
    monkeypatch.setattr(dna_tokens, "_SENTENCE", 10)
    monkeypatch.setattr(dna_tokens, "LEARNED_FROM", 25)
    read = list(dna_tokens._learned_from(iter(["A" * 14, "C\nGG", "T" * 12, "N", "AAA"])))
    assert read == ["A" * 10, "A" * 4, "C", "GG", "T" * 10, "TT"]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("kmer:1", "bases of a token, from 2 to 8"),
        ("kmer:9", "bases of a token, from 2 to 8"),
        ("kmer:six", "bases of a token, from 2 to 8"),
        ("kmer:99999999999999999999", "bases of a token, from 2 to 8"),
        ("dna-bpe:9", "5 special ones among them, from 10 to 1,048,576"),
        ("dna-bpe:", "10 to 1,048,576"),
        ("dna-bpe:1048577", "10 to 1,048,576"),
    ],
)
def test_numbers_that_cannot_be_are_refused(name, why):
    with pytest.raises(ConfigurationError, match=why):
        vocabulary(name)
