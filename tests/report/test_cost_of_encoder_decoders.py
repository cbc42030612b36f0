"""FLOPs of runs with a decoder: against PyTorch's own count of a dense computation, scaled by a pattern's pairs."""

from dataclasses import asdict

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BigBirdPegasusConfig,
    BigBirdPegasusForConditionalGeneration,
    LEDConfig,
    LEDForConditionalGeneration,
    LongT5Config,
    LongT5ForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
)

from asterism.models import AsterismConfig, AsterismForConditionalGeneration
from asterism.patterns import parse
from asterism.patterns.draw import degrees
from asterism.report.cost import Weights, flops_per_step
from asterism.report.described import target_length
from asterism.report.layers import draw_layers
from asterism.training import recipe
from asterism.training.ask.estimate import _foundations, estimate
from asterism.training.run.arithmetic import settled

pytestmark = pytest.mark.model

SOURCE, TARGET, BATCH = 24, 10, 2
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 40}
MIXERS = {"mixers": "window(left=3, right=2)", "decoder_mixers": "window(left=2)", "cross_mixers": "across(causal())"}
BART = {"d_model": 16, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "vocab_size": 40}
BART |= {"encoder_layers": 2, "decoder_layers": 1, "encoder_ffn_dim": 32, "decoder_ffn_dim": 24}
MODELS = {
    "apart": lambda: ours(num_decoder_layers=1),
    "narrow keys": lambda: ours(query_key_dim=8),
    "tied": lambda: ours(tie_encoder_decoder=True),
    "bart": lambda: BartForConditionalGeneration(BartConfig(**BART)),
    "t5": lambda: T5ForConditionalGeneration(
        T5Config(
            decoder_start_token_id=0,
            d_model=16,
            d_kv=4,
            num_heads=2,
            d_ff=32,
            num_layers=2,
            num_decoder_layers=1,
            vocab_size=40,
        )
    ),
    "gated t5": lambda: T5ForConditionalGeneration(
        T5Config(
            decoder_start_token_id=0,
            d_model=16,
            d_kv=8,
            num_heads=2,
            d_ff=8,
            num_layers=1,
            vocab_size=40,
            feed_forward_proj="gated-gelu",
        )
    ),
}


def ours(**changes):
    dense = {"max_position_embeddings": 64, "implementation": "reference", **MIXERS}
    dense |= {"pad_token_id": 0, "decoder_start_token_id": 1}
    return AsterismForConditionalGeneration(AsterismConfig(**{**SIZES, **dense, **changes}))


def shares(model):
    """The share of all pairs that each kind of attention computes."""
    if not isinstance(model.config, AsterismConfig):
        return {"encoder": 1.0, "cross": 1.0, "decoder": (TARGET + 1) / 2 / TARGET}
    encoder, decoder = (
        degrees(parse(MIXERS[name]), count).mean / count
        for name, count in (("mixers", SOURCE), ("decoder_mixers", TARGET))
    )
    return {"encoder": encoder, "decoder": decoder, "cross": (TARGET + 1) / 2 / SOURCE}


def counted(model):
    """FLOPs of a step: matrix products with weights forward and backward, and those of pairs, 3.5 times the forward."""
    tokens = torch.randint(3, 40, (BATCH, SOURCE), generator=torch.Generator().manual_seed(0))
    kinds, own = {"encoder": 0, "decoder": 0, "cross": 0}, {}
    products = (torch.ops.aten.mm, torch.ops.aten.addmm)
    with FlopCounterMode(display=False, depth=99) as forward:
        output = model(input_ids=tokens, labels=tokens[:, :TARGET].contiguous())
    for name, counts in forward.get_flop_counts().items():
        if name.endswith(
            (".mixer", ".self_attn", "SelfAttention", "cross_attention", "encoder_attn", "EncDecAttention")
        ):
            own[name] = sum(count for operation, count in counts.items() if operation not in products)
    for name, count in own.items():
        cross = name.endswith(("cross_attention", "encoder_attn", "EncDecAttention"))
        kinds["cross" if cross else "decoder" if "decoder" in name else "encoder"] += count
    assert all(kinds.values())
    with FlopCounterMode(display=False) as backward:
        output.loss.backward()
    totals = [counter.get_flop_counts()["Global"] for counter in (forward, backward)]
    of_weights = sum(count for total in totals for operation, count in total.items() if operation in products)
    return of_weights + 3.5 * sum(share * kinds[kind] for kind, share in shares(model).items())


