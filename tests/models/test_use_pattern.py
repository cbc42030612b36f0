"""Models of transformers follow a pattern: against the same models, dense, with the pattern as a mask."""

import copy
import json
import re

import numpy as np
import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter
from transformers import (
    AttentionInterface,
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    BertLMHeadModel,
    CLIPConfig,
    CLIPModel,
    DataCollatorWithFlattening,
    DiffLlamaConfig,
    DiffLlamaForCausalLM,
    DogeConfig,
    DogeForCausalLM,
    DynamicCache,
    ElectraConfig,
    ElectraForMaskedLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    Lfm2Config,
    Lfm2ForCausalLM,
    Llama4ForCausalLM,
    Llama4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaConfig,
    LlavaForConditionalGeneration,
    MistralConfig,
    MistralForCausalLM,
    ModernBertConfig,
    ModernBertForMaskedLM,
    PixtralVisionConfig,
    PixtralVisionModel,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    RobertaConfig,
    RobertaForMaskedLM,
    StaticCache,
    T5Config,
    T5EncoderModel,
)

from asterism import patterns
from asterism.errors import ConfigurationError, KernelError, PatternError
from asterism.models import drop_pattern, use_pattern
from asterism.models.cache.cache import PatternCache
from asterism.models.cache.layer import PatternCacheLayer

pytestmark = pytest.mark.model

LAYERS, HEADS, VOCABULARY = 3, 4, 40
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
GROUPED = SIZES | {"num_key_value_heads": 2}
NO_DROPOUT = {"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0}
GPT2_SIZES = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": LAYERS, "n_head": HEADS, "n_positions": 128}
ALTERNATING = ["sliding_attention", "full_attention", "sliding_attention"]
CAUSAL = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**GROUPED)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**GROUPED)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**GROUPED, head_dim=8)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**GROUPED, sliding_window=None)),
    "mistral, own window": lambda: MistralForCausalLM(MistralConfig(**GROUPED, sliding_window=9)),
    "gemma3": lambda: Gemma3ForCausalLM(
        Gemma3TextConfig(**GROUPED, head_dim=8, sliding_window=5, layer_types=ALTERNATING)
    ),
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(**GPT2_SIZES, attn_pdrop=0, resid_pdrop=0, embd_pdrop=0, pad_token_id=0, eos_token_id=None)
    ),
    "bert, decoder": lambda: BertLMHeadModel(BertConfig(**SIZES, **NO_DROPOUT, is_decoder=True)),
}
ENCODERS = {
    "bert": lambda: BertForMaskedLM(BertConfig(**SIZES, **NO_DROPOUT)),
    "roberta": lambda: RobertaForMaskedLM(RobertaConfig(**SIZES, **NO_DROPOUT)),
    "modernbert": lambda: ModernBertForMaskedLM(
        ModernBertConfig(**SIZES, cls_token_id=1, sep_token_id=2, global_attn_every_n_layers=2, local_attention=8)
    ),
}
CAUSAL_PATTERNS = (
    "window(left=5)",
    "strided(stride=6)",
    "fixed(stride=8, summary=2, heads=4)",
    "interleave(window(left=3), causal(), sinks(first=2, window=4))",
)
ENCODER_PATTERNS = (
    "window(left=3, right=2)",
    "stride(period=4) | window(1, 1)",
    "bigbird(block=4, window=1, random=1)",
    "interleave(longformer(window=4, globals=(0, -1)), split_heads(window(2, 2), stride(period=3), heads=4), dense())",
)
COLUMNS = 21
SIDES = {
    "none": [range(COLUMNS)] * 3,
    "left": [range(COLUMNS), range(6, COLUMNS), range(13, COLUMNS)],
    "right": [range(COLUMNS), range(15), range(8)],
}
"""Where the real tokens of each row stand."""


def build(name: str) -> PreTrainedModel:
    """A model in float64, whose weights are large enough that every token matters."""
    model = (CAUSAL | ENCODERS)[name]().double().eval()
    generator = torch.Generator().manual_seed(0)
    for parameter_name, parameter in model.named_parameters():
        is_scale = "norm" in parameter_name.lower() or "ln_" in parameter_name
        spread = 1.0 if "embed" in parameter_name or "wte" in parameter_name else 0.3
        if parameter.ndim == 1 and is_scale and parameter_name.endswith("weight"):
            nn.init.ones_(parameter)
        else:
            nn.init.normal_(parameter, std=spread, generator=generator)
    return model


def batch(side: str) -> dict[str, torch.Tensor]:
    tokens = torch.randint(3, VOCABULARY, (3, COLUMNS), generator=torch.Generator().manual_seed(1))
    mask = torch.zeros(3, COLUMNS, dtype=torch.int64)
    for row, real in enumerate(SIDES[side]):
        mask[row, list(real)] = 1
    return {"input_ids": torch.where(mask == 1, tokens, 0), "attention_mask": mask}


def dense_mask(pattern: patterns.Pattern, side: str) -> torch.Tensor:
    """What a pattern allows, bool [batch, heads, queries, keys]; each row by its real tokens. Padding reads itself."""
    allowed = np.zeros((3, HEADS, COLUMNS, COLUMNS), bool)
    for row, real in enumerate(SIDES[side]):
        allowed[row][:, min(real) : max(real) + 1, min(real) : max(real) + 1] = pattern.dense(len(real))
    return torch.from_numpy(allowed) | torch.eye(COLUMNS, dtype=torch.bool)


