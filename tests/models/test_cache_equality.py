"""With a cache as without, for every causal pattern there is: chunks, padding, heads, guesses, compiled steps.

The patterns are those of the vocabulary, each constructor made causal; a new one has to be added here.
"""

from typing import Any

import numpy as np
import pytest
import torch
from small_models import small_model
from transformers import LlamaConfig, LlamaForCausalLM

from asterism.models import AsterismConfig, AsterismForCausalLM, use_pattern
from asterism.models.cache.cache import PatternCache
from asterism.models.cache.layer import RESTORABLE
from asterism.models.cache.naming import CACHE
from asterism.patterns.text import VOCABULARY

CAUSAL = {
    "dense": "dense() & causal()",
    "causal": "causal()",
    "window": "window(left=40, dilation=3) | window(left=7)",
    "stride": "stride(7) & causal()",
    "blocks": "blocks(30, left=1) & causal()",
    "columns": "columns(16, first=3, count=2) & causal() | window()",
    "grid": "grid(9, radius=2, channels=3) & causal() | grid(9, radius=(3, 0), dilation=2, channels=3) & causal()",
    "global_tokens": "global_tokens((0, 9), block=4) & causal() | window(left=3)",
    "global_keys": "global_keys((1, 5)) & causal() | window(left=20)",
    "global_queries": "global_queries((3,), block=20) & causal() | window(left=20)",
    "random_blocks": "random_blocks(block=8, count=2, earlier=True) & causal() | window(left=2)",
    "explicit": "explicit('{edges}', size={length}) & causal() | window(left=9)",
    "tree": "tree('50:20;90:60;130:20', size={length}) | tree('50:20', size={length}, pattern=window(left=9))",
    "shifted": "shifted(window(left=30), 11) | window(left=5)",
    "per_head": "per_head([window(left=3), sinks(first=4, window=90), fixed(stride=16), causal()])",
    "split_heads": "split_heads(window(left=5), strided(stride=9), heads=4)",
    "merge": "merge(window(left=5), stride(9) & causal())",
    "strided": "strided(stride=12)",
    "fixed": "fixed(stride=16, summary=2, heads=4)",
    "bigbird_causal": "bigbird_causal(block=8, window_blocks=3, random=1, heads=4)",
    "longformer": "longformer(window=50, globals=(0, 3)) & causal()",
    "selected": "selected(block=16, topk=3) & causal()",
    "sinks": "sinks(first=4, window=70)",
    "star": "star() & causal()",
    "yun_strided": "yun_strided(w=9) & causal()",
    "yun_fixed": "yun_fixed(w=9) & causal()",
    "yun_window": "yun_window(w=9) & causal()",
}

NOT_PREFIX_STABLE = {"bigbird", "bigbird_etc", "star_transformer", "yun_random", "yun_star"}
PACKED = {"documents"}
"""Several sequences in one row have an end, and no cache."""
CROSSES = {"across", "part"}
"""Keys of a source, which test_seq2seq_across.py keeps in a cache; and some queries and keys, without a next."""

FEW = 160
MANY = pytest.param(2000, marks=pytest.mark.slow)


def test_every_constructor_is_here() -> None:
    assert set(CAUSAL) | NOT_PREFIX_STABLE | PACKED | CROSSES == set(VOCABULARY)


