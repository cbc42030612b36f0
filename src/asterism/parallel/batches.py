"""Cuts a batch of whole sequences, from collators or objectives, into this rank's shard.

Labels are shifted before a sequence is cut, because what the last token of a shard is to predict lies on another rank.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from asterism.compiler.devices import Shards
from asterism.errors import ConfigurationError
from asterism.labels import IGNORED, shifted, without_first_tokens, without_tokens_at
from asterism.parallel.context import SequenceParallel

_TOKENS = ("input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds")
_TARGET = ("decoder_input_ids", "decoder_attention_mask", "decoder_inputs_embeds")
_LABELS = ("labels", "shift_labels")


def shard(
    batch: Mapping[str, Any], context: SequenceParallel, *, shifts_labels: bool = False, shards: Shards | None = None
) -> dict[str, Any]:
    """Cut this rank's shard, the model's arguments within `sequence_parallel`, from a batch of whole sequences that all
    ranks hold.

    Cut along tokens are input_ids, attention_mask, token_type_ids, position_ids [B or 1, N], inputs_embeds [B, N, C];
    labels and shift_labels that are whole numbers [B, N]; and of an encoder-decoder decoder_input_ids,
    decoder_attention_mask, decoder_inputs_embeds and labels, all of the target. `places` [B, M] and its labels become
    those of this shard, filled up with place 0 and label -100. Everything else, such as a label of a whole sequence,
    cu_seqlens or dropout_seed, is unchanged.

    shifts_labels  for causal models, which compare the prediction of a column with the label of the next: shift_labels
                   is added, with the target of every column. The first token of a document (position_ids of 0,
                   cu_seqlens) is not a target.
    shards         the shards of input_ids; by default of even size, as always for the target. Shards may be empty.

    The loss of an Asterism model in the context is the mean over the tokens of all ranks, equal on all. Its backward
    pass leaves on each rank a part of the gradient of every parameter: the gradient of the whole is the SUM over the
    ranks, not the mean.

    Labels of a target are cut where its decoder_input_ids are there; prepare_decoder_input_ids_from_labels of the model
    makes them of the whole labels.

    Raises ConfigurationError for a batch without tokens, and for shards that do not fit it.
    """
    given = dict(batch)
    like = _first_of(given, ("input_ids", "inputs_embeds"))
    if like is None:
        raise ConfigurationError("ids-missing", "shard needs a batch with input_ids or inputs_embeds, got neither")
    tokens = like.shape[1]
    shards = Shards.even(tokens, context.ranks) if shards is None else shards
    if shards.devices != context.ranks or shards.length != tokens:
        raise ConfigurationError(
            "shards-differ-from-batch",
            f"shards of {shards.length} tokens on {shards.devices} ranks do not fit a batch of {tokens} tokens on"
            f" {context.ranks} ranks",
        )
    target = _first_of(given, ("decoder_input_ids", "decoder_inputs_embeds"))
    ends = context.range(shards)
    own_target = ends if target is None else context.range(Shards.even(target.shape[1], context.ranks))
    if shifts_labels:
        given |= _shifted(given)
    if given.get("places") is not None:
        given |= _places(given, *ends)
    cut = {name: _cut(given[name], *ends) for name in _TOKENS if given.get(name) is not None}
    cut |= {name: _cut(given[name], *own_target) for name in _TARGET if given.get(name) is not None}
    width = tokens if target is None else target.shape[1]
    for name in _LABELS if given.get("places") is None else ():
        if _labels_tokens(given.get(name), width):
            cut[name] = _cut(given[name], *own_target)
    return given | cut


def _first_of(batch: Mapping[str, Any], names: tuple[str, ...]) -> Tensor | None:
    return next((batch[name] for name in names if batch.get(name) is not None), None)


def _cut(x: Tensor, first: int, past: int) -> Tensor:
    return x[:, first:past].contiguous()


def _labels_tokens(labels: Any, tokens: int) -> bool:
    return isinstance(labels, Tensor) and labels.shape[1:] == (tokens,) and not labels.is_floating_point()


def _shifted(batch: Mapping[str, Any]) -> dict[str, Tensor]:
    labels, positions, bounds = (batch.get(name) for name in ("labels", "position_ids", "cu_seqlens"))
    if labels is None or batch.get("shift_labels") is not None:
        return {}
    if positions is not None:
        labels = without_first_tokens(labels, positions)
    if bounds is not None:
        labels = without_tokens_at(labels, torch.as_tensor(bounds, device=labels.device)[:-1].long())
    return {"shift_labels": shifted(labels)}


def _places(batch: Mapping[str, Any], first: int, past: int) -> dict[str, Tensor]:
    """Of the places [B, M] of whole rows those from `first` to `past`, counted from there, and their labels."""
    places, labels = batch["places"], batch.get("labels")
    own = (places >= first) & (places < past)
    if labels is not None:
        own &= labels != IGNORED
    order = torch.argsort(own, dim=1, descending=True, stable=True)[:, : int(own.sum(dim=1).max())]
    kept = own.gather(1, order)
    found = {"places": torch.where(kept, places.gather(1, order) - first, 0)}
    return found if labels is None else found | {"labels": labels.gather(1, order).masked_fill(~kept, IGNORED)}
