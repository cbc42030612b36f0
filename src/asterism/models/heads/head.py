"""What encoders with a head share: how they are built, and what `forward` takes."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from transformers.utils.generic import can_return_tuple

from asterism.errors import ConfigurationError
from asterism.layers.rows import Rows, with_all_ranks
from asterism.models.asterism.backbone import AsterismModel
from asterism.models.asterism.base import AsterismPreTrainedModel
from asterism.models.asterism.configuration import AsterismConfig


class EncoderWithHead(AsterismPreTrainedModel):
    """The backbone, and the head that a subclass puts on it."""

    def __init__(self, config: AsterismConfig) -> None:
        super().__init__(config)
        self.model = AsterismModel(config)
        self._add_head(config)
        self.post_init()

    reads_tokens: ClassVar[bool] = False
    """Whether the head answers for each token by itself, so that a row may hold several documents."""

    def _packing(self, position_ids: Any, cu_seqlens: Any) -> dict[str, Any]:
        """What the backbone is told of packed documents. Raises ConfigurationError where a row must be one text."""
        if not self.reads_tokens and (position_ids is not None or cu_seqlens is not None):
            raise ConfigurationError(
                f"{type(self).__name__} answers for a row as a whole: give each document a row, and leave out"
                " position_ids and cu_seqlens"
            )
        return {"position_ids": position_ids, "cu_seqlens": cu_seqlens}

    def _add_head(self, config: AsterismConfig) -> None:
        """Make the modules of the head, which are initialised after this."""
        raise NotImplementedError


class HeadInput(NamedTuple):
    """What a head reads: the last hidden states [B, N, hidden_size], where their tokens stand, and all if asked for."""

    hidden: torch.Tensor
    rows: Rows
    hidden_states: tuple[torch.Tensor, ...] | None


Output = TypeVar("Output")


def encoder_head(compute: Callable[..., Output]) -> Callable[..., Output]:
    """The `forward` of an encoder with a head, from what the head computes of a HeadInput and of arguments of its own.

    `forward` takes input_ids, attention_mask, token_type_ids and inputs_embeds as AsterismModel does, then the head's
    own arguments, and output_hidden_states, dropout_seed, position_ids, cu_seqlens and return_dict by name. The
    Trainer, pipelines and others read from its signature which columns of a data set a model wants and which of them
    are labels, so all names stand in there.

    Raises ConfigurationError for an argument that neither the head nor a loss takes.
    """
    own = list(inspect.signature(compute).parameters.values())[2:]
    own_names = frozenset(one.name for one in own)

    def forward(
        self: Any,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        *given: Any,
        output_hidden_states: bool | None = None,
        dropout_seed: int | None = None,
        position_ids: torch.Tensor | None = None,
        cu_seqlens: torch.Tensor | Sequence[int] | None = None,
        **named: Any,
    ) -> Output:
        self._refuse_unknown({name: value for name, value in named.items() if name not in own_names})
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            inputs_embeds=inputs_embeds,
            output_hidden_states=output_hidden_states,
            dropout_seed=dropout_seed,
            with_rows=True,
            **self._packing(position_ids, cu_seqlens),
        )
        return compute(self, HeadInput(outputs[0], outputs.rows, outputs.hidden_states), *given, **named)

    *inputs, _, hidden_states, seed, position_ids, cu_seqlens, _ = inspect.signature(forward).parameters.values()
    at = next((number for number, one in enumerate(own) if one.kind is one.VAR_KEYWORD), len(own))
    head = can_return_tuple(functools.wraps(compute)(with_all_ranks(forward)))
    head.__signature__ = inspect.signature(compute).replace(
        parameters=[*inputs, *own[:at], hidden_states, seed, position_ids, cu_seqlens, *own[at:]]
    )
    return head
