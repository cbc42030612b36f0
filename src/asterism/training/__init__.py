"""Runs: data, recipes, training, evaluation and generation on bytes.

    from asterism.training import recipe, train
    report = train(recipe("bytes-small"), "runs/first")

Importing this package imports neither torch nor transformers; what needs them is imported when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from asterism.training.recipes import RECIPES, recipe
from asterism.training.run.configuration import FineTuneConfig, ModelConfig, RunConfig

if TYPE_CHECKING:
    from asterism.training.data.corpus import load_corpus
    from asterism.training.run.evaluation import evaluate
    from asterism.training.run.finetuning import finetune
    from asterism.training.run.generation import generate_bytes
    from asterism.training.run.training import train

__all__ = [
    "RECIPES",
    "FineTuneConfig",
    "ModelConfig",
    "RunConfig",
    "evaluate",
    "finetune",
    "generate_bytes",
    "load_corpus",
    "recipe",
    "train",
]

_LAZY = {
    "evaluate": "asterism.training.run.evaluation",
    "finetune": "asterism.training.run.finetuning",
    "generate_bytes": "asterism.training.run.generation",
    "load_corpus": "asterism.training.data.corpus",
    "train": "asterism.training.run.training",
}


def __getattr__(name: str) -> object:
    """Import a function's module when the function is first asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module 'asterism.training' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
