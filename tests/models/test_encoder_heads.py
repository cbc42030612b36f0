"""Heads of encoders: what they compute, what they take, how they are trained, saved and loaded."""

import inspect
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from encoder_patterns import LENGTHS, encoder, normalise, padded
from refusals import refusing
from small_models import VOCABULARY, encoder_config, random_tokens
from torch import nn
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)
from transformers.utils import find_labels

from asterism.errors import ConfigurationError
from asterism.layers.rows import find_rows
from asterism.models import (
    AsterismForCausalLM,
    AsterismForMaskedLM,
    AsterismForPreTraining,
    AsterismForQuestionAnswering,
    AsterismForSequenceClassification,
    AsterismForTokenClassification,
    AsterismModel,
)

# --- heads -----------------------------------------------------------------------------------------------------------

TASKS = {
    AsterismForMaskedLM: {"labels": random_tokens(len(LENGTHS), 22, seed=9)},
    AsterismForPreTraining: {
        "labels": random_tokens(len(LENGTHS), 22, seed=9),
        "next_sentence_label": torch.arange(len(LENGTHS)) % 2,
    },
    AsterismForSequenceClassification: {"labels": torch.arange(len(LENGTHS)) % 3},
    AsterismForTokenClassification: {"labels": random_tokens(len(LENGTHS), 22, seed=9) % 3},
    AsterismForQuestionAnswering: {
        "start_positions": torch.arange(len(LENGTHS)),
        "end_positions": torch.arange(len(LENGTHS)) + 2,
    },
}
"""Every head, with labels for the padded batch."""

AUTO = {
    AsterismForMaskedLM: AutoModelForMaskedLM,
    AsterismForPreTraining: AutoModelForPreTraining,
    AsterismForSequenceClassification: AutoModelForSequenceClassification,
    AsterismForTokenClassification: AutoModelForTokenClassification,
    AsterismForQuestionAnswering: AutoModelForQuestionAnswering,
}


def forward(model: nn.Module, tokens: torch.Tensor, **arguments: object) -> dict[str, torch.Tensor]:
    return {name: value for name, value in model(tokens, **arguments).items() if value is not None}