@pytest.mark.parametrize("name", MODELS)
def test_flops_are_what_pytorch_counts(name):
    model = MODELS[name]().train()
    model.config._attn_implementation = "eager"
    weights = Weights({name: tuple(one.shape) for name, one in model.named_parameters()}, 0)
    settings = {"batch_size": BATCH, "objective": "span_corruption"}
    found = flops_per_step(settings, weights, draw_layers(model.config.to_dict(), SOURCE, TARGET))
    assert found == pytest.approx(counted(model), rel=0.001)


LED = {**BART, "attention_window": [4, 6], "max_encoder_position_embeddings": 32, "max_decoder_position_embeddings": 32}
PEGASUS = {**BART, "block_size": 2, "num_random_blocks": 1, "max_position_embeddings": 32}
LONG_T5 = {"d_model": 16, "d_kv": 8, "num_heads": 2, "d_ff": 32, "num_layers": 2, "num_decoder_layers": 1}
LONG_T5 |= {"vocab_size": 40, "local_radius": 3, "decoder_start_token_id": 0}
SPARSE = {
    "led": (lambda: LEDForConditionalGeneration(LEDConfig(**LED)), ["window(2, 2)", "window(3, 3)"]),
    "bigbird-pegasus": (
        lambda: BigBirdPegasusForConditionalGeneration(BigBirdPegasusConfig(**PEGASUS)),
        2 * ["bigbird(block=2, random=1)"],
    ),
    "bigbird-pegasus, short rows": (
        lambda: BigBirdPegasusForConditionalGeneration(BigBirdPegasusConfig(**PEGASUS | {"block_size": 4})),
        2 * ["dense()"],
    ),
    "longt5": (lambda: LongT5ForConditionalGeneration(LongT5Config(**LONG_T5)), 2 * ["window(3, 3)"]),
}


@pytest.mark.parametrize("name", SPARSE)
def test_flops_of_sparse_models_of_transformers_are_of_their_patterns(name):
    make, patterns = SPARSE[name]
    model = make().train()
    tokens = torch.randint(3, 40, (BATCH, SOURCE), generator=torch.Generator().manual_seed(0))
    products = (torch.ops.aten.mm, torch.ops.aten.addmm)
    with FlopCounterMode(display=False) as counter:
        model(input_ids=tokens, labels=tokens[:, :TARGET].contiguous()).loss.backward()
    of_weights = sum(count for kind, count in counter.get_flop_counts()["Global"].items() if kind in products)
    pairs = sum(SOURCE * degrees(parse(one), SOURCE).mean for one in patterns)
    pairs += TARGET * (TARGET + 1) / 2 + TARGET * SOURCE  # one decoder layer: causal, and all of the source
    weights = Weights({name: tuple(one.shape) for name, one in model.named_parameters()}, 0)
    layers = draw_layers(model.config.to_dict(), SOURCE, TARGET)
    assert [str(parse(one)) for one in patterns[:1]] == [one.text for one in layers.mixers[:1]]
    found = flops_per_step({"batch_size": BATCH, "objective": "span_corruption"}, weights, layers)
    assert found == pytest.approx(of_weights + BATCH * 3.5 * 4 * pairs * 16, rel=0.001)


def test_means_of_blocks_are_refused_by_name():
    model = LongT5Config(**LONG_T5, encoder_attention_type="transient-global")
    layers = draw_layers(model.to_dict(), SOURCE, TARGET)
    assert not layers.mixers and "LongT5 that reads means of blocks" in layers.remark
    weights = Weights({"shared.weight": (40, 16)}, 0)
    assert flops_per_step({"batch_size": BATCH}, weights, layers) is None
    damaged = {**LEDConfig(**LED).to_dict(), "attention_window": None}
    assert "configuration of a led is damaged" in draw_layers(damaged, SOURCE, TARGET).remark


@pytest.mark.parametrize("name", ["led-tiny", "bigbird-roberta-summarization-tiny", "bigbird-pegasus-tiny"])
def test_flops_of_recipes_are_those_of_a_dry_run(name):
    config = settled(recipe(name))
    objective, _, shape = _foundations(config, None)
    with torch.device("meta"):
        model = objective.model_class(config)(shape)
    weights = Weights({one: tuple(tensor.shape) for one, tensor in model.named_parameters()}, 0)
    target = target_length(config, {})
    assert target == objective.blank_batch(config, 1)["labels"].shape[1]
    found = flops_per_step(asdict(config), weights, draw_layers(shape.to_dict(), config.context, target))
    assert found == pytest.approx(estimate(config).flops_per_step, rel=0.01)
