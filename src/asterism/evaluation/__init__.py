"""Causal models, asked: the tasks of RULER on made-up texts of any length, and an adapter to lm-evaluation-harness.

from asterism.evaluation import evaluate_ruler, open_causal
print(evaluate_ruler(open_causal("models/tiny", pattern="native"), ["niah_single", "vt"], [512, 4096]))
"""

from asterism.evaluation.model import CausalModel, open_causal
from asterism.evaluation.record import Scores, TaskScore
from asterism.evaluation.ruler import Answering, evaluate_ruler
from asterism.evaluation.tasks import GROUPS, TASKS

__all__ = ["GROUPS", "TASKS", "Answering", "CausalModel", "Scores", "TaskScore", "evaluate_ruler", "open_causal"]
