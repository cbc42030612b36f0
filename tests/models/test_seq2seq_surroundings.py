"""What stands around an encoder-decoder decides nothing: the caller's defaults, modes, threads and transforms."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from slow_cases import slow_except
from small_models import random_tokens, seq2seq_config, small_seq2seq
from torch.func import functional_call, grad, vmap

from asterism.models import AsterismForConditionalGeneration
from asterism.models.cache.source import EncoderDecoderPatternCache

pytestmark = pytest.mark.model

CROSS = "interleave(across(window(left=3, right=2) | global_keys(0), step=2), dense())"
ALL_ATTENTION = {"block": "all_attention", "attention_bias": False, "persistent_vectors": 3}
FIELDS: dict[str, dict[str, Any]] = {
    "learned positions": {"cross_mixers": CROSS, "decoder_mixers": "window(left=5)"},
    "rotary": {"cross_mixers": CROSS, "position_type": "rotary", "num_key_value_heads": 2},
    "buckets": {"position_type": "buckets", "norm": "rms", "decoder_mixers": "window(left=5)"},
    "lengths": {"mixers": ["fourier()", "bigbird(block=4)"], "position_type": "sinusoidal"},
    "all attention": ALL_ATTENTION | {"position_type": "none"},
    "by distance": ALL_ATTENTION
    | {"mixers": "window(left=9)", "decoder_mixers": "window(left=9)"}
    | {"position_type": "relative", "relative_span": 9, "adaptive_span": True},
}

QUICK = ("rotary", "by distance")
MODELS = slow_except(FIELDS, *QUICK)


def model_of(name: str) -> AsterismForConditionalGeneration:
    return small_seq2seq(**FIELDS[name]).float()


def batch(source: int = 21, target: int = 13) -> dict[str, torch.Tensor]:
    """Rows of tokens, a source padded on the left and one on the right, a target padded on the right."""
    tokens, labels = random_tokens(3, source), random_tokens(3, target, seed=2)
    mask = torch.ones(3, source, dtype=torch.int64)
    mask[1, :5] = mask[2, -7:] = 0
    labels[0, -3:] = -100
    return {"input_ids": tokens, "attention_mask": mask, "labels": labels}


def computed(
    model: AsterismForConditionalGeneration, told: dict[str, torch.Tensor], beams: tuple[int, ...] = (1, 3)
) -> dict[str, torch.Tensor]:
    """Everything that a model gives: loss, logits, gradients, and texts with caches."""
    model.zero_grad(set_to_none=True)
    outputs = model(**told)
    outputs.loss.backward()
    found = {"loss": outputs.loss.detach(), "logits": outputs.logits.detach()}
    found |= {f"gradient of {key}": one.grad for key, one in model.named_parameters() if one.grad is not None}
    return found | written(model, told, beams)


def written(
    model: AsterismForConditionalGeneration, told: dict[str, torch.Tensor], beams: tuple[int, ...] = (1, 3)
) -> dict[str, torch.Tensor]:
    options = {"attention_mask": told["attention_mask"], "max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False}
    return {f"{each} beams": model.generate(told["input_ids"], num_beams=each, **options) for each in beams}


@contextmanager
def default_dtype() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def flushed_denormals() -> Iterator[None]:
    assert torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


AROUND: dict[str, Callable[[], Any]] = {
    "default dtype float64": default_dtype,
    "default device meta": lambda: torch.device("meta"),
    "flushed denormals": flushed_denormals,
}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("name", MODELS)
def test_defaults_of_the_caller_change_nothing(name: str, around: str) -> None:
    model, told = model_of(name), batch()
    beams = (1,) if around == "default device meta" else (1, 3)  # where beam search of transformers has no numbers
    expected = computed(model, told, beams)
    with AROUND[around]():
        found = computed(model, told, beams)
    assert found.keys() == expected.keys()
    for key, one in found.items():
        assert one.dtype == expected[key].dtype and torch.equal(one, expected[key]), key


@pytest.mark.parametrize("name", MODELS)
def test_what_inference_mode_met_first_is_trained_later(name: str) -> None:
    """Tables that are kept were made in inference mode, and autograd takes no such tensors. No other test has these
    lengths; what needs no gradient may be computed by another kernel."""
    model, told = model_of(name), batch(29, 17)
    with torch.inference_mode():
        before = model(**told).logits
        texts = written(model, told)
    found = computed(model, told)
    torch.testing.assert_close(found["logits"], before.clone(), atol=1e-4, rtol=1e-4)
    assert all(torch.equal(text, found[key]) for key, text in texts.items())


@pytest.mark.parametrize("name", MODELS)
def test_a_source_read_in_inference_mode_is_gone_on_with_outside(name: str) -> None:
    model, told = model_of(name), batch()
    target = random_tokens(3, 9)
    expected = model(told["input_ids"], told["attention_mask"], decoder_input_ids=target).logits
    cache, found = EncoderDecoderPatternCache(model.config), []
    for start, mode in enumerate((torch.inference_mode, torch.no_grad, torch.enable_grad, torch.inference_mode) * 2):
        with mode():
            part = {"decoder_input_ids": target[:, start : start + 1], "past_key_values": cache}
            found.append(model(told["input_ids"], told["attention_mask"], **part).logits)
            cache.reorder_cache(torch.arange(3))
    torch.testing.assert_close(torch.cat(found, dim=1), expected[:, :8], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_threads_share_a_model(name: str) -> None:
    model, lengths = model_of(name), (21, 23, 27, 31) * 2
    tolds = [batch(length, 7) for length in lengths]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda told: written(model, told), tolds))
    for told, one in zip(tolds, found, strict=True):
        assert all(torch.equal(text, one[key]) for key, text in written(model, told).items())


@pytest.mark.parametrize("name", MODELS)
def test_autocast_rounds_to_bfloat16_and_no_more(name: str) -> None:
    """Logits and gradients, and with a cache what is given without."""
    model, told = model_of(name), batch()
    expected = computed(model, told)
    with torch.autocast("cpu", torch.bfloat16):
        found = computed(model, told)
        target = model.prepare_decoder_input_ids_from_labels(told["labels"])
        cache, parts = EncoderDecoderPatternCache(model.config), []
        for part in target.split((4, 1, 1, 7), dim=1):
            given = {"decoder_input_ids": part, "past_key_values": cache}
            with torch.no_grad():
                parts.append(model(told["input_ids"], told["attention_mask"], **given).logits)
    scale = expected["logits"].norm()
    assert 0 < (found["logits"].float() - expected["logits"]).norm() < 0.05 * scale
    assert (torch.cat(parts, dim=1).float() - found["logits"].float()).norm() < 0.05 * scale
    for key, one in found.items():
        if key.startswith("gradient"):
            assert one.dtype == torch.float32
            assert (one - expected[key]).norm() < 0.2 * expected[key].norm() + 1e-2, key


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # where PyTorch's compiler goes on
@pytest.mark.parametrize("name", [name for name in FIELDS if "adaptive_span" not in FIELDS[name]])
def test_training_is_one_graph(name: str) -> None:
    """But for adaptive spans, whose plan follows from what they have learned; and for patterns that depend on the
    length, in padded rows, where the plan follows from the mask and a graph ends."""
    torch.compiler.reset()
    model, told = model_of(name), batch()
    expected = computed(model, told, ())
    model.zero_grad(set_to_none=True)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=name != "lengths")
    loss = compiled(**told).loss
    loss.backward()
    torch.testing.assert_close(loss, expected["loss"])
    for key, one in model.named_parameters():
        if one.grad is not None:
            torch.testing.assert_close(one.grad, expected[f"gradient of {key}"], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("name", MODELS)
def test_gradients_of_each_example(name: str) -> None:
    """By torch.func, as differential privacy wants them; each is that of its example alone."""
    model, told = model_of(name), batch()
    parameters = {key: one.detach() for key, one in model.named_parameters()}

    def loss(parameters: dict[str, torch.Tensor], *row: torch.Tensor) -> torch.Tensor:
        tokens, labels = (one[None] for one in row)
        return functional_call(model, parameters, kwargs={"input_ids": tokens, "labels": labels}).loss

    found = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, told["input_ids"], told["labels"])
    for row in range(3):
        model.zero_grad(set_to_none=True)
        model(told["input_ids"][row : row + 1], labels=told["labels"][row : row + 1]).loss.backward()
        for key, one in model.named_parameters():
            alone = torch.zeros_like(one) if one.grad is None else one.grad
            torch.testing.assert_close(found[key][row], alone, atol=1e-4, rtol=1e-3)


def test_a_model_is_built_under_any_defaults() -> None:
    with default_dtype():
        model = AsterismForConditionalGeneration(seq2seq_config(position_type="sinusoidal"))
        assert all(one.dtype == torch.float64 for one in model.parameters())
        assert model(**batch()).logits.dtype == torch.float64
    with torch.device("meta"):
        model = AsterismForConditionalGeneration(seq2seq_config(position_type="rotary"))
    assert all(one.is_meta for one in model.parameters())
