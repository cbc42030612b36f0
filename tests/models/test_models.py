"""Models as users meet them: causality, generation, padding, saving and loading, sizes, and refusals."""

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from small_models import CAUSAL_MIXERS, VOCABULARY, random_tokens, small_config, small_model
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedTokenizerFast,
    pipeline,
)

from asterism import patterns
from asterism.errors import ConfigurationError, PatternError
from asterism.kernels import IMPLEMENTATIONS
from asterism.layers.block import ACTIVATIONS
from asterism.layers.rows.padding import Packing
from asterism.models import AsterismConfig, AsterismForCausalLM, AsterismModel
from asterism.models.cache.cache import PatternCache
from asterism.shape import RULES, ModelConfig, choices_of

# --- causality -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("implementation", ["auto", "eager"])
@pytest.mark.parametrize("text", CAUSAL_MIXERS)
def test_no_earlier_logit_sees_the_future(text: str, implementation: str) -> None:
    model, tokens = small_model(text, implementation=implementation), random_tokens(2, 41)
    changed = tokens.clone()
    changed[:, -1] = (changed[:, -1] + 1) % VOCABULARY
    longer = torch.cat([tokens, random_tokens(2, 23, seed=5)], dim=1)
    with torch.no_grad():
        logits = model(tokens).logits
        torch.testing.assert_close(model(changed).logits[:, :-1], logits[:, :-1], atol=1e-12, rtol=0)
        torch.testing.assert_close(model(longer).logits[:, :41], logits, atol=1e-11, rtol=0)
        assert (model(changed).logits[:, -1] - logits[:, -1]).abs().max() > 1e-3


@pytest.mark.parametrize("text", CAUSAL_MIXERS)
def test_every_token_matters_to_a_later_logit(text: str) -> None:
    """The causality test above would pass for a model that reads nothing; this one would not."""
    model = small_model(text).model
    embedding = model.embed_tokens(random_tokens(1, 24)).detach().requires_grad_()
    model(inputs_embeds=embedding).last_hidden_state[:, -1].sum().backward()
    reads = patterns.parse_schedule(text)
    reach = torch.eye(24, dtype=torch.bool)
    for number in range(3):
        layer = torch.from_numpy(reads.layer(number).dense(24)).any(dim=0)
        reach = ((layer | torch.eye(24, dtype=torch.bool)).double() @ reach.double()) > 0
    assert torch.equal(embedding.grad[0].abs().sum(dim=1) > 0, reach[-1])


@pytest.mark.parametrize(
    ("mixers", "pattern", "advice"),
    [
        ("bigbird(block=4)", "bigbird(block=4)", "use bigbird_causal(...) instead"),
        ("dense()", "dense()", "write (dense()) & causal()"),
        (
            "interleave(causal(), window(left=2, right=1))",
            "window(left=2, right=1)",
            "write (window(left=2, right=1)) & causal()",
        ),
        (
            "global_tokens(positions=(-1,)) & causal()",
            "global_tokens(positions=(-1,)) & causal()",
            "use positions counted from the front instead",
        ),
    ],
)
def test_patterns_that_no_causal_model_can_use(mixers: str, pattern: str, advice: str) -> None:
    with pytest.raises(PatternError) as caught:
        AsterismForCausalLM(small_config(mixers))
    message = str(caught.value)
    assert message.startswith(f"{pattern} cannot be used by a causal model") and message.endswith(advice)
    assert "\n" not in message


def test_pattern_with_rules_for_other_heads_is_refused() -> None:
    with pytest.raises(PatternError) as caught:
        AsterismForCausalLM(small_config("fixed(stride=8, heads=2)"))
    assert (
        str(caught.value) == "fixed(stride=8, heads=2) is a pattern of 2 heads and the attention has 4: make them equal"
    )


# --- generation ------------------------------------------------------------------------------------------------------

MODES = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True, "temperature": 1.3, "top_k": 12},
    "beam": {"do_sample": False, "num_beams": 3},
    "beam sampling": {"do_sample": True, "num_beams": 2, "num_return_sequences": 2},
}


