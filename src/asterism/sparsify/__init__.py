"""Dense models made sparse: a price for each layer and head, and the schedule that a budget buys.

from asterism.evaluation import open_causal
from asterism.sparsify import parse_budget, sparsify
print(sparsify(open_causal("smollm2"), Path("texts.jsonl"), parse_budget("keys=25%"), Path("sparser")))
"""

from asterism.sparsify.budget import Budget, parse_budget
from asterism.sparsify.result import Measured, Sparsified
from asterism.sparsify.sparsify import sparsify, write_model

__all__ = ["Budget", "Measured", "Sparsified", "parse_budget", "sparsify", "write_model"]
