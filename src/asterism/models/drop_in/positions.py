"""Rotary positions within the cache: to a query, a key stands where it stands among the keys that the query reads.

Attention sinks were published so (Xiao 2023, section 3.2): what a model reads is never further away than `first +
window` tokens, however long the text. In a window nothing changes by that. To the sinks, a query at t stands as if it
were at min(t, first + window - 1): for them alone it is rotated back, once more. Rotations by position add up, which
leaves one product of twice the width, in which each key has one half:

    [q at t, q at min(t, first + window - 1)] . [k, 0]     for a key of the window
    [q at t, q at min(t, first + window - 1)] . [0, k]     for one of the sinks
"""

import ast
import copy
import inspect
import logging
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from asterism.errors import ConfigurationError
from asterism.layers.rows.padding import count_positions
from asterism.memo import remembering_few
from asterism.models.drop_in.field import read_positions
from asterism.models.drop_in.tokens import LayerTokens, is_whole
from asterism.patterns import Pattern, causal

_LOG = logging.getLogger(__name__)

_ROTATE = "apply_rotary_pos_emb"
"""What the files of transformers call the function that rotates queries and keys."""

_UNCHANGING = ("default", "linear", "llama3", "yarn")
"""Kinds of rotary positions whose frequencies do not depend on the length."""

_NAME = "asterism_rotation"
"""The attribute of an attention module that holds its rotation."""


_HOLE = (
    "attention_mask has padding between the tokens of a row, which rotary positions count and those within the cache do"
    ' not: put padding on one side of each row, or leave positions="cache" out'
)


class _Turn(NamedTuple):
    """By how much queries are rotated back, in cosines and sines [B or 1, N, R], wide, and which keys are sinks, bool
    [B or 1, 1, S, 1]."""

    cos: Tensor
    sin: Tensor
    is_sink: Tensor


@dataclass
class Rotation:
    """How a family rotates: `owner.rotary_emb` gives cosines and sines of positions, `rotate` applies them.

    is_tried  whether it was seen to add up: not yet for a model without numbers
    latest    the turn of a call and what it was asked for, which all layers of the call share
    """

    owner: nn.Module
    rotate: Callable[..., tuple[Tensor, Tensor]]
    is_tried: bool = False
    latest: tuple[tuple[Any, ...], _Turn] | None = field(default=None, compare=False, repr=False)

    @property
    def angles(self) -> Any:
        """The module that gives them, which may have been replaced."""
        return self.owner.rotary_emb

    def angles_back(self, like: Tensor, by: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines, in the dtype of `like`, of int64 [B or 1, N] positions further in front."""
        cos, sin = self.angles(like, -by)
        size = getattr(self.angles, "attention_scaling", 1.0)  # yarn scales what it rotates, which is done already
        return cos / size, sin / size

    def back(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x [B, H, N, D], which is rotated, rotated by these angles; in its dtype."""
        wide = x.to(cos.dtype)
        return self.rotate(wide, wide[:, :1], cos, sin)[0].to(x.dtype)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Rotation":
        return Rotation(copy.deepcopy(self.owner, memo), self.rotate, self.is_tried)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"latest": None}


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
    if sinks is None:
        return None
    if (rotation is None) != (read_positions(module.config) == "original"):
        raise ConfigurationError(
            "positions-not-set",
            "asterism_positions in the configuration was changed by hand: call use_pattern(model), which follows it",
        )
    if rotation is None:
        _warn_beyond(module, tokens.first + q.shape[2])
        return None
    if not rotation.is_tried and not torch.compiler.is_compiling():
        _try(rotation, module)
    if tokens.call is not None:
        raise ConfigurationError(
            "positions-in-shards", 'positions="cache" is not supported within sequence_parallel: leave it out'
        )
    cos, sin, is_sink = _turn(rotation, q, k, sinks, tokens, documents)
    keys = torch.cat([k.masked_fill(is_sink, 0), k.masked_fill(~is_sink, 0)], dim=-1)
    return torch.cat([q, rotation.back(q, cos, sin)], dim=-1), keys


def _warn_beyond(module: Any, length: int) -> None:
    """Say, once for each length of training, that sinks are further away than a rotary model has ever seen."""
    longest = getattr(module.config, "max_position_embeddings", None)
    is_rotary = getattr(module.config, "rope_parameters", None)
    if longest and length > longest and is_rotary and not torch.compiler.is_compiling():
        _say_beyond(longest)


@remembering_few(16)
def _say_beyond(longest: int) -> None:
    _LOG.warning(
        "the text is longer than the %d tokens of max_position_embeddings, and the first keys of sinks(...) stand"
        ' further away than the model has learned: use_pattern(model, pattern, positions="cache") shows them near by',
        longest,
    )


def _turn(
    rotation: Rotation,
    q: Tensor,
    k: Tensor,
    sinks: tuple[int, int],
    tokens: LayerTokens,
    documents: tuple[int, ...] | None,
) -> _Turn:
    asked = documents, sinks, q.shape, k.shape[2], q.dtype, q.device
    latest = rotation.latest  # once: another thread may call the model, too
    is_compiling = torch.compiler.is_compiling()
    if not is_compiling and latest is not None and latest[0][0] is tokens and latest[0][1:] == asked:
        return latest[1]
    if tokens.real is not None and not is_whole(tokens.real, _HOLE):
        raise ConfigurationError("positions-hole", _HOLE)
    first, window = sinks
    places = _places(tokens, documents, q, max(q.shape[2], k.shape[2]))
    by = (places[:, -q.shape[2] :] - (first + window - 1)).clamp(min=0)
    wide = torch.promote_types(q.dtype, torch.float32)
    is_sink = (places[:, -k.shape[2] :] < first)[:, None, :, None]
    turn = _Turn(*rotation.angles_back(q[:, :1, :1].to(wide), by), is_sink)
    if not is_compiling:
        rotation.latest = (tokens, *asked), turn
    return turn


