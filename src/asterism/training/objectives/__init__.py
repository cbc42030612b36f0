"""Objectives: what a model is trained on and judged by. One file per objective; `objective.py` says what each has."""

from asterism.training.data.corpus import load_corpus, load_documents
from asterism.training.objectives.causal import CausalBytes
from asterism.training.objectives.masked import MaskedTokens
from asterism.training.objectives.objective import Headline, Objective, Report
from asterism.training.run.configuration import RunConfig
from asterism.training.run.folder import RunFolder

OBJECTIVES: dict[str, type[Objective]] = {"causal": CausalBytes, "mlm": MaskedTokens}
"""By the name that `RunConfig.objective` gives them."""

__all__ = ["OBJECTIVES", "CausalBytes", "Headline", "MaskedTokens", "Objective", "Report", "make_objective"]


def make_objective(config: RunConfig, run: RunFolder) -> Objective:
    """What a run is trained on, its data loaded; a run that goes on uses the tokenizer of its newest checkpoint.

    Raises DataError, and ConfigurationError for a tokenizer that cannot be made.
    """
    if config.objective == "causal":
        return CausalBytes(config, load_corpus(config.data, record_length=config.record_length))
    return MaskedTokens(config, load_documents(config.data), run.latest_checkpoint())
