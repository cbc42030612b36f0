"""The common part of objectives that train a model of ours on text or bytes: from a `RunConfig` to a `Setup`.

A run begins with a new model, or with one that was imported or trained before, in the folder `init_from`. The
shape, weights and tokenizer of that model replace those of the configuration. A resumed run reads its newest
checkpoint, and no longer needs the model with which it began.
"""

from abc import abstractmethod
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel

from asterism.errors import CheckpointError, ConfigurationError
from asterism.files import read_json
from asterism.models import AsterismConfig, AsterismForMaskedLM, AsterismForPreTraining
from asterism.models.importing.checkpoint import ARCHITECTURES
from asterism.training.data.corpora.tokenization import Vocabulary, start_of_text
from asterism.training.objectives.footprint import require_memory, require_memory_to_load
from asterism.training.run.checkpoint import load_weights
from asterism.training.run.folder import model_folder
from asterism.training.run.objective import Data, Objective
from asterism.training.run.setup import Setup, read_shape
from asterism.training.settings.budget import Budget
from asterism.training.settings.configuration import RunConfig

UNUSED = ("pooler.", "next_sentence.")
"""Prefixes of the tensors that the first model may have and the run's model may lack."""


class Pretraining(Objective[Data]):
    """An objective whose runs have a `RunConfig`.

    model_shifts  whether the model shifts labels itself, as those of transformers do
    """

    config: RunConfig
    model_shifts: bool = False

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.units_per_step = config.batch_size * config.context

    @property
    def longest(self) -> tuple[int, ...]:
        """All rows have one length."""
        return (self.config.context,)

    # --- what each of them says -------------------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def vocabulary(cls, config: RunConfig, source: Path | None) -> Vocabulary:
        """The vocabulary of the configuration's tokenizer, or of the one in `source`, found without training."""

    @classmethod
    @abstractmethod
    def model_class(cls, config: RunConfig) -> type[PreTrainedModel]:
        """The class of the run's model: the head that the objective needs."""

    @classmethod
    @abstractmethod
    def blank_batch(cls, config: RunConfig, sequences: int) -> dict[str, torch.Tensor]:
        """A batch of this many sequences, shaped like those of `batch`, all zeros: int64 [sequences, ...] each."""

    @classmethod
    @abstractmethod
    def prepare(cls, config: RunConfig, vocabulary: Vocabulary) -> tuple["Pretraining[Data]", Data]:
        """The objective, and the data of the run. Raises DataError for data that cannot be used."""

    @classmethod
    def refuse_start(cls, config: RunConfig, size: int, vocabulary: Vocabulary, folder: Path) -> None:
        """Raises ConfigurationError for a model in `folder` whose embedding, of `size` tokens, does not fit."""
        if size < vocabulary.size:
            raise ConfigurationError(
                "vocabulary-differs",
                f"init_from: the tokenizer in {folder} has {vocabulary.size:,} tokens, but the model embeds {size:,}",
            )

    @classmethod
    def counts_in(cls, vocabulary: Vocabulary) -> str:
        """The unit in which a run with this vocabulary counts what it reads."""
        return cls.unit

    # --- what is the same for all -----------------------------------------------------------------------------------

    def facts(self, corpus: Data, steps: int) -> dict[str, Any]:
        return {f"{self.unit}_trained": steps * self.units_per_step}

    def reported(self, budget: Budget, scored: int, whole: int, unit: str) -> list[str]:
        """A note if the final report covers less than the whole validation split."""
        if budget.spread or scored == whole:
            return []
        return [
            f"the report is of {scored:,} of {whole:,} {unit} of the validation split, from its beginning:"
            f" report_bytes={self.config.report_bytes} sets how many"
        ]

    @classmethod
    def resolve(cls, config: RunConfig, own: Path | None) -> Setup:
        """Shape and tokenizer are decided, and impossible settings refused, before data are read."""
        source, vocabulary, shape = cls.foundations(config, own)
        notes = require_memory(config, cls, shape)
        objective, corpus = cls.prepare(config, vocabulary)
        objective.model_shifts = not isinstance(shape, AsterismConfig)
        objective.notes = (*objective.notes, *corpus.notes, *notes)
        return Setup(
            asked=config,
            shape=shape,
            corpus=corpus,
            init_from=None if own is not None else source,
            objective=objective,
        )

    @classmethod
    def foundations(
        cls, config: RunConfig, own: Path | None = None
    ) -> tuple[Path | None, Vocabulary, PreTrainedConfig]:
        """The folder of the existing model, if there is one; the vocabulary; and the model's configuration."""
        source = own
        if own is None and config.init_from is not None:
            source = model_folder(config.init_from, "init_from")
            require_memory_to_load(source, "init_from: ")
        vocabulary = cls.vocabulary(config, source)
        if own is not None:
            return own, vocabulary, read_shape(own)
        if source is not None:
            return source, vocabulary, cls._initial_shape(config, source, vocabulary)
        writes = issubclass(cls.model_class(config), GenerationMixin)
        return None, vocabulary, _new_shape(config, vocabulary, writes)

    def new_model(self, shape: PreTrainedConfig) -> PreTrainedModel:
        return self.model_class(self.config)(shape)

    def initial_model(self, shape: PreTrainedConfig, init_from: Path | None) -> tuple[PreTrainedModel, list[str]]:
        model = self.new_model(shape)
        if init_from is not None:
            load_weights(init_from, model, unused=UNUSED)
        return model, []

    @classmethod
    def _initial_shape(cls, config: RunConfig, folder: Path, vocabulary: Vocabulary) -> PreTrainedConfig:
        """The configuration of the model in a folder, from which a run begins.

        Raises CheckpointError for a model of another class, and ConfigurationError for one that the run cannot use.
        """
        model_type = model_type_of(folder)
        if model_type != AsterismConfig.model_type:
            remedy = ": `asterism import` makes one of ours of it" if model_type in ARCHITECTURES else ""
            raise CheckpointError(
                "not-our-model", f"init_from: {folder} is a model of type {model_type!r}, not an Asterism model{remedy}"
            )
        shape = read_shape(folder, "init_from: ")
        head = cls.model_class(config).__name__
        # Pre-training's two heads are the masked one and another: either may go on from both.
        heads = {head, AsterismForPreTraining.__name__} if head == AsterismForMaskedLM.__name__ else {head}
        if not heads & set(shape.architectures or ()):
            raise CheckpointError(
                "other-objective-model",
                f"init_from: {folder} holds an {', '.join(shape.architectures or ['unnamed model'])};"
                f" objective {config.objective}{' with next_sentence' if config.next_sentence else ''} trains"
                f" an {head}",
            )
        cls.refuse_start(config, shape.vocab_size, vocabulary, folder)
        if shape.positions_end and shape.max_position_embeddings < config.context:
            raise ConfigurationError(
                "context-beyond-model",
                f"init_from: {folder} reads {shape.max_position_embeddings:,} tokens, too few for"
                f" context={config.context:,}; give a shorter context, or a model that was imported with a greater"
                " --length",
            )
        if config.next_sentence and shape.type_vocab_size < 2:
            raise ConfigurationError(
                "token-types",
                f"init_from: next_sentence needs two token types, but {folder} has {shape.type_vocab_size}",
            )
        return shape if config.pattern is None else type(shape)(**shape.to_dict() | {"mixers": config.pattern})


