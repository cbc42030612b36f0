"""Tiny models of the families of transformers, built from their configurations alone, and what a pattern does to them.

`tell` is what tests/models/test_zoo.py compares the page with: a family works, or is refused with a reason. A family
that does neither raises AssertionError. `python tests/support/zoo.py` writes the table anew.
"""

import inspect
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
import transformers
from repository import docs_page
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from asterism.errors import AsterismError
from asterism.models import use_pattern

VOCABULARY, TOKENS, LAYERS = 40, 14, 2
WIDTHS = "hidden_size d_model n_embd dim embed_dim word_embed_proj_dim encoder_hidden_size"
DEPTHS = (
    "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers num_decoder_layers num_encoder_layers"
)
HEADS = "num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads"
INNER = "intermediate_size ffn_dim d_ff hidden_dim n_inner encoder_ffn_dim decoder_ffn_dim ffn_hidden_size"
LENGTHS = "max_position_embeddings n_positions max_source_positions max_target_positions"
EXPERTS = "num_experts num_local_experts n_routed_experts moe_num_experts"
SIZES: dict[str, Any] = {
    **dict.fromkeys(WIDTHS.split(), 32),
    **dict.fromkeys(DEPTHS.split(), LAYERS),
    **dict.fromkeys(HEADS.split(), 4),
    **dict.fromkeys(INNER.split(), 48),
    **dict.fromkeys(LENGTHS.split(), 64),
    **dict.fromkeys(EXPERTS.split(), 4),
    **{"vocab_size": VOCABULARY, "vocab_size_per_layer_input": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1},
    **{"num_key_value_heads": 2, "head_dim": 8, "d_kv": 8, "embedding_size": 16, "sliding_window": 5},
    **{"image_size": 8, "patch_size": 2, "num_mel_bins": 8, "decoder_start_token_id": 1, "eos_token_id": 2},
    **{
        "moe_intermediate_size": 16,
        "intermediate_size_mlp": 48,
        "shared_expert_intermediate_size": 16,
        "num_experts_per_tok": 2,
        "moe_k": 2,
    },
    **{"n_shared_experts": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
    **{"kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8},
    **{"rotary_dim": 4, "rope_dim": 4, "qk_head_dim": 8, "attention_chunk_size": 64},
}
"""What fields of configurations are set to, where there are such fields."""
UNLESS_NONE = ("sliding_window", "rotary_dim", "q_lora_rank", "attention_chunk_size")
"""Fields that switch something on."""
OWN = {"gpt_neo": {"attention_types": [[["global", "local"], 1]]}}
"""What single families need, by the name of their configuration."""
LATENT = {"num_key_value_heads": 4, "head_dim": 4}
"""Where keys come from a latent vector, every head has its own."""
KINDS = (
    ("causal", modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING),
    ("masked", modeling_auto.MODEL_FOR_MASKED_LM_MAPPING),
    ("seq2seq", modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING),
    ("base", modeling_auto.MODEL_MAPPING),
)
LARGEST = 8_000_000
PAGE = docs_page("zoo.md")


@dataclass(frozen=True)
class Verdict:
    """What a pattern does to a family: `works`, or why it is refused."""

    family: str
    model: str
    works: bool
    reason: str = ""


def families() -> list[str]:
    """All families of the installed transformers, by the name of their configuration."""
    return sorted(CONFIG_MAPPING.keys())


def build(
    family: str, more: Mapping[str, Any] = MappingProxyType({}), model_class: Any = None
) -> PreTrainedModel | None:
    """A tiny model with random weights in float64; None for a family that cannot be built so small without its data.

    more         fields that are set wherever a configuration has them
    model_class  of the model, where no auto class names it
    """
    cls = CONFIG_MAPPING[family]
    kind = next((mapping for _, mapping in KINDS if cls in mapping), None)
    if kind is None and model_class is None:
        return None
    try:
        model_class = model_class or kind[cls]
        model_class = model_class[0] if isinstance(model_class, tuple) else model_class
        with torch.device("meta"):
            if sum(parameter.numel() for parameter in model_class(cls(**_small(cls, more))).parameters()) > LARGEST:
                return None
        torch.manual_seed(0)
        model = model_class(cls(**_small(cls, more)))
        _randomise(model)
        if hasattr(model, "set_experts_implementation"):
            model.set_experts_implementation("eager")  # others know no float64
        return model.double().eval()
    except Exception:
        return None  # it needs fields of its own


def _small(cls: type[PreTrainedConfig], more: Mapping[str, Any]) -> dict[str, Any]:
    try:
        default = cls()
    except Exception:
        default = None
    renamed = getattr(cls, "attribute_map", {})
    names = set(inspect.signature(cls.__init__).parameters) | (set() if default is None else set(vars(default)))
    fields: dict[str, Any] = {}
    for name, value in (SIZES | more).items():
        unset = (
            default is not None and name in UNLESS_NONE and name not in more and getattr(default, name, None) is None
        )
        if name in names | set(renamed) and renamed.get(name) not in fields and not unset:
            fields[name] = value
    if "kv_lora_rank" in names:
        fields |= {name: value for name, value in LATENT.items() if name in fields}
    fields |= OWN.get(cls.model_type, {})
    for name, kind in getattr(cls, "sub_configs", {}).items():
        part = getattr(default, name, None)
        if default is None or part is not None:
            real = kind if part is None else type(part)
            if real.__name__ != "AutoConfig":
                fields[name] = _small(real, more) | ({"model_type": real.model_type} if real.model_type else {})
    return fields


def _randomise(model: nn.Module) -> None:
    """Weights large enough that every token matters."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(std=0.2, generator=generator)


def inputs_of(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """A batch of two rows; text is padded on the right of the first."""
    generator = torch.Generator().manual_seed(1)
    if model.main_input_name == "pixel_values":
        return {"pixel_values": torch.randn(2, 3, 8, 8, generator=generator, dtype=torch.float64)}
    if model.main_input_name != "input_ids":
        return {model.main_input_name: torch.randn(2, 8, 128, generator=generator, dtype=torch.float64)}
    tokens = torch.randint(3, VOCABULARY, (2, TOKENS), generator=generator)
    mask = torch.ones(2, TOKENS, dtype=torch.int64)
    mask[0, TOKENS - 4 :] = 0
    return {"input_ids": tokens * mask, "attention_mask": mask}


def output(model: PreTrainedModel, inputs: dict[str, torch.Tensor], **arguments: Any) -> torch.Tensor:
    """The logits or last hidden states, 0 at padding."""
    torch.manual_seed(3)  # ViT MAE hides patches at random
    result = model(**inputs, **arguments)
    tensor = next(
        getattr(result, name)
        for name in ("logits", "last_hidden_state", "pooler_output")
        if getattr(result, name, None) is not None
    )
    mask = inputs.get("attention_mask")
    return tensor if mask is None or tensor.shape[:2] != mask.shape else tensor * mask[..., None]


def causes(model: PreTrainedModel) -> str:
    """The pattern that hides nothing of what the model shows."""
    try:
        with torch.random.fork_rng():
            use_pattern(model, "dense()", native_window="replace")
        return "dense()"
    except AsterismError as error:
        if "causal model" in str(error):
            return "causal()"
        raise


def tell(family: str) -> Verdict | None:
    """What a pattern does to a family; None for one that cannot be built here. AssertionError where it does wrong."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _tell(family)


def _tell(family: str) -> Verdict | None:
    model = build(family)
    if model is None:
        return None
    name = type(model).__name__
    try:
        covering = causes(model)
        use_pattern(model, covering, native_window="intersect" if not _chunks(model) else "replace")
    except AsterismError as error:
        return Verdict(family, name, False, str(error))
    model.set_attn_implementation("eager")
    try:
        output(model, inputs_of(model))
    except Exception:
        return None  # it needs inputs of its own
    for check in (check_numbers, check_window, check_generation):
        check(model, covering)
    return Verdict(family, name, True)


def row(verdict: Verdict) -> str:
    """The row of the table for a family."""
    reason = verdict.reason.replace("|", "\\|").removeprefix(f"{verdict.model} ")
    return f"| {verdict.family} | {verdict.model} | {'works' if verdict.works else f'refused: {reason}'} |"


def read_table() -> tuple[str, dict[str, str]]:
    """The version of transformers that the zoo page is about, and its row for each family."""
    text = PAGE.read_text()
    rows = re.findall(r"^(\| ([\w.-]+) \| \w+ \| .* \|)$", text, re.MULTILINE)
    return re.findall(r"transformers (\d+\.\d+\.\d+)", text)[0], {family: row for row, family in rows}


def write_table() -> None:
    """Put the rows of all families that can be built here into the zoo page."""
    verdicts = [verdict for family in families() if (verdict := tell(family)) is not None]
    works = sum(verdict.works for verdict in verdicts)
    head, _, _ = PAGE.read_text().partition("## The table")
    PAGE.write_text(
        f"{head}## The table\n\n{len(verdicts)} families of transformers {transformers.__version__}: {works} work,"
        f" {len(verdicts) - works} are refused.\n\n| family | model | with a pattern |\n|---|---|---|\n"
        + "".join(f"{row(verdict)}\n" for verdict in verdicts)
    )


def _chunks(model: PreTrainedModel) -> bool:
    return bool(getattr(model.config, "attention_chunk_size", None))


def check_numbers(model: PreTrainedModel, covering: str) -> None:
    """Equal outputs and gradients to transformers' own eager attention."""
    inputs, results = inputs_of(model), []
    for implementation in ("eager", "asterism"):
        model.set_attn_implementation(implementation)
        model.zero_grad()
        out = output(model, inputs, **_without_cache(model))
        weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(2), dtype=out.dtype)
        (out * weights).sum().backward()
        gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
        results.append((out.detach(), gradients))
    (expected, expected_gradients), (got, gradients) = results
    _assert_close("outputs", got, expected)
    assert gradients.keys() == expected_gradients.keys()
    largest = max(gradient.abs().max().item() for gradient in expected_gradients.values() if gradient.numel())
    for name, gradient in gradients.items():
        _assert_close(f"the gradient of {name}", gradient, expected_gradients[name], largest / 1000)


def _assert_close(what: str, got: torch.Tensor, expected: torch.Tensor, smallest: float = 1e-6) -> None:
    # Eager attention of transformers has its softmax in float32.
    scale = max(expected.abs().max().item() if expected.numel() else 0, smallest)
    error = (got - expected).abs().max().item() / scale if got.numel() else 0.0
    assert got.isfinite().all() and error < 1e-4, f"{what} differ by {error:.1e} of the largest"


def check_window(model: PreTrainedModel, covering: str) -> None:
    """A window of two layers keeps a change to the first token from the last."""
    inputs = inputs_of(model)
    changed = dict(inputs)
    first = changed[model.main_input_name].clone()
    if model.main_input_name == "input_ids":
        first[:, 0] = 3 + (first[:, 0] - 2) % (VOCABULARY - 3)
    else:
        first[..., 0, 0] += 1.0
    changed[model.main_input_name] = first
    moved = []
    with torch.no_grad():
        for pattern in (covering, "window(left=2)" if covering == "causal()" else "window(left=2, right=2)"):
            use_pattern(model, pattern, native_window="replace")
            before, after = (output(model, x, **_without_cache(model)) for x in (inputs, changed))
            moved.append((before - after)[1].abs().flatten(1).amax(dim=1) if before.ndim == 3 else None)
    use_pattern(model, covering, native_window="replace" if _chunks(model) else "intersect")
    if moved[0] is None or moved[1] is None or hasattr(model.config, "mask_ratio"):
        return  # only a row's summary comes out, or patches in a random order
    assert moved[0][-1] > 1e-6, "a change to the first token does not reach the last one through dense attention"
    assert moved[1].amax() > 1e-6 and moved[1][-1] < 1e-12, f"a window does not restrict: {moved[1].tolist()}"


def check_generation(model: PreTrainedModel, covering: str) -> None:
    """Equal text with and without a cache, and equal to that of eager attention."""
    if covering != "causal()" or not model.can_generate():
        return
    inputs = {name: x[1:, :6] for name, x in inputs_of(model).items()}
    length = {"max_new_tokens": 8, "do_sample": False}
    model.set_attn_implementation("eager")
    try:
        expected = model.generate(**inputs, **length, use_cache=False)
    except Exception:
        return  # it generates something else than text
    model.set_attn_implementation("asterism")
    texts = [model.generate(**inputs, **length, use_cache=use_cache) for use_cache in (True, False)]
    assert torch.equal(texts[0], texts[1]), "generation with the cache differs from generation without"
    assert torch.equal(texts[0], expected), "generation differs from that of eager attention"


def _without_cache(model: PreTrainedModel) -> dict[str, bool]:
    return {"use_cache": False} if model.can_generate() else {}


if __name__ == "__main__":
    write_table()
