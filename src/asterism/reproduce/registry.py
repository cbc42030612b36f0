"""The experiments, by name."""

from asterism.errors import ConfigurationError, nearest
from asterism.reproduce.experiment import Experiment
from asterism.reproduce.experiments.blocks_512 import BUILDING_BLOCKS
from asterism.reproduce.experiments.blocks_reviews import BLOCKS_REVIEWS
from asterism.reproduce.experiments.context import CONTEXTS
from asterism.reproduce.experiments.copy_task import COPY_TASK
from asterism.reproduce.experiments.factorised import FACTORISED_PICTURES, FACTORISED_TEXT
from asterism.reproduce.experiments.fnet import FNET
from asterism.reproduce.experiments.fnet_length import FNET_LENGTH
from asterism.reproduce.experiments.frontier import FRONTIER
from asterism.reproduce.experiments.furthest import FURTHEST
from asterism.reproduce.experiments.genomics import GENOMICS
from asterism.reproduce.experiments.heads import HEADS_COMBINED
from asterism.reproduce.experiments.language import LANGUAGE
from asterism.reproduce.experiments.long_documents import LONG_DOCUMENTS
from asterism.reproduce.experiments.lra_image import LRA_IMAGE
from asterism.reproduce.experiments.lra_listops import LRA_LISTOPS
from asterism.reproduce.experiments.lra_pathfinder import LRA_PATHFINDER
from asterism.reproduce.experiments.lra_text import LRA_TEXT
from asterism.reproduce.experiments.mlm_length import CONTEXT_MLM
from asterism.reproduce.experiments.persistent import PERSISTENT
from asterism.reproduce.experiments.price import PRICE_OF_UNIVERSALITY
from asterism.reproduce.experiments.promoters import PROMOTERS
from asterism.reproduce.experiments.reach import REACH
from asterism.reproduce.experiments.recall import RECALL
from asterism.reproduce.experiments.reviews import REVIEWS
from asterism.reproduce.experiments.sentence_pairs import SENTENCE_PAIRS
from asterism.reproduce.experiments.summaries import SUMMARIES
from asterism.reproduce.experiments.translation import TRANSLATION
from asterism.reproduce.experiments.turing import TURING
from asterism.reproduce.papers import PAPERS

EXPERIMENTS: dict[str, Experiment] = {
    one.name: one
    for one in (
        FACTORISED_TEXT,
        FACTORISED_PICTURES,
        CONTEXTS,
        HEADS_COMBINED,
        COPY_TASK,
        LANGUAGE,
        TRANSLATION,
        SENTENCE_PAIRS,
        REACH,
        PRICE_OF_UNIVERSALITY,
        BUILDING_BLOCKS,
        BLOCKS_REVIEWS,
        CONTEXT_MLM,
        LONG_DOCUMENTS,
        REVIEWS,
        SUMMARIES,
        GENOMICS,
        PROMOTERS,
        TURING,
        FURTHEST,
        FNET,
        FNET_LENGTH,
        PERSISTENT,
        LRA_LISTOPS,
        LRA_TEXT,
        LRA_IMAGE,
        LRA_PATHFINDER,
        RECALL,
        FRONTIER,
    )
}
"""In the order of the papers, and of their tables."""


def find_experiment(name: str) -> Experiment:
    """An experiment. Raises ConfigurationError for an unknown name, with the nearest known one, or those of a paper."""
    if name not in EXPERIMENTS:
        own = [one.name for one in EXPERIMENTS.values() if name.lower() in (one.paper, PAPERS[one.paper].short.lower())]
        hint = f" That paper has {', '.join(own)}." if own else nearest(name.lower(), EXPERIMENTS)
        raise ConfigurationError(
            "unknown-experiment", f"there is no experiment {name!r}.{hint} `asterism reproduce --list` names them"
        )
    return EXPERIMENTS[name]