def generate(model: AsterismForCausalLM, tokens: torch.Tensor, **options) -> torch.Tensor:
    torch.manual_seed(7)
    return model.generate(tokens, max_new_tokens=24, **options)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "mixers",
    ["fixed(stride=8, summary=2)", "window(left=5)", "strided(stride=6)", CAUSAL_MIXERS[-2], CAUSAL_MIXERS[-1]],
)
def test_generation_with_cache_equals_generation_without(mixers: str, mode: str) -> None:
    model, tokens = small_model(mixers), random_tokens(2, 13)
    cached = generate(model, tokens, **MODES[mode])
    assert torch.equal(cached, generate(model, tokens, use_cache=False, **MODES[mode]))
    assert torch.equal(cached[::2][:, :13] if len(cached) == 4 else cached[:, :13], tokens)
    assert len(set(cached[0, 13:].tolist())) > 2


def test_generation_returns_and_continues_a_pattern_cache() -> None:
    model, tokens = small_model(), random_tokens(1, 10)
    first = model.generate(tokens, max_new_tokens=8, do_sample=False, return_dict_in_generate=True)
    assert first.past_key_values.get_seq_length() == 17
    more = model.generate(first.sequences, past_key_values=first.past_key_values, max_new_tokens=8, do_sample=False)
    assert torch.equal(more, model.generate(tokens, max_new_tokens=16, do_sample=False))
    own = PatternCache(model.config)
    assert torch.equal(more, model.generate(tokens, max_new_tokens=16, do_sample=False, past_key_values=own))
    assert own.get_seq_length() == 25


def test_generation_prefills_in_chunks_and_from_embeddings() -> None:
    model, tokens = small_model(), random_tokens(2, 21)
    expected = generate(model, tokens, do_sample=False)
    assert torch.equal(generate(model, tokens, do_sample=False, prefill_chunk_size=8), expected)
    embeddings = model.get_input_embeddings()(tokens)
    generated = model.generate(inputs_embeds=embeddings, max_new_tokens=24, do_sample=False)
    assert torch.equal(generated, expected[:, 21:])


def test_generation_refuses_caches_it_would_have_to_ignore() -> None:
    model, tokens = small_model(), random_tokens(1, 10)
    for implementation in ("static", "offloaded"):
        with pytest.raises(ConfigurationError, match="that does not know which keys the patterns of this model"):
            generate(model, tokens, cache_implementation=implementation)


