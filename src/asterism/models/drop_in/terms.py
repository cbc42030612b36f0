"""Arguments that models of transformers pass to attention besides queries, keys, values and mask, as terms.

Soft-capping (Gemma 2), sinks learned per head (GPT-OSS), biases by distance (T5), and dropout. Anything else that could
change a score is refused.
"""

from dataclasses import replace
from typing import Any

import torch

from asterism.errors import ConfigurationError
from asterism.kernels import DistanceTable, Dropout, Terms
from asterism.models.drop_in.interface import HARMLESS

SINKS = ("s_aux", "sinks")
"""How models call the score per head that has no key."""


def read_terms(given: dict[str, Any], dropout: float) -> Terms | None:
    """The terms of the score of a call; None for none. Raises ConfigurationError for what is no such term.

    The seed of dropout is drawn from torch's generator, as that of every other dropout in the model is: what
    torch.manual_seed, gradient checkpointing and a resumed Trainer repeat there is repeated here.
    """
    given = {name: value for name, value in given.items() if value is not None and value is not False}
    softcap = given.pop("softcap", None)
    sinks = next((given.pop(name) for name in SINKS if name in given), None)
    bias = given.pop("position_bias", None)
    for name in given:
        if name == "output_attentions":
            raise ConfigurationError(
                "output-attentions", "attention weights are never computed in full: leave out output_attentions=True"
            )
        if name == "seq_idx":
            raise ConfigurationError(
                "seq-idx",
                "seq_idx is not supported: position_ids that restart mark the borders of documents; leave out"
                " return_seq_idx=True of the collator",
            )
        if name not in HARMLESS:
            raise ConfigurationError(
                "unknown-score-argument",
                f"the model passes {name!r} to its attention, which can change scores in a way that a pattern cannot"
                " follow",
            )
    if softcap is None and sinks is None and bias is None and not dropout:
        return None
    return Terms(
        softcap=softcap,
        sinks=sinks,
        bias=None if bias is None else by_distance(bias),
        dropout=Dropout(dropout, int(torch.randint(2**62, ()))) if dropout else None,
    )


def by_distance(bias: torch.Tensor) -> DistanceTable:
    """A bias [1, H, N, N] by query and key that depends on their distance only, as a table [H, 2 N - 1] of distances.

    Both have the dtype of the model.

    Raises ConfigurationError for a bias of another shape, or one that depends on more.
    """
    if bias.ndim != 4 or bias.shape[0] != 1 or bias.shape[2] != bias.shape[3]:
        raise ConfigurationError(
            "bias-shape",
            f"the model's bias of positions is {list(bias.shape)}; a pattern needs one for all rows, with equal"
            " numbers of queries and keys",
        )
    if not torch.compiler.is_compiling() and not torch.equal(bias[:, :, 1:, 1:], bias[:, :, :-1, :-1]):
        raise ConfigurationError(
            "bias-not-by-distance", "the model's bias depends on more than the distance of query and key"
        )
    # At distances -(N - 1) ... 0 stands the first query, at 1 ... N - 1 the last.
    return DistanceTable(torch.cat([bias[0, :, 0].flip(-1), bias[0, :, -1, :-1].flip(-1)], dim=-1), 1 - bias.shape[3])


def of_heads(terms: Terms, heads: tuple[int, ...] | None) -> Terms:
    """The terms of some heads; None for all."""
    if heads is None or terms.sinks is None:
        return terms
    return replace(terms, sinks=terms.sinks[list(heads)])