def model_and_tokens(name: str, length: int) -> tuple[AsterismForCausalLM, torch.Tensor]:
    random = np.random.Generator(np.random.Philox(3))
    queries = sorted(random.choice(length, length // 3, replace=False))
    edges = ";".join(f"{query}:{random.integers(query + 1)}" for query in queries)
    text = CAUSAL[name].format(edges=edges, length=length)
    grouped = {} if name in ("split_heads", "bigbird_causal") else {"num_key_value_heads": 2}
    model = small_model(text, num_hidden_layers=2, position_type="rotary", **grouped)
    return model, torch.from_numpy(random.integers(0, 40, (2, length)))


def chunks(length: int) -> list[int]:
    """A first chunk, single tokens, and chunks on both sides of what goes through the slots; at most 500 at a time."""
    random = np.random.Generator(np.random.Philox(length))
    sizes = [20, 1, 1, RESTORABLE + 1, 1, RESTORABLE + 2, 500]
    while sum(sizes) < length:
        sizes += [1] * int(random.integers(30)) + [int(random.integers(2, 500))]
    starts = np.minimum(np.cumsum([0, *sizes]), length)
    return [size for size in np.diff(starts).tolist() if size]


@pytest.mark.parametrize("length", [FEW, MANY])
@pytest.mark.parametrize("name", CAUSAL)
@torch.no_grad()
def test_chunks_and_padding(name: str, length: int) -> None:
    """The second row begins with padding, so the rows stand at different places of the pattern."""
    model, tokens = model_and_tokens(name, length)
    mask = torch.ones_like(tokens)
    mask[1, :13] = 0
    expected = model(tokens, attention_mask=mask).logits
    cache, start = PatternCache(model.config), 0
    for size in chunks(length):
        stop = start + size
        logits = model(tokens[:, start:stop], attention_mask=mask[:, :stop], past_key_values=cache).logits
        torch.testing.assert_close(logits, expected[:, start:stop], atol=1e-10, rtol=0)
        start = stop
    for layer in cache.layers:
        assert layer.lengths == (length, length - 13)


@pytest.mark.parametrize("length", [FEW, MANY])
@pytest.mark.parametrize("name", CAUSAL)
@torch.no_grad()
def test_wrong_guesses_are_taken_back(name: str, length: int) -> None:
    """As assisted decoding does it: guesses after each accepted token, of which some are right."""
    model, tokens = model_and_tokens(name, length)
    expected, wrong = model(tokens).logits, (tokens + 1) % 40
    random = np.random.Generator(np.random.Philox(length))
    start = 30
    cache = PatternCache(model.config)
    model(tokens[:, :start], past_key_values=cache)
    while start < length:
        first = start == 30
        guessed = RESTORABLE + 1 if first else int(random.integers(1, min(RESTORABLE, length - start + 1)))
        right = 1 if first else int(random.integers(1, guessed + 1))
        asked = torch.cat([tokens[:, start : start + right], wrong[:, start + right : start + guessed]], dim=1)
        logits = model(asked, past_key_values=cache).logits[:, :right]
        torch.testing.assert_close(logits, expected[:, start : start + right], atol=1e-10, rtol=0)
        cache.crop(-(guessed - right))
        start += right


@pytest.mark.parametrize("length", [30, MANY])
@pytest.mark.parametrize("how", [{}, {"prompt_lookup_num_tokens": 8}], ids=str)
@pytest.mark.parametrize("name", ["per_head", "sinks", "fixed", "window"])
@torch.no_grad()
def test_generated_tokens(name: str, how: dict, length: int) -> None:
    """Each is the likeliest after those before it, so `generate` without a cache would write the same."""
    model, tokens = model_and_tokens(name, 20)
    tokens = tokens[:1] if "prompt_lookup_num_tokens" in how else tokens
    options = {"do_sample": False, "max_new_tokens": length, "eos_token_id": None, "pad_token_id": 0}
    everything = torch.ones_like(tokens)  # a 0 in the prompt is a token, no padding
    cached = model.generate(tokens, attention_mask=everything, **options, **how)
    assert cached.shape[1] == 20 + length
    assert torch.equal(cached[:, 20:], model(cached[:, :-1], use_cache=False).logits[:, 19:].argmax(dim=-1))


@pytest.mark.parametrize("length", [30, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["per_head", "sinks", "fixed", "window"])
def test_generated_beams(name: str, length: int) -> None:
    model, tokens = model_and_tokens(name, 20)
    how = {"do_sample": False, "max_new_tokens": length, "eos_token_id": None, "pad_token_id": 0, "num_beams": 3}
    assert torch.equal(model.generate(tokens, **how), model.generate(tokens, use_cache=False, **how))


@pytest.mark.parametrize("how", ["lookup", "assistant"])
@pytest.mark.parametrize("padded", [1, 9])
@pytest.mark.parametrize("kind", ["own", "dropped in"])
def test_guesses_after_padding_on_the_left(kind: str, padded: int, how: str) -> None:
    """The first guess is given back together with the last token of the prompt, which is none of the padding."""

    def model(text: str, seed: int) -> Any:
        torch.manual_seed(seed)
        sizes = {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
        if kind == "own":
            return AsterismForCausalLM(AsterismConfig(**sizes, mixers=text, positions="rotary")).eval()
        return use_pattern(LlamaForCausalLM(LlamaConfig(**sizes, intermediate_size=64)).eval(), text)

    tokens = torch.randint(3, 40, (1, 12), generator=torch.Generator().manual_seed(padded)).repeat(1, 2)
    mask = torch.ones_like(tokens)
    mask[:, :padded] = 0
    options = {"attention_mask": mask, "do_sample": False, "max_new_tokens": 16, "eos_token_id": None}
    helper = {"prompt_lookup_num_tokens": 4} if how == "lookup" else {"assistant_model": model("window(left=3)", 1)}
    asked = model("interleave(window(left=6), sinks(first=2, window=5))", 0)
    expected = asked.generate(tokens, **options, pad_token_id=0, use_cache=False)
    assert torch.equal(asked.generate(tokens, **options, pad_token_id=0, **helper), expected)


# --- compiled steps --------------------------------------------------------------------------------------------------


@pytest.fixture
def compilations() -> list:
    """One entry for each graph that torch.compile makes; with `counting` as its backend."""
    torch._dynamo.reset()
    return []


@pytest.mark.parametrize(
    ("name", "length"),
    [("per_head", 60), *(pytest.param(name, 330, marks=pytest.mark.slow) for name in ("window", "blocks", "causal"))],
)
@torch.no_grad()
def test_a_compiled_step_is_compiled_once(name: str, length: int, compilations: list) -> None:
    """Twice: for the first position, and when it is found to change. Then no token, table or ring makes a new graph."""
    model, tokens = model_and_tokens(name, length)
    expected = model(tokens).logits

    def counting(graph, inputs):
        compilations.append(graph)
        return graph.forward

    cache = PatternCache(model.config, max_tokens=length)
    assert cache.is_compileable
    model(tokens[:, :20], past_key_values=cache)
    step = torch.compile(model, backend=counting, fullgraph=True)
    counts = []
    for position in range(20, length):
        logits = step(tokens[:, position : position + 1], past_key_values=cache).logits[:, 0]
        torch.testing.assert_close(logits, expected[:, position], atol=1e-10, rtol=0)
        counts.append(len(compilations))
    assert counts[-1] == counts[2] <= 3


@pytest.mark.slow
@torch.no_grad()
def test_a_compiled_step_of_a_model_of_transformers(compilations: list) -> None:
    def counting(graph, inputs):
        compilations.append(graph)
        return graph.forward

    sizes = {"vocab_size": 40, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
    torch.manual_seed(0)
    llama = use_pattern(LlamaForCausalLM(LlamaConfig(num_hidden_layers=2, **sizes)).double().eval(), CAUSAL["sinks"])
    tokens = torch.randint(40, (2, 130), generator=torch.Generator().manual_seed(0))
    expected, cache = llama(tokens, use_cache=False).logits, PatternCache(max_tokens=2**30)
    llama(tokens[:, :20], **{CACHE: cache})
    step, counts = torch.compile(llama, backend=counting, fullgraph=True), []
    for position in range(20, 130):
        logits = step(tokens[:, position : position + 1], **{CACHE: cache}).logits[:, 0]
        torch.testing.assert_close(logits, expected[:, position], atol=1e-10, rtol=0)
        counts.append(len(compilations))
    assert counts[-1] == counts[2] <= 3


@torch.no_grad()
def test_generate_with_slots_of_a_fixed_number() -> None:
    model, tokens = model_and_tokens("per_head", 30)
    mask = torch.ones_like(tokens)
    mask[1, :5] = 0
    options = {
        "attention_mask": mask,
        "max_new_tokens": 30,
        "do_sample": False,
        "eos_token_id": None,
        "pad_token_id": 0,
    }
    cache = PatternCache(model.config, max_tokens=60)
    assert torch.equal(model.generate(tokens, past_key_values=cache, **options), model.generate(tokens, **options))