@pytest.mark.parametrize("mixers", ["fixed(stride=8, summary=2)", "sinks(first=2, window=6)", *CAUSAL_MIXERS[-2:]])
def test_assisted_generation_equals_plain_generation(mixers: str) -> None:
    """Guesses are taken back where they were wrong: some of the prompt's repetitions, and some of an assistant."""
    model, assistant = small_model(mixers), small_model(mixers)
    for parameter in assistant.parameters():
        parameter.data.add_(0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    tokens = random_tokens(1, 6).repeat(1, 4)
    expected = generate(model, tokens, do_sample=False)
    assert torch.equal(generate(model, tokens, do_sample=False, prompt_lookup_num_tokens=5), expected)
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    assert torch.equal(generate(model, tokens, do_sample=False, assistant_model=assistant), expected)
    assert 1 < len(calls) < expected.shape[1] - tokens.shape[1]


def test_generation_that_needs_more_positions_is_refused_before_it_starts() -> None:
    model, tokens = small_model(), random_tokens(2, 40)
    calls = []
    model.register_forward_pre_hook(lambda *_: calls.append(1))
    with pytest.raises(ConfigurationError) as caught:
        model.generate(tokens, max_new_tokens=26, do_sample=False)
    assert str(caught.value) == (
        "65 tokens are more than the 64 positions of this model (max_position_embeddings, position_type 'learned');"
        " shorten the input or what is to be generated"
    )
    assert not calls
    assert model.generate(tokens, max_new_tokens=25, do_sample=False).shape == (2, 65)
    with pytest.warns(UserWarning, match="model-agnostic default `max_length`"):
        assert model.generate(random_tokens(2, 60), do_sample=False).shape == (2, 64), "by default it stops at the end"
    mask = torch.ones_like(tokens)
    mask[:, :6] = 0
    assert model.generate(tokens, attention_mask=mask, max_new_tokens=31, do_sample=False).shape == (2, 71)
    with pytest.raises(ConfigurationError, match="65 tokens are more than the 64 positions"):
        model.generate(tokens, attention_mask=mask, max_new_tokens=32, do_sample=False)


def test_input_longer_than_the_positions_is_refused() -> None:
    model = small_model(position_type="factorised", position_shape=[8, 8])
    with pytest.raises(ConfigurationError, match=r"70 tokens are more than the 64 positions .* 'factorised'"):
        model(random_tokens(1, 70))
    mask = torch.ones(1, 70, dtype=torch.int64)
    mask[:, 10:16] = 0
    assert model(random_tokens(1, 70), attention_mask=mask).logits.isfinite().all()
    cache = model(random_tokens(1, 60), use_cache=True).past_key_values
    with pytest.raises(ConfigurationError, match="65 tokens are more than the 64 positions"):
        model(random_tokens(1, 5), past_key_values=cache)


def test_rotary_positions_do_not_end() -> None:
    model = small_model("sinks(first=2, window=6)", position_type="rotary")
    assert not any("positions" in name for name, _ in model.named_parameters())
    tokens = random_tokens(1, 80)
    grown = model.generate(tokens, max_new_tokens=30, do_sample=False, return_dict_in_generate=True)
    assert grown.sequences.shape == (1, 110)
    assert max(len(layer.kept()[0]) for layer in grown.past_key_values.layers) == 2 + 5


@pytest.mark.slow
def test_two_thousand_bytes_with_a_bounded_cache() -> None:
    config = AsterismConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=2048,
        mixers="fixed(stride=64, summary=4)",
    )
    torch.manual_seed(0)
    model = AsterismForCausalLM(config).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.25)
    prompt, cache, counts = torch.arange(40)[None], PatternCache(config), []
    model.register_forward_hook(lambda *_: counts.append([len(layer.kept()[0]) for layer in cache.layers]))
    options = {"max_new_tokens": 2000, "do_sample": True, "top_k": 50}
    torch.manual_seed(1)
    cached = model.generate(prompt, past_key_values=cache, **options)
    for step, layers in enumerate(counts):
        assert max(layers) <= 64 + 4 * ((40 + step) // 64)
    torch.manual_seed(1)
    assert torch.equal(cached, model.generate(prompt, use_cache=False, **options))
    assert cached.shape == (1, 2040) and len(set(cached[0].tolist())) > 50


# --- padding ---------------------------------------------------------------------------------------------------------

LENGTHS = (19, 7, 12)


def padded(side: str) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """A batch padded with a token that also occurs as text, its mask, and its rows alone."""
    rows = [random_tokens(length, seed=length) for length in LENGTHS]
    mask = torch.zeros(3, 22, dtype=torch.int64)
    for number, length in enumerate(LENGTHS):
        if side == "left":
            mask[number, -length:] = 1
        elif side == "right":
            mask[number, :length] = 1
        else:
            places = torch.randperm(22, generator=torch.Generator().manual_seed(number))[:length]
            mask[number, places] = 1
    tokens = torch.full((3, 22), 3)
    tokens[mask.bool()] = torch.cat(rows)
    return tokens, mask, rows


@pytest.mark.parametrize("side", ["left", "right", "holes"])
@pytest.mark.parametrize("text", ["fixed(stride=8, summary=2)", "sinks(first=2, window=6)", CAUSAL_MIXERS[-1]])
@pytest.mark.parametrize("position_type", ["learned", "rotary"])
def test_padding_changes_no_real_token(text: str, side: str, position_type: str) -> None:
    model = small_model(text, position_type=position_type)
    tokens, mask, rows = padded(side)
    with torch.no_grad():
        logits = model(tokens, attention_mask=mask).logits
        for number, row in enumerate(rows):
            alone = model(row[None]).logits[0]
            torch.testing.assert_close(logits[number][mask[number].bool()], alone, atol=1e-11, rtol=0)


@pytest.mark.parametrize("side", ["left", "right", "holes"])
@pytest.mark.parametrize("mode", ["greedy", "beam"])
@pytest.mark.parametrize("use_cache", [True, False])
def test_a_padded_batch_generates_what_each_row_generates_alone(side: str, mode: str, use_cache: bool) -> None:
    model = small_model("fixed(stride=8, summary=2)")
    tokens, mask, rows = padded(side)
    together = generate(model, tokens, attention_mask=mask, use_cache=use_cache, **MODES[mode])
    for number, row in enumerate(rows):
        alone = generate(model, row[None], **MODES[mode])
        assert torch.equal(together[number, 22:], alone[0, len(row) :])


@pytest.mark.parametrize("side", ["left", "right", "holes"])
def test_padding_changes_no_gradient(side: str) -> None:
    model = small_model()
    tokens, mask, rows = padded(side)
    # The sum of the losses, as transformers has it: in float32, for whatever precision the logits have.
    summed = {"num_items_in_batch": 1}
    model(tokens, attention_mask=mask, labels=tokens.masked_fill(mask == 0, -100), **summed).loss.backward()
    together = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    for row in rows:
        model(row[None], labels=row[None], **summed).loss.backward()
    if side == "holes":
        # A token behind a hole is predicted by the hole, which repeats the token before it.
        assert (mask[:, 1:] > mask[:, :-1]).any()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(together[name], parameter.grad, atol=1e-5, rtol=1e-5)


def test_packing_moves_real_tokens_to_the_front_and_back() -> None:
    mask = torch.tensor([[0, 1, 1, 0, 1], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0]]).bool()
    columns = torch.arange(15.0).view(3, 5, 1)
    packing = Packing.of(mask)
    packed = packing.pack(columns)
    assert packed[0, :3, 0].tolist() == [1, 2, 4] and packed[1, :2, 0].tolist() == [5, 6]
    assert packing.real.tolist() == [[True] * 3 + [False] * 2, [True] * 2 + [False] * 3, [False] * 5]
    assert packing.unpack(packed)[..., 0].tolist() == [[0, 1, 2, 2, 4], [5, 6, 6, 6, 6], [0, 0, 0, 0, 0]]