def test_masked_lm_is_the_head_of_bert() -> None:
    model, tokens = encoder(kind=AsterismForMaskedLM, tie_word_embeddings=True), random_tokens(2, 20)
    head = model.lm_head
    assert head.decoder.weight is model.model.embed_tokens.weight
    labels = torch.where(torch.rand(2, 20, generator=torch.Generator().manual_seed(0)) < 0.3, tokens, -100)
    hidden = F.gelu(model.model(tokens).last_hidden_state @ head.dense.weight.T + head.dense.bias)
    expected = normalise(hidden, head.norm) @ model.model.embed_tokens.weight.T + head.decoder.bias
    out = model(tokens, labels=labels)
    torch.testing.assert_close(out.logits, expected, atol=1e-10, rtol=0)
    losses = F.cross_entropy(expected.flatten(0, 1), labels.flatten(), reduction="sum")
    torch.testing.assert_close(out.loss.double(), losses / (labels >= 0).sum(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        model(tokens, labels=labels, num_items_in_batch=50).loss.double(), losses / 50, atol=1e-5, rtol=1e-5
    )


def caught_gradients(model: AsterismModel, run: Callable[[], torch.Tensor]) -> list[torch.Tensor]:
    """Of the loss that `run` gives, the gradient of what each block reads, caught where it reads it."""
    read: list[torch.Tensor] = []

    def catch(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        inputs[0].retain_grad()
        read.append(inputs[0])

    hooks = [block.register_forward_pre_hook(catch) for block in model.layers]
    run().backward()
    for hook in hooks:
        hook.remove()
    return [tensor.grad for tensor in read]


@pytest.mark.parametrize("side", ["none", "left", "right", "holes"])
@pytest.mark.parametrize("fields", [{}, {"global_tokens": 3}, {"block": "pre_norm"}], ids=str)
@pytest.mark.parametrize("mixers", ["bigbird(block=4)", "window(left=3)", "interleave(fourier(), dense())"])
def test_hidden_states_are_on_the_path_of_the_gradient(mixers: str, fields: dict, side: str) -> None:
    """retain_grad on them gives the gradient of what the blocks read, at every real token, and changes no number."""
    model, tokens = encoder(mixers, AsterismForTokenClassification, **fields), random_tokens(3, 12)
    mask = None if side == "none" else torch.ones_like(tokens)
    if mask is not None:
        mask[1, {"left": slice(0, 5), "right": slice(7, None), "holes": slice(4, 6)}[side]] = 0
    real = torch.ones_like(tokens).bool() if mask is None else mask.bool()
    labels = torch.where(real, tokens % 2, -100)
    plain = caught_gradients(model.model, lambda: model(tokens, mask, labels=labels).loss)
    out = model(tokens, mask, labels=labels, output_hidden_states=True)
    torch.testing.assert_close(out.logits, model(tokens, mask).logits, atol=0, rtol=0)
    assert len(out.hidden_states) == len(plain) + 1
    for state in out.hidden_states:
        state.retain_grad()
    out.loss.backward()
    front = model.config.global_tokens
    for state, expected in zip(out.hidden_states, plain, strict=False):
        # Blocks read real tokens in front, those of each row in their order.
        for row, own in enumerate(real):
            torch.testing.assert_close(state.grad[row, own], expected[row, front : front + own.sum()])
            assert state.grad[row, own].abs().amax(dim=-1).gt(0).all() and not state.grad[row, ~own].any()
    assert out.hidden_states[-1].grad.any()


@pytest.mark.parametrize("kind", [AsterismForMaskedLM, AsterismForPreTraining])
def test_predictions_at_some_places_alone(kind: type) -> None:
    """The places of a row need not be in order, and a label may be ignored there."""
    model, tokens = encoder(kind=kind), random_tokens(2, 20)
    places = torch.tensor([[3, 4, 19], [7, 0, 0]])
    labels = torch.tensor([[1, 2, 3], [4, 5, -100]])
    mask = torch.ones_like(tokens)
    mask[1, 15:] = 0
    some = model(tokens, attention_mask=mask, places=places, labels=labels)
    everywhere = torch.full_like(tokens, -100)
    everywhere[0, [3, 4, 19]], everywhere[1, [7, 0]] = labels[0], labels[1, :2]
    every = model(tokens, attention_mask=mask, labels=everywhere)
    rows = torch.arange(2)[:, None]
    torch.testing.assert_close(some[1], every[1][rows, places])
    torch.testing.assert_close(some.loss, every.loss)
    assert torch.equal(model(tokens, attention_mask=mask, places=places)[0], some[1])


@pytest.mark.parametrize(
    ("kind", "own"),
    [
        (AsterismForMaskedLM, ["labels"]),
        (AsterismForPreTraining, ["labels", "next_sentence_label"]),
        (AsterismForSequenceClassification, ["labels"]),
        (AsterismForTokenClassification, ["labels"]),
        (AsterismForQuestionAnswering, ["start_positions", "end_positions"]),
        (AsterismForCausalLM, ["labels"]),
    ],
)
def test_the_trainer_finds_columns_and_labels_in_the_signature(kind: type, own: list[str]) -> None:
    """It drops every column that `forward` does not name, and gives no loss unless it gets every label."""
    assert find_labels(kind) == own
    names = list(inspect.signature(kind.forward).parameters)
    assert names[:3] == ["self", "input_ids", "attention_mask"]
    assert {"inputs_embeds", "output_hidden_states", *own} <= set(names)
    assert inspect.getdoc(kind.forward) and kind.forward.__name__ == "forward"


def test_arguments_of_a_head_may_stand_in_their_order() -> None:
    model, tokens = encoder(kind=AsterismForTokenClassification), random_tokens(2, 9)
    labels, mask = tokens % 2, torch.ones_like(tokens)
    named = model(input_ids=tokens, attention_mask=mask, labels=labels)
    assert torch.equal(model(tokens, mask, None, None, labels).loss, named.loss)
    assert torch.equal(model(tokens, mask, None, None, labels, return_dict=False)[1], named.logits)
    with pytest.raises(TypeError):
        model(tokens, mask, None, None, labels, True)
    with pytest.raises(TypeError):
        model(tokens, mask, None, None, labels, labels=labels)
    with refusing(ConfigurationError, "unknown-argument", "'head_mask'"):
        model(tokens, head_mask=tokens)


def test_pretraining_adds_the_loss_of_the_next_sentence() -> None:
    model, tokens = encoder(kind=AsterismForPreTraining, type_vocab_size=2), random_tokens(4, 20)
    follows = torch.tensor([0, 1, 1, 0])
    mask = torch.ones_like(tokens)
    mask[:, :3] = 0
    out = model(tokens, attention_mask=mask, labels=tokens, next_sentence_label=follows)
    first = model.model(tokens, attention_mask=mask).last_hidden_state[:, 3]
    answers = model.next_sentence(torch.tanh(first @ model.pooler.dense.weight.T + model.pooler.dense.bias))
    torch.testing.assert_close(out.seq_relationship_logits, answers)
    words, sentences = (
        model(tokens, attention_mask=mask, **labels).loss
        for labels in ({"labels": tokens}, {"next_sentence_label": follows})
    )
    torch.testing.assert_close(sentences.double(), F.cross_entropy(answers, follows), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(out.loss, words + sentences)


@pytest.mark.parametrize(
    ("problem", "labels", "loss"),
    [
        ("single_label_classification", torch.tensor([2, 0]), F.cross_entropy),
        (
            "multi_label_classification",
            torch.tensor([[1, 0, 1], [0, 0, 1]]),
            lambda logits, labels: F.binary_cross_entropy_with_logits(logits, labels.double()),
        ),
        (
            "regression",
            torch.tensor([[1.0, -2.0, 3.0]] * 2),
            lambda logits, labels: F.mse_loss(logits, labels.double()),
        ),
    ],
)
def test_sequence_classification(problem: str, labels: torch.Tensor, loss: Callable) -> None:
    kind, tokens = AsterismForSequenceClassification, random_tokens(2, 20)
    for act, activation in (("tanh", torch.tanh), ("gelu", F.gelu)):
        model = encoder(kind=kind, num_labels=3, problem_type=problem, pooler_act=act)
        out = model(tokens, labels=labels)
        pooled = activation(model.pooler.dense(model.model(tokens).last_hidden_state[:, 0]))
        torch.testing.assert_close(out.logits, model.classifier(pooled))
        torch.testing.assert_close(out.loss, loss(out.logits, labels))


def test_pooling_by_the_mean_of_real_tokens() -> None:
    tokens, mask = random_tokens(2, 20), torch.ones(2, 20, dtype=torch.long)
    mask[0, :3], mask[1, 15:] = 0, 0
    model = encoder(kind=AsterismForSequenceClassification, num_labels=3, classifier_pooling="mean")
    hidden = model.model(tokens, attention_mask=mask).last_hidden_state
    means = torch.stack([hidden[0, 3:].mean(0), hidden[1, :15].mean(0)])
    expected = model.classifier(torch.tanh(model.pooler.dense(means)))
    torch.testing.assert_close(model(tokens, attention_mask=mask).logits, expected)
    whole = model(tokens[:, :15]).logits
    torch.testing.assert_close(whole, model(tokens, attention_mask=(torch.arange(20) < 15).expand(2, 20).long()).logits)


def test_the_mean_of_many_tokens_in_half_precision() -> None:
    hidden = torch.full((1, 70_000, 2), 10.0, dtype=torch.float16)
    rows = find_rows(hidden, torch.ones(1, 70_000, dtype=torch.long))
    assert torch.equal(rows.mean(hidden), torch.full((1, 2), 10.0, dtype=torch.float16))


def test_dropout_of_the_classifier() -> None:
    assert encoder(kind=AsterismForTokenClassification, dropout=0.2).dropout.p == 0.2
    assert encoder(kind=AsterismForTokenClassification, dropout=0.2, classifier_dropout=0.0).dropout.p == 0.0


def test_token_classification_and_question_answering() -> None:
    tokens = random_tokens(2, 20)
    model = encoder(kind=AsterismForTokenClassification, num_labels=5)
    labels = tokens % 5
    labels[:, ::3] = -100
    out = model(tokens, labels=labels)
    torch.testing.assert_close(out.logits, model.classifier(model.model(tokens).last_hidden_state))
    expected = F.cross_entropy(out.logits.flatten(0, 1), labels.flatten())
    torch.testing.assert_close(out.loss.double(), expected, atol=1e-5, rtol=1e-5)
    model = encoder(kind=AsterismForQuestionAnswering)
    start, end = torch.tensor([3, 7]), torch.tensor([5, 20])
    out = model(tokens, start_positions=start, end_positions=end)
    spans = model.qa_outputs(model.model(tokens).last_hidden_state)
    torch.testing.assert_close(torch.stack([out.start_logits, out.end_logits], dim=-1), spans)
    losses = F.cross_entropy(out.start_logits, start), F.cross_entropy(out.end_logits[:1], end[:1])
    torch.testing.assert_close(out.loss, sum(losses) / 2)


@pytest.mark.parametrize("kind", TASKS)
def test_every_head_keeps_padding_out(kind: type) -> None:
    model = encoder(kind=kind, num_labels=3)
    tokens, mask, rows = padded("left")
    together = forward(model, tokens, attention_mask=mask)
    for number, row in enumerate(rows):
        for name, alone in forward(model, row[None]).items():
            padded_row = together[name][number]
            per_token = padded_row.shape[:1] == mask.shape[1:]
            real = padded_row[mask[number].bool()] if per_token else padded_row
            torch.testing.assert_close(real, alone[0], atol=1e-11, rtol=1e-11)


@pytest.mark.parametrize("kind", TASKS)
def test_every_head_trains_saves_and_loads(kind: type, tmp_path: Path) -> None:
    model = encoder(kind=kind, num_labels=3, tie_word_embeddings=True, type_vocab_size=2, id2label=None)
    tokens, mask, _ = padded("right")
    model(tokens, attention_mask=mask, **TASKS[kind]).loss.backward()
    unused = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert unused == []
    model.save_pretrained(tmp_path)
    auto = AUTO[kind].from_pretrained(tmp_path, dtype=torch.float64)
    assert type(auto) is kind
    for name, value in forward(model, tokens, attention_mask=mask).items():
        torch.testing.assert_close(getattr(auto(tokens, attention_mask=mask), name), value, atol=1e-13, rtol=0)
    with pytest.raises(ConfigurationError, match=rf"{kind.__name__}.forward has no argument 'head_mask'"):
        model(tokens, head_mask=tokens)


def test_a_pretrained_encoder_serves_every_head(tmp_path: Path) -> None:
    model = encoder(kind=AsterismForPreTraining, tie_word_embeddings=True)
    model.save_pretrained(tmp_path)
    for kind in TASKS:
        other = kind.from_pretrained(tmp_path, dtype=torch.float64)
        for name, parameter in other.named_parameters():
            if name.startswith(("model.", "pooler.", "lm_head.")):
                assert torch.equal(parameter, model.get_parameter(name)), name


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_gives_the_same_gradients(reentrant: bool) -> None:
    model = encoder("interleave(fourier(), bigbird(block=4), dense())", AsterismForMaskedLM, dropout=0.3).train()
    tokens, mask, _ = padded("left")

    def gradients() -> list[torch.Tensor]:
        model.zero_grad()
        torch.manual_seed(3)
        model(tokens, attention_mask=mask, labels=tokens).loss.backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    expected = gradients()
    with pytest.MonkeyPatch.context() as patch:
        # transformers 5.17 knows only the older of the two names, and later versions warn about it.
        patch.setattr("warnings.warn", lambda *_, **__: None)
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    for gradient, plain in zip(gradients(), expected, strict=True):
        torch.testing.assert_close(gradient, plain, atol=1e-12, rtol=0)


def test_training_compiles_without_a_graph_break() -> None:
    torch.compiler.reset()
    model, tokens = encoder("interleave(dense(), longformer(window=4))", AsterismForMaskedLM), random_tokens(2, 24)
    mask = torch.ones_like(tokens)
    mask[1, :5] = 0

    def loss(tokens: torch.Tensor) -> torch.Tensor:
        return model(tokens, attention_mask=mask, labels=tokens).loss

    compiled = torch.compile(loss, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(tokens), loss(tokens))


def test_vocabulary_can_be_resized() -> None:
    for tied in (True, False):
        model, tokens = encoder(kind=AsterismForMaskedLM, tie_word_embeddings=tied), random_tokens(1, 12)
        before = model(tokens).logits
        model.resize_token_embeddings(VOCABULARY + 9)
        assert model.config.vocab_size == VOCABULARY + 9 == model.lm_head.decoder.out_features
        torch.testing.assert_close(model(tokens).logits[..., :VOCABULARY], before)
        assert model(tokens + 9, labels=tokens + 9).loss.isfinite()


def test_a_new_encoder_starts_as_bert() -> None:
    torch.manual_seed(0)
    model = AsterismForMaskedLM(encoder_config("dense()", hidden_size=128, type_vocab_size=2))
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            assert (parameter == 1).all(), name
        elif name.endswith("bias"):
            assert not parameter.any(), name
        elif parameter.numel() > 1000:
            assert parameter.std().item() == pytest.approx(0.02, rel=0.05), name
