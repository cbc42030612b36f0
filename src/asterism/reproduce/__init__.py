"""The experiments of the papers, made again: one command runs one, and says what of the paper's claims holds.

    from asterism.reproduce import EXPERIMENTS, reproduce
    reproduce(EXPERIMENTS["copy-task"], "laptop", Path("runs/reproduce-copy-task"))

The folder `experiments` has one file for each; `records` has what they found when they were last run.
"""

from typing import TYPE_CHECKING

from asterism.lazy import lazily

if TYPE_CHECKING:
    from asterism.reproduce.changes import changed
    from asterism.reproduce.registry import EXPERIMENTS, find_experiment
    from asterism.reproduce.run import reproduce

__all__ = ["EXPERIMENTS", "changed", "find_experiment", "reproduce"]

__getattr__, __dir__ = lazily(
    __name__, {"EXPERIMENTS": "registry", "changed": "changes", "find_experiment": "registry", "reproduce": "run"}
)
