"""What `forward` of models with a head takes: the backbone's arguments, and the head's own behind those by position."""

import inspect

import pytest
import torch
from small_models import small_config, small_model

from asterism.models import (
    AsterismForCausalLM,
    AsterismForConditionalGeneration,
    AsterismForMaskedLM,
    AsterismForSequenceClassification,
)

FIRST = {
    AsterismForMaskedLM: "input_ids attention_mask token_type_ids inputs_embeds labels places",
    AsterismForSequenceClassification: "input_ids attention_mask token_type_ids inputs_embeds labels",
    AsterismForCausalLM: "input_ids attention_mask past_key_values inputs_embeds labels logits_to_keep",
    AsterismForConditionalGeneration: (
        "input_ids attention_mask decoder_input_ids decoder_attention_mask encoder_outputs past_key_values"
        " inputs_embeds decoder_inputs_embeds labels logits_to_keep"
    ),
}
"""What may be given by position."""

BY_NAME = {
    AsterismForMaskedLM: "output_hidden_states dropout_seed position_ids cu_seqlens parents",
    AsterismForSequenceClassification: "output_hidden_states dropout_seed position_ids cu_seqlens parents",
    AsterismForCausalLM: "use_cache output_hidden_states dropout_seed position_ids cu_seqlens parents cache",
    AsterismForConditionalGeneration: "token_type_ids use_cache output_hidden_states dropout_seed cache",
}


@pytest.mark.parametrize("kind", FIRST)
def test_all_names_stand_in_the_signature(kind):
    signature = inspect.signature(kind.forward).parameters.values()
    found = {one.kind: [each.name for each in signature if each.kind is one.kind] for one in signature}
    assert found[inspect.Parameter.POSITIONAL_OR_KEYWORD] == ["self", *FIRST[kind].split()]
    assert found[inspect.Parameter.KEYWORD_ONLY] == BY_NAME[kind].split()
    assert found[inspect.Parameter.VAR_KEYWORD] == ["loss_arguments"]


def test_arguments_by_position_are_those_by_name():
    model, tokens = small_model(), torch.arange(18).view(2, 9)
    mask = torch.ones(2, 9, dtype=torch.int64)
    mask[1, 6:] = 0
    named = model(input_ids=tokens, attention_mask=mask, labels=tokens, logits_to_keep=0)
    placed = model(tokens, mask, None, None, tokens, 0)
    assert torch.equal(placed.loss, named.loss) and torch.equal(placed.logits, named.logits)


def test_an_argument_that_says_nothing_changes_nothing():
    model, tokens = small_model(), torch.arange(9)[None]
    plain = model(tokens, labels=tokens).loss
    assert torch.equal(model(tokens, labels=tokens, output_attentions=False, token_type_ids=None).loss, plain)


def test_arguments_that_no_function_takes():
    model, tokens = AsterismForMaskedLM(small_config("dense()")), torch.arange(9)[None]
    with pytest.raises(TypeError, match="multiple values for argument 'input_ids'"):
        model(tokens, input_ids=tokens)
    with pytest.raises(TypeError, match="too many positional arguments"):
        model(tokens, *[None] * 6)
