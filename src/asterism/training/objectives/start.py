"""The start of a fine-tuning run: the folder of a model, or the shape of a recipe with new weights.

A recipe gives the shape of the model that it pretrains, for the requested number of tokens. Tokens are the values of a
modality, or those of a tokenizer that does not learn from text.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from asterism.errors import ConfigurationError
from asterism.training.recipes import RECIPES, recipe
from asterism.training.run.folder import model_folder
from asterism.training.settings.configuration import FineTuneConfig, RunConfig
from asterism.training.settings.registry import OBJECTIVES

LEARNED = ("bpe", "unigram", "dna-bpe")
"""The tokenizers that learn from text."""


@contextmanager
def start_of(config: FineTuneConfig) -> Iterator[Path]:
    """The folder with configuration and tokenizer of the model with which a run begins; for a recipe, a temporary one.

    Raises ConfigurationError for a recipe without `from_scratch`, or whose tokenizer must be learned, and
    CheckpointError for a path that is not the folder of a model.
    """
    if config.model not in RECIPES or Path(config.model).exists():
        if config.tokenizer is not None:
            raise ConfigurationError(
                "tokenizer-of-model", f"tokenizer: {config.model} has its own; {config.tokenizer!r} is for recipes"
            )
        yield model_folder(config.model, "model")
        return
    if not config.from_scratch:
        raise ConfigurationError(
            "model-is-a-recipe",
            f"model: {config.model} is a recipe: pretrain it with `asterism train --recipe {config.model}`, or give"
            " from_scratch, which keeps its architecture and initialises new weights",
        )
    with tempfile.TemporaryDirectory() as folder:
        _save_shape(config, Path(folder))
        yield Path(folder)


def _save_shape(config: FineTuneConfig, folder: Path) -> None:
    pretraining = recipe(config.model)
    of_text = config.tokenizer or pretraining.tokenizer
    pretraining = replace(
        pretraining,
        context=config.length or pretraining.context,
        tokenizer=of_text if config.modality is None else RunConfig.tokenizer,
        modality=RunConfig.modality,
        record_length=None,
        objective="causal" if config.modality is not None else pretraining.objective,
    )
    if config.modality is None and pretraining.tokenizer.partition(":")[0] in LEARNED:
        raise ConfigurationError(
            "tokenizer-not-pretrained",
            f"model: the tokenizer of {config.model}, {pretraining.tokenizer}, must first be learned from text:"
            f" pretrain it with `asterism train --recipe {config.model}`, or give a fixed tokenizer such as bases or"
            " kmer:6",
        )
    objective: Any = OBJECTIVES.load(pretraining.objective)
    _, vocabulary, shape = objective.foundations(pretraining)
    shape.save_pretrained(folder)
    if config.modality is not None:
        return
    if pretraining.objective == "causal" and not vocabulary.is_values:
        raise ConfigurationError(
            "causal-recipe",
            f"model: {config.model} is a causal model, whose tokens do not read what follows them: give a recipe of an"
            " encoder",
        )
    if pretraining.objective == "causal":
        raise ConfigurationError(
            "reads-bytes", f"model: {config.model} reads bytes, not tokens: give a recipe of an encoder"
        )
    vocabulary.made([], pretraining.context).save_pretrained(folder)
