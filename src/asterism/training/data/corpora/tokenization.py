"""Tokenizers of a run: any Hugging Face tokenizer from a folder, or one made on the spot with the `tokenizers` library.

    bytes         a token for each byte
    bpe:8000      byte-level BPE with 8,000 tokens, trained on the training split
    unigram:8000  a unigram model over bytes, likewise
    bases         tokens of DNA, as are kmer:6 and dna-bpe:8000: see `dna_tokens.py`
    PATH          a folder with a Hugging Face tokenizer that has the special tokens which the objective `Needs`

Tokenizers made here have the special tokens of BERT, and are functions of the training split. Those of text have a
token for every byte, so no text is unknown. Pictures, sounds and other sequences of 8-bit values have a separate
tokenizer, `value_tokenizer`.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from asterism.errors import CheckpointError, ConfigurationError, DataError, shown
from asterism.files import DAMAGED, LOCAL, check_model_folder, why_unread
from asterism.training.data.corpora.dna_tokens import LETTERS, MOST_PIECES, Maker, dna_tokenizer
from asterism.training.data.corpora.made_once import made_once

SPECIAL_TOKENS = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model", "spiece.model", "spm.model")
"""One of these files holds the vocabulary."""

VALUES = 256
"""The 8-bit values."""
_SMALLEST = VALUES + len(SPECIAL_TOKENS)
_PIECE = 1 << 20
"""Characters that a tokenizer is given at once: it needs many times their memory."""

_WORD = 1000
"""Letters of a word to learn from: merging inside a word takes time by the square of its length."""

_LONGER = re.compile(rf"(?<!\w)\w{{{_WORD + 1},}}|(?<!\s)\s{{{_WORD + 1},}}|(?<![\w\s])[^\w\s]{{{_WORD + 1},}}")


@dataclass(frozen=True)
class Needs:
    """Which special tokens a kind of learning needs.

    what       what it is called, as in "which masking needs"
    tokens     names that transformers gives special tokens; of each entry one at least
    sentinels  how many of <extra_id_0>, <extra_id_1>, ... (T5)
    """

    what: str
    tokens: tuple[tuple[str, ...], ...]
    sentinels: int = 0


ENDING = Needs("predicting the next token", (("eos_token", "sep_token"),))
MASKING = Needs("masking", (("mask_token",), ("sep_token",), ("cls_token",), ("pad_token",)))


@dataclass(frozen=True)
class Vocabulary:
    """The facts about a tokenizer that a model needs: the most tokens, and the padding token, if there is one.

    `end` is the token that ends a text, `start` the one that a decoder begins with. `tokenizer` is there already if it
    comes from a folder, `name` says how to make it if not, with so many `sentinels`. `is_values` says that there is
    none, because tokens are 8-bit values.
    """

    size: int
    padding: int | None
    name: str = "bytes"
    tokenizer: PreTrainedTokenizerBase | None = None
    end: int | None = None
    start: int | None = None
    sentinels: int = 0
    is_values: bool = False

    def made(self, documents: Iterable[str], context: int) -> PreTrainedTokenizerBase:
        """The tokenizer, trained on `documents` if it is to be trained, for sequences of `context` tokens."""
        if self.tokenizer is not None:
            return self.tokenizer
        name = f"tokenizer {self.name} {context} {self.sentinels}"
        made = partial(_make_tokenizer, self.name, documents, context, self.sentinels)
        return made_once(name, made, lambda tokenizer, folder: tokenizer.save_pretrained(folder), load_tokenizer)


def vocabulary(name: str, needs: Needs = MASKING) -> Vocabulary:
    """The vocabulary of the tokenizer called `name`, found without training.

    Raises ConfigurationError for a size below that of the byte vocabulary, DataError for a folder without a tokenizer,
    or with one that lacks what is needed.
    """
    if (found := _found(name)) is not None:
        padding, end, start = (list(SPECIAL_TOKENS).index(token) for token in ("pad_token", "sep_token", "cls_token"))
        more = needs.sentinels
        return Vocabulary(found[0] + more, padding, name, end=end, start=start, sentinels=more)
    tokenizer = load_tokenizer(name, needs)
    padding = tokenizer.pad_token_id
    start = padding if tokenizer.cls_token_id is None else tokenizer.cls_token_id
    return Vocabulary(len(tokenizer), padding, name, tokenizer, end=end_of(tokenizer), start=start)


def end_of(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The token that ends a text; BERT's kin have a separator for it. None if there is neither."""
    found: int | None = tokenizer.sep_token_id if tokenizer.eos_token_id is None else tokenizer.eos_token_id
    return found


