"""Compiled by the default backend, one graph of each kind: others, such as "aot_eager", generate no code."""

import pytest
import torch
import torch._inductor.config
from transformers import BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM

from asterism.models import AsterismConfig, AsterismForCausalLM, use_pattern
from asterism.models.cache.cache import PatternCache

pytestmark = [
    pytest.mark.model,
    pytest.mark.filterwarnings("ignore"),  # what inductor says of itself changes with every release
]
SIZES = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
TEXT = "interleave(window(left=5), sinks(first=2, window=4))"
TOKENS = torch.randint(3, 40, (2, 24), generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def fresh_graphs():
    """Inductor's own code calls PyTorch's kernels, where it would make new ones in seconds of a C++ compiler's time."""
    torch._dynamo.reset()
    with torch._inductor.config.patch(fallback_by_default=True):
        yield
    torch._dynamo.reset()


def dropped_in() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return use_pattern(LlamaForCausalLM(LlamaConfig(**SIZES)).eval(), TEXT)


def own() -> AsterismForCausalLM:
    torch.manual_seed(0)
    return AsterismForCausalLM(AsterismConfig(**SIZES, mixers=TEXT)).eval()


@pytest.mark.slow
@pytest.mark.parametrize("make", [dropped_in, own])
@torch.no_grad()
def test_a_step_with_a_cache(make) -> None:
    """The counters of its layers are inputs of the graph, and leave it one higher."""
    model = make()
    cache = PatternCache(None if make is dropped_in else model.config, max_tokens=100)
    expected = model(TOKENS, use_cache=False).logits
    model(TOKENS[:, :20], past_key_values=cache)
    step = torch.compile(model, dynamic=True, fullgraph=True)
    for position in range(20, 24):
        logits = step(TOKENS[:, position : position + 1], past_key_values=cache).logits[:, 0]
        torch.testing.assert_close(logits, expected[:, position])


@pytest.mark.slow
@pytest.mark.parametrize("cache", [None, 100])
def test_generate_with_a_compiled_model(cache: int | None) -> None:
    model, how = dropped_in(), {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    expected = model.generate(TOKENS, **how)
    model.forward = torch.compile(model.forward)
    given = {} if cache is None else {"past_key_values": PatternCache(max_tokens=cache)}
    assert torch.equal(model.generate(TOKENS, **how, **given), expected)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["causal", "encoder"])
def test_a_step_of_training(kind: str) -> None:
    torch.manual_seed(0)
    if kind == "causal":
        model = use_pattern(LlamaForCausalLM(LlamaConfig(**SIZES)), TEXT)
    else:
        model = use_pattern(BertForMaskedLM(BertConfig(**SIZES, hidden_dropout_prob=0)), "bigbird(block=4, random=1)")
    model.eval()
    gradients = []
    for run in (model, torch.compile(model, dynamic=True, fullgraph=True)):
        model.zero_grad()
        run(TOKENS, labels=TOKENS).loss.backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None])
    torch.testing.assert_close(gradients[1], gradients[0], atol=1e-4, rtol=1e-3)