def test_a_mask_of_another_shape_is_refused() -> None:
    model = small_model()
    with pytest.raises(ConfigurationError) as caught:
        model(random_tokens(2, 5), attention_mask=torch.ones(2, 6))
    assert str(caught.value) == (
        "attention_mask has shape [2, 6]; 5 new tokens after 0 columns need [2, 5], 1 for tokens and 0 for padding"
    )


# --- outputs ---------------------------------------------------------------------------------------------------------


def test_loss_is_the_mean_over_predicted_tokens() -> None:
    model, tokens = small_model(), random_tokens(2, 20)
    labels = tokens.clone()
    labels[0, 5:9] = -100
    out = model(tokens, labels=labels)
    losses = F.cross_entropy(out.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")
    torch.testing.assert_close(out.loss, losses / 34)
    torch.testing.assert_close(model(tokens, labels=labels, num_items_in_batch=100).loss, losses / 100)


def test_labels_may_be_shifted_already() -> None:
    """What each column is to predict, as a loader that cuts a text into windows knows it, also for the last column."""
    model, tokens = small_model(), random_tokens(2, 21)
    inputs, targets = tokens[:, :-1], tokens[:, 1:].contiguous()
    expected = F.cross_entropy(model(inputs).logits.flatten(0, 1), targets.flatten())
    for given in ({"shift_labels": targets}, {"labels": inputs, "shift_labels": targets}):
        torch.testing.assert_close(model(inputs, **given).loss.double(), expected, atol=1e-6, rtol=1e-6)


def test_logits_to_keep() -> None:
    model, tokens = small_model(), random_tokens(2, 20)
    logits = model(tokens).logits
    torch.testing.assert_close(model(tokens, logits_to_keep=3).logits, logits[:, -3:])
    columns = torch.tensor([0, 4, 19])
    torch.testing.assert_close(model(tokens, logits_to_keep=columns).logits, logits[:, columns])


def test_hidden_states_and_tuples() -> None:
    model, tokens = small_model(), random_tokens(2, 20)
    out = model.model(tokens, output_hidden_states=True)
    assert len(out.hidden_states) == 4
    assert torch.equal(out.hidden_states[-1], out.last_hidden_state)
    embedded = model.model.embed_tokens(tokens) + model.model.positions(torch.arange(20)[None])
    assert torch.equal(out.hidden_states[0], embedded)
    assert torch.equal(model(tokens, output_hidden_states=True).hidden_states[2], out.hidden_states[2])
    assert model(tokens).hidden_states is None
    assert torch.equal(model(tokens, return_dict=False)[0], model(tokens).logits)


def test_arguments_that_mean_nothing_here_are_refused() -> None:
    model, tokens = small_model(), random_tokens(1, 4)
    with pytest.raises(ConfigurationError) as caught:
        model(tokens, head_mask=torch.ones(3, 4))
    assert str(caught.value) == (
        "AsterismForCausalLM.forward has no argument 'head_mask'; positions count the tokens of attention_mask,"
        " and attention weights are never kept"
    )
    with pytest.raises(ConfigurationError, match="give either input_ids or inputs_embeds, not both"):
        model()
    assert torch.equal(model(tokens, output_attentions=None).logits, model(tokens).logits)


# --- training --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_gives_the_same_gradients(reentrant: bool) -> None:
    model, tokens = small_model(dropout=0.3).train(), random_tokens(2, 30)

    def gradients() -> list[torch.Tensor]:
        model.zero_grad()
        torch.manual_seed(3)
        model(tokens, labels=tokens).loss.backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    expected = gradients()
    runs = []
    model.model.layers[0].mixer.register_forward_hook(lambda *_: runs.append(1))
    with pytest.MonkeyPatch.context() as patch:
        # transformers 5.17 knows only the older of the two names, and later versions warn about it.
        patch.setattr("warnings.warn", lambda *_, **__: None)
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    for gradient, plain in zip(gradients(), expected, strict=True):
        torch.testing.assert_close(gradient, plain, atol=1e-12, rtol=0)
    assert len(runs) == 2, "the first block must run once forward and once more in the backward pass"
    with pytest.raises(ConfigurationError, match="gradient checkpointing runs every block twice"):
        model(tokens, use_cache=True)


def test_training_compiles_without_a_graph_break() -> None:
    torch.compiler.reset()
    model, tokens = small_model(), random_tokens(2, 24)
    mask = torch.ones_like(tokens)
    mask[1, :5] = 0

    def loss(tokens: torch.Tensor) -> torch.Tensor:
        return model(tokens, attention_mask=mask, labels=tokens).loss

    compiled = torch.compile(loss, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(tokens), loss(tokens))


# --- configuration, saving and loading -------------------------------------------------------------------------------


def test_configuration_stores_patterns_as_text() -> None:
    config = small_config(patterns.fixed(8) | patterns.window(left=2))
    assert config.mixers == "fixed(stride=8) | window(left=2)"
    schedule = patterns.interleave(patterns.causal(), patterns.window(left=2))
    assert small_config(schedule).mixers == "interleave(causal(), window(left=2))"
    config = small_config([patterns.causal(), "window(left=2)", "fixed(stride=8)"])
    assert [pattern.text for pattern in config.layer_patterns()] == json.loads(config.to_json_string())["mixers"]
    assert (config.intermediate_size, config.query_key_dim, config.num_key_value_heads) == (128, 32, 4)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_size": 30}, "hidden_size 30 cannot be divided evenly over 4 attention heads"),
        ({"query_key_dim": 10}, "query_key_dim 10 cannot be divided evenly over 4 attention heads"),
        ({"num_key_value_heads": 3}, "4 attention heads cannot share 3 key and value heads evenly"),
        (
            {"mixers": ["causal()", "window(left=2)"]},
            "2 patterns are listed for 3 layers; give one per layer, or one schedule for all",
        ),
        (
            {"position_type": "factorised"},
            "position_shape belongs to position_type 'factorised', which needs it;"
            " got position_type 'factorised' and position_shape None",
        ),
        (
            {"position_shape": [8, 8]},
            "position_shape belongs to position_type 'factorised', which needs it;"
            " got position_type 'learned' and position_shape [8, 8]",
        ),
        (
            {"position_type": "factorised", "position_shape": [8, 7]},
            "position_shape [8, 7] holds 56 positions, fewer than max_position_embeddings 64",
        ),
        (
            {"position_type": "rotary", "query_key_dim": 12},
            "rotary positions turn pairs of features, but query heads are 3 wide",
        ),
    ],
)
def test_configurations_that_cannot_work(fields: dict, message: str, tmp_path: Path) -> None:
    config = small_config(**fields)
    config.save_pretrained(tmp_path)
    config = AsterismConfig.from_pretrained(tmp_path)
    with pytest.raises(ConfigurationError) as caught:
        AsterismForCausalLM(config)
    assert str(caught.value) == message