class DenseWithMasks:
    """A stock model whose layers get masks of their own."""

    def __init__(self, model: PreTrainedModel, schedule: str, side: str, native_window: str = "replace") -> None:
        self.model = model
        model.set_attn_implementation("sdpa" if model._supports_sdpa else "eager")
        for module in model.modules():
            if hasattr(module, "layer_idx") and hasattr(module, "is_causal"):
                mask = dense_mask(patterns.parse_schedule(schedule).layer(module.layer_idx), side)
                if native_window == "intersect" and (own := self.own_window(module)) is not None:
                    mask = mask & dense_mask(own, side)
                module.register_forward_pre_hook(
                    lambda module, args, kwargs, mask=mask: (args, kwargs | {"attention_mask": mask}), with_kwargs=True
                )

    @staticmethod
    def own_window(module: nn.Module) -> patterns.Pattern | None:
        size = getattr(module, "sliding_window", None) or getattr(module.config, "sliding_window", None)
        if isinstance(module.config, ModernBertConfig):
            # local_attention=8 is 4 on either side.
            return patterns.window(4, 4) if module.sliding_window else None
        if isinstance(module.config, Gemma3TextConfig) and module.sliding_window is None:
            return None
        return (
            patterns.window(size - 1) if isinstance(module.config, MistralConfig | Gemma3TextConfig) and size else None
        )


def real_logits(model: PreTrainedModel, inputs: dict[str, torch.Tensor], **arguments) -> torch.Tensor:
    return model(**inputs, **arguments).logits[inputs["attention_mask"].bool()]


def enable_checkpointing(model: PreTrainedModel) -> None:
    """By its name in the transformers at hand."""
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable()


def assert_close(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got, expected, atol=1e-9, rtol=1e-9)


# --- numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", [*CAUSAL, *ENCODERS])
@torch.no_grad()
def test_a_pattern_that_covers_everything_changes_nothing(name: str, side: str) -> None:
    model, inputs = build(name), batch(side)
    expected = real_logits(model, inputs)
    use_pattern(model, "causal()" if name in CAUSAL else "dense()", native_window="intersect")
    assert_close(real_logits(model, inputs), expected)
    assert_close(real_logits(model, inputs, use_cache=False) if name in CAUSAL else expected, expected)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(
    ("name", "text"),
    [(name, text) for name in CAUSAL for text in CAUSAL_PATTERNS]
    + [(name, text) for name in ENCODERS for text in ENCODER_PATTERNS],
)
@torch.no_grad()
def test_logits_equal_those_of_the_dense_model_with_the_pattern_as_mask(name: str, text: str, side: str) -> None:
    inputs = batch(side)
    expected = real_logits(DenseWithMasks(build(name), text, side).model, inputs)
    got = real_logits(use_pattern(build(name), text, native_window="replace"), inputs)
    assert_close(got, expected)
    assert not torch.allclose(got, real_logits(build(name), inputs), atol=1e-3)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("native_window", ["replace", "intersect"])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mistral, own window", "sinks(first=2, window=12)"),
        ("gemma3", "sinks(first=2, window=12)"),
        ("modernbert", "stride(period=3) | window(left=6, right=6)"),
    ],
)
@torch.no_grad()
def test_a_window_of_the_models_own_is_replaced_or_intersected_as_asked(
    tmp_path, name: str, text: str, native_window: str, side: str
) -> None:
    inputs = batch(side)
    expected = real_logits(DenseWithMasks(build(name), text, side, native_window).model, inputs)
    model = use_pattern(build(name), text, native_window=native_window)
    assert_close(real_logits(model, inputs), expected)
    other = {"replace": "intersect", "intersect": "replace"}[native_window]
    assert not torch.allclose(real_logits(use_pattern(build(name), text, native_window=other), inputs), expected)
    assert_close(real_logits(use_pattern(model), inputs), expected)  # as configured
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, dtype=torch.float64).eval()
    got = real_logits(loaded, inputs, **({"use_cache": False} if name in CAUSAL else {}))
    # Gemma 3 scales its embeddings by a number that it rounds when it is built in another dtype.
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(("name", "text"), [("mistral, own window", "causal()"), ("modernbert", "dense()")])
def test_nothing_becomes_of_a_window_unless_it_is_said(name: str, text: str) -> None:
    model = use_pattern(build(name), text)
    with pytest.raises(ConfigurationError, match=r"has a window of \d+ tokens of its own; say what becomes of it"):
        model(**batch("none"))
    model.config.asterism_native_window = "replace"  # as the files of earlier versions say
    model(**batch("none"))


def test_what_becomes_of_a_window_is_said_with_each_pattern() -> None:
    model = use_pattern(build("gemma3"), "window(left=9)", native_window="intersect")
    assert model.config.asterism_native_window == "intersect"
    assert not hasattr(use_pattern(model, "window(left=9)").config, "asterism_native_window")
    with pytest.raises(ConfigurationError, match='native_window must be "replace" or "intersect", got \'union\''):
        use_pattern(model, "window(left=2)", native_window="union")
    assert model.config.asterism_pattern == "window(left=9)" and not hasattr(model.config, "asterism_native_window")


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize(
    ("name", "text", "side"),
    [
        ("llama", "fixed(stride=8, summary=2)", "left"),
        ("gpt2", "window(left=4)", "none"),
        ("bert", "bigbird(block=4, window=1, random=1)", "right"),
        ("modernbert", "window(3, 3)", "right"),
    ],
)
def test_gradients_equal_those_of_the_dense_model_with_the_pattern_as_mask(name, text, side, checkpointing) -> None:
    inputs = batch(side)
    # The first real token of a causal row would be predicted by padding, which may hold anything.
    predicted = inputs["attention_mask"].roll(1, dims=1) * inputs["attention_mask"] == 1
    labels = torch.where(predicted, inputs["input_ids"], -100)
    gradients = []
    for model in (
        DenseWithMasks(build(name), text, side).model,
        use_pattern(build(name), text, native_window="replace"),
    ):
        model.train()
        if checkpointing:
            enable_checkpointing(model)
        model(**inputs, labels=labels).loss.backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    for parameter_name, expected in gradients[0].items():
        if expected is not None:
            torch.testing.assert_close(gradients[1][parameter_name], expected, atol=1e-10, rtol=1e-8)