def start_of_text(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The token that a causal model reads before a text; BERT's kin have one for classes there. Where there is neither,
    the token that ends the text before.
    """
    known = (tokenizer.bos_token_id, tokenizer.cls_token_id, end_of(tokenizer))
    found: int | None = next((token for token in known if token is not None), None)
    return found


def sentinel(number: int) -> str:
    """The name of a sentinel, as T5's tokenizer has it."""
    return f"<extra_id_{number}>"


def sentinel_ids(tokenizer: PreTrainedTokenizerBase, count: int) -> np.ndarray:
    """The first so many sentinels of a tokenizer that has them: int64 [count]."""
    return np.array([tokenizer.convert_tokens_to_ids(sentinel(number)) for number in range(count)], dtype=np.int64)


def make_tokenizer(name: str, documents: Iterable[str], context: int) -> PreTrainedTokenizerBase:
    """The tokenizer called `name`, as `Vocabulary.made` gives it. Raises what `vocabulary` raises."""
    return vocabulary(name).made(documents, context)


def _make_tokenizer(name: str, documents: Iterable[str], context: int, sentinels: int) -> PreTrainedTokenizerBase:
    found = _found(name)
    assert found is not None  # `vocabulary` has loaded what is in a folder
    tokenizer, special = found[1](documents), list(SPECIAL_TOKENS.values())
    numbers = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    # A token carries the space before it, so a mask takes that of its place along; a byte or a base stands alone.
    mask = AddedToken(SPECIAL_TOKENS["mask_token"], lstrip=name.startswith(("bpe:", "unigram:")), special=True)
    tokenizer.add_special_tokens([*special[:-1], mask, *map(sentinel, range(sentinels))])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=numbers
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=context,
        clean_up_tokenization_spaces=False,
        **SPECIAL_TOKENS | {"mask_token": mask},
    )


def _of_bytes(kind: str, size: int, documents: Iterable[str]) -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = list(SPECIAL_TOKENS.values())
    settings: dict[str, Any] = {
        "vocab_size": size,
        "special_tokens": special,
        "initial_alphabet": alphabet,
        "show_progress": False,
    }
    trainer: trainers.UnigramTrainer | trainers.BpeTrainer
    if kind == "unigram":
        tokenizer = Tokenizer(models.Unigram())
        trainer = trainers.UnigramTrainer(unk_token="[UNK]", **settings)
    else:
        tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(special + alphabet)}, []))
        trainer = trainers.BpeTrainer(**settings)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if kind != "bytes":
        tokenizer.train_from_iterator(_learned_from(documents), trainer)
    if kind == "unigram":
        tokenizer.model = _settled(tokenizer)
    return tokenizer


def _settled(tokenizer: Tokenizer) -> models.Unigram:
    """The model of a trained unigram tokenizer without the traces of the order in which its library met the tokens.

    That order changes on every run. It shows in the last digits of scores, in the order of equal scores, and in the
    scores of bytes that training left out, which count up from the lowest in steps of 0.0001.
    """
    vocabulary = json.loads(tokenizer.to_str())["model"]["vocab"]
    special, learned = vocabulary[: len(SPECIAL_TOKENS)], vocabulary[len(SPECIAL_TOKENS) :]
    lowest = min(score for _, score in learned)
    added = lowest + 0.0001 * 256
    settled = [(token, round(lowest if len(token) == 1 and score < added else score, 6)) for token, score in learned]
    settled.sort(key=lambda entry: (-entry[1], entry[0]))
    return models.Unigram([(token, score) for token, score in special] + settled, tokenizer.token_to_id("[UNK]"))


def has_tokenizer(folder: Path) -> bool:
    """Whether a model folder holds a vocabulary. Without any, transformers makes a tokenizer with an empty one."""
    return any((folder / name).exists() for name in TOKENIZER_FILES)


def load_tokenizer(folder: str | Path, needs: Needs = MASKING) -> PreTrainedTokenizerBase:
    """The Hugging Face tokenizer in a folder. Raises DataError if there is none, or one that lacks what is needed."""
    if not Path(folder).is_dir():
        raise DataError(
            "missing-tokenizer",
            f"tokenizer: there is no folder {folder}; give the folder of a tokenizer, bytes, bpe:SIZE or unigram:SIZE,"
            " or for DNA bases, kmer:LENGTH or dna-bpe:SIZE",
        )
    try:
        check_model_folder(Path(folder))
        tokenizer = AutoTokenizer.from_pretrained(folder, **LOCAL)
    except (CheckpointError, OSError, ImportError, *DAMAGED) as error:
        raise DataError(
            "unreadable-tokenizer", f"tokenizer: {folder} holds no readable tokenizer: {why_unread(error)}"
        ) from error
    known = tokenizer.get_vocab()
    lacking = [" or ".join(names) for names in needs.tokens if all(getattr(tokenizer, one) is None for one in names)]
    lacking += [name for name in map(sentinel, range(needs.sentinels)) if name not in known][:1]
    if lacking:
        raise DataError(
            "special-tokens-missing",
            f"tokenizer: the one in {folder} has no {', no '.join(lacking)}, which {needs.what} needs",
        )
    return tokenizer


