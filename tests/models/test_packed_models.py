"""Models read documents that are packed into a row as they read them alone."""

from itertools import accumulate

import pytest
import torch
from refusals import refusing
from small_models import CAUSAL_MIXERS, VOCABULARY, encoder_config, random_tokens, randomise, small_model
from transformers import DataCollatorWithFlattening

from asterism.errors import ConfigurationError, KernelError
from asterism.layers import SparseAttention, rows_of
from asterism.models import (
    AsterismConfig,
    AsterismForCausalLM,
    AsterismForMaskedLM,
    AsterismForSequenceClassification,
    AsterismForTokenClassification,
)

LENGTHS = (19, 1, 12, 40, 7)  # more than the 64 positions of the models in all, and each of them less
ALL_ATTENTION = {
    "block": "all_attention",
    "attention_bias": False,
    "persistent_vectors": 6,
    "position_type": "relative",
    "relative_span": 9,
    "adaptive_span": True,
    "adaptive_span_ramp": 4,
}
ROWS = [random_tokens(1, length, seed=length) for length in LENGTHS]
TOGETHER = torch.cat(ROWS, dim=1)
POSITIONS = torch.cat([torch.arange(length) for length in LENGTHS])[None]
BOUNDS = torch.tensor([0, *accumulate(LENGTHS)], dtype=torch.int32)
SAID = {
    "position_ids": {"position_ids": POSITIONS},
    "cu_seqlens": {"cu_seqlens": BOUNDS},
    "list": {"cu_seqlens": BOUNDS.tolist()},
}


def causal_models():
    yield from ((text, {}) for text in (CAUSAL_MIXERS[4], CAUSAL_MIXERS[7], CAUSAL_MIXERS[-2], CAUSAL_MIXERS[-1]))
    yield "strided(stride=6)", {"position_type": "rotary", "num_key_value_heads": 2}
    yield "fixed(stride=8)", {"position_type": "factorised", "position_shape": [8, 8]}
    yield "causal()", ALL_ATTENTION


def with_gradients(model, losses):
    total = sum(losses)
    gradients = torch.autograd.grad(total, list(model.parameters()), allow_unused=True)
    return [total, *gradients]


@pytest.mark.parametrize("said", SAID)
@pytest.mark.parametrize(("text", "fields"), list(causal_models()))
def test_causal_models(text, fields, said):
    """Logits, the summed loss, whose labels need no border, and its gradient."""
    model = small_model(text, **fields)
    packed = model(TOGETHER, **SAID[said])
    alone = [model(row).logits for row in ROWS]
    torch.testing.assert_close(packed.logits, torch.cat(alone, dim=1), atol=1e-11, rtol=0)
    assert not torch.allclose(model(TOGETHER[:, :60]).logits, packed.logits[:, :60])
    summed = {"num_items_in_batch": 1}
    loss = model(TOGETHER, labels=TOGETHER, **SAID[said], **summed).loss
    losses = [model(row, labels=row, **summed).loss for row in ROWS]
    for one, other in zip(with_gradients(model, [loss]), with_gradients(model, losses), strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-5)  # transformers has the loss in float32


@pytest.mark.parametrize("kind", [AsterismForMaskedLM, AsterismForTokenClassification])
@pytest.mark.parametrize("text", ["bigbird(block=4)", "interleave(star_transformer(), window(left=3, right=3))"])
def test_models_that_answer_for_each_token(text, kind):
    model = randomise(kind(encoder_config(text, num_labels=3)))
    alone = torch.cat([model(row).logits for row in ROWS], dim=1)
    for said in SAID.values():
        torch.testing.assert_close(model(TOGETHER, **said).logits, alone, atol=1e-11, rtol=0)


def test_rows_with_documents_of_their_own():
    """A batch of two: the rows hold other documents, and nothing crosses from row to row."""
    model = small_model("fixed(stride=8)")
    rows = torch.cat([random_tokens(1, 20, seed=1), random_tokens(1, 20, seed=2)])
    positions = torch.cat([torch.arange(5), torch.arange(15), torch.arange(20)]).view(2, 20)
    logits = model(rows, position_ids=positions).logits
    torch.testing.assert_close(logits[:1, :5], model(rows[:1, :5]).logits, atol=1e-11, rtol=0)
    torch.testing.assert_close(logits[:1, 5:], model(rows[:1, 5:]).logits, atol=1e-11, rtol=0)
    torch.testing.assert_close(logits[1:], model(rows[1:]).logits, atol=1e-11, rtol=0)


def test_what_a_collator_of_transformers_flattens():
    model = small_model("strided(stride=6)")
    batch = DataCollatorWithFlattening()([{"input_ids": row[0].tolist()} for row in ROWS])
    out = model(**batch)
    alone = torch.cat([model(row).logits for row in ROWS], dim=1)
    torch.testing.assert_close(out.logits, alone, atol=1e-11, rtol=0)
    torch.testing.assert_close(out.loss, model(TOGETHER, labels=TOGETHER, position_ids=POSITIONS).loss)


