"""Encoder-decoders: their parts against PyTorch's own Transformer, their promises, and what is refused."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from refusals import refusing
from small_models import VOCABULARY, random_tokens, seq2seq_config, small_seq2seq
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM

from asterism.errors import ConfigurationError, PatternError
from asterism.models import AsterismConfig, AsterismForCausalLM, AsterismForConditionalGeneration, AsterismModel

pytestmark = pytest.mark.model

DENSE: dict[str, Any] = {"mixers": "dense()", "decoder_mixers": "causal()", "position_type": "none"}


def close(a: torch.Tensor, b: torch.Tensor, atol: float = 1e-10) -> None:
    torch.testing.assert_close(a, b, atol=atol, rtol=1e-9)


# --- against torch.nn.Transformer ------------------------------------------------------------------------------------


def pytorch_twin(model: AsterismForConditionalGeneration) -> nn.Transformer:
    """PyTorch's Transformer with the weights of the model's blocks. Ours has no norm after the last post-norm block."""
    config = model.config
    pre_norm = config.block == "pre_norm"
    options = {
        "dim_feedforward": config.intermediate_size,
        "dropout": 0.0,
        "activation": config.hidden_act,
        "batch_first": True,
        "norm_first": pre_norm,
        "layer_norm_eps": config.layer_norm_eps,
    }
    sizes = config.hidden_size, config.num_attention_heads
    last = (lambda: nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)) if pre_norm else (lambda: None)
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(*sizes, **options), config.num_hidden_layers, last(), enable_nested_tensor=False
    )
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(*sizes, **options), config.num_decoder_layers, last())
    twin = nn.Transformer(*sizes, custom_encoder=encoder, custom_decoder=decoder, batch_first=True).double()
    for ours, theirs in pairs(model, twin):
        theirs.data.copy_(torch.cat(ours))
    return twin


def pairs(
    model: AsterismForConditionalGeneration, twin: nn.Transformer
) -> Iterator[tuple[list[nn.Parameter], nn.Parameter]]:
    """Every parameter of PyTorch's, and those of ours that it holds one below the other."""
    for stack, theirs in ((model.model.encoder, twin.encoder), (model.model.decoder, twin.decoder)):
        named = dict(theirs.named_parameters())
        for number, block in enumerate(cast(Any, stack.layers)):
            for name, modules in parts_of(block).items():
                for kind in ("weight", "bias"):
                    joint = "_" if name.endswith("in_proj") else "."
                    yield (
                        [getattr(module, kind) for module in modules],
                        named.pop(f"layers.{number}.{name}{joint}{kind}"),
                    )
        for name in list(named):
            yield [stack.get_parameter(name)], named.pop(name)


def parts_of(block: Any) -> dict[str, list[nn.Module]]:
    parts, norms = {}, [block.mixer_norm, block.feed_forward_norm]
    attentions = {"self_attn": block.mixer}
    if block.cross_attention is not None:
        attentions["multihead_attn"] = block.cross_attention
        norms.insert(1, block.cross_norm)
    for name, attention in attentions.items():
        parts[f"{name}.in_proj"] = [attention.query, attention.key, attention.value]
        parts[f"{name}.out_proj"] = [attention.output]
    parts |= {"linear1": [block.feed_forward.up_proj], "linear2": [block.feed_forward.down_proj]}
    return parts | {f"norm{number}": [norm] for number, norm in enumerate(norms, 1)}