def value_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer whose token v is the value v, written as two hexadecimal digits; it has no special tokens.

    So a model that has learned the density of such sequences reads them as a classifier with the same embedding. Values
    never become text: the folder of a model keeps this tokenizer to say how the model reads. Padding is masked, and a
    model that answers for a row does so by the mean of its tokens.
    """
    tokenizer = Tokenizer(models.WordLevel({f"{value:02x}": value for value in range(VALUES)}, unk_token="00"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)


def is_of_values(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether a tokenizer is one that `value_tokenizer` made."""
    return tokenizer.get_vocab() == {f"{value:02x}": value for value in range(VALUES)}


def is_byte_level(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether a token is a row of bytes, those of white space included."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return backend is not None and isinstance(backend.decoder, decoders.ByteLevel)


def bytes_of_tokens(tokenizer: PreTrainedTokenizerBase) -> np.ndarray | None:
    """The number of bytes of text of each token, int64 [tokens]; special tokens have none.

    None for tokenizers that are neither byte-level nor of DNA, where a base is a byte.
    """
    known = tokenizer.get_vocab()
    special = set(tokenizer.all_special_tokens)
    ordinary = {token: number for token, number in known.items() if token not in special}
    if not is_byte_level(tokenizer) and any(token.strip(LETTERS) for token in ordinary):
        return None
    sizes = np.zeros(max(known.values()) + 1, dtype=np.int64)
    sizes[list(ordinary.values())] = [len(token) for token in ordinary]
    return sizes


def encode(tokenizer: PreTrainedTokenizerBase, documents: Iterable[str]) -> Iterator[np.ndarray]:
    """The tokens of each document, int32 [tokens], none of them special: "[MASK]" in a text is six characters."""
    for document in documents:
        parts = tokenizer(
            list(pieces([document])),
            add_special_tokens=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            split_special_tokens=True,
            verbose=False,
        )["input_ids"]
        yield np.array([token for part in parts for token in part], dtype=np.int32)


def encode_with_ends(tokenizer: PreTrainedTokenizerBase, document: str) -> np.ndarray:
    """How many bytes of a document the text has up to the end of each of the tokens of `encode`: int64 [tokens].

    The last token ends with the document. Needs a fast tokenizer.
    """
    found: list[np.ndarray] = []
    before = 0
    for piece in pieces([document]):
        letters = np.frombuffer(piece.encode("utf-32-le"), dtype=np.uint32)
        sizes = 1 + (letters >= 0x80) + (letters >= 0x800) + (letters >= 0x10000)
        until = np.concatenate([[0], np.cumsum(sizes)]) + before
        spans = tokenizer(
            piece,
            add_special_tokens=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            return_offsets_mapping=True,
            split_special_tokens=True,
            verbose=False,
        )["offset_mapping"]
        found.append(until[np.array([end for _, end in spans], dtype=np.int64)])
        before = int(until[-1])
    ends = np.maximum.accumulate(np.concatenate(found))
    ends[-1:] = before
    return ends


def pieces(documents: Iterable[str]) -> Iterator[str]:
    """The documents, those that are too long for a tokenizer cut behind a line end, or anywhere if need be."""
    for document in documents:
        start = 0
        while len(document) - start > _PIECE:
            end = document.rfind("\n", start, start + _PIECE) + 1
            end = end if end > start else start + _PIECE
            yield document[start:end]
            start = end
        yield document[start:]


def _learned_from(documents: Iterable[str]) -> Iterator[str]:
    """Pieces of the documents, cut inside words and white space that are longer than any of a text."""
    for piece in pieces(documents):
        start = 0
        for run in _LONGER.finditer(piece):
            for end in range(run.start() + _WORD, run.end(), _WORD):
                yield piece[start:end]
                start = end
        yield piece[start:]


def _found(name: str) -> tuple[int, Maker] | None:
    """How many tokens the tokenizer called `name` has at most, and its maker; None for the name of a folder."""
    kind, colon, size = name.partition(":")
    if name == "bytes":
        return _SMALLEST, lambda documents: _of_bytes(kind, _SMALLEST, documents)
    if kind not in ("bpe", "unigram") or not colon:
        return dna_tokenizer(name, list(SPECIAL_TOKENS.values()))
    if not size.isdecimal() or not _SMALLEST <= int(size[:10]) <= MOST_PIECES:
        raise ConfigurationError(
            "tokenizer-size",
            f"tokenizer {shown(name)}: the size must be a whole number of at least {_SMALLEST}, a token for every byte"
            f" and {len(SPECIAL_TOKENS)} special ones, and at most {MOST_PIECES:,}",
        )
    return int(size), lambda documents: _of_bytes(kind, int(size), documents)