POSITIONS = "learned, sinusoidal, factorised, rotary, buckets, relative, none"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("num_hidden_layers", 0, "num_hidden_layers must be an integer of at least 1, got 0"),
        ("vocab_size", "many", "vocab_size must be an integer of at least 1, got 'many'"),
        ("hidden_size", None, "hidden_size must be an integer of at least 1, got None"),
        ("dropout", 1.0, "dropout must be at least 0 and below 1, got 1.0"),
        ("rope_theta", 0, "rope_theta must be above 0, got 0"),
        (
            "position_type",
            "alibi",
            f"unknown position_type 'alibi'; known are {POSITIONS}.",
        ),
        (
            "position_type",
            "factorized",
            f"unknown position_type 'factorized'; known are {POSITIONS}. Did you mean 'factorised'?",
        ),
        ("hidden_act", "swish", "unknown hidden_act 'swish'; known are quick_gelu, gelu, gelu_new, relu, silu."),
        ("implementation", "magic", f"unknown implementation 'magic'; known are {', '.join(IMPLEMENTATIONS)}."),
    ],
)
def test_values_that_no_model_can_have(name: str, value: object, message: str, tmp_path: Path) -> None:
    """The constructor refuses them at once; what a file holds can be looked at, and the model refuses it."""
    for refuse in (AsterismConfig, ModelConfig):
        with pytest.raises(ConfigurationError) as caught:
            refuse(**{name: value})
        assert str(caught.value) == message
    small_config().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
    config = AsterismConfig.from_pretrained(tmp_path)
    assert getattr(config, name) == value
    with pytest.raises(ConfigurationError) as caught:
        AsterismForCausalLM(config)
    assert str(caught.value) == message
    with pytest.raises(ConfigurationError):
        AsterismConfig.from_pretrained(tmp_path, **{name: value})


