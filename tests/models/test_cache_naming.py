"""The cache of a call has two names, of which transformers takes one without a warning, by its version."""

import inspect
import warnings

import pytest
import torch
from refusals import refusing
from small_models import small_config
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM
from transformers.modeling_outputs import CausalLMOutputWithPast

from asterism.errors import ConfigurationError
from asterism.models import AsterismForCausalLM, use_pattern
from asterism.models.cache.cache import PatternCache
from asterism.models.cache.naming import CACHE, CACHE_NAMES, cache_of, with_own_name

pytestmark = pytest.mark.model

TOKENS = torch.arange(3, 13)[None]


@pytest.fixture
def model():
    torch.manual_seed(0)
    return AsterismForCausalLM(small_config()).eval()


def test_the_name_is_that_of_the_installed_version():
    assert CACHE in inspect.signature(LlamaForCausalLM.forward).parameters
    assert CACHE in CausalLMOutputWithPast.__dataclass_fields__


@pytest.mark.parametrize("name", CACHE_NAMES)
def test_models_of_ours_take_both_names_without_a_warning(model, name):
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        cache = PatternCache(model.config)
        first = model(TOKENS[:, :6], **{name: cache}).logits
        rest = model(TOKENS[:, 6:], **{name: cache})
        whole = model(TOKENS).logits
        asked = {"max_new_tokens": 4, "do_sample": False}
        again = model.generate(TOKENS, **asked, **{name: PatternCache(model.config)})
        assert torch.equal(again, model.generate(TOKENS, **asked))
    assert cache_of(rest) is cache and cache.get_seq_length() == 10
    torch.testing.assert_close(torch.cat([first, rest.logits], dim=1), whole)


def test_two_caches_are_refused(model):
    both = {name: PatternCache(model.config) for name in CACHE_NAMES}
    for call in (model, model.generate):
        with refusing(ConfigurationError, "two-caches"):
            call(TOKENS, **both)
    assert with_own_name({"a": 1, "cache": None}) == {"a": 1}


def test_a_model_of_transformers_generates_and_forgets_without_a_warning():
    sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    llama = LlamaForCausalLM(LlamaConfig(**sizes, intermediate_size=64)).eval()
    use_pattern(llama, "window(left=3)")
    cache = DynamicCache()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        llama.generate(TOKENS, max_new_tokens=4, do_sample=False, pad_token_id=0, **{CACHE: cache})
    assert {len(layer.kept()[0]) for layer in cache.layers} == {3}
