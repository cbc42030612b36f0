"""What a sparse model promises its users, checked the same way on ours and on peers'.

    asterism promises

Every check runs a small model with random weights and compares two of its answers. Nothing here knows how a model is
made inside: only `forward`, and for causal models its cache.
"""

from asterism.promises.checks import PROMISES, PromiseOutcome
from asterism.promises.report import broken, check_promises, table
from asterism.promises.subjects import SUBJECTS, Subject

__all__ = ["PROMISES", "SUBJECTS", "PromiseOutcome", "Subject", "broken", "check_promises", "table"]
