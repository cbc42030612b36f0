"""Models to fine-tune, encoders and encoder-decoders: folders that transformers can read, our own or another's.

A folder holds a model and a fast tokenizer. Nothing is downloaded and no pickle is read. Missing weights are drawn only
for the layers that the task puts on top, and their names are reported. A model that is incomplete, or has more weights
than its configuration describes, is refused.
"""

from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from asterism.errors import AsterismError, CheckpointError, ConfigurationError
from asterism.files import DAMAGED, LOCAL, why_unread
from asterism.models import AsterismConfig  # registers our models with the Auto classes
from asterism.shape import check_values
from asterism.training.data.corpora.tokenization import has_tokenizer, is_of_values, value_tokenizer
from asterism.training.tasks.answers import Answers, WrittenAnswers


def load_tokenizer(folder: Path) -> tuple[PreTrainedTokenizerFast, PreTrainedConfig]:
    """The tokenizer of a model folder, and the configuration of its model.

    The tokenizer makes no token types if the model has none.

    Raises CheckpointError if the folder does not have both. Raises ConfigurationError for a tokenizer without offsets,
    and for an impossible field of one of our models.
    """
    if not has_tokenizer(folder):
        raise CheckpointError(
            "tokenizer-missing",
            f"model: {folder} holds no tokenizer; add the one that the model was trained with",
        )
    try:
        config = AutoConfig.from_pretrained(folder, **LOCAL)
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, **LOCAL, config=config)
    except (OSError, *DAMAGED) as error:
        raise CheckpointError(
            "unreadable-model", f"model: {folder} holds no readable model and tokenizer: {why_unread(error)}"
        ) from error
    if isinstance(config, AsterismConfig):
        check_values(vars(config))  # a configuration of ours loads with any values
    if not tokenizer.is_fast:
        raise ConfigurationError(
            "slow-tokenizer", f"model: {folder} has no fast tokenizer, which is needed to locate tokens in the text"
        )
    if getattr(config, "type_vocab_size", 0) < 2:
        tokenizer.model_input_names = [name for name in tokenizer.model_input_names if name != "token_type_ids"]
    return tokenizer, config


def load_values(folder: Path) -> tuple[PreTrainedTokenizerFast, PreTrainedConfig]:
    """The tokenizer of 8-bit values, and the configuration of the model in a folder that will read them.

    Raises CheckpointError for a model that cannot be read, and ConfigurationError for one that reads the tokens of text
    or has too few embeddings.
    """
    if has_tokenizer(folder):
        tokenizer, config = load_tokenizer(folder)
        if not is_of_values(tokenizer):
            raise ConfigurationError(
                "tokenizer-unwanted",
                f"model: {folder} has a tokenizer, so its tokens are not the values of a modality; leave modality"
                " out, or give a model without a tokenizer",
            )
        return tokenizer, config
    with _readable(folder):
        config = AutoConfig.from_pretrained(folder, **LOCAL)
    return value_tokenizer(), config


def model_shape(folder: Path, answers: Answers[Any]) -> PreTrainedConfig:
    """The configuration of the model in a folder, for weights in float32, with what the answers decide in it.

    Raises CheckpointError, and ConfigurationError for a setting that this kind of model does not have.
    """
    fields = answers.model_fields()
    with _readable(folder):
        shape: PreTrainedConfig = AutoConfig.from_pretrained(folder, **LOCAL, **fields)
    for name in fields:
        # transformers ignores fields that a kind of model does not have
        if not hasattr(shape, name):
            raise ConfigurationError(
                "no-such-choice", f"model: the {shape.model_type} model in {folder} has no setting {name}"
            )
    return shape


def new_model(shape: PreTrainedConfig, answers: Answers[Any]) -> PreTrainedModel:
    """A model that gives such answers, in float32, with new weights from torch's global generator."""
    model: PreTrainedModel = getattr(transformers, answers.architecture).from_config(shape, dtype=torch.float32)
    return model