def _places(tokens: LayerTokens, documents: tuple[int, ...] | None, q: Tensor, count: int) -> Tensor:
    """Where the last `count` tokens stand in their rows or documents, int64 [B or 1, count]; anywhere for padding."""
    total = tokens.seen + q.shape[2]
    if documents is not None:
        places = torch.cat([torch.arange(length, device=q.device) for length in documents])
        return places.view(q.shape[0], -1)
    if tokens.real is None:
        return torch.arange(total - count, total, device=q.device)[None]
    return count_positions(tokens.real, total, q.device)[:, -count:].clamp(min=0)


def sinks_of(pattern: Pattern) -> tuple[int, int] | None:
    """`first` and `window` of `sinks`; None for other patterns."""
    found = re.fullmatch(r"sinks\(first=(\d+), window=(\d+)\)", pattern.text)
    return None if found is None else (int(found[1]), int(found[2]))


def _keeps_distances(pattern: Pattern) -> bool:
    """Whether queries read all tokens from some place on to their own."""
    return pattern == causal() or re.fullmatch(r"window\(left=\d+, right=0, dilation=1\)", pattern.text) is not None


# --- what a family does ----------------------------------------------------------------------------------------------


def _rotation_of(model: PreTrainedModel, modules: Sequence[Any]) -> Rotation:
    owners = [part for part in model.modules() if isinstance(getattr(part, "rotary_emb", None), nn.Module)]
    tables = [name for name, _ in model.named_modules() if "rotary" in name.rpartition(".")[2]]  # Molmo 2 has two
    rotate = getattr(sys.modules[type(modules[0]).__module__], _ROTATE, None)
    if (
        not len(owners) == len(tables) == 1
        or rotate is None
        or not all(_always_rotates(type(module)) for module in modules)
    ):
        raise _refusal(model, "does not rotate queries and keys alike in every layer, or changes them afterwards")
    rotation = Rotation(owners[0], rotate)
    kind = getattr(rotation.angles, "rope_type", None)
    if "mrope_section" in (getattr(model.config, "rope_parameters", None) or {}):
        raise _refusal(model, "has rotary positions of images")
    if not isinstance(kind, str):
        raise _refusal(model, "has rotary positions of several kinds, by types of layers")
    if kind not in _UNCHANGING:
        raise _refusal(model, f"has rotary positions of the kind {kind!r}, which depend on the length")
    if not any(x.is_meta for x in (*rotation.angles.buffers(), *rotation.angles.parameters())):
        _try(rotation, model)  # else its numbers are yet to be read
    return rotation


def _try(rotation: Rotation, model: Any) -> None:
    """Raises ConfigurationError for rotations that do not add up."""
    if not _adds_up(rotation, model.config):
        raise _refusal(model, "rotates queries and keys in a way of its own, such as a part of each head")
    rotation.is_tried = True


def _always_rotates(kind: Any) -> bool:
    """Whether attention of this kind rotates under no condition, and hands on what it has rotated as it is."""
    try:
        forward = ast.parse(textwrap.dedent(inspect.getsource(kind.forward))).body[0]
    except (OSError, TypeError):
        return False
    assert isinstance(forward, ast.FunctionDef)
    for number, statement in enumerate(forward.body):
        match statement:
            case ast.Assign(
                targets=[ast.Tuple(elts=[ast.Name() as query, ast.Name() as key])],
                value=ast.Call(func=ast.Name(id=name)),
            ) if name == _ROTATE:
                return _hands_on(forward.body[number + 1 :], query.id, key.id)
    return False


def _hands_on(statements: list[ast.stmt], query: str, key: str) -> bool:
    """Whether attention gets these two variables, which only a cache may have changed before (HunYuan norms them)."""
    nodes = [node for statement in statements for node in ast.walk(statement)]
    for node in nodes:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names = {part.id for target in targets if target for part in ast.walk(target) if isinstance(part, ast.Name)}
        value = getattr(node, "value", None)
        is_update = isinstance(value, ast.Call) and ast.unparse(value.func).endswith(".update")
        if names & {query, key} and not is_update:
            return False
    calls = [node.args for node in nodes if isinstance(node, ast.Call) and len(node.args) > 3]
    return any([ast.unparse(one) for one in given[1:3]] == [query, key] for given in calls)


def _adds_up(rotation: Rotation, config: Any) -> bool:
    """Whether rotating back by 5 what was rotated by 7 is rotating by 2, but for the size that some kinds give it."""
    device = next(rotation.angles.buffers()).device
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    x = torch.linspace(-1, 1, width, dtype=torch.float32, device=device).expand(1, 1, 1, -1)

    def at(position: int) -> Tensor:
        return rotation.rotate(x, x, *rotation.angles(x, torch.tensor([[position]], device=device)))[0]

    try:
        turned = rotation.back(at(7), *rotation.angles_back(x, torch.tensor([[5]], device=device)))
        return torch.allclose(turned, at(2), atol=1e-4)
    except (TypeError, RuntimeError, ValueError):
        return False


def _refusal(model: nn.Module, why: str) -> ConfigurationError:
    return ConfigurationError(
        "positions-of-model", f'{type(model).__name__} {why}, so positions="cache" cannot be had: leave it out'
    )
