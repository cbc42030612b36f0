"""Faults of windows, planted in transformers: each changes who reads whom on some paths, and raises nothing.

A plant is called with pytest's monkeypatch and a model, and changes what the model computes until the test ends.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from transformers import masking_utils
from transformers.generation import utils
from transformers.models.mistral import modeling_mistral

from asterism.models.cache.naming import CACHE, cache_in


class Plant(NamedTuple):
    """A fault in a small model of a class, and the paths that it changes; all others keep the rule."""

    model: str
    put: Callable[[Any, Any], None]
    paths: frozenset[str]


PADDED_PIECES = frozenset(("cache padded left in chunks",))
PIECES = PADDED_PIECES | frozenset(
    ("cache in short chunks", "cache in long chunks", "full cache in chunks", "static cache in chunks")
)
STATIC = frozenset(("static cache", "static cache padded left", "static cache in chunks", "generate with static cache"))
LEFT = PADDED_PIECES | frozenset(("padded left", "cache padded left", "static cache padded left"))
TRAINED_PACKED = frozenset(("training packed by position_ids",))
TRAINED = TRAINED_PACKED | frozenset(("training",))
PACKED = TRAINED_PACKED | frozenset(("packed by position_ids", "packed by cu_seq_lens"))


def full_mask(patch: Any, model: Any) -> None:
    patch.setattr(masking_utils, "sliding_window_causal_mask_function", lambda size: masking_utils.causal_mask_function)


def wider_by_one(patch: Any, model: Any) -> None:
    overlay = masking_utils.sliding_window_overlay
    patch.setattr(masking_utils, "sliding_window_overlay", lambda size: overlay(size + 1))


def narrower_by_one(patch: Any, model: Any) -> None:
    overlay = masking_utils.sliding_window_overlay
    patch.setattr(masking_utils, "sliding_window_overlay", lambda size: overlay(size - 1))


def where(condition: Callable[..., bool]) -> Callable[[Any, Any], None]:
    """A causal mask in place of one with a window, where something is true of its arguments."""

    def put(patch: Any, model: Any) -> None:
        windowed = masking_utils.create_sliding_window_causal_mask

        def mask(config: Any, inputs_embeds: Any, attention_mask: Any, **more: Any) -> Any:
            dropped = condition(attention_mask, cache_in(more))
            make = masking_utils.create_causal_mask if dropped else windowed
            return make(config, inputs_embeds, attention_mask, **more)

        patch.setattr(modeling_mistral, "create_sliding_window_causal_mask", mask)

    return put


def continues(mask: Any, cache: Any) -> bool:
    return cache is not None and bool(cache.get_seq_length() > 0)


def is_static(mask: Any, cache: Any) -> bool:
    return type(cache).__name__ == "StaticCache"


def is_padded_left(mask: Any, cache: Any) -> bool:
    return mask is not None and mask.ndim == 2 and not mask[:, 0].all()


def continues_padded(mask: Any, cache: Any) -> bool:
    return mask is not None and continues(mask, cache) and mask.shape[1] > cache.get_seq_length() + 1


def has_gradients(mask: Any, cache: Any) -> bool:
    return torch.is_grad_enabled()


def padding_of_the_first_row(patch: Any, model: Any) -> None:
    padding = masking_utils.padding_mask_function
    patch.setattr(masking_utils, "padding_mask_function", lambda mask: padding(mask[:1].expand_as(mask)))


def training_documents_leak(patch: Any, model: Any) -> None:
    find = masking_utils.find_packed_sequence_indices

    def found(position_ids: torch.Tensor) -> Any:
        return None if model.training else find(position_ids)

    patch.setattr(masking_utils, "find_packed_sequence_indices", found)


def second_row_dropped(patch: Any, model: Any) -> None:
    windowed = masking_utils.sliding_window_causal_mask_function

    def but_one(size: int) -> Any:
        def second(row: Any, head: Any, query: Any, key: Any) -> Any:
            return (row == 1) & masking_utils.causal_mask_function(row, head, query, key)

        return masking_utils.or_masks(windowed(size), second)

    patch.setattr(masking_utils, "sliding_window_causal_mask_function", but_one)


def faint_leak(patch: Any, model: Any) -> None:
    """A ten-millionth of the mean of all tokens before."""
    attention = model.model.layers[0].self_attn
    forward = attention.forward

    def leaking(hidden_states: torch.Tensor, *args: Any, **more: Any) -> Any:
        output, *others = forward(hidden_states, *args, **more)
        counts = torch.arange(1, hidden_states.shape[1] + 1)[:, None]
        return (output + 1e-7 * hidden_states.cumsum(dim=1) / counts, *others)

    patch.setattr(attention, "forward", leaking)


def rounded_by_company(patch: Any, model: Any) -> None:
    """Rows in which a token is another than in the first one are all rounded alike, whatever that token is."""
    attention = model.model.layers[0].self_attn
    forward = attention.forward

    def rounding(hidden_states: torch.Tensor, *args: Any, **more: Any) -> Any:
        output, *others = forward(hidden_states, *args, **more)
        is_other = (hidden_states != hidden_states[:1]).flatten(1).any(dim=1)
        return (output + 1e-7 * is_other[:, None, None], *others)

    patch.setattr(attention, "forward", rounding)


def chunks_ignored(patch: Any, model: Any) -> None:
    patch.setattr(masking_utils, "chunked_causal_mask_function", lambda size, left: masking_utils.causal_mask_function)


def documents_leak(patch: Any, model: Any) -> None:
    patch.setattr(masking_utils, "find_packed_sequence_indices", lambda position_ids: None)


def one_layer_swapped(patch: Any, model: Any) -> None:
    layer = model.model.layers[2]
    forward = layer.forward

    def without_mask(hidden_states: torch.Tensor, *args: Any, attention_mask: Any = None, **more: Any) -> Any:
        return forward(hidden_states, *args, attention_mask=None, **more)

    patch.setattr(layer, "forward", without_mask)


def sees_no_future(patch: Any, model: Any) -> None:
    overlay = masking_utils.sliding_window_bidirectional_overlay

    def causal(size: int) -> Any:
        return masking_utils.and_masks(overlay(size), masking_utils.causal_mask_function)

    patch.setattr(masking_utils, "sliding_window_bidirectional_overlay", causal)


def right_padding_read(patch: Any, model: Any) -> None:
    padding = masking_utils.padding_mask_function

    def all_real(mask: torch.Tensor) -> Any:
        return padding(mask | ~mask[:, -1:])  # where the last token is padding, every token counts as real

    patch.setattr(masking_utils, "padding_mask_function", all_real)


def only_generate(patch: Any, model: Any) -> None:
    def without_window(config: Any, inputs_embeds: Any, attention_mask: Any, **more: Any) -> Any:
        cache = {CACHE: cache_in(more)}
        return masking_utils.create_causal_mask(
            config, inputs_embeds, attention_mask, **cache, allow_is_causal_skip=False
        )

    patch.setattr(utils, "create_masks_for_generate", without_window)
