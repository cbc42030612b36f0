"""The facts about tokens that a model of transformers passes to its attention in place of a mask.

Models build their masks through `AttentionMaskInterface`; ours builds none. It notes which tokens are real and whether
the future is hidden, and refuses what it cannot note, so that nothing a model asks of its mask is ever lost.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from asterism.errors import ConfigurationError
from asterism.layers.rows.padding import Packing, is_known_full, real_tokens
from asterism.models.drop_in.documents import from_mask
from asterism.models.drop_in.field import INCLUDED, read_native_window
from asterism.models.drop_in.sharded import ModelCall, sharded_call

_OTHER_CACHE = (
    "a static or sliding cache cannot forget by a pattern; leave out cache_implementation and the cache, or pass a"
    " PatternCache(max_tokens=...) for one of fixed size"
)


class LayerTokens(NamedTuple):
    """N new tokens per row, after S that a cache has seen.

    real     bool [B, S + N], False for padding; None when all tokens are real
    packing  of the new tokens, when there is padding among them
    padding  then, `packing.known()`; None where it is not known, in a compiled graph
    seen     S
    causal   whether the model hides the future
    documents  the lengths of the documents that the rows hold one after another, all rows in one list; None where each
             row is one sequence, as far as the mask says
    window   the sliding window of the model's own: a causal query reads so many keys, itself included; another one
             reads so many on either side. None for a layer without.
    call     what all ranks know of a sequence that lies on several devices; the tokens are then those of one shard
    """

    real: torch.Tensor | None
    packing: Packing | None
    padding: tuple[list[int], int, tuple[str, ...]] | None
    seen: int
    causal: bool
    window: int | None
    documents: tuple[int, ...] | None = None
    call: ModelCall | None = None

    @property
    def first(self) -> int:
        """How many columns of a row come before those of this call."""
        return self.seen if self.call is None else self.call.first

    def contiguous(self) -> "LayerTokens":
        """Refused with ConfigurationError: only `generate` asks it, of the masks of a static cache, before 5.24."""
        raise self.refusal()

    def refusal(self) -> ConfigurationError:
        """The error for a static cache."""
        return ConfigurationError("foreign-keys", _OTHER_CACHE)


def describe_tokens(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., torch.Tensor] | None = None,
    attention_mask: torch.Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool | None = None,
    use_vmap: bool = False,
    device: Any = None,
    config: Any = None,
    **unused: Any,
) -> LayerTokens:
    """The mask function: a LayerTokens, which transformers hands from the model to the attention of each layer.

    Of the arguments of transformers, attention_mask is bool or int [B, kv_length], True or 1 for tokens; mask_function
    maps int64 indices of rows, heads, queries and keys to bool, all of the shape that they broadcast to.

    Only masks of models that hide nothing come with `allow_is_bidirectional_skip`. Where neither skip is allowed, the
    mask is more than padding, causality and a window. Raises ConfigurationError for such masks, unless they keep the
    documents of a row apart, for caches that give keys another way than one after the other, and for keys of another
    sequence.
    """
    causal = allow_is_bidirectional_skip is None
    documents, call = None, sharded_call()
    if not (allow_is_causal_skip if causal else allow_is_bidirectional_skip):
        one_sequence = q_offset == 0 and kv_length == q_length and attention_mask is None
        if not causal or use_vmap or mask_function is None or chunks(config) or not one_sequence:
            raise ConfigurationError(
                "custom-mask",
                "the model's mask holds more than padding, causality and documents, such as its own mask function,"
                " which a pattern cannot follow; give an attention_mask [batch, tokens]",
            )
        documents = None if call is not None else from_mask(mask_function, batch_size, q_length, device)
    if isinstance(q_offset, torch.Tensor) or kv_offset != 0 or kv_length != q_offset + q_length:
        raise ConfigurationError(
            "foreign-keys",
            f"{_OTHER_CACHE}: {kv_length} keys came with {q_length} new tokens, and a pattern needs those of the"
            " queries' own sequence, no more and no fewer",
        )
    if q_offset and not causal:
        raise ConfigurationError(
            "future-with-cache", "a model that reads the future cannot continue from a cache; pass the whole sequence"
        )
    if call is not None:
        return LayerTokens(call.rows.real, None, None, 0, causal, local_size, call.documents(causal), call)
    real = None if attention_mask is None else real_tokens(attention_mask, batch_size, q_offset, q_length)
    real = None if real is None or is_known_full(real) else real
    counts = local_size is not None and config is not None and read_native_window(config) == INCLUDED
    if real is not None and counts and not is_whole(real, _HOLE):
        raise ConfigurationError("native-hole", _HOLE)
    new = None if real is None else real[:, q_offset:]
    packing = None if new is None or (q_offset and is_known_full(new)) else Packing.of(new)
    padding = None if packing is None or torch.compiler.is_compiling() else packing.known()
    return LayerTokens(real, packing, padding, q_offset, causal, local_size, documents)


def is_whole(real: torch.Tensor, otherwise: str) -> bool:
    """Whether no row of bool [B, S + N], True for tokens, has padding amid them.

    A window or chunk of the model's own counts it, as its positions do, and a pattern does not. A graph cannot ask:
    True comes back, and the graph is stopped by these words when it runs.
    """
    begins = torch.cat([real[:, :1], real[:, 1:] & ~real[:, :-1]], dim=1)
    whole = (begins.sum(dim=1) <= 1).all()
    if torch.compiler.is_compiling():
        torch._assert_async(whole, otherwise)
        return True
    return bool(whole)


_HOLE = (
    "attention_mask has padding between the tokens of a row, which windows and chunks of the model's own count as"
    " tokens, and patterns do not: put padding on one side of each row, or give the model a pattern without native"
)


def chunks(config: Any) -> bool:
    """Whether layers of a model attend in chunks."""
    return bool(getattr(config, "attention_chunk_size", None))


def require_tokens(mask: object, module: Any) -> LayerTokens:
    """What `describe_tokens` gave the model, or what an encoder gives its attention in the place of it.

    An encoder that knows no padding, such as ViT, gives None; one that makes its mask as older models do, such as
    LayoutLM, [batch, 1, 1, tokens], 0 or True for tokens that may be read. Raises ConfigurationError for anything else.
    """
    if isinstance(mask, LayerTokens):
        return mask
    if mask is None and not getattr(module, "is_causal", True):
        return LayerTokens(None, None, None, 0, False, None)
    if isinstance(mask, torch.Tensor) and mask.ndim == 4 and mask.shape[1:3] == (1, 1):
        return _of_padding(mask[:, 0, 0])
    seen = "no mask from its model" if mask is None else f"{mask!r} in place of a mask"
    seen = f"a mask of shape {list(mask.shape)}" if isinstance(mask, torch.Tensor) else seen
    raise ConfigurationError(
        "mask-form",
        f"attention got {seen}, which a pattern cannot follow: pass attention_mask as [batch, tokens], 1 for tokens"
        " and 0 for padding; the pattern replaces masks [batch, heads, queries, keys]",
    )


def _of_padding(mask: torch.Tensor) -> LayerTokens:
    """From what is added to the scores of each key, [batch, tokens]: 0 for tokens; or True for them."""
    real = mask if mask.dtype == torch.bool else mask == 0
    if not torch.compiler.is_compiling() and not bool((real | (mask <= -1e4)).all()):
        raise ConfigurationError(
            "weighted-mask",
            "attention got a mask that weights keys; a pattern supports only 1 for tokens and 0 for padding",
        )
    if is_known_full(real):
        return LayerTokens(None, None, None, 0, False, None)
    return LayerTokens(real, Packing.of(real), None, 0, False, None)