def test_a_compiled_model_trains() -> None:
    inputs = batch("right")
    losses = []
    for compiled in (False, True):
        model = use_pattern(build("llama"), "fixed(stride=8, summary=2)").train()
        run = torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model
        loss = run(**inputs, labels=inputs["input_ids"], use_cache=False).loss
        loss.backward()
        losses.append((loss.item(), model.model.embed_tokens.weight.grad))
    assert losses[0][0] == pytest.approx(losses[1][0], abs=1e-12)
    assert_close(losses[1][1], losses[0][1])


@pytest.mark.parametrize(
    ("name", "text", "arguments"),
    [
        ("llama", "interleave(window(left=5), fixed(stride=8, summary=2))", {}),
        pytest.param(*("gpt2", "strided(stride=4)", {}), marks=pytest.mark.slow),
        pytest.param(*("bert", "window(2, 2)", {}), marks=pytest.mark.slow),
        pytest.param(*("modernbert", "bigbird(block=4)", {"without a mask": True}), marks=pytest.mark.slow),
    ],
)
def test_one_whole_graph_serves_all_lengths(name: str, text: str, arguments: dict[str, bool]) -> None:
    torch._dynamo.reset()
    counter = CompileCounter()
    model = use_pattern(build(name), text, native_window="replace").train()
    run = torch.compile(model, backend=counter, fullgraph=True)
    for columns in range(COLUMNS, COLUMNS - 10, -1):
        inputs = {name: x[:, :columns] for name, x in batch("right").items()}
        if arguments:
            inputs.pop("attention_mask")
        got = run(**inputs).logits
        got.sum().backward()
        assert_close(got, model(**inputs).logits)
    assert counter.frame_count <= 2  # for one length, and for all
    torch._dynamo.reset()


@pytest.mark.slow
def test_a_compiled_model_makes_no_cache_unless_told_and_refuses_packed_documents() -> None:
    torch._dynamo.reset()
    model, tokens = use_pattern(build("llama"), "window(left=5)"), batch("none")["input_ids"]
    run = torch.compile(model, backend="eager", fullgraph=True)
    assert run(tokens).past_key_values is None and model(tokens).past_key_values is not None
    with pytest.raises(RuntimeError, match="a compiled graph cannot be one for all boundaries"):
        run(tokens, position_ids=torch.arange(COLUMNS)[None] % 7)
    torch._dynamo.reset()


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "modernbert"])
@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_padding_changes_no_real_token(name: str, side: str) -> None:
    text = "strided(stride=4)" if name in CAUSAL else "bigbird(block=3, window=1, random=1)"
    model, inputs = use_pattern(build(name), text, native_window="replace"), batch(side)
    positions = (inputs["attention_mask"].cumsum(dim=1) - 1).clamp(min=0)
    together = model(**inputs, position_ids=positions).logits
    for row, real in enumerate(SIDES[side]):
        alone = model(input_ids=inputs["input_ids"][row : row + 1, list(real)]).logits
        assert_close(together[row, list(real)], alone[0])


# --- terms of the score ----------------------------------------------------------------------------------------------

TERMS = {
    "gemma2": lambda: Gemma2ForCausalLM(
        Gemma2Config(**GROUPED, head_dim=8, attn_logit_softcapping=1.5, sliding_window=6)
    ),
    "gpt-oss": lambda: GptOssForCausalLM(
        GptOssConfig(
            **GROUPED, head_dim=8, sliding_window=6, num_local_experts=2, num_experts_per_tok=2, layer_types=ALTERNATING
        )
    ),
}


@pytest.fixture(params=TERMS)
def with_terms(request, monkeypatch) -> str:
    monkeypatch.setitem(CAUSAL, request.param, TERMS[request.param])
    return request.param


class EagerWithMasks:
    """A stock model with attention in plain PyTorch, whose layers get masks of their own."""

    def __init__(self, name: str, schedule: str, side: str) -> None:
        self.model = DenseWithMasks(build(name), schedule, side).model
        self.model.set_attn_implementation("eager")  # transformers 5.17 lets Gemma 2 lose its soft cap in another
        if hasattr(self.model, "set_experts_implementation"):
            self.model.set_experts_implementation("eager")  # others know no float64
        for module in self.model.modules():
            if hasattr(module, "layer_idx") and hasattr(module, "is_causal"):
                module.register_forward_pre_hook(self.as_numbers, with_kwargs=True)

    @staticmethod
    def as_numbers(module, arguments, named):
        mask = named["attention_mask"]
        return arguments, named | {"attention_mask": torch.zeros(mask.shape).double().masked_fill(~mask, -1e30)}


@pytest.mark.parametrize("side", ["none", "left"])
@pytest.mark.parametrize("text", CAUSAL_PATTERNS[2:])
def test_soft_capping_and_sinks_are_terms_of_the_score(with_terms: str, text: str, side: str) -> None:
    inputs, gradients = batch(side), []
    models = EagerWithMasks(with_terms, text, side).model, use_pattern(build(with_terms), text, native_window="replace")
    for model in models:
        if hasattr(model, "set_experts_implementation"):
            model.set_experts_implementation("eager")
        logits = real_logits(model, inputs, use_cache=False)
        (logits * torch.arange(VOCABULARY)).sum().backward()
        gradients.append(
            (logits.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None})
        )
    (expected, expected_gradients), (got, own) = gradients
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)  # eager attention has its softmax in float32
    largest = max(gradient.abs().max() for gradient in expected_gradients.values())
    for name, gradient in expected_gradients.items():
        torch.testing.assert_close(own[name], gradient, atol=float(largest) * 1e-5, rtol=1e-3)
    assert any("sinks" in name for name in own) == (with_terms == "gpt-oss")


def test_a_model_with_terms_generates_the_same_with_the_cache_and_without(with_terms: str) -> None:
    # Per head, so that sinks are those of the heads that keep the same keys.
    text = "interleave(fixed(stride=6, summary=1, heads=4), split_heads(window(left=4), causal(), heads=4))"
    model, inputs = use_pattern(build(with_terms), text, native_window="replace"), batch("left")
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    texts = [model.generate(**inputs, max_new_tokens=20, use_cache=use_cache) for use_cache in (True, False)]
    assert torch.equal(*texts)


