"""Small models of transformers that follow patterns, and the same, dense, with the pattern as a mask."""

import numpy as np
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertLMHeadModel,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaConfig,
    LlavaForConditionalGeneration,
    MistralConfig,
    MistralForCausalLM,
    ModernBertConfig,
    ModernBertForMaskedLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    RobertaConfig,
    RobertaForMaskedLM,
)

from asterism import patterns

LAYERS, HEADS, VOCABULARY = 3, 4, 40
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
GROUPED = SIZES | {"num_key_value_heads": 2}
NO_DROPOUT = {"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0}
GPT2_SIZES = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": LAYERS, "n_head": HEADS, "n_positions": 128}
ALTERNATING = ["sliding_attention", "full_attention", "sliding_attention"]
CAUSAL = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**GROUPED)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**GROUPED)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**GROUPED, head_dim=8)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**GROUPED, sliding_window=None)),
    "mistral, own window": lambda: MistralForCausalLM(MistralConfig(**GROUPED, sliding_window=9)),
    "gemma3": lambda: Gemma3ForCausalLM(
        Gemma3TextConfig(**GROUPED, head_dim=8, sliding_window=5, layer_types=ALTERNATING)
    ),
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(**GPT2_SIZES, attn_pdrop=0, resid_pdrop=0, embd_pdrop=0, pad_token_id=0, eos_token_id=None)
    ),
    "bert, decoder": lambda: BertLMHeadModel(BertConfig(**SIZES, **NO_DROPOUT, is_decoder=True)),
}
ENCODERS = {
    "bert": lambda: BertForMaskedLM(BertConfig(**SIZES, **NO_DROPOUT)),
    "roberta": lambda: RobertaForMaskedLM(RobertaConfig(**SIZES, **NO_DROPOUT)),
    "modernbert": lambda: ModernBertForMaskedLM(
        ModernBertConfig(**SIZES, cls_token_id=1, sep_token_id=2, global_attn_every_n_layers=2, local_attention=8)
    ),
}
CAUSAL_PATTERNS = (
    "window(left=5)",
    "strided(stride=6)",
    "fixed(stride=8, summary=2, heads=4)",
    "interleave(window(left=3), causal(), sinks(first=2, window=4))",
)
ENCODER_PATTERNS = (
    "window(left=3, right=2)",
    "stride(period=4) | window(1, 1)",
    "bigbird(block=4, window_blocks=1, random=1)",
    "interleave(longformer(window=4, globals=(0, -1)), split_heads(window(2, 2), stride(period=3), heads=4), dense())",
)
COLUMNS = 21
SIDES = {
    "none": [range(COLUMNS)] * 3,
    "left": [range(COLUMNS), range(6, COLUMNS), range(13, COLUMNS)],
    "right": [range(COLUMNS), range(15), range(8)],
}
"""Where the real tokens of each row stand."""


TINY = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
CLIP_SIDES = {"image_size": 8, "patch_size": 2}


def llava() -> LlavaForConditionalGeneration:
    """A model with another one inside of it."""
    return LlavaForConditionalGeneration(
        LlavaConfig(
            vision_config=TINY | CLIP_SIDES | {"model_type": "clip_vision_model"},
            text_config=TINY | {"model_type": "llama", "vocab_size": 9},
        )
    )


def build(name: str) -> PreTrainedModel:
    """A model in float64, whose weights are large enough that every token matters."""
    model = (CAUSAL | ENCODERS)[name]().double().eval()
    generator = torch.Generator().manual_seed(0)
    for parameter_name, parameter in model.named_parameters():
        is_scale = "norm" in parameter_name.lower() or "ln_" in parameter_name
        spread = 1.0 if "embed" in parameter_name or "wte" in parameter_name else 0.3
        if parameter.ndim == 1 and is_scale and parameter_name.endswith("weight"):
            nn.init.ones_(parameter)
        else:
            nn.init.normal_(parameter, std=spread, generator=generator)
    return model


def batch(side: str) -> dict[str, torch.Tensor]:
    tokens = torch.randint(3, VOCABULARY, (3, COLUMNS), generator=torch.Generator().manual_seed(1))
    mask = torch.zeros(3, COLUMNS, dtype=torch.int64)
    for row, real in enumerate(SIDES[side]):
        mask[row, list(real)] = 1
    return {"input_ids": torch.where(mask == 1, tokens, 0), "attention_mask": mask}


def dense_mask(pattern: patterns.Pattern, side: str) -> torch.Tensor:
    """What a pattern allows, bool [batch, heads, queries, keys]; each row by its real tokens. Padding reads itself."""
    allowed = np.zeros((3, HEADS, COLUMNS, COLUMNS), bool)
    for row, real in enumerate(SIDES[side]):
        allowed[row][:, min(real) : max(real) + 1, min(real) : max(real) + 1] = pattern.dense(len(real))
    return torch.from_numpy(allowed) | torch.eye(COLUMNS, dtype=torch.bool)


class DenseWithMasks:
    """A stock model whose layers get masks of their own."""

    def __init__(self, model: PreTrainedModel, schedule: str, side: str, native_window: str = "replace") -> None:
        self.model = model
        model.set_attn_implementation("sdpa" if model._supports_sdpa else "eager")
        for module in model.modules():
            if hasattr(module, "layer_idx") and hasattr(module, "is_causal"):
                mask = dense_mask(patterns.parse_schedule(schedule).layer(module.layer_idx), side)
                if native_window == "intersect" and (own := self.own_window(module)) is not None:
                    mask = mask & dense_mask(own, side)
                module.register_forward_pre_hook(
                    lambda module, args, kwargs, mask=mask: (args, kwargs | {"attention_mask": mask}), with_kwargs=True
                )

    @staticmethod
    def own_window(module: nn.Module) -> patterns.Pattern | None:
        size = getattr(module, "sliding_window", None) or getattr(module.config, "sliding_window", None)
        if isinstance(module.config, ModernBertConfig):
            # local_attention=8 is 4 on either side.
            return patterns.window(4, 4) if module.sliding_window else None
        if isinstance(module.config, Gemma3TextConfig) and module.sliding_window is None:
            return None
        return (
            patterns.window(size - 1) if isinstance(module.config, MistralConfig | Gemma3TextConfig) and size else None
        )


def real_logits(model: PreTrainedModel, inputs: dict[str, torch.Tensor], **arguments) -> torch.Tensor:
    return model(**inputs, **arguments).logits[inputs["attention_mask"].bool()]


def enable_checkpointing(model: PreTrainedModel) -> None:
    """By its name in the transformers at hand."""
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable()


def assert_close(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got, expected, atol=1e-9, rtol=1e-9)
