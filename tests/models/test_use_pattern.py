"""Models of transformers follow a pattern: against the same models, dense, with the pattern as a mask."""

import copy

import pytest
import torch
from followed_models import (
    CAUSAL,
    CAUSAL_PATTERNS,
    CLIP_SIDES,
    COLUMNS,
    ENCODER_PATTERNS,
    ENCODERS,
    SIDES,
    TINY,
    VOCABULARY,
    DenseWithMasks,
    assert_close,
    batch,
    build,
    enable_checkpointing,
    llava,
    real_logits,
)
from refusals import refusing
from torch import nn
from torch._dynamo.testing import CompileCounter
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    DataCollatorWithFlattening,
    LlavaForConditionalGeneration,
    PreTrainedModel,
    T5Config,
    T5EncoderModel,
)

from asterism import patterns
from asterism.errors import ConfigurationError
from asterism.models import drop_pattern, use_pattern

pytestmark = pytest.mark.model

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
    with pytest.raises(ConfigurationError, match=r"has its own window of \d+ tokens: use_pattern"):
        model(**batch("none"))
    model.config.asterism_native_window = "replace"  # as the files of earlier versions say
    model(**batch("none"))


def test_what_becomes_of_a_window_is_said_with_each_pattern() -> None:
    model = use_pattern(build("gemma3"), "window(left=9)", native_window="intersect")
    assert model.config.asterism_native_window == "intersect"
    assert not hasattr(use_pattern(model, "window(left=9)").config, "asterism_native_window")
    with refusing(ConfigurationError, "native-window-choice", "'union'"):
        use_pattern(model, "window(left=2)", native_window="union")
    assert model.config.asterism_pattern == "window(left=9)" and not hasattr(model.config, "asterism_native_window")


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize(
    ("name", "text", "side"),
    [
        ("llama", "fixed(stride=8, summary=2)", "left"),
        ("gpt2", "window(left=4)", "none"),
        ("bert", "bigbird(block=4, window_blocks=1, random=1)", "right"),
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
    text = "strided(stride=4)" if name in CAUSAL else "bigbird(block=3, window_blocks=1, random=1)"
    model, inputs = use_pattern(build(name), text, native_window="replace"), batch(side)
    positions = (inputs["attention_mask"].cumsum(dim=1) - 1).clamp(min=0)
    together = model(**inputs, position_ids=positions).logits
    for row, real in enumerate(SIDES[side]):
        alone = model(input_ids=inputs["input_ids"][row : row + 1, list(real)]).logits
        assert_close(together[row, list(real)], alone[0])


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
    model = llava().double().eval()
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


def test_other_models_of_the_same_configuration_stay_dense() -> None:
    config = AutoConfig.for_model("llama", **TINY)
    before, model = AutoModel.from_config(config).eval(), AutoModelForCausalLM.from_config(config).eval()
    before.load_state_dict(model.model.state_dict())
    tokens = torch.randint(3, 8, (2, 12), generator=torch.Generator().manual_seed(0))
    dense = before(tokens)[0]
    use_pattern(model.model, "window(left=3)")
    assert not torch.allclose(model.model(tokens)[0], dense)
    after = AutoModel.from_config(config).eval()
    after.load_state_dict(before.state_dict())
    assert config.asterism_pattern is None and config._attn_implementation != "asterism"
    assert torch.equal(before(tokens)[0], dense) and torch.equal(after(tokens)[0], dense)
    use_pattern(after, "window(left=1)")
    assert model.config.asterism_pattern == model.model.config.asterism_pattern == "window(left=3)"
    twin = AutoModelForCausalLM.from_config(model.config)  # asked for with the pattern, it keeps it
    drop_pattern(model)
    assert twin.config.asterism_pattern == "window(left=3)" and torch.equal(model.model(tokens)[0], dense)
