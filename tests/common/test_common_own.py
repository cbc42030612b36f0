"""The common tests of transformers over our classes: causal, encoders with their heads, encoder-decoder."""

import unittest
from typing import Any

import pytest
import torch
from common_failures import OWN
from common_tests import (
    CausalLMModelTest,
    CausalLMModelTester,
    ConfigTester,
    GenerationTesterMixin,
    ModelTesterMixin,
    ReadsPatternCaches,
    common,
    ids_tensor,
    random_attention_mask,
)

from asterism.models import (
    AsterismConfig,
    AsterismForCausalLM,
    AsterismForConditionalGeneration,
    AsterismForMaskedLM,
    AsterismForPreTraining,
    AsterismForQuestionAnswering,
    AsterismForSequenceClassification,
    AsterismForTokenClassification,
    AsterismModel,
    AsterismPreTrainedModel,
)
from asterism.models.generation.generation import GeneratesTokens

pytestmark = [pytest.mark.common, pytest.mark.filterwarnings("default")]

VOCABULARY = 99


@pytest.fixture(autouse=True)
def heads_that_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours start with a head of zeros, so that all logits are equal, and the tests tell models apart by logits."""
    monkeypatch.setattr(GeneratesTokens, "_init_weights", AsterismPreTrainedModel._init_weights)


def small(**fields: Any) -> AsterismConfig:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 37}
    tokens = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = AsterismConfig(**sizes, **tokens, **fields)
    config.use_cache = True  # tests of caches skip models whose configuration has no such field
    return config


class CausalTester(CausalLMModelTester):
    base_model_class = AsterismModel
    causal_lm_class = AsterismForCausalLM
    config_class = AsterismConfig

    def get_config(self) -> AsterismConfig:
        return small(mixers="interleave(window(left=2), fixed(stride=4))", position_type="rotary")


class OwnAttention:
    """Attention weights are never stored. One test skips models without them as if they knew no padding."""

    @property
    def has_attentions(self: Any) -> bool:
        return "left_padding" in self._testMethodName


@common(OWN["Causal"])
class Causal(OwnAttention, ReadsPatternCaches, CausalLMModelTest, unittest.TestCase):
    model_tester_class = CausalTester


class EncoderTester:
    batch_size, seq_length, hidden_size, num_hidden_layers, is_training = 13, 7, 32, 2, True

    def get_config(self) -> AsterismConfig:
        return small(mixers="interleave(window(left=2, right=2), dense())", block="post_norm", type_vocab_size=2)

    def prepare_config_and_inputs_for_common(self) -> tuple[AsterismConfig, dict[str, torch.Tensor]]:
        shape = [self.batch_size, self.seq_length]
        return self.get_config(), {
            "input_ids": ids_tensor(shape, VOCABULARY),
            "attention_mask": random_attention_mask(shape),
        }


class PairTester(EncoderTester):
    def get_config(self) -> AsterismConfig:
        target = {"decoder_mixers": "interleave(window(left=2), causal())", "decoder_start_token_id": 1}
        return small(mixers="window(left=2, right=2)", position_type="rotary", **target)

    def prepare_config_and_inputs_for_common(self) -> tuple[AsterismConfig, dict[str, torch.Tensor]]:
        config, inputs = super().prepare_config_and_inputs_for_common()
        shape = [self.batch_size, self.seq_length]
        return config, inputs | {
            "decoder_input_ids": ids_tensor(shape, VOCABULARY),
            "decoder_attention_mask": random_attention_mask(shape),
        }


class ChecksConfiguration:
    """Those of a configuration, as each test class of transformers has them."""

    tester: type

    def setUp(self: Any) -> None:
        self.model_tester = self.tester()
        self.config_tester = ConfigTester(self, config_class=AsterismConfig, hidden_size=32)

    def test_config(self: Any) -> None:
        self.config_tester.run_common_tests()


@common(OWN["Encoders"])
class Encoders(OwnAttention, ChecksConfiguration, ModelTesterMixin, unittest.TestCase):
    tester = EncoderTester
    all_model_classes = (
        AsterismModel,
        AsterismForMaskedLM,
        AsterismForPreTraining,
        AsterismForSequenceClassification,
        AsterismForTokenClassification,
        AsterismForQuestionAnswering,
    )

    def _prepare_for_class(
        self, inputs: Any, model_class: type, return_labels: bool = False
    ) -> dict[str, torch.Tensor]:
        """BERT's test class gives labels for pre-training itself, too."""
        prepared: dict[str, torch.Tensor] = super()._prepare_for_class(inputs, model_class, return_labels)
        if return_labels and model_class is AsterismForPreTraining:
            batch, tokens = prepared["input_ids"].shape
            labels = {"labels": (batch, tokens), "next_sentence_label": (batch,)}
            prepared |= {name: torch.zeros(shape, dtype=torch.int64) for name, shape in labels.items()}
        return prepared


@common(OWN["EncoderDecoder"])
class EncoderDecoder(
    OwnAttention, ReadsPatternCaches, ChecksConfiguration, ModelTesterMixin, GenerationTesterMixin, unittest.TestCase
):
    tester = PairTester
    all_model_classes = (AsterismForConditionalGeneration,)
    is_encoder_decoder = True
