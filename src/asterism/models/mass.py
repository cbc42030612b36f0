"""Records what the attention of a model reads: the mass per block of every layer and head, for one call of the model.

The recorder sees the queries and keys that the kernels get, after rotary positions and all else, and keeps none of
them: each layer's are summed up before the next layer runs.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from asterism.errors import ConfigurationError
from asterism.kernels.mass import BlockMass, lse_of, mass_of, shares_of
from asterism.kernels.operands import Operands
from asterism.kernels.watching import watching
from asterism.layers import FourierMixing, LinearMixing, PersistentAttention, SparseAttention
from asterism.layers.rows import is_sharded
from asterism.models.asterism.backbone import AsterismModel
from asterism.models.drop_in.field import IMPLEMENTATION
from asterism.models.drop_in.places import find_attention
from asterism.patterns import Pattern
from asterism.patterns.pattern import Named, Or

_MOST_PARTS = 6
"""Parts of a pattern whose shares are found: each takes a call of attention."""


@dataclass(frozen=True, eq=False)
class LayerMass:
    """What one layer reads.

    pattern  who may read whom in this layer
    mass     the mass per block, values [B, H, m], float32 or float64; its tokens are those of the layer, with global
             tokens of the model in front
    parts    the parts of a pattern that is a union, such as `window(left=255)`; none for other patterns
    shares   [parts, B, H], in the dtype of the mass: the mean share of a query's attention that lies in the part; pairs
             in two parts count in both
    """

    pattern: Pattern
    mass: BlockMass
    parts: tuple[Pattern, ...]
    shares: Tensor


@dataclass(eq=False)
class MassRecord:
    """What a model reads, layer by layer, filled when the model has run.

    layers   what each layer reads; None where a layer has no attention over pairs
    without  why, for each of those, by the number of the layer
    """

    layers: list[LayerMass | None]
    without: dict[int, str] = field(default_factory=dict)


@contextmanager
def record_mass(model: nn.Module, block: int | None = None) -> Iterator[MassRecord]:
    """Record the attention mass of a model, per layer and head, for the one call of it that is made in the body.

        with record_mass(model, block=64) as record:
            model(input_ids)
        record.layers[0].mass.values  # [B, H, blocks], float32

    The model is one of `asterism.models`, or one of transformers after `use_pattern`; it runs without a cache, on rows
    [B, N] without padding. `block` is the side of a block in tokens, by default the tile of each layer's plan. The time
    is about twice that of the call, memory that of the masses (`block_mass`).

    Raises ConfigurationError where nothing can be recorded: a model without attention over pairs (FNet), with
    persistent vectors or global projections, with two stacks, without its pattern, in shards, compiled, in training
    with dropout; for padding, for a second call, and at the end where the model was not called.
    """
    modules, record = _attention_of(model)
    recorder = _MassRecorder(record, block)
    hooks = [model.register_forward_pre_hook(recorder.begin, with_kwargs=True)]
    for layer, module in modules.items():
        hooks.append(module.register_forward_pre_hook(recorder.entering(layer), with_kwargs=True))
        hooks.append(module.register_forward_hook(recorder.leave))
    try:
        with watching(recorder.see):
            yield record
    finally:
        for hook in hooks:
            hook.remove()
    missing = [layer for layer in modules if record.layers[layer] is None]
    if missing:
        raise ConfigurationError(
            "mass-not-seen",
            f"no attention was seen in layer {missing[0]} of {type(model).__name__}: call the model once within"
            " record_mass, not compiled and without a cache",
        )


class _MassRecorder:
    """Knows which layer runs, and keeps what it reads."""

    def __init__(self, record: MassRecord, block: int | None) -> None:
        self.record, self.block = record, block
        self.layer: int | None = None
        self.shape: tuple[int, ...] = ()
        self.calls = 0

    def begin(self, module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        """A pre-hook of the model."""
        self.calls += 1
        if self.calls > 1:
            raise ConfigurationError(
                "mass-second-call", "record_mass records one call of the model: open another one for the next text"
            )
        if is_sharded():
            raise ConfigurationError(
                "mass-in-shards", "record_mass sees the tokens of one rank alone: call it without sequence_parallel"
            )
        mask = named.get("attention_mask", given[1] if len(given) > 1 else None)
        if isinstance(mask, Tensor) and not bool(mask.bool().all()):
            raise ConfigurationError(
                "mass-of-padding",
                "record_mass needs rows without padding: give each text by itself, or texts of equal length",
            )

    def entering(self, layer: int) -> Any:
        """A pre-hook of a layer's attention."""

        def enter(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            hidden = given[0] if given else named["hidden_states"]
            self.layer, self.shape = layer, tuple(hidden.shape[:2])

        return enter

    def leave(self, module: nn.Module, given: Any, result: Any) -> None:
        """A hook of a layer's attention."""
        self.layer = None

    def see(self, operands: Operands) -> None:
        """The operands of a call of attention."""
        if self.layer is None:
            return
        if self.record.layers[self.layer] is not None or (operands.q.shape[0], operands.q.shape[2]) != self.shape:
            raise ConfigurationError(
                "mass-of-other-rows",
                f"layer {self.layer} attends to {list(operands.q.shape)} for rows of {list(self.shape)} tokens:"
                " record_mass needs rows of one document each, without a cache",
            )
        pattern = operands.pattern
        parts, lse = _parts_of(pattern), lse_of(operands)
        mass, shares = mass_of(operands, self.block, lse=lse), shares_of(operands, parts, lse)
        self.record.layers[self.layer] = LayerMass(pattern, mass, parts, shares)


def _parts_of(pattern: Pattern) -> tuple[Pattern, ...]:
    """The parts of a union, by whatever name it goes."""
    while isinstance(pattern, Named):
        pattern = pattern.body
    return pattern.parts if isinstance(pattern, Or) and len(pattern.parts) <= _MOST_PARTS else ()


def require_attention(model: nn.Module) -> None:
    """Raises ConfigurationError, as `record_mass` does, for a model of which nothing can be recorded."""
    _attention_of(model)


# --- where a model attends ------------------------------------------------------------------------------------------


def _attention_of(model: nn.Module) -> tuple[dict[int, nn.Module], MassRecord]:
    """The attention of the layers that can be recorded, and an empty record with what cannot be."""
    outer: Any = model
    inner = outer.get_base_model() if hasattr(outer, "get_base_model") else outer
    if not isinstance(inner, PreTrainedModel):
        raise ConfigurationError(
            "not-a-model", f"record_mass needs a model of asterism.models or transformers, got {type(model).__name__}"
        )
    name = type(inner).__name__
    if getattr(inner.config, "is_encoder_decoder", False):
        raise ConfigurationError(
            "mass-of-two-stacks", f"{name} reads by three kinds of attention: record its encoder or its decoder alone"
        )
    stacks = [part for part in inner.modules() if isinstance(part, AsterismModel)]
    if not stacks:
        return _of_transformers(inner)
    mixers: list[nn.Module] = [block.mixer for block in stacks[0].layers]  # type: ignore[misc]
    without = {layer: reason for layer, mixer in enumerate(mixers) if (reason := _reason(mixer))}
    if len(without) == len(mixers):
        kinds = ", ".join(sorted(set(without.values())))
        raise ConfigurationError("mass-without-attention", f"no layer of {name} can be recorded: {kinds}")
    modules = {layer: mixer for layer, mixer in enumerate(mixers) if layer not in without}
    return modules, MassRecord([None] * len(mixers), without)


def _reason(mixer: nn.Module) -> str | None:
    """Why a mixer of ours cannot be recorded."""
    if isinstance(mixer, FourierMixing | LinearMixing):
        name = "fourier" if isinstance(mixer, FourierMixing) else "linear"
        return f"{name}() mixes tokens without attention"
    if isinstance(mixer, PersistentAttention):
        return "persistent vectors share the softmax with the tokens, and belong to no block"
    if not isinstance(mixer, SparseAttention):
        return f"{type(mixer).__name__} is not attention by a pattern"
    if mixer.global_projections is not None:
        return "global_projections give the global tokens a second softmax"
    return None


def _of_transformers(model: PreTrainedModel) -> tuple[dict[int, nn.Module], MassRecord]:
    if model.config._attn_implementation != IMPLEMENTATION:
        raise ConfigurationError(
            "mass-without-pattern",
            f"{type(model).__name__} follows no pattern: call use_pattern(model, ...) before record_mass",
        )
    modules: Sequence[nn.Module] = find_attention(model)
    return dict(enumerate(modules)), MassRecord([None] * len(modules))
