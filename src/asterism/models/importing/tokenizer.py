"""The files of a tokenizer, for the imported model, so that AutoTokenizer finds them beside it.

A file may be a link to anything: the snapshots of Hugging Face's cache are links. So nothing is copied unread. Each
file must be what its name says, and of JSON only the fields that a tokenizer reads are written; otherwise a private
file of the user could end in a published folder.
"""

import json
import re
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
_SPECIAL = frozenset(PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES) | {
    *("additional_special_tokens", "extra_special_tokens"),
}
_TELLING = _SPECIAL | {
    *("tokenizer_class", "model_max_length", "model_input_names", "added_tokens_decoder", "special_tokens_map_file"),
    *("do_lower_case", "strip_accents", "tokenize_chinese_chars", "add_prefix_space", "clean_up_tokenization_spaces"),
    *("padding_side", "truncation_side", "trim_offsets"),
}
"""Fields of a tokenizer's configuration that nothing else has: one that says anything has some."""

_PLAIN = (_TELLING - _SPECIAL - {"added_tokens_decoder", "special_tokens_map_file"}) | {
    *(
        "backend",
        "max_len",
        "do_basic_tokenize",
        "never_split",
        "split_special_tokens",
        "errors",
        "extra_ids",
        "offset",
    ),
    *("spaces_between_special_tokens", "keep_accents", "remove_space", "legacy", "add_bos_token", "add_eos_token"),
    *("use_fast", "max_length", "stride", "truncation_strategy", "pad_to_multiple_of", "pad_token_type_id"),
    *("chat_template", "src_lang", "tgt_lang", "mask_token_sent"),
}
"""Fields that hold a number or a text."""

_LISTS = frozenset({"model_input_names", "never_split"})
"""Fields that may hold a list of them."""

_FLAGS = ("lstrip", "rstrip", "normalized", "single_word", "special")
"""What a token's record says beside its text and its type."""

_IN_BRACKETS = re.compile(r"<.*>|\[.*\]|\{.*\}|madeupword\d+", re.DOTALL)
"""How tokens are written that are no part of a text."""

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
    if settings and not _TELLING & settings.keys():
        raise _no(folder / _CONFIGURATION, "configuration of a tokenizer: it has none of the fields of one")
    settings = _known_settings(settings, _vocabulary(folder))
    if settings.get("tokenizer_class") is None:
        settings["tokenizer_class"] = TOKENIZER_MAPPING_NAMES[model_type]
    if length is not None:
        settings["model_max_length"] = length
    return found | {_CONFIGURATION: as_json(settings)}


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object of finite numbers. Raises CheckpointError."""
    document = read_json(path)
    if not isinstance(document, dict):
        raise CheckpointError("not-a-json-object", f"{path} is damaged: it must hold one JSON object")
    try:
        as_json(document)
    except ValueError as error:
        raise CheckpointError("damaged-file", f"{path} is damaged: {error}") from error
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
    tokens = {name: _token(value) for name, value in document.items()}
    known = not document or _SPECIAL & document.keys()
    if not known or not all(name.endswith(("_token", "_tokens")) for name in document) or None in tokens.values():
        raise _no(path, "map of special tokens")
    return as_json(_named_tokens(document, _vocabulary(folder)))


def _known_settings(settings: Mapping[str, Any], vocabulary: Mapping[str, int]) -> dict[str, Any]:
    """The fields of a configuration that tokenizers read, in their order: what else stands there may be anything."""
    tokens = _named_tokens(settings, vocabulary)
    known = {}
    for name, value in settings.items():
        if name in tokens:
            known[name] = tokens[name]
        elif name in _PLAIN and all(map(_is_plain, value if name in _LISTS and isinstance(value, list) else [value])):
            known[name] = value
        elif name == "sp_model_kwargs" and isinstance(value, dict):
            known[name] = {key: one for key, one in value.items() if _is_plain(one)}
        elif name == "model_specific_special_tokens" and isinstance(value, dict):
            known[name] = _named_tokens(value, vocabulary)
        elif name == "added_tokens_decoder" and isinstance(value, dict):
            added = {number: _token(one) for number, one in value.items() if number.isdecimal()}
            known[name] = {number: one for number, one in added.items() if one is not None}
    return known


def _named_tokens(document: Mapping[str, Any], vocabulary: Mapping[str, int]) -> dict[str, Any]:
    """The special tokens by their names: those that every tokenizer may have, and others that are tokens of this one,
    or written as such. Names alone say little: there are refresh_token and access_token, too."""
    found = {}
    for name, value in document.items():
        token = _token(value) if name in _SPECIAL or name.endswith(("_token", "_tokens")) else None
        if token is not None and (name in _SPECIAL or all(_is_token(one, vocabulary) for one in _texts(token))):
            found[name] = token
    if isinstance(document.get("extra_special_tokens"), dict):
        found["extra_special_tokens"] = _named_tokens(document["extra_special_tokens"], vocabulary)
    return found


def _token(value: Any) -> Any:
    """A token, its record, or a list of such, less what no tokenizer reads; None for anything else."""
    match value:
        case str():
            return value
        case {"content": str() as text}:
            flags = {name: value[name] for name in _FLAGS if type(value.get(name)) is bool}
            return {"content": text, **flags} | ({"__type": "AddedToken"} if "__type" in value else {})
        case list():
            tokens = [_token(one) for one in value]
            return None if None in tokens else tokens
        case _:
            return None


def _texts(token: Any) -> list[str]:
    if isinstance(token, list):
        return [text for one in token for text in _texts(one)]
    return [token["content"] if isinstance(token, dict) else token]


def _is_token(text: str, vocabulary: Mapping[str, int]) -> bool:
    return text in vocabulary or _IN_BRACKETS.fullmatch(text) is not None


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, str | int | float)


def _vocabulary(folder: Path) -> Mapping[str, int]:
    """The tokens of tokenizer.json and their numbers; none where there is no such file."""
    if not (folder / "tokenizer.json").exists():
        return {}
    return Tokenizer.from_buffer(_whole(folder)).get_vocab()


def _numbered(folder: Path) -> bytes:
    """Tokens by their numbers, each another one, from 0; among them one that is written as special tokens are."""
    path = folder / "vocab.json"
    numbers = _numbers(path)
    if set(numbers.values()) != set(range(len(numbers))) or not any(map(_IN_BRACKETS.fullmatch, numbers)):
        raise _no(path, "vocabulary: it must number its tokens from 0, and one of them must be written in brackets")
    return as_json(numbers)


def _added(folder: Path) -> bytes:
    path, vocabulary = folder / "added_tokens.json", _vocabulary(folder)
    numbers = _numbers(path)
    if not all(vocabulary.get(text) == number or _IN_BRACKETS.fullmatch(text) for text, number in numbers.items()):
        raise _no(path, "list of added tokens: tokenizer.json must have them, or they must be written in brackets")
    return as_json(numbers)


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
        raise CheckpointError("damaged-file", f"{path} is damaged: {error}") from error


def _no(path: Path, what: str) -> CheckpointError:
    return CheckpointError("damaged-file", f"{path} is damaged: it must hold a {' '.join(what.split())}")


_FILES: Mapping[str, Callable[[Path], bytes]] = {
    "tokenizer.json": _whole,
    "vocab.txt": _words,
    "vocab.json": _numbered,
    "merges.txt": _merges,
    "spiece.model": _pieces("spiece.model"),
    "sentencepiece.bpe.model": _pieces("sentencepiece.bpe.model"),
    "special_tokens_map.json": _special_tokens,
    "added_tokens.json": _added,
}
"""What a tokenizer is kept in, and how each file is read."""
