"""Encoders to fine-tune: a folder with a model and a fast tokenizer that transformers can read, our own or another's.

Nothing is downloaded and no pickle is read. Weights that the folder does not have are drawn anew only where the task
puts something new on top; an encoder that is not whole is refused.
"""

from collections.abc import Iterable
from pathlib import Path

import transformers
from safetensors import SafetensorError
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

import asterism.models  # noqa: F401  registers our models with the Auto classes
from asterism.errors import AsterismError, CheckpointError, ConfigurationError
from asterism.training.folder import RunFolder
from asterism.training.tasks import Task

TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model", "spiece.model", "spm.model")
"""One of them holds the vocabulary. Without any, transformers makes a tokenizer that knows no word at all."""


def load_tokenizer(path: str) -> tuple[PreTrainedTokenizerFast, PreTrainedConfig]:
    """The tokenizer of a model folder, or of a run's finished model, and the configuration of its model.

    It gives no token types to a model that knows none.

    Raises CheckpointError if the folder does not have both, ConfigurationError for a tokenizer without offsets.
    """
    folder = _model_folder(path)
    if not any((folder / name).exists() for name in TOKENIZER_FILES):
        raise CheckpointError(f"model: {folder} holds no tokenizer; put there the one that the model was trained with")
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, config=config)
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"model: {folder} holds no model and tokenizer that can be read: {_one_line(error)}"
        ) from error
    if not tokenizer.is_fast:
        raise ConfigurationError(f"model: {folder} has no fast tokenizer, which says where in the text its tokens are")
    if getattr(config, "type_vocab_size", 0) < 2:
        tokenizer.model_input_names = [name for name in tokenizer.model_input_names if name != "token_type_ids"]
    return tokenizer, config


def load_encoder(path: str, task: Task, vocabulary: int, *, fresh: bool) -> PreTrainedModel:
    """The model of a folder in float32, with what the task needs on top; `fresh` draws all of its weights anew.

    New weights come from torch's global generator. Raises CheckpointError for weights that are missing, damaged or
    pickled, ConfigurationError for a tokenizer of `vocabulary` tokens that the model has no embeddings for and
    for a choice of the task that its kind of model does not leave.
    """
    folder = _model_folder(path)
    architecture = getattr(transformers, task.architecture)
    try:
        fields = task.model_fields()
        config = AutoConfig.from_pretrained(folder, local_files_only=True, **fields)
        _refuse_unknown_fields(folder, config, fields)
        if fresh:
            model = architecture.from_config(config)
        else:
            model, found = architecture.from_pretrained(
                folder,
                config=config,
                local_files_only=True,
                use_safetensors=True,
                dtype="float32",
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
            _refuse_incomplete(folder, model, found)
    except AsterismError:
        raise
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(f"model: {folder} cannot be read for this task: {_one_line(error)}") from error
    rows = model.get_input_embeddings().num_embeddings
    if vocabulary > rows:
        raise ConfigurationError(
            f"model: the tokenizer in {folder} has {vocabulary:,} tokens, the model's embedding has rows for {rows:,};"
            " give the model the tokenizer that it was trained with"
        )
    return model


def longest(config: PreTrainedConfig) -> int | None:
    """How many tokens a model was made for, or None if its configuration does not say.

    RoBERTa and its kin count positions from the one after padding's.
    """
    positions = getattr(config, "max_position_embeddings", None)
    if positions is None or positions < 1:
        return None
    counts_from_padding = config.model_type in ("roberta", "xlm-roberta", "camembert", "longformer", "mpnet")
    return positions - config.pad_token_id - 1 if counts_from_padding else positions


def _model_folder(path: str) -> Path:
    folder = Path(path)
    if (folder / "run.json").exists():
        return RunFolder(folder).weights()
    if not (folder / "config.json").exists():
        raise CheckpointError(f"model: {folder} is no folder of a model or a run: it has no config.json or run.json")
    return folder


def _refuse_unknown_fields(folder: Path, config: PreTrainedConfig, fields: Iterable[str]) -> None:
    """Raises ConfigurationError for a field that this kind of model does not know; transformers passes over it."""
    for name in fields:
        if not hasattr(config, name):
            raise ConfigurationError(f"model: the {config.model_type} model in {folder} leaves no choice of {name}")


def _refuse_incomplete(folder: Path, model: PreTrainedModel, found: dict) -> None:
    """Raises CheckpointError if weights of the encoder are missing or of another shape; a pooler may be missing."""
    body = f"{model.base_model_prefix}."
    missing = [name for name in found["missing_keys"] if name.startswith(body) and "pooler" not in name]
    wrong = [name for name, *_ in found["mismatched_keys"] if name.startswith(body)]
    for what, names in (("lacks", missing), ("has another shape of", wrong)):
        if names:
            rest = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
            raise CheckpointError(f"model: {folder} {what} the encoder's tensor {min(names)}{rest}")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
