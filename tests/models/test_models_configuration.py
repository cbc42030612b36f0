"""Models as users meet them: configurations, saving and loading."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from refusals import refusing
from small_models import CAUSAL_MIXERS, VOCABULARY, random_tokens, small_config, small_model
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
from asterism.models import AsterismConfig, AsterismForCausalLM, AsterismModel
from asterism.shape import RULES, ModelConfig, choices_of

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
            "got 2 patterns for 3 layers: give one per layer, or one schedule for all",
        ),
        (
            {"position_type": "factorised"},
            "position_shape and position_type 'factorised' need each other,"
            " got position_type 'factorised' and position_shape None",
        ),
        (
            {"position_shape": [8, 8]},
            "position_shape and position_type 'factorised' need each other,"
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
    with refusing(PatternError, "unknown-pattern", "fixd'", " Did you mean 'fixed'?"):
        AsterismForCausalLM(small_config("fixd(stride=8)"))
    with refusing(ConfigurationError, "unknown-field", "'mixer'", "'mixers'"):
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
