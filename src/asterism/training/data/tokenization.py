"""Tokenizers of a run: any Hugging Face tokenizer from a folder, or one made on the spot with the `tokenizers` library.

    bytes         a token for each byte
    bpe:8000      byte-level BPE with 8,000 tokens, trained on the training split
    unigram:8000  a unigram model over bytes, likewise
    PATH          a folder with a Hugging Face tokenizer that has mask, separator, class and padding tokens

Those made here know the special tokens of BERT, have a token for every byte, so that no text is unknown to them, and
are functions of the training split.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from asterism.errors import ConfigurationError, DataError
from asterism.files import DAMAGED, LOCAL, why_unread

SPECIAL_TOKENS = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
_REQUIRED = ("mask_token", "sep_token", "cls_token", "pad_token")
_SMALLEST = 256 + len(SPECIAL_TOKENS)
_PIECE = 1 << 20
"""Characters that a tokenizer is given at once: it needs many times their memory."""


@dataclass(frozen=True)
class Vocabulary:
    """What a model must know of its tokenizer: how many tokens it has at most, and which one pads, if any.

    `tokenizer` is there already if it comes from a folder, `name` says how to make it if not.
    """

    size: int
    padding: int | None
    name: str = "bytes"
    tokenizer: PreTrainedTokenizerBase | None = None

    def made(self, documents: Iterable[str], context: int) -> PreTrainedTokenizerBase:
        """The tokenizer, trained on `documents` if it is to be trained, for sequences of `context` tokens."""
        return self.tokenizer or _make_tokenizer(self.name, documents, context)


def vocabulary(name: str) -> Vocabulary:
    """That of the tokenizer called `name`; nothing is trained to find out.

    Raises ConfigurationError for a size below that of the byte vocabulary, DataError for a folder without a tokenizer.
    """
    kind, size = _kind_and_size(name)
    if kind is not None:
        return Vocabulary(size, list(SPECIAL_TOKENS).index("pad_token"), name)
    tokenizer = load_tokenizer(name)
    return Vocabulary(len(tokenizer), tokenizer.pad_token_id, name, tokenizer)


def make_tokenizer(name: str, documents: Iterable[str], context: int) -> PreTrainedTokenizerBase:
    """The tokenizer called `name`, as `Vocabulary.made` gives it. Raises what `vocabulary` raises."""
    return vocabulary(name).made(documents, context)


def _make_tokenizer(name: str, documents: Iterable[str], context: int) -> PreTrainedTokenizerBase:
    kind, size = _kind_and_size(name)
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
        tokenizer.train_from_iterator(pieces(documents), trainer)
    if kind == "unigram":
        tokenizer.model = _settled(tokenizer)
    numbers = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    # A token carries the space before it, so a mask takes that of its place along; a byte stands alone.
    mask = AddedToken(SPECIAL_TOKENS["mask_token"], lstrip=kind != "bytes", special=True)
    tokenizer.add_special_tokens([*special[:-1], mask])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=numbers
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=context,
        clean_up_tokenization_spaces=False,
        **SPECIAL_TOKENS | {"mask_token": mask},
    )


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


def load_tokenizer(folder: str | Path) -> PreTrainedTokenizerBase:
    """The Hugging Face tokenizer in a folder. Raises DataError if there is none, or one that cannot mask."""
    if not Path(folder).is_dir():
        raise DataError(
            f"tokenizer: there is no folder {folder}; give the folder of a tokenizer, bytes, bpe:SIZE or unigram:SIZE"
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, **LOCAL)
    except (OSError, ImportError, *DAMAGED) as error:
        raise DataError(f"tokenizer: {folder} holds none that can be read: {why_unread(error)}") from error
    if lacking := [name for name in _REQUIRED if getattr(tokenizer, name) is None]:
        raise DataError(f"tokenizer: that in {folder} has no {', no '.join(lacking)}, which masking needs")
    return tokenizer


def encode(tokenizer: PreTrainedTokenizerBase, documents: Iterable[str]) -> list[np.ndarray]:
    """The tokens of each document, int32 [tokens], none of them special: "[MASK]" in a text is six characters."""
    encoded = []
    for document in documents:
        parts = tokenizer(
            list(pieces([document])),
            add_special_tokens=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            split_special_tokens=True,
            verbose=False,
        )["input_ids"]
        encoded.append(np.array([token for part in parts for token in part], dtype=np.int32))
    return encoded


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


def _kind_and_size(name: str) -> tuple[str | None, int]:
    """("bytes", "bpe" or "unigram", vocabulary); (None, 0) for the name of a folder."""
    kind, colon, size = name.partition(":")
    if name == "bytes":
        return kind, _SMALLEST
    if kind not in ("bpe", "unigram") or not colon:
        return None, 0
    if not size.isdecimal() or int(size) < _SMALLEST:
        raise ConfigurationError(
            f"tokenizer {name!r}: the size must be a whole number of at least {_SMALLEST},"
            f" a token for every byte and {len(SPECIAL_TOKENS)} special ones"
        )
    return kind, int(size)