DROPPING = {
    "gpt2": lambda rate: GPT2LMHeadModel(GPT2Config(**GPT2_SIZES, attn_pdrop=rate, resid_pdrop=0, embd_pdrop=0)),
    "bert": lambda rate: BertForMaskedLM(
        BertConfig(**SIZES, attention_probs_dropout_prob=rate, hidden_dropout_prob=0.0)
    ),
    "electra": lambda rate: ElectraForMaskedLM(
        ElectraConfig(**SIZES, attention_probs_dropout_prob=rate, hidden_dropout_prob=0.0)
    ),
    "llama": lambda rate: LlamaForCausalLM(LlamaConfig(**SIZES, attention_dropout=rate)),
}


def dropping(name: str, rate: float) -> PreTrainedModel:
    torch.manual_seed(0)
    model = DROPPING[name](rate).double()
    return use_pattern(model, "window(left=4)" if name in ("gpt2", "llama") else "window(4, 4)").train()


@pytest.mark.parametrize("name", DROPPING)
def test_attention_drops_in_training_by_torchs_generator(name: str) -> None:
    model, inputs = dropping(name, 0.3), batch("right")
    torch.manual_seed(1)
    first, second = real_logits(model, inputs), real_logits(model, inputs)
    torch.manual_seed(1)
    assert torch.equal(real_logits(model, inputs), first)
    assert not torch.allclose(first, second)
    without = real_logits(dropping(name, 0.0), inputs)
    state = torch.get_rng_state()
    assert_close(real_logits(model.eval(), inputs), without)
    assert torch.equal(torch.get_rng_state(), state)  # nothing is drawn where nothing is dropped


@pytest.mark.parametrize("name", DROPPING)
def test_checkpointing_drops_the_same_pairs_again(name: str) -> None:
    gradients = []
    for checkpointing in (False, True):
        model, inputs = dropping(name, 0.3), batch("right")
        if checkpointing:
            enable_checkpointing(model)
        torch.manual_seed(1)
        real_logits(
            model, inputs, **({"use_cache": False} if name in ("gpt2", "llama") else {})
        ).square().sum().backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    for name, gradient in gradients[0].items():
        if gradient is not None:
            torch.testing.assert_close(gradients[1][name], gradient, atol=1e-12, rtol=1e-9)


@torch.no_grad()
def test_dropout_is_unbiased() -> None:
    """A single layer whose output is linear in its weights of attention, before the residual sum is normalised."""
    torch.manual_seed(0)
    model, inputs = dropping("bert", 0.25), batch("none")["input_ids"]
    attention = model.bert.encoder.layer[0].attention.self
    seen = []
    attention.register_forward_hook(lambda module, arguments, output: seen.append(output[0]))
    for _ in range(200):
        model(inputs)
    model.eval()(inputs)
    draws, expected = torch.stack(seen[:-1]), seen[-1]
    error = (draws.mean(dim=0) - expected) / (draws.std(dim=0) / len(draws) ** 0.5)
    assert error.abs().max() < 5.5 and 0.8 < error.square().mean() < 1.2


# --- packed documents ------------------------------------------------------------------------------------------------

DOCUMENTS = (7, 1, 13, 30)


def packed(**options: bool) -> dict[str, torch.Tensor]:
    """Documents in a row, as transformers' collator packs them."""
    generator = torch.Generator().manual_seed(2)
    documents = [{"input_ids": torch.randint(3, VOCABULARY, (n,), generator=generator).tolist()} for n in DOCUMENTS]
    return dict(DataCollatorWithFlattening(return_tensors="pt", **options)(documents))


def loss_of_documents(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """In float64; transformers computes its losses in float32."""
    pairs = zip(logits.split(DOCUMENTS, dim=1), tokens.split(DOCUMENTS, dim=1), strict=True)
    return sum(nn.functional.cross_entropy(x[0, :-1], y[0, 1:], reduction="sum") for x, y in pairs)


@pytest.mark.parametrize("how", ["positions", "boundaries", "both", "positions and a mask"])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("llama", "sinks(first=2, window=5)"),
        ("qwen2", "interleave(fixed(stride=8, summary=2, heads=4), window(left=3), strided(stride=4))"),
        ("gpt2", "sinks(first=2, window=5)"),
    ],
)
def test_packed_documents_are_what_they_are_alone(name: str, text: str, how: str) -> None:
    if name == "gpt2" and how == "positions and a mask":
        pytest.skip("GPT-2 tells its attention nothing of positions, and makes no packed mask beside an attention_mask")
    model = use_pattern(build(name), text, native_window="replace").train()
    inputs = packed(return_flash_attn_kwargs=how in ("boundaries", "both"))
    if how == "boundaries" and name != "gpt2":  # whose positions are absolute
        inputs.pop("position_ids")
    if how == "positions and a mask":
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    together = model(**inputs, use_cache=False)
    loss_of_documents(together.logits, inputs["input_ids"]).backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad()
    alone = torch.cat([model(x, use_cache=False).logits for x in inputs["input_ids"].split(DOCUMENTS, dim=1)], dim=1)
    if "position_ids" not in inputs:  # rotations of positions further on, in float32
        torch.testing.assert_close(together.logits, alone, atol=1e-4, rtol=1e-4)
        return
    assert_close(together.logits, alone)
    loss_of_documents(alone, inputs["input_ids"]).backward()
    for parameter_name, parameter in model.named_parameters():
        torch.testing.assert_close(gradients[parameter_name], parameter.grad, atol=1e-10, rtol=1e-8)


