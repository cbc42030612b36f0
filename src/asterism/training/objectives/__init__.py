"""Objectives: what a model is trained on and judged by.

`objective.py` says what each has. A new one is a file of its own and an entry here.
"""

from typing import TYPE_CHECKING, Any

from asterism.training.registry import Entry, Registry

if TYPE_CHECKING:
    from asterism.training.objectives.objective import Objective

_HERE = "asterism.training.objectives"

OBJECTIVES: "Registry[Objective[Any]]" = Registry(
    causal=Entry(f"{_HERE}.causal:CausalBytes", settings=("modality", "record_length"), recipe="bytes-small"),
    mlm=Entry(
        f"{_HERE}.masked:MaskedTokens",
        settings=("modality", "tokenizer", "next_sentence"),
        shortest_context=16,
        recipe="bigbird-tiny",
    ),
    prefix_lm=Entry(f"{_HERE}.prefix:PrefixBytes", settings=("modality", "record_length"), recipe="bytes-small"),
    span_corruption=Entry(
        f"{_HERE}.span_corruption:SpanCorruption",
        settings=("tokenizer",),
        shortest_context=16,
        recipe="span-corruption-tiny",
    ),
    gap_sentences=Entry(
        f"{_HERE}.gap_sentences:GapSentences",
        settings=("tokenizer", "target_length", "kept_sentences"),
        shortest_context=16,
        recipe="gap-sentences-tiny",
    ),
    labelled=Entry(f"{_HERE}.labelled:Labelled", kind="finetune"),
)
"""By the name that the configuration of a run gives them."""
