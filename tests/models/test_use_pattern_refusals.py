"""Models of transformers that cannot follow a pattern, and what those that do refuse."""

import re

import pytest
import torch
from followed_models import CLIP_SIDES, COLUMNS, GROUPED, SIZES, TINY, assert_close, batch, build, llava
from refusals import refusing
from torch import nn
from transformers import (
    AutoConfig,
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertLMHeadModel,
    CLIPConfig,
    CLIPModel,
    DiffLlamaConfig,
    DiffLlamaForCausalLM,
    DogeConfig,
    DogeForCausalLM,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    Lfm2Config,
    Lfm2ForCausalLM,
    Llama4ForCausalLM,
    Llama4TextConfig,
    LlamaConfig,
    PixtralVisionConfig,
    PixtralVisionModel,
    StaticCache,
)

from asterism.errors import ConfigurationError, KernelError, PatternError
from asterism.models import use_pattern
from asterism.models.cache.naming import CACHE

pytestmark = pytest.mark.model

# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "pattern", "error", "message"),
    [
        ("llama", "window(1, 1)", PatternError, r"cannot be used by a causal model: it may read the future"),
        ("gpt2", "bigbird(block=4)", PatternError, r"bigbird\(block=4\) cannot be used by a causal model"),
        ("bert, decoder", "dense()", PatternError, r"cannot be used by a causal model"),
        ("bert", "fixed(stride=4, heads=2)", PatternError, "is for 2 heads, but the attention has 4"),
        ("bert", "across(dense(), step=2)", PatternError, r"cannot be used by Bert\w+: across\(...\) is for cross"),
        ("llama", "across(causal())", PatternError, r"cannot be used by Llama\w+: across\(...\) is for cross"),
        ("bert", "windw(2)", PatternError, "Did you mean 'window'"),
        ("bert", 3, PatternError, "a pattern, a schedule, the text of one"),
        ("bert", ["dense()"], ConfigurationError, "got 1 patterns for 3 layers"),
        (
            "bert",
            "interleave(dense(), dense(), dense(), window(1, 1))",
            ConfigurationError,
            "the schedule has 4 patterns and the model 3 layers of attention, so some would never be used",
        ),
    ],
)
def test_a_pattern_the_model_cannot_use_is_refused_and_nothing_changes(name, pattern, error, message) -> None:
    model = build(name)
    before = model.config.to_dict(), model.config._attn_implementation
    with pytest.raises(error, match=message):
        use_pattern(model, pattern)
    assert (model.config.to_dict(), model.config._attn_implementation) == before


BART = {"vocab_size": 9, "d_model": 8, "encoder_layers": 1, "decoder_layers": 1}
REFUSED = {
    "no model": (lambda: nn.Linear(2, 2), "use_pattern needs a model of transformers"),
    "bart": (
        lambda: BartForConditionalGeneration(BartConfig(**BART, encoder_attention_heads=2, decoder_attention_heads=2)),
        "BartForConditionalGeneration is an encoder with a decoder",
    ),
    "cross-attention": (
        lambda: BertLMHeadModel(BertConfig(**SIZES, is_decoder=True, add_cross_attention=True)),
        "BertLMHeadModel reads another sequence, too",
    ),
    "gpt-neo": (
        lambda: GPTNeoForCausalLM(
            GPTNeoConfig(
                vocab_size=9, hidden_size=8, num_layers=2, attention_types=[[["global", "local"], 1]], num_heads=2
            )
        ),
        "GPTNeoForCausalLM computes its attention itself, .*; use a model that does, such as Llama",
    ),
    "clip": (
        lambda: CLIPModel(CLIPConfig(text_config=TINY, vision_config=TINY | CLIP_SIDES)),
        r"CLIPModel consists of several models; give the pattern to one of them: use_pattern\(model.text_model, ",
    ),
    "llava": (
        llava,
        r"use_pattern\(model.model.language_model, pattern\) for its LlamaModel",
    ),
    "lfm2": (
        lambda: Lfm2ForCausalLM(Lfm2Config(**SIZES, layer_types=["conv", "full_attention", "conv"])),
        r"Lfm2ForCausalLM has layers other than attention \(of type conv\)",
    ),
    "doge": (lambda: DogeForCausalLM(DogeConfig(**SIZES)), "DogeForCausalLM changes its mask inside attention"),
    "diffllama": (
        lambda: DiffLlamaForCausalLM(DiffLlamaConfig(**SIZES)),
        "DiffLlamaForCausalLM attends more than once in each layer",
    ),
    "pixtral": (
        lambda: PixtralVisionModel(PixtralVisionConfig(**TINY, **CLIP_SIDES)),
        "PixtralVisionModel builds its own mask",
    ),
}
"""Models and why no pattern can be given to them."""


