"""Tiny models of the families with windows or chunks, their own patterns, and what transformers computes by them.

`tell` is what tests/models/test_native.py compares the page with. `python tests/support/native_models.py` writes it.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
import transformers
import zoo
from repository import docs_page
from torch.nn import functional
from transformers import PreTrainedModel

from asterism.errors import ConfigurationError
from asterism.models import use_pattern

LAYERS = 6
SWITCHED = {
    **dict.fromkeys(zoo.DEPTHS.split(), LAYERS),
    **{"sliding_window": 5, "local_attention": 8, "attention_chunk_size": 8, "use_sliding_window": True},
    **{"max_window_layers": 2, "global_attn_every_n_layers": 3, "num_kv_shared_layers": 0},
}
"""Every window and chunk on, and layers enough that types of layers take turns."""
_TURNS = {"layer_types": ["sliding_attention", "full_attention"] * (LAYERS // 2)}
_ROPE = {"rope_type": "default", "rope_theta": 1e4}
_ROTARY = {"rope_parameters": {**_ROPE, "mrope_section": [2, 1, 1]}}
OWN: dict[str, dict[str, Any]] = {
    "laguna": _TURNS,
    "mellum": _TURNS,
    "neomme": {"hidden_size": 64, "head_dim": 16},
    "qwen2_vl_text": _ROTARY,
    "qwen2_5_vl_text": _ROTARY,
    "qwen2_5_omni_text": _ROTARY,
    "cohere_compass_text": {**_TURNS, "rope_parameters": dict.fromkeys(_TURNS["layer_types"], _ROPE)},
    "diffusion_gemma_text": {"num_experts": 4, "top_k_experts": 2},
    "step3p5": {**_TURNS, "num_sliding_attention_heads": 2},
}
"""What single families need besides."""
PARTS = {
    "diffusion_gemma_text": "DiffusionGemmaEncoderTextModel",
    "qwen2_5_omni_text": "Qwen2_5OmniThinkerTextModel",
    "step3p5": "Step3p7TextModel",
}
"""Models that are parts of others, so that no auto class names them."""
FIELDS = ("sliding_window", "local_attention", "attention_chunk_size")
EXACT, SINGLE = 1e-10, 1e-5
"""Errors, of the largest number: where eager attention computes in float64, and where it casts to float32 inside."""


@dataclass(frozen=True)
class Native:
    """How a model's own pattern compares with eager attention of transformers."""

    family: str
    model: str
    patterns: tuple[str, ...]
    outputs: float
    gradients: float
    generation: bool | None

    @property
    def row(self) -> str:
        errors = "exact" if max(self.outputs, self.gradients) < EXACT else "float32"
        text = {None: "none", True: "equal"}[self.generation]
        shown = ", ".join(f"{len(list(same))} x `{pattern}`" for pattern, same in groupby(self.patterns))
        return f"| {self.family} | {self.model} | {shown} | {errors} | {text} |"


def build(family: str) -> PreTrainedModel | None:
    """A tiny model whose configuration names a window or chunks; None for any other."""
    part = PARTS.get(family)
    model = zoo.build(family, SWITCHED | OWN.get(family, {}), getattr(transformers, part) if part else None)
    if model is None:
        return None
    parts = model.config.per_layer_config if getattr(model.config, "is_heterogeneous", False) else [model.config]
    return model if any(getattr(part, name, None) is not None for part in parts for name in FIELDS) else None


def tell(family: str) -> Native | None:
    """How a family compares; None for one without windows, or refused. AssertionError where anything is wrong."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = build(family)
        if model is None:
            return None
        try:
            use_pattern(model, "native")
        except ConfigurationError:
            return None
        model.set_attn_implementation("eager")
        try:
            _real(model, next(_batches(model)))
        except Exception:
            return None  # it needs inputs of its own
        outputs, gradients = zip(*(_errors(model, inputs) for inputs in _batches(model)), strict=True)
        found = Native(
            family, type(model).__name__, patterns_of(model), max(outputs), max(gradients), _generates(model)
        )
    assert max(found.outputs, found.gradients) < SINGLE, found
    assert found.generation is not False, found
    return found


def patterns_of(model: PreTrainedModel) -> tuple[str, ...]:
    """Each layer's, in short."""
    return tuple(text.replace(", dilation=1", "").replace(", right=0", "") for text in model.config.asterism_pattern)


