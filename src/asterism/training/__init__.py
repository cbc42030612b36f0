"""Runs: data, recipes, training, evaluation, fine-tuning and generation.

    from asterism.training import open_run, recipe, train
    report = train(recipe("bytes-small"), "runs/first")
    run = open_run("runs/first")

Importing this package imports neither torch nor transformers; what needs them is imported when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from asterism.shape import ModelConfig
from asterism.training.recipes import RECIPES, recipe
from asterism.training.run.configuration import FineTuneConfig, RunConfig

if TYPE_CHECKING:
    from asterism.training.data.corpus import load_corpus
    from asterism.training.pipeline import Run, evaluate, generate, open_run, report, train
    from asterism.training.run.prediction import predict, predict_file
    from asterism.training.run.samples import generate_file

__all__ = [
    "RECIPES",
    "FineTuneConfig",
    "ModelConfig",
    "Run",
    "RunConfig",
    "evaluate",
    "generate",
    "generate_file",
    "load_corpus",
    "open_run",
    "predict",
    "predict_file",
    "recipe",
    "report",
    "train",
]

_LAZY = {name: "asterism.training.pipeline" for name in ("Run", "evaluate", "generate", "open_run", "report", "train")}
_LAZY |= {name: "asterism.training.run.prediction" for name in ("predict", "predict_file")}
_LAZY["generate_file"] = "asterism.training.run.samples"
_LAZY["load_corpus"] = "asterism.training.data.corpus"


def __getattr__(name: str) -> object:
    """Import a function's module when the function is first asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module 'asterism.training' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
