"""Runs that begin with a model that is there: one of ours, imported or trained before, whose folder is named `start`.

Its shape, its weights and its tokenizer take the place of those that the configuration would give. A run that goes on
has a model of its own and no longer needs the one it began with.
"""

from dataclasses import replace
from pathlib import Path

from asterism.errors import CheckpointError, ConfigurationError
from asterism.files import DAMAGED, read_json
from asterism.models import AsterismConfig, AsterismForMaskedLM, AsterismForPreTraining
from asterism.models.importing.checkpoint import ARCHITECTURES
from asterism.training.data.tokenization import Vocabulary
from asterism.training.run.configuration import RunConfig
from asterism.training.run.folder import model_folder

UNUSED = ("pooler.", "next_sentence.")
"""What the tensors begin with that a start may have and the run's model may lack."""


def start_folder(config: RunConfig) -> Path | None:
    """Where the model is that the run begins with; None if it begins with a new one. Raises CheckpointError."""
    return None if config.start is None else model_folder(config.start, "start")


def tokenizer_name(config: RunConfig) -> str:
    """What `tokenization` calls the run's tokenizer. Raises CheckpointError for a start that is no model."""
    folder = start_folder(config)
    return config.tokenizer if folder is None else str(folder)


def going_on(config: RunConfig, weights: Path) -> RunConfig:
    """The configuration with which a run goes on from weights of its own: those, if it began with others."""
    return config if config.start is None else replace(config, start=str(weights))


def start_config(config: RunConfig, folder: Path, kind: str, tokens: Vocabulary) -> AsterismConfig:
    """The configuration of the model in a folder, from which a run of a model of class `kind` begins.

    Raises CheckpointError for a model of another class, ConfigurationError for one that the run has no use for.
    """
    document = read_json(folder / "config.json")
    model_type = document.get("model_type") if isinstance(document, dict) else None
    if model_type != AsterismConfig.model_type:
        remedy = ": `asterism import` makes one of ours of it" if model_type in ARCHITECTURES else ""
        raise CheckpointError(f"start: {folder} is a model of type {model_type!r}, not one of ours{remedy}")
    try:
        shape = AsterismConfig.from_dict({**document, "dtype": "float32"})
    except DAMAGED as error:
        raise CheckpointError(f"start: {folder / 'config.json'} is damaged: {' '.join(str(error).split())}") from error
    kinds = {kind, AsterismForPreTraining.__name__} if kind == AsterismForMaskedLM.__name__ else {kind}
    if not kinds & set(shape.architectures or ()):
        raise CheckpointError(
            f"start: {folder} holds an {', '.join(shape.architectures or ['unnamed model'])};"
            f" objective {config.objective}{' with next_sentence' if config.next_sentence else ''} trains an {kind}"
        )
    if config.objective == "causal" and shape.vocab_size != tokens.size:
        raise ConfigurationError(
            f"start: objective causal predicts {tokens.size} bytes, {folder} has a vocabulary of {shape.vocab_size:,}"
        )
    if shape.vocab_size < tokens.size:
        raise ConfigurationError(
            f"start: the tokenizer in {folder} has {tokens.size:,} tokens, the model embeds {shape.vocab_size:,}"
        )
    if shape.positions_end and shape.max_position_embeddings < config.context:
        raise ConfigurationError(
            f"start: {folder} reads {shape.max_position_embeddings:,} tokens, too few for context={config.context:,};"
            " give a shorter context, or a model that was imported with a greater --length"
        )
    if config.next_sentence and shape.type_vocab_size < 2:
        raise ConfigurationError(f"start: next_sentence needs two token types, {folder} has {shape.type_vocab_size}")
    return shape