@pytest.mark.parametrize("name", REFUSED)
def test_models_that_cannot_follow_a_pattern_are_refused_and_nothing_changes(name: str) -> None:
    make, message = REFUSED[name]
    model = make()
    before = None if name == "no model" else (model.config.to_dict(), model.config._attn_implementation)
    with pytest.raises(ConfigurationError, match=message):
        use_pattern(model, "causal()")
    assert before is None or (model.config.to_dict(), model.config._attn_implementation) == before
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_chunks_of_a_model_are_replaced_but_not_intersected() -> None:
    chunks = {"attention_chunk_size": 4, "num_local_experts": 2, "intermediate_size_mlp": 16, "head_dim": 8}
    model = Llama4ForCausalLM(Llama4TextConfig(**GROUPED, **chunks)).double().eval()
    with refusing(ConfigurationError, "attention-chunks"):
        use_pattern(model, "causal()", native_window="intersect")
    use_pattern(model, "causal()", native_window="replace")(**batch("left"))


def test_what_a_pattern_does_not_say_is_refused() -> None:
    inputs = batch("none")
    tokens = inputs["input_ids"]
    llama, bert = use_pattern(build("llama"), "window(left=4)"), use_pattern(build("bert"), "window(2, 2)")
    with refusing(ConfigurationError, "mask-form", "a mask of shape [3, 1, 21, 21]"):
        llama(tokens, attention_mask=torch.ones(3, 1, COLUMNS, COLUMNS, dtype=torch.bool), use_cache=False)
    with refusing(ConfigurationError, "packed-with-cache"):
        llama(tokens, position_ids=torch.arange(COLUMNS)[None] % 7, use_cache=True)
    with refusing(KernelError, "cu-seqlens-range", "cu_seq_lens_q", "63", "0 to 20"):
        llama(tokens, cu_seq_lens_q=torch.tensor([0, 7, 20]), use_cache=False)
    with refusing(ConfigurationError, "cu-seq-lens-differ"):
        ends = torch.tensor([0, 7, 63]), torch.tensor([0, 8, 63])
        llama(tokens, cu_seq_lens_q=ends[0], cu_seq_lens_k=ends[1], use_cache=False)
    with refusing(ConfigurationError, "mask-shape", "[3, 20]"):
        llama(tokens, attention_mask=inputs["attention_mask"][:, 1:], use_cache=True)
    for name, message in (
        ("seq_idx", "leave out return_seq_idx=True"),
        ("output_attentions", "weights are never computed"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            llama(tokens, use_cache=False, **{name: torch.zeros(3, COLUMNS) if name == "seq_idx" else True})
    for value in (-1e9, -torch.inf, 0.5):
        added = torch.zeros(tokens.shape).index_fill(1, torch.arange(5), value)
        with pytest.raises(
            ConfigurationError, match=re.escape(f"attention_mask holds {value:g}, like a mask that is added")
        ):
            bert(tokens, attention_mask=added)
    assert_close(bert(tokens, attention_mask=torch.ones(tokens.shape)).logits, bert(tokens).logits)
    with pytest.raises(ValueError, match="output_attentions"):
        bert.config.output_attentions = True


@torch.no_grad()
def test_caches_that_cannot_forget_are_refused() -> None:
    model, inputs = build("llama"), batch("left")
    dense = model(**inputs, use_cache=True).past_key_values
    use_pattern(model, "window(left=4)")
    following = {"input_ids": inputs["input_ids"][:, :1], "attention_mask": torch.ones(3, COLUMNS + 1)}
    with refusing(ConfigurationError, "cache-filled-before"):
        model(**following, **{CACHE: dense})
    with refusing(ConfigurationError, "foreign-keys", "static or sliding cache"):
        model(**inputs, **{CACHE: StaticCache(config=model.config, max_cache_len=64)})
    with refusing(ConfigurationError, "foreign-keys", "static or sliding cache"):
        model.generate(**inputs, max_new_tokens=2, cache_implementation="static", disable_compile=True)
    other = model(**inputs, use_cache=True).past_key_values
    use_pattern(model, "window(left=5)")
    with refusing(ConfigurationError, "cache-of-other-pattern", "window(left=4)", "0"):
        model(**following, **{CACHE: other})
    use_pattern(model, "window(left=4)")
    del other.layers[1:]  # as of a model with one layer
    with refusing(ConfigurationError, "cache-of-other-layer", "0"):
        model(**following, **{CACHE: other})


def test_every_configuration_has_the_field() -> None:
    assert LlamaConfig().asterism_pattern is None
    assert "asterism_pattern" not in LlamaConfig().to_dict()
    config = AutoConfig.for_model("llama", asterism_pattern="window(left=3)")
    assert config.asterism_pattern == "window(left=3)" and config._attn_implementation == "asterism"
    config.asterism_pattern = None
    assert "attn_implementation" not in config.to_dict()