def model_type_of(folder: Path) -> str | None:
    """What the configuration of the model in a folder says it is. Raises CheckpointError."""
    document = read_json(folder / "config.json")
    return document.get("model_type") if isinstance(document, dict) else None


def _new_shape(config: RunConfig, vocabulary: Vocabulary, writes: bool) -> AsterismConfig:
    """The configuration of a new model: the vocabulary of its tokenizer, and positions for one context.

    One that `writes` has the tokens that start and end a text.

    Raises ConfigurationError for a vocabulary or context that is too large for the model.
    """
    given = asdict(config.model).items()
    shape: dict[str, Any] = {name: list(value) if isinstance(value, tuple) else value for name, value in given}
    for name, needed, what in (
        ("vocab_size", vocabulary.size, f"the tokens of {config.tokenizer}"),
        ("max_position_embeddings", config.context, "the context"),
    ):
        shape[name] = needed if shape[name] is None else shape[name]
        if shape[name] < needed:
            raise ConfigurationError(
                "model-too-small", f"model.{name} is {shape[name]:,}, too few for {what}: {needed:,}"
            )
    tokens = {"pad_token_id": vocabulary.padding}
    if shape["decoder_mixers"] is not None:
        tokens |= {"eos_token_id": vocabulary.end, "decoder_start_token_id": vocabulary.start}
    elif writes and not vocabulary.is_values:
        start = vocabulary.start if vocabulary.tokenizer is None else start_of_text(vocabulary.tokenizer)
        tokens |= {"bos_token_id": start, "eos_token_id": vocabulary.end}
    return AsterismConfig(**tokens, **shape)