@pytest.mark.parametrize("block", ["pre_norm", "post_norm"])
@pytest.mark.parametrize(("source", "target"), [(11, 7), (7, 7), (5, 12)])
def test_dense_everywhere_is_the_transformer_of_pytorch(block: str, source: int, target: int) -> None:
    """Sources are padded on either side, targets on the right and between, where no row of PyTorch's is empty."""
    model = small_seq2seq(**DENSE, block=block, hidden_act="relu", num_decoder_layers=3)
    twin = pytorch_twin(model)
    tokens, labels = random_tokens(3, source), random_tokens(3, target, seed=2)
    real, written = torch.ones(3, source, dtype=torch.int64), torch.ones(3, target, dtype=torch.int64)
    real[1, -3:] = real[2, :2] = 0
    written[0, -4:] = written[2, 1:3] = 0
    labels = labels.masked_fill(written == 0, -100)
    decoder_input = model.prepare_decoder_input_ids_from_labels(labels)
    outputs = model(tokens, real, decoder_attention_mask=written, labels=labels)

    embed = model.model.shared.weight.detach()
    hidden = twin(
        F.embedding(tokens, embed),
        F.embedding(decoder_input, embed),
        tgt_mask=torch.ones(target, target, dtype=torch.bool).triu(1),
        src_key_padding_mask=real == 0,
        tgt_key_padding_mask=written == 0,
        memory_key_padding_mask=real == 0,
    )
    logits = F.linear(hidden, model.lm_head.weight.detach())
    close(outputs.logits[written == 1], logits[written == 1])
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    close(outputs.loss, loss)
    outputs.loss.backward()
    loss.backward()
    compared = list(pairs(model, twin))
    assert len(compared) == len(list(twin.parameters()))
    for ours, theirs in compared:
        close(torch.cat([gradient(one) for one in ours]), gradient(theirs))


def gradient(parameter: nn.Parameter) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad


# --- saving and tying ------------------------------------------------------------------------------------------------

TIES: list[dict[str, Any]] = [
    {},
    {"share_embeddings": False},
    {"tie_word_embeddings": True},
    {"tie_word_embeddings": True, "share_embeddings": False},
    {"tie_encoder_decoder": True},
    {"tie_encoder_decoder": True, "tie_word_embeddings": True, "position_type": "buckets"},
]


@pytest.mark.parametrize("ties", TIES, ids=str)
def test_what_is_saved_is_what_is_loaded(ties: dict[str, Any], tmp_path: Path) -> None:
    model = small_seq2seq(**ties)
    inputs = {"input_ids": random_tokens(2, 9), "labels": random_tokens(2, 5, seed=2)}
    before = model(**inputs).logits
    model.save_pretrained(tmp_path)
    loaded, report = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, output_loading_info=True)
    assert isinstance(loaded, AsterismForConditionalGeneration) and not any(report.values())
    weights, others = model.state_dict(), loaded.state_dict()
    assert weights.keys() == others.keys() and all(torch.equal(weights[name], others[name]) for name in weights)
    close(loaded(**inputs).logits, before, atol=1e-13)  # products of weights at other addresses round differently
    assert loaded.config.to_dict() == AutoConfig.from_pretrained(tmp_path).to_dict()
    assert loaded.num_parameters() == model.num_parameters() == sum(x.numel() for x in loaded.parameters())


def test_which_weights_are_one() -> None:
    def pointers(**ties: Any) -> dict[str, int]:
        model = AsterismForConditionalGeneration(seq2seq_config(**ties))
        return {name: x.data_ptr() for name, x in model.named_parameters(remove_duplicate=False)}

    encoder, decoder, head = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"
    apart = pointers(share_embeddings=False)
    assert len(set(apart.values())) == len(apart)
    shared = pointers()
    assert shared[encoder] == shared[decoder] != shared[head]
    tied = pointers(tie_word_embeddings=True, share_embeddings=False)
    assert tied[encoder] != tied[decoder] == tied[head]
    everything = pointers(tie_encoder_decoder=True, tie_word_embeddings=True)
    assert everything[encoder] == everything[decoder] == everything[head]
    own = [name for name in everything if name.startswith("model.decoder") and "cross" not in name]
    assert all(everything[name] == everything[name.replace("decoder", "encoder", 1)] for name in own)
    cross = {everything[name] for name in everything if "cross" in name}
    others = {pointer for name, pointer in everything.items() if "cross" not in name}
    assert cross and not cross & others


# --- options that published models need ------------------------------------------------------------------------------


@torch.no_grad()
def test_scales_and_a_bias_of_the_last_layer() -> None:
    tokens, target = random_tokens(2, 9), random_tokens(2, 5, seed=2)
    plain = small_seq2seq(share_embeddings=False)
    expected = plain(tokens, decoder_input_ids=target).logits
    scaled = small_seq2seq(share_embeddings=False, embedding_scale=4.0, logit_scale=0.25)
    scaled.load_state_dict(plain.state_dict())
    for stack in (scaled.model.encoder, scaled.model.decoder):
        stack.embed_tokens.weight /= 4
    close(scaled(tokens, decoder_input_ids=target).logits, expected / 4)
    embedded = plain.model.decoder.embed_tokens(target)
    close(scaled(tokens, decoder_inputs_embeds=embedded).logits, expected / 4)  # embeddings come as they are
    biased = small_seq2seq(share_embeddings=False, lm_head_bias=True)
    biased.load_state_dict(plain.state_dict() | {"lm_head.bias": torch.arange(VOCABULARY).double()})
    close(biased(tokens, decoder_input_ids=target).logits, expected + torch.arange(VOCABULARY))
    new = AsterismForConditionalGeneration(seq2seq_config(lm_head_bias=True))
    assert not new.lm_head.weight.any() and not new.lm_head.bias.any()


