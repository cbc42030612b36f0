"""Training of encoder-decoders: gradients, dropout, transformers' trainers, and graphs."""

from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import refusing
from slow_cases import slow_except
from small_models import random_tokens, randomise, seq2seq_config, small_seq2seq
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments
from transformers.trainer_utils import set_seed

from asterism.errors import ConfigurationError
from asterism.models import AsterismForConditionalGeneration
from asterism.models.cache.source import EncoderDecoderPatternCache

pytestmark = pytest.mark.model

ALL_ATTENTION: dict[str, Any] = {
    "block": "all_attention",
    "mixers": ["dense()", "window(left=2, right=2)"],
    "attention_bias": False,
    "persistent_vectors": 5,
}
MODELS: dict[str, dict[str, Any]] = {
    "pre-norm": {"mixers": ["fourier()", "bigbird(block=4)"], "cross_mixers": "across(window(left=3, right=3))"},
    "buckets": {"position_type": "buckets", "norm": "rms", "gated_feed_forward": True, "value_dim": 16},
    "tied": {"tie_encoder_decoder": True, "tie_word_embeddings": True, "block": "post_norm"},
    "all attention": ALL_ATTENTION,
}


def batch(rows: int = 3) -> dict[str, torch.Tensor]:
    """Padded sources, and targets of which some labels are ignored."""
    tokens, labels = random_tokens(rows, 11), random_tokens(rows, 7, seed=2)
    mask = torch.ones_like(tokens)
    mask[1, 8:], labels[1, 5:] = 0, -100
    return {"input_ids": tokens, "attention_mask": mask, "labels": labels}


def gradients(model: AsterismForConditionalGeneration, **options: Any) -> dict[str, torch.Tensor]:
    model.zero_grad()
    torch.manual_seed(3)
    model(**batch(), **options).loss.backward()
    return {name: x.grad.clone() for name, x in model.named_parameters() if x.grad is not None}


@pytest.mark.parametrize("name", MODELS)
def test_every_weight_has_its_gradient(name: str) -> None:
    """By finite differences in a random direction of all weights at once."""
    model = small_seq2seq(**MODELS[name])
    found = gradients(model)
    # The embedding of types and the like aside, whatever is there is used.
    assert found.keys() == {name for name, _ in model.named_parameters()}
    generator = torch.Generator().manual_seed(5)
    ways = {n: torch.randn(x.shape, generator=generator, dtype=x.dtype) for n, x in model.named_parameters()}
    step, losses = 1e-6, []
    for side in (1, -1):
        for n, x in model.named_parameters():
            x.data.add_(ways[n], alpha=side * step)
        losses.append(model(**batch()).loss.item())
        for n, x in model.named_parameters():
            x.data.add_(ways[n], alpha=-side * step)
    expected = sum((found[n] * ways[n]).sum().item() for n in found)
    assert (losses[0] - losses[1]) / (2 * step) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", ["pre-norm", "buckets"])
def test_gradient_checkpointing_gives_the_same_gradients(name: str, reentrant: bool) -> None:
    model = small_seq2seq(**MODELS[name], dropout=0.3, attention_dropout=0.2).train()
    expected = gradients(model, dropout_seed=4)
    runs: list[int] = []
    model.model.decoder.layers[0].cross_attention.register_forward_hook(lambda *_: runs.append(1))
    with pytest.MonkeyPatch.context() as patch:
        # transformers 5.17 knows only the older of the two names, and later versions warn about it.
        patch.setattr("warnings.warn", lambda *_, **__: None)
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    found = gradients(model, dropout_seed=4)
    assert found.keys() == expected.keys()
    for parameter, gradient in found.items():
        torch.testing.assert_close(gradient, expected[parameter], atol=1e-12, rtol=0)
    assert len(runs) == 2, "once forward and once more in the backward pass"
    with refusing(ConfigurationError, "checkpointing-with-cache"):
        model(**batch(), use_cache=True, dropout_seed=4)


@pytest.mark.parametrize("name", MODELS)
def test_dropout_in_attention_follows_its_seed(name: str) -> None:
    model = small_seq2seq(**MODELS[name], attention_dropout=0.3).train()

    def loss(seed: int | None) -> torch.Tensor:
        return model(**batch(), dropout_seed=seed).loss.detach()

    torch.manual_seed(1)
    first = loss(5)
    torch.manual_seed(2)
    assert torch.equal(first, loss(5)) and not torch.equal(first, loss(6))
    with refusing(ConfigurationError, "dropout-seed-missing", "0.3"):
        loss(None)
    evaluated = model.eval()(**batch()).loss
    assert torch.equal(evaluated, loss(5)) and not torch.equal(evaluated, first)


def test_no_two_attentions_drop_the_same_pairs() -> None:
    """One layer of each kind, all with equal weights and inputs: their seeds differ."""
    seeds: list[int] = []
    model = small_seq2seq(attention_dropout=0.3).train()
    for stack in (model.model.encoder, model.model.decoder):
        for block in stack.layers:
            for attention in (block.mixer, block.cross_attention):
                if attention is not None:
                    attention.register_forward_pre_hook(
                        lambda _, __, told: seeds.append(told["dropout"].seed), with_kwargs=True
                    )
    model(**batch(), dropout_seed=9)
    assert len(set(seeds)) == len(seeds) == 6


