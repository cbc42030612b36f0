"""Adapters of PEFT keep the pattern of the model that they were trained on.

An adapter is saved without its base model, so the base model's configuration, which holds the pattern, is not saved
with it. Its own configuration (adapter_config.json) holds the pattern instead. Where the adapter is put on a model
again, the model follows that pattern, or is refused if it follows another. Where this library is not imported, PEFT
would ignore the pattern with a warning about its own version. So the file names a task that PEFT refuses, in words that
say what to import, and keeps the task in a field of ours.
"""

import sys
from collections.abc import Sequence
from functools import wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from transformers import PreTrainedModel

from asterism.errors import ConfigurationError
from asterism.models.drop_in.field import (
    POSITIONS_FIELD,
    WINDOW_FIELD,
    PatternField,
    read_native_window,
    read_positions,
)
from asterism.models.drop_in.use_pattern import use_pattern
from asterism.patterns import in_full

_FIELDS = (PatternField.name, WINDOW_FIELD, POSITIONS_FIELD)
BASE_FIELD = "asterism_base"
"""The SHA-256 of the weights that an adapter of a run was trained on."""
_KEPT = (*_FIELDS, BASE_FIELD)

_TASK_FIELD = "asterism_task_type"
_REFUSED_TASK = "none without asterism: the adapter follows a pattern, so import asterism.models before you load it"
"""Stands in the file for a task, which PEFT quotes where it refuses it."""


def remember_in_adapters() -> None:
    """Have PEFT keep patterns, now or when it is imported. Calling it again changes nothing."""
    peft = sys.modules.get("peft")
    tuners = sys.modules.get("peft.tuners.tuners_utils")
    if peft is None or tuners is None or not hasattr(peft, "PeftModel"):
        if not any(isinstance(finder, _PeftFinder) for finder in sys.meta_path):
            sys.meta_path.insert(0, _PeftFinder())
        return
    _keep_in_configurations(peft.PeftConfig)
    _keep_in_models(peft.PeftModel)
    _follow_when_put_on(tuners.BaseTuner)


class _PeftFinder(MetaPathFinder):
    """Finds PEFT as the other finders do, and has patterns kept once it is there.

    Importing it early would take a second of everyone who never puts an adapter on.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "peft":
            return None
        # As the import system does, without finders of the old kind.
        others = (finder.find_spec for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        spec = next((found for find in others if (found := find(fullname, path, target))), None)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module  # of this loader, which is for this module alone

            def run_and_remember(module: ModuleType) -> None:
                run(module)
                remember_in_adapters()

            spec.loader.exec_module = run_and_remember  # type: ignore[method-assign]
        return spec


def _keep_in_configurations(kind: Any) -> None:
    """Fields of ours are written to and read from adapter_config.json."""
    if hasattr(kind, PatternField.name):
        return
    write, read = kind.to_dict, kind.from_peft_type

    @wraps(write)
    def to_dict(self: Any) -> dict[str, Any]:
        own = {name: vars(self)[name] for name in _KEPT if vars(self).get(name) is not None}
        written: dict[str, Any] = write(self)
        if PatternField.name in own:
            own[PatternField.name] = in_full(own[PatternField.name])
            own |= {_TASK_FIELD: written.get("task_type"), "task_type": _REFUSED_TASK}
        return written | own

    def from_peft_type(cls: Any, /, **fields: Any) -> Any:
        own = {name: fields.pop(name) for name in _KEPT if name in fields}
        if _TASK_FIELD in fields:  # adapters of before kept the task where PEFT looks for it
            fields["task_type"] = fields.pop(_TASK_FIELD)
        config = read.__func__(cls, **fields)
        vars(config).update(own)
        return config

    kind.to_dict, kind.from_peft_type = to_dict, classmethod(from_peft_type)
    kind.asterism_pattern = None  # that of configurations without a pattern


def _keep_in_models(kind: Any) -> None:
    """What is saved is the pattern of the base model at the time."""
    save = kind.save_pretrained
    if getattr(save, "keeps_patterns", False):
        return

    @wraps(save)
    def save_pretrained(self: Any, *arguments: Any, **named: Any) -> Any:
        for config in self.peft_config.values():
            _remember(config, self.get_base_model())
        return save(self, *arguments, **named)

    save_pretrained.keeps_patterns = True  # type: ignore[attr-defined]
    kind.save_pretrained = save_pretrained


def _follow_when_put_on(kind: Any) -> None:
    """A model that an adapter is put on follows the adapter's pattern."""
    begin = kind.__init__
    if getattr(begin, "follows_patterns", False):
        return

    @wraps(begin)
    def initialise(self: Any, model: Any, peft_config: Any, adapter_name: str, *arguments: Any, **named: Any) -> None:
        config = peft_config.get(adapter_name) if isinstance(peft_config, dict) else peft_config
        if isinstance(model, PreTrainedModel) and config is not None:
            _follow(model, config)
            _remember(config, model)
        begin(self, model, peft_config, adapter_name, *arguments, **named)

    initialise.follows_patterns = True  # type: ignore[attr-defined]
    kind.__init__ = initialise


def _remember(config: Any, model: Any) -> None:
    """Write the pattern of a model into the configuration of its adapter."""
    if not isinstance(model, PreTrainedModel):
        return
    for name in _FIELDS:
        vars(config).pop(name, None)
    if model.config.asterism_pattern is not None:
        own = {PatternField.name: model.config.asterism_pattern, WINDOW_FIELD: read_native_window(model.config)}
        if (positions := read_positions(model.config)) != "original":
            own[POSITIONS_FIELD] = positions
        vars(config).update(own)


def _follow(model: PreTrainedModel, config: Any) -> None:
    """Give a model the pattern of an adapter. Raises ConfigurationError if it has another."""
    pattern, native_window, positions = (vars(config).get(name) for name in _FIELDS)
    if pattern is None:
        return
    own = model.config
    if own.asterism_pattern is None:
        use_pattern(model, pattern, native_window=native_window, positions=positions)
    elif (in_full(own.asterism_pattern), read_native_window(own), read_positions(own)) != (
        in_full(pattern),
        native_window,
        positions or "original",
    ):
        raise ConfigurationError(
            "adapter-of-other-pattern",
            f"the adapter was trained with the pattern {_told(pattern, native_window, positions)}, but the model has"
            f" {_told(own.asterism_pattern, read_native_window(own), read_positions(own))}; use a model without a"
            " pattern, or with that of the adapter",
        )


def _told(pattern: Any, native_window: str | None, positions: str | None) -> str:
    """A pattern with what goes beside it, for a message."""
    beside = {"native_window": native_window, "positions": positions}
    return f"{pattern} ({', '.join(f'{name}={said}' for name, said in beside.items() if said is not None)})"
