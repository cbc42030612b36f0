"""The common part of models with a head: their `forward`, and how encoders with a head are built."""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, TypeVar

from transformers.utils.generic import can_return_tuple

from asterism.errors import ConfigurationError
from asterism.layers.rows import with_all_ranks
from asterism.models.asterism.backbone import AsterismModel
from asterism.models.asterism.base import AsterismPreTrainedModel
from asterism.models.asterism.configuration import AsterismConfig
from asterism.models.cache.naming import CACHE_NAMES

Output = TypeVar("Output")

_INNER = frozenset(("output_attentions", "with_rows"))
"""Arguments of backbones that callers of a head do not give."""


def head_of(
    backbone: Callable[..., Any], *, without: Iterable[str] = ()
) -> Callable[[Callable[..., Output]], Callable[..., Output]]:
    """The `forward` of a model with a head, from what the head computes of the backbone's output.

        @head_of(AsterismModel.forward, without=("token_type_ids",))
        def forward(self, outputs, labels=None, **loss_arguments): ...

    takes (input_ids, attention_mask, past_key_values, inputs_embeds, labels, *, use_cache, ..., **loss_arguments): what
    the backbone's `forward` takes, but for `without`, and the head's own behind those that may be given by position.
    The Trainer, `generate`, pipelines and others read from its signature what a model takes and which of that are
    labels, so all names stand in there.

    A call raises ConfigurationError for an argument that neither the head nor a loss takes.
    """
    hidden = _INNER.union(without)
    read = [one for one in inspect.signature(backbone).parameters.values() if one.name not in hidden]
    first = [one for one in read if one.kind is not one.KEYWORD_ONLY]  # self is one of them

    def decorate(compute: Callable[..., Output]) -> Callable[..., Output]:
        signature = inspect.signature(compute)
        own = list(signature.parameters.values())[2:]
        of_loss = [one for one in own if one.kind is one.VAR_KEYWORD]
        placed = first + own[: len(own) - len(of_loss)]
        signature = signature.replace(parameters=[*placed, *read[len(first) :], *of_loss])
        by_position = [one.name for one in placed[1:]]
        of_backbone, of_head = ({one.name for one in some} for some in (read, own))

        def forward(self: Any, *arguments: Any, **named: Any) -> Output:
            given = dict(zip(by_position, arguments, strict=False))
            if len(arguments) > len(by_position) or any(name in named for name in given):
                signature.bind(self, *arguments, **named)  # raises TypeError, as for any function
            given |= named
            inputs = {name: value for name, value in given.items() if name in of_backbone}
            others = {name: value for name, value in given.items() if name not in of_backbone}
            known = of_head.union(self.loss_arguments)
            self._refuse_unknown({name: value for name, value in others.items() if name not in known})
            others = {name: value for name, value in others.items() if name in known}
            self._complete(inputs, others)
            outputs = self.model(**inputs, with_rows=True, return_dict=True)
            return compute(self, outputs, **others)

        forward.__signature__ = signature  # type: ignore[attr-defined]
        return can_return_tuple(functools.wraps(compute)(with_all_ranks(forward)))

    return decorate


encoder_head = head_of(AsterismModel.forward, without=(*CACHE_NAMES, "use_cache"))
"""`head_of` an encoder, which continues nothing."""


class EncoderWithHead(AsterismPreTrainedModel):
    """The backbone, and the head that a subclass puts on it."""

    def __init__(self, config: AsterismConfig) -> None:
        super().__init__(config)
        self.model = AsterismModel(config)
        self._add_head(config)
        self.post_init()

    reads_tokens: ClassVar[bool] = False
    """Whether the head answers for each token by itself, so that a row may hold several documents."""

    def _complete(self, inputs: dict[str, Any], others: dict[str, Any]) -> None:
        """Raises ConfigurationError for packed documents where a row must be one text."""
        packed = any(inputs.get(name) is not None for name in ("position_ids", "cu_seqlens", "parents"))
        if packed and not self.reads_tokens:
            raise ConfigurationError(
                "packed-rows-pooled",
                f"{type(self).__name__} gives one answer per row: give each document a row, and leave out"
                " position_ids, cu_seqlens and parents",
            )

    def _add_head(self, config: AsterismConfig) -> None:
        """Make the modules of the head, which are initialised after this."""
        raise NotImplementedError
