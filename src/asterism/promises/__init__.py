"""Promises of sparse models to their users, checked in the same way on our models and on those of other libraries.

    asterism promises
    asterism promises MistralForCausalLM

The first runs small models with random weights and compares two answers of each. The second measures who reads whom in
each layer of a model, and compares that with the windows and chunks of its configuration. No check depends on a model's
internals.
"""

from asterism.promises.checks import PROMISES, PromiseOutcome
from asterism.promises.paths import PATHS
from asterism.promises.report import broken, check_promises, table
from asterism.promises.subjects import SUBJECTS, TestedModel
from asterism.promises.twins import small_model
from asterism.promises.verdicts import PathVerdict
from asterism.promises.windows import WindowReport, check_windows
from asterism.promises.windows_table import windows_table

__all__ = [
    "PATHS",
    "PROMISES",
    "SUBJECTS",
    "PromiseOutcome",
    "TestedModel",
    "PathVerdict",
    "WindowReport",
    "broken",
    "check_promises",
    "check_windows",
    "small_model",
    "table",
    "windows_table",
]
