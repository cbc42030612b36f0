"""Encoders against plain PyTorch under a dense boolean mask, in float64; padding; heads; what users do with them."""

import inspect
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from small_models import VOCABULARY, encoder_config, random_tokens, randomise
from torch import nn
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)
from transformers.utils import find_labels

from asterism import patterns
from asterism.errors import ConfigurationError, PatternError
from asterism.layers.rows import find_rows
from asterism.models import (
    AsterismConfig,
    AsterismForCausalLM,
    AsterismForMaskedLM,
    AsterismForPreTraining,
    AsterismForQuestionAnswering,
    AsterismForSequenceClassification,
    AsterismForTokenClassification,
    AsterismModel,
)
from asterism.patterns import Fourier, Pattern

PATTERNS = (
    "dense()",
    "window(left=3, right=2)",
    "bigbird(block=4, window=3, random=1)",
    "bigbird(block=4, window=3, random=1, heads=4, seed=3)",
    "bigbird_etc(block=4, window=3, random=1, globals=2)",
    "longformer(window=6, globals=(0, 5))",
    "longformer(window=4, dilation=2, globals=(0, -1))",
    "star()",
    "star_transformer()",
    "yun_star()",
    "yun_strided(w=5)",
    "yun_fixed(w=5)",
    "yun_window(w=4)",
    "yun_random(count=3)",
    "split_heads(window(left=3, right=3), dense(), heads=4)",
    "global_tokens(positions=(-1,)) & causal() | window()",
)
"""Every bidirectional pattern of the literature, one over heads, and a causal one that depends on the length."""


def encoder(mixers: str | list[str] = PATTERNS[2], kind: type = AsterismModel, **fields: object) -> nn.Module:
    return randomise(kind(encoder_config(mixers, **fields)))


# --- the oracle: BERT in plain PyTorch --------------------------------------------------------------------------------


def dense_attention(hidden: torch.Tensor, layer: nn.Module, mask: torch.Tensor, heads: int) -> torch.Tensor:
    """The output of attention for hidden [N, C] under mask bool [heads or 1, N, N]."""
    q, k, v = (
        torch.stack(F.linear(hidden, part.weight, part.bias).chunk(heads, dim=-1))
        for part in (layer.query, layer.key, layer.value)
    )
    if layer.rotary is not None:
        q, k = turned(q), turned(k)
    scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~mask, -math.inf)
    mixed = scores.softmax(dim=-1) @ v
    if layer.global_projections is not None:
        q, k, v = (
            torch.stack(part(hidden).chunk(heads, dim=-1))
            for part in (layer.global_query, layer.global_key, layer.global_value)
        )
        everything = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(dim=-1) @ v
        for place in layer.global_projections:
            if place < len(hidden):
                mixed[:, place] = everything[:, place]
    return F.linear(torch.cat(list(mixed), dim=-1), layer.output.weight, layer.output.bias)


