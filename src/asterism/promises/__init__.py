"""Promises of sparse models to their users, checked in the same way on our models and on those of other libraries.

    asterism promises

Every check runs a small model with random weights and compares two of its answers. The checks use only `forward` and,
for causal models, the cache; they do not depend on a model's internals.
"""

from asterism.promises.checks import PROMISES, PromiseOutcome
from asterism.promises.report import broken, check_promises, table
from asterism.promises.subjects import SUBJECTS, Subject

__all__ = ["PROMISES", "SUBJECTS", "PromiseOutcome", "Subject", "broken", "check_promises", "table"]
