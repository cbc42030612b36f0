"""The files of a tokenizer, for the imported model, so that AutoTokenizer finds them beside it.

A file may be a link to anything: the snapshots of Hugging Face's cache are links. So nothing is copied unread. Each
file must be what its name says; otherwise a private file of the user could end in a published folder.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerBase
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

from asterism.errors import CheckpointError
from asterism.files import read_bytes, read_json

_CONFIGURATION = "tokenizer_config.json"
_UNKNOWN = frozenset({"[UNK]", "[unk]", "<unk>", "<UNK>"})
_SPECIAL = frozenset(PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES) | {"additional_special_tokens"}
_SETTINGS = _SPECIAL | {
    *("tokenizer_class", "backend", "model_max_length", "model_input_names", "name_or_path", "added_tokens_decoder"),
    *("do_lower_case", "strip_accents", "tokenize_chinese_chars", "add_prefix_space", "clean_up_tokenization_spaces"),
    *("padding_side", "truncation_side", "special_tokens_map_file", "extra_ids", "errors", "trim_offsets"),
}
"""Fields of a tokenizer's configuration, of which one that says anything has some."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
"""How fields of a protocol buffer are written."""

_PIECES = 1
_PARTS = range(_PIECES, 6)
"""The numbers of the fields of a sentencepiece model; the first of a piece is its text."""


def read_tokenizer(folder: Path, model_type: str, length: int | None) -> dict[str, bytes]:
    """The tokenizer's files, by their names, none if there are none.

    `model_type` is of the checkpoint: its tokenizer class is written down where the files do not name one, because
    nothing in the imported model tells it. `length` is written down as the longest input.

    Raises CheckpointError for a file that is not what its name says.
    """
    found = {name: read(folder) for name, read in _FILES.items() if (folder / name).exists()}
    if not found:
        return {}
    settings = read_object(folder / _CONFIGURATION) if (folder / _CONFIGURATION).exists() else {}
    if settings and not _SETTINGS & settings.keys():
        raise _no(folder / _CONFIGURATION, "configuration of a tokenizer: it has none of the fields of one")
    if settings.get("tokenizer_class") is None:
        settings["tokenizer_class"] = TOKENIZER_MAPPING_NAMES[model_type]
    if length is not None:
        settings["model_max_length"] = length
    return found | {_CONFIGURATION: as_json(settings)}


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object of finite numbers. Raises CheckpointError."""
    document = read_json(path)
    if not isinstance(document, dict):
        raise CheckpointError(f"{path} is damaged: it must hold one JSON object")
    try:
        as_json(document)
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error
    return document


def as_json(document: object) -> bytes:
    """A JSON document as a file holds it. Raises ValueError for NaN and infinities."""
    return (json.dumps(document, indent=2, allow_nan=False) + "\n").encode()


def _whole(folder: Path) -> bytes:
    path = folder / "tokenizer.json"
    content = as_json(read_object(path))
    try:
        Tokenizer.from_buffer(content)
    except Exception as error:  # that library has no class of its own for this
        raise _no(path, f"tokenizer: {error}") from error
    return content


def _special_tokens(folder: Path) -> bytes:
    path = folder / "special_tokens_map.json"
    document = read_object(path)
    tokens = [token for value in document.values() for token in (value if isinstance(value, list) else [value])]
    texts = [token.get("content") if isinstance(token, dict) else token for token in tokens]
    known = not document or _SPECIAL & document.keys()
    if not known or not all(name.endswith(("_token", "_tokens")) for name in document) or not _are_texts(texts):
        raise _no(path, "map of special tokens")
    return as_json(document)


def _numbered(name: str) -> Callable[[Path], bytes]:
    return lambda folder: as_json(_numbers(folder / name))


def _numbers(path: Path) -> dict[str, int]:
    document = read_object(path)
    if not all(type(number) is int for number in document.values()):
        raise _no(path, "vocabulary: it must give each token a number")
    return document


def _words(folder: Path) -> bytes:
    """A vocabulary with a token in each line, one of which stands for what is unknown.

    In one of the usual spellings: one that the folder itself names could be a line of any private file.
    """
    path = folder / "vocab.txt"
    if _UNKNOWN.isdisjoint(_text(path).splitlines()):
        raise _no(path, f"vocabulary: none of its lines is a token of unknown words ({', '.join(sorted(_UNKNOWN))})")
    return read_bytes(path)


def _merges(folder: Path) -> bytes:
    """Pairs of tokens, each of which makes a token of vocab.json."""
    path = folder / "merges.txt"
    lines = [line.removesuffix("\r") for line in _text(path).split("\n")]
    pairs: Any = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    vocabulary = _numbers(folder / "vocab.json")
    try:
        models.BPE(vocabulary, pairs)
    except Exception as error:  # that library has no class of its own for this
        raise _no(path, "list of merges of the tokens in vocab.json") from error
    return read_bytes(path)


def _pieces(name: str) -> Callable[[Path], bytes]:
    """A model of sentencepiece: a protocol buffer whose first field is a piece, many times."""

    def read(folder: Path) -> bytes:
        content = read_bytes(folder / name)
        try:
            fields = list(_fields(memoryview(content)))
            pieces = [value for number, value in fields if number == _PIECES]
            texts = [str(dict(_fields(piece))[1], "utf-8") for piece in pieces]
        except (ValueError, IndexError, KeyError, TypeError):
            texts = []
        if not any(texts) or not all(number in _PARTS for number, _ in fields):
            raise _no(folder / name, "model of sentencepiece")
        return content

    return read


def _fields(content: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The fields of a message, as their numbers and contents. Raises ValueError or IndexError for what is none."""
    place = 0

    def varint() -> int:
        nonlocal place
        number = shift = 0
        while True:
            byte = content[place]
            place, number, shift = place + 1, number | (byte & 127) << shift, shift + 7
            if byte < 128:
                return number
            if shift > 63:
                raise ValueError

    while place < len(content):
        key = varint()
        kind, start = key & 7, place
        if kind == _VARINT:
            varint()
        elif kind in (_FIXED32, _FIXED64):
            place += 4 if kind == _FIXED32 else 8
        elif kind == _BYTES:
            size = varint()
            start, place = place, place + size
        else:
            raise ValueError
        if place > len(content):
            raise ValueError
        yield key >> 3, content[start:place]


def _text(path: Path) -> str:
    try:
        return read_bytes(path).decode()
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error


def _are_texts(values: list[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def _no(path: Path, what: str) -> CheckpointError:
    return CheckpointError(f"{path} is damaged: it is no {' '.join(what.split())}")


_FILES: Mapping[str, Callable[[Path], bytes]] = {
    "tokenizer.json": _whole,
    "vocab.txt": _words,
    "vocab.json": _numbered("vocab.json"),
    "merges.txt": _merges,
    "spiece.model": _pieces("spiece.model"),
    "sentencepiece.bpe.model": _pieces("sentencepiece.bpe.model"),
    "special_tokens_map.json": _special_tokens,
    "added_tokens.json": _numbered("added_tokens.json"),
}
"""What a tokenizer is kept in, and how each file is read."""
