"""Objectives: what a model is trained on and judged by. One file per objective; `objective.py` says what each has."""

from asterism.training.objectives.causal import CausalBytes
from asterism.training.objectives.objective import Headline, Objective, Report

__all__ = ["CausalBytes", "Headline", "Objective", "Report"]
