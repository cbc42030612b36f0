"""The files of a tokenizer, copied beside the imported model so that AutoTokenizer finds it there."""

import shutil
from pathlib import Path

from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

from asterism.errors import CheckpointError
from asterism.files import read_json, write_json

_CONFIGURATION = "tokenizer_config.json"
_FILES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "special_tokens_map.json",
    "added_tokens.json",
)


def copy_tokenizer(source: Path, target: Path, model_type: str, length: int | None) -> list[str]:
    """Copy the tokenizer's files and return their names, none if there are none.

    `model_type` is of the checkpoint: its tokenizer class is written down where the files do not name one, because
    nothing in the imported model tells it. `length` is written down as the longest input. Raises CheckpointError.
    """
    found = [name for name in _FILES if (source / name).exists()]
    if not found:
        return []
    for name in found:
        shutil.copyfile(source / name, target / name)
    path = source / _CONFIGURATION
    settings = read_json(path) if path.exists() else {}
    if not isinstance(settings, dict):
        raise CheckpointError(f"{path} is damaged: it must hold one JSON object")
    if settings.get("tokenizer_class") is None:
        settings["tokenizer_class"] = TOKENIZER_MAPPING_NAMES[model_type]
    if length is not None:
        settings["model_max_length"] = length
    write_json(target / _CONFIGURATION, settings)
    return [*found, _CONFIGURATION]
