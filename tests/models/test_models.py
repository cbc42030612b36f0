"""Models as users meet them: causality, outputs, training, sizes."""

import math

import pytest
import torch
import torch.nn.functional as F
from refusals import refusing
from small_models import CAUSAL_MIXERS, VOCABULARY, random_tokens, small_config, small_model

from asterism import patterns
from asterism.errors import ConfigurationError, PatternError
from asterism.models import AsterismConfig, AsterismForCausalLM

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
    assert str(caught.value) == "fixed(stride=8, heads=2) is for 2 heads, but the attention has 4: make them equal"


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
        "AsterismForCausalLM.forward has no argument 'head_mask': positions come from attention_mask,"
        " and attention weights are never stored"
    )
    with refusing(ConfigurationError, "ids-and-embeds"):
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
    with refusing(ConfigurationError, "checkpointing-with-cache"):
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
