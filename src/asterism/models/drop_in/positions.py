"""Rotary positions within the cache: to a query, a key stands where it stands among the keys that the query reads.

Attention sinks were published so (Xiao 2023, section 3.2): what a model reads is never further away than `first +
window` tokens, however long the text. In a window nothing changes by that. To the sinks, a query at t stands as if it
were at min(t, first + window - 1): for them alone it is rotated back, once more. Rotations by position add up, which
leaves one product of twice the width, in which each key has one half:

    [q at t, q at min(t, first + window - 1)] . [k, 0]     for a key of the window
    [q at t, q at min(t, first + window - 1)] . [0, k]     for one of the sinks
"""

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from asterism.errors import ConfigurationError
from asterism.layers.rows.padding import count_positions
from asterism.models.drop_in.field import read_positions
from asterism.models.drop_in.tokens import LayerTokens
from asterism.patterns import Pattern, causal

_ROTATE = "apply_rotary_pos_emb"
"""What the files of transformers call the function that rotates queries and keys."""

_UNCHANGING = ("default", "linear", "llama3", "yarn")
"""Kinds of rotary positions whose frequencies do not depend on the length."""

_NAME = "asterism_rotation"
"""The attribute of an attention module that holds its rotation."""


@dataclass(frozen=True)
class Rotation:
    """How a family rotates: `angles` gives cosines and sines of positions, `rotate` applies them."""

    angles: nn.Module
    rotate: Callable[..., tuple[Tensor, Tensor]]

    def back(self, x: Tensor, by: Tensor) -> Tensor:
        """x [B, H, N, D], rotated, as if its tokens stood int64 [B or 1, N] positions further in front; its dtype."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        cos, sin = self.angles(wide, -by)
        size = getattr(self.angles, "attention_scaling", 1.0)  # yarn scales what it rotates, which is done already
        return self.rotate(wide, wide[:, :1], cos / size, sin / size)[0].to(x.dtype)


def set_rotations(model: PreTrainedModel, modules: Sequence[Any]) -> None:
    """Tell each attention module how it rotates, where positions are those within the cache.

    Raises ConfigurationError for a model of which this is not known.
    """
    rotation = _rotation_of(model, modules) if read_positions(model.config) == "cache" else None
    for module in modules:
        setattr(module, _NAME, rotation)


def check_positions(patterns: Sequence[Pattern], native_window: str) -> None:
    """Raises ConfigurationError for patterns in which a key's place among those that are read means little."""
    if native_window == "intersect":
        raise ConfigurationError(
            "positions-in-windows",
            'positions="cache" is for patterns alone, and native_window="intersect" has the model\'s own windows with'
            ' them: give native_window="replace", or leave positions out',
        )
    for number, pattern in enumerate(patterns):
        if sinks_of(pattern) is None and not _keeps_distances(pattern):
            raise ConfigurationError(
                "positions-of-pattern",
                'positions="cache" is for layers of sinks(first, window), window(left) and causal(), and layer'
                f" {number} has {pattern}: leave positions out",
            )


def in_cache(
    module: Any,
    q: Tensor,
    k: Tensor,
    sinks: tuple[int, int] | None,
    tokens: LayerTokens,
    documents: tuple[int, ...] | None,
) -> tuple[Tensor, Tensor] | None:
    """q [B, H, N, 2 D] and k [B, Hkv, S, 2 D] of rotated q [B, H, N, D] and k [B, Hkv, S, D], in their dtype.

    `sinks` are the arguments of the layer's pattern. None for a layer in which distances are what they are.
    """
    rotation: Rotation | None = getattr(module, _NAME, None)
    if rotation is None or sinks is None:
        return None
    if tokens.call is not None:
        raise ConfigurationError(
            "positions-in-shards", 'positions="cache" is not supported within sequence_parallel: leave it out'
        )
    (first, window), places = sinks, _places(tokens, documents, q)
    own, of_keys = places[:, -q.shape[2] :], places[:, -k.shape[2] :]
    back = rotation.back(q, (own - (first + window - 1)).clamp(min=0))
    is_sink = (of_keys < first)[:, None, :, None]
    keys = torch.cat([k.masked_fill(is_sink, 0), k.masked_fill(~is_sink, 0)], dim=-1)
    return torch.cat([q, back], dim=-1), keys