def test_arguments_replace_what_is_damaged(tmp_path: Path) -> None:
    small_config().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"position_type": "alibi"}))
    config, unused = AsterismConfig.from_pretrained(
        tmp_path, position_type="rotary", unheard_of=1, return_unused_kwargs=True
    )
    assert (config.position_type, unused) == ("rotary", {"unheard_of": 1})


def test_one_table_of_fields() -> None:
    """The model's configuration and the run's have the fields of the table, and its choices are what there is."""
    names = {field.name for field in dataclasses.fields(AsterismConfig)}
    assert RULES.keys() <= names
    assert RULES.keys() == {field.name for field in dataclasses.fields(ModelConfig)}
    for name, rule in RULES.items():
        assert rule.metadata["help"] and f"\n    {name} " in AsterismConfig.__doc__
    assert choices_of("implementation") == IMPLEMENTATIONS
    assert choices_of("hidden_act") == tuple(ACTIVATIONS)
    assert choices_of("pooler_act") == ("tanh", *ACTIVATIONS)
    changed = dataclasses.asdict(ModelConfig(hidden_size=48, position_type="rotary", mixers=("causal()",) * 4))
    config = AsterismConfig(**changed)
    assert {name: getattr(config, name) for name in ("hidden_size", "intermediate_size", "vocab_size")} == {
        "hidden_size": 48,
        "intermediate_size": 192,
        "vocab_size": 256,
    }


def test_a_subclass_of_the_configuration_keeps_its_own_defaults() -> None:
    class Wide(AsterismConfig):
        """Wider."""

        hidden_size: int = 512
        own: int = 3

    config = Wide(num_hidden_layers=2)
    assert (config.hidden_size, config.own, config.num_hidden_layers, config.block) == (512, 3, 2, "pre_norm")
    assert config.intermediate_size == 2048 and Wide.__doc__ == "Wider."


def test_misspelt_patterns_and_fields() -> None:
    with pytest.raises(PatternError, match=r"(?s)fixd.*Did you mean 'fixed'\?"):
        AsterismForCausalLM(small_config("fixd(stride=8)"))
    with pytest.raises(ConfigurationError, match="AsterismConfig has no field 'mixer'. Did you mean 'mixers'?"):
        AsterismConfig(mixer="causal()")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "fields",
    [
        {"tie_word_embeddings": True},
        {"position_type": "factorised", "position_shape": [8, 8]},
        {"position_type": "rotary", "num_key_value_heads": 2, "query_key_dim": 16},
    ],
)
def test_save_and_load(fields: dict, dtype: torch.dtype, tmp_path: Path) -> None:
    model = small_model(CAUSAL_MIXERS[-1], **fields).to(dtype)
    tokens = random_tokens(2, 20)
    model.save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "generation_config.json", "model.safetensors"}
    assert json.loads((tmp_path / "config.json").read_text())["mixers"] == patterns.in_full(model.config.mixers)
    for loaded in (
        AsterismForCausalLM.from_pretrained(tmp_path, dtype=dtype),
        AutoModelForCausalLM.from_pretrained(tmp_path),
    ):
        assert isinstance(loaded, AsterismForCausalLM) and loaded.dtype == dtype
        assert torch.equal(loaded(tokens).logits, model(tokens).logits)
        tied = loaded.lm_head.weight is loaded.model.embed_tokens.weight
        assert tied == model.config.tie_word_embeddings
    base = AutoModel.from_pretrained(tmp_path)
    assert isinstance(base, AsterismModel)
    assert torch.equal(base(tokens).last_hidden_state, model.model(tokens).last_hidden_state)
    assert isinstance(AutoConfig.from_pretrained(tmp_path), AsterismConfig)


