"""Runs: data, recipes, training, evaluation, fine-tuning and generation.

    from asterism.training import open_run, recipe, train
    report = train(recipe("bytes-small"), "runs/first")
    run = open_run("runs/first")

Importing this package imports neither torch nor transformers. Names that need them are imported at first use.
"""

from typing import TYPE_CHECKING

from asterism.lazy import lazily
from asterism.shape import ModelConfig
from asterism.training.recipes import RECIPES, recipe
from asterism.training.settings.configuration import FineTuneConfig, RunConfig

if TYPE_CHECKING:
    from asterism.training.ask.generation import generate_file
    from asterism.training.ask.merging import merge
    from asterism.training.ask.prediction import predict, predict_file
    from asterism.training.data.corpora.bytes import load_corpus
    from asterism.training.pipeline import Run, evaluate, generate, open_run, report, train

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
    "merge",
    "open_run",
    "predict",
    "predict_file",
    "recipe",
    "report",
    "train",
]

_HOMES = {name: "pipeline" for name in ("Run", "evaluate", "generate", "open_run", "report", "train")}
_HOMES |= {"merge": "ask.merging", "predict": "ask.prediction", "predict_file": "ask.prediction"}
_HOMES |= {"generate_file": "ask.generation", "load_corpus": "data.corpora.bytes"}

__getattr__, __dir__ = lazily(__name__, _HOMES, ("FineTuneConfig", "ModelConfig", "RECIPES", "RunConfig", "recipe"))