def load_model(folder: Path, shape: PreTrainedConfig, answers: Answers[Any]) -> tuple[PreTrainedModel, list[str]]:
    """Load the model of a folder in float32, with the output layers of the task, and return the names of new parts.

    `shape` is that of `model_shape`. A model that writes has all of its weights already. An output layer for labels is
    new unless the folder's has the same labels in the same order. New weights come from torch's global generator.

    Raises CheckpointError for weights that are missing, left over, damaged or pickled.
    """
    refuse_pickle(folder)
    with _readable(folder):
        before = labels_of(AutoConfig.from_pretrained(folder, **LOCAL))
        model, found = getattr(transformers, answers.architecture).from_pretrained(
            folder,
            config=shape,
            **LOCAL,
            use_safetensors=True,
            dtype="float32",
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
        (_refuse_changes if isinstance(answers, WrittenAnswers) else _refuse_incomplete)(folder, model, found)
        new = [*found["missing_keys"], *(name for name, *_ in found["mismatched_keys"])]
        if "id2label" in answers.model_fields() and labels_of(shape) != before:
            new += _draw_outputs_anew(model, len(labels_of(shape)), drawn=new)
    return model, sorted({name.removeprefix(f"{model.base_model_prefix}.").split(".")[0] for name in new})


def refuse_tokens(model: PreTrainedModel, tokens: int, path: str) -> None:
    """Raises ConfigurationError for a tokenizer of more tokens than the model has embeddings for."""
    embeddings: Any = model.get_input_embeddings()
    rows = embeddings.num_embeddings
    if tokens > rows:
        raise ConfigurationError(
            "vocabulary-differs",
            f"model: the tokenizer in {path} has {tokens:,} tokens, but the model's embedding has {rows:,} rows; give"
            " the model the tokenizer that it was trained with",
        )


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    """Within the body, errors of transformers about an unreadable model folder become a CheckpointError of one line."""
    try:
        yield
    except AsterismError:
        raise
    except (AssertionError, OSError, RuntimeError, SafetensorError, *DAMAGED) as error:
        raise CheckpointError(
            "unreadable-model", f"model: {folder} cannot be read for this task: {why_unread(error)}"
        ) from error


def labels_of(config: PreTrainedConfig) -> list[str]:
    """The labels of a classifier, in the order of its outputs."""
    labels: dict[Any, str] = config.id2label or {}
    return [labels[number] for number in sorted(labels)]


def longest(config: PreTrainedConfig) -> int | None:
    """The most tokens that a model reads, by its configuration, or None if that has no limit.

    RoBERTa and related models count positions from the one after padding's.
    """
    encoder: Any = getattr(config, "encoder", config)
    positions = getattr(encoder, "max_encoder_position_embeddings", getattr(encoder, "max_position_embeddings", None))
    if positions is None or positions < 1:
        return None
    counts_from_padding = config.model_type in ("roberta", "xlm-roberta", "camembert", "longformer", "mpnet")
    if not counts_from_padding:
        return positions
    return None if config.pad_token_id is None else positions - config.pad_token_id - 1


def longest_target(config: PreTrainedConfig) -> int | None:
    """The most tokens of the decoder of an encoder-decoder, by its configuration, or None if that has no limit."""
    decoder: Any = getattr(config, "decoder", config)
    for name in ("decoder_max_position_embeddings", "max_decoder_position_embeddings", "max_position_embeddings"):
        positions: int | None = getattr(decoder, name, None)
        if positions is not None:
            return positions
    return None


def ends(config: PreTrainedConfig) -> bool:
    """Whether the model cannot read more tokens than `longest`. With rotary positions it can."""
    if isinstance(config, AsterismConfig):
        return config.positions_end
    return getattr(config, "rope_parameters", None) is None


def refuse_pickle(folder: Path) -> None:
    """Raises CheckpointError for a model folder whose weights are in no other format."""
    pickles = sorted(path.name for path in folder.glob("pytorch_model*.bin"))
    if pickles and not any(folder.glob("*.safetensors")):
        raise CheckpointError(
            "pickle-only",
            f"model: {folder} has its weights only in a pickle ({pickles[0]}), which can run code when it is read:"
            " save them as safetensors, or import them with `asterism import --allow-pickle`",
        )


def _refuse_incomplete(folder: Path, model: PreTrainedModel, found: Mapping[str, Any]) -> None:
    """Raises CheckpointError if weights of the encoder are missing, left over, or of another shape.

    A pooler may be missing or left over, and so may the head of another task.
    """
    body = f"{model.base_model_prefix}."
    parts = {name for name, _ in model.base_model.named_children()}  # a bare encoder's tensors have no prefix
    buffers = {name.removeprefix(body) for name, _ in model.named_buffers()}
    missing = [name for name in found["missing_keys"] if name.startswith(body)]
    wrong = [name for name, *_ in found["mismatched_keys"] if name.startswith(body)]
    extra = [name for name in found["unexpected_keys"] if name.startswith(body) or name.split(".")[0] in parts]
    extra = [name for name in extra if name.removeprefix(body) not in buffers]
    missing, extra = ([name for name in names if "pooler" not in name] for names in (missing, extra))
    _refuse_tensors(folder, "encoder", missing, wrong, extra)


def _refuse_changes(folder: Path, model: PreTrainedModel, found: Mapping[str, Any]) -> None:
    """Raises CheckpointError if any weight of the model is missing, left over, or of another shape."""
    buffers = {name for name, _ in model.named_buffers()}
    missing = [name for name in found["missing_keys"] if name not in buffers]
    wrong = [name for name, *_ in found["mismatched_keys"]]
    _refuse_tensors(folder, "model", missing, wrong, list(found["unexpected_keys"]))


def _refuse_tensors(folder: Path, whose: str, missing: list[str], wrong: list[str], extra: list[str]) -> None:
    for what, names in (
        ("lacks", missing),
        ("has another shape of", wrong),
        ("has, and its config.json does not know,", extra),
    ):
        if names:
            rest = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
            raise CheckpointError("tensors-differ", f"model: {folder} {what} the {whose}'s tensor {min(names)}{rest}")


def _draw_outputs_anew(model: PreTrainedModel, labels: int, drawn: Container[str]) -> list[str]:
    """Draw the weights of layers on top of the encoder that have an output for each label, unless they are `drawn`.

    Returns the names of the weights.
    """
    names = []
    for name, module in model.named_modules():
        on_top = not name.startswith(f"{model.base_model_prefix}.") and f"{name}.weight" not in drawn
        if on_top and isinstance(module, nn.Linear) and module.out_features == labels:
            module.reset_parameters()
            names.append(f"{name}.weight")
    return names
