"""The common tests of transformers that fail over our models, and why: tests/common and its page read this table."""

from typing import NamedTuple


class Failure(NamedTuple):
    """A test that must fail.

    message  a part of "TypeName: message" of its error
    reason   why it fails, as the page prints it
    """

    message: str
    reason: str


WEIGHTS = Failure(
    "attention weights are never computed in full",
    "asks for attention weights, which no pattern computes",
)
SELECTED = Failure(
    "Unexpected attn_implementation",
    "builds a model of a configuration with a pattern and expects another attention than the pattern's",
)
STATIC = Failure(
    "a static or sliding cache cannot forget by a pattern",
    "asks for a static cache; the one of fixed size is `PatternCache(max_tokens=...)`",
)
SHORT_CACHE = Failure(
    "torch.Size([1, 2, 1, 16]) != (1, 2, 10, 16)",
    "selects eager attention, so the pattern is inactive, and expects a cache of all keys: with a window of 2,"
    " transformers alone fails in the same way",
)

GENERATING = {
    "test_assisted_decoding_matches_greedy_search_0_random": SHORT_CACHE,
    "test_assisted_decoding_matches_greedy_search_1_same": SHORT_CACHE,
    "test_assisted_decoding_sample": SHORT_CACHE,
    "test_capture_outputs_decorator": WEIGHTS,
    "test_config_attn_implementation_setter": SELECTED,
    "test_generate_compilation_all_outputs": STATIC,
    "test_generate_from_inputs_embeds_with_static_cache": STATIC,
    "test_generate_with_static_cache": STATIC,
    "test_static_cache_no_recompile_with_smaller_length": STATIC,
}
COMPILED = {"test_generate_compile_model_forward_fullgraph": STATIC}
COMPARED = {"test_eager_matches_sdpa_inference_24_fp32_pad_left_output_attentions": WEIGHTS}

OWN: dict[str, dict[str, Failure]] = {"Causal": {}, "Encoders": {}, "EncoderDecoder": {}}
"""By test class and name of the test: our own models."""

NATIVE: dict[str, dict[str, Failure]] = {
    "Mistral": GENERATING | COMPILED | COMPARED,
    "Gemma3": GENERATING | COMPILED | COMPARED,
    "Qwen3": GENERATING | COMPILED | COMPARED,
    "GptOss": GENERATING,
    "ModernBert": COMPARED
    | {"test_capture_outputs_decorator": WEIGHTS, "test_config_attn_implementation_setter": SELECTED},
}
"""The same, of models after `use_pattern(model)`."""


def rows() -> list[str]:
    """The rows of the table of the page, one for each test that fails."""
    return [
        f"| {case} | `{name}` | {failure.reason} |"
        for case, failures in (OWN | NATIVE).items()
        for name, failure in failures.items()
    ]