def test_missing_weights_are_initialised_and_loaded_ones_are_not(tmp_path: Path) -> None:
    """transformers initialises after loading; what has been loaded must stay."""
    model = small_model()
    model.model.save_pretrained(tmp_path)
    loaded = AsterismForCausalLM.from_pretrained(tmp_path)
    assert not loaded.lm_head.weight.any()
    for name, parameter in model.model.named_parameters():
        assert torch.equal(loaded.model.get_parameter(name), parameter)


def test_vocabulary_can_be_resized() -> None:
    model, tokens = small_model(), random_tokens(1, 12)
    before = model(tokens).logits
    model.resize_token_embeddings(VOCABULARY + 9)
    assert model.config.vocab_size == VOCABULARY + 9
    torch.testing.assert_close(model(tokens).logits[..., :VOCABULARY], before)
    larger = tokens + 9
    assert model(larger, labels=larger).loss.isfinite()


def test_pipeline_generates_text() -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {chr(ord("a") + number): number for number in range(26)} | {"<pad>": 26}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", padding_side="left")
    generator = pipeline("text-generation", model=small_model(vocab_size=27), tokenizer=fast)
    options = {"generation_config": GenerationConfig(max_new_tokens=5, do_sample=False, pad_token_id=26)}
    alone = [generator(text, **options)[0]["generated_text"] for text in ("abc", "sparse")]
    together = generator(["abc", "sparse"], batch_size=2, **options)
    assert [row[0]["generated_text"] for row in together] == alone


# --- initialisation and sizes ----------------------------------------------------------------------------------------


def test_a_new_model_starts_as_in_the_paper() -> None:
    torch.manual_seed(0)
    config = small_config(hidden_size=128, num_hidden_layers=2, position_type="factorised", position_shape=[80, 90])
    model = AsterismForCausalLM(config)
    assert not model.lm_head.weight.any()
    tokens = random_tokens(2, 30)
    assert model(tokens, labels=tokens).loss.item() == pytest.approx(math.log(VOCABULARY))
    gain = 0.125 / math.sqrt(128)
    block = model.model.layers[1]
    for weight, spread in {
        model.model.embed_tokens.weight: gain,
        model.model.positions.weight: gain / math.sqrt(2),
        block.mixer.value.weight: gain,
        block.mixer.output.weight: gain / 2,
        block.feed_forward.up_proj.weight: gain,
        block.feed_forward.down_proj.weight: gain / 4,
    }.items():
        assert weight.std().item() == pytest.approx(spread, rel=0.03)
    assert AsterismForCausalLM(small_config(tie_word_embeddings=True)).lm_head.weight.any()


PUBLISHED = {
    "enwik8": (
        95e6,
        dict(
            num_hidden_layers=30,
            hidden_size=512,
            num_attention_heads=8,
            max_position_embeddings=12288,
            position_type="factorised",
            position_shape=[96, 128],
        ),
    ),
    "cifar10": (
        59e6,
        dict(
            num_hidden_layers=128,
            hidden_size=256,
            num_attention_heads=2,
            intermediate_size=512,
            query_key_dim=128,
            max_position_embeddings=3072,
            position_type="factorised",
            position_shape=[32, 32, 3],
        ),
    ),
    "imagenet64": (
        152e6,
        dict(
            num_hidden_layers=48,
            hidden_size=512,
            num_attention_heads=16,
            max_position_embeddings=12288,
            position_type="factorised",
            position_shape=[64, 64, 3],
        ),
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes(name: str) -> None:
    parameters, fields = PUBLISHED[name]
    with torch.device("meta"):
        model = AsterismForCausalLM(AsterismConfig(mixers="strided(stride=128)", **fields))
    assert sum(parameter.numel() for parameter in model.parameters()) == pytest.approx(parameters, rel=0.03)
