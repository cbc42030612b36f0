"""Draft."""
import os
import unittest
import pytest
import torch
import common_tests as ct
from asterism.models import *
pytestmark = pytest.mark.filterwarnings("default")
from tests.models.mistral import test_modeling_mistral as mistral
from tests.models.gemma3 import test_modeling_gemma3 as gemma3
from tests.models.gpt_oss import test_modeling_gpt_oss as gpt_oss
from tests.models.qwen3 import test_modeling_qwen3 as qwen3
from tests.models.modernbert import test_modeling_modernbert as modernbert

class NativeTester:
    def get_config(self):
        config = super().get_config()
        for name, value in self.own.items(): setattr(config, name, value)
        if os.environ.get("STOCK"): return config
        model = use_pattern(self.base_model_class(config))
        return model.config

class Mistral(ct.without_processes_or_hub(mistral.MistralModelTest)):
    class model_tester_class(NativeTester, mistral.MistralModelTester):
        own = {"sliding_window": 3}
class Gemma3(ct.without_processes_or_hub(gemma3.Gemma3TextModelTest)):
    class model_tester_class(NativeTester, gemma3.Gemma3TextModelTester):
        own = {"sliding_window": 3}
class Qwen3(ct.without_processes_or_hub(qwen3.Qwen3ModelTest)):
    class model_tester_class(NativeTester, qwen3.Qwen3ModelTester):
        own = {"use_sliding_window": True, "sliding_window": 3, "layer_types": ["sliding_attention", "full_attention"]}
class GptOss(ct.without_processes_or_hub(gpt_oss.GptOssModelTest)):
    class model_tester_class(NativeTester, gpt_oss.GptOssModelTester):
        own = {"sliding_window": 3}
class ModernBert(ct.without_processes_or_hub(modernbert.ModernBertModelTest)):
    class Tester(NativeTester, modernbert.ModernBertModelTester):
        base_model_class = modernbert.ModernBertModel
        own = {"local_attention": 4}
    def setUp(self):
        super().setUp()
        self.model_tester = self.Tester(self)