def turned(heads: torch.Tensor) -> torch.Tensor:
    """Rotary positions 0, 1, ... of [H, N, D], as complex numbers."""
    half = heads.shape[-1] // 2
    angles = torch.arange(heads.shape[1])[:, None] * 10000.0 ** (-torch.arange(half, dtype=heads.dtype) / half)
    pairs = torch.complex(heads[..., :half], heads[..., half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([pairs.real, pairs.imag], dim=-1)


def oracle(model: AsterismModel, tokens: torch.Tensor, types: torch.Tensor | None = None) -> torch.Tensor:
    """Hidden states [N, C] of one row of tokens [N], by the formulas of Devlin 2019, or with the norms in front."""
    config = model.config
    x = model.embed_tokens.weight[tokens]
    if config.type_vocab_size:
        x = x + model.embed_types.weight[torch.zeros_like(tokens) if types is None else types]
    if config.position_type == "learned":
        x = x + model.positions.weight[: len(tokens)]
    if config.global_tokens:
        x = torch.cat([model.global_tokens.weight, x])
    if config.embedding_norm:
        x = normalise(x, model.embedding_norm)
    if config.embedding_size is not None:
        x = x @ model.embedding_projection.weight.T + model.embedding_projection.bias
    for block, mixer in zip(model.layers, config.layer_mixers(), strict=True):
        if config.block == "pre_norm":  # Child 2019, section 5.2
            x = x + mix(normalise(x, block.mixer_norm), block, mixer, config)
            x = x + feed_forward(normalise(x, block.feed_forward_norm), block)
        else:
            x = normalise(x + mix(x, block, mixer, config), block.mixer_norm)
            x = normalise(x + feed_forward(x, block), block.feed_forward_norm)
    if config.block == "pre_norm":
        x = normalise(x, model.norm)
    return x[config.global_tokens :]


def mix(x: torch.Tensor, block: nn.Module, mixer: Pattern | Fourier, config: AsterismConfig) -> torch.Tensor:
    if isinstance(mixer, Fourier):
        return torch.fft.fftn(x, dim=(0, 1)).real
    return dense_attention(x, block.mixer, torch.from_numpy(mixer.dense(len(x))), config.num_attention_heads)


def feed_forward(x: torch.Tensor, block: nn.Module) -> torch.Tensor:
    """With the error function's GELU."""
    inside = x @ block.feed_forward.up_proj.weight.T + block.feed_forward.up_proj.bias
    inside = inside * 0.5 * (1 + torch.erf(inside / math.sqrt(2)))
    return inside @ block.feed_forward.down_proj.weight.T + block.feed_forward.down_proj.bias


def normalise(x: torch.Tensor, norm: nn.LayerNorm) -> torch.Tensor:
    centred = x - x.mean(dim=-1, keepdim=True)
    return centred / (centred.square().mean(dim=-1, keepdim=True) + norm.eps).sqrt() * norm.weight + norm.bias


VARIANTS: dict[str, dict] = {
    "bert": {"type_vocab_size": 2},
    "etc": {"global_tokens": 3},
    "rotary": {"global_tokens": 3, "position_type": "rotary"},
    "longformer": {"global_projections": [0, 5, 60]},
    "fnet": {"embedding_size": 24, "type_vocab_size": 4},
    "bare": {"embedding_norm": False, "position_type": "none", "attention_bias": False},
    "norms first": {"block": "pre_norm", "type_vocab_size": 2},
    "norms first, rotary": {"block": "pre_norm", "position_type": "rotary", "global_tokens": 3},
    "norms first, longformer": {"block": "pre_norm", "global_projections": [0, 5, 60]},
}


MIXERS = [*PATTERNS, "interleave(fourier(), window(left=3, right=2))", ["fourier()", PATTERNS[2], "dense()"]]


@pytest.mark.parametrize(
    ("mixers", "variant"),
    [
        *((mixers, "bert") for mixers in MIXERS),
        *((mixers, list(VARIANTS)[1 + number % 5]) for number, mixers in enumerate(MIXERS)),
        *((PATTERNS[2], variant) for variant in VARIANTS),
        *((mixers, "norms first") for mixers in (PATTERNS[5], MIXERS[-2], MIXERS[-1])),
        ("bigbird_etc(block=4, window=3, globals=3)", "etc"),
        ("bigbird_etc(block=4, window=3, random=1, globals=3)", "norms first, rotary"),
    ],
)
def test_an_encoder_is_its_formula(mixers: str | list[str], variant: str) -> None:
    model = encoder(mixers, **VARIANTS[variant])
    tokens = random_tokens(2, 23)
    types = random_tokens(2, 23, seed=4) % 2 if model.config.type_vocab_size else None
    with torch.no_grad():
        hidden = model(tokens, token_type_ids=types).last_hidden_state
    for row in range(2):
        expected = oracle(model, tokens[row], None if types is None else types[row])
        torch.testing.assert_close(hidden[row], expected, atol=1e-10, rtol=0)


def test_the_global_tokens_of_etc_are_those_in_front_and_no_others() -> None:
    """As many in the pattern as in the model: then text reads its blocks and them, and they read all."""
    n, extra, block = 21, 3, 4
    allowed = patterns.bigbird_etc(block=block, window=3, globals=extra).dense(extra + n)[0]
    number = [(place - extra) // block for place in range(extra + n)]
    for query in range(extra + n):
        for key in range(extra + n):
            near = query >= extra and key >= extra and abs(number[query] - number[key]) <= 1
            assert allowed[query, key] == (near or query < extra or key < extra)
    model, tokens = encoder(f"bigbird_etc(block={block}, globals={extra})", global_tokens=extra), random_tokens(1, n)
    assert model(tokens).last_hidden_state.shape[1] == n


def test_token_types_are_zero_by_default() -> None:
    model, tokens = encoder(type_vocab_size=2), random_tokens(2, 9)
    given = model(tokens, token_type_ids=torch.zeros_like(tokens)).last_hidden_state
    assert torch.equal(model(tokens).last_hidden_state, given)
    plain = encoder()
    assert torch.equal(
        plain(tokens, token_type_ids=torch.zeros_like(tokens)).last_hidden_state, plain(tokens).last_hidden_state
    )
    with pytest.raises(ConfigurationError, match=r"token_type_ids holds types, and this model has none"):
        plain(tokens, token_type_ids=torch.ones_like(tokens))


# --- padding ---------------------------------------------------------------------------------------------------------

LENGTHS = (19, 7, 1, 12, 22, 7)


def padded(side: str) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """A batch padded with a token that also occurs as text, its mask, and its rows alone."""
    rows = [random_tokens(length, seed=length + number) for number, length in enumerate(LENGTHS)]
    mask = torch.zeros(len(LENGTHS), 22, dtype=torch.int64)
    for number, length in enumerate(LENGTHS):
        places = torch.randperm(22, generator=torch.Generator().manual_seed(number))[:length]
        mask[number, {"left": slice(22 - length, 22), "right": slice(length), "holes": places}[side]] = 1
    tokens = torch.full(mask.shape, 3)
    tokens[mask.bool()] = torch.cat(rows)
    return tokens, mask, rows


def weighted(hidden: torch.Tensor) -> torch.Tensor:
    """A sum in which every token and feature counts differently."""
    return (hidden * torch.linspace(-1, 2, hidden[0].numel(), dtype=hidden.dtype).view(hidden[0].shape)).sum()


@pytest.mark.parametrize("side", ["left", "right", "holes"])
@pytest.mark.parametrize("mixers", [*PATTERNS, "fourier()", "interleave(fourier(), bigbird(block=4), dense())"])
def test_padding_changes_no_real_token(mixers: str, side: str) -> None:
    """Neither the hidden states of real tokens nor any gradient."""
    variants = {"left": "rotary", "right": "longformer", "holes": "bert"}
    model = encoder(mixers, **VARIANTS["fnet" if mixers == "fourier()" else variants[side]])
    tokens, mask, rows = padded(side)
    hidden = model(tokens, attention_mask=mask).last_hidden_state
    sum(weighted(hidden[number][mask[number].bool()][None]) for number in range(len(rows))).backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    for number, row in enumerate(rows):
        alone = model(row[None]).last_hidden_state
        torch.testing.assert_close(hidden[number][mask[number].bool()], alone[0], atol=1e-12, rtol=1e-12)
        weighted(alone).backward()
    for gradient, parameter in zip(gradients, model.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("mixers", [*PATTERNS, "fourier()"])
def test_padding_changes_no_real_token_in_float32(mixers: str) -> None:
    torch.manual_seed(0)
    model = AsterismModel(encoder_config(mixers, initializer_range=0.1)).eval()
    tokens, mask, rows = padded("left")
    with torch.no_grad():
        hidden = model(tokens, attention_mask=mask).last_hidden_state
        for number, row in enumerate(rows):
            alone = model(row[None]).last_hidden_state[0]
            torch.testing.assert_close(hidden[number][mask[number].bool()], alone, atol=1e-6, rtol=0)


def test_a_row_without_tokens_is_finite() -> None:
    tokens, mask, _ = padded("right")
    mask[1] = 0
    for mixers in ("bigbird(block=4)", "dense()", "fourier()"):
        model = encoder(mixers, AsterismForSequenceClassification)
        loss = model(tokens, attention_mask=mask, labels=torch.zeros(len(tokens), dtype=torch.int64)).loss
        loss.backward()
        assert loss.isfinite()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_a_mask_of_ones_is_no_mask() -> None:
    """Full rows must not take the slower road of padded ones."""
    for mixers in ("dense()", "bigbird(block=4)"):
        model, tokens = encoder(mixers), random_tokens(2, 20)
        seen = []
        model.layers[0].mixer.register_forward_pre_hook(
            lambda _, __, kwargs, seen=seen: seen.append(set(kwargs)), with_kwargs=True
        )
        expected = model(tokens).last_hidden_state
        assert torch.equal(model(tokens, attention_mask=torch.ones_like(tokens)).last_hidden_state, expected)
        assert seen[0] == seen[1]


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
    with pytest.raises(ConfigurationError, match="forward has no argument 'head_mask'"):
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


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"block": "postnorm"},
            "unknown block 'postnorm'; known are pre_norm, post_norm, all_attention. Did you mean 'post_norm'?",
        ),
        (
            {"classifier_pooling": "maximum"},
            "unknown classifier_pooling 'maximum'; known are cls, mean.",
        ),
        (
            {"pooler_act": "tan"},
            "unknown pooler_act 'tan'; known are tanh, quick_gelu, gelu, gelu_new, relu, silu. Did you mean 'tanh'?",
        ),
        ({"type_vocab_size": -1}, "type_vocab_size must be an integer of at least 0, got -1"),
        ({"embedding_size": 0}, "embedding_size must be an integer of at least 1, got 0"),
        ({"global_tokens": 1.5}, "global_tokens must be an integer of at least 0, got 1.5"),
        ({"classifier_dropout": 1.0}, "classifier_dropout must be at least 0 and below 1, got 1.0"),
        ({"initializer_range": 0.0}, "initializer_range must be above 0, got 0.0"),
        (
            {"global_projections": [0, -1]},
            "global_projections must be different places of the sequence, counted from 0, got [0, -1]",
        ),
        (
            {"mixers": "fourier()", "position_type": "rotary"},
            "block 'post_norm' has only fourier() for its mixers, which knows no rotary positions",
        ),
        (
            {"mixers": "fourier()", "global_projections": [0]},
            "block 'post_norm' has only fourier() for its mixers, which knows no global_projections",
        ),
        (
            {"mixers": ["fourier()"]},
            "1 patterns are listed for 3 layers; give one per layer, or one schedule for all",
        ),
    ],
)
def test_configurations_that_cannot_work(fields: dict, message: str) -> None:
    fields = {"mixers": "dense()"} | fields
    with pytest.raises(ConfigurationError) as caught:
        AsterismModel(encoder_config(**fields))
    assert str(caught.value) == message


