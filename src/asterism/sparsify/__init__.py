"""Dense models made sparse: a price for each layer and head, and the schedule that a budget buys.

from asterism.evaluation import open_causal
from asterism.sparsify import parse_budget, read_texts, sparsify
model = open_causal("smollm2")
texts = read_texts(model, Path("texts.jsonl"), length=2048, counts=(4, 8), seed=0)
print(sparsify(model, texts, parse_budget("keys=25%"), Path("sparser")))
"""

from asterism.budget import Budget, parse_budget
from asterism.sparsify.result import Measured, Sparsified
from asterism.sparsify.sparsify import sparsify, write_model
from asterism.sparsify.texts import Texts, read_texts

__all__ = ["Budget", "Measured", "Sparsified", "Texts", "parse_budget", "read_texts", "sparsify", "write_model"]
