"""A model of transformers within `sequence_parallel`: two hooks around its forward pass.

The first tells its positions, which it would count from 0 on every rank, finds out with the other ranks what they hold
of each row, and keeps back the labels, whose loss transformers would take for each rank by itself. The second computes
that loss over the tokens of all ranks. In between, masks and attention read what was found out.
"""

import inspect
import sys
from contextlib import ExitStack
from contextvars import ContextVar
from typing import Any, NamedTuple, cast

import torch
from transformers import PreTrainedModel

from asterism.errors import ConfigurationError
from asterism.labels import IGNORED
from asterism.layers.rows import check_numbers, find_rows, is_sharded, refuse_shifting, with_given
from asterism.layers.rows.documents import check_positions
from asterism.layers.rows.sharded import ShardedRows
from asterism.models.cache.naming import CACHE_NAMES
from asterism.models.drop_in.documents import from_positions
from asterism.models.drop_in.field import IMPLEMENTATION
from asterism.models.heads.loss import cross_entropy
from asterism.parallel import sharding

_TARGETS = {
    "ForCausalLM": "shift_labels",
    "LMHeadModel": "shift_labels",
    "ForMaskedLM": "labels",
    "ForTokenClassification": "labels",
}
"""What columns are compared with, by the end of a class's name."""

_CACHES = (*CACHE_NAMES, "encoder_hidden_states")


class ModelCall(NamedTuple):
    """What ranks know of a call of a model.

    positions  int64 [B, N] of whole rows
    labels     int64 [B, N of this rank], what its columns are to predict, and items, how many labels there are; or None
    around     what is left when it ends: an error on this rank is told to the others
    """

    model: PreTrainedModel
    rows: ShardedRows
    positions: torch.Tensor
    labels: torch.Tensor | None
    items: Any
    around: ExitStack = ExitStack()

    @property
    def first(self) -> int:
        """How many columns of a row are on the ranks before this one."""
        return self.rows.context.range(self.rows.shards)[0]

    def documents(self, causal: bool) -> tuple[int, ...] | None:
        """The lengths of packed documents, all whole rows one after another; None for rows of one sequence."""
        if not causal or self.rows.real is not None:
            return None
        return from_positions(self.positions, *self.positions.shape)


_CALL: ContextVar[ModelCall | None] = ContextVar("sharded_call", default=None)


def sharded_call() -> ModelCall | None:
    """What is known of the call around the caller; None where sequences lie on one device.

    Raises ConfigurationError within `sequence_parallel` for a part of a model, which was not asked as a whole.
    """
    if not is_sharded():
        return None
    found = _CALL.get()
    if found is None:
        raise ConfigurationError(
            "part-of-sharded-model",
            "within sequence_parallel, call the model that use_pattern was given, not a part of it: its positions"
            " would count from 0 on every rank",
        )
    return found


def install_sharding(model: PreTrainedModel) -> None:
    """Make a model know of shards. The hooks do nothing elsewhere, nor while another attention is selected."""
    if _begin not in model._forward_pre_hooks.values():
        model.register_forward_pre_hook(_begin, prepend=True, with_kwargs=True)  # other ranks know whatever is refused
        model.register_forward_hook(_end, with_kwargs=True, always_call=True)


