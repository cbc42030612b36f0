"""The common tests of transformers that fail over our models, and why: tests/common and its page read this table."""

from typing import NamedTuple


class Failure(NamedTuple):
    """A test that must fail.

    message  a part of "TypeName: message" of its error
    reason   why it fails, as the page prints it
    """

    message: str
    reason: str


OWN: dict[str, dict[str, Failure]] = {"Causal": {}, "Encoders": {}, "EncoderDecoder": {}}
NATIVE: dict[str, dict[str, Failure]] = {"Mistral": {}, "Gemma3": {}, "Qwen3": {}, "GptOss": {}, "ModernBert": {}}