@pytest.mark.parametrize("mixers", ["fourier() | dense()", "interleave(fourier(2), dense())", "split_heads(fourier())"])
def test_fourier_is_no_pattern(mixers: str) -> None:
    with pytest.raises(PatternError, match=r"fourier\(\) is a mixer without arguments and no pattern, got") as caught:
        AsterismModel(encoder_config(mixers))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"mixers": "interleave(fourier(), causal())"},
            r"fourier\(\) cannot be used by a causal model or with a cache",
        ),
        ({"mixers": "bigbird(block=4)"}, r"use bigbird_causal\(...\) instead"),
        ({"mixers": "causal()", "global_tokens": 2}, "global_tokens=2 cannot be used by a causal model"),
        ({"mixers": "causal()", "global_projections": [0]}, r"global_projections=\[0\] cannot be used by a causal"),
    ],
)
def test_an_encoder_neither_generates_nor_caches(fields: dict, message: str) -> None:
    with pytest.raises((ConfigurationError, PatternError), match=message):
        AsterismForCausalLM(encoder_config(**fields))
    with pytest.raises((ConfigurationError, PatternError), match=message):
        AsterismModel(encoder_config(**fields))(random_tokens(1, 5), use_cache=True)


def test_a_narrow_embedding_cannot_be_tied_to_a_causal_head() -> None:
    with pytest.raises(ConfigurationError, match="tie_word_embeddings needs embeddings as wide as the model"):
        AsterismForCausalLM(AsterismConfig(embedding_size=64, tie_word_embeddings=True))


def test_mixers_take_turns_with_fourier() -> None:
    config = encoder_config("interleave(fourier(), window(left=2) | star(), fourier())", num_hidden_layers=5)
    texts = ["fourier()", "window(left=2) | star()", "fourier()", "fourier()", "window(left=2) | star()"]
    assert [str(mixer) for mixer in config.layer_mixers()] == texts
    assert [str(mixer) for mixer in encoder_config(texts, num_hidden_layers=5).layer_mixers()] == texts
    assert encoder_config(patterns.star()).layer_patterns() == [patterns.star()] * 3