@torch.no_grad()
def test_rows_may_hold_different_documents() -> None:
    model, inputs = use_pattern(build("llama"), "fixed(stride=6, summary=1)"), batch("none")
    positions = torch.stack([torch.arange(COLUMNS), torch.arange(COLUMNS) % 8, torch.arange(COLUMNS) % 15])
    together = model(inputs["input_ids"], position_ids=positions, use_cache=False).logits
    for row, documents in enumerate([(21,), (8, 8, 5), (15, 6)]):
        for document, got in zip(
            inputs["input_ids"][row].split(documents), together[row].split(documents), strict=True
        ):
            assert_close(got, model(document[None], use_cache=False).logits[0])


# --- the cache -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", CAUSAL)
@torch.no_grad()
def test_logits_with_the_cache_equal_logits_without(name: str, side: str) -> None:
    text = "interleave(fixed(stride=6, summary=1), window(left=4), sinks(first=1, window=3))"
    model, inputs = use_pattern(build(name), text, native_window="replace"), batch(side)
    expected = real_logits(model, inputs, use_cache=False)
    cache, parts = DynamicCache(config=model.config), []
    for start, stop in ((0, 9), (9, 10), (10, 16), *((i, i + 1) for i in range(16, COLUMNS))):
        part = model(
            input_ids=inputs["input_ids"][:, start:stop],
            attention_mask=inputs["attention_mask"][:, :stop],
            position_ids=torch.arange(start, stop)[None],
            past_key_values=cache,
        )
        assert part.past_key_values is cache
        parts.append(part.logits)
    assert_close(torch.cat(parts, dim=1)[inputs["attention_mask"].bool()], expected)
    for layer, limit in zip(cache.layers, (6 + 3, 4, 3), strict=True):
        assert all(len(layer.kept(row)[0]) <= limit for row in range(len(layer.lengths)))


@pytest.mark.parametrize("name", ["llama", "qwen3", "mistral, own window", "gpt2"])
@pytest.mark.parametrize(
    "how", [{}, {"num_beams": 3}, {"do_sample": True}, {"num_beams": 2, "num_return_sequences": 2}, {"min_p": 0.0}]
)
def test_generate_with_the_cache_equals_generate_without(name: str, how: dict) -> None:
    text = "interleave(fixed(stride=6, summary=1), window(left=4))"
    model, inputs = use_pattern(build(name), text, native_window="replace"), batch("left")
    outputs = []
    for use_cache in (True, False):
        with torch.random.fork_rng():
            torch.manual_seed(5)
            outputs.append(
                model.generate(**inputs, **how, max_new_tokens=24, use_cache=use_cache, return_dict_in_generate=True)
            )
    assert torch.equal(outputs[0].sequences, outputs[1].sequences)
    assert outputs[0].sequences.shape[1] == COLUMNS + 24
    kept = [max(map(len, layer.kept().values())) for layer in outputs[0].past_key_values.layers]
    assert all(isinstance(layer, PatternCacheLayer) for layer in outputs[0].past_key_values.layers)
    assert kept[1] == 4 and kept[0] <= 6 + (COLUMNS + 24) // 6


@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral, own window"])
def test_guesses_of_assistants_and_caches_of_fixed_size_change_no_token(name: str) -> None:
    text = "interleave(fixed(stride=6, summary=1), window(left=4), sinks(first=2, window=6))"
    model = use_pattern(build(name), text, native_window="replace")
    tokens, length = batch("none")["input_ids"][:1], {"max_new_tokens": 24, "do_sample": False}
    expected = model.generate(tokens, **length)
    for how in (
        {"prompt_lookup_num_tokens": 4},
        {"assistant_model": use_pattern(build(name), "window(left=3)", native_window="replace")},
        {"assistant_model": build(name)},
        {"past_key_values": PatternCache(max_tokens=COLUMNS + 24)},
    ):
        assert torch.equal(model.generate(tokens, **length, **how), expected)
    for kind, message in (
        ("static", "^a static or sliding cache cannot forget by a pattern; leave out"),
        ("offloaded", "past_key_values .offloaded DynamicCache. cannot"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            model.generate(tokens, **length, cache_implementation=kind, disable_compile=True)


def test_generate_makes_of_a_padded_row_what_it_makes_of_it_alone() -> None:
    model, inputs = use_pattern(build("llama"), "strided(stride=5)"), batch("left")
    together = model.generate(**inputs, max_new_tokens=12)
    for row, real in enumerate(SIDES["left"]):
        alone = model.generate(inputs["input_ids"][row : row + 1, list(real)], max_new_tokens=12)
        assert torch.equal(together[row, list(real)[0] :], alone[0])


@torch.no_grad()
def test_a_mask_may_be_left_out_once_the_cache_knows_the_padding() -> None:
    model, inputs = use_pattern(build("gpt2"), "strided(stride=4)"), batch("left")
    first = {key: value[:, :-1] for key, value in inputs.items()}
    last, position = inputs["input_ids"][:, -1:], torch.tensor([[COLUMNS - 1]])
    expected = model(**inputs).logits[:, -1:]
    cache = model(**first, use_cache=True).past_key_values
    assert_close(model(last, past_key_values=cache, position_ids=position).logits, expected)


# --- saved and restored ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "auto", "pattern"),
    [
        ("llama", AutoModelForCausalLM, patterns.parse_schedule("interleave(window(left=4), fixed(stride=6))")),
        ("modernbert", AutoModelForMaskedLM, [patterns.window(2, 2), "dense()", "stride(period=3)"]),
    ],
)
@torch.no_grad()
def test_a_saved_model_keeps_its_pattern(tmp_path, monkeypatch, name: str, auto, pattern) -> None:
    model, inputs = use_pattern(build(name), pattern, native_window="replace"), batch("left")
    expected = real_logits(model, inputs)
    for folder in ("first", "second"):  # saved again after it was loaded
        model.save_pretrained(tmp_path / folder)
        model = auto.from_pretrained(tmp_path / folder, dtype=torch.float64).eval()
        assert model.config._attn_implementation == "asterism"
        assert_close(real_logits(model, inputs), expected)
    written = json.loads((tmp_path / "second" / "config.json").read_text())
    assert written["asterism_pattern"] == model.config.asterism_pattern
    assert_close(real_logits(use_pattern(model), inputs), expected)
    assert_close(real_logits(copy.deepcopy(model), inputs), expected)
    # Without asterism, transformers knows no attention of this name.
    monkeypatch.delitem(AttentionInterface._global_mapping, "asterism")
    monkeypatch.delattr(PreTrainedConfig, "asterism_pattern")
    with pytest.raises(ValueError, match="asterism"):
        auto.from_pretrained(tmp_path / "second")


@torch.no_grad()
@pytest.mark.parametrize("name", ["llama", "mistral, own window"])
def test_a_loaded_model_generates_the_same_and_forgets(tmp_path, name: str) -> None:
    model, inputs = use_pattern(build(name), "fixed(stride=6, summary=1)", native_window="replace"), batch("left")
    expected = model.generate(**inputs, max_new_tokens=12)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64).eval()
    assert torch.equal(loaded.generate(**inputs, max_new_tokens=12), expected)
    assert type(loaded(**inputs, use_cache=True).past_key_values.layers[0]) is PatternCacheLayer
    built = AutoModelForCausalLM.from_config(loaded.config)
    assert type(built(**inputs, use_cache=True).past_key_values.layers[0]) is PatternCacheLayer