def _batches(model: PreTrainedModel) -> Iterator[dict[str, torch.Tensor]]:
    """Without padding, and with it on either side."""
    inputs = zoo.inputs_of(model)
    if "attention_mask" not in inputs:
        yield inputs
        return
    yield {"input_ids": torch.randint(3, zoo.VOCABULARY, (2, 20), generator=torch.Generator().manual_seed(4))}
    yield inputs
    yield {name: x.flip(1) for name, x in inputs.items()}


def _errors(model: PreTrainedModel, inputs: dict[str, torch.Tensor]) -> tuple[float, float]:
    """Of the outputs and of all gradients, as parts of the largest number."""
    results = []
    for implementation in ("eager", "asterism"):
        model.set_attn_implementation(implementation)
        model.zero_grad()
        with softmax_in_float64():
            out = _real(model, inputs)
            weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(2), dtype=out.dtype)
            (out * weights).sum().backward()
        grown = [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
        results.append((out.detach(), torch.cat(grown)))
    (expected, expected_gradients), (got, gradients) = results
    pairs = ((got, expected), (gradients, expected_gradients))
    assert all(one.isfinite().all() for pair in pairs for one in pair)
    outputs, changed = (((one - other).abs().max() / other.abs().max()).item() for one, other in pairs)
    return outputs, changed


def _real(model: PreTrainedModel, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """The logits or states of real tokens: eager attention gives NaN to padding that reads nothing."""
    result = model(**inputs, **zoo._without_cache(model))
    found = next(x for name in ("logits", "last_hidden_state") if (x := getattr(result, name, None)) is not None)
    mask = inputs.get("attention_mask")
    return found if mask is None else found[mask.bool()]


def _generates(model: PreTrainedModel) -> bool | None:
    """Whether text with our cache is that of eager attention and its cache; None for a model that writes none."""
    if not model.can_generate():
        return None
    prompt = torch.randint(3, zoo.VOCABULARY, (2, 12), generator=torch.Generator().manual_seed(2))
    texts = []
    for implementation in ("eager", "asterism"):
        model.set_attn_implementation(implementation)
        texts.append(model.generate(prompt, max_new_tokens=10, do_sample=False, pad_token_id=0, eos_token_id=None))
    return torch.equal(*texts)


@contextmanager
def softmax_in_float64() -> Iterator[None]:
    """Eager attention of transformers asks for its softmax in float32; here it has the dtype of its scores."""
    softmax = functional.softmax

    def exact(scores: torch.Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> torch.Tensor:
        return softmax(scores, dim, dtype=scores.dtype if scores.dtype is torch.float64 else dtype)

    functional.softmax = exact
    try:
        yield
    finally:
        functional.softmax = softmax


def read_table() -> tuple[str, dict[str, str]]:
    """The version of transformers that the page is about, and its row for each family."""
    text = docs_page("native.md").read_text()
    rows = [line for line in text.splitlines() if line.endswith((" equal |", " none |"))]
    version = text.partition("families of transformers ")[2].partition(":")[0]
    return version, {row.split(" | ")[0].removeprefix("| "): row for row in rows}


def write_table() -> None:
    """Put the rows of all families that can be built here into the page."""
    page = docs_page("native.md")
    found = [one for family in zoo.families() if (one := tell(family)) is not None]
    head, _, _ = page.read_text().partition("## The table")
    page.write_text(
        f"{head}## The table\n\n{len(found)} families of transformers {transformers.__version__}:\n\n"
        "| family | model | own patterns of six layers | outputs and gradients | generation |\n|---|---|---|---|---|\n"
        + "".join(f"{one.row}\n" for one in found)
    )


if __name__ == "__main__":
    write_table()
