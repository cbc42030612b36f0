"""Tokens of DNA, for text of the letters A, C, G, T and N; white space between them, such as line ends, is no text.

    bases           a token for each base
    kmer:6          a token for each six bases that follow each other, one behind the other (Ji 2021, DNABERT, lets them
                    overlap). What is left at the end of a line or before an N, and N itself, are tokens of one letter
    dna-bpe:32000   byte-pair encoding, trained on the spot (Zaheer 2020, appendix F.1: 32,000 pieces of 8.78 bases in
                    human DNA), of pieces of at most 16 letters, which is what SentencePiece allows by default

DNA has no spaces, so a line of any length is one word; in documents, each line is a sentence of 500 to 1,000 bases.
Pieces are learned from lines cut to 1,000 letters, and from at most `LEARNED_FROM` letters. All other letters are
unknown. Invariant: the tokens of a text, joined, are its letters.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from asterism.errors import ConfigurationError

LETTERS = "ACGTN"
LONGEST_KMER = 8
"""There are 65,536 of them."""
LONGEST_PIECE = 16
MOST_PIECES = 1 << 20
LEARNED_FROM = 1 << 24
"""Letters, from the beginning; a line that is begun is read to its end."""
_SENTENCE = 1000


Maker = Callable[[Iterable[str]], Tokenizer]
"""Makes a tokenizer, from documents if it learns from text."""


def dna_tokenizer(name: str, special: Sequence[str]) -> tuple[int, Maker] | None:
    """How many tokens the tokenizer called `name` has at most, and its maker; None for a name that is none of these.

    `special` are its first tokens, the second of them the unknown one. Raises ConfigurationError for a number that
    cannot be.
    """
    first = [*special, *LETTERS]
    kind, colon, number = name.partition(":")
    if name == "bases":
        return len(first), lambda _: _bases(first)
    if kind == "kmer" and colon:
        length = _number(name, number, 2, LONGEST_KMER, "bases of a token")
        return len(first) + 4**length, lambda _: _kmers(length, first)
    if kind == "dna-bpe" and colon:
        size = _number(name, number, len(first), MOST_PIECES, f"tokens, {len(special)} special ones among them")
        return size, lambda documents: _pairs(size, special, documents)
    return None


def _number(name: str, number: str, least: int, most: int, what: str) -> int:
    """Raises ConfigurationError for a text that is not a whole number within these limits."""
    if not number.isdecimal() or not least <= int(number[:10]) <= most:
        raise ConfigurationError(
            "tokenizer-text",
            f"tokenizer {name!r}: the colon must be followed by a whole number of {what}, from {least} to {most:,}",
        )
    return int(number)


def _bases(first: Sequence[str]) -> Tokenizer:
    """Pairs that are never merged: far faster than to cut a text into words of one letter."""
    return _of_lines(models.BPE(_numbered(first), [], unk_token=first[1]))


def _kmers(length: int, first: Sequence[str]) -> Tokenizer:
    words = ["".join(letters) for letters in product("ACGT", repeat=length)]
    tokenizer = _of_lines(models.WordLevel(_numbered([*first, *words]), unk_token=first[1]))
    runs = pre_tokenizers.Split(Regex(f"[ACGT]{{{length}}}|."), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([tokenizer.pre_tokenizer, runs])
    return tokenizer


def _pairs(size: int, special: Sequence[str], documents: Iterable[str]) -> Tokenizer:
    tokenizer = _of_lines(models.BPE(unk_token=special[1]))
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(special),
        initial_alphabet=list(LETTERS),
        limit_alphabet=len(LETTERS),
        max_token_length=LONGEST_PIECE + 1,  # the library makes shorter ones only
        show_progress=False,
    )
    tokenizer.train_from_iterator(_learned_from(documents), trainer)
    return tokenizer


def _of_lines(model: models.Model) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def _numbered(tokens: Sequence[str]) -> dict[str, int]:
    return {token: number for number, token in enumerate(tokens)}


def _learned_from(documents: Iterable[str]) -> Iterator[str]:
    """Lines of at most so many letters: a merge reads each word through that holds its pair."""
    left = LEARNED_FROM
    for document in documents:
        for line in document.splitlines():
            if left <= 0:
                return
            yield from (line[at : at + _SENTENCE] for at in range(0, len(line), _SENTENCE))
            left -= len(line)