def test_a_configuration_whose_pattern_does_not_fit_builds_no_model() -> None:
    config = LlamaConfig(**GROUPED, asterism_pattern="window(1, 1)")
    with pytest.raises(PatternError, match="cannot be used by a causal model"):
        LlamaForCausalLM(config)


@torch.no_grad()
def test_a_pattern_can_be_changed_set_aside_and_dropped(tmp_path) -> None:
    model, inputs = build("llama"), batch("right")
    dense = real_logits(model, inputs)
    fresh = model.config.to_dict()
    narrow = real_logits(use_pattern(model, "window(left=2)"), inputs)
    wide = real_logits(use_pattern(model, patterns.window(left=4)), inputs)
    assert not torch.allclose(narrow, wide) and not torch.allclose(narrow, dense)
    model.set_attn_implementation("sdpa")
    assert_close(real_logits(model, inputs), dense)
    assert_close(real_logits(use_pattern(model), inputs), wide)
    assert_close(real_logits(drop_pattern(model), inputs), dense)
    assert model.config.to_dict() == fresh and model.config._attn_implementation == "sdpa"
    use_pattern(model, "window(left=2)", native_window="intersect")
    assert_close(real_logits(use_pattern(model, None), inputs), dense)
    assert model.config.to_dict() == fresh and model.config._attn_implementation == "sdpa"
    assert model.generate(**inputs, max_new_tokens=3).shape == (3, COLUMNS + 3)
    with pytest.raises(ConfigurationError, match="configuration names no pattern"):
        use_pattern(model)


@torch.no_grad()
def test_another_attention_may_be_asked_for_and_is_what_is_saved(tmp_path, caplog) -> None:
    model, inputs = build("llama"), batch("right")
    dense = real_logits(model, inputs)
    narrow = real_logits(use_pattern(model, "window(left=2)"), inputs)
    model.save_pretrained(tmp_path / "narrow")
    for kind in (AutoModelForCausalLM, LlamaForCausalLM):
        loaded = kind.from_pretrained(tmp_path / "narrow", attn_implementation="sdpa", dtype=torch.float64)
        assert_close(real_logits(loaded, inputs), dense)
        assert_close(real_logits(use_pattern(loaded), inputs), narrow)
    assert AutoConfig.from_pretrained(tmp_path / "narrow", attn_implementation="eager")._attn_implementation == "eager"
    assert not caplog.records
    model.set_attn_implementation("sdpa")
    assert "the pattern window(left=2) is set aside and will not be saved" in caplog.text
    model.save_pretrained(tmp_path / "dense")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "dense", dtype=torch.float64)
    assert again.config.asterism_pattern is None
    assert_close(real_logits(again, inputs), dense)
    assert_close(real_logits(use_pattern(model), inputs), narrow)
    assert model.config.to_dict()["asterism_pattern"] == "window(left=2, right=0, dilation=1)"


# --- models without numbered layers, without masks, and inside of others ---------------------------------------------


def dense_attention(model: PreTrainedModel, schedule: str, layers: int) -> None:
    """Have every attention module read by the schedule, as a mask of the stock model."""
    modules = [module for module in model.modules() if hasattr(module, "is_causal")]
    assert len(modules) == layers
    for number, module in enumerate(modules):

        def mask(module, args, kwargs, number=number):
            hidden = kwargs.get("hidden_states", args[0] if args else None)
            allowed = torch.from_numpy(patterns.parse_schedule(schedule).layer(number).dense(hidden.shape[1]))[None]
            return args[:1], kwargs | {"attention_mask": allowed}

        module.register_forward_pre_hook(mask, with_kwargs=True)


@pytest.mark.parametrize(
    ("kind", "layers", "text"),
    [
        ("vit", 2, "interleave(window(3, 3), longformer(window=4, globals=(0,)))"),
        ("dinov2", 2, "interleave(window(3, 3), longformer(window=4, globals=(0,)))"),
        ("clip_vision_model", 2, "interleave(window(3, 3), longformer(window=4, globals=(0,)))"),
        ("distilbert", 2, "interleave(window(1, 1), stride(period=3))"),
        ("albert", 1, "window(2, 1) | global_tokens((0,))"),
    ],
)
def test_encoders_whose_layers_have_no_numbers_follow_a_pattern(tmp_path, kind: str, layers: int, text: str) -> None:
    config = AutoConfig.for_model(kind, **TINY, **CLIP_SIDES, dim=16, n_heads=2, n_layers=2, vocab_size=VOCABULARY)
    torch.manual_seed(0)
    model = AutoModel.from_config(config).double().eval()
    images = model.main_input_name == "pixel_values"
    inputs = torch.randn(2, 3, 8, 8, dtype=torch.float64) if images else torch.randint(0, VOCABULARY, (2, 17))
    other = copy.deepcopy(model)
    dense_attention(other, text, layers)
    expected = other(inputs).last_hidden_state
    assert not torch.allclose(model(inputs).last_hidden_state, expected)
    assert_close(use_pattern(model, text)(inputs).last_hidden_state, expected)
    model.save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path, dtype=torch.float64).eval()
    assert_close(loaded(inputs).last_hidden_state, expected)