@pytest.mark.parametrize("fields", [{"norm": "rms"}, {"gated_feed_forward": True, "feed_forward_bias": False}])
def test_options_reach_every_block(fields: dict[str, Any]) -> None:
    model = small_seq2seq(**fields, embedding_norm=True, block="pre_norm")
    kinds = {type(module).__name__ for module in model.modules()}
    assert ("RMSNorm" in kinds) == ("LayerNorm" not in kinds) == ("norm" in fields)
    assert ("GatedFeedForward" in kinds) == ("FeedForward" not in kinds) == ("norm" not in fields)
    biases = [name for name, _ in model.named_parameters() if "_proj.bias" in name]
    assert bool(biases) == ("norm" in fields)
    causal = AsterismForCausalLM(AsterismConfig(hidden_size=32, **fields))
    assert {type(module).__name__ for module in causal.modules()} >= kinds & {"RMSNorm", "GatedFeedForward"}


# --- the loss --------------------------------------------------------------------------------------------------------


def test_labels_are_shifted_and_ignored_where_they_are_minus_100() -> None:
    model = small_seq2seq()
    tokens, labels = random_tokens(2, 9), random_tokens(2, 6, seed=2)
    labels[1, 4:] = -100
    inside = model.prepare_decoder_input_ids_from_labels(labels)
    assert inside[:, 0].tolist() == [1, 1] and torch.equal(inside[:, 1:5], labels[:, :4]) and inside[1, 5] == 0
    outputs = model(tokens, labels=labels)
    logits = model(tokens, decoder_input_ids=inside).logits
    assert torch.equal(outputs.logits, logits)
    close(outputs.loss, F.cross_entropy(logits.flatten(0, 1), labels.flatten()))
    close(model(tokens, labels=labels, num_items_in_batch=20).loss, outputs.loss * 10 / 20)
    with refusing(ConfigurationError, "labels-shape", "[2, 5]", "[2, 6]"):
        model(tokens, labels=labels, decoder_input_ids=inside[:, :5])


def test_label_smoothing_spreads_a_share_over_the_vocabulary() -> None:
    model = small_seq2seq()
    tokens, labels = random_tokens(2, 9), random_tokens(2, 6, seed=2)
    outputs = model(tokens, labels=labels, label_smoothing=0.1)
    log = outputs.logits.log_softmax(-1)
    hit = log.gather(-1, labels[..., None])[..., 0]
    close(outputs.loss, -(0.9 * hit + 0.1 * log.mean(-1)).mean())
    with refusing(ConfigurationError, "label-smoothing", "2"):
        model(tokens, labels=labels, label_smoothing=2)


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"decoder_mixers": "dense()"},
            r"^decoder_mixers 'dense\(\)': dense\(\) cannot be used by a causal model: it may read the future",
        ),
        ({"decoder_mixers": "bigbird(block=4)"}, "is not prefix-stable"),
        ({"decoder_mixers": "fourier()"}, "fourier"),
        ({"cross_mixers": "fourier()"}, r"cross_mixers must be patterns, but fourier\(\) is not a pattern"),
        ({"tie_encoder_decoder": True, "num_decoder_layers": 3}, "num_hidden_layers is 2 in the encoder and 3 in the"),
        ({"tie_encoder_decoder": True, "share_embeddings": False}, "leave share_embeddings at True"),
        ({"tie_encoder_decoder": True, "mixers": "fourier()"}, r"but fourier\(\) has none"),
        ({"position_type": "buckets", "relative_buckets": 6}, "relative_buckets must be a multiple of 4"),
    ],
)
def test_configurations_that_cannot_work(fields: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigurationError, PatternError), match=message):
        AsterismForConditionalGeneration(seq2seq_config(**fields))


