"""Runs: data, recipes, training, evaluation, fine-tuning and generation.

    from asterism.training import open_run, recipe, train
    report = train(recipe("bytes-small"), "runs/first")
    run = open_run("runs/first")

Importing this package imports neither torch nor transformers; what needs them is imported when it is first asked for.
"""

from typing import TYPE_CHECKING

from asterism.lazy import lazily
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

_HOMES = {name: "pipeline" for name in ("Run", "evaluate", "generate", "open_run", "report", "train")}
_HOMES |= {"predict": "run.prediction", "predict_file": "run.prediction"}
_HOMES |= {"generate_file": "run.samples", "load_corpus": "data.corpus"}

__getattr__, __dir__ = lazily(__name__, _HOMES, ("FineTuneConfig", "ModelConfig", "RECIPES", "RunConfig", "recipe"))