def test_the_encoder_of_t5_follows_a_pattern_with_its_biases(tmp_path) -> None:
    config = T5Config(vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=48, num_layers=3, num_heads=4, dropout_rate=0.0)
    model, inputs = T5EncoderModel(config).double().eval(), batch("right")
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3, generator=generator)
    results = []
    for text in (None, "dense()", "window(4, 4)"):
        use_pattern(model, text).zero_grad()
        out = model(**inputs).last_hidden_state * inputs["attention_mask"][..., None]
        out[..., 0].sum().backward()
        results.append(
            (out.detach(), model.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight.grad)
        )
    (expected, expected_gradient), (got, gradient), (narrow, _) = results
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(gradient, expected_gradient, atol=1e-5, rtol=1e-4)
    assert not torch.allclose(narrow, expected, atol=1e-3)
    model.save_pretrained(tmp_path)
    loaded = T5EncoderModel.from_pretrained(tmp_path, dtype=torch.float64).eval()
    assert_close(loaded(**inputs).last_hidden_state * inputs["attention_mask"][..., None], narrow)


def test_a_model_inside_of_another_follows_a_pattern_and_is_saved_with_it(tmp_path) -> None:
    make, _ = REFUSED["llava"]
    model = make().double().eval()
    tokens = torch.randint(3, 8, (2, 12), generator=torch.Generator().manual_seed(0))
    dense = model(tokens).logits
    use_pattern(model.model.language_model, "window(left=3)")
    narrow = model(tokens).logits
    assert_close(narrow[:, :4], dense[:, :4])
    assert not torch.allclose(narrow[:, 4:], dense[:, 4:])
    model.save_pretrained(tmp_path)
    loaded = LlavaForConditionalGeneration.from_pretrained(tmp_path, dtype=torch.float64).eval()
    assert_close(loaded(tokens).logits, narrow)
    assert loaded.model.vision_tower.config._attn_implementation == "sdpa"
    chosen = LlavaForConditionalGeneration.from_pretrained(tmp_path, dtype=torch.float64, attn_implementation="eager")
    torch.testing.assert_close(chosen(tokens).logits, dense, atol=1e-6, rtol=1e-4)  # its softmax is in float32


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "pattern", "error", "message"),
    [
        ("llama", "window(1, 1)", PatternError, r"cannot be used by a causal model: it may read the future"),
        ("gpt2", "bigbird(block=4)", PatternError, r"bigbird\(block=4\) cannot be used by a causal model"),
        ("bert, decoder", "dense()", PatternError, r"cannot be used by a causal model"),
        ("bert", "fixed(stride=4, heads=2)", PatternError, "is a pattern of 2 heads and the attention has 4"),
        ("bert", "across(dense(), step=2)", PatternError, r"cannot be used by Bert\w+: across\(...\) is for cross"),
        ("llama", "across(causal())", PatternError, r"cannot be used by Llama\w+: across\(...\) is for cross"),
        ("bert", "windw(2)", PatternError, "Did you mean 'window'"),
        ("bert", 3, PatternError, "a pattern, a schedule, the text of one"),
        ("bert", ["dense()"], ConfigurationError, "1 patterns are listed for 3 layers"),
        (
            "bert",
            "interleave(dense(), dense(), dense(), window(1, 1))",
            ConfigurationError,
            "the schedule has 4 patterns and the model 3 layers of attention, so some would never be used",
        ),
    ],
)
def test_a_pattern_the_model_cannot_use_is_refused_and_nothing_changes(name, pattern, error, message) -> None:
    model = build(name)
    before = model.config.to_dict(), model.config._attn_implementation
    with pytest.raises(error, match=message):
        use_pattern(model, pattern)
    assert (model.config.to_dict(), model.config._attn_implementation) == before


TINY = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
CLIP_SIDES = {"image_size": 8, "patch_size": 2}
BART = {"vocab_size": 9, "d_model": 8, "encoder_layers": 1, "decoder_layers": 1}
REFUSED = {
    "no model": (lambda: nn.Linear(2, 2), "use_pattern needs a model of transformers"),
    "bart": (
        lambda: BartForConditionalGeneration(BartConfig(**BART, encoder_attention_heads=2, decoder_attention_heads=2)),
        "BartForConditionalGeneration is an encoder with a decoder",
    ),
    "cross-attention": (
        lambda: BertLMHeadModel(BertConfig(**SIZES, is_decoder=True, add_cross_attention=True)),
        "BertLMHeadModel reads another sequence, too",
    ),
    "gpt-neo": (
        lambda: GPTNeoForCausalLM(
            GPTNeoConfig(
                vocab_size=9, hidden_size=8, num_layers=2, attention_types=[[["global", "local"], 1]], num_heads=2
            )
        ),
        "GPTNeoForCausalLM computes its attention itself, .*; take a model that does, such as Llama",
    ),
    "clip": (
        lambda: CLIPModel(CLIPConfig(text_config=TINY, vision_config=TINY | CLIP_SIDES)),
        r"CLIPModel is made of several models; give the pattern to one of them: use_pattern\(model.text_model, ",
    ),
    "llava": (
        lambda: LlavaForConditionalGeneration(
            LlavaConfig(
                vision_config=TINY | CLIP_SIDES | {"model_type": "clip_vision_model"},
                text_config=TINY | {"model_type": "llama", "vocab_size": 9},
            )
        ),
        r"use_pattern\(model.model.language_model, pattern\) for its LlamaModel",
    ),
    "lfm2": (
        lambda: Lfm2ForCausalLM(Lfm2Config(**SIZES, layer_types=["conv", "full_attention", "conv"])),
        r"Lfm2ForCausalLM mixes tokens by more than attention \(layers of type conv\)",
    ),
    "doge": (lambda: DogeForCausalLM(DogeConfig(**SIZES)), "DogeForCausalLM changes its mask inside attention"),
    "diffllama": (
        lambda: DiffLlamaForCausalLM(DiffLlamaConfig(**SIZES)),
        "DiffLlamaForCausalLM attends more than once in each layer",
    ),
    "pixtral": (
        lambda: PixtralVisionModel(PixtralVisionConfig(**TINY, **CLIP_SIDES)),
        "PixtralVisionModel makes a mask of its own",
    ),
}
"""Models and why no pattern can be given to them."""


