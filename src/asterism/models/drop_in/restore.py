"""A model that is built from a configuration with a pattern follows it from the start, as if by `use_pattern(model)`.

Transformers builds a model from its configuration in many ways (`from_pretrained`, `from_config`, inside of another
model). All of them ask which attention to use where none is asked for, and end in `post_init`. There the pattern is
selected, and the layers are told their places, so that a saved model reads and forgets the same keys when it is loaded.
"""

import logging
from functools import wraps
from typing import Any

from transformers import PreTrainedModel

from asterism.models.drop_in.field import IMPLEMENTATION, is_set_aside
from asterism.models.drop_in.interface import interface_of
from asterism.models.drop_in.use_pattern import restore_pattern

_LOG = logging.getLogger(__name__)


def restore_when_built(kind: type[PreTrainedModel]) -> None:
    """Have models of a kind restored when they are built. Calling it again changes nothing."""
    choose, finish, select = kind.get_correct_attn_implementation, kind.post_init, kind.set_attn_implementation
    if getattr(finish, "restores_patterns", False):
        return

    @wraps(choose)
    def get_correct_attn_implementation(
        self: PreTrainedModel, requested_attention: str | None, *arguments: Any, **named: Any
    ) -> str:
        # A model that holds others asks for none on their behalf.
        default = None if self.config.asterism_pattern is None else IMPLEMENTATION
        return choose(self, requested_attention or default, *arguments, **named)

    @wraps(finish)
    def post_init(self: PreTrainedModel) -> None:
        finish(self)
        if self.config.asterism_pattern is not None and any(interface_of(module) for module in self.modules()):
            restore_pattern(self)

    post_init.restores_patterns = True  # type: ignore[attr-defined]

    @wraps(select)
    def set_attn_implementation(self: PreTrainedModel, *arguments: Any, **named: Any) -> None:
        before = _following(self)
        select(self, *arguments, **named)
        for config in before:
            if config.asterism_pattern is None or not is_set_aside(config):
                continue
            _LOG.warning(
                "attention is %r now: the pattern %s is set aside and will not be saved; use_pattern(model) selects it"
                " again",
                config._attn_implementation,
                config.asterism_pattern,
            )

    kind.set_attn_implementation = set_attn_implementation  # type: ignore[method-assign]
    kind.get_correct_attn_implementation = get_correct_attn_implementation  # type: ignore[method-assign]
    kind.post_init = post_init  # type: ignore[method-assign]


def _following(model: PreTrainedModel) -> list[Any]:
    """The configurations in a model whose pattern is followed."""
    configs = {id(part.config): part.config for part in model.modules() if isinstance(part, PreTrainedModel)}
    return [config for config in configs.values() if config.asterism_pattern is not None and not is_set_aside(config)]