@pytest.mark.parametrize("name", MODELS)
def test_training_reads_what_evaluation_reads(name: str) -> None:
    model = small_seq2seq(**MODELS[name])
    expected = model(**batch()).logits
    state = torch.get_rng_state()
    assert torch.equal(model.train()(**batch()).logits, expected)
    assert torch.equal(torch.get_rng_state(), state), "no global generator moves"


def test_embeddings_of_both_stacks_are_dropped_in_training() -> None:
    """Vaswani 2017, section 5.4."""
    model = AsterismForConditionalGeneration(seq2seq_config(dropout=0.4))
    assert [stack.embedding_dropout.p for stack in (model.model.encoder, model.model.decoder)] == [0.4, 0.4]


@pytest.mark.parametrize("smoothing", slow_except((0.0, 0.1), 0.1))
def test_the_trainer_of_transformers(smoothing: float, tmp_path: Path) -> None:
    """Accumulated batches with unequal numbers of labels give the gradient of the whole batch: the loss falls alike.

    The trainer smooths labels by itself, and the model smooths them as it does.
    """
    whole = batch(12)
    rows = [{key: value[row] for key, value in whole.items()} for row in range(12)]

    def model_of() -> AsterismForConditionalGeneration:
        model = randomise(AsterismForConditionalGeneration(seq2seq_config())).float()
        assert isinstance(model, AsterismForConditionalGeneration)
        return model

    def collate(chosen: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        joined = {key: torch.stack([row[key] for row in chosen]) for key in chosen[0]}
        if smoothing:  # then the trainer keeps the labels to itself
            joined["decoder_input_ids"] = model_of().prepare_decoder_input_ids_from_labels(joined["labels"])
        return joined

    def final_loss(batch_size: int, folder: str) -> float:
        set_seed(0)
        arguments = Seq2SeqTrainingArguments(
            output_dir=str(tmp_path / folder),
            per_device_train_batch_size=batch_size,
            gradient_accumulation_steps=12 // batch_size,
            max_steps=3,
            learning_rate=1e-2,
            label_smoothing_factor=smoothing,
            predict_with_generate=True,
            generation_max_length=6,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        )
        model = model_of()
        trainer = Seq2SeqTrainer(model, arguments, collate, rows)
        trainer.train()
        predicted = trainer.predict(rows[:4])
        assert predicted.predictions.shape[0] == 4 and (predicted.predictions[:, 6:] == 0).all()
        model.eval()
        with torch.no_grad():
            seen = model(**whole, label_smoothing=smoothing).loss.item()
            shares = model(**{key: value[:4] for key, value in whole.items()}, label_smoothing=smoothing).loss.item()
        assert predicted.metrics["test_loss"] == pytest.approx(shares, rel=1e-4)
        return seen

    once, parts = final_loss(12, "whole"), final_loss(4, "parts")
    assert parts == pytest.approx(once, rel=0.02)
    with torch.no_grad():
        assert once < 0.8 * model_of()(**whole, label_smoothing=smoothing).loss.item()


def test_the_penalty_of_adaptive_spans_is_that_of_both_stacks() -> None:
    spans = {"adaptive_span": True, "relative_span": 9, "adaptive_span_penalty": 0.5, "mixers": "causal()"}
    model = small_seq2seq(**(ALL_ATTENTION | spans)).train()
    plain = model.eval()(**batch()).loss
    shares = [block.mixer.adaptive_span.shares for stack in (model.model.encoder, model.model.decoder)
              for block in stack.layers]  # fmt: skip
    expected = plain + 0.5 * 9 * sum(share.mean() for share in shares)
    torch.testing.assert_close(model.train()(**batch()).loss, expected, atol=1e-12, rtol=1e-9)


def test_training_compiles_without_a_graph_break() -> None:
    torch.compiler.reset()
    model, told = small_seq2seq(cross_mixers="across(window(left=3, right=3))", num_hidden_layers=1), batch()

    def loss(tokens: torch.Tensor) -> torch.Tensor:
        found = model(tokens, told["attention_mask"], labels=told["labels"]).loss
        assert isinstance(found, torch.Tensor)
        return found

    compiled = torch.compile(loss, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(told["input_ids"]), loss(told["input_ids"]))


@torch.no_grad()
def test_a_compiled_step_is_compiled_once() -> None:
    torch.compiler.reset()
    graphs: list[Any] = []

    def counting(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    model, source, target = small_seq2seq(num_hidden_layers=1), random_tokens(2, 9), random_tokens(2, 40, seed=2)
    expected = model(source, decoder_input_ids=target).logits
    cache = EncoderDecoderPatternCache(model.config, max_tokens=40)
    assert cache.is_compileable
    model(source, decoder_input_ids=target[:, :5], past_key_values=cache)
    step, counts = torch.compile(model, backend=counting, fullgraph=True), []
    for position in range(5, 40):
        logits = step(decoder_input_ids=target[:, position : position + 1], past_key_values=cache).logits[:, 0]
        torch.testing.assert_close(logits, expected[:, position], atol=1e-10, rtol=0)
        counts.append(len(graphs))
    assert counts[-1] == counts[2] <= 3


def test_autocast_and_bfloat16() -> None:
    model = small_seq2seq(position_type="sinusoidal", embedding_scale=32**0.5).float()
    expected = model(**batch()).logits
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = model(**batch()).logits
    half = model.bfloat16()(**batch())
    assert half.logits.dtype == torch.bfloat16 and half.loss.dtype == torch.float32
    for logits in (mixed, half.logits):
        assert (logits.float() - expected).abs().max() < 0.1 * expected.abs().max()
