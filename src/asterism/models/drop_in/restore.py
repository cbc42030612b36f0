"""A model that is built from a configuration with a pattern follows it from the start, as if by `use_pattern(model)`.

Transformers builds a model from its configuration in many ways (`from_pretrained`, `from_config`, inside of another
model). All of them ask which attention to use where none is asked for, and end in `post_init`. There the pattern is
selected, and the layers are told their places, so that a saved model reads and forgets the same keys when it is loaded.
"""

from functools import wraps
from typing import Any

from transformers import PreTrainedModel

from asterism.models.drop_in.adapters import remember_in_adapters
from asterism.models.drop_in.field import IMPLEMENTATION
from asterism.models.drop_in.interface import interface_of
from asterism.models.drop_in.use_pattern import restore_pattern


def restore_when_built(kind: type[PreTrainedModel]) -> None:
    """Have models of a kind restored when they are built. Calling it again changes nothing."""
    choose, finish = kind.get_correct_attn_implementation, kind.post_init
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
        remember_in_adapters()
        if self.config.asterism_pattern is not None and any(interface_of(module) for module in self.modules()):
            restore_pattern(self)

    post_init.restores_patterns = True  # type: ignore[attr-defined]
    kind.get_correct_attn_implementation = get_correct_attn_implementation  # type: ignore[method-assign]
    kind.post_init = post_init  # type: ignore[method-assign]