def _places(tokens: LayerTokens, documents: tuple[int, ...] | None, q: Tensor) -> Tensor:
    """Where the tokens stand in their rows or documents, int64 [B or 1, S + N]; anywhere for padding."""
    if documents is None:
        return count_positions(tokens.real, tokens.seen + q.shape[2], q.device).clamp(min=0)
    places = torch.cat([torch.arange(length, device=q.device) for length in documents])
    return places.view(q.shape[0], -1)


def sinks_of(pattern: Pattern) -> tuple[int, int] | None:
    """`first` and `window` of `sinks`; None for other patterns."""
    found = re.fullmatch(r"sinks\(first=(\d+), window=(\d+)\)", pattern.text)
    return None if found is None else (int(found[1]), int(found[2]))


def _keeps_distances(pattern: Pattern) -> bool:
    """Whether queries read all tokens from some place on to their own."""
    return pattern == causal() or re.fullmatch(r"window\(left=\d+, right=0, dilation=1\)", pattern.text) is not None


# --- what a family does ----------------------------------------------------------------------------------------------


def _rotation_of(model: PreTrainedModel, modules: Sequence[Any]) -> Rotation:
    angles = [part for name, part in model.named_modules() if name.rpartition(".")[2] == "rotary_emb"]
    rotate = getattr(sys.modules[type(modules[0]).__module__], _ROTATE, None)
    kind = getattr(angles[0], "rope_type", None) if angles else None
    if len(angles) != 1 or rotate is None or not all(_always_rotates(type(module)) for module in modules):
        raise _refusal(model, "does not rotate queries and keys by their positions in every layer alike")
    if kind not in _UNCHANGING:
        raise _refusal(model, f"has rotary positions of the kind {kind!r}, which depend on the length")
    rotation = Rotation(angles[0], rotate)
    if not _adds_up(rotation, model.config):
        raise _refusal(model, "has rotary positions that do not add up")
    return rotation


def _always_rotates(kind: Any) -> bool:
    """Whether attention of this kind rotates, and under no condition."""
    try:
        forward = ast.parse(textwrap.dedent(inspect.getsource(kind.forward))).body[0]
    except (OSError, TypeError):
        return False
    assert isinstance(forward, ast.FunctionDef)
    return any(
        isinstance(statement, ast.Assign)
        and isinstance(statement.value, ast.Call)
        and ast.unparse(statement.value.func) == _ROTATE
        for statement in forward.body
    )


def _adds_up(rotation: Rotation, config: Any) -> bool:
    """Whether rotating back by 5 what was rotated by 7 is rotating by 2, but for the size that some kinds give it."""
    if any(x.is_meta for x in (*rotation.angles.buffers(), *rotation.angles.parameters())):
        return True  # its numbers are yet to be read; `use_pattern` has seen them
    device = next(rotation.angles.buffers()).device
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    x = torch.linspace(-1, 1, width, dtype=torch.float32, device=device).expand(1, 1, 1, -1)

    def at(position: int) -> Tensor:
        return rotation.rotate(x, x, *rotation.angles(x, torch.tensor([[position]], device=device)))[0]

    try:
        return torch.allclose(rotation.back(at(7), torch.tensor([[5]], device=device)), at(2), atol=1e-4)
    except (TypeError, RuntimeError, ValueError):
        return False


def _refusal(model: PreTrainedModel, why: str) -> ConfigurationError:
    return ConfigurationError(
        "positions-of-model", f'{type(model).__name__} {why}, so positions="cache" cannot be had: leave it out'
    )
