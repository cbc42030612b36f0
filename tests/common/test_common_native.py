"""The common tests of transformers over models that follow their own windows by a pattern, after `use_pattern(model)`.

Each class is the test class of the family, with its own exceptions. Windows are 2 tokens, as some tests set them.
"""

import inspect
from typing import Any

import pytest
from common_failures import NATIVE
from common_tests import ReadsPatternCaches, common, gemma3, gpt_oss, mistral, modernbert, qwen3
from transformers import PreTrainedConfig, PreTrainedModel

from asterism.models import use_pattern

pytestmark = [pytest.mark.common, pytest.mark.filterwarnings("default")]

NEED_NO_WEIGHTS = ("left_padding", "eager_matches_sdpa_inference", "padding_free")
"""Tests that skip models without attention weights, and do not read any."""


@pytest.fixture(autouse=True)
def ours_in_place_of_sdpa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that compare eager attention with SDPA compare it with ours: the saved pattern selects it."""
    if "eager_matches_sdpa_inference" not in request.node.name:
        return
    load = inspect.unwrap(PreTrainedModel.from_pretrained.__func__)

    def from_pretrained(kind: type, *arguments: Any, attn_implementation: str | None = None, **named: Any) -> Any:
        model = load(kind, *arguments, **named)
        assert model.config._attn_implementation == "asterism" and attn_implementation == "sdpa"
        return model

    monkeypatch.setattr(PreTrainedModel, "from_pretrained", classmethod(from_pretrained))


class Native:
    """A tester whose configuration holds the model's own pattern. Padding is on the left: behind a prompt that is
    padded on the right, windows of transformers count padding, and patterns do not. No token is 1, which tests of
    classifiers take for padding, wherever it stands."""

    own: dict[str, Any]

    def get_config(self: Any) -> PreTrainedConfig:
        config = super().get_config()  # type: ignore[misc]
        for name, value in self.own.items():
            setattr(config, name, value)
        return use_pattern(self.base_model_class(config)).config

    def prepare_config_and_inputs(self: Any) -> tuple[Any, ...]:
        config, *inputs = super().prepare_config_and_inputs()  # type: ignore[misc]
        masks = (index for index, each in enumerate(inputs) if each is not None and each.ndim == 2 and each.max() == 1)
        place = next(masks)
        inputs[place] = inputs[place].sort(dim=1).values
        inputs[0][inputs[0] == 1] = 3
        return config, *inputs


class NativeAttention(ReadsPatternCaches):
    @property
    def has_attentions(self: Any) -> bool:
        return any(words in self._testMethodName for words in NEED_NO_WEIGHTS)


@common(NATIVE["Mistral"])
class Mistral(NativeAttention, mistral.MistralModelTest):
    class model_tester_class(Native, mistral.MistralModelTester):
        own = {"sliding_window": 2}


@common(NATIVE["Gemma3"])
class Gemma3(NativeAttention, gemma3.Gemma3TextModelTest):
    test_generation_beyond_sliding_window_tiny_model = None  # its model is on the Hub

    class model_tester_class(Native, gemma3.Gemma3TextModelTester):
        own = {"sliding_window": 2}


@common(NATIVE["Qwen3"])
class Qwen3(NativeAttention, qwen3.Qwen3ModelTest):
    class model_tester_class(Native, qwen3.Qwen3ModelTester):
        own = {"use_sliding_window": True, "sliding_window": 2, "layer_types": ["sliding_attention", "full_attention"]}


@common(NATIVE["GptOss"])
class GptOss(NativeAttention, gpt_oss.GptOssModelTest):
    class model_tester_class(Native, gpt_oss.GptOssModelTester):
        own = {"sliding_window": 2}


@common(NATIVE["ModernBert"])
class ModernBert(NativeAttention, modernbert.ModernBertModelTest):
    class Tester(Native, modernbert.ModernBertModelTester):
        base_model_class = modernbert.ModernBertModel
        own = {"local_attention": 4}

    def setUp(self) -> None:
        super().setUp()
        self.model_tester = self.Tester(self)