@pytest.mark.parametrize("name", REFUSED)
def test_models_that_cannot_follow_a_pattern_are_refused_and_nothing_changes(name: str) -> None:
    make, message = REFUSED[name]
    model = make()
    before = None if name == "no model" else (model.config.to_dict(), model.config._attn_implementation)
    with pytest.raises(ConfigurationError, match=message):
        use_pattern(model, "causal()")
    assert before is None or (model.config.to_dict(), model.config._attn_implementation) == before
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_chunks_of_a_model_are_replaced_but_not_intersected() -> None:
    chunks = {"attention_chunk_size": 4, "num_local_experts": 2, "intermediate_size_mlp": 16, "head_dim": 8}
    model = Llama4ForCausalLM(Llama4TextConfig(**GROUPED, **chunks)).double().eval()
    with pytest.raises(ConfigurationError, match="attends in chunks .* leave native_window at"):
        use_pattern(model, "causal()", native_window="intersect")
    use_pattern(model, "causal()", native_window="replace")(**batch("left"))


def test_what_a_pattern_does_not_say_is_refused() -> None:
    inputs = batch("none")
    tokens = inputs["input_ids"]
    llama, bert = use_pattern(build("llama"), "window(left=4)"), use_pattern(build("bert"), "window(2, 2)")
    with pytest.raises(
        ConfigurationError, match=r"a mask of shape \[3, 1, 21, 21\], which no pattern can be laid over"
    ):
        llama(tokens, attention_mask=torch.ones(3, 1, COLUMNS, COLUMNS, dtype=torch.bool), use_cache=False)
    with pytest.raises(ConfigurationError, match="documents packed into a row .* come without a cache"):
        llama(tokens, position_ids=torch.arange(COLUMNS)[None] % 7, use_cache=True)
    with pytest.raises(KernelError, match="cu_seq_lens_q must go from 0 to the number of tokens, 63; got 0 to 20"):
        llama(tokens, cu_seq_lens_q=torch.tensor([0, 7, 20]), use_cache=False)
    with pytest.raises(ConfigurationError, match="cu_seq_lens_q and cu_seq_lens_k differ"):
        ends = torch.tensor([0, 7, 63]), torch.tensor([0, 8, 63])
        llama(tokens, cu_seq_lens_q=ends[0], cu_seq_lens_k=ends[1], use_cache=False)
    with pytest.raises(ConfigurationError, match=r"attention_mask has shape \[3, 20\]"):
        llama(tokens, attention_mask=inputs["attention_mask"][:, 1:], use_cache=True)
    for name, message in (("seq_idx", "leave out return_seq_idx=True"), ("output_attentions", "weights are never all")):
        with pytest.raises(ConfigurationError, match=message):
            llama(tokens, use_cache=False, **{name: torch.zeros(3, COLUMNS) if name == "seq_idx" else True})
    for value in (-1e9, -torch.inf, 0.5):
        added = torch.zeros(tokens.shape).index_fill(1, torch.arange(5), value)
        with pytest.raises(
            ConfigurationError, match=re.escape(f"attention_mask holds {value:g}, as if it were to be added")
        ):
            bert(tokens, attention_mask=added)
    assert_close(bert(tokens, attention_mask=torch.ones(tokens.shape)).logits, bert(tokens).logits)
    with pytest.raises(ValueError, match="output_attentions"):
        bert.config.output_attentions = True


@torch.no_grad()
def test_caches_that_cannot_forget_are_refused() -> None:
    model, inputs = build("llama"), batch("left")
    dense = model(**inputs, use_cache=True).past_key_values
    use_pattern(model, "window(left=4)")
    following = {"input_ids": inputs["input_ids"][:, :1], "attention_mask": torch.ones(3, COLUMNS + 1)}
    with pytest.raises(ConfigurationError, match="past_key_values was filled without the pattern"):
        model(**following, past_key_values=dense)
    with pytest.raises(ConfigurationError, match="static or sliding cache"):
        model(**inputs, past_key_values=StaticCache(config=model.config, max_cache_len=64))
    with pytest.raises(ConfigurationError, match="static or sliding cache"):
        model.generate(**inputs, max_new_tokens=2, cache_implementation="static", disable_compile=True)
    other = model(**inputs, use_cache=True).past_key_values
    use_pattern(model, "window(left=5)")
    with pytest.raises(ConfigurationError, match=r"forgets by the pattern window\(left=4\), but layer 0 reads by"):
        model(**following, past_key_values=other)
    use_pattern(model, "window(left=4)")
    del other.layers[1:]  # as of a model with one layer
    with pytest.raises(ConfigurationError, match="the part of it for this layer 0: it belongs to a model of fewer"):
        model(**following, past_key_values=other)


def test_every_configuration_has_the_field() -> None:
    assert LlamaConfig().asterism_pattern is None
    assert "asterism_pattern" not in LlamaConfig().to_dict()
    config = AutoConfig.for_model("llama", asterism_pattern="window(left=3)")
    assert config.asterism_pattern == "window(left=3)" and config._attn_implementation == "asterism"
    config.asterism_pattern = None
    assert "attn_implementation" not in config.to_dict()
