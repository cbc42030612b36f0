"""How much a model loses under a schedule, measured: nats per token, piece by piece, each kept as soon as it is known.

Layers before the first one that differs from a schedule already run give what they gave then, so they are not run
again: a model whose last layer changed costs one layer. The results are those of whole runs to the bit; that is
checked once, and where a model breaks it, every run is whole.
"""

import hashlib
import inspect
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from asterism.errors import CheckpointError
from asterism.evaluation import CausalModel
from asterism.models import use_pattern
from asterism.models.drop_in.places import find_attention
from asterism.quiet import quiet_transformers
from asterism.sparsify.texts import scored
from asterism.training.run.integrity import read_fields, write_sealed

Schedule = tuple[str, ...]
"""The pattern of each layer, as text."""


class Record:
    """What was measured, in a JSON file that is whole after each measurement.

    Raises CheckpointError for a file that is damaged, or was begun with other settings.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.path = path
        self.document: dict[str, Any] = {"settings": dict(settings), "losses": {}, "seconds": 0.0}
        if not path.exists():
            return
        found = read_fields(path, self.document, "`asterism sparsify`")
        before = found["settings"]
        for name in before.keys() | settings.keys():
            if before.get(name) != settings.get(name):
                raise CheckpointError(
                    "output-of-other-settings",
                    f"{path} was begun with another value of {name!r}: choose another --output, or remove it",
                )
        self.document = found

    def loss(self, schedule: Schedule, piece: str) -> float | None:
        """Nats per token of a piece under a schedule, if that is known."""
        found: dict[str, float] = self.document["losses"].get(_key(schedule), {})
        return found.get(piece)

    def keep(self, schedule: Schedule, piece: str, nats: float, seconds: float) -> None:
        """Write down what was measured."""
        self.document["losses"].setdefault(_key(schedule), {})[piece] = nats
        self.document["seconds"] += seconds
        write_sealed(self.path, self.document)

    def note(self, **values: Any) -> None:
        """Write down something else."""
        self.document |= values
        write_sealed(self.path, self.document)


def _key(schedule: Schedule) -> str:
    return hashlib.sha256("\n".join(schedule).encode()).hexdigest()[:20]


class Losses:
    """Measures a model under schedules, on pieces [1, N] of text that have names."""

    def __init__(self, causal: CausalModel, pieces: Mapping[str, Tensor], record: Record) -> None:
        self.causal, self.pieces, self.record = causal, pieces, record
        self.model: Any = causal.model
        self.layers = _layers(self.model)
        self.reuses: bool | None = None
        self.followed: Schedule = ()

    def mean(self, schedule: Schedule, pieces: Sequence[str]) -> float:
        """Nats per token under one schedule, over the pieces of these names."""
        return self.means(schedule, [schedule], pieces)[0]

    def means(
        self,
        base: Schedule,
        schedules: Sequence[Schedule],
        pieces: Sequence[str],
        tell: Callable[[str], None] = lambda _: None,
    ) -> list[float]:
        """Nats per token under each schedule, over the pieces of these names; quick where schedules begin as `base`."""
        for number, piece in enumerate(pieces, start=1):
            missing = [one for one in dict.fromkeys(schedules) if self.record.loss(one, piece) is None]
            if missing:
                tell(f"{len(missing)} schedules on text {number} of {len(pieces)}")
                self._measure(base, missing, piece)
        return [sum(self._known(one, piece) for piece in pieces) / len(pieces) for one in schedules]

    def _known(self, schedule: Schedule, piece: str) -> float:
        found = self.record.loss(schedule, piece)
        assert found is not None, "it was measured above"
        return found

    def _measure(self, base: Schedule, schedules: Sequence[Schedule], piece: str) -> None:
        ids = self.pieces[piece]
        begun, kept = time.perf_counter(), None
        if self.reuses is None:
            self.reuses = self._can_reuse(base, ids)
        if self.reuses and any(_same(base, one) for one in schedules):
            kept = self._whole(base, ids)[1]
        for one in schedules:
            nats = self._replayed(one, ids, kept, _same(base, one)) if kept else self._whole(one, ids)[0]
            if not math.isfinite(nats):
                raise CheckpointError(
                    "logits-not-numbers",
                    f"{self.causal.folder}: the loss of {ids.shape[1]:,} tokens is not finite; the weights are"
                    " damaged, or their dtype is too small",
                )
            now = time.perf_counter()
            self.record.keep(one, piece, nats, now - begun)
            begun = now

    def _whole(self, schedule: Schedule, ids: Tensor) -> tuple[float, list[Any]]:
        """The loss, and what each layer gave."""
        given: list[Any] = []
        hooks = [layer.register_forward_hook(lambda *call: given.append(call[2])) for layer in self.layers]
        try:
            return self._loss(schedule, ids), given
        finally:
            for hook in hooks:
                hook.remove()

    def _replayed(self, schedule: Schedule, ids: Tensor, given: list[Any], same: int) -> float:
        """The loss, with what the first layers gave before."""
        with _giving(self.layers[:same], given):
            return self._loss(schedule, ids)

    def _can_reuse(self, base: Schedule, ids: Tensor) -> bool:
        """Whether layers that are not run again change nothing: some models hand more than hidden states on."""
        half = len(self.layers) // 2
        if not half:
            return False
        whole, given = self._whole(base, ids)
        return len(given) == len(self.layers) and self._replayed(base, ids, given, half) == whole

    @torch.no_grad()
    def _loss(self, schedule: Schedule, ids: Tensor) -> float:
        if schedule != self.followed:
            use_pattern(self.model, list(schedule), native_window="replace")
            self.followed = schedule
        start, wanted = scored(ids)
        few = "logits_to_keep" in inspect.signature(self.model.forward).parameters
        options = {"logits_to_keep": len(wanted) + 1} if few else {}
        with quiet_transformers():
            logits = self.model(input_ids=ids.to(self.model.device), use_cache=False, **options).logits[0]
        logits = logits[-len(wanted) - 1 : -1].to(torch.promote_types(logits.dtype, torch.float32))
        return float(functional.cross_entropy(logits, wanted.to(logits.device)))


def _same(one: Schedule, other: Schedule) -> int:
    """How many layers two schedules begin alike with."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), len(one))


def _layers(model: Any) -> list[nn.Module]:
    """The layers of a stack, first to last: each holds one attention."""
    attention = {id(module): number for number, module in enumerate(find_attention(model))}
    found = {attention[id(module)]: name for name, module in model.named_modules() if id(module) in attention}
    names = [re.match(r".*?\.\d+(?=\.|$)", found[number]) for number in range(len(found))]
    return [model.get_submodule(name[0]) for name in names if name is not None]


@contextmanager
def _giving(layers: Sequence[nn.Module], given: Sequence[Any]) -> Iterator[None]:
    """Within the body these layers give what they gave before, and compute nothing."""
    for layer, result in zip(layers, given, strict=False):
        layer.forward = lambda *_, result=result, **__: result
    try:
        yield
    finally:
        for layer in layers:
            vars(layer).pop("forward", None)