def test_one_stack_or_two() -> None:
    for model in (AsterismForCausalLM, AsterismModel):
        with pytest.raises(ConfigurationError, match=f"{model.__name__} has one stack, but this configuration has"):
            model(seq2seq_config())
    with refusing(ConfigurationError, "no-decoder"):
        AsterismForConditionalGeneration(AsterismConfig())


def test_classes_that_find_a_model_by_its_folder(tmp_path: Path) -> None:
    small_seq2seq().save_pretrained(tmp_path)
    with refusing(ConfigurationError, "has-decoder", "AsterismModel"):
        AutoModel.from_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    assert config.is_encoder_decoder and not config.encoder_config().is_encoder_decoder
    assert config.get_text_config() is config and config.get_text_config(decoder=True).mixers == "causal()"
    assert not AsterismConfig().is_encoder_decoder


def test_an_encoder_of_transforms_has_no_pairs_to_drop() -> None:
    model = small_seq2seq("fourier()", attention_dropout=0.5)
    tokens, seeds = random_tokens(2, 7), (1, 1, 2)
    losses = [model.train()(tokens, labels=tokens, dropout_seed=seed).loss.item() for seed in seeds]
    assert losses[0] == losses[1] != losses[2]


def test_another_vocabulary() -> None:
    model = small_seq2seq(tie_word_embeddings=True, lm_head_bias=True)
    before = model(random_tokens(1, 5), decoder_input_ids=random_tokens(1, 4)).logits
    model.resize_token_embeddings(VOCABULARY + 7)
    after = model(random_tokens(1, 5), decoder_input_ids=random_tokens(1, 4)).logits
    close(after[..., :VOCABULARY], before)
    assert after.shape[-1] == model.config.vocab_size == VOCABULARY + 7
    assert model.model.decoder.embed_tokens.weight is model.lm_head.weight is model.model.shared.weight
    apart = small_seq2seq(share_embeddings=False)
    with refusing(ConfigurationError, "embeddings-not-shared"):
        apart.resize_token_embeddings(VOCABULARY + 7)


def test_hidden_states_of_both_stacks() -> None:
    model = small_seq2seq(num_decoder_layers=3)
    outputs = model(random_tokens(2, 5), decoder_input_ids=random_tokens(2, 4), output_hidden_states=True)
    assert [x.shape[1] for x in outputs.encoder_hidden_states] == [5] * 3
    assert [x.shape[1] for x in outputs.decoder_hidden_states] == [4] * 4
    assert torch.equal(outputs.encoder_hidden_states[-1], outputs.encoder_last_hidden_state)
    close(model.lm_head(outputs.decoder_hidden_states[-1]), outputs.logits)


def test_a_target_longer_than_the_positions_of_the_decoder() -> None:
    model = small_seq2seq(decoder_max_position_embeddings=8)
    model(random_tokens(1, 40), decoder_input_ids=random_tokens(1, 8))
    with pytest.raises(ConfigurationError, match="9 tokens are more than the 8 positions of this model"):
        model(random_tokens(1, 40), decoder_input_ids=random_tokens(1, 9))


def test_what_is_missing_is_said() -> None:
    model = small_seq2seq()
    with refusing(ConfigurationError, "ids-and-embeds"):
        model(random_tokens(1, 5))
    with refusing(ConfigurationError, "unknown-argument", "'output_attentions'"):
        model(random_tokens(1, 5), labels=random_tokens(1, 5), output_attentions=True)
    with refusing(ConfigurationError, "unknown-argument", "'output_attentions'"):
        model.generate(random_tokens(1, 5), output_attentions=True, return_dict_in_generate=True)
    model.config.decoder_start_token_id = None
    with refusing(ConfigurationError, "shift-needs-tokens", "None", "0"):
        model(random_tokens(1, 5), labels=random_tokens(1, 5))


def test_initialisation_counts_three_branches_in_a_decoder() -> None:
    torch.manual_seed(0)
    config = seq2seq_config(hidden_size=256, initializer_range=None, initializer_gain=0.5)
    model = AsterismForConditionalGeneration(config).model
    for stack, branches in ((model.encoder, 2 * 2), (model.decoder, 3 * 2)):
        expected = 0.5 / math.sqrt(256) / math.sqrt(branches)
        assert stack.layers[0].mixer.output.weight.std().item() == pytest.approx(expected, rel=0.03)