def test_positions_that_say_nothing_new_change_nothing():
    """As `generate` makes them, with padding on the left, and without any."""
    model = small_model("fixed(stride=8)")
    tokens, mask = random_tokens(2, 9), torch.tensor([[0] * 3 + [1] * 6, [1] * 9])
    expected = model(tokens, attention_mask=mask).logits
    positions = (mask.cumsum(1) - 1).masked_fill(mask == 0, 1)
    assert torch.equal(model(tokens, attention_mask=mask, position_ids=positions).logits, expected)
    assert torch.equal(model(tokens, position_ids=torch.arange(9)[None]).logits, model(tokens).logits)
    assert torch.equal(model(tokens, cu_seqlens=[0, 9]).logits, model(tokens).logits)


@pytest.mark.parametrize(
    ("arguments", "message"),
    (
        ({"position_ids": POSITIONS, "cu_seqlens": BOUNDS}, "give one of them"),
        ({"position_ids": POSITIONS[:, :-1]}, r"\[1 or 1, 79\], got \[1, 78\]"),
        ({"position_ids": POSITIONS + 1}, "got 1 first in row 0, column 0"),
        ({"position_ids": POSITIONS * 2}, "got 2 after 0 in row 0, column 1"),
        ({"position_ids": POSITIONS.float()}, "whole numbers"),
        ({"cu_seqlens": [0, 80]}, "cu_seqlens must go from 0 to the number of tokens, 79; got 0 to 80"),
        ({"cu_seqlens": [0, 30, 20, 79]}, "must not decrease, got 30 and then 20 at 2"),
        ({"cu_seqlens": torch.tensor([0.0, 79.0])}, "int32 or int64"),
        ({"position_ids": POSITIONS, "attention_mask": torch.arange(79)[None] > 3}, "remove the padding"),
        ({"position_ids": POSITIONS, "use_cache": True}, "a cache continues one sequence"),
    ),
)
def test_what_cannot_be_packed_is_refused_in_one_line(arguments, message):
    with pytest.raises((ConfigurationError, KernelError), match=message) as refused:
        small_model("causal()")(TOGETHER, **arguments)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("mixers", "fields", "message"),
    (
        ("bigbird_etc(block=4, globals=2)", {"global_tokens": 2}, "2 global tokens before a row"),
        ("interleave(fourier(), dense())", {}, r"fourier\(\) reads a whole row"),
        ("longformer(window=4)", {"global_projections": [0]}, "global_projections read a whole row"),
    ),
)
def test_models_that_read_whole_rows_refuse(mixers, fields, message):
    model = AsterismForMaskedLM(encoder_config(mixers, **fields))
    with pytest.raises(ConfigurationError, match=message):
        model(TOGETHER[:, :20], position_ids=torch.arange(20)[None] % 10)
    assert model(TOGETHER[:, :20]).logits.shape == (1, 20, VOCABULARY)


def test_a_head_for_rows_refuses():
    model = AsterismForSequenceClassification(encoder_config("dense()"))
    with refusing(ConfigurationError, "packed-rows-pooled", "AsterismForSequenceClassification"):
        model(TOGETHER, position_ids=POSITIONS)


def test_layers_refuse_what_documents_do_not_go_with():
    hidden = torch.randn(1, 20, 32)
    with refusing(ConfigurationError, "lengths-and-documents"):
        rows_of(hidden, documents=[20], lengths=[20])
    with refusing(ConfigurationError, "global-projections-segments"):
        SparseAttention(32, 4, "causal()", global_projections=[0])(hidden, rows=rows_of(hidden, documents=[20]))


def test_packed_batches_train():
    """Dropout inside attention, gradient checkpointing, and a second call with other lengths."""
    config = AsterismConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                            max_position_embeddings=64, mixers="strided(stride=6)", attention_dropout=0.2)  # fmt: skip
    model = AsterismForCausalLM(config).train()
    getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
    for bounds in ([0, 30, 79], [0, 1, 50, 79]):
        loss = model(TOGETHER, labels=TOGETHER, cu_seqlens=bounds, dropout_seed=3).loss
        loss.backward()
        assert loss.isfinite()


def test_generation_is_as_before():
    """The argument position_ids makes transformers count positions, which the model does itself."""
    model = small_model("fixed(stride=8)")
    mask = torch.ones(2, 9, dtype=torch.int64)
    mask[0, :4] = 0
    tokens = random_tokens(2, 9)
    options = {"attention_mask": mask, "max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    cached, plain = (model.generate(tokens, use_cache=use_cache, **options) for use_cache in (True, False))
    assert torch.equal(cached, plain)


def test_lengths_that_keep_changing_say_what_is_wrong():
    with pytest.raises((ConfigurationError, KernelError), match="whole numbers"):
        small_model("causal()")(TOGETHER, cu_seqlens=[[0, 79]])