def _begin(
    model: Any, arguments: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    if not is_sharded():
        return None
    if (known := _CALL.get()) is not None:
        if known.model is not model and known.rows.context is sharding():
            return None  # a model around this one has begun
        _CALL.set(None)  # its call was interrupted (KeyboardInterrupt), and such an end is told to no hook
        known.around.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    signature = inspect.signature(model.forward)
    with ExitStack() as around:
        around.enter_context(with_given(model, named))
        given = dict(signature.bind_partial(*arguments, **named).arguments)
        given |= given.pop(next((x.name for x in signature.parameters.values() if x.kind is x.VAR_KEYWORD), ""), {})
        call = _meet(model, given, signature)
        _CALL.set(call._replace(around=around.pop_all()))
    return (), given


def _meet(model: Any, given: dict[str, Any], signature: inspect.Signature) -> ModelCall:
    """What all ranks know of a call; `given` becomes what the model is called with."""
    if model.config._attn_implementation != IMPLEMENTATION:
        raise ConfigurationError(
            "not-a-pattern-model",
            f"{type(model).__name__} attends by {model.config._attn_implementation!r}, which cannot read shards:"
            " within sequence_parallel call use_pattern(model, ...) first",
        )
    _check_arguments(model, given, signature)
    labels, items = _take_labels(model, given), given.pop("num_items_in_batch", None)
    tokens = next((given[name] for name in ("input_ids", "inputs_embeds") if given.get(name) is not None), None)
    if tokens is None:
        raise ConfigurationError("ids-missing", "a sharded sequence needs input_ids or inputs_embeds, and got neither")
    check_numbers("input_ids", given.get("input_ids"), below=model.get_input_embeddings().num_embeddings)
    check_numbers("labels", labels, shape=tokens.shape[:2], below=_classes(model), ignored=IGNORED)
    if (positions := given.get("position_ids")) is None:
        _check_positions(model)
    else:
        check_positions(positions, *tokens.shape[:2])
    _check_neighbours(model)
    rows = cast(ShardedRows, find_rows(tokens, given.get("attention_mask")))
    if 0 in (sizes := rows.shards.sizes):
        raise ConfigurationError(
            "rank-without-tokens",
            f"{type(model).__name__} needs a token on every rank, but rank {sizes.index(0)} holds 0 of {sum(sizes)}:"
            " give each rank at least one",
        )
    if positions is None:
        given["position_ids"] = rows.columns
    own = given["position_ids"].expand(*tokens.shape[:2])
    if "use_cache" in signature.parameters:
        given["use_cache"] = False
    return ModelCall(model, rows, rows.everywhere(own), labels, items)


def _end(model: Any, arguments: tuple[Any, ...], named: dict[str, Any], output: Any) -> Any:
    call = _CALL.get() if is_sharded() else None
    if call is None or call.model is not model:
        return None
    _CALL.set(None)
    if output is None:  # forward has raised an error, which is passed on when the other ranks know of it
        call.around.__exit__(*sys.exc_info())
        return None
    with call.around:
        return _with_loss(call, output)


def _with_loss(call: ModelCall, output: Any) -> Any:
    if call.labels is None:
        return output
    if getattr(output, "aux_loss", None) is not None or not hasattr(output, "logits"):
        raise ConfigurationError(
            "loss-in-shards",
            f"the loss of {type(call.model).__name__} cannot be divided over ranks: leave out labels, use the logits,"
            " and set return_dict",
        )
    items = call.rows.total((call.labels != IGNORED).sum()) if call.items is None else call.items
    output.loss = call.rows.total(cross_entropy(output.logits, call.labels, num_items_in_batch=items))
    return output


def _take_labels(model: Any, given: dict[str, Any]) -> torch.Tensor | None:
    """What this rank's columns are compared with, taken out of the arguments; None for nothing."""
    labels = {name: given.pop(name, None) for name in ("labels", "shift_labels")}
    if all(value is None for value in labels.values()):
        return None
    name = target_of(model)
    if name is None:
        raise ConfigurationError(
            "loss-not-of-tokens",
            f"the loss of {type(model).__name__} is not a loss per token, so it cannot be divided over ranks: leave"
            " out labels, and compute it from the outputs of all ranks",
        )
    if labels[name] is None:
        refuse_shifting("labels", "shift_labels")
    return labels[name]


def target_of(model: Any) -> str | None:
    """The argument with the targets of a model's columns; None for a model whose loss is not one per token."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    return next((wanted for end, wanted in _TARGETS.items() if type(base).__name__.endswith(end)), None)


def _classes(model: PreTrainedModel) -> int:
    """How many there are for each token."""
    config: Any = model.config.get_text_config()
    return int(config.num_labels if type(model).__name__.endswith("ForTokenClassification") else config.vocab_size)


def _check_arguments(model: Any, given: dict[str, Any], signature: inspect.Signature) -> None:
    """Raises ConfigurationError for what a sharded sequence cannot be given."""
    cached = [name for name in _CACHES if given.get(name) is not None]
    if given.get("use_cache"):
        cached.append("use_cache")
    if cached:
        raise ConfigurationError(
            "cache-in-shards",
            f"{type(model).__name__} was given {', '.join(cached)} within sequence_parallel, where models of"
            " transformers have no cache: leave it out",
        )
    if "position_ids" not in signature.parameters:
        raise ConfigurationError(
            "positions-not-taken",
            f"{type(model).__name__}.forward takes no position_ids, so it cannot place a shard in its sequence",
        )


def _check_neighbours(model: PreTrainedModel) -> None:
    """Raises ConfigurationError for models whose embeddings read other tokens, MobileBERT's."""
    if getattr(model.config, "trigram_input", False):
        raise ConfigurationError(
            "neighbours-in-embeddings",
            f"{type(model).__name__} reads the tokens on either side in its embeddings (trigram_input in its"
            " configuration), and within sequence_parallel these may lie on another rank",
        )


def _check_positions(model: PreTrainedModel) -> None:
    """Raises ConfigurationError for models whose own positions do not count from 0, such as RoBERTa's."""
    if any(hasattr(module, "position_embeddings") and hasattr(module, "padding_idx") for module in model.modules()):
        raise ConfigurationError(
            "positions-after-padding",
            f"{type(model).__name__} counts its positions from after its padding token: give each rank the"
            " position_ids of its shard",
        )
