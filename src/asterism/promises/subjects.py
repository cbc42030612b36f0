"""The models under test: small ones of ours and of Hugging Face, in evaluation mode, with random weights."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BigBirdConfig,
    BigBirdForCausalLM,
    BigBirdForMaskedLM,
    FNetConfig,
    FNetForMaskedLM,
    LongformerConfig,
    LongformerForMaskedLM,
)

from asterism.models import (
    AsterismConfig,
    AsterismForCausalLM,
    AsterismForConditionalGeneration,
    AsterismForMaskedLM,
)
from asterism.randomness import isolated

VOCABULARY, BLOCK, POSITIONS = 50, 8, 16_384
_WIDTHS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_BLOCKS = {"block_size": BLOCK, "num_random_blocks": 2}


@dataclass(frozen=True)
class TestedModel:
    """A model under test.

    `make` builds it. `takes_padding` says whether it accepts an attention mask. After building, weights are drawn
    again, so large that every token matters.
    """

    name: str
    is_causal: bool
    make: Callable[[], nn.Module]
    is_ours: bool = False
    takes_padding: bool = True

    def build(self, dtype: torch.dtype = torch.float64) -> nn.Module:
        """Build the model in evaluation mode, always with the same weights, without moving a global generator."""
        with isolated(0):
            model = self.make()
            for name, parameter in model.named_parameters():
                is_scale = parameter.ndim == 1 and name.endswith("weight")
                nn.init.normal_(parameter, mean=float(is_scale), std=0.1 if parameter.ndim == 1 else 0.3)
        return model.to(dtype).eval()


def _ours(mixers: str, is_causal: bool) -> Callable[[], nn.Module]:
    fields: dict[str, Any] = {"vocab_size": VOCABULARY, "max_position_embeddings": POSITIONS, "pad_token_id": 0}
    if is_causal:
        return lambda: AsterismForCausalLM(AsterismConfig(mixers=mixers, **fields, **_WIDTHS))
    manner = {"block": "post_norm", "embedding_norm": True, "hidden_act": "gelu"}
    return lambda: AsterismForMaskedLM(AsterismConfig(mixers=mixers, **fields, **manner, **_WIDTHS))


class _Translating(nn.Module):
    """An encoder-decoder whose target is its source, so that both have padding on the same side."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> Any:
        masks = {"attention_mask": attention_mask, "decoder_attention_mask": attention_mask}
        return self.model(input_ids=input_ids, decoder_input_ids=input_ids, **masks)


class _Writing(nn.Module):
    """An encoder-decoder as a causal model of its targets, for one source."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **cached: Any) -> Any:
        source = torch.arange(1, VOCABULARY).expand(len(input_ids), -1)
        target = {"decoder_input_ids": input_ids, "decoder_attention_mask": attention_mask}
        return self.model(input_ids=source, **target, **cached)


def _ours_of_two_stacks(use: type[nn.Module]) -> Callable[[], nn.Module]:
    patterns = {
        "mixers": f"bigbird(block={BLOCK}, random=2)",
        "decoder_mixers": "fixed(stride=16, summary=2)",
        "cross_mixers": ("dense()", "across(window(left=16, right=16))"),
    }
    sizes = {"vocab_size": VOCABULARY, "max_position_embeddings": POSITIONS}
    return lambda: use(AsterismForConditionalGeneration(AsterismConfig(**patterns, **sizes, **_WIDTHS)))


def _theirs(configuration: type, model: type, **fields: Any) -> Callable[[], nn.Module]:
    sizes = {"vocab_size": VOCABULARY, "max_position_embeddings": POSITIONS} | _WIDTHS | fields
    return lambda: model(configuration(**sizes))


SUBJECTS = (
    TestedModel("Asterism BigBird", False, _ours(f"bigbird(block={BLOCK}, random=2)", False), is_ours=True),
    TestedModel("Asterism Longformer", False, _ours("longformer(window=32, globals=(0,))", False), is_ours=True),
    TestedModel("Asterism FNet", False, _ours("fourier()", False), is_ours=True),
    TestedModel("Asterism encoder-decoder", False, _ours_of_two_stacks(_Translating), is_ours=True),
    TestedModel("Asterism decoder", True, _ours_of_two_stacks(_Writing), is_ours=True),
    TestedModel("Asterism causal BigBird", True, _ours(f"bigbird_causal(block={BLOCK}, random=2)", True), is_ours=True),
    TestedModel("Asterism fixed", True, _ours("fixed(stride=16, summary=2)", True), is_ours=True),
    TestedModel("Hugging Face BERT", False, _theirs(BertConfig, BertForMaskedLM, **_NO_DROPOUT)),
    TestedModel(
        "Hugging Face BigBird",
        False,
        _theirs(BigBirdConfig, BigBirdForMaskedLM, attention_type="block_sparse", **_BLOCKS, **_NO_DROPOUT),
    ),
    TestedModel(
        "Hugging Face Longformer",
        False,
        _theirs(LongformerConfig, LongformerForMaskedLM, attention_window=32, **_NO_DROPOUT),
    ),
    TestedModel(
        "Hugging Face FNet",
        False,
        _theirs(FNetConfig, FNetForMaskedLM, hidden_dropout_prob=0.0),
        takes_padding=False,
    ),
    TestedModel(
        "Hugging Face causal BigBird",
        True,
        _theirs(
            BigBirdConfig, BigBirdForCausalLM, attention_type="block_sparse", is_decoder=True, **_BLOCKS, **_NO_DROPOUT
        ),
    ),
)
